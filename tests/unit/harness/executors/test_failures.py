"""What is written down of a run that fails."""

import pytest

import harness
from harness.core.algorithm import ALGORITHMS
from harness.core.errors import Incompatible
from harness.testing.conformance import CHECKS, check
from tests.support.runs import given, table


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (Incompatible("the data have no groups;\nname a column"), "the data have no groups; name a column"),
        (ZeroDivisionError("division by zero"), "ZeroDivisionError: division by zero"),
    ],
)
def test_a_message_to_the_user_needs_no_class_name(tmp_path, monkeypatch, error, reason):
    def fails(runs):
        raise error

    monkeypatch.setattr("harness.executors.local.simulate_all", fails)
    record = harness.run(given(table(tmp_path)), tmp_path / "out")
    assert (record.status, record.reason) == ("failed", reason)


def test_a_run_that_raised_is_tried_again_with_another_execution(tmp_path, monkeypatch):
    def fails(runs):
        raise ZeroDivisionError("division by zero")

    spec = given(table(tmp_path))
    with monkeypatch.context() as patch:
        patch.setattr("harness.executors.local.simulate_all", fails)
        assert harness.run(spec, tmp_path / "out").status == "failed"
    assert harness.run(spec, tmp_path / "out").status == "failed"  # as recorded
    other = harness.Execution(vectorize="loop")
    assert harness.run(spec, tmp_path / "out", execution=other).status == "done"


BROKEN = """
from dataclasses import dataclass
from typing import ClassVar
from algorithms.centralized.fedavg import FedAvg
from harness.core import Meta, register

@register
@dataclass(frozen=True, kw_only=True)
class Broken(FedAvg):
    meta: ClassVar = Meta("broken", "centralized", ("erm",), "-")

    def round(self, state, clients, channel):
        (batch,) = clients.batches(self, steps=1)
        return clients.grad(WHAT, batch)
"""


@pytest.mark.usefixtures("registries")
@pytest.mark.parametrize(
    ("what", "why"),
    [
        ("state.y", "AttributeError: 'Model' object has no attribute 'y'"),  # raised there
        ("state.x[None]", "ValueError: a gradient needs a row for each of"),  # raised in what it calls
    ],
)
def test_an_error_in_a_round_names_the_authors_line(tmp_path, what, why):
    mine = tmp_path / "mine.py"
    mine.write_text(BROKEN.replace("WHAT", what))
    harness.load_plugin(mine)
    record = harness.run(given(table(tmp_path)) | {"algorithm": "broken"}, tmp_path / "out")
    (row,) = check(ALGORITHMS["broken"], CHECKS[2:3])
    for reason in (record.reason, row["why"]):
        assert reason.startswith(why) and reason.endswith(" (mine.py, line 14, in round)")
