"""Datasets of torch as federations: a function names the client of each sample."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from datasets.arrays import arrays_of
from datasets.dataset import Dataset
from datasets.encoding import Cells, Content, Kind, complete, number_cells
from datasets.errors import DataError
from datasets.files import Roles, make_dataset

INPUT, LABEL, CLIENT = "x", "y", "client"
MODES = ("1", "L", "RGB")  # of images of Pillow


class MapStyle(Protocol):
    """A dataset with a length, whose samples are pairs of an input and a label."""

    def __len__(self) -> int:
        """Return the number of samples."""
        ...

    def __getitem__(self, index: int, /) -> Any:
        """Return a sample."""
        ...


def from_torch(
    name: str, dataset: MapStyle, client: Callable[[int], object], classes: Sequence[str] | None = None
) -> Dataset:
    """Read all samples of a dataset of torch, for a function that `datasets.catalog.data_set` registers.

    Parameters
    ----------
    name : str
        Name of the data set, for messages and tables.
    dataset : MapStyle
        A map-style dataset of pairs: an image (a tensor, an array or one of Pillow) or a vector, and a label.
    client : Callable[[int], object]
        Returns the name of the client that holds the sample of a number.
    classes : sequence of str, optional
        Names of the classes 0 to K - 1, of two the positive one last. Default: the labels themselves.

    Returns
    -------
    Dataset
        With the column ``client``, by which the partition ``natural`` deals. Bytes are scaled to [0, 1]; what the
        dataset draws at random, as augmentations do, is drawn once.

    Raises
    ------
    DataError
        If a sample cannot be read, is no such pair, or differs from the first in its shape.
    """
    if not callable(getattr(dataset, "__len__", None)) or not callable(getattr(dataset, "__getitem__", None)):
        raise DataError(f"{name}: a map-style dataset is needed, with a length and samples by number")
    inputs: list[NDArray[Any]] = []
    labels: list[Any] = []
    clients: list[str] = []
    for index in range(len(dataset)):
        where = f"{name}: sample {index}"
        x, label, owner = _sample(where, dataset, client, index)
        inputs.append(x)
        labels.append(label)
        clients.append(owner)
        first = inputs[0]
        if (x.shape, x.dtype) != (first.shape, first.dtype) or x.dtype.kind not in "biuf":
            raise DataError(
                f"{where} has the shape {x.shape} of {x.dtype}, and the first {first.shape} of {first.dtype}"
            )
    if len(inputs) < 2 or not inputs[0].ndim:
        raise DataError(f"{name}: {len(inputs)} samples; two or more vectors or images are needed")
    values = np.stack(inputs)
    hasher = hashlib.sha256(values.tobytes())
    hasher.update(repr((values.shape, values.dtype.str, labels, clients)).encode())
    arrays = arrays_of(f"{name}: the inputs", values)._replace(classes=tuple(classes or ()))
    content = Content(
        {LABEL: _labels(name, labels, classes), CLIENT: complete(clients)},
        len(clients), hasher.hexdigest(), typed=True, arrays={INPUT: lambda: arrays},
    )  # fmt: skip
    roles = Roles(label=LABEL, client=CLIENT, input=INPUT)
    made = make_dataset("torch", Path(name), roles, content)
    return replace(made, name=name, source=f"{name} (a dataset of torch)")


def _sample(
    where: str, dataset: MapStyle, client: Callable[[int], object], index: int
) -> tuple[NDArray[Any], Any, str]:
    """Return the input, the label and the client of a sample."""
    try:
        x, y = dataset[index]
        values, label, owner = np.asarray(x), np.asarray(y).item(), client(index)
    except Exception as error:  # a user's dataset may raise anything
        raise DataError(f"{where} is no input with a label: {type(error).__name__}: {error}") from error
    if not isinstance(owner, str | int | np.integer):
        raise DataError(f"{where}: the client is {owner!r}; a text or a whole number names one")
    mode = getattr(x, "mode", None)
    if isinstance(mode, str) and mode not in MODES:  # such as numbers of a palette
        raise DataError(f"{where} is an image of mode {mode}; convert it: image.convert('RGB')")
    return values, label, str(owner)


def _labels(name: str, labels: Sequence[Any], classes: Sequence[str] | None) -> Callable[[Kind], Cells]:
    """Return the column of the labels, by their names if they have some."""
    if classes is None and all(isinstance(label, int | float) for label in labels):
        values = np.array(labels, np.float64)
        cells = number_cells(f"{name}: the labels", values, np.isnan(values))
        return lambda _: cells
    if classes is None:
        return complete([str(label) for label in labels])
    for label in labels:
        if not isinstance(label, int) or not 0 <= label < len(classes):
            raise DataError(f"{name}: a label is {label!r}; {len(classes)} classes have numbers from 0")
    return complete([classes[label] for label in labels])
