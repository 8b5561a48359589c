"""Parts that a notebook defines: they can be tried, and are moved to a file before runs are stored."""

from __future__ import annotations

from typing import Any

import pytest

import harness
from datasets.catalog import CATALOG
from datasets.partition import PARTITIONS
from harness.config import notebook
from harness.config.recorded import versions
from harness.config.run import read_spec
from harness.core.algorithm import ALGORITHMS
from harness.core.errors import UserError
from harness.executors.scheduler import run_all
from harness.metrics import METRICS
from harness.models import MODELS
from harness.simulation.build import identify

pytestmark = pytest.mark.usefixtures("registries")

NET = """
class Net(nn.Module):
    def __init__(self, inputs, outputs):
        super().__init__()
        self.first, self.last = nn.Linear(inputs, WIDTH), nn.Linear(WIDTH, outputs)
    def forward(self, x):
        return self.last(torch.relu(self.first(x)))
"""
MODEL = """
@model("tables")
def mine(shape, outputs):
    return Net(shape[0], outputs)
"""
ALGORITHM = """
@register
@dataclass(frozen=True, kw_only=True)
class Mine(FedAvg):
    meta: ClassVar = Meta("mine_too", "centralized", ("erm",), "nobody")
    def round(self, state, clients, channel):
        return super().round(state, clients, channel)
"""
METRIC = """
@metric("max", ".2f", "share")
def hits(p):
    return float(p.hit.mean())
"""
READER = """
@data_set("ours", "569 x 30, 2 classes")
def read_ours():
    data = read_breast_cancer()
    return replace(data, x=1 * data.x, digest=data.digest + "1")
"""
PARTITION = """
@partition
@dataclass(frozen=True)
class Turns(Partition):
    kind: ClassVar[str] = "turns"
    def owners(self, samples, clients, rng):
        return np.arange(len(samples.labels)) % clients
"""
CODEC = """
@codec
class Halves(OwnCodec):
    name = "halves"
    def encode(self, values, generator):
        return values.half().numpy().tobytes()
    def decode(self, data, count):
        return torch.from_numpy(np.frombuffer(data, np.float16).copy())
    def size(self, count):
        return 2 * count
"""
IMPORTS = """
from dataclasses import dataclass, replace
from typing import ClassVar
import numpy as np
import torch
from torch import nn
from algorithms.centralized.fedavg import FedAvg
from compression.own_codec import OwnCodec, codec
from datasets.catalog import data_set
from datasets.partition import Partition, partition
from datasets.tabular import read_breast_cancer
from harness.core import Meta, register
from harness.metrics import metric
from harness.models import model
WIDTH = 4
"""
RUN: dict[str, Any] = {
    "data": "ours", "partition": {"kind": "turns", "clients": 3}, "model": "mine", "algorithm": "mine_too",
    "compression": {"codec": "halves"}, "rounds": 1,
}  # fmt: skip


class Notebook:
    """The module of a notebook."""

    def __init__(self):
        self.names: dict[str, Any] = {"__name__": "__main__"}
        for cell in (IMPORTS, NET, MODEL, ALGORITHM, METRIC, READER, PARTITION, CODEC):
            self.run(cell)

    def run(self, cell):
        exec(compile(cell, "<cell>", "exec", dont_inherit=True), self.names)


@pytest.fixture
def cells():
    return Notebook()


def test_a_cell_that_runs_again_replaces_its_parts(cells):
    before = [
        ALGORITHMS["mine_too"],
        MODELS["mine"],
        METRICS["hits"].fn,
        PARTITIONS["turns"],
        CATALOG["ours"],
    ]
    for cell in (NET, MODEL, ALGORITHM, METRIC, READER, PARTITION, CODEC):
        cells.run(cell)
    after = [ALGORITHMS["mine_too"], MODELS["mine"], METRICS["hits"].fn, PARTITIONS["turns"], CATALOG["ours"]]
    assert all(one is not other for one, other in zip(before, after, strict=True))


def test_runs_of_a_notebooks_parts_are_not_stored(cells, tmp_path):
    """A change of a cell, or of what it refers to, would give other results under the same id."""
    with pytest.raises(
        UserError, match=r"'mine_too' is defined in a notebook .* move it to a file \(%%writefile"
    ):
        harness.run(RUN, tmp_path / "out")
    with pytest.raises(UserError, match="codec 'halves' is defined in a notebook"):
        harness.sweep(RUN | {"algorithm": "fedavg"}, {"seed": [0, 1]}, tmp_path / "swept", progress=False)
    assert not (tmp_path / "out").exists()


def test_parts_of_a_notebook_can_be_tried(cells):
    """With what their cells say now: nothing of an earlier definition is kept between runs."""
    first = harness.Simulation.from_setup(harness.prepare(RUN))
    cells.run(NET.replace("torch.relu", "100 * torch.tanh"))
    second = harness.Simulation.from_setup(harness.prepare(RUN))
    first.step()
    second.step()
    assert first.evaluate()[0]["loss"] != second.evaluate()[0]["loss"]
    x = harness.prepare(
        RUN | {"partition": {"kind": "turns", "clients": 3, "standardize": False}}
    ).federation.pool.x
    cells.run(READER.replace("1 *", "2 *"))
    again = harness.prepare(RUN | {"partition": {"kind": "turns", "clients": 3, "standardize": False}})
    assert (again.federation.pool.x == 2 * x).all()


def test_two_trials_of_a_notebooks_part_share_no_noise(cells):
    """What a part refers to may have changed between them, and noise of one key could then be subtracted."""
    private = RUN | {"privacy": {"placement": "central", "noise_multiplier": 1.0}}
    first, second = harness.prepare(private), harness.prepare(private)
    assert first.noise_key != second.noise_key and first.id != second.id


def test_a_spec_of_an_earlier_definition_is_not_run(cells):
    """It holds an instance of the earlier class, and would run under the name of the later one."""
    spec = read_spec(RUN)
    cells.run(ALGORITHM.replace("super().round(", "super().round( "))
    with pytest.raises(UserError, match="'mine_too' was defined again since; read the spec once more"):
        harness.prepare(spec)


def test_parts_of_a_notebook_do_not_replace_others(cells):
    with pytest.raises(UserError, match="two algorithms are called 'fedavg'"):
        cells.run(ALGORITHM.replace("mine_too", "fedavg"))
    with pytest.raises(UserError, match="two models are called 'mlp'"):
        cells.run(MODEL.replace("mine", "mlp"))
    with pytest.raises(UserError, match="metric 'accuracy' is registered twice"):
        cells.run(METRIC.replace("hits", "accuracy"))
    for cell, name in ((CODEC, "halves"), (READER, "ours"), (PARTITION, "turns")):
        with pytest.raises(ValueError, match=r"two (data sets|partitions|codecs) are called"):
            cells.run(cell.replace(name, {"ours": "digits", "turns": "iid", "halves": "float16"}[name]))


def test_workers_cannot_run_what_a_notebook_defines(cells, tmp_path):
    specs = [read_spec(RUN | {"seed": seed}) for seed in (0, 1)]
    with pytest.raises(UserError, match=r"'mine_too' is defined in a notebook"):
        run_all(specs, tmp_path / "out", jobs=2)
    ours = {"data": "breast-cancer", "model": "mlp", "algorithm": "fedavg", "compression": {}}
    plain = read_spec(RUN | ours | {"partition": {"kind": "iid", "clients": 3}})
    with pytest.raises(UserError, match="metric 'hits' is defined in a notebook"):
        run_all([plain, plain.model_copy(update={"seed": 1})], tmp_path / "out", jobs=2)
    assert not (tmp_path / "out").exists()


def test_a_file_takes_the_place_of_cells(cells, tmp_path):
    """The remedy that messages name: parts are replaced by those of the file, and can run in workers."""
    path = tmp_path / "moved.py"
    path.write_text(IMPORTS + NET + MODEL + ALGORITHM + METRIC + READER + PARTITION + CODEC)
    harness.load_plugin(path)
    assert identify(read_spec(RUN)) == identify(read_spec(RUN))
    own = versions(read_spec(RUN).model_dump(mode="json"))["plugins"]
    assert set(own) == {"algorithm", "data", "partition", "model", "compression"}
    assert all(version.startswith("sha256:") for version in own.values())
    notebook.require_files([("algorithm", "mine_too"), ("model", "mine"), ("metric", "hits")])


def test_a_file_that_is_written_and_loaded_again_gives_other_runs(cells, tmp_path):
    """The route that extending.md names, gone twice; a spec that holds the earlier class is refused."""
    path = tmp_path / "moved.py"
    path.write_text(IMPORTS + NET + MODEL + ALGORITHM + METRIC + READER + PARTITION + CODEC)
    harness.load_plugin(path)
    first, spec = harness.run(RUN, tmp_path / "out"), read_spec(RUN)
    path.write_text(path.read_text().replace("torch.relu", "100 * torch.tanh"))
    harness.load_plugin(path)
    with pytest.raises(UserError, match="'mine_too' was defined again since"):
        harness.prepare(spec)
    second = harness.run(RUN, tmp_path / "out")
    assert second.id != first.id
    assert second.final["metrics"]["loss"] != first.final["metrics"]["loss"]
    assert harness.run(RUN, tmp_path / "out").id == second.id


def test_a_file_that_raises_leaves_the_cells_parts(cells, tmp_path):
    path = tmp_path / "broken.py"
    path.write_text(IMPORTS + NET + MODEL + CODEC + "1 / 0\n")
    before = MODELS["mine"]
    with pytest.raises(UserError, match="ZeroDivisionError"):
        harness.load_plugin(path)
    assert MODELS["mine"] is before
