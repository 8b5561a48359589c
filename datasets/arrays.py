"""Columns whose cells are arrays: images, vectors of numbers, and signs of a text in their order."""

from __future__ import annotations

from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from datasets.errors import DataError, nearest
from datasets.limits import check_values

#: Images that files keep as flat lists, by their length: those of FEMNIST, of CIFAR and of CelebA in TFF's size.
FLAT = {28 * 28: (28, 28, 1), 32 * 32 * 3: (32, 32, 3), 84 * 84 * 3: (84, 84, 3)}
CHANNELS = (1, 3)
NORMALIZE = ("none", "half")


class Encoded(NamedTuple):
    """Features of samples.

    Attributes
    ----------
    x : Tensor
        ``(n, ...)``, float32.
    features, origins : tuple[str, ...]
        Names of the F features and of the columns that they come from; empty unless ``x`` is ``(n, F)``.
    continuous : Tensor or None
        ``(F,)`` bool, True on features that are standardized.
    """

    x: torch.Tensor
    features: tuple[str, ...] = ()
    origins: tuple[str, ...] = ()
    continuous: torch.Tensor | None = None


class Arrays(NamedTuple):
    """A column whose cells are arrays of one shape.

    Attributes
    ----------
    kind : {"images", "numbers", "text"}
        What they are.
    values : ndarray
        Images ``(n, channels, height, width)``, numbers ``(n, F)``, or numbers of signs ``(n, L, 1)``.
    why : str
        How it is known what they are.
    classes : tuple[str, ...]
        Names of all signs, which are the classes of the label if it is the next one; else empty.
    """

    kind: Literal["images", "numbers", "text"]
    values: NDArray[Any]
    why: str
    classes: tuple[str, ...] = ()

    @property
    def shape(self) -> str:
        """The shape of a cell, for people."""
        return " x ".join(map(str, self.values.shape[1:]))

    def encode(self, where: object, name: str, rows: NDArray[np.bool_], normalize: str) -> Encoded:
        """Return the features of the chosen rows.

        Parameters
        ----------
        where, name : object, str
            The file and the column, for messages.
        rows : ndarray
            ``(n,)`` bool.
        normalize : {"none", "half"}
            Leave pixels in [0, 1], or shift them to [-1, 1].

        Raises
        ------
        DataError
            If pixels are in no known range, or ``normalize`` is unknown or does not fit.
        """
        allowed = NORMALIZE if self.kind == "images" else NORMALIZE[:1]
        if normalize not in allowed:
            raise DataError(
                f"{where}: normalize={normalize!r} does not fit the column {name!r}; {nearest(normalize, allowed)}"
            )
        values = self.values if rows.all() else self.values[rows]
        if self.kind == "images":
            x = pixels(f"{where}: the column {name!r}", values)
            return Encoded(x if normalize == "none" else x.sub_(0.5).div_(0.5))
        x = torch.from_numpy(values.astype(np.float32))
        if self.kind == "text":
            return Encoded(x)
        names = tuple(f"{name} {place}" for place in range(x.shape[1]))
        continuous = ~((x == 0) | (x == 1)).all(0)
        return Encoded(x, names, names, continuous)


def pixels(what: str, values: NDArray[Any]) -> torch.Tensor:
    """Return images in [0, 1], float32: bytes, and numbers above 1, are divided by 255.

    Raises
    ------
    DataError
        If numbers above 1 are not from 0 to 255.
    """
    x = torch.from_numpy(np.ascontiguousarray(values)).float()
    if values.dtype == np.uint8:
        return x.div_(255)
    low, high = x.min().item(), x.max().item()
    if high <= 1:
        return x
    if low < 0 or high > 255:
        raise DataError(
            f"{what} has pixels from {low:.4g} to {high:.4g}; they must be from 0 to 1, or to 255"
        )
    return x.div_(255)


def arrays_of(what: str, values: NDArray[Any]) -> Arrays:
    """Return numbers of one shape a row as images or vectors, as their shape says.

    Parameters
    ----------
    what : str
        File and column, for messages.
    values : ndarray
        ``(n, ...)``.

    Returns
    -------
    Arrays
        Two axes are an image of one channel; three are one of 1 or 3 channels, which come last or first. One axis
        is a vector, or one of the images in `FLAT`.

    Raises
    ------
    DataError
        If the shape is another one, there are too many numbers, or one is not finite.
    """
    check_values(what, values.size)
    shape = values.shape[1:]
    if 0 in shape:
        raise DataError(f"{what} holds arrays of shape {shape}, which have no numbers")
    if (
        values.dtype.kind == "f"
        and not (finite := np.isfinite(values).all(tuple(range(1, values.ndim)))).all()
    ):
        raise DataError(f"{what} holds a number that is not finite, in row {int(np.argmin(finite)) + 1}")
    why = f"arrays of {' x '.join(map(str, shape))}"
    if len(shape) == 1 and shape[0] in FLAT:
        values = values.reshape(-1, *FLAT[shape[0]])
        why = f"lists of {shape[0]:,} numbers, as images of this size have"
    elif len(shape) == 1:
        return Arrays("numbers", values, f"lists of {shape[0]:,} numbers")
    elif len(shape) == 2:
        values = values[..., None]
    if len(shape) > 3 or values.ndim != 4 or not {values.shape[-1], values.shape[1]} & {*CHANNELS}:
        raise DataError(
            f"{what} holds arrays of shape {shape}; vectors, images (height, width), and images with 1 or 3 "
            "channels are read"
        )
    return Arrays("images", np.moveaxis(values, -1, 1) if values.shape[-1] in CHANNELS else values, why)
