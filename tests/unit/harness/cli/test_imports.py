"""A command imports what it needs, and no more: torch alone takes longer than most commands."""

import importlib
import json
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path
from typing import get_args

import pytest

from harness.cli import options, parser
from harness.cli.commands import LISTS as PRINTED
from harness.config.lists import LISTS
from harness.config.run import RunSpec

LARGE = {"torch", "pandas", "numpy", "scipy", "matplotlib", "pydantic", "algorithms"}
PLUGIN = str(Path(__file__).parents[4] / "docs" / "examples" / "plugin.py")


def last_line(script, *arguments):
    """Return the last line that a script prints in a process of its own."""
    command = [sys.executable, "-c", script, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return done.stdout.splitlines()[-1]


def imported(line):
    """Return the large parts that a command imports."""
    script = (
        "import sys\n"
        "from harness.cli.parser import main\n"
        "try:\n    main(sys.argv[1:])\nexcept SystemExit:\n    pass\n"
        f"print(*sorted({LARGE!r} & set(sys.modules)))"
    )
    return set(last_line(script, *line.split()).split())


@pytest.mark.parametrize(
    "line",
    [
        "--help",
        "--version",
        "run --help",
        "report --help",
        "leaderbord results",
    ],
)
def test_what_needs_no_arithmetic_starts_at_once(line):
    assert imported(line) == set()


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
    assert "numpy" in imported("epsilon --help")


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
