"""Metric registration and evaluation."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np

from harness.core.errors import UserError
from harness.core.registry import PLUGGED, replaceable
from harness.metrics.predictions import Predictions, check_array

Direction = Literal["max", "min"]
Predicted = Literal["classes", "numbers", "both"]
MetricFn = Callable[[Predictions], float | None]


@dataclass(frozen=True)
class Metric:
    """A registered metric.

    Attributes
    ----------
    name : str
        Key in results, suites and reports.
    direction : {"max", "min"}
        Whether larger or smaller values are better.
    format : str
        Format specification of a value, as in ``format(value, metric.format)``.
    description : str
        One sentence, ending with the unit in brackets.
    fn : Callable
        ``Predictions -> float | None``.
    ranks : bool
        Whether scores suffice, without predicted labels.
    of : {"classes", "numbers", "both"}
        What is predicted.
    """

    name: str
    direction: Direction
    format: str
    description: str
    fn: MetricFn
    ranks: bool = False
    of: Predicted = "classes"


#: The end of a unit that tells the possible values: ``share, 0 to 1`` or ``share, at most 1``.
RANGE = re.compile(r", (?:(?P<least>-?[\d.]+) to|at most) (?P<most>-?[\d.]+)\]$")

METRICS: dict[str, Metric] = {}
ATTACKED: dict[str, Metric] = {}  # of attacks, which are no functions of predictions
RECALLED: dict[str, Metric] = {}  # known from results of plugins that are not loaded; they cannot be computed


#: Prefix of a measure -> metrics that are also evaluated on samples other than the test samples, or of the nodes'
#: own models in gossip: their mean and the worst.
ELSEWHERE = {
    "selection": ("accuracy", "worst_group", "eqopp", "auroc", "loss", "mae", "r2"),
    "train": ("accuracy", "eqopp"),
    "node": ("accuracy",),
    "worst_node": ("accuracy",),
}

#: Gaps between groups in what is predicted, which are 0 of a model that predicts one class for all.
GAPS = ("eqopp", "eqodds", "dp_gap")


def described(measure: str) -> Metric | None:
    """Return the metric behind a measure; ``selection_accuracy`` is accuracy on the selection samples."""
    prefix, name = split_measure(measure)
    elsewhere = METRICS.get(name) if prefix else None
    return METRICS.get(measure) or elsewhere or RECALLED.get(measure) or ATTACKED.get(measure)


def split_measure(measure: str) -> tuple[str, str]:
    """Return the prefix and the metric of a measure; ``("", measure)`` if it has no prefix of `ELSEWHERE`."""
    parts = {f"{prefix}_{name}": (prefix, name) for prefix, names in ELSEWHERE.items() for name in names}
    return parts.get(measure, ("", measure))


def bounds(measure: str) -> tuple[float, float]:
    """Return the smallest and the largest possible value of a measure, as its unit tells: of a share 0 and 1."""
    metric = described(measure)
    found = None if metric is None else RANGE.search(metric.description)
    if found is None:
        return -math.inf, math.inf
    return float(found["least"] or -math.inf), float(found["most"])


def better_is_higher(measure: str) -> bool:
    """Return whether larger values of a measure are better."""
    metric = described(measure)
    return metric is not None and metric.direction == "max"


def recall(metrics: Mapping[str, Mapping[str, str]]) -> None:
    """Register metrics from `plugin_metrics`, so that tables can be made without the plugin that defined them."""
    for name, about in metrics.items():
        direction: Direction = "max" if about["direction"] == "max" else "min"
        RECALLED[name] = Metric(name, direction, about["format"], about["description"], lambda _: None)


def plugin_metrics() -> dict[str, dict[str, str]]:
    """Return direction, format and description of the metrics of plugins."""
    return {
        name: {"direction": m.direction, "format": m.format, "description": m.description}
        for name, m in METRICS.items()
        if ("metric", name) in PLUGGED
    }


def metric(
    direction: Direction, format: str, unit: str, ranks: bool = False, of: Predicted = "classes"
) -> Callable[[MetricFn], MetricFn]:
    """Register the decorated function as a metric under its name: ``@metric("max", ".4f", "share")``.

    Parameters
    ----------
    direction, format, ranks, of
        As of `Metric`.
    unit : str
        Unit of a value, which reports print after the first line of the docstring; printed intervals stay within
        the possible values that it ends with, as in ``share, 0 to 1``.

    Raises
    ------
    UserError
        If the metric is not valid, or its name is taken.
    """

    def register(fn: MetricFn) -> MetricFn:
        name = fn.__name__
        if name in METRICS and not replaceable(METRICS[name].fn):
            raise UserError(f"metric {name!r} is registered twice")
        if of not in get_args(Predicted):
            raise UserError(f"metric {name}: of {', '.join(get_args(Predicted))}, given {of!r}")
        if direction not in ("max", "min"):
            raise UserError(f"metric {name}: better is 'max' or 'min', given {direction!r}")
        try:
            f"{0.5:{format}}"
        except ValueError:
            raise UserError(f"metric {name}: a format of numbers, as '.4f', given {format!r}") from None
        summary = (fn.__doc__ or name).strip().splitlines()[0].rstrip(".")
        METRICS[name] = Metric(name, direction, format, f"{summary} [{unit}]", fn, ranks, of)
        return fn

    return register


def evaluate(
    predictions: Predictions, total_clients: int, names: Collection[str] | None = None
) -> dict[str, float | None]:
    """Compute registered metrics of what is predicted, classes or numbers.

    A value that is not finite (the loss of a diverged model) becomes None, so that results stay valid JSON. A
    caller that must distinguish "diverged" from "does not apply" has to inspect scores and losses.

    Parameters
    ----------
    predictions : Predictions
        Predictions for the test samples of all clients.
    total_clients : int
        Number of clients of the federation; clients without test samples enter no metric.
    names : collection of str, optional
        The metrics to compute, all by default; those of the other kind of prediction are left out.

    Returns
    -------
    dict[str, float | None]
        Metric name to value, in the order of `METRICS`.

    Raises
    ------
    ValueError
        If a client id is not below `total_clients`.
    """
    check_array("client", predictions.client, np.int64, [predictions.client.shape], total_clients)
    fits: Predicted = "classes" if predictions.classes else "numbers"
    only_ranks = predictions.y_pred is None and fits == "classes"
    return {
        name: None if only_ranks and not m.ranks else _value(m, predictions)
        for name, m in METRICS.items()
        if m.of in (fits, "both") and (names is None or name in names)
    }


def _value(metric: Metric, predictions: Predictions) -> float | None:
    """Compute one metric; errors of a plugin's metric carry its name."""
    try:
        value = metric.fn(predictions)
        return None if value is None or not math.isfinite(value) else value
    except Exception as error:
        raise RuntimeError(f"metric {metric.name}: {type(error).__name__}: {error}") from error
