"""Server sides of other frameworks, run through our channel."""

import numpy as np
import pytest

import harness
from harness.config import plugins
from harness.core.algorithm import ALGORITHMS
from harness.testing.conformance import check

pytestmark = pytest.mark.usefixtures("registries")

RUN = {
    "data": "breast-cancer",
    "partition": {"kind": "iid", "clients": 4, "limit": 400},  # so many samples each
    "model": "logistic",
    "rounds": 4,
    "eval_every": 2,
}
PLUGIN = '''"""Two servers."""

import numpy as np

import harness


def median(round, model, received):
    """Median of the clients' models, by coordinate."""
    return np.median(received, axis=0)


def mean(round, model, received):
    """Mean of the clients' models."""
    return received.mean(axis=0)


def halved(round, model, increment):
    """Half of the mean increment."""
    return increment / 2


harness.aggregator("median", median)
harness.aggregator("plain_mean", mean)
harness.postprocessor("halved", halved)
'''


@pytest.fixture
def loaded(tmp_path):
    path = tmp_path / "servers.py"
    path.write_text(PLUGIN)
    plugins.load([path])


def figures(record):
    return [line["metrics"] for line in record.rounds], record.final["bytes_up"], record.final.get("privacy")


def test_a_mean_over_received_models_is_fedavg(loaded, tmp_path):
    """With equal clients: the same accuracy and bytes; the AUROC to rounding."""
    ours = harness.run(RUN | {"algorithm": "fedavg"}, tmp_path)
    theirs = harness.run(RUN | {"algorithm": "plain_mean"}, tmp_path)
    (mine, bytes_mine, _), (found, bytes_found, _) = figures(ours), figures(theirs)
    assert [line["accuracy"] for line in mine] == [line["accuracy"] for line in found]
    assert [line["loss"] for line in mine] == pytest.approx([line["loss"] for line in found], rel=1e-6)
    assert bytes_mine == bytes_found


def test_a_postprocessor_acts_on_the_mean_increment(loaded, tmp_path):
    """Half of the increment is a server step of one half."""
    halved = harness.run(RUN | {"algorithm": "halved"}, tmp_path)
    ours = harness.run(RUN | {"algorithm": {"name": "fedavg", "server_lr": 0.5}}, tmp_path)
    losses = [[line["metrics"]["loss"] for line in one.rounds] for one in (halved, ours)]
    assert losses[0] == pytest.approx(losses[1], rel=1e-5)


def test_messages_are_protected_and_compressed_as_any(loaded, tmp_path):
    """Local noise on every message; central noise has no place where the server sees each."""
    private = {"placement": "local", "epsilon": 8, "clip": 1}
    record = harness.run(RUN | {"algorithm": "median", "privacy": private}, tmp_path)
    assert record.final["privacy"]["epsilon_total"] == pytest.approx(8, rel=1e-3)
    sparse = harness.run(RUN | {"algorithm": "median", "compression": {"beta": 0.9}}, tmp_path)
    plain = harness.run(RUN | {"algorithm": "median"}, tmp_path)
    assert sparse.final["bytes_up"] < 0.3 * plain.final["bytes_up"]
    with pytest.raises(harness.UserError, match="gathers every client's message"):
        harness.run(RUN | {"algorithm": "median", "privacy": private | {"placement": "central"}}, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["median", "halved"])
def test_adapted_algorithms_pass_the_conformance_checks(loaded, name):
    rows = check(ALGORITHMS[name])
    assert [row for row in rows if row["result"] == "failed"] == []


def test_a_server_that_returns_another_shape_is_told(tmp_path):
    harness.aggregator("short", lambda round, model, received: received[0, :3])
    with pytest.raises(harness.UserError, match=r"its server returned shape \(3,\)"):
        simulation = harness.Simulation.from_setup(harness.prepare(RUN | {"algorithm": "short"}))
        simulation.step()
    with pytest.raises(harness.UserError, match="letters, digits and underscores"):
        harness.aggregator("two words", np.mean)


@pytest.mark.slow
def test_a_strategy_of_flower_is_measured_here(tmp_path):
    """Flower's own median and ours agree; its FedAvg is fedavg; one with momentum is refused."""
    strategies = pytest.importorskip("flwr.server.strategy")
    from flwr.common import ndarrays_to_parameters

    quiet = {"fraction_fit": 1.0, "min_fit_clients": 1, "min_available_clients": 1}
    harness.flower_strategy("flower_median", strategies.FedMedian(**quiet))
    harness.flower_strategy("flower_mean", strategies.FedAvg(**quiet))
    harness.aggregator("own_median", lambda round, model, received: np.median(received, axis=0))
    runs = {name: harness.prepare(RUN | {"algorithm": name}) for name in
            ("flower_median", "own_median", "flower_mean", "fedavg")}  # fmt: skip
    ends = {}
    for name, setup in runs.items():
        simulation = harness.Simulation.from_setup(setup)
        for _ in range(3):
            simulation.step()
        ends[name] = simulation.state.x
    np.testing.assert_allclose(ends["flower_median"], ends["own_median"], rtol=1e-5, atol=1e-7)
    np.testing.assert_allclose(ends["flower_mean"], ends["fedavg"], rtol=1e-4, atol=1e-6)
    start = ndarrays_to_parameters([np.zeros(3, np.float32)])
    with pytest.raises(harness.UserError, match="remembers earlier rounds"):
        harness.flower_strategy("flower_adam", strategies.FedAdam(initial_parameters=start, **quiet))
