"""Pickles of arrays and frames, read by an unpickler that runs no other code."""

from __future__ import annotations

import io
import pickle
from collections.abc import Collection, Mapping
from typing import Any

import numpy as np

ODD = pickle.UnpicklingError("an array that is not read from its numbers is refused")


class _Array(np.ndarray[Any, Any]):
    """Stand-in for the class of arrays, which itself may not be called: it would take any memory for objects."""

    def __new__(cls, *arguments: object) -> _Array:
        """Refuse: raise `pickle.UnpicklingError`."""
        raise ODD


def _reconstruct(kind: type, shape: tuple[int, ...], code: bytes) -> np.ndarray[Any, Any]:
    """Return the empty array that is then filled."""
    if kind is not _Array or shape != (0,):
        raise ODD
    return np.empty(0, np.int8)


class _Unpickler(pickle.Unpickler):
    """Unpickler that knows some names only, since any other could run code."""

    def __init__(self, content: bytes, admitted: Mapping[str, Collection[str]], encoding: str) -> None:
        super().__init__(io.BytesIO(content), encoding=encoding)
        self.admitted = admitted

    def find_class(self, module: str, name: str) -> Any:
        """Return an admitted object; raise `pickle.UnpicklingError` for any other name."""
        if name not in self.admitted.get(module, ()):
            raise pickle.UnpicklingError(f"it names {module}.{name}, which is refused")
        if name == "_reconstruct":
            return _reconstruct
        if name == "ndarray":
            return _Array
        return super().find_class(module.replace("numpy.core.", "numpy._core."), name)  # as it is called now


def unpickle(content: bytes, admitted: Mapping[str, Collection[str]], encoding: str = "ASCII") -> Any:
    """Load a pickle that is made of builtin containers and of what is admitted.

    Parameters
    ----------
    content : bytes
        The pickle.
    admitted : mapping of str to collection of str
        Module to the names in it that the pickle may use.
    encoding : str
        Of texts that Python 2 wrote.

    Raises
    ------
    pickle.UnpicklingError
        If it is damaged, or names anything else.
    """
    try:
        return _Unpickler(content, admitted, encoding).load()
    except pickle.UnpicklingError:
        raise
    except Exception as error:  # a damaged pickle may raise anything
        raise pickle.UnpicklingError(f"{type(error).__name__}: {error}") from error
