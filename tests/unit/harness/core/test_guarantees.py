"""Claims hold where an attacker looks: scales, divisors, printed counts, files of strict runs."""

import json
import math
from dataclasses import replace

import pytest
import torch
from scipy.stats import beta

from datasets.federation import stack
from harness.config.run import read_spec
from harness.core import ALGORITHMS
from harness.core.errors import Incompatible, UserError
from harness.core.per_run import Mixed
from harness.core.public import Public
from harness.problems import PROBLEMS, Setting
from harness.simulation.build import prepare
from harness.simulation.calibration import calibrated
from harness.simulation.dry_run import dry_run, expected_cost
from harness.simulation.loop import simulate
from harness.simulation.simulation import Simulation
from harness.simulation.stacking import obstacle
from harness.storage.store import RunFolder
from privacy.gaussian import gaussian_epsilon
from tests.support.runs import finished, given, ready, table
from tests.support.wire import cohort, privacy, record
from tests.support.worlds import logistic, random_federation

CENTRAL = {"placement": "central", "clip": 1.0}


def least_epsilon(present: torch.Tensor, absent: torch.Tensor, delta: float = 1e-5) -> float:
    """Return a lower bound on epsilon at 95 %, by Clopper-Pearson, of the best threshold on half of the trials."""
    half = len(present) // 2
    cuts = torch.cat([present[:half], absent[:half]])
    gains = [(present[:half] >= cut).double().mean() - (absent[:half] >= cut).double().mean() for cut in cuts]
    cut = cuts[int(torch.stack(gains).argmax())]
    hits, alarms = (int((part[half:] >= cut).sum()) for part in (present, absent))
    trials = len(present) - half
    low = beta.ppf(0.025, hits, trials - hits + 1) if hits else 0.0
    high = beta.ppf(0.975, alarms + 1, trials - alarms) if alarms < trials else 1.0
    return math.log(max(low - delta, 1e-9) / high)


@pytest.mark.slow
def test_scaffold_does_not_tell_whether_a_large_client_takes_part() -> None:
    """Scaled by the steps of the cohort, the noise of c told it at epsilon 3.3 where 1 was printed."""
    federation = random_federation([8] * 19 + [200], dtype=torch.float32)
    algorithm = ALGORITHMS["scaffold"](local_epochs=1, batch_size=8, lr=0.1)
    mechanism = privacy("central", z=10.0, rate=0.2)
    generator = torch.Generator().manual_seed(0)

    def statistic(trial: int, clients: int) -> float:
        name = (f"{trial} of {clients}",)
        run = Simulation(logistic(), federation, algorithm, mechanism, cohort=4, noise_keys=name)
        moved = []
        for _ in range(6):
            before, ids = run.state.c, torch.empty(0)
            while not len(ids):
                ids = (torch.rand(clients, generator=generator) < 0.2).nonzero()[:, 0]
            run.step(ids)
            moved.append(float((run.state.c - before).norm()))
        return max(moved) / min(moved)

    with_it = torch.tensor([statistic(trial, 20) for trial in range(80)])
    without = torch.tensor([statistic(trial, 19) for trial in range(80)])
    assert least_epsilon(with_it, without) <= 1.0


def test_scales_are_public_numbers() -> None:
    clients = cohort(counts=(4, 8, 2, 6), ids=(0, 2))
    work = ALGORITHMS["fedavg"](local_epochs=2, batch_size=3)
    assert clients.most_steps(work) == Public(6), "of all clients: 8 samples are 3 batches"
    assert (1 / (clients.most_steps(work) * 0.5)).value == pytest.approx(1 / 3)
    assert clients.most_steps(ALGORITHMS["fedavg"](local_steps=5)) == Public(5)
    mean = (
        4 * 4 + 8 * 6 + 2 * 2 + 6 * 4
    ) / 20  # of all clients, by their samples: two passes of 2, 3, 1, 2 batches
    assert clients.mean_steps(work).value == pytest.approx(mean)
    assert clients.mean_steps(ALGORITHMS["fedavg"](local_steps=5)) == Public(5.0)
    with pytest.raises(TypeError, match="combined with settings"):
        Public(2.0) * torch.ones(2)
    with pytest.raises(TypeError):
        len(clients.batches(work))


@pytest.mark.parametrize("count", [9, 10])
def test_with_add_remove_the_noise_does_not_tell_how_many_records_there_are(count: int) -> None:
    """n = 10 against 9 in full batches: divided by n, the noise had standard deviations z C / 10 and z C / 9."""
    mechanism = record(clip=1.0, z=20.0)
    spec = mechanism.spec.model_copy(update={"adjacency": "add-remove", "record_rate": 0.25})
    data = random_federation([count] * 4, features=3000)
    clients = cohort(mechanism=replace(mechanism, spec=spec), data=data, problem=logistic(3000))
    work = ALGORITHMS["fedavg"](local_steps=2, batch_size=16)
    noise = []
    for batch in clients.batches(work):
        x = clients.rows(torch.zeros(9003, dtype=torch.float64))
        noise.append(clients.grad(x, batch))
    assert torch.cat(noise).std().item() == pytest.approx(20.0 / 16, rel=0.02)
    epoch = ALGORITHMS["fedavg"](local_epochs=1, batch_size=16)
    assert clients.most_steps(epoch) == clients.mean_steps(epoch) == Public(4)


def test_add_remove_of_records_uses_no_count(data) -> None:
    """The rate is the setting's for every client, averages are equal, and strict accepts it."""
    mechanism = {"unit": "record", "clip": 1.0, "epsilon": 4, "adjacency": "add-remove", "record_rate": 0.1}
    fields = {"partition": {"kind": "dirichlet", "alpha": 0.5, "clients": 5, "standardize": False}}
    setup = ready(data, privacy={**mechanism, "strict": True}, **fields)
    claims = finished(setup).statement()
    assert claims["adjacency"] == "add-remove" and claims["units_most"] == 5
    assert claims["epsilon_total"] == pytest.approx(4.0, rel=1e-4)
    with pytest.raises(Incompatible, match=r"algorithm\.batch_size"):
        ready(data, {"name": "fedavg", "local_steps": 2, "batch_size": None}, privacy=mechanism, **fields)
    with pytest.raises(UserError, match="give both or neither"):
        ready(data, privacy={**mechanism, "record_rate": None}, **fields)


@pytest.mark.parametrize("sampling", ["poisson", "without-replacement"])
def test_printed_counts_are_the_same_whoever_took_part(data, sampling: str, tmp_path) -> None:
    """With public sample numbers, actual counts are a subset sum that names the cohort."""
    fields = {"privacy": {**CENTRAL, "noise_multiplier": 1.0, "sampling": sampling}, "cohort": {"size": 3}}
    fields |= {"partition": {"kind": "dirichlet", "alpha": 0.5, "clients": 7}, "rounds": 4, "eval_every": 1}
    work = {"name": "fedavg", "local_epochs": 1, "batch_size": 4}
    setup = ready(data, work, **fields)
    counted = []
    for name in ("one", "two"):
        folder = RunFolder(tmp_path / name)
        folder.path.mkdir()
        spec = setup.spec.privacy.model_copy(update={"secure_rng": True})
        secret = prepare(setup.spec.model_copy(update={"privacy": spec}))
        simulate(calibrated(secret), folder)
        lines = [json.loads(line) for line in (folder.path / "rounds.jsonl").read_text().splitlines()]
        names = ("bytes_up", "bytes_down", "flops", "oracle_calls")
        counted.append([[line[name] for name in names] for line in lines])
    assert counted[0] == counted[1]
    everybody = sum(setup.federation.counts().tolist())
    assert [line[3] for line in counted[0]] == [round(t * everybody * 3 / 7) for t in range(5)]
    assert expected_cost(ready(data, work)) is None, "where cohorts are public, counts are exact"


def test_the_expected_cost_of_many_clients_is_that_of_their_blocks(data, monkeypatch) -> None:
    fields = {"privacy": {**CENTRAL, "noise_multiplier": 1.0}, "cohort": {"size": 3}}
    setup = ready(data, "fedavg", **fields)
    whole = dry_run(setup)
    monkeypatch.setattr("harness.simulation.dry_run.BLOCK_ENTRIES", 30)
    blocks = dry_run(setup)
    assert {name: int(part) for name, part in whole.cost.items()} == {
        name: int(part) for name, part in blocks.cost.items()
    }
    assert whole.ledger.report(1e-5) == blocks.ledger.report(1e-5)


STRICT = {"privacy": {**CENTRAL, "epsilon": 4.0, "strict": True}}
RAW = {"partition": {"kind": "iid", "clients": 7, "standardize": False}}


def test_a_strict_run_writes_no_fact_about_training_data(data, tmp_path) -> None:
    folder = RunFolder(tmp_path / "run")
    folder.path.mkdir()
    end = simulate(ready(data, **STRICT, **RAW), folder)
    assert "held" not in json.loads((folder.path / "spec.json").read_text())
    assert not any(name.startswith("train_") for name in end["metrics"])
    assert "training samples" not in " ".join(end["public"])
    assert [line.partition(",")[0] for line in end["not_covered"]] == ["all figures of test samples"]
    free = ready(data, privacy={**CENTRAL, "epsilon": 4.0}, **RAW)
    for asked in (False, True):
        end = simulate(replace(free, diagnostics=asked))
        assert any(name.startswith("train_") for name in end["metrics"]) == asked
        assert ("update_norm_p50" in end["diagnostics"]) == asked and end["diagnostics"]["noise_std"] > 0
        assert end["not_covered"][0].startswith("figures of the training samples") == asked


def test_means_over_all_rows_are_public_and_refused_by_strict(tmp_path) -> None:
    path = table(tmp_path)
    lines = path.read_text().splitlines()
    lines[3] = "," + lines[3].partition(",")[2]
    path.write_text("\n".join(lines) + "\n")
    source = {"name": "csv", "path": str(path), "label": "label", "sensitive": "group", "missing": "fill"}
    run = given(path, privacy={**CENTRAL, "epsilon": 4.0}, **RAW) | {"data": source}
    assert any("missing cells" in fact for fact in simulate(calibrated(prepare(read_spec(run))))["public"])
    run["privacy"] = STRICT["privacy"]
    with pytest.raises(Incompatible, match="means of columns with missing cells"):
        prepare(read_spec(run))


def test_without_a_placement_both_are_explained(data) -> None:
    with pytest.raises(UserError, match=r"local: each client adds.*central: a trusted server") as error:
        ready(data, privacy={"epsilon": 4})
    assert "Give local, central or distributed" in str(error.value)


OWN = {"unit": "record", "clip": 1.0, "epsilon": 0.5, "noise": "per_client"}


def test_with_noise_of_its_own_no_client_goes_without(data) -> None:
    """In three rounds of two of seven clients one has no release at all; the others must still get their noise."""
    setup = ready(data, privacy=OWN, cohort={"size": 2}, rounds=3)
    assert len(setup.privacy.multipliers) == 7 and min(setup.privacy.multipliers) > 0
    states = [finished(replace(setup, noise_key=name)).state.x for name in ("one", "two")]
    assert not torch.equal(*states)
    claims = finished(setup).statement()
    assert claims["epsilon_total"] <= 0.5 and claims["noise_multiplier"] == min(setup.privacy.multipliers)


def test_parties_share_their_noise(data) -> None:
    fields = {"partition": {"kind": "columns", "clients": 2}, "problem": "vertical"}
    with pytest.raises(UserError, match="parties of a vertical problem share them"):
        ready(data, {"name": "splitnn", "local_steps": 1, "batch_size": 8}, privacy=OWN, **fields)


@pytest.mark.parametrize("count", [20, 21])
def test_counts_of_work_do_not_tell_how_many_records_there_are(count: int) -> None:
    spec = record(z=1.0).spec.model_copy(update={"adjacency": "add-remove", "record_rate": 1.0})
    mechanism = replace(record(z=1.0), spec=spec)
    federation = random_federation([count] * 2, dtype=torch.float32)
    work = ALGORITHMS["fedavg"](local_steps=2, batch_size=8)
    run = Simulation(logistic(), federation, work, mechanism)
    run.step()
    assert int(run.cost.oracle_calls) == 2 * 2 * 8


@pytest.mark.parametrize("algorithm", ["ditto", "local", "fedper"])
def test_strict_refuses_predictions_by_models_that_clients_keep(data, algorithm: str) -> None:
    """Their scores told the cohort, and one client's labels, at epsilon 0 as printed."""
    model = {"name": "mlp", "hidden": [4]}
    with pytest.raises(Incompatible, match="models that clients keep to themselves"):
        ready(data, algorithm, **STRICT, **RAW, model=model)
    free = ready(data, algorithm, privacy={**CENTRAL, "epsilon": 4.0}, model=model, **RAW)
    assert any("models that clients keep" in fact for fact in simulate(free)["not_covered"])


def test_a_private_run_writes_no_counts_of_classes_and_no_times_of_rounds(data, tmp_path) -> None:
    folder = RunFolder(tmp_path / "run")
    folder.path.mkdir()
    fields = {"privacy": {**CENTRAL, "noise_multiplier": 1.0}, "cohort": {"size": 3}}
    simulate(ready(data, **fields, rounds=4, eval_every=1), folder)
    assert "held" not in json.loads((folder.path / "spec.json").read_text())
    lines = [json.loads(line) for line in (folder.path / "rounds.jsonl").read_text().splitlines()]
    assert ["seconds" in line["timing"] for line in lines] == [False] * 4 + [True]


def test_a_cohort_that_the_caller_chose_is_not_amplified() -> None:
    mechanism = privacy("central", z=3.0, rate=0.1)
    run = Simulation(logistic(), random_federation([8] * 20), ALGORITHMS["fedavg"](), mechanism, cohort=2)
    for _ in range(5):
        run.step(torch.tensor([0, 1]))
    claims = run.statement()
    assert claims["epsilon_total"] == pytest.approx(gaussian_epsilon(3.0 / 5**0.5, 1e-5))
    assert (claims["unit_most"], claims["units_most"]) == (0, 2)


def test_simulations_without_names_share_no_noise() -> None:
    """Whatever differs between them; and under secure_rng even if nothing does."""
    federation, other = (random_federation([8] * 4, seed=seed) for seed in (0, 1))
    work, mechanism = ALGORITHMS["fedavg"](), privacy("central", z=1.0)
    start = {"x": torch.ones(15, dtype=torch.float64)}
    pool, splits = federation.pool, federation.splits
    regrouped = replace(federation, pool=pool._replace(group=1 - pool.group))
    retested = replace(federation, splits={**splits, "test": splits["test"].flip(0)})
    secret = replace(mechanism, spec=mechanism.spec.model_copy(update={"secure_rng": True}))
    runs = [
        Simulation(logistic(), federation, work, mechanism),
        Simulation(logistic(), other, work, mechanism),
        Simulation(logistic(), regrouped, work, mechanism),
        Simulation(logistic(), retested, work, mechanism),
        Simulation(logistic(), federation, work, mechanism, start=start),
        Simulation(logistic(), federation, work, replace(mechanism, noise_multiplier=2.0)),
        *(Simulation(logistic(), federation, work, secret) for _ in range(2)),
        *(Simulation(replace(logistic(), settings=own), federation, work, mechanism) for own in ("1", "2")),
        *(Simulation(replace(logistic(), constants=None), federation, work, mechanism) for _ in range(2)),
    ]
    assert len({run.cohorts.noise_keys for run in runs}) == len(runs)
    assert (
        Simulation(logistic(), federation, work, mechanism).cohorts.noise_keys == runs[0].cohorts.noise_keys
    )


def test_problems_tell_their_settings() -> None:
    kind = PROBLEMS["quadratic_bilevel"]
    given = {"A": [2, 4], "B": [2, 4], "b": [0, 4], "t": [3, 1]}
    one, other = (kind.build(Setting(kind.settings(**given, rho=rho), None, None))[0] for rho in (1.0, 1.5))
    assert one.constants == other.constants and one.settings != other.settings


def test_one_graph_for_all_runs_is_no_stack_of_graphs() -> None:
    """With as many runs as nodes, two graphs that differ in other rows are still told apart."""
    federation, work = random_federation([8] * 3), ALGORITHMS["d_sgd"](local_steps=1)
    mixing = torch.full((3, 3), 1 / 3, dtype=torch.float64)
    other = torch.tensor([[1 / 3] * 3, [1 / 3, 2 / 3, 0], [1 / 3, 0, 2 / 3]], dtype=torch.float64)
    runs = [
        Simulation(
            logistic(), stack([federation] * 3), work, privacy("local", z=1.0), seeds=[0] * 3, mixing=graph
        )
        for graph in (mixing, other)
    ]
    assert not set(runs[0].cohorts.noise_keys) & set(runs[1].cohorts.noise_keys)


def test_stacked_runs_share_neither_evaluations_of_other_data_nor_entropy() -> None:
    federation, work = random_federation([8] * 4), ALGORITHMS["fedavg"](local_steps=1)
    changed = replace(federation, pool=federation.pool._replace(y=(federation.pool.y + 1) % 3))
    given = logistic(), stack([federation] * 2), work
    both = Simulation(*given, seeds=[0, 0], federations=[federation, changed])
    alone = Simulation(logistic(), changed, work)
    assert both.evaluate(0).metrics != both.evaluate(1).metrics == alone.evaluate().metrics
    mechanism = privacy("central", z=1.0)
    secret = replace(mechanism, spec=mechanism.spec.model_copy(update={"secure_rng": True}))
    with pytest.raises(Mixed, match="secure_rng"):
        Simulation(*given, [mechanism, secret], seeds=[0, 0])


def test_adaptive_runs_with_noise_of_their_own_are_not_stacked(data) -> None:
    adaptive = {"placement": "central", "clip": "adaptive", "epsilon": 2.0, "sampling": "fixed"}
    assert "own noise" in str(obstacle(ready(data, privacy=adaptive, cohort={"size": 2})))
    poisson = {**adaptive, "sampling": "poisson"}
    assert obstacle(ready(data, privacy=poisson, cohort={"size": 2})) is None
