"""What is written down of a run that fails."""

import pytest

import harness
from harness.core.registry import Incompatible
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
