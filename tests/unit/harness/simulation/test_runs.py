"""Whole private runs: resumed, in chunks, stacked, and with the server's clip."""

from typing import Any

import pytest
import torch

from harness.config.run import read_spec
from harness.core.settings.compression import Compression
from harness.simulation.build import prepare
from harness.simulation.calibration import calibrated
from harness.simulation.loop import simulate
from harness.simulation.setup import Execution
from harness.simulation.simulation import Simulation
from tests.support.runs import finished, given, ready
from tests.support.wire import channel, privacy, rows
from tests.support.worlds import EXACT

LOCAL = {"placement": "local", "clip": 1.0, "noise_multiplier": 0.5}
CENTRAL = {**LOCAL, "placement": "central"}
MLP = {"name": "mlp", "hidden": [12]}
FEEDBACK = {"beta": 0.8, "error_feedback": True, "codec": "q6"}
MATRICES = {"P": [1, -0.5, 1], "B": [1, 2, 1], "Q": [1, 2, 1], "c": [2, -2, 0], "d": [0, 4, 1]}


def same(one: Any, other: Any) -> None:
    assert one.state._fields == other.state._fields
    for a, b in zip(one.state, other.state, strict=True):
        assert torch.equal(a, b)
    assert one.channel_state.keys() == other.channel_state.keys()
    for name in one.channel_state:
        assert torch.equal(one.channel_state[name], other.channel_state[name]), name
    assert one.statement() == other.statement()
    assert one.cost.state() == other.cost.state()


@pytest.mark.parametrize(
    "fields",
    [
        {"privacy": LOCAL, "compression": FEEDBACK},
        {"privacy": {**CENTRAL, "clip": "adaptive"}, "cohort": {"size": 3}},
        {"privacy": {"unit": "record", **LOCAL}, "compression": FEEDBACK},
        {
            "privacy": CENTRAL,
            "model": MLP,
            "compression": {"alpha": [[0, 0.25], [2, 0.5], [3, 0.75]], **FEEDBACK},
        },
    ],
)
def test_a_resumed_run_goes_on_bit_for_bit(data, fields) -> None:
    """Residuals, adaptive clip norms, the pruned model's mask and the ledger are all in the checkpoint."""
    setup = ready(data, "scaffold", **fields, rounds=4)
    whole = finished(setup)
    half = finished(setup, 2)
    resumed = Simulation.from_setup(setup)
    resumed.load_state_dict(half.state_dict())
    assert resumed.round == 2
    for _ in range(2):
        resumed.step()
    same(resumed, whole)


@pytest.mark.parametrize(
    "fields",
    [
        {"privacy": LOCAL},
        {"privacy": {**LOCAL, "server_clip": 0.5}, "compression": {"beta": 0.5, "codec": "q4"}},
        {"privacy": CENTRAL, "cohort": {"size": 4}},
        {"privacy": CENTRAL, "compression": {"beta": 0.5, "select": "random_k"}},
        {"privacy": CENTRAL, "model": MLP, "compression": {"alpha": 0.5}},
    ],
)
def test_a_cohort_in_chunks_is_the_whole_cohort_with_noise_too(data, fields) -> None:
    """That other algorithms do the same in chunks is the conformance check `_modes`."""
    spec = read_spec(given(data, "fedprox", **fields, precision="float64", rounds=3))
    ways = [Execution(vectorize="vmap"), Execution(vectorize="loop"), Execution(vectorize="loop", threads=2)]
    runs = [finished(calibrated(prepare(spec, way))) for way in ways]
    for other in runs[1:]:
        torch.testing.assert_close(other.state.x, runs[0].state.x, rtol=0, atol=1e-10)
        assert other.statement() == runs[0].statement()
        assert (other.cost.up, other.cost.down) == (runs[0].cost.up, runs[0].cost.down)


@pytest.mark.parametrize("placement", ["local", "central"])
@pytest.mark.parametrize(
    "setting",
    [
        EXACT,
        Compression(beta=0.5, error_feedback=True),
        Compression(beta=0.5, downlink=True),
        Compression(codec="q4"),
    ],
)
def test_stacked_runs_with_noise_are_the_runs_apart(placement: str, setting: Compression) -> None:
    """(R, C, P): every run has its own noise, residuals and adaptive norm."""
    norms = [1.0, "adaptive"] if placement == "central" else [1.0, (0.6, 0.8)]
    for norm in norms:
        mechanism = privacy(placement, clip=norm, z=0.5)
        messages = torch.stack([rows(12, seed=s) for s in (1, 2, 3)])
        options = {"weighting": "uniform"} if placement == "local" else {}
        state: Any = None
        alone: list[Any] = [None] * 3
        for round in range(3):
            way = channel(mechanism, setting, seeds=(0, 1, 2), round=round, state=state)
            together = way.mean(messages, messages[..., :5], **options), way.down(messages[:, 0])
            state = way.state
            for n in range(3):
                own = channel(mechanism, setting, seeds=(n,), round=round, state=alone[n])
                apart = own.mean(messages[n], messages[n, :, :5], **options), own.down(messages[n, 0])
                alone[n] = own.state
                for one, other in zip((*together[0], together[1]), (*apart[0], apart[1]), strict=True):
                    torch.testing.assert_close(one[n], other)
                assert int(way.cost.up[n]) == int(own.cost.up)
                for name in own.state:
                    torch.testing.assert_close(state[name][n], own.state[name])


@pytest.mark.parametrize("mechanism", [LOCAL, CENTRAL])
@pytest.mark.parametrize("algorithm", ["fedavg", "scaffold"])
def test_with_the_server_s_clip_no_step_is_longer_than_10(data, mechanism, algorithm: str) -> None:
    """The FedReCo appendix: ||w_{t+1} - w_t|| <= 10 however large the noise."""
    noisy = {**mechanism, "noise_multiplier": 1000.0, "server_clip": 10.0}
    run = Simulation.from_setup(ready(data, algorithm, privacy=noisy, rounds=5))
    longest = 0.0
    for _ in range(5):
        before = run.state.x
        run.step()
        longest = max(longest, float((run.state.x - before).norm()))
    assert 1 < longest <= 10 * (1 + 1e-5)


def test_a_bad_update_ends_only_runs_without_a_clip(data) -> None:
    """A step size of 1e38 makes every update infinite; clipped they count as zeros."""
    work = {"name": "fedavg", "local_steps": 4, "lr": 1e38}
    clipped = finished(
        ready(data, work, model=MLP, privacy={"placement": "local", "clip": 1.0, "noise_multiplier": 0})
    )
    assert torch.isfinite(clipped.state.x).all()
    with pytest.raises(ArithmeticError, match="diverged"):
        finished(ready(data, work, model=MLP))


@pytest.mark.parametrize("name", ["fedavg", "scaffold"])
def test_clip_infinite_and_noise_zero_is_no_privacy_at_all(data, name) -> None:
    """Up to rounding where known terms are set apart."""
    plain = finished(ready(data, name))
    private = finished(
        ready(data, name, privacy={"placement": "local", "clip": float("inf"), "noise_multiplier": 0})
    )
    gap = 1e-6 if name == "scaffold" else 0.0
    assert all(torch.allclose(a, b, 0, gap) for a, b in zip(plain.state, private.state, strict=True))


def test_the_statement_names_everything_a_reader_needs(data) -> None:
    setup = ready(data, privacy={**CENTRAL, "noise_multiplier": 2.0}, cohort={"size": 3})
    found = simulate(setup)["privacy"]
    for name in (
        "unit", "placement", "clip", "adjacency", "sampling", "sampling_rate", "epsilon_nominal",
        "epsilon_release", "epsilon_total", "epsilon_median", "unit_most", "units_most",
        "noise_multiplier", "releases", "delta",
        "accountant", "note",
    ):  # fmt: skip
        assert name in found


@pytest.mark.parametrize("unit", ["client", "record"])
def test_a_private_gossiping_run_claims_its_budget(unit: str) -> None:
    spec = read_spec(
        {
            "problem": {"kind": "quadratic_minimax", **MATRICES},
            "algorithm": {"name": "k_gt_minimax", "local_steps": 2},
            "topology": "complete",
            "privacy": {"placement": "local", "unit": unit, "clip": 1.0, "epsilon": 5.0},
            "rounds": 4,
        }
    )
    run = finished(calibrated(prepare(spec)))
    assert run.statement()["epsilon_total"] == pytest.approx(5.0, rel=1e-4)


def test_a_gossiping_run_says_how_fast_its_graph_averages() -> None:
    """Ring of four: eigenvalues 1, 1/3, 1/3, -1/3, so p = 1 - 1/9; two neighbors each."""
    spec = read_spec(
        {
            "problem": {"kind": "quadratic_minimax", **{name: [1, 2, 1, 3] for name in MATRICES}},
            "algorithm": {"name": "dm_hsgd"},
            "topology": "ring",
            "rounds": 2,
        }
    )
    found = simulate(prepare(spec))["mixing"]
    assert found == {
        "lambda": pytest.approx(1 / 3),
        "p": pytest.approx(8 / 9),
        "directed_edges": 8,
    }


@pytest.mark.slow
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"compression": {"alpha": 0.5, "beta": 0.5}},
        {"privacy": {"placement": "local", "clip": 1.0, "epsilon": 50.0}},
        {"privacy": {"unit": "record", "sampling": "poisson", "clip": 1.0, "epsilon": 50.0}},
    ],
)
def test_classifiers_are_trained_on_graphs(data, options) -> None:
    """The average of the nodes is evaluated; the nodes differ, as a ring of seven does not average at once."""
    work = {"name": "d_sgd", "lr": 0.3, "local_steps": 3, "batch_size": 4}
    found = simulate(ready(data, work, topology="ring", model=MLP, rounds=8, **options))
    assert 0 < found["metrics"]["accuracy"] <= 1
    assert found["metrics"]["consensus"] > 0
    assert found["bytes_up"] > 0 and found["bytes_down"] == 0
    assert found["mixing"]["directed_edges"] == 14


def test_the_models_of_all_nodes_are_evaluated_at_the_end(data) -> None:
    """Each on everybody's test samples, as the same model of a server is."""
    run = finished(ready(data, {"name": "d_sgd", "lr": 1.0, "local_steps": 5}, topology="ring", rounds=4))
    server = finished(ready(data, rounds=1))
    accuracies = []
    for x in run.state.x:
        server.state = server.state._replace(x=x)
        accuracies.append(server.evaluate().metrics["accuracy"])
    found = run.evaluate(final=True).metrics
    assert found["node_accuracy"] == pytest.approx(sum(accuracies) / len(accuracies))
    assert found["worst_node_accuracy"] == min(accuracies) < max(accuracies)
    assert "node_accuracy" not in run.evaluate().metrics
    assert "node_accuracy" not in server.evaluate(final=True).metrics


def test_a_run_with_a_server_has_no_graph(data) -> None:
    assert "mixing" not in simulate(ready(data))


def test_a_gossiping_run_reports_how_far_its_nodes_are_apart() -> None:
    """After one step from a common point (x, y) = (0, 0): x_i = -lr c_i mixed; two nodes mix to their mean, 0."""
    found = {}
    for nodes in (2, 4):
        entries = {name: [1.0] * nodes for name in "PBQd"} | {"c": [float(n) for n in range(nodes)]}
        work = {"name": "decentralized_local_sgda", "local_steps": 1, "lr_x": 0.5}
        spec = {"problem": {"kind": "quadratic_minimax", **entries}, "algorithm": work, "topology": "ring"}
        run = simulate(prepare(read_spec({**spec, "rounds": 1})))
        found[nodes] = run["metrics"]["consensus"]
    # Ring of four: x = -.5 W (0, 1, 2, 3) = -.5 (4, 3, 6, 5) / 3, around -.75: (1, 9, 9, 1) / 144, mean 5 / 144.
    assert found[2] == pytest.approx(0.0, abs=1e-15)
    assert found[4] == pytest.approx(5 / 144)
