"""A command imports what it needs, and no more: torch alone takes longer than most commands."""

import importlib
import json
import os
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path
from typing import get_args

import pytest

from harness.api.making import run
from harness.cli import options, parser
from harness.cli.commands import LISTS as PRINTED
from harness.config.lists import LISTS
from harness.config.run import RunSpec

LARGE = {"torch", "pandas", "numpy", "scipy", "matplotlib", "pydantic", "algorithms"}
PLUGIN = str(Path(__file__).parents[4] / "docs" / "examples" / "plugin.py")


def last_line(script, *arguments, **variables):
    """Return the last line that a script prints in a process of its own."""
    command = [sys.executable, "-c", script, *arguments]
    done = subprocess.run(
        command, capture_output=True, text=True, check=True, env={**os.environ, **variables}
    )
    return done.stdout.splitlines()[-1]


def imported(*lines):
    """Return the large parts that commands import."""
    script = (
        "import sys\n"
        "from harness.cli.parser import main\n"
        "for line in sys.argv[1:]:\n"
        "    try:\n        main(line.split())\n    except SystemExit:\n        pass\n"
        f"print(*sorted({LARGE!r} & set(sys.modules)))"
    )
    return set(last_line(script, *lines).split())


def test_what_needs_no_arithmetic_starts_at_once():
    """One after the other in one process: what a later one imports, an earlier one has not."""
    lines = ["--help", "--version", "run --help", "report --help", "leaderbord results"]
    assert imported(*lines) == set()


def test_versions_are_those_installed(capsys):
    with pytest.raises(SystemExit) as ended:
        parser.main(["--version"])
    assert ended.value.code == 0
    printed = capsys.readouterr().out
    assert printed.startswith(
        f"fedfrontier {version('fedfrontier')} (Python {sys.version.split()[0]}, torch "
    )
    assert f"opacus {version('opacus')}" in printed


@pytest.mark.slow
def test_the_search_for_imports_finds_them():
    assert "pydantic" in imported("list suites")


@pytest.mark.slow
def test_a_data_set_of_a_plugin_is_listed():
    command = [sys.executable, "-m", "harness", "list", "data", "--json", "--plugin", PLUGIN]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    (row,) = [row for row in json.loads(done.stdout) if row["name"] == "wine"]
    assert row["available"] and row["reason"] == "inside scikit-learn"


@pytest.mark.slow
def test_neither_a_command_nor_a_recording_imports_the_compiler():
    """It takes two seconds. Operations on torch's meta device import it, and sympy."""
    late = {"torch._dynamo", "torch._inductor", "sympy", "scipy.stats", "scipy.optimize"}
    script = (
        "import sys, torch\n"
        "from harness.cli.parser import main\n"
        "from harness.core.execution.simplify import simplified\n"
        "from harness.core.execution.tracing import record\n"
        "main(['plan', '--data', 'breast-cancer', '--algorithm', 'fedavg', '--rounds', '2'])\n"
        "exp = torch.func.vmap(torch.exp)\n"
        "fn = lambda x: torch.autograd.grad(exp(z := x.detach().requires_grad_()).sum(), z)\n"
        "record(fn, (torch.ones(2, 3),))\n"
        "simplified(record(lambda x: (x.mT.contiguous().unbind(-1)[0] * 2,), (torch.ones(2, 3),)))\n"
        f"print(*sorted({late | {'matplotlib', 'opacus', 'sklearn'}} & set(sys.modules)))"
    )
    assert last_line(script) == ""


def test_lists_have_rows_in_a_process_of_their_own():
    """What registers ours has to be imported by the lists, not by something that other commands import."""
    script = (
        "import json\n"
        "from harness.config.lists import LISTS\n"
        "print(json.dumps([what for what in LISTS if not LISTS[what]()]))"
    )
    assert json.loads(last_line(script)) == []


def commands():
    """Return every command with the module and function that carry it out."""
    (found,) = (action for action in parser.parser()._actions if action.choices and action.dest == "command")
    return {name: command.get_default("do") for name, command in found.choices.items()}


@pytest.mark.parametrize("name", commands())
def test_every_command_is_a_function(name):
    module, function = commands()[name]
    assert callable(getattr(importlib.import_module(f"harness.cli.{module}"), function))


def test_the_precisions_are_those_of_a_run():
    """The grammar repeats them, as a run's fields take seconds to import."""
    assert get_args(get_args(RunSpec.model_fields["precision"].annotation)[0]) == options.PRECISIONS


def test_what_is_listed_is_what_can_be_listed():
    assert {*LISTS, "data"} == set(PRINTED)


def first_with_torch(lines):
    """Carry out commands in a process of its own; return the first after which torch is imported, if any."""
    script = (
        "import json, sys\n"
        "from harness.cli.parser import main\n"
        "def torch(line):\n"
        "    assert main(line.split()) == 0, line\n"
        "    return 'torch' in sys.modules\n"
        "print(json.dumps(next(filter(torch, json.loads(sys.argv[1])), None)))"
    )
    return json.loads(last_line(script, json.dumps(lines)))


def test_what_lists_parts_starts_without_torch():
    """Except data, as whoever looks for them imports what reads them."""
    assert first_with_torch([f"list {what}" for what in PRINTED if what != "data"]) is None
    assert first_with_torch(["list codecs", "list data", "list models"]) == "list data"


@pytest.mark.slow
def test_what_reads_results_of_our_parts_starts_without_torch(tmp_path):
    spec = {
        "data": "breast-cancer",
        "partition": {"kind": "iid", "clients": 3},
        "model": "logistic",
        "rounds": 2,
    }
    private = {"placement": "central", "epsilon": 32, "clip": 1.0}
    for algorithm, privacy in (("fedavg", None), ("scaffold", private)):
        run({**spec, "algorithm": algorithm, "privacy": privacy}, tmp_path / "results")
    commands = (
        *("status DIR", "leaderboard DIR", "recommend DIR --where accuracy>=0.1", "verify DIR"),
        *("report DIR", "export DIR --csv DIR.csv", "archive DIR DIR.tar.gz", "completion bash"),
        "recommend --clients 300 --samples 150 --epsilon 2 --pilot DIR.yaml",
        "epsilon --noise-multiplier 1 --rounds 10 --clip 1",
    )
    assert first_with_torch([line.replace("DIR", str(tmp_path / "results")) for line in commands]) is None


@pytest.mark.slow
@pytest.mark.parametrize(
    "line",
    [
        "plan --data breast-cancer --algorithm fedavg --untimed",
        "check fedavg",
        "data draw FILE.svg --data breast-cancer",
    ],
)
def test_what_computes_takes_one_thread(line, tmp_path):
    script = (
        "import sys\n"
        "from harness.cli.parser import main\n"
        "assert main(sys.argv[1:]) == 0\n"
        "import torch\n"
        "print(torch.get_num_threads())"
    )
    arguments = line.replace("FILE", str(tmp_path / "parts")).split()
    assert last_line(script, *arguments, OMP_NUM_THREADS="2") == "1"
