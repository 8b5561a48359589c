"""Metrics of the predictions for all clients' test samples.

A metric is a function ``Predictions -> float | None`` under the decorator `metric`; the first line of its
docstring is the description that reports print. Every evaluation computes all metrics. A metric that does not
apply (no sensitive attribute, one class, more than two classes where two are needed, scores without a decision)
is None, never zero and never NaN. Rules for all metrics:

- A client, class or group without test samples has no rate and is left out.
- Means and minima over clients or classes need one member, a spread needs two; comparing groups needs two groups.
- Fairness gaps are for two classes with class 1 as the positive one. They are taken on the pooled samples of all
  clients, as in the fairness papers (Hardt et al. 2016 define equal opportunity and equalized odds).
"""

from harness.metrics import attacked  # noqa: F401 - registers its measures
from harness.metrics.definitions import by_client, by_group, consensus_distance
from harness.metrics.predictions import Predictions, read_predictions, write_predictions
from harness.metrics.registry import (
    ATTACKED,
    GAPS,
    LOPSIDED,
    METRICS,
    PREFIXES,
    RECALLED,
    Metric,
    better_is_higher,
    bounds,
    described,
    evaluate,
    metric,
    plugin_metrics,
    recall,
    split_measure,
)

__all__ = [
    "ATTACKED",
    "GAPS",
    "LOPSIDED",
    "METRICS",
    "PREFIXES",
    "RECALLED",
    "Metric",
    "Predictions",
    "better_is_higher",
    "bounds",
    "by_client",
    "by_group",
    "consensus_distance",
    "described",
    "evaluate",
    "metric",
    "plugin_metrics",
    "read_predictions",
    "recall",
    "split_measure",
    "write_predictions",
]
