"""Predictions for the clients' test samples, and the CSV file that holds them."""

from __future__ import annotations

import csv
import os
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain, count, takewhile
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from harness.core.errors import UserError
from harness.metrics.ranking import Bools, Floats, Ints, Ranking, hit_rates, ranking
from harness.storage.cells import write_rows
from harness.storage.files import replacing

Shape = tuple[int, ...]


@dataclass(frozen=True, eq=False)
class Predictions:
    """Predictions for the test samples of all clients, one entry per sample.

    Attributes
    ----------
    client : NDArray
        Client of the sample, ``(n,)`` int64.
    y_true : NDArray
        Label, ``(n,)`` int64 in ``0 .. K-1``; or the number that is predicted, ``(n,)`` float64.
    score : NDArray
        Class scores, larger = likelier: ``(n, K)`` float64, or for two classes the score of class 1, ``(n,)``. Of
        numbers the prediction, ``(n,)``.
    y_pred : NDArray | None
        Predicted label, like `y_true`; None if scores only rank samples, and for numbers.
    classes : tuple[str, ...]
        Names of the ``K`` labels; empty if numbers are predicted.
    groups : tuple[str, ...]
        Names of the ``G`` sensitive groups; empty if the data have none.
    group : NDArray | None
        Sensitive group, ``(n,)`` int64 in ``0 .. G-1``; None if and only if `groups` is empty.
    loss : NDArray | None
        Loss of every sample, ``(n,)`` float64; None if the problem has no loss per sample.

    Raises
    ------
    ValueError
        If there is no sample, or an array has a different type, shape or range.
    """

    client: Ints
    y_true: NDArray[Any]
    score: Floats
    y_pred: Ints | None
    classes: tuple[str, ...]
    groups: tuple[str, ...] = ()
    group: Ints | None = None
    loss: Floats | None = None

    def __post_init__(self) -> None:
        """Validate types, shapes and ranges."""
        n, k = len(self.client), len(self.classes)
        if n == 0:
            raise ValueError("predictions: metrics need at least one test sample, given none")
        if (self.group is None) != (not self.groups):
            raise ValueError(f"group and groups go together, got ids {self.group} and names {self.groups}")
        check_array("client", self.client, np.int64, [(n,)])
        check_array("y_true", self.y_true, np.int64 if k else np.float64, [(n,)], k)
        if self.y_pred is not None:
            check_array("y_pred", self.y_pred, np.int64, [(n,)], k)
        check_array("score", self.score, np.float64, [(n, k)] * (k > 0) + [(n,)] * (k in (0, 2)))
        if self.group is not None:
            check_array("group", self.group, np.int64, [(n,)], len(self.groups))
        if self.loss is not None:
            check_array("loss", self.loss, np.float64, [(n,)])

    @property
    def binary(self) -> bool:
        """Whether the task has two classes."""
        return len(self.classes) == 2

    @property
    def distance(self) -> Floats:
        """Absolute error of each predicted number, ``(n,)``."""
        distances: Floats = np.abs(self.score - self.y_true)
        return distances

    @cached_property
    def hit(self) -> Bools:
        """Whether each sample is classified correctly, ``(n,)``."""
        right: Bools = np.equal(self.y_true, self.decided)
        return right

    @property
    def decided(self) -> Ints:
        """Predicted labels, ``(n,)``; only for predictions that have them."""
        assert self.y_pred is not None, "no predicted labels"
        return self.y_pred

    @property
    def positive_score(self) -> Floats:
        """Score of class 1 in a task of two classes, ``(n,)``."""
        return self.score if self.score.ndim == 1 else self.score[:, 1]

    @cached_property
    def sizes(self) -> Ints:
        """Samples of every client up to the last one with any."""
        return np.bincount(self.client)

    @cached_property
    def positives(self) -> Ints:
        """Samples of class 1 of every client in `sizes`."""
        return self._of_clients(self.y_true == 1)

    @cached_property
    def accuracies(self) -> Floats:
        """Accuracy of every client that has samples."""
        return drop_nan(hit_rates(self._of_clients(self.hit), self.sizes))

    @cached_property
    def recalls(self) -> Floats:
        """Recall of every class that occurs."""
        by_class = self.outcomes.sum(0)
        return drop_nan(hit_rates(by_class.diagonal(), by_class.sum(1)))

    @cached_property
    def outcomes(self) -> Ints:
        """Confusion counts (group, true label, predicted label), ``(G, K, K)``; G = 1 without groups."""
        k, group = len(self.classes), 0 if self.group is None else self.group
        cell = (group * k + self.y_true) * k + self.decided
        return np.bincount(cell, minlength=max(1, len(self.groups)) * k * k).reshape(-1, k, k)

    @cached_property
    def ranking(self) -> Ranking | None:
        """The order of the scores of class 1; None if one is NaN."""
        return ranking(self.positive_score, self.y_true == 1)

    @cached_property
    def client_aurocs(self) -> Floats | None:
        """AUROC of every client in `sizes`, NaN without both classes; None if a score is NaN."""
        return None if self.ranking is None else self.ranking.aurocs(self.client, self.sizes)

    def _of_clients(self, marked: Bools) -> Ints:
        """Return how many samples of every client are marked."""
        return np.bincount(self.client, weights=marked).astype(np.int64)


def check_array(
    name: str, array: NDArray[Any], dtype: type, shapes: list[Shape], size: int | None = None
) -> None:
    """Raise unless `array` has the type and one of the shapes, and ids (int64) lie in ``0 .. size-1``."""
    if array.dtype != dtype or array.shape not in shapes:
        allowed = " or ".join(map(str, shapes))
        raise ValueError(f"{name}: expected {np.dtype(dtype)} {allowed}, got {array.dtype} {array.shape}")
    if dtype is np.int64 and (array.min() < 0 or (size is not None and array.max() >= size)):
        allowed = "0 and above" if size is None else f"0 to {size - 1}"
        raise ValueError(f"{name}: allowed values are {allowed}, got {array.min()} to {array.max()}")


def drop_nan(shares: Floats) -> Floats:
    """Drop rates of labels without samples."""
    return shares[~np.isnan(shares)]


def _score_columns(classes: int) -> list[str]:
    if not classes:
        return ["y_number"]
    return ["y_score"] if classes == 2 else [f"y_score_{k}" for k in range(classes)]


def write_predictions(
    predictions: Predictions, path: str | os.PathLike[str], names: Sequence[str] = ()
) -> None:
    """Write the samples to a CSV file from which every metric can be recomputed bit for bit.

    Columns ``client, y_true, y_score, y_pred, group`` and, where known, ``loss`` and ``name``. `y_score` is the
    score of class 1; with more than two classes there are ``y_score_0 .. y_score_{K-1}``; if numbers are predicted
    it is called ``y_number``. `y_pred` is empty without predicted labels. `group` is the group's number, empty
    without a sensitive attribute. Floats have the shortest digits that read back exactly. The file is replaced
    atomically.

    Parameters
    ----------
    predictions : Predictions
        The samples.
    path : str | os.PathLike
        The file, in an existing folder.
    names : Sequence[str]
        Names of the clients, which `read_predictions` leaves out; empty if they have none.
    """
    p = predictions
    scores = [p.score] if not p.classes else [p.positive_score] if p.binary else list(p.score.T)
    columns = dict(zip(_score_columns(len(p.classes)), scores, strict=True))
    table = {"client": p.client, "y_true": p.y_true, **columns, "y_pred": p.y_pred, "group": p.group}
    empty = [""] * len(p.client)
    cells = {name: empty if column is None else column.tolist() for name, column in table.items()}
    if p.loss is not None:
        cells["loss"] = p.loss.tolist()
    if names:
        cells["name"] = [names[client] for client in p.client.tolist()]
    rows = zip(*cells.values(), strict=True)
    with (
        replacing(Path(path), durable=True) as temporary,
        temporary.open("w", newline="", encoding="utf-8") as file,
    ):
        write_rows(file, chain([cells], rows))


def read_predictions(
    path: str | os.PathLike[str], classes: tuple[str, ...] = (), groups: tuple[str, ...] = ()
) -> Predictions:
    """Read the file that `write_predictions` wrote; all metrics are preserved.

    For two classes the file holds the score of class 1 only, and `score` is ``(n,)``.

    Parameters
    ----------
    path : str | os.PathLike
        The CSV file.
    classes, groups : tuple[str, ...]
        Names of the labels and groups; default: their numbers.

    Returns
    -------
    Predictions
        The samples in the order of the file.

    Raises
    ------
    UserError
        If columns are missing or unknown, a line has the wrong number of fields, or a cell is not a number.
    """
    with Path(path).open(newline="", encoding="utf-8") as file:
        header, *lines = list(csv.reader(file)) or [[]]
    numbered = list(takewhile(lambda name: name in header, (f"y_score_{k}" for k in count())))
    k = 0 if "y_number" in header else len(numbered) or 2
    expected = ["client", "y_true", *_score_columns(k), "y_pred", "group"]
    if header not in ([*expected, *more] for more in ((), ("loss",), ("name",), ("loss", "name"))):
        raise UserError(
            f"{path}: expected columns {','.join(expected)}[,loss][,name], got {','.join(header)}"
        )
    for number, line in enumerate(lines, start=2):
        if len(line) != len(header):
            raise UserError(f"{path}, line {number}: expected {len(header)} fields, got {len(line)}")
    cells = {name: [line[i] for line in lines] for i, name in enumerate(header)}

    def column(name: str, kind: type) -> NDArray[Any]:
        try:
            return np.array([kind(cell) for cell in cells[name]])
        except ValueError as error:
            raise UserError(f"{path}, column {name}: {error}") from error

    group = column("group", int) if any(cells["group"]) else None
    scores = [column(name, float) for name in _score_columns(k)]
    return Predictions(
        client=column("client", int),
        y_true=column("y_true", int if k else float),
        score=scores[0] if k in (0, 2) else np.stack(scores, axis=1),
        y_pred=column("y_pred", int) if any(cells["y_pred"]) else None,
        classes=classes or tuple(map(str, range(k))),
        groups=() if group is None else groups or tuple(map(str, range(group.max() + 1))),
        group=group,
        loss=column("loss", float) if "loss" in cells else None,
    )
