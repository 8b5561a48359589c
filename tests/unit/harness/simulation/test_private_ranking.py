"""Problems that rank samples have no loss of test samples; that of training samples is private."""

import pytest

from harness.config.run import read_spec
from harness.executors.local import run_one
from harness.simulation.setup import Execution
from harness.storage.store import Store
from tests.support.runs import given


@pytest.mark.parametrize("diagnostics", [False, True])
@pytest.mark.parametrize("placement", ["local", "central"])
def test_a_private_run_ends_without_a_figure_of_training_samples(data, tmp_path, placement, diagnostics):
    mechanism = {"placement": placement, "clip": 1.0, "noise_multiplier": 2.0}
    spec = read_spec(given(data, "coda_plus", problem="auroc", privacy=mechanism))
    outcome = run_one(spec, tmp_path, Execution(diagnostics=diagnostics))
    assert outcome.status == "done", outcome.reason
    metrics = Store(tmp_path).folder(outcome.id).end()["metrics"]
    assert metrics["auroc"] is not None
    assert (metrics.get("loss") is not None) == diagnostics
