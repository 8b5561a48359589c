"""The example of docs: server sides of other frameworks, run through our channel."""

from pathlib import Path

import numpy as np
import pytest

import harness
from harness.config import plugins
from harness.core.algorithm import ALGORITHMS
from harness.testing.conformance import check

PLUGIN = Path(__file__).parents[2] / "docs" / "examples" / "servers.py"
RUN = {
    "data": "breast-cancer",
    "partition": {"kind": "iid", "clients": 4, "limit": 400},  # so many samples each
    "model": "logistic",
    "rounds": 4,
    "eval_every": 2,
}


@pytest.fixture(autouse=True)
def _loaded(registries):
    plugins.load([PLUGIN])


def test_a_postprocessor_acts_on_the_mean_increment(tmp_path):
    """Half of the increment is a server step of one half."""
    half = harness.run(RUN | {"algorithm": "half_increment"}, tmp_path)
    ours = harness.run(RUN | {"algorithm": {"name": "fedavg", "lr": 0.1, "server_lr": 0.5}}, tmp_path)
    losses = [[line["metrics"]["loss"] for line in one.rounds] for one in (half, ours)]
    assert losses[0] == pytest.approx(losses[1], rel=1e-5)


def test_messages_are_protected_and_compressed_as_any(tmp_path):
    """Local noise on every message; central noise has no place where the server sees each."""
    median = RUN | {"algorithm": "coordinate_median"}
    private = {"placement": "local", "epsilon": 8, "clip": 1}
    record = harness.run(median | {"privacy": private}, tmp_path)
    assert record.final["privacy"]["epsilon_total"] == pytest.approx(8, rel=1e-3)
    sparse = harness.run(median | {"compression": {"beta": 0.9}}, tmp_path)
    assert sparse.final["bytes_up"] < 0.3 * harness.run(median, tmp_path).final["bytes_up"]
    with pytest.raises(harness.UserError, match="gathers every client's message"):
        harness.run(median | {"privacy": private | {"placement": "central"}}, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["coordinate_median", "half_increment"])
def test_the_examples_pass_the_conformance_checks(name):
    rows = check(ALGORITHMS[name])
    assert [row for row in rows if row["result"] == "failed"] == []


@pytest.mark.slow
def test_the_median_of_flower_is_the_median():
    pytest.importorskip("flwr.server.strategy")
    ends = []
    for name in ("flower_median", "coordinate_median"):
        simulation = harness.Simulation.from_setup(harness.prepare(RUN | {"algorithm": name}))
        for _ in range(3):
            simulation.step()
        ends.append(simulation.state.x)
    np.testing.assert_allclose(*ends, rtol=1e-5, atol=1e-7)
