"""Where numbers come from: what the page says of runs, versions, machines and how to make them again."""

import html
import json
import os
import shlex
import subprocess

import pytest

from harness.cli.parser import main
from harness.core.units import duration
from harness.report.data.provenance import command_for_seeds, differing_provenance, provenance
from harness.storage import environment
from harness.storage.store import Store
from tests.support.records import SOURCE, done, spec, undone


def run(seed=0, seconds=2.0, **timing):
    record = done(spec(seed=seed), accuracy=0.5)
    record.final["timing"] = {"seconds": seconds, **timing}
    return record


def test_shared_provenance_is_said_once_and_the_rest_is_counted():
    runs = [run(0, torch="2.13", cores=2), run(1, torch="2.13", cores=2), run(2, torch="2.14", cores=2)]
    told = provenance(runs)
    assert told["torch"] == "2.13 (2 runs); 2.14 (1 run)" and told["cores"] == "2"
    assert told["seeds"] == "0, 1, 2" and told["profile"] == "smoke" and told["data"] == SOURCE
    assert told["wall time"] == "6 s in 3 finished runs"
    assert differing_provenance(runs[:2], told) == {
        "seeds": "0, 1",
        "torch": "2.13",
        "wall time": "4 s in 2 finished runs",
    }


def test_an_unfinished_run_has_no_time():
    told = provenance([run(seconds=5.0), undone(spec(seed=1), "failed", "no luck")])
    assert told["wall time"] == "5 s in 1 finished run" and told["seeds"] == "0, 1"
    assert "wall time" not in provenance([undone(spec(), "missing")]) and provenance([]) == {}


@pytest.mark.parametrize(
    ("seconds", "text"), [(0.0123, "0.0123 s"), (59.9, "59.9 s"), (200, "3.33 min"), (7500, "2.08 h")]
)
def test_durations_have_the_unit_that_keeps_them_short(seconds, text):
    assert duration(seconds) == text


def test_a_shell_repeats_every_run_but_a_skipped_one():
    """The loop gives a shell the arguments of each seed's own command, and leaves a seed inside a setting alone."""
    runs = [run(0), run(1), undone(spec(seed=2), "skipped", "no")]
    given = 'run --algorithm \'{"name": "--seed 0"}\' --seed 0 --set x=1'
    found = command_for_seeds(runs, f"printf '%s\\n' {given}")
    told = subprocess.run(["sh", "-c", found], capture_output=True, text=True, check=True).stdout.splitlines()
    assert told == shlex.split(given) + shlex.split(given.replace("--seed 0 --set", "--seed 1 --set"))
    assert command_for_seeds(runs[:1], given) == given
    assert command_for_seeds(runs, "") == ""


@pytest.mark.slow
def test_the_command_of_a_row_makes_the_very_run_again(tmp_path):
    """Privacy, pruning, a cohort and a seed: what the page says gives the same id in another folder."""
    command = (
        "run --algorithm {name:\\ fedavg,lr:\\ 0.2} --data digits --clients 4 --rounds 1 --seed 3 --cohort 2"
    )
    asked = [*shlex.split(command), "--set", "compression.beta=0.5"]
    asked += ["--set", "privacy={placement: local, epsilon: 8, clip: 1}"]
    assert main([*asked, "--out", str(tmp_path / "a")]) == 0
    assert main(["report", str(tmp_path / "a")]) == 0
    page = (tmp_path / "a" / "all" / "index.html").read_text()
    (told,) = [line for line in page.splitlines() if "python -m harness run" in line]
    again = shlex.split(html.unescape(told.partition(">")[2].partition("</pre>")[0]))[3:]
    assert main([*again, "--out", str(tmp_path / "b")]) == 0
    (first,), (second,) = (Store(tmp_path / folder).records() for folder in "ab")
    assert first.id == second.id and first.rounds[-1]["metrics"] == second.rounds[-1]["metrics"]


def test_the_machine_is_described_without_host_or_folder_names():
    said = json.dumps({**environment.versions(), **environment.machine()})
    assert os.uname().nodename not in said and str(environment.ROOT) not in said


def test_a_checkout_of_somebody_elses_is_not_taken_for_ours(tmp_path, monkeypatch):
    """Installed inside another repository, that one's commit says nothing about this code."""
    git = ["git", "-C", str(tmp_path), "-c", "user.name=n", "-c", "user.email=e"]
    subprocess.run([*git, "init", "-q"], check=True)
    subprocess.run([*git, "commit", "-q", "--allow-empty", "-m", "m"], check=True)
    (tmp_path / "inside").mkdir()
    monkeypatch.setattr(environment, "ROOT", tmp_path / "inside")
    assert environment._commit() is None
    monkeypatch.setattr(environment, "ROOT", tmp_path)
    assert len(environment._commit()) == 12
    (tmp_path / "new.txt").write_text("new")
    subprocess.run([*git, "add", "."], check=True)
    assert environment._commit().endswith("-dirty")
