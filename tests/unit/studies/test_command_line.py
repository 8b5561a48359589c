"""The command line of the studies: examples that parse, and a package that is not installed."""

import shlex
import tomllib
from pathlib import Path

import pytest
from setuptools import find_packages

from harness.core.errors import UserError
from studies.__main__ import PROGRAM, main, parser

ROOT = Path(__file__).parents[3]


@pytest.mark.parametrize(
    "command", ["papers", "results", "systems", "references", "board submit", "board check", "board build"]
)
def test_help_ends_with_examples_that_parse(command, capsys):
    with pytest.raises(SystemExit):
        main([*command.split(), "--help"])
    examples = capsys.readouterr().out.split("examples:\n")[1].splitlines()
    assert examples
    for example in examples:
        words = shlex.split(example.strip().removeprefix(PROGRAM))
        assert words[: len(command.split())] == command.split()
        parser().parse_args(words)


def test_an_empty_path_is_refused():
    with pytest.raises(UserError, match="a path is needed, given ''"):
        parser().parse_args(["board", "build", "submissions", "--out", ""])


def test_an_unknown_command_is_refused_with_the_nearest(capsys):
    assert main(["boards"]) == 2
    assert "Did you mean 'board'?" in capsys.readouterr().err


def test_studies_are_not_installed():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    installed = find_packages(ROOT, **project["tool"]["setuptools"]["packages"]["find"])
    assert "harness.report" in installed and not any(name.startswith("studies") for name in installed)
