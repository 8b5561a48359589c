"""What a model is worth: figures computed from the predictions for all clients' test samples.

A metric is one function ``Predictions -> float | None`` under the decorator `metric`; the first line of its
docstring is the description that reports print. All metrics are computed at every evaluation. One that does
not apply (no sensitive attribute, one class only, more than two classes where two are needed, no decision
where scores only rank) is None, never zero and never NaN. Rules that hold throughout:

- A client, class or group without test samples has no rate and is left out.
- Means and minima over clients or classes need one member, a spread two; comparing groups needs two groups.
- Fairness gaps are for two classes, the positive class is 1, and they are taken on the pooled samples of all
  clients, as the fairness papers do (Hardt et al. 2016 define equal opportunity and equalized odds).

The file is long because the figures and the CSV file they can all be recomputed from belong together.
"""

from __future__ import annotations

import csv
import math
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import count, takewhile
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from harness.core.registry import PLUGGED, UserError
from harness.storage.files import replacing

if TYPE_CHECKING:
    from torch import Tensor

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]
Shape = tuple[int, ...]
Direction = Literal["max", "min"]


@dataclass(frozen=True, eq=False)
class Predictions:
    """Predictions for the test samples of all clients, one entry a sample.

    Attributes
    ----------
    client : NDArray
        Which client the sample belongs to, ``(n,)`` int64.
    y_true : NDArray
        Label, ``(n,)`` int64 in ``0 .. K-1``.
    score : NDArray
        Class scores, larger = likelier: ``(n, K)`` float64, or of two classes ``(n,)``, the score of class 1.
    y_pred : NDArray | None
        Predicted label, like `y_true`; None where scores rank samples and no threshold decides.
    classes : tuple[str, ...]
        Names of the ``K`` labels.
    groups : tuple[str, ...]
        Names of the ``G`` sensitive groups; empty where the data have none.
    group : NDArray | None
        Sensitive group, ``(n,)`` int64 in ``0 .. G-1``; None exactly where `groups` is empty.
    loss : NDArray | None
        Loss of every sample, ``(n,)`` float64; None where the problem has no loss per sample.

    Raises
    ------
    ValueError
        If there is no sample, or an array has another type, shape or range than stated here.
    """

    client: Ints
    y_true: Ints
    score: Floats
    y_pred: Ints | None
    classes: tuple[str, ...]
    groups: tuple[str, ...] = ()
    group: Ints | None = None
    loss: Floats | None = None

    def __post_init__(self) -> None:
        """Refuse what would give a wrong figure later."""
        n, k = len(self.client), len(self.classes)
        if n == 0:
            raise ValueError("predictions for no sample at all: metrics need at least one test sample")
        if (self.group is None) != (not self.groups):
            raise ValueError(f"group and groups go together, got ids {self.group} and names {self.groups}")
        _check("client", self.client, np.int64, [(n,)])
        _check("y_true", self.y_true, np.int64, [(n,)], k)
        if self.y_pred is not None:
            _check("y_pred", self.y_pred, np.int64, [(n,)], k)
        _check("score", self.score, np.float64, [(n, k), (n,)] if k == 2 else [(n, k)])
        if self.group is not None:
            _check("group", self.group, np.int64, [(n,)], len(self.groups))
        if self.loss is not None:
            _check("loss", self.loss, np.float64, [(n,)])

    @property
    def binary(self) -> bool:
        """Whether the task has two classes."""
        return len(self.classes) == 2

    @property
    def hit(self) -> Bools:
        """Which samples are classified rightly, ``(n,)``."""
        return np.equal(self.y_true, self.decided)

    @property
    def decided(self) -> Ints:
        """Predicted labels, ``(n,)``, for the figures that need some."""
        assert self.y_pred is not None, "scores without a decision"
        return self.y_pred

    @property
    def positive_score(self) -> Floats:
        """Score of class 1 in a task of two classes, ``(n,)``."""
        return self.score if self.score.ndim == 1 else self.score[:, 1]

    @cached_property
    def accuracies(self) -> Floats:
        """Accuracy of every client that has samples, on these."""
        return _present(_shares_by(self.hit, self.client))

    @cached_property
    def recalls(self) -> Floats:
        """Recall of every class that occurs."""
        by_class = self.outcomes.sum(0)
        return _present(_shares(by_class.diagonal(), by_class.sum(1)))

    @cached_property
    def outcomes(self) -> Ints:
        """How many samples of a group and a class are given a label, ``(G, K, K)``; without groups they are one."""
        k, group = len(self.classes), 0 if self.group is None else self.group
        cell = (group * k + self.y_true) * k + self.decided
        return np.bincount(cell, minlength=max(1, len(self.groups)) * k * k).reshape(-1, k, k)

    @cached_property
    def positive_rank(self) -> Ints:
        """Rank of the score of class 1, ``(n,)``; kept, as sorting is a good part of an evaluation."""
        return _ranks(self.positive_score)


def _check(name: str, array: NDArray[Any], dtype: type, shapes: list[Shape], size: int | None = None) -> None:
    """Raise unless `array` has that type and one of those shapes, and ids (int64) lie in ``0 .. size-1``."""
    if array.dtype != dtype or array.shape not in shapes:
        allowed = " or ".join(map(str, shapes))
        raise ValueError(f"{name}: expected {np.dtype(dtype)} {allowed}, got {array.dtype} {array.shape}")
    if dtype is np.int64 and (array.min() < 0 or (size is not None and array.max() >= size)):
        allowed = "0 and above" if size is None else f"0 to {size - 1}"
        raise ValueError(f"{name}: allowed values are {allowed}, got {array.min()} to {array.max()}")


MetricFn = Callable[[Predictions], float | None]


@dataclass(frozen=True)
class Metric:
    """A registered metric.

    Attributes
    ----------
    name : str
        Key in results, suites and reports.
    direction : {"max", "min"}
        Which way is better.
    format : str
        Format specification of a value, as in ``format(value, metric.format)``.
    description : str
        One sentence, ending with the unit in brackets.
    fn : Callable
        ``Predictions -> float | None``.
    ranks : bool
        Whether it needs scores only, and no predicted labels.
    """

    name: str
    direction: Direction
    format: str
    description: str
    fn: MetricFn
    ranks: bool = False


METRICS: dict[str, Metric] = {}
RECALLED: dict[str, Metric] = {}  # by results that were made with a plugin; they cannot be computed here


#: Of these, figures on other samples than the test samples are kept too, under names with a prefix.
ELSEWHERE = {
    "selection": ("accuracy", "worst_group", "eqopp", "auroc", "loss"),
    "train": ("accuracy", "eqopp"),
}


def described(measure: str) -> Metric | None:
    """Return the metric that a measure is; ``selection_accuracy`` is accuracy on other samples."""
    prefix, _, name = measure.partition("_")
    elsewhere = METRICS.get(name) if name in ELSEWHERE.get(prefix, ()) else None
    return METRICS.get(measure) or elsewhere or RECALLED.get(measure)


def better_is_higher(measure: str) -> bool:
    """Return whether larger values of a measure are better."""
    metric = described(measure)
    return metric is not None and metric.direction == "max"


def recall(written: Mapping[str, Mapping[str, str]]) -> None:
    """Take over what `written_down` has kept of metrics, so that tables of them are made without their plugin."""
    for name, about in written.items():
        direction: Direction = "max" if about["direction"] == "max" else "min"
        RECALLED[name] = Metric(name, direction, about["format"], about["description"], lambda _: None)


def written_down() -> dict[str, dict[str, str]]:
    """Return what tables need to know of the metrics of plugins."""
    return {
        name: {"direction": m.direction, "format": m.format, "description": m.description}
        for name, m in METRICS.items()
        if ("metric", name) in PLUGGED
    }


def metric(
    direction: Direction, format: str, unit: str, ranks: bool = False
) -> Callable[[MetricFn], MetricFn]:
    """Register the decorated function as a metric under its own name; UserError if it cannot be one."""

    def register(fn: MetricFn) -> MetricFn:
        name = fn.__name__
        if name in METRICS:
            raise UserError(f"metric {name!r} is registered twice")
        if direction not in ("max", "min"):
            raise UserError(f"metric {name}: better is 'max' or 'min', given {direction!r}")
        try:
            f"{0.5:{format}}"
        except ValueError:
            raise UserError(f"metric {name}: a format of numbers, as '.4f', given {format!r}") from None
        summary = (fn.__doc__ or name).strip().splitlines()[0].rstrip(".")
        METRICS[name] = Metric(name, direction, format, f"{summary} [{unit}]", fn, ranks)
        return fn

    return register


def evaluate(predictions: Predictions, total_clients: int) -> dict[str, float | None]:
    """Compute every registered metric.

    A value that is not finite (the loss of a diverged model) becomes None too, so that results stay valid
    JSON. A caller that must tell "diverged" from "does not apply" looks at the scores and losses themselves.

    Parameters
    ----------
    predictions : Predictions
        Predictions for the test samples of all clients.
    total_clients : int
        Number of clients of the federation; those without test samples enter no metric.

    Returns
    -------
    dict[str, float | None]
        Metric name to value, in the order of `METRICS`.

    Raises
    ------
    ValueError
        If a client id is not below `total_clients`.
    """
    _check("client", predictions.client, np.int64, [predictions.client.shape], total_clients)
    undecided = predictions.y_pred is None
    return {
        name: None if undecided and not m.ranks else _value(m, predictions) for name, m in METRICS.items()
    }


def _value(metric: Metric, predictions: Predictions) -> float | None:
    """Compute one metric; what somebody else's does wrong is said with its name."""
    try:
        value = metric.fn(predictions)
        return None if value is None or not math.isfinite(value) else value
    except Exception as error:
        raise RuntimeError(f"metric {metric.name}: {type(error).__name__}: {error}") from error


# --- building blocks ---


def _shares(hits: Ints, totals: Ints) -> Floats:
    """Return what share the hits are of so many samples, one by one; NaN of none."""
    shares = np.full(totals.shape, np.nan)
    np.divide(hits, totals, out=shares, where=totals > 0)
    return shares


def _shares_by(hit: Bools, label: Ints) -> Floats:
    """Return the share of hits within every label, ``(labels,)``."""
    totals = np.bincount(label)
    return _shares(np.bincount(label[hit], minlength=len(totals)), totals)


def _present(shares: Floats) -> Floats:
    """Drop the labels without samples."""
    return shares[~np.isnan(shares)]


def _positive_rates(p: Predictions, label: int | None = None) -> Floats | None:
    """Return P(y_pred = 1 | group[, y_true = label]), ``(G,)``; None without groups or beyond two classes."""
    if p.group is None or not p.binary:
        return None
    given = p.outcomes.sum(1) if label is None else p.outcomes[:, label]
    return _shares(given[:, 1], given.sum(1))


def _group_accuracies(p: Predictions) -> Floats:
    return _shares(p.outcomes.trace(axis1=1, axis2=2), p.outcomes.sum((1, 2)))


def _gap(shares: Floats | None) -> float | None:
    """Return largest minus smallest share; None with fewer than two groups to compare."""
    if shares is None or len(present := _present(shares)) < 2:
        return None
    return float(present.max() - present.min())


def _ranks(score: Floats) -> Ints:
    """Return the rank of every score, ``(n,)``; equal scores have one."""
    ranks: Ints = np.unique(score, return_inverse=True)[1]
    return ranks


def _aurocs(rank: Ints, positive: Bools, segment: Ints) -> Floats:
    """Return the exact AUROC within every segment that has both sides, ties counted one half.

    The segment is the leading digit of one integer key, the score's rank the other. So one sort of the negatives
    and two binary searches count, for every positive, the negatives of its own segment that are below it and those
    that are not above it: O(n log n) for all segments together, and in whole numbers.
    """
    n = len(rank)
    key = segment * n + rank
    neg, pos = np.sort(key[~positive]), np.sort(key[positive])  # sorted needles make the searches much faster
    size = int(segment.max()) + 1
    of_pos = pos // n
    n_pos, n_neg = np.bincount(of_pos, minlength=size), np.bincount(neg // n, minlength=size)
    earlier = np.cumsum(n_neg) - n_neg  # negatives of the segments before
    twice = np.searchsorted(neg, pos, "left") + np.searchsorted(neg, pos, "right") - 2 * earlier[of_pos]
    wins = np.bincount(of_pos, weights=twice, minlength=size) / 2
    both = (n_pos > 0) & (n_neg > 0)
    return wins[both] / (n_pos[both] * n_neg[both])


def _mean(values: Floats) -> float | None:
    """Return the mean; None of nothing."""
    return float(values.mean()) if len(values) else None


# --- metrics ---


@metric("max", ".4f", "share, 0 to 1")
def accuracy(p: Predictions) -> float | None:
    """Accuracy over the pooled test samples of all clients."""
    return float(p.hit.mean())


@metric("max", ".4f", "share, 0 to 1")
def client_accuracy(p: Predictions) -> float | None:
    """Mean over clients of the accuracy on the client's own test samples."""
    return _mean(p.accuracies)


@metric("max", ".4f", "share, 0 to 1")
def balanced_accuracy(p: Predictions) -> float | None:
    """Mean recall over the classes that occur."""
    return _mean(p.recalls)


@metric("max", ".4f", "share, 0 to 1")
def worst_client(p: Predictions) -> float | None:
    """Lowest accuracy of a client on its own test samples."""
    return float(p.accuracies.min())


@metric("min", ".4f", "share, 0 to 0.5")
def client_std(p: Predictions) -> float | None:
    """Spread over clients: population standard deviation of their accuracies."""
    return float(p.accuracies.std()) if len(p.accuracies) >= 2 else None


@metric("max", ".4f", "share, 0 to 1")
def worst_class(p: Predictions) -> float | None:
    """Lowest recall of a class that occurs."""
    return float(p.recalls.min())


@metric("max", ".4f", "share, 0 to 1")
def worst_group(p: Predictions) -> float | None:
    """Lowest accuracy of a sensitive group."""
    if p.group is None:
        return None
    accuracies = _present(_group_accuracies(p))
    return float(accuracies.min()) if len(accuracies) >= 2 else None


@metric("min", ".4f", "share, 0 to 1")
def eqopp(p: Predictions) -> float | None:
    """Equal-opportunity gap: largest minus smallest true positive rate of the groups that have positives."""
    return _gap(_positive_rates(p, 1))


@metric("min", ".4f", "share, 0 to 1")
def eqodds(p: Predictions) -> float | None:
    """Equalized-odds gap: the larger of the gaps between groups in true and in false positive rate."""
    tpr_gap, fpr_gap = _gap(_positive_rates(p, 1)), _gap(_positive_rates(p, 0))
    return None if tpr_gap is None or fpr_gap is None else max(tpr_gap, fpr_gap)


@metric("min", ".4f", "share, 0 to 1")
def dp_gap(p: Predictions) -> float | None:
    """Demographic-parity gap: largest minus smallest share of a group that is predicted positive."""
    return _gap(_positive_rates(p))


@metric("max", ".4f", "probability, 0 to 1", ranks=True)
def auroc(p: Predictions) -> float | None:
    """Area under the ROC curve, pooled; beyond two classes the mean of each class against the rest.

    The rank statistic P(score of a positive > of a negative) + P(equal) / 2; the mean is over the classes
    that occur. None if a score is NaN, which has no rank.
    """
    if np.isnan(p.positive_score if p.binary else p.score).any():
        return None
    pooled = np.zeros_like(p.client)
    if p.binary:
        return _mean(_aurocs(p.positive_rank, p.y_true == 1, pooled))
    each = [_aurocs(_ranks(p.score[:, k]), p.y_true == k, pooled) for k in range(len(p.classes))]
    return _mean(np.concatenate(each))


@metric("max", ".4f", "probability, 0 to 1", ranks=True)
def auroc_clients(p: Predictions) -> float | None:
    """Mean AUROC over the clients whose test samples have both classes (two-class tasks)."""
    if not p.binary or np.isnan(p.positive_score).any():
        return None
    return _mean(_aurocs(p.positive_rank, p.y_true == 1, p.client))


@metric("max", ".0f", "clients", ranks=True)
def auroc_clients_n(p: Predictions) -> float | None:
    """How many clients have both classes and so enter auroc_clients (zero means: no client has)."""
    if not p.binary:
        return None
    positive_share = _shares_by(p.y_true == 1, p.client)
    return float(((positive_share > 0) & (positive_share < 1)).sum())


@metric("min", ".4f", "nats for cross-entropy, else the unit of the problem's loss", ranks=True)
def loss(p: Predictions) -> float | None:
    """Mean loss per test sample, pooled."""
    return None if p.loss is None else float(p.loss.mean())


# --- figures beside the registry ---


def by_group(predictions: Predictions) -> list[dict[str, str | int | float | None]]:
    """Return size and rates of every sensitive group: the gaps of tiny groups are noise, so show both.

    Parameters
    ----------
    predictions : Predictions
        Predictions for the test samples of all clients.

    Returns
    -------
    list[dict]
        One row a group in the order of ``predictions.groups``, those without samples included; empty if there
        is no sensitive attribute, or nothing is decided. Keys ``group, n, positives, accuracy, tpr, fpr,
        positive_rate``. A rate of no sample is None, and so are `positives` and the last three rates beyond
        two classes.
    """
    p = predictions
    if p.group is None or p.y_pred is None:
        return []
    size = len(p.groups)
    rates = {
        "accuracy": _group_accuracies(p),
        "tpr": _positive_rates(p, 1),
        "fpr": _positive_rates(p, 0),
        "positive_rate": _positive_rates(p),
    }
    positives = p.outcomes[:, 1].sum(1).tolist() if p.binary else [None] * size
    rows: list[dict[str, str | int | float | None]] = []
    for g, (name, n) in enumerate(zip(p.groups, p.outcomes.sum((1, 2)).tolist(), strict=True)):
        row: dict[str, str | int | float | None] = {"group": name, "n": n, "positives": positives[g]}
        for rate, shares in rates.items():
            row[rate] = None if shares is None or np.isnan(shares[g]) else float(shares[g])
        rows.append(row)
    return rows


def consensus_distance(rows: Tensor) -> float:
    """Return how far the clients' models are apart: the mean over clients of ``||x_i - xbar||^2``.

    Parameters
    ----------
    rows : Tensor
        One model a client, ``(C, P)``; computed in float64 whatever its type.

    Returns
    -------
    float
        Zero exactly at consensus; in squared units of the parameters.

    Raises
    ------
    ValueError
        If `rows` is not ``(C, P)`` with at least one row.
    """
    if rows.ndim != 2 or not len(rows):
        raise ValueError(f"consensus distance needs rows (C, P) with C >= 1, got {tuple(rows.shape)}")
    x = rows.detach().double()
    return float((x - x.mean(0)).square().sum(-1).mean())


# --- predictions on disk ---


def _score_columns(classes: int) -> list[str]:
    return ["y_score"] if classes == 2 else [f"y_score_{k}" for k in range(classes)]


def write_predictions(predictions: Predictions, path: str | os.PathLike[str]) -> None:
    """Write the samples to a CSV file from which every metric can be computed again, to the last bit.

    Columns ``client, y_true, y_score, y_pred, group`` and, where known, ``loss``. `y_score` is the score of
    class 1; beyond two classes there are ``y_score_0 .. y_score_{K-1}``. `y_pred` is empty where nothing is
    decided. `group` is the group's number, empty without a sensitive attribute. Floats have the shortest
    digits that read back the same. The file appears whole or not at all.

    Parameters
    ----------
    predictions : Predictions
        What to write.
    path : str | os.PathLike
        The file, in a folder that exists; replaced if it is there.
    """
    p = predictions
    scores = [p.positive_score] if p.binary else list(p.score.T)
    columns = dict(zip(_score_columns(len(p.classes)), scores, strict=True))
    table = {"client": p.client, "y_true": p.y_true, **columns, "y_pred": p.y_pred, "group": p.group}
    empty = [""] * len(p.client)
    cells = {name: empty if column is None else column.tolist() for name, column in table.items()}
    if p.loss is not None:
        cells["loss"] = p.loss.tolist()
    with replacing(Path(path)) as temporary, temporary.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")  # writes a float by repr, hence exactly
        writer.writerow(cells)
        writer.writerows(zip(*cells.values(), strict=True))


def read_predictions(
    path: str | os.PathLike[str], classes: tuple[str, ...] = (), groups: tuple[str, ...] = ()
) -> Predictions:
    """Read what `write_predictions` wrote; no metric changes by it.

    The file holds numbers only, and of two classes just the score of class 1: `score` is ``(n,)`` then.

    Parameters
    ----------
    path : str | os.PathLike
        The CSV file.
    classes, groups : tuple[str, ...]
        Names of the labels and groups; without them they are called by their numbers.

    Returns
    -------
    Predictions
        The samples in the order of the file.

    Raises
    ------
    UserError
        If columns are missing or unknown, a line has another number of fields, or a cell is not a number.
    """
    with Path(path).open(newline="", encoding="utf-8") as file:
        header, *lines = list(csv.reader(file)) or [[]]
    numbered = list(takewhile(lambda name: name in header, (f"y_score_{k}" for k in count())))
    k = len(numbered) or 2
    expected = ["client", "y_true", *_score_columns(k), "y_pred", "group"]
    if header not in (expected, [*expected, "loss"]):
        raise UserError(f"{path}: expected columns {','.join(expected)}[,loss], got {','.join(header)}")
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
        y_true=column("y_true", int),
        score=scores[0] if k == 2 else np.stack(scores, axis=1),
        y_pred=column("y_pred", int) if any(cells["y_pred"]) else None,
        classes=classes or tuple(map(str, range(k))),
        groups=() if group is None else groups or tuple(map(str, range(group.max() + 1))),
        group=group,
        loss=column("loss", float) if "loss" in cells else None,
    )
