"""What cannot be parsed is refused in one line, with the nearest valid name."""

import argparse
import logging
from types import SimpleNamespace

import pytest

from harness.cli import parser as parser_module
from harness.cli.grammar import path
from harness.cli.parser import GROUPS, main, parser
from harness.core.errors import UserError


def refusal(arguments, capsys):
    """Return the message of a refused command line."""
    assert main(arguments) == 2
    said = capsys.readouterr()
    assert said.out == "" and said.err.startswith("error: ") and said.err.count("\n") == 1
    return said.err


@pytest.mark.parametrize(
    ("line", "said"),
    [
        (
            "leaderbord results",
            "unknown command 'leaderbord'. Did you mean 'leaderboard'? Allowed: archive, ",
        ),
        ("describe csv:a.csv", "unknown command 'describe'. Did you mean 'data describe'?"),
        ("run --algoritm fedavg", "unknown option '--algoritm'. Did you mean '--algorithm'?"),
        ("run --algoritm=fedavg", "unknown option '--algoritm'. Did you mean '--algorithm'?"),
        ("leaderboard results --bye loss", "unknown option '--bye'. Did you mean '--by'?"),
        ("--verbse list models", "unknown option '--verbse'. Did you mean '--verbose'?"),
        ("list algorithm", "unknown argument 'algorithm'. Did you mean 'algorithms'?"),
        (
            "data ftech digits",
            "unknown command 'ftech'. Did you mean 'fetch'? Allowed: describe, draw, fetch, list.",
        ),
        ("run --precision float46", "unknown value of --precision 'float46'. Did you mean 'float64'?"),
        ("suite quickstart --executor process", "of --executor 'process'. Did you mean 'processes'?"),
        ("status results more", "unexpected argument 'more'; see python -m harness status --help"),
        (
            "run data=adult",
            "unexpected argument 'data=adult'. Did you mean '--set data=adult'? See python -m harness run --help",
        ),
        ("run mine.yaml", "unexpected argument 'mine.yaml'. Did you mean '--spec mine.yaml'? See"),
        ("list", "the following arguments are required: algorithms|codecs|data|"),
        ("leaderboard none", "no results folder none"),
        ("run --cell none.csv:0 --out out", "none.csv: No such file or directory"),
        ("status", "the following arguments are required: DIR; see python -m harness status --help"),
        (
            "run --rounds many",
            "argument --rounds: invalid int value: 'many'; see python -m harness run --help",
        ),
    ],
)
def test_arguments_that_are_none_name_the_nearest(line, said, capsys):
    assert said in refusal(line.split(), capsys)


def test_verbose_stands_before_the_command(monkeypatch, capsys):
    levels = []
    monkeypatch.setattr(logging, "basicConfig", lambda level, **options: levels.append(level))
    assert main(["--verbose", "list", "models", "--json"]) == 0
    assert main(["list", "models", "--json"]) == 0
    assert levels == [logging.INFO, logging.WARNING]
    capsys.readouterr()
    assert "unknown option '--verbose'" in refusal(["list", "models", "--verbose"], capsys)


def test_help_lists_every_command_once_in_a_group(capsys):
    (commands,) = (action for action in parser()._actions if isinstance(action, argparse._SubParsersAction))
    assert sorted(name for names in GROUPS.values() for name in names) == sorted(commands.choices)
    with pytest.raises(SystemExit):
        main(["--help"])
    lines = capsys.readouterr().out.splitlines()
    start = lines.index("  look:")
    assert lines[start - 1].split()[0] == "retry" and lines[start + 1].split()[0] == "leaderboard"


def test_options_with_numbers_have_help(capsys):
    with pytest.raises(SystemExit):
        main(["run", "--help"])
    text = " ".join(capsys.readouterr().out.split())
    assert "--rounds N communication rounds (default: 100)" in text
    assert "--eval-every N rounds between two evaluations (default: 10)" in text


@pytest.mark.parametrize(
    ("option", "said"),
    [
        ("{name: fedavg, lr: [1}", "is not valid YAML: line 1, column 22: expected ',' or ']', but got '}'"),
        ("{name: fedavg", "is not valid YAML: line 1, column 14: expected ',' or '}'"),
    ],
)
def test_yaml_that_is_none_is_repeated_once(option, said, capsys):
    told = refusal(["run", "--algorithm", option, "--data", "digits"], capsys)
    assert said in told and told.count("fedavg") == 1


def test_a_run_file_that_cannot_be_read_is_named_once(tmp_path, capsys):
    told = refusal(["run", "--spec", str(tmp_path)], capsys)
    assert "cannot be read: Is a directory" in told and told.count(tmp_path.name) == 1


def options_of_paths(parser, above=()):
    """Return command lines in which one path is empty."""
    for action in parser._actions:
        if isinstance(action.choices, dict):
            for name, inner in action.choices.items():
                yield from options_of_paths(inner, (*above, name))
        elif action.type is path:
            yield [*above, *action.option_strings[:1], ""]


def test_an_empty_path_is_refused():
    """It would be the current folder; scripts give it where a variable is not set."""
    lines = list(options_of_paths(parser()))
    assert ["run", "--out", ""] in lines and ["data", "draw", ""] in lines and len(lines) > 30
    for line in lines:
        with pytest.raises(UserError, match="a path is needed, given ''"):
            parser().parse_args(line)


@pytest.mark.parametrize(
    ("options", "steps"),
    [
        (["--jobs", "2"], ["server", "command"]),
        ([], ["server", "command"]),
        (["--jobs", "1"], ["command"]),
        (["--executor", "serial"], ["command"]),
    ],
)
def test_the_server_of_workers_starts_before_the_command_is_imported(options, steps, monkeypatch):
    """Both import torch, so side by side."""
    begun = []
    command = SimpleNamespace(suite_command=lambda given: 0)
    monkeypatch.setattr(parser_module, "cores", lambda: 2)
    monkeypatch.setattr(parser_module, "start_server", lambda: begun.append("server"))
    monkeypatch.setattr(parser_module, "import_module", lambda name: begun.append("command") or command)
    assert parser_module.main(["suite", "quickstart", *options]) == 0
    assert begun == steps
