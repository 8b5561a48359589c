"""All algorithms, one file each, in the folder of their family.

Files begin with the paper and its address, its symbols, what travels, and deviations. Steps of
clients and server are those of `Descent` and `ServerUpdate` in `harness.core`, with the same settings everywhere.
"""

from importlib import import_module
from pkgutil import walk_packages

from harness.core.algorithm import ALGORITHMS, Algorithm
from harness.core.registry import UserError


def load() -> None:
    """Import every algorithm, so that each registers itself.

    Raises
    ------
    UserError
        If a file cannot be imported, or holds an algorithm that does not register itself.
    """
    for module in walk_packages(__path__, f"{__name__}."):
        file = module.name.replace(".", "/") + ".py"
        try:
            found = import_module(module.name)
        except Exception as error:  # whatever a file of somebody's own raises
            raise UserError(f"{file} cannot be imported: {type(error).__name__}: {error}") from error
        for name, thing in vars(found).items():
            mine = (
                isinstance(thing, type) and issubclass(thing, Algorithm) and thing.__module__ == module.name
            )
            if mine and thing not in (ALGORITHMS[known] for known in ALGORITHMS):
                raise UserError(f"{file}: class {name} needs the line @register above it to be found")
