"""Parts that a notebook defines: a cell may run again, and a changed one makes another run."""

from __future__ import annotations

import linecache
import os
import subprocess
import sys
from itertools import count
from typing import Any

import pytest

import harness
from datasets.catalog import CATALOG
from datasets.partition import PARTITIONS
from harness.config import notebook
from harness.config.recorded import versions
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
    with pytest.raises(
        UserError, match=r"'mine': it refers to code without a source.*move the part to a file"
    ):
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


USES = """
@model("tables")
def mine(shape, outputs{settings}):
    width = {width}
    return nn.Sequential(nn.Linear(shape[0], int(width)), nn.Linear(int(width), outputs))
"""
BESIDE = """
from functools import cached_property, lru_cache, partial, wraps
from types import SimpleNamespace
import collections, enum, math, re
from scipy import stats
"""
# What a model may use, and the expression by which it does; VALUE is 4, then 5.
WAYS = {
    "a default": ("W = VALUE", "width", ", width: int = W"),
    "a default by keyword": ("W = VALUE\ndef h(*, k=W): return k", "h()", ""),
    "a default of a helper": ("W = VALUE\ndef h(k=W): return k", "h()", ""),
    "a number of numpy": ("W = np.float64(VALUE)", "W", ""),
    "an array": ("W = np.array([1, VALUE])", "W[1]", ""),
    "a tensor": ("W = torch.tensor([VALUE])", "W[0]", ""),
    "a parameter": ("W = nn.Parameter(torch.tensor([float(VALUE)]))", "W[0]", ""),
    "an instance": ("class C:\n    def __init__(self, w): self.w = w\nW = C(VALUE)", "W.w", ""),
    "a slot": ("class C:\n    __slots__ = ('w',)\nW = C()\nW.w = VALUE", "W.w", ""),
    "a private slot": (
        "class C:\n    __slots__ = ('__w',)\n    def __init__(self): self.__w = VALUE\nW = C()", "W._C__w", "",
    ),
    "an attribute of a class": ("class C:\n    w = VALUE", "C.w", ""),
    "a nested class": ("class C:\n    class D:\n        w = VALUE", "C.D.w", ""),
    "a dataclass": ("@dataclass\nclass C:\n    w: int = VALUE", "C().w", ""),
    "a frozen instance": ("@dataclass(frozen=True)\nclass C:\n    w: int\nW = C(VALUE)", "W.w", ""),
    "a named tuple": ("C = collections.namedtuple('C', 'w')\nW = C(VALUE)", "W.w", ""),
    "an enumeration": ("class C(enum.Enum):\n    W = VALUE", "C.W.value", ""),
    "a namespace": ("W = SimpleNamespace(w=[VALUE])", "W.w[0]", ""),
    "a partial": ("W = partial(max, VALUE)", "W(1)", ""),
    "a lambda in a dict": ("v = VALUE\nW = {'a': [lambda: v]}", "W['a'][0]()", ""),
    "another lambda of a line": ("a, b = (lambda: 4), (lambda: 5)\nW = {4: a, 5: b}[VALUE]", "W()", ""),
    "a closure": ("def make(w):\n    def h(): return w\n    return h\nh = make(VALUE)", "h()", ""),
    "a bound method": ("class C:\n    def h(self): return VALUE\nh = C().h", "h()", ""),
    "a static method": ("class C:\n    @staticmethod\n    def h(): return VALUE", "C.h()", ""),
    "a property": ("class C:\n    @cached_property\n    def h(self): return VALUE\nW = C()", "W.h", ""),
    "a cached function": ("@lru_cache\ndef h(): return VALUE", "h()", ""),
    "a decorated function": (
        "v = VALUE\ndef d(f):\n    @wraps(f)\n    def g(): return v\n    return g\n@d\ndef h(): pass", "h()", "",
    ),
    "an attribute of a function": ("def h(): return h.w\nh.w = VALUE", "h()", ""),
    "a set in a tuple": ("W = ({1, VALUE},)", "max(W[0])", ""),
    "a base class": ("class B:\n    w = VALUE\nclass C(B): pass", "C.w", ""),
    "a metaclass": ("class M(type):\n    w = VALUE\nclass C(metaclass=M): pass", "C.w", ""),
    "an annotation": ("def h(x: [VALUE]): pass", "h.__annotations__['x'][0]", ""),
    "a recursive pair": ("def f(n): return VALUE if n else g(1)\ndef g(n): return f(n)", "g(0)", ""),
    "an expression": ("W = VALUE", "[W for _ in range(2)][0]", ""),
    "a list that holds itself": ("W = [VALUE]\nW.append(W)", "W[0]", ""),
    "another function of a package": ("h = {4: math.floor, 5: math.ceil}[VALUE]", "h(4.5)", ""),
    "another function of torch": ("h = {4: torch.floor, 5: torch.ceil}[VALUE]", "h(torch.tensor(4.5))", ""),
    "an attribute of a partial": ("W = partial(max, 1)\nW.w = VALUE", "W.w", ""),
    "an attribute of a tensor": ("W = torch.ones(1)\nW.w = VALUE", "W.w", ""),
    "an attribute of a mapping": ("W = collections.OrderedDict()\nW.w = VALUE", "W.w", ""),
    "a long pattern": ("W = re.compile('a' * 300 + 'b' * VALUE)", "len(W.pattern) - 300", ""),
    "another object of a package": ("h = {4: stats.norm, 5: stats.expon}[VALUE]", "4 + int(h.cdf(-9) > 0)", ""),
    "another class of a package": ("h = {4: nn.ReLU, 5: nn.Tanh}[VALUE]", "4 + len(h.__name__) % 4", ""),
}  # fmt: skip


@pytest.mark.parametrize("way", WAYS)
def test_whatever_a_part_uses_is_in_its_version(cells, way):
    before, use, settings = WAYS[way]
    names = []
    for value in (4, 5, 4):
        cells.run(BESIDE + before.replace("VALUE", str(value)))
        cells.run(USES.format(width=use, settings=settings))
        names.append(identify(read_spec(RUN)))
    assert names[0] == names[2] != names[1]


@pytest.mark.parametrize(
    ("before", "use"),
    [
        ("W = 4", "globals()['W']"),
        ("W = 4", "eval('W')"),
        ("W, e = 4, eval", "e('W')"),
        ("W = 4", "[exec('w = W'), 4][1]"),
        ("import __main__ as m", "m.W"),
        ("import sys", "sys.modules['__main__'].W"),
        ("W = 4", "__import__('__main__').W"),
        ("W = 4\ndef h(): return h.__globals__['W']", "h()"),
        ("W = 4\ndef h():\n    import __main__\n    return __main__.W", "h()"),
        ("W = open('/dev/null')", "[W, 4][1]"),
        ("W = np.random.default_rng(4)", "W.integers(4)"),
        ("W = torch.Generator()", "W.initial_seed()"),
        ("W = nn.Linear(4, 4)", "W.in_features"),
        ("W = (i for i in [4])", "next(W)"),
        ("class C(list): pass\nW = C([4])", "W[0]"),
        ("class C(nn.Linear): pass\nW = C(4, 4)", "W.in_features"),
        ("W = np.array([4, None])", "W[0]"),
        ("exec('def h(): return 4')", "h()"),
        ("class C: pass\nW = C()\nW.f = open('/dev/null')", "[W, 4][1]"),
    ],
)
def test_what_cannot_be_identified_is_refused(cells, before, use):
    cells.run(before)
    cells.run(USES.format(width=use, settings=""))
    with pytest.raises(
        UserError, match=r"model 'mine': it refers to .*; move the part to a file \(%%writefile"
    ):
        identify(read_spec(RUN))


def test_a_module_beside_the_notebook_is_in_its_version(cells, tmp_path, monkeypatch):
    """Also one that it imports in turn."""
    monkeypatch.syspath_prepend(tmp_path)
    names = []
    for value in (4, 5):
        (tmp_path / "inner_part.py").write_text(f"W = {value}\ndef h(): return W\n")
        (tmp_path / "outer_part.py").write_text("import inner_part\ndef h(): return inner_part.h()\n")
        for name in ("inner_part", "outer_part"):
            sys.modules.pop(name, None)
        cells.run("import outer_part")
        cells.run(USES.format(width="outer_part.h()", settings=""))
        names.append(identify(read_spec(RUN)))
    assert names[0] != names[1]


def test_a_file_takes_the_place_of_cells(cells, tmp_path):
    """The remedy that messages name: parts are replaced by those of the file, and can run in workers."""
    path = tmp_path / "moved.py"
    path.write_text(IMPORTS + NET + MODEL + ALGORITHM + METRIC + READER + PARTITION + CODEC)
    before = identify(read_spec(RUN))
    harness.load_plugin(path)
    assert identify(read_spec(RUN)) != before
    own = versions(read_spec(RUN).model_dump(mode="json"))["plugins"]
    assert set(own) == {"algorithm", "data", "partition", "model", "compression"}
    assert all(version.startswith("sha256:") for version in own.values())
    notebook.require_files([{"algorithm": "mine_too", "model": "mine"}])


def test_a_file_that_raises_leaves_the_cells_parts(cells, tmp_path):
    path = tmp_path / "broken.py"
    path.write_text(IMPORTS + NET + MODEL + CODEC + "1 / 0\n")
    before = MODELS["mine"], identify(read_spec(RUN))
    with pytest.raises(UserError, match="ZeroDivisionError"):
        harness.load_plugin(path)
    assert (MODELS["mine"], identify(read_spec(RUN))) == before


def test_a_version_is_the_same_in_another_process(tmp_path):
    """Also where sets and dictionaries are hashed otherwise."""
    path = tmp_path / "script.py"
    uses = USES.format(width="max(W[0]) + len({'a', 'b'})", settings="")
    ends = "from harness.config import notebook\nprint(notebook.version('model', 'mine'))\n"
    ends += "print(notebook.version('algorithm', 'mine_too'))\n"
    path.write_text(IMPORTS + BESIDE + "W = ({1, 'x', None} and {1, 5},)\n" + uses + ALGORITHM + ends)
    said = []
    for seed in ("1", "2"):
        there = {**os.environ, "PYTHONHASHSEED": seed}
        said.append(subprocess.check_output([sys.executable, path], env=there, text=True))
    assert said[0] == said[1] and said[0].count("source:") == 2
