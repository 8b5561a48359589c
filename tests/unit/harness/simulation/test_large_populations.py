"""What a round costs and a checkpoint holds depend on the cohort, not on how many clients there are."""

from functools import cache

import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from datasets.federation import Batch, Federation
from harness.core import ALGORITHMS
from harness.core.clients.pruning import PrunedModels, SubModel
from harness.core.clients.row_table import RowTable
from harness.core.settings.compression import PLAIN, Compression
from harness.core.settings.privacy import Privacy
from harness.problems.classify import classifier
from harness.simulation import loop
from harness.simulation.callbacks import CallbackError
from harness.simulation.loop import simulate, simulate_all
from harness.simulation.recorder import Recorder
from harness.simulation.simulation import Simulation
from harness.storage.store import RunFolder
from tests.support.runs import ready, table, with_features
from tests.support.wire import channel

FEATURES = 60
FEEDBACK = Compression(beta=0.5, error_feedback=True)
WAYS = {
    "fedavg": ("fedavg", {}),
    "scaffold": ("scaffold", {}),
    "ditto": ("ditto", {}),
    "feddyn": ("feddyn", {}),
    "feedback": ("fedavg", {"compression": FEEDBACK}),
    "shift": ("fedavg", {"compression": Compression(codec="q4", shift=0.5)}),
    "noise": ("scaffold", {"privacy": Privacy.of(1.0, clip=1.0)}),
}


class Written(TorchDispatchMode):
    """Count the numbers that operations write; views write none, and memory that is not written costs nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.numbers = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        given = {one.untyped_storage().data_ptr() for one in tree_leaves(args) if type(one) is Tensor}
        if "empty" in func.name():
            return result
        if func._schema.is_mutable:
            self.numbers += (args[2] if "index_put_" in func.name() else result).numel()
        for one in tree_leaves(result):
            if type(one) is Tensor and (one.untyped_storage().data_ptr() not in given):
                self.numbers += one.numel()
        return result


@cache
def federation(clients: int) -> Federation:
    """Return clients with 4 samples each, of 400 that they share.

    Of three classes: two have opposite gradients, and how entries of equal size are selected depends on data.
    """
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(400, FEATURES, generator=generator)
    y = (x[:, :1] > torch.tensor([-0.5, 0.5])).sum(1)
    index = (4 * torch.arange(clients)[:, None] + torch.arange(4)) % 400
    pool = Batch(x, y, torch.zeros_like(y), torch.ones(400))
    return Federation(pool, {"train": index, "test": index}, ("a", "b", "c"), (), "random numbers", "")


def begun(clients: int, algorithm: str, rounds: int = 2, **options) -> Simulation:
    """Return a run with 8 of these clients a round, after some rounds."""
    made = ALGORITHMS[algorithm](local_steps=2, batch_size=2)
    options = {"compression": PLAIN, "cohort": 8, **options}
    run = Simulation(classifier(nn.Linear(FEATURES, 3)), federation(clients), made, **options)
    for round in range(rounds):
        run.step(torch.arange(8) * 3 + round)
    return run


def written(run: Simulation, ids: Tensor | None) -> int:
    """Return how many numbers the operations of a round write."""
    with Written() as counter:
        run.step(ids)
        run.state_dict()
    return counter.numbers


@pytest.mark.parametrize("way", WAYS)
def test_a_round_of_given_clients_writes_as_much_in_any_population(way):
    """Copying the table of rows, or looking at all of it, would write 100 times as much in the larger one."""
    algorithm, options = WAYS[way]
    ids = torch.arange(8) * 5
    few, many = (written(begun(clients, algorithm, **options), ids) for clients in (100, 10_000))
    assert many == few > 0


@pytest.mark.parametrize(
    ("way", "balanced", "most"), [*((way, False, 40) for way in WAYS), ("scaffold", True, 0)]
)
def test_drawing_the_cohort_costs_a_few_numbers_a_client(way, balanced, most):
    """Fewer than a row has; where clients take turns, their order is drawn once."""
    algorithm, options = WAYS[way]
    runs = [begun(size, algorithm, balanced=balanced, **options) for size in (1000, 10_000)]
    for run in runs:
        run.step()
    few, many = (written(run, None) for run in runs)
    assert many - few <= most * 9000 < FEATURES * 9000


def test_shares_of_all_clients_cost_as_much_as_there_are_models():
    """Under central privacy an entry's average is divided by the share of all clients that have it."""
    masks = torch.tensor([[True] * FEATURES, [True] * 20 + [False] * (FEATURES - 20)])
    models = tuple(SubModel(mask, classifier(nn.Linear(3, 2)), mask.nonzero()[:, 0]) for mask in masks)
    numbers = []
    for clients in (100, 10_000):
        which = (torch.arange(clients) % 4 == 0).long()
        central = Privacy.of(0.0, clip=100.0, placement="central", sampling="poisson", rate=2 / clients)
        fields = {"ids": [3], "expected": 2, "data": federation(clients)}
        way = channel(central, pruned=PrunedModels(models, which), **fields)
        with Written() as counter:
            mean = way.mean(torch.ones(1, FEATURES))
        assert torch.equal(
            mean, torch.cat([torch.full((20,), 0.5), torch.full((FEATURES - 20,), 0.5 / 0.75)])
        )
        numbers.append(counter.numbers)
    assert numbers[0] == numbers[1]


def test_rows_that_nobody_has_written_are_in_no_checkpoint(tmp_path, monkeypatch):
    """Not in its size either; and who continues from it goes the same way."""
    monkeypatch.setattr(loop, "CHECKPOINT_SECONDS", -1.0)
    compression = {"beta": 0.5, "error_feedback": True}
    setup = ready(
        table(tmp_path), "scaffold", cohort={"size": 2}, rounds=4, eval_every=1, compression=compression
    )
    folder = RunFolder(tmp_path / "run")
    folder.path.mkdir()

    def stop(round, line):
        if round == 2:
            raise InterruptedError

    with pytest.raises(InterruptedError):
        simulate(setup, folder, stop)
    saved = folder.load()
    kept = [saved["state"]["ci"], *(one for name, one in saved["channel"].items() if "residual" in name)]
    assert len(kept) == 2
    for rows in kept:
        assert len(rows["places"]) == len(rows["rows"]) <= 2 * saved["round"] < 7
    found, straight = simulate(setup, folder), simulate(setup)
    assert found["metrics"] == straight["metrics"]


def test_an_interrupt_after_the_rows_are_put_saves_the_round_before(tmp_path, monkeypatch):
    """What the broken round has written into the table is not in the checkpoint."""
    setup = ready(table(tmp_path), "scaffold", cohort={"size": 3}, rounds=5, eval_every=1)
    folder = RunFolder(tmp_path / "run")
    folder.path.mkdir()
    finish = Simulation._finish_round

    def interrupted(self, clients, channel):
        if self.round == 3 and clients.round == 3:
            raise KeyboardInterrupt
        finish(self, clients, channel)

    with monkeypatch.context() as patch:
        patch.setattr(Simulation, "_finish_round", interrupted)
        with pytest.raises(KeyboardInterrupt):
            simulate(setup, folder)
    run = Simulation.from_setup(setup)
    for _ in range(3):
        run.step()
    saved = Recorder(setup, folder).checkpoint
    assert saved is not None and saved["round"] == 3
    assert all(torch.equal(saved["state"][name], part) for name, part in run.state._asdict().items())
    assert simulate(setup, folder)["metrics"] == simulate(setup)["metrics"]


def test_stacked_runs_save_each_its_own_rows(tmp_path, monkeypatch):
    monkeypatch.setattr(loop, "CHECKPOINT_SECONDS", -1.0)
    data = table(tmp_path)
    setups = [
        ready(data, "scaffold", cohort={"size": 2}, seed=seed, rounds=4, eval_every=1) for seed in (0, 1)
    ]
    folders = [RunFolder(tmp_path / str(number)) for number in range(2)]
    for folder in folders:
        folder.path.mkdir()

    def stop(round, line):
        if round == 2:
            raise InterruptedError

    with pytest.raises(CallbackError):
        simulate_all([Recorder(*pair, stop) for pair in zip(setups, folders, strict=True)])
    for setup, folder in zip(setups, folders, strict=True):
        alone = Simulation.from_setup(setup)
        while alone.round < folder.load()["round"]:
            alone.step()
        asked = alone.state_dict()["state"]["ci"]
        kept = RunFolder(folder.path).load()["state"]["ci"]
        assert kept["places"].tolist() == asked.packed()["places"].tolist()
        torch.testing.assert_close(kept["rows"], asked.packed()["rows"])
    together = simulate_all([Recorder(*pair) for pair in zip(setups, folders, strict=True)])
    for setup, end in zip(setups, together, strict=True):
        assert end["metrics"]["loss"] == pytest.approx(simulate(setup)["metrics"]["loss"])


def test_a_checkpoint_of_whole_tensors_is_continued(tmp_path):
    """Earlier versions wrote every client's row."""
    run, other = (begun(100, "scaffold", compression=FEEDBACK) for _ in range(2))
    point = run.state_dict()
    for part in ("state", "channel"):
        point[part] = {name: value + 0 for name, value in point[part].items()}
        assert not any(isinstance(value, RowTable) for value in point[part].values())
    other.load_state_dict(point)
    for way in (run, other):
        way.step()
    assert all(torch.equal(one, two) for one, two in zip(run.state, other.state, strict=True))


@pytest.mark.parametrize("private", [False, True])
def test_a_row_that_is_not_finite_is_noticed_in_a_cohort(tmp_path, private):
    """It ends a run; under unit client the client keeps its old row instead."""
    mechanism = {"placement": "central", "clip": 1.0, "noise_multiplier": 1.0}
    privacy = {"privacy": mechanism} if private else {}
    setup = with_features(ready(table(tmp_path), "scaffold", cohort={"size": 3}, **privacy), torch.inf, 2)
    run = Simulation.from_setup(setup)
    run.step(torch.tensor([0, 1, 3]))
    if not private:
        with pytest.raises(ArithmeticError, match="round 2"):
            run.step(torch.tensor([1, 2, 4]))
        return
    run.step(torch.tensor([1, 2, 4]))
    assert isinstance(run.state.ci, RowTable)
    moved = [bool(row.any()) for row in run.state.ci]
    assert moved == [True, True, False, True, True, False, False]


def test_rows_from_the_initialization_end_a_run_in_its_first_round(tmp_path):
    """Also those of clients that do not take part in it."""
    setup = ready(table(tmp_path), "scaffold", cohort={"size": 2})
    run = Simulation.from_setup(setup)
    rows = run.state.ci + 0
    rows[6] = torch.nan
    run.state = run.state._replace(ci=rows)
    with pytest.raises(ArithmeticError, match="round 1"):
        run.step(torch.tensor([0, 1]))
