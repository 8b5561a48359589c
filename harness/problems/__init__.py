"""Problem types, one file each."""

# They register themselves.
from harness.problems import (  # noqa: F401
    auroc,
    classify,
    fair,
    fair_weights,
    quadratic,
    random_bilevel,
    random_quadratic,
    regression,
    vertical,
)  # fmt: skip  # isort: skip
from harness.problems.base import PROBLEMS, ProblemType, Setting

__all__ = ["PROBLEMS", "ProblemType", "Setting"]
