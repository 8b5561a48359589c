"""Problem types, one file each."""

from harness.problems.base import PROBLEMS, ProblemType, Setting

# They register themselves.
from harness.problems import auroc, classify, fair, fair_weights, quadratic, random_quadratic, vertical  # noqa: F401  isort: skip

__all__ = ["PROBLEMS", "ProblemType", "Setting"]
