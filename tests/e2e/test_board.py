"""From runs to the pages of a board: what is forged is found as often as the formula says."""

import argparse
import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from harness.cli.parser import main
from harness.config.recorded import run_id
from harness.config.run import read_spec
from harness.executors.replay import Replay, caught
from harness.executors.scheduler import run_one
from harness.simulation.setup import Execution
from harness.storage import seals
from harness.storage.manifest import MANIFEST, SIGNATURE, manifest
from harness.storage.store import Store
from studies.__main__ import main as studies
from studies.board import command as board
from studies.board.first_seen import SEEN
from studies.board.signature import sign
from studies.board.submission import write_submission
from tests.support.submitted import SPEC, forge, resealed, results

RUNS = 6


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    return results(tmp_path_factory.mktemp("made"), seeds=RUNS)


@pytest.fixture
def folder(made, tmp_path):
    """Return a folder with one submission of six runs."""
    write_submission(made, "mine", tmp_path / "subs" / "ada", "Ada")
    return tmp_path / "subs"


def said(capsys):
    found = capsys.readouterr()
    return found.out + found.err


@pytest.mark.skipif(shutil.which("ssh-keygen") is None, reason="ssh-keygen is not installed")
def test_a_signed_submission_goes_from_runs_to_pages(made, tmp_path, capsys):
    key = tmp_path / "key"
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(key)], check=True)
    to = tmp_path / "subs" / "ada"
    given = ["board", "submit", str(made.root), "--suite", "mine", "--to", str(to), "--submitter", "Ada"]
    assert studies([*given, "--key", str(key)]) == 0
    assert "signed by SHA256:" in said(capsys)
    assert studies(["board", "check", str(tmp_path / "subs"), "--sample", "2"]) == 0
    told = said(capsys)
    assert told.count(": identical") == 2 and "6 runs of Ada, signed by SHA256:" in told
    assert f"F = 1 with {100 * caught(6, 1, 2):.3g} %" in told
    assert studies(["board", "build", str(tmp_path / "subs"), "--out", str(tmp_path / "site")]) == 0
    (page,) = (tmp_path / "site" / "tasks").glob("*.html")
    seeds = " ".join(map(str, range(RUNS)))
    assert f"for seed in {seeds}; do python -m harness run --algorithm" in page.read_text()
    assert main(["verify", str(to), "--sample", "1", "--json"]) == 0


def test_a_forged_record_is_found_by_computing_it_again(folder, capsys):
    run = Store(folder / "ada").run_folders()[0]
    forge(run)
    resealed(folder / "ada")
    assert main(["verify", str(folder / "ada")]) == 0  # all checksums agree
    assert studies(["board", "check", str(folder), "--sample", str(RUNS)]) == 2
    told = said(capsys)
    assert told.count(": identical") == RUNS - 1
    assert re.search(rf"{run.path.name}: different, largest difference 0\.\d+: .*accuracy: 0\.999", told)


def test_a_run_that_looks_foreign_is_not_let_through(folder, capsys):
    """Otherwise a forged run would only have to claim another version of the code."""
    root = folder / "ada"
    run = Store(root).run_folders()[0]
    forge(run)
    started, _ = seals.read_sealed(run.path / "spec.json")
    here = started["versions"]["algorithm"]
    started["versions"]["algorithm"] = 99
    id = started["id"] = run_id(started["spec"], started["digest"], started["versions"])
    moved = run.path.rename(run.path.with_name(id))
    digest = seals.write_sealed(moved / "spec.json", started)
    final, seal = seals.read_sealed(moved / "done.json")
    seals.write_sealed(moved / "done.json", final, {**seal, "spec.json": digest, "run": id})
    names = [
        str(path.relative_to(root)) for path in root.rglob("*") if path.is_file() and path.name != MANIFEST
    ]
    (root / MANIFEST).write_text(manifest(root, names))
    assert studies(["board", "check", str(folder), "--sample", str(RUNS)]) == 2
    assert f"not compared: it was made by other versions: algorithm 99, here {here}" in said(capsys)


@pytest.mark.parametrize("forged", [1, 2])
def test_forged_runs_are_caught_as_often_as_stated(forged, folder, monkeypatch):
    """1,000 samples of 2 of 6 runs; the share that finds one is within four standard deviations of the formula."""
    ids = [run.path.name for run in Store(folder / "ada").run_folders()]
    false = set(ids[:forged])
    given = argparse.Namespace(dir=folder, sample=2, tolerance=0.0, device="cpu")
    read = board.read_records(folder / "ada")
    monkeypatch.setattr(board, "read_records", lambda folder: read)

    def stub(store, id, tolerance, device):
        return Replay(id, "different" if id in false else "identical", 0.0)

    monkeypatch.setattr(board.out, "print", lambda *texts, **options: None)
    times, found = 1000, 0
    for seed in range(times):
        given.seed = seed
        found += board.check_command(given, stub) == 2
    p = caught(RUNS, forged, 2)
    assert abs(found / times - p) < 4 * (p * (1 - p) / times) ** 0.5


def test_the_example_of_this_repository_can_be_repeated(capsys):
    """Where it cannot, board/README.md says how to make it again."""
    folder = Path(__file__).parents[2] / "board" / "submissions"
    assert studies(["board", "check", str(folder), "--sample", "2", "--tolerance", "1e-6"]) == 0, said(capsys)
    assert sum(path.stat().st_size for path in folder.rglob("*") if path.is_file()) < 200_000


def test_one_bad_submission_does_not_hide_the_others(folder, tmp_path, capsys):
    shutil.copytree(folder / "ada", folder / "eve")
    (folder / "eve" / "extra.pt").write_bytes(b"0")
    site = tmp_path / "site"
    assert studies(["board", "build", str(folder), "--out", str(site)]) == 2
    assert "eve: left out: 'extra.pt' is not a result" in said(capsys)
    index = (site / "index.html").read_text()
    assert "Ada" in index and "Left out" in index and "extra.pt" in index
    assert studies(["board", "check", str(folder), "--sample", "0"]) == 2
    assert "eve: refused" in said(capsys)


def test_a_copy_of_a_submission_does_not_count_twice(folder, tmp_path, capsys):
    """Copies of sound runs would make forged ones rarer in a sample."""
    shutil.copytree(folder / "ada", folder / "bob")
    assert studies(["board", "check", str(folder), "--sample", "1"]) == 2
    told = said(capsys)
    assert "bob: refused: it is a copy of ada" in told and f"1 of {RUNS} finished runs" in told


@pytest.mark.skipif(shutil.which("ssh-keygen") is None, reason="ssh-keygen is not installed")
def test_a_copy_displaces_no_original(made, tmp_path, capsys):
    """A copy without the signature, in a folder that sorts first, made the original a copy."""
    subs = tmp_path / "subs"
    for name in ("ada", "eve"):
        subprocess.run(
            ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(tmp_path / name)], check=True
        )
    write_submission(made, "mine", subs / "b-ada", "Ada", tmp_path / "ada")
    shutil.copytree(subs / "b-ada", subs / "a-copy", ignore=shutil.ignore_patterns(SIGNATURE))
    build = ["board", "build", str(subs), "--out", str(tmp_path / "site")]
    assert studies(build) == 2
    assert "a-copy: left out: it is a copy of b-ada" in said(capsys)
    assert [json.loads(line)["folder"] for line in (subs / SEEN).read_text().splitlines()] == ["b-ada"]
    before = (subs / SEEN).read_bytes()
    sign(subs / "a-copy" / MANIFEST, tmp_path / "eve")  # by another key: the first seen counts
    assert studies(build) == 2
    assert "a-copy: left out: it is a copy of b-ada" in said(capsys)
    assert (subs / SEEN).read_bytes() == before
    assert studies(["board", "check", str(subs), "--sample", "0"]) == 2
    assert "a-copy: refused: it is a copy of b-ada" in said(capsys)
    (subs / SEEN).write_text("no list")
    assert studies(build) == 2
    assert "seen.jsonl is damaged in line 1" in said(capsys)


@pytest.mark.skipif(shutil.which("ssh-keygen") is None, reason="ssh-keygen is not installed")
def test_an_unsigned_copy_that_came_first_gives_way_to_the_signed_one(made, tmp_path, capsys):
    """It was the original for the board, and the signature of who had made it was lost."""
    key, subs = tmp_path / "ada", tmp_path / "subs"
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(key)], check=True)
    write_submission(made, "mine", tmp_path / "z-ada", "Ada", key)
    shutil.copytree(tmp_path / "z-ada", subs / "a-copy", ignore=shutil.ignore_patterns(SIGNATURE))
    build = ["board", "build", str(subs), "--out", str(tmp_path / "site")]
    assert studies(build) == 0
    shutil.move(tmp_path / "z-ada", subs)
    assert studies(build) == 2
    assert "a-copy: left out: it is a copy of z-ada" in said(capsys)
    assert "Ada, SHA256:" in next((tmp_path / "site" / "tasks").glob("*.html")).read_text()


def test_a_check_repeats_what_submissions_disagree_about(made, folder, capsys):
    """Whoever comes first or signs, the run that differs when it is computed again is refused."""
    write_submission(made, "mine", folder / "eve", "Eve")
    forged = Store(folder / "eve").run_folders()[0]
    forge(forged)
    resealed(folder / "eve")
    assert studies(["board", "check", str(folder), "--sample", "0"]) == 2
    told = said(capsys)
    assert "2 runs repeated as submissions disagree" in told
    assert f"ada/runs/{forged.path.name}: identical" in told
    assert f"eve/runs/{forged.path.name}: different" in told


def test_a_check_says_which_noise_may_have_been_chosen(tmp_path, capsys):
    """A run that is repeated with the noise that it names agrees, whoever chose that name among many."""
    private = {"placement": "central", "clip": 1.0, "epsilon": 8.0}
    subs = tmp_path / "subs"
    for name, code in (("usual", None), ("lucky", "0" * 32)):
        spec = read_spec({**SPEC, "privacy": private})
        ended = run_one(spec, tmp_path / name, Execution(noise_code=code))
        assert ended.status == "done"
        cells = [{"id": ended.id, "spec": spec.model_dump(mode="json")}]
        Store(tmp_path / name).write_suite("mine", {"suite": "mine", "profile": "", "cells": cells})
        write_submission(Store(tmp_path / name), "mine", subs / name, name)
    studies(["board", "check", str(subs), "--sample", "2"])
    told = said(capsys)
    assert "lucky: 1 private run with the noise of other code than here" in told
    assert "usual: 1 private run" not in told


def test_a_record_that_breaks_tables_is_left_out(folder, tmp_path, capsys):
    """A list where a number of seconds should be passes every checksum."""
    run = Store(folder / "ada").run_folders()[0]
    final, seal = seals.read_sealed(run.path / "done.json")
    final["timing"]["seconds"] = ["soon"]
    seals.write_sealed(run.path / "done.json", final, seal)
    resealed(folder / "ada")
    assert studies(["board", "build", str(folder), "--out", str(tmp_path / "site")]) == 2
    assert f"ada: left out: run {run.path.name} is damaged: done.json is damaged: timing.seconds" in said(
        capsys
    )


@pytest.mark.parametrize(
    ("options", "why"),
    [
        (["--sample", "-1"], "at least 0, given -1"),
        (["--tolerance", "nan"], "at least 0, given nan"),
        (["--tolerance", "-1"], "at least 0, given -1"),
    ],
)
def test_samples_and_tolerances_have_bounds(options, why, made, folder, capsys):
    for program, command in ((main, ["verify", str(made.root)]), (studies, ["board", "check", str(folder)])):
        assert program([*command, *options]) == 2
        assert why in said(capsys)


def test_samples_differ_unless_a_seed_is_given(made, capsys):
    seeds = set()
    for _ in range(2):
        assert main(["verify", str(made.root), "--sample", "1"]) == 0
        seeds.add(re.search(r"--seed (\d+)", said(capsys))[1])
    assert len(seeds) == 2


@pytest.mark.parametrize(
    ("privacy", "data", "why"),
    [
        ({"secure_rng": True}, "breast-cancer", "under privacy.secure_rng nobody can repeat it"),
        (None, "csv", "its data come from a file of the submitter"),
    ],
)
def test_submit_refuses_what_a_check_refuses(privacy, data, why, tmp_path, capsys):
    table = tmp_path / "own.csv"
    table.write_text("a,b,label\n" + "".join(f"{n},{n % 5},{n % 2}\n" for n in range(80)))
    fields = {"data": {"name": "csv", "path": str(table), "label": "label"}} if data == "csv" else {}
    if privacy:
        fields["privacy"] = {"placement": "local", "noise_multiplier": 1.0, "clip": 1.0, **privacy}
    store = results(tmp_path / "made", seeds=1, **fields)
    to = tmp_path / "subs" / "ada"
    given = ["board", "submit", str(store.root), "--suite", "mine", "--to", str(to), "--submitter", "Ada"]
    assert studies(given) == 2 and not to.exists()
    assert why in said(capsys)
    write_submission(store, "mine", to, "Ada")
    assert studies(["board", "check", str(to), "--sample", "0"]) == 2
    assert why in said(capsys)
