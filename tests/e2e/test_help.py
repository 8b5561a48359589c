"""What helps at the command line: examples, completion, checks of the installation, what hides packages."""

import argparse
import io
import json
import logging
import os
import subprocess
import sys
from pathlib import Path

import pytest

from datasets.topology import Ring, TopologyError, mixing_matrix
from harness.cli import doctor
from harness.cli.examples import EXAMPLES
from harness.cli.parser import main, parser
from harness.cli.visible import Screen
from harness.core.errors import UserError
from harness.storage.files import Unwritable
from harness.storage.store import Store
from tests.e2e.test_docs_commands import Block

ROOT = Path(__file__).parents[2]


def commands():
    """Return the parsers of all commands by name."""
    top = parser()._subparsers._group_actions[0].choices
    inner = top["data"]._subparsers._group_actions[0].choices
    return {**top, **{f"data {name}": one for name, one in inner.items()}}


def test_every_command_has_examples_that_parse():
    assert EXAMPLES.keys() == {"", *commands()}
    for name, examples in EXAMPLES.items():
        for example in examples:
            line = example if example.startswith("eval") else f"python -m harness {example}"
            for _, arguments in Block("", line.split(">")[0] if " > " in line else line, False).commands:
                assert arguments[: len(name.split())] == name.split()
                parser().parse_args(arguments)


@pytest.mark.parametrize("command", ["", "recommend"])
def test_help_ends_with_examples_line_by_line(command, capsys):
    with pytest.raises(SystemExit):
        main([*command.split(), "--help"])
    lines = ["examples:", *(f"  python -m harness {example}" for example in EXAMPLES[command])]
    assert capsys.readouterr().out.rstrip().splitlines()[-len(lines) :] == lines


def test_every_option_says_what_it_is_and_its_default():
    for name, command in commands().items():
        for action in command._actions:
            if isinstance(action, argparse._SubParsersAction | argparse._HelpAction):
                continue
            assert action.help, f"{name} {action.dest} has no text"
            if action.default not in (None, False, [], argparse.SUPPRESS):
                assert "default: " in action.help, f"{name} {action.dest} does not say its default"


def test_workers_are_jobs():
    given = parser().parse_args(["suite", "quickstart", "--workers", "2"])
    assert given.jobs == 2


def test_help_lists_commands_by_what_they_are_for(capsys):
    with pytest.raises(SystemExit):
        main(["--help"])
    lines = capsys.readouterr().out.splitlines()
    groups = [
        line.strip() for line in lines if line.startswith("  ") and line.endswith(":") and line[2] != " "
    ]
    assert groups == ["run:", "look:", "privacy:", "share:", "set up:"]


def test_messages_go_to_standard_error_as_it_is_when_they_come(monkeypatch, capsys):
    """A progress display replaces it, and puts what is printed there above itself."""
    shown, screen = io.StringIO(), Screen()
    monkeypatch.setattr(sys, "stderr", shown)
    screen.handle(logging.LogRecord("x", logging.WARNING, "", 0, "Ulm is small", None, None))
    assert shown.getvalue() == "Ulm is small\n"


def test_bash_completes_commands_options_and_choices(tmp_path, capsys):
    assert main(["completion", "bash"]) == 0
    script = tmp_path / "complete.sh"
    script.write_text(capsys.readouterr().out)

    def completed(*words):
        line = f"COMP_WORDS=({' '.join(map(repr, words))}); COMP_CWORD={len(words) - 1}"
        code = (
            f'source {script}; {line}; _shtab_fedfrontier "" "${{COMP_WORDS[-1]}}"; echo "${{COMPREPLY[@]}}"'
        )
        told = subprocess.run(["bash", "-c", code], capture_output=True, text=True, check=True)
        return told.stdout.split()

    assert completed("fedfrontier", "lead") == ["leaderboard"]
    assert completed("fedfrontier", "suite", "--limit") == ["--limit-hours"]
    assert {"bash", "zsh"} <= set(completed("fedfrontier", "completion", ""))


def run(arguments, folder, **options):
    return subprocess.run(
        [sys.executable, "-m", "harness", *arguments],
        cwd=folder,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=120,
        **options,
    )


@pytest.mark.slow
def test_a_file_that_hides_a_package_is_named(tmp_path):
    (tmp_path / "privacy.py").write_text("mine = 1")
    told = run(["list", "suites"], tmp_path)
    assert told.returncode == 2 and told.stderr.startswith(
        f"error: {tmp_path / 'privacy.py'} hides the package"
    )
    assert "fedfrontier in place of python -m harness" in told.stderr and "Traceback" not in told.stderr


def test_the_doctor_tells_what_is_missing_and_the_fix(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(doctor, "find_spec", lambda name: None)
    monkeypatch.setattr(doctor.shutil, "which", lambda name: None)
    assert main(["doctor", "--out", str(tmp_path / "out"), "--json"]) == 0
    found = {one["what"]: one for one in json.loads(capsys.readouterr().out)}
    assert found["ray"]["state"] == "missing" and found["ray"]["fix"] == "pip install 'fedfrontier[ray]'"
    assert found["browser"]["state"] == "missing" and found["packages"]["state"] == "ok"
    assert found["results"]["state"] == "ok" and not (tmp_path / "out").exists()
    assert main(["doctor", "--out", str(tmp_path / "out")]) == 0
    assert "pip install 'fedfrontier[ray]'" in capsys.readouterr().out


def test_the_doctor_finds_what_is_wrong(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(doctor, "shadowed", lambda: ["a file hides a package"])
    monkeypatch.setattr("fcntl.flock", lambda file, kind: None)
    assert main(["doctor", "--out", str(tmp_path), "--json"]) == 1
    wrong = {one["what"] for one in json.loads(capsys.readouterr().out) if one["state"] == "wrong"}
    assert wrong == {"packages", "results"}
    (tmp_path / "file").touch()
    assert {one.state for one in doctor.findings(tmp_path / "file" / "out")} >= {"wrong"}


@pytest.mark.slow
def test_commands_work_with_closed_output(tmp_path):
    for closed in (1, 2):
        told = run(["list", "suites"], tmp_path, preexec_fn=lambda closed=closed: os.close(closed))
        assert told.returncode == 0 and "Traceback" not in told.stderr + told.stdout


def test_absurd_numbers_are_refused_before_a_run(tmp_path, capsys):
    """They took all memory, all day, or the process."""
    data = ["--algorithm", "fedavg", "--data", "breast-cancer", "--out", str(tmp_path / "out")]
    clip = "privacy={placement: central, epsilon: 8, clip: 1e39}"
    for given, said in (
        (["--rounds", "1000000000000"], "less than or equal to 1000000"),
        (["--threads", "100000"], "--threads must be from 1 to 1,000"),
        (["--set", "algorithm.local_steps=9223372036854775808"], "local_steps must be at most 1,000,000"),
        (["--set", clip], "privacy.clip: at most 1e+15"),
        (["--model", "{name: mlp, hidden: [1000000000000]}"], "model 'mlp': cannot be built"),
        (["--model", "{name: mlp, hidden: [18446744073709551616]}"], "model 'mlp': cannot be built"),
    ):
        assert main(["run", *data, *given]) == 2
        assert said in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_links_in_a_results_folder_are_not_followed(tmp_path, capsys):
    """Neither a link in place of a suite's folder nor one in place of a claim leads to files elsewhere."""
    victim, root = tmp_path / "victim", tmp_path / "out"
    victim.mkdir()
    (victim / "curves.png").write_text("mine")
    store = Store(root).open()
    (root / "linked").symlink_to(victim)
    with pytest.raises(UserError, match="is a link"):
        store.write_suite("linked", {"suite": "linked", "cells": []})
    assert [path.name for path in victim.iterdir()] == ["curves.png"]
    folder = store.folder("abc")
    folder.path.mkdir(parents=True)
    (folder.path / "claim").symlink_to(tmp_path / "planted")
    with pytest.raises(Unwritable, match="symbolic links"), folder.claim():
        pass
    assert not (tmp_path / "planted").exists()


def test_graphs_of_too_many_nodes_are_refused_before_their_matrix_is_made():
    with pytest.raises(TopologyError, match="20000 nodes; at least 1 and at most 5,000"):
        mixing_matrix(Ring(), 20_000)
