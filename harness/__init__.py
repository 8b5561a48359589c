"""The benchmark harness: ``python -m harness --help``, or from Python the names of `harness.api`.

They are looked up when first used, so that importing one part of the package does not import all of it.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from harness.api import (
        Execution,
        RunRecord,
        RunSpec,
        Setup,
        Simulation,
        UserError,
        leaderboard,
        load_plugin,
        load_results,
        prepare,
        run,
    )

__all__ = [
    "Execution",
    "RunRecord",
    "RunSpec",
    "Setup",
    "Simulation",
    "UserError",
    "leaderboard",
    "load_plugin",
    "load_results",
    "prepare",
    "run",
]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module("harness.api"), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
