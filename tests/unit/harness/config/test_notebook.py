"""Parts that a notebook defines: a cell may run again, and a changed one makes another run."""

from __future__ import annotations

import linecache
from itertools import count
from typing import Any

import pytest

import harness
from datasets.catalog import CATALOG
from datasets.partition import PARTITIONS
from harness.config import notebook
from harness.config.run import read_spec
from harness.core.algorithm import ALGORITHMS
from harness.core.registry import UserError
from harness.executors.scheduler import run_all
from harness.metrics import METRICS
from harness.models import MODELS
from harness.simulation.build import identify, load_once

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
    """The module of a notebook, with cells that have a source and no file."""

    def __init__(self):
        self.names: dict[str, Any] = {"__name__": "__main__"}
        self.numbers = count()
        for cell in (IMPORTS, NET, MODEL, ALGORITHM, METRIC, READER, PARTITION, CODEC):
            self.run(cell)

    def run(self, cell, name="cell"):
        name = f"<{name} {id(self)} {next(self.numbers)}>"
        if "cell" in name:
            linecache.cache[name] = (len(cell), None, cell.splitlines(keepends=True), name)
        exec(compile(cell, name, "exec", dont_inherit=True), self.names)


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
    name = identify(read_spec(RUN))
    for cell in (NET, MODEL, ALGORITHM, METRIC, READER, PARTITION, CODEC):
        cells.run(cell)
    after = [ALGORITHMS["mine_too"], MODELS["mine"], METRICS["hits"].fn, PARTITIONS["turns"], CATALOG["ours"]]
    assert all(one is not other for one, other in zip(before, after, strict=True))
    assert identify(read_spec(RUN)) == name


@pytest.mark.parametrize(
    ("cell", "old", "new"),
    [
        (NET, "torch.relu", "torch.tanh"),  # in another cell than the model's function
        ("WIDTH = 4\n", "4", "5"),
        (MODEL, "shape[0]", "0 + shape[0]"),
        (ALGORITHM, "super().round(", "super().round( "),
        (READER, "1 *", "2 *"),
        (PARTITION, "% clients", "% (0 + clients)"),
        (CODEC, "values.half()", "(0 + values).half()"),
    ],
)
def test_a_changed_cell_makes_another_run(cells, cell, old, new):
    before = identify(read_spec(RUN))
    cells.run(cell.replace(old, new))
    assert identify(read_spec(RUN)) != before
    cells.run(cell)
    assert identify(read_spec(RUN)) == before


def test_a_redefined_part_is_the_one_that_runs(cells, tmp_path):
    """Problems and data are kept between runs, by names that now mean something else."""
    first = harness.run(RUN, tmp_path)
    assert first.final["metrics"]["hits"] == first.final["metrics"]["accuracy"]
    assert first.versions["plugins"].keys() == {"algorithm", "data", "partition", "model", "compression"}
    data = load_once(read_spec(RUN).data)
    cells.run(NET.replace("torch.relu", "100 * torch.tanh"))
    second = harness.run(RUN, tmp_path)
    assert second.id != first.id and second.final["metrics"]["loss"] != first.final["metrics"]["loss"]
    cells.run(READER.replace("1 *", "2 *"))
    assert (load_once(read_spec(RUN).data).x == 2 * data.x).all()


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


def test_a_part_without_a_source_is_refused(cells):
    cells.run(MODEL, "stdin")
    with pytest.raises(UserError, match="model 'mine': the source of what it consists of is not known"):
        identify(read_spec(RUN))


def test_workers_cannot_run_what_a_notebook_defines(cells, tmp_path):
    specs = [read_spec(RUN | {"seed": seed}) for seed in (0, 1)]
    with pytest.raises(UserError, match=r"'mine_too' is defined in a notebook.*run with one job"):
        run_all(specs, tmp_path / "out", jobs=2)
    ours = {"data": "breast-cancer", "model": "mlp", "algorithm": "fedavg", "compression": {}}
    plain = read_spec(RUN | ours | {"partition": {"kind": "iid", "clients": 3}})
    with pytest.raises(UserError, match="metric 'hits' is defined in a notebook"):
        run_all([plain, plain.model_copy(update={"seed": 1})], tmp_path / "out", jobs=2)
    assert not (tmp_path / "out").exists()


def test_names_of_our_own_parts_have_no_source(cells):
    assert notebook.version("algorithm", "fedavg") is None and notebook.version("model", "mlp") is None
    assert notebook.version("data", "csv") is None and notebook.version("partition", "") is None
