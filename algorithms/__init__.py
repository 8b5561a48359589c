"""All algorithms, one file each, in the folder of their family.

A file's header gives the paper and its URL, its symbols, the messages, and all deviations. Client and server steps
are those of `Descent` and `ServerUpdate` in `harness.core`, with the same settings in every algorithm.
"""

from importlib import import_module
from pkgutil import walk_packages

from harness.core.algorithm import ALGORITHMS, Algorithm
from harness.core.errors import UserError


def load() -> None:
    """Import every algorithm, which registers it.

    Raises
    ------
    UserError
        If a file cannot be imported or contains an algorithm without ``@register``.
    """
    for module in walk_packages(__path__, f"{__name__}."):
        file = module.name.replace(".", "/") + ".py"
        try:
            imported = import_module(module.name)
        except Exception as error:  # a user's file may raise anything
            raise UserError(f"{file} cannot be imported: {type(error).__name__}: {error}") from error
        for name, cls in vars(imported).items():
            if not (isinstance(cls, type) and issubclass(cls, Algorithm) and cls.__module__ == module.name):
                continue
            if cls not in (ALGORITHMS[registered] for registered in ALGORITHMS):
                raise UserError(f"{file}: class {name} is not registered; add @register above it")
