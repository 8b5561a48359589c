"""Step sizes are declared, not recognized by their names."""

from dataclasses import dataclass, replace

import pytest

from harness.core.algorithm import ALGORITHMS, register, step_size
from harness.core.registry import UserError

FEDAVG = ALGORITHMS["fedavg"]


@dataclass(frozen=True, kw_only=True)
class Otherwise(FEDAVG):
    """FedAvg with a step size of another name, and a number that is no step size."""

    eta: float = step_size(0.5)
    lr_count: float = 3.0


def test_the_schedule_changes_what_is_declared_and_nothing_else():
    later = Otherwise(lr_decay=0.5).at(2)
    assert Otherwise.step_sizes() == ("lr", "eta")
    assert (later.lr, later.eta, later.lr_count) == (0.25 * FEDAVG.lr, 0.125, 3.0)


def test_step_sizes_are_above_zero():
    with pytest.raises(UserError, match=r"algorithm fedavg: eta must be above 0, given 0\.0"):
        Otherwise(eta=0.0)


def test_what_is_named_like_a_step_size_must_be_declared():
    class Nameless(Otherwise):
        meta = replace(FEDAVG.meta, name="nameless")

    with pytest.raises(TypeError, match=r"lr_count: float = step_size\(3.0\), or give it another name"):
        register(Nameless)
    assert "nameless" not in ALGORITHMS
