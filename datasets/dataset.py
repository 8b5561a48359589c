"""Data sets before partition, split and standardization."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from datasets.errors import DataError

Column = NDArray[Any]
EXACT = 2.0**53  # from here on float64 holds no longer every whole number


@dataclass(frozen=True, eq=False)
class Dataset:
    """A pool of samples with their metadata.

    Attributes
    ----------
    name : str
        Name in the catalog, e.g. ``"adult"``.
    x : Tensor
        Features ``(n, F)`` or images ``(n, ch, h, w)``, float32.
    y : Tensor
        Labels ``(n,)``, int64 in ``0..K-1``; or numbers to predict, float32.
    classes : tuple[str, ...]
        Names of the K labels; empty for numbers.
    source : str
        Source of the data as printed in tables, e.g. ``"cifar10 (official)"``.
    digest : str
        SHA-256 of the data: of the file for tables, of the files' contents in a fixed order otherwise.
    group : Tensor or None
        Sensitive group ``(n,)``, int64; None without a sensitive attribute.
    groups : tuple[str, ...]
        Names of the groups; empty without a sensitive attribute.
    official_test : Tensor or None
        ``(n,)`` bool, True on the rows of the source's own test split; None where it has none.
    features : tuple[str, ...]
        Names of the F columns; empty for images.
    origins : tuple[str, ...]
        For each of the F columns the raw column that it comes from; empty for images.
    continuous : Tensor or None
        ``(F,)`` bool, True on the columns that `federate` standardizes with statistics of the training samples.
        None for images, which are normalized with constants when loaded.
    exact : Tensor or None
        The continuous columns in float64 where the source has more digits than float32 holds; they are standardized
        before they are rounded. None: standardize ``x``.
    columns : Mapping[str, ndarray]
        Raw columns ``(n,)`` (text or numbers) for partitions by a natural attribute; empty for images.
    client : str
        The raw column that says who holds a sample; empty if none does.
    reveals : Mapping[str, tuple[str, ...]]
        Raw column to further raw columns that tell what it says.
    public : tuple[str, ...]
        Facts about the samples that reading them used, and that a privacy claim takes as public.
    encoded : str
        The encoder that has made features, with the digest of its weights; empty if none has.
    """

    name: str
    x: Tensor
    y: Tensor
    classes: tuple[str, ...]
    source: str
    digest: str
    group: Tensor | None = None
    groups: tuple[str, ...] = ()
    official_test: Tensor | None = None
    features: tuple[str, ...] = ()
    origins: tuple[str, ...] = ()
    continuous: Tensor | None = None
    exact: Tensor | None = None
    columns: Mapping[str, Column] = field(default_factory=dict)
    client: str = ""
    reveals: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    public: tuple[str, ...] = ()
    encoded: str = ""

    def __post_init__(self) -> None:
        """Make samples contiguous: gathering rows from a column-major table is ten times slower."""
        object.__setattr__(self, "x", self.x.contiguous())

    @property
    def strata(self) -> NDArray[np.int64]:
        """The label of every sample ``(n,)``, or of numbers the tenth, by which samples are told apart."""
        labels: NDArray[np.int64] = self.y.numpy() if self.classes else tenths(self.y)[0]
        return labels

    def __len__(self) -> int:
        """Return the number of samples."""
        return len(self.y)


def tenths(numbers: Tensor) -> tuple[NDArray[np.int64], tuple[str, ...]]:
    """Cut numbers into at most ten ranges of about equally many.

    Returns
    -------
    place : ndarray
        Range of every number, ``(n,)`` int64, in their order.
    names : tuple[str, ...]
        Smallest and largest number of each range.
    """
    values = numbers.numpy()
    cuts = np.quantile(values, np.arange(1, 10) / 10)
    _, place = np.unique(np.searchsorted(cuts, values), return_inverse=True)
    # A number near zero is zero, where others are a million times as large.
    rounded = np.round(values, 6 - math.frexp(float(np.abs(values).max()))[1] * 3 // 10) + 0.0
    ranges = [rounded[place == number] for number in range(place.max() + 1)]
    ends = [(f"{members.min():.4g}", f"{members.max():.4g}") for members in ranges]
    return place.astype(np.int64), tuple(low if low == high else f"{low} to {high}" for low, high in ends)


def halves(dataset: Dataset) -> Dataset:
    """Return the data set with two classes: the lower half of its classes (0, negative) and the upper half (1).

    With an odd number of classes the middle one belongs to the upper half. Features are shared, not copied.

    Raises
    ------
    DataError
        If it has fewer than two classes.
    """
    count = len(dataset.classes)
    if not count:
        raise DataError(f"data set {dataset.name!r} has numbers instead of classes; halves needs classes")
    if count < 2:
        raise DataError(f"data set {dataset.name!r} has {count} class; halves needs two or more")
    names = f"classes 0 to {count // 2 - 1}", f"classes {count // 2} to {count - 1}"
    source = f"{dataset.source} in two halves"
    return replace(dataset, y=(dataset.y >= count // 2).long(), classes=names, source=source)


def group_by(attributes: Sequence[Column]) -> tuple[Tensor, tuple[str, ...]]:
    """Form groups from one or several sensitive attributes.

    Parameters
    ----------
    attributes : sequence of ndarray
        Text columns ``(n,)``; several are crossed, and only combinations that occur become groups.

    Returns
    -------
    group : Tensor
        ``(n,)``, int64.
    names : tuple[str, ...]
        Sorted; crossed attributes are joined by " & ".

    Raises
    ------
    DataError
        If two combinations have one name, because a value holds " & ".
    """
    combinations = dict.fromkeys(zip(*(column.tolist() for column in attributes), strict=True))
    named: dict[str, tuple[str, ...]] = {}
    for parts in combinations:
        if named.setdefault(" & ".join(parts), parts) != parts:
            both = f"{named[' & '.join(parts)]} and {parts}"
            raise DataError(f"the crossed groups {both} have the same name; rename a value that holds ' & '")
    labels = np.array([" & ".join(parts) for parts in zip(*attributes, strict=True)])
    names, codes = np.unique(labels, return_inverse=True)
    return torch.from_numpy(codes.astype(np.int64)), tuple(str(name) for name in names)


def read_registered(name: str, read: Callable[..., Dataset], _: object, **options: object) -> Dataset:
    """Read a data set that is registered as a function, and check its tensors.

    Raises
    ------
    DataError
        If the function raises, or returns other tensors than a `Dataset` holds.
    """
    try:
        data = read(**options)
        x, y, labels = data.x, data.y, range(len(data.classes))
    except DataError:
        raise
    except Exception as error:  # a user's reader may raise anything
        raise DataError(f"data set {name!r} cannot be read: {type(error).__name__}: {error}") from error
    kind = torch.int64 if labels else torch.float32
    if (x.dtype, y.dtype, y.shape) != (torch.float32, kind, x.shape[:1]) or not len(y):
        shapes = f"{x.dtype} {tuple(x.shape)} and {y.dtype} {tuple(y.shape)}"
        raise DataError(
            f"data set {name!r}: x must be float32 (n, ...) and y int64 (n,), or without classes float32, "
            f"given {shapes}"
        )
    if not labels:
        if not y.isfinite().all() or y.min() == y.max():
            raise DataError(f"data set {name!r}: numbers to predict must be finite, and two or more")
    elif int(y.min()) not in labels or int(y.max()) not in labels:
        raise DataError(f"data set {name!r}: {len(labels)} classes, but labels from {y.min()} to {y.max()}")
    return data
