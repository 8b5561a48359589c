"""Code from outside the repository: what a plugin brings works as our own, and what is wrong with it is said."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

import harness
from harness.cli.parser import main
from harness.config import plugins
from harness.config.run import read_spec
from harness.core.algorithm import ALGORITHMS
from harness.core.errors import UserError
from harness.core.registry import PLUGGED
from harness.metrics import METRICS, RECALLED
from harness.simulation.build import identify
from harness.testing.conformance import check
from harness.testing.conformance_releases import RELEASE_CHECKS
from tests.support.written import written

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "docs" / "examples" / "plugin.py"
RUN = {
    "data": "wine",
    "partition": {"kind": "iid", "clients": 3},
    "model": "logistic",
    "algorithm": "local_momentum",
    "rounds": 2,
    "eval_every": 1,
}
PARTITION = """
from dataclasses import dataclass
from typing import ClassVar
import numpy as np
from datasets.partition import Partition, partition

@partition
@dataclass(frozen=True)
class Halves(Partition):
    '''The first client holds half of the samples, the others share the rest.'''
    kind: ClassVar[str] = "halves"
    share: float = 0.5

    def owners(self, samples, clients, rng):
        owner = 1 + np.arange(len(samples.labels)) % (clients - 1)
        owner[: int(self.share * len(owner))] = 0
        return rng.permutation(owner)
"""
MODEL = """
import torch
from torch import nn
from harness.models import model

class Gated(nn.Module):
    def __init__(self, inputs, outputs, hidden):
        super().__init__()
        self.first, self.norm = nn.Linear(inputs, hidden), nn.LayerNorm(hidden)
        self.gate = nn.Parameter(torch.randn(hidden))
        self.last = nn.Linear(hidden, outputs)

    def forward(self, x):
        return self.last(self.norm(torch.relu(self.first(x))) * self.gate)

@model("tables")
def gated(shape, outputs, hidden=6):
    '''Hidden units with gates.'''
    return Gated(shape[0], outputs, hidden)
"""
ATTENTION = """
from torch import nn
from harness.models import model

class Attentive(nn.Module):
    def __init__(self, inputs, outputs):
        super().__init__()
        self.first, self.norm = nn.Linear(inputs, 37), nn.LayerNorm(37)
        self.each, self.last = nn.Linear(1, 8), nn.Linear(8, outputs)
        self.attention = nn.MultiheadAttention(8, 2, batch_first=True)

    def forward(self, x):
        each = self.each(self.norm(self.first(x)).tanh().unsqueeze(-1))
        return self.last((each + self.attention(each, each, each)[0]).tanh().mean(1))

@model("tables")
def attentive(shape, outputs):
    return Attentive(shape[0], outputs)
"""
CODEC = """
import numpy as np
import torch
from compression.own_codec import OwnCodec, codec

@codec
class Halves(OwnCodec):
    '''Half precision.'''
    name = "halves"

    def encode(self, values, generator):
        return values.clamp(-65504, 65504).half().numpy().tobytes()

    def decode(self, data, count):
        return torch.from_numpy(np.frombuffer(data, np.float16).copy())

    def size(self, count):
        return 2 * count
"""
METRIC = """
from harness.metrics import metric

@metric("min", ".4f", "share")
def errors(p):
    '''Share of the samples that are classified wrongly.'''
    return float(1 - p.hit.mean())
"""

pytestmark = pytest.mark.usefixtures("registries", "blank_pictures")


def write(path, content):
    path.write_text(content if isinstance(content, str) else yaml.safe_dump(content))
    return str(path)


def forget():
    """Be as a process that has loaded no plugin, and read no results."""
    for kind, name in [*plugins.PLUGGED]:
        del plugins.REGISTRIES[kind][name]
    for things in (plugins.PLUGGED, plugins._files, RECALLED):
        things.clear()


def test_the_example_is_short_and_no_check_warns_of_it():
    """That it passes the others is what `docs/extending.md` runs."""
    assert len(EXAMPLE.read_text().splitlines()) < 120
    plugins.load([EXAMPLE])
    rows = check(ALGORITHMS["local_momentum"], RELEASE_CHECKS)
    assert {row["result"] for row in rows} == {"passed"}


def test_algorithm_metric_and_data_of_a_plugin_go_into_one_run(tmp_path, capsys):
    run = write(tmp_path / "run.yaml", RUN)
    out = str(tmp_path / "out")
    assert main(["run", "--spec", run, "--plugin", str(EXAMPLE), "--out", out, "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert 0 <= told["metrics"]["median_client"] <= 1
    kept = json.loads((tmp_path / "out" / "runs" / told["id"] / "spec.json").read_text())
    version = plugins.loaded()[-1].version
    assert kept["versions"]["plugins"] == {"algorithm": version, "data": version} and version.startswith(
        "sha256:"
    )
    assert main(["leaderboard", out, "--by", "median_client", "--plugin", str(EXAMPLE), "--json"]) == 0
    (row,) = json.loads(capsys.readouterr().out)
    assert row["median_client_mean"] == pytest.approx(told["metrics"]["median_client"])
    forget()
    for option in (["--by", "median_client"], ["--target", "median_client=0.5"]):
        for command in ("leaderboard", "report"):
            assert main([command, out, *option]) == 2
            assert "metric 'median_client' belongs to a plugin" in (said := capsys.readouterr().err)
            assert "give --plugin FILE.py" in said
    assert main(["leaderboard", out, "--by", "median_clients"]) == 2
    assert "unknown measure to rank by 'median_clients'" in capsys.readouterr().err


def test_a_partition_of_a_plugin_deals_by_its_own_settings(tmp_path, capsys):
    mine = write(tmp_path / "mine.py", PARTITION)
    assert main(["list", "partitions", "--plugin", mine, "--json"]) == 0
    assert "halves" in {row["name"] for row in json.loads(capsys.readouterr().out)}
    deal = RUN | {"data": "breast-cancer", "algorithm": "fedavg"}
    deal["partition"] = {"kind": "halves", "clients": 5, "share": 0.8}
    run = write(tmp_path / "run.yaml", deal)
    assert main(["run", "--spec", run, "--plugin", mine, "--out", str(tmp_path / "out"), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["clients"] == 5


def test_worker_processes_load_plugins(tmp_path):
    suite = {"suite": "ours", "base": RUN, "sweep": {"seed": [0, 1], "algorithm.momentum": [0.5, 0.9]}}
    path = write(tmp_path / "ours.yaml", suite)
    given = ["suite", path, "--plugin", str(EXAMPLE), "--out"]
    assert main([*given, str(tmp_path / "one"), "--jobs", "1"]) == 0
    assert main([*given, str(tmp_path / "two"), "--jobs", "2"]) == 0
    assert len(written(tmp_path / "one")) == 4 * 3
    assert written(tmp_path / "one") == written(tmp_path / "two")


def test_a_worker_runs_the_plugin_bytes_that_were_loaded(tmp_path):
    mine = tmp_path / "mine.py"
    write(mine, METRIC)
    plugins.load([mine])
    (given,) = [plugin for plugin in plugins.loaded() if plugin.path == mine.resolve()]
    write(mine, "raise SystemExit")
    del METRICS["errors"], plugins._files[given.path]
    plugins.restore([given])
    assert "errors" in METRICS


def test_a_changed_plugin_makes_another_run(tmp_path):
    def named(content):
        forget()
        plugins.load([write(tmp_path / "mine.py", content)])
        return identify(read_spec(RUN)), identify(read_spec(RUN | {"data": "breast-cancer"}))

    source = EXAMPLE.read_text()
    first, again, changed = (
        named(source),
        named(source),
        named(source.replace("momentum: float", "momentum : float")),
    )
    assert first == again
    assert first[0] != changed[0] and first[1] != changed[1]


def test_runs_of_our_own_code_keep_their_names_beside_a_plugin():
    ours = read_spec(RUN | {"data": "breast-cancer", "algorithm": "fedavg"})
    before = identify(ours)
    plugins.load([EXAMPLE])
    assert identify(ours) == before


def test_a_changed_model_makes_another_run(tmp_path, capsys):
    """ReLU becomes tanh; both are on record, also for methods that divide the model."""
    for algorithm in ("fedavg", "fedrep"):
        ids = set()
        for source in (MODEL, MODEL.replace("torch.relu", "torch.tanh")):
            forget()
            mine, out = write(tmp_path / "mine.py", source), tmp_path / "out"
            run = RUN | {"data": "breast-cancer", "algorithm": algorithm, "model": "gated", "rounds": 3}
            command = ["run", "--spec", write(tmp_path / "run.yaml", run), "--out", str(out), "--json"]
            assert main([*command, "--plugin", mine]) == 0
            told = json.loads(capsys.readouterr().out)
            kept = json.loads((out / "runs" / told["id"] / "spec.json").read_text())
            assert kept["versions"]["plugins"] == {"model": plugins.loaded()[-1].version}
            assert told["metrics"]["accuracy"] > 0.5
            ids.add(told["id"])
        assert len(ids) == 2
    assert main(["leaderboard", str(out), "--json"]) == 0
    assert len(json.loads(capsys.readouterr().out)) == 4


def test_a_codec_of_a_plugin_carries_the_messages_of_a_run(tmp_path, capsys):
    """Its bytes and results are those of ours; a changed file makes another run."""
    run = RUN | {"data": "breast-cancer", "algorithm": "fedavg"}
    told = {}
    for codec, source in {"float16": "", "halves": CODEC, "again": CODEC.replace("65504", "65503")}.items():
        forget()
        mine = ["--plugin", write(tmp_path / "mine.py", source)] if source else []
        name = codec if not source else "halves"
        spec = write(tmp_path / "run.yaml", run | {"compression": {"codec": name, "beta": 0.5}})
        assert main(["plan", "--spec", spec, "--json", *mine]) == 0
        (planned,) = json.loads(capsys.readouterr().out)
        assert main(["run", "--spec", spec, "--out", str(tmp_path / "out"), "--json", *mine]) == 0
        told[codec] = json.loads(capsys.readouterr().out)
        assert planned["bytes_up"] <= told[codec]["bytes_up"]
        kept = json.loads((tmp_path / "out" / "runs" / told[codec]["id"] / "spec.json").read_text())
        plugged = {"compression": plugins.loaded()[-1].version} if source else None
        assert kept["versions"].get("plugins") == plugged
    assert told["float16"]["metrics"] == told["halves"]["metrics"]
    assert told["float16"]["bytes_up"] == told["halves"]["bytes_up"]
    assert len({one["id"] for one in told.values()}) == 3
    forget()
    assert main(["leaderboard", str(tmp_path / "out"), "--json"]) == 0
    assert len(json.loads(capsys.readouterr().out)) == 3


@pytest.mark.parametrize(("fixed", "code"), [(True, 0), (False, 2)])
def test_lengths_of_a_codec_reveal_nothing_under_central_noise(tmp_path, capsys, fixed, code):
    """They would be written down, and the noise is added only to the average."""
    mine = write(
        tmp_path / "mine.py", CODEC.replace("    def encode", f"    fixed = {fixed}\n\n    def encode")
    )
    private = {"placement": "central", "epsilon": 8, "clip": 1}
    run = RUN | {"data": "breast-cancer", "algorithm": "fedavg", "privacy": private}
    spec = write(tmp_path / "run.yaml", run | {"compression": {"codec": "halves"}})
    assert main(["run", "--spec", spec, "--out", str(tmp_path / "out"), "--plugin", mine]) == code
    said = " ".join(capsys.readouterr().err.split())
    assert code == 0 or "codec halves follow from the data alone. Use a codec of fixed length" in said


@pytest.mark.slow
def test_runs_of_a_plugins_model_are_the_same_in_any_company(tmp_path):
    """The order of a mean's sums depends on the shape of the tensor, which in a stack is another."""
    mine = write(tmp_path / "mine.py", ATTENTION)
    base = RUN | {"data": "breast-cancer", "algorithm": "fedavg", "model": "attentive"}
    base["partition"] = {"kind": "dirichlet", "alpha": 1.0, "clients": 7}
    suite = {"suite": "ours", "base": base, "sweep": {"seed": [0, 1], "algorithm.lr": [0.1, 0.2]}}
    path = write(tmp_path / "ours.yaml", suite)
    for stack in ("auto", "off"):
        out = str(tmp_path / stack)
        assert main(["suite", path, "--plugin", mine, "--jobs", "1", "--stack", stack, "--out", out]) == 0
    assert len(written(tmp_path / "auto")) == 4 * 3
    assert written(tmp_path / "auto") == written(tmp_path / "off")


def test_what_a_model_lacks_is_refused_before_writing(tmp_path, capsys):
    mine = write(tmp_path / "mine.py", MODEL.replace("nn.LayerNorm", "nn.BatchNorm1d"))
    run = RUN | {"data": "breast-cancer", "algorithm": "fedavg", "model": "gated"}
    command = ["run", "--spec", write(tmp_path / "run.yaml", run), "--out", str(tmp_path / "out")]
    assert main([*command, "--plugin", mine]) == 2
    said = " ".join(capsys.readouterr().err.split())
    assert said.startswith("error: model 'gated': BatchNorm1d 'norm'") and "use GroupNorm" in said
    assert not (tmp_path / "out").exists()


def test_an_interrupted_run_resumes_only_with_its_plugin(tmp_path, capsys):
    class Stop(harness.Callback):
        def on_round(self, run, round, evaluation):
            if round == 3:
                raise KeyboardInterrupt

    long = RUN | {"rounds": 6}
    plugins.load([EXAMPLE])
    harness.run(long, tmp_path / "straight")
    with pytest.raises(KeyboardInterrupt):
        harness.run(long, tmp_path / "out", callbacks=[Stop()])
    assert len(list((tmp_path / "out").glob("runs/*/checkpoint.pt"))) == 1
    forget()
    command = ["run", "--spec", write(tmp_path / "run.yaml", long), "--out", str(tmp_path / "out")]
    assert main(command) == 2
    assert "unknown" in capsys.readouterr().err
    assert main([*command, "--plugin", str(EXAMPLE)]) == 0
    assert written(tmp_path / "out") == written(tmp_path / "straight")


def test_results_of_a_plugin_are_read_without_it(tmp_path, capsys):
    """Status, tables, pages and exports read records, not classes; a suite keeps what it ranks by."""
    out, report = str(tmp_path / "out"), {"by": "median_client", "target": {"median_client": 0.1}}
    suite = {
        "suite": "ours",
        "base": RUN,
        "sweep": {"seed": [0, 1], "algorithm.lr": [1e-6, 0.1]},
        "report": report,
    }
    path = write(tmp_path / "ours.yaml", suite)
    assert main(["suite", path, "--jobs", "1", "--plugin", str(EXAMPLE), "--out", out]) == 0
    board = ["leaderboard", out, "--suite", "ours", "--json"]
    capsys.readouterr()
    assert main(board) == 0
    with_it = capsys.readouterr().out
    assert [(row["rank"], row["model_for"]) for row in json.loads(with_it)] == [
        (1, "everybody"),
        (2, "everybody"),
    ]
    forget()
    for command in (["status"], ["leaderboard"], ["report"], ["report", "--suite", "ours"], ["export"]):
        extra = ["--csv", str(tmp_path / "t.csv")] if command == ["export"] else []
        assert main([command[0], out, *command[1:], *extra]) == 0
    assert "median_client" in (tmp_path / "t.csv").read_text()
    capsys.readouterr()
    assert main(board) == 0
    assert capsys.readouterr().out == with_it
    assert list(harness.leaderboard(out, "ours")["ranked_by"]) == ["median_client"] * 2
    bold = ["--columns", "algorithm,accuracy", "--bold-best", "--markdown", str(tmp_path / "t.md")]
    assert main(["leaderboard", out, "--suite", "ours", *bold]) == 0
    assert "| **" in (tmp_path / "t.md").read_text()


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (None, "no such file"),
        ("1 / 0", "line 1: ZeroDivisionError: division by zero"),
        ("import sys\nsys.exit(0)", "line 2: SystemExit: 0"),
        ("def f(:", "SyntaxError: invalid syntax"),
        ("import no_such_library_at_all", "line 1: ModuleNotFoundError: No module named"),
        ("x = 1", "registers nothing; put @register above an algorithm"),
        (EXAMPLE.read_text().replace("local_momentum", "fedavg"), "two algorithms are called 'fedavg'"),
        (METRIC.replace("errors", "accuracy"), "metric 'accuracy' is registered twice"),
        (METRIC.replace('"min"', '"less"'), "metric errors: better is 'max' or 'min', given 'less'"),
        (METRIC.replace('".4f"', '"4ff"'), "metric errors: a format of numbers, as '.4f', given '4ff'"),
        (PARTITION.replace('"halves"', '"iid"'), "two partitions are called 'iid'"),
        (PARTITION.replace('"halves"', '"columns"'), "two partitions are called 'columns'"),
        (EXAMPLE.read_text().replace('"wine"', '"adult"'), "two data sets are called 'adult'"),
        (
            EXAMPLE.read_text().replace('"wine"', '"csv:x"'),
            "use letters, digits, '-' and '_'",
        ),
        (
            EXAMPLE.read_text().replace("read_wine()", "read_wine(color)"),
            "has an option 'color'; allowed: sensitive",
        ),
    ],
)
def test_errors_of_a_plugin_are_one_line_and_leave_no_trace(tmp_path, capsys, content, says):
    mine, before = tmp_path / "mine.py", plugins._parts().keys()
    if content is not None:
        write(mine, content)
    assert main(["list", "algorithms", "--plugin", str(mine)]) == 2
    said = " ".join(capsys.readouterr().err.split())
    assert said.startswith("error: plugin") and "mine.py" in said and says in said
    assert plugins._parts().keys() == before and not plugins.PLUGGED


@pytest.mark.parametrize(
    ("body", "says"),
    [
        ("raise ValueError('no such\\nthing')", "metric errors: ValueError: no such thing"),
        ("return 'low'", "metric errors: TypeError: must be real number, not str"),
    ],
)
def test_a_metric_that_cannot_be_computed_is_named(tmp_path, capsys, body, says):
    mine = write(tmp_path / "mine.py", METRIC.replace("return float(1 - p.hit.mean())", body))
    asked = [
        "--algorithm",
        "fedavg",
        "--data",
        "breast-cancer",
        "--rounds",
        "1",
        "--out",
        str(tmp_path / "r"),
    ]
    assert main(["run", *asked, "--plugin", mine]) == 1
    (line,) = [line for line in capsys.readouterr().err.splitlines() if "failed" in line]
    assert says in line


def test_a_plugin_is_a_python_file(tmp_path, capsys):
    assert main(["list", "data", "--plugin", write(tmp_path / "mine.txt", METRIC)]) == 2
    assert "its name must end in .py" in " ".join(capsys.readouterr().err.split())
    assert main(["list", "data", "--plugin", str(tmp_path)]) == 2
    assert "cannot be read" in " ".join(capsys.readouterr().err.split())


def test_a_file_that_has_changed_takes_its_own_place(tmp_path):
    """As in a notebook: `%%writefile` and `load_plugin` again."""
    mine = tmp_path / "mine.py"
    write(mine, METRIC)
    plugins.load([mine, mine])
    (name,) = [name for kind, name in PLUGGED if kind == "metric"]
    first, version = METRICS[name], PLUGGED["metric", name]
    write(mine, METRIC + "1 / 0\n")
    with pytest.raises(UserError, match="ZeroDivisionError"):
        plugins.load([mine])
    assert METRICS[name] is first and PLUGGED["metric", name] == version
    write(mine, METRIC.replace(f"def {name}(", "def another("))
    plugins.load([mine])
    assert name not in METRICS and "another" in METRICS
    assert PLUGGED["metric", "another"] != version and ("metric", name) not in PLUGGED


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        (
            "bunch = load_wine()",
            "raise OSError('the disk is gone')",
            "cannot be read: OSError: the disk is gone",
        ),
        ("np.float32", "np.float64", "x must be float32"),
        ("bunch.target_names)", "bunch.target_names[:2])", "2 classes, but labels from 0 to 2"),
    ],
)
def test_a_wrong_reader_is_refused_before_writing(tmp_path, capsys, old, new, says):
    mine = write(tmp_path / "mine.py", EXAMPLE.read_text().replace('"wine"', '"bad-wine"').replace(old, new))
    run = write(tmp_path / "run.yaml", RUN | {"data": "bad-wine"})
    assert main(["run", "--spec", run, "--plugin", mine, "--out", str(tmp_path / "out")]) == 2
    said = " ".join(capsys.readouterr().err.split())
    assert said.startswith("error: data set 'bad-wine'") and says in said
    assert not (tmp_path / "out").exists()


def install(folder, version, module):
    """Make a package that brings plugins, as pip would leave it."""
    info = folder / f"ours-{version}.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: ours\nVersion: {version}\n")
    (info / "entry_points.txt").write_text("[fedfrontier.plugins]\nall = our_plugins\n")
    (folder / "our_plugins.py").write_text(module)


def test_an_installed_package_is_a_plugin_whose_version_counts(tmp_path):
    names = []
    for version in ("1.0", "1.1"):
        folder = tmp_path / version
        folder.mkdir()
        install(folder, version, "\n".join([EXAMPLE.read_text(), METRIC, PARTITION, MODEL, CODEC]))
        whole = RUN | {"model": "gated", "compression": {"codec": "halves"}}
        whole["partition"] = {"kind": "halves", "clients": 3}
        run = write(folder / "run.yaml", whole)
        command = [sys.executable, "-m", "harness", "run", "--spec", run, "--out", str(folder / "out")]
        path = os.pathsep.join([str(ROOT), str(folder)])
        made = subprocess.run(command, cwd=folder, env=os.environ | {"PYTHONPATH": path}, capture_output=True)
        assert made.returncode == 0, made.stderr
        (spec,) = (folder / "out").glob("runs/*/spec.json")
        sections = ("algorithm", "data", "partition", "model", "compression")
        named = json.loads(spec.read_text())["versions"]["plugins"]
        assert named == dict.fromkeys(sections, f"ours {version}")
        done = json.loads((spec.parent / "done.json").read_text())
        assert {"errors", "median_client"} <= done["metrics"].keys()
        names.append(spec.parent.name)
    assert names[0] != names[1]


def test_a_broken_package_is_named(tmp_path, monkeypatch, capsys):
    install(tmp_path, "2.0", "import nowhere_to_be_found")
    monkeypatch.syspath_prepend(str(tmp_path))
    assert main(["list", "algorithms"]) == 2
    assert "error: plugin ours 2.0: ModuleNotFoundError" in " ".join(capsys.readouterr().err.split())
