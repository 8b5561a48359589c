"""Metric registration and evaluation."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any, Literal, get_args

import numpy as np

from harness.core.errors import UserError
from harness.core.registry import PLUGGED, replaceable
from harness.metrics.predictions import Predictions, check_array

Direction = Literal["max", "min"]
Predicted = Literal["classes", "numbers", "both"]
MetricFn = Callable[[Predictions], float | None]
Range = tuple[float, float]  # the smallest and the largest value
UNLIMITED: Range = (-math.inf, math.inf)


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
    meaning : str
        One sentence, without a full stop.
    unit : str
        Unit of a value, such as ``share``.
    fn : Callable
        ``Predictions -> float | None``.
    within : tuple of float
        The smallest and the largest possible value.
    ranks : bool
        Whether scores suffice, without predicted labels.
    of : {"classes", "numbers", "both"}
        What is predicted.
    """

    name: str
    direction: Direction
    format: str
    meaning: str
    unit: str
    fn: MetricFn
    within: Range = UNLIMITED
    ranks: bool = False
    of: Predicted = "classes"

    @property
    def scale(self) -> str:
        """The unit with the possible values, as tables print it: ``share, 0 to 1``."""
        least, most = self.within
        if math.isfinite(least):
            return f"{self.unit}, {least:g} to {most:g}"
        return f"{self.unit}, at most {most:g}" if math.isfinite(most) else self.unit

    @property
    def description(self) -> str:
        """The meaning with unit and possible values in brackets."""
        return f"{self.meaning} [{self.scale}]" if self.scale else self.meaning


METRICS: dict[str, Metric] = {}
ATTACKED: dict[str, Metric] = {}  # of attacks, which are no functions of predictions
RECALLED: dict[str, Metric] = {}  # known from results of plugins that are not loaded; they cannot be computed


#: Prefix of a measure -> metrics that are also evaluated on samples other than the test samples, or of the nodes'
#: own models in gossip: their mean and the worst.
PREFIXES = {
    "selection": ("accuracy", "worst_group", "eqopp", "auroc", "loss", "mae", "r2"),
    "train": ("accuracy", "eqopp"),
    "node": ("accuracy",),
    "worst_node": ("accuracy",),
}

#: Gaps between groups in what is predicted, which are 0 of a model that predicts one class for all.
GAPS = ("eqopp", "eqodds", "dp_gap")
LOPSIDED = 0.8  # accuracy of always predicting one class, above which accuracy hardly tells models apart


def described(measure: str) -> Metric | None:
    """Return the metric behind a measure; ``selection_accuracy`` is accuracy on the selection samples."""
    prefix, name = split_measure(measure)
    elsewhere = METRICS.get(name) if prefix else None
    return METRICS.get(measure) or elsewhere or RECALLED.get(measure) or ATTACKED.get(measure)


def split_measure(measure: str) -> tuple[str, str]:
    """Return the prefix and the metric of a measure; ``("", measure)`` if it has no prefix of `PREFIXES`."""
    parts = {f"{prefix}_{name}": (prefix, name) for prefix, names in PREFIXES.items() for name in names}
    return parts.get(measure, ("", measure))


def bounds(measure: str) -> Range:
    """Return the smallest and the largest possible value of a measure: of a share 0 and 1."""
    metric = described(measure)
    return UNLIMITED if metric is None else metric.within


def better_is_higher(measure: str) -> bool:
    """Return whether larger values of a measure are better."""
    metric = described(measure)
    return metric is not None and metric.direction == "max"


def recall(metrics: Mapping[str, Mapping[str, Any]]) -> None:
    """Register metrics from `plugin_metrics`, so that tables can be made without the plugin that defined them.

    Records of earlier versions have no limits, and the unit inside the description.
    """
    for name, about in metrics.items():
        least, most = about.get("least"), about.get("most")
        within = -math.inf if least is None else least, math.inf if most is None else most
        unit, direction = about.get("unit", ""), about["direction"]
        RECALLED[name] = Metric(
            name, direction, about["format"], about["description"], unit, lambda _: None, within
        )


def plugin_metrics() -> dict[str, dict[str, Any]]:
    """Return the facts about the metrics of plugins that tables need; a limit that is infinite is None."""
    facts: dict[str, dict[str, Any]] = {}
    for name, m in METRICS.items():
        if ("metric", name) in PLUGGED:
            least, most = (limit if math.isfinite(limit) else None for limit in m.within)
            texts = {"direction": m.direction, "format": m.format, "description": m.meaning, "unit": m.unit}
            facts[name] = {**texts, "least": least, "most": most}
    return facts


def metric(
    direction: Direction,
    format: str,
    unit: str,
    ranks: bool = False,
    of: Predicted = "classes",
    within: Range = UNLIMITED,
) -> Callable[[MetricFn], MetricFn]:
    """Register the decorated function as a metric under its name: ``@metric("max", ".4f", "share")``.

    Parameters
    ----------
    direction, format, ranks, of
        As of `Metric`.
    unit : str
        Unit of a value, which reports print after the first line of the docstring.
    within : tuple of float
        The smallest and the largest possible value, which printed intervals do not leave; by default there is
        none. Differences of a metric within ``(0, 1)`` are printed in points.

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
        least, most = within
        if not least < most:
            raise UserError(f"metric {name}: within a smaller and a larger number, given {within!r}")
        meaning = (fn.__doc__ or name).strip().splitlines()[0].rstrip(".")
        METRICS[name] = Metric(name, direction, format, meaning, unit, fn, within, ranks, of)
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
