"""The problems that algorithms solve, one file a kind."""

from harness.problems.base import PROBLEMS, ProblemType, Setting

from harness.problems import auroc, classify, fair, quadratic, vertical  # noqa: F401  isort: skip - they register themselves

__all__ = ["PROBLEMS", "ProblemType", "Setting"]
