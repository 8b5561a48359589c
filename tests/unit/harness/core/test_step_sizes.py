"""Step sizes are declared, not recognized by their names."""

from dataclasses import dataclass, replace

import pytest

from harness.core.algorithm import ALGORITHMS, register
from harness.core.declarations import step_size
from harness.core.errors import UserError

FEDAVG = ALGORITHMS["fedavg"]


@dataclass(frozen=True, kw_only=True)
class Otherwise(FEDAVG):
    """FedAvg with another default, a step size of another name, and a number that is no step size."""

    lr: float = 0.2
    eta: float = step_size(0.5)
    lr_count: float = 3.0


def test_the_schedule_changes_what_is_declared_and_nothing_else():
    later = Otherwise(lr_decay=0.5).at(2)
    assert Otherwise.step_sizes() == ("lr", "eta")
    assert (pytest.approx(later.lr), later.eta, later.lr_count) == (0.05, 0.125, 3.0)


def test_step_sizes_are_above_zero():
    with pytest.raises(UserError, match=r"algorithm fedavg: eta must be above 0, given 0\.0"):
        Otherwise(eta=0.0)


def test_what_is_named_like_a_step_size_must_be_declared():
    class Nameless(Otherwise):
        meta = replace(FEDAVG.meta, name="nameless")

    with pytest.raises(TypeError, match=r"lr_count: float = step_size\(3.0\), or give it another name"):
        register(Nameless)
    assert "nameless" not in ALGORITHMS


@pytest.mark.parametrize(
    ("name", "settings", "words"),
    [
        ("fedprox", {"mu": -1.0}, "mu must be at least 0, given -1.0"),
        ("fedprox", {"lr": 0.0}, "lr must be above 0, given 0.0"),
        ("fedbio", {"lr_x": -0.1}, "lr_x must be at least 0, given -0.1"),
        ("fedavg", {"momentum": 1.0}, "momentum must be at least 0 and below 1, given 1.0"),
        ("fedavg", {"grad_clip": float("inf")}, "grad_clip must be above 0, given inf"),
        ("codasca", {"stage_rounds": 0}, "stage_rounds must be above 0, given 0"),
    ],
)
def test_declared_bounds_are_checked_in_python_too(name, settings, words):
    with pytest.raises(UserError) as caught:
        ALGORITHMS[name](**settings)
    assert str(caught.value) == f"algorithm {name}: {words}"


def test_a_step_size_may_be_allowed_to_be_zero_and_a_bound_to_be_left_out():
    assert ALGORITHMS["fedbio"](lr_x=0.0).lr_x == 0 and FEDAVG(grad_clip=None).grad_clip is None
