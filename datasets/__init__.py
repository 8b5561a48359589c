"""Real data sets and their partition into clients.

The names are imported on first use, as most parts need torch, and what reads results does not.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from datasets.catalog import describe, fetch, load, names
    from datasets.dataset import Dataset
    from datasets.errors import DataError

__all__ = ["DataError", "Dataset", "describe", "fetch", "load", "names"]

#: The module of every name that is not in `datasets.catalog`.
_ELSEWHERE = {"DataError": "errors", "Dataset": "dataset"}


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_ELSEWHERE.get(name, 'catalog')}"), name)
