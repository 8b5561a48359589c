"""Folders of others: what is in them is checked where it is read, whatever checksums say."""

import gzip
import json
import os
import random
import shutil
import signal
import tarfile

import pytest

from harness.cli.parser import main
from harness.config.recorded import results_folder
from harness.core.errors import UserError
from harness.report.data.export import write_tensorboard
from harness.storage import archive, files
from harness.storage.archive import open_results
from harness.storage.seals import read_sealed, write_sealed
from harness.storage.store import Store, read_suite
from tests.support.foreign import mutants, reseal
from tests.support.submitted import results

FILES = ("spec.json", "done.json", "rounds.jsonl", "predictions.csv", "claim")


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """Return a results folder with a suite of two runs, whose figures and settings differ."""
    root = tmp_path_factory.mktemp("made") / "results"
    first = results(root, seeds=1, suite="one")
    second = results(root, seeds=1, suite="two", algorithm={"name": "scaffold", "lr": 0.2})
    cells = [*next(iter_suite(first, "one")), *next(iter_suite(second, "two"))]
    for suite in ("one", "two"):
        shutil.rmtree(root / suite)
    store = results_folder(root)
    store.write_suite("mine", {"suite": "mine", "profile": "", "report": {"by": "accuracy"}, "cells": cells})
    return store


def iter_suite(store, suite):
    for cell in read_suite(store.root / suite / "suite.json")[0]["cells"]:
        digest = read_sealed(store.folder(cell["id"]).path / "spec.json")[0]
        yield [{**cell, "digest": digest["digest"], "versions": digest["versions"]}]


@pytest.fixture
def foreign(made, tmp_path):
    shutil.copytree(made.root, tmp_path / "results")
    return results_folder(tmp_path / "results")


@pytest.fixture
def in_time():
    """End the test if something waits, as whoever opens a pipe does."""

    def stop(*_):
        raise TimeoutError

    before = signal.signal(signal.SIGALRM, stop)
    signal.alarm(60)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


def suite_of(store):
    path = store.root / "mine" / "suite.json"
    return path, read_suite(path)[0]


def labelled(store):
    return {record.id: (record.spec["algorithm"]["name"], record.rounds) for record in store.records()}


def test_a_suite_with_swapped_ids_swaps_no_labels(foreign, capsys):
    """Settings were read from suite.json, figures from the runs, and only the latter were sealed."""
    before = labelled(foreign)
    path, content = suite_of(foreign)
    first, second = content["cells"]
    first["id"], second["id"] = second["id"], first["id"]
    write_sealed(path, content)
    assert labelled(foreign) == before
    assert main(["verify", str(foreign.root)]) == 2
    assert "suite.json has settings, data or versions of another run" in capsys.readouterr().out


def test_a_suite_need_not_say_what_its_runs_are(foreign):
    """Its ids are enough, once the runs have begun."""
    before = labelled(foreign)
    path, content = suite_of(foreign)
    write_sealed(path, {**content, "cells": [{"id": cell["id"]} for cell in content["cells"]]})
    assert labelled(foreign) == before


def test_a_spec_under_the_id_of_another_run_is_damaged(foreign, tmp_path, capsys):
    run = foreign.run_folders()[0]
    content, _ = read_sealed(run.path / "spec.json")
    content["spec"]["algorithm"]["lr"] = 0.7
    write_sealed(run.path / "spec.json", content)
    reseal(run.path)
    (reason,) = (record.reason for record in foreign.records() if record.id == run.path.name)
    assert reason == f"spec.json has settings, data or versions of another run than {run.path.name}"
    assert main(["verify", str(foreign.root)]) == 2
    assert main(["merge", str(foreign.root), "--out", str(tmp_path / "into")]) == 1
    assert not (tmp_path / "into" / "runs" / run.path.name).exists()
    assert main(["archive", str(foreign.root), str(tmp_path / "a.tar.gz")]) == 0
    assert "left out: 1 damaged" in capsys.readouterr().err


def test_a_run_that_has_not_begun_is_what_its_id_names(foreign, capsys):
    path, content = suite_of(foreign)
    shutil.rmtree(foreign.root / "runs")
    assert {record.status for record in foreign.records()} == {"missing"}
    content["cells"][0]["spec"]["algorithm"]["lr"] = 0.7
    write_sealed(path, content)
    assert main(["verify", str(foreign.root)]) == 2
    assert "another run than" in capsys.readouterr().out


def test_a_run_without_a_spec_is_what_its_id_names(foreign):
    """Its end can be sealed without one; suite.json must not say what it was."""
    path, content = suite_of(foreign)
    run = foreign.folder(content["cells"][0]["id"])
    (run.path / "spec.json").unlink()
    final, seal = read_sealed(run.path / "done.json")
    write_sealed(
        run.path / "done.json", final, {k: v for k, v in seal.items() if k not in ("spec.json", "done.json")}
    )
    content["cells"][0]["spec"]["algorithm"]["lr"] = 0.7
    write_sealed(path, content)
    assert [record.status for record in foreign.records()] == ["damaged", "done"]


COMMANDS = (
    ["status", "{}"],
    ["leaderboard", "{}"],
    ["verify", "{}"],
    ["export", "{}", "--csv", "{}/../x.csv"],
    ["archive", "{}", "{}/../x.tar.gz"],
    ["merge", "{}", "--out", "{}/../merged"],
)


def tried(root, capsys, commands=COMMANDS):
    """Run commands on a folder; each has to end by itself, with a sentence if it refuses."""
    shutil.rmtree(root.parent / "merged", ignore_errors=True)
    for command in commands:
        code = main([part.format(root) for part in command])
        told = capsys.readouterr()
        assert code in (0, 1, 2), command
        assert "\x1b" not in told.out + told.err
        if code == 2:
            assert told.err.strip() or command[0] == "verify"
            assert "Traceback" not in told.err


@pytest.mark.parametrize("kind", ["pipe", "link", "folder", "huge"])
@pytest.mark.parametrize("name", [*FILES, "../../mine/suite.json", "../../store.json"])
def test_only_files_are_opened(name, kind, foreign, tmp_path, capsys, in_time):
    run = foreign.run_folders()[0]
    path = run.path / name
    kept = path.read_bytes() if path.exists() else b""
    path.unlink(missing_ok=True)
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "link":
        (tmp_path / "elsewhere").write_bytes(kept)
        path.symlink_to(tmp_path / "elsewhere")
    elif kind == "folder":
        path.mkdir()
    else:
        with open(path, "wb") as file:
            file.truncate(3 << 30)  # without a byte on the disk
        if name == "predictions.csv":  # may be as large; it is read piece by piece
            return
    tried(foreign.root, capsys)
    merged = tmp_path / "merged" / "runs" / run.path.name
    assert name == "claim" or name.startswith("..") or not merged.exists()


def test_a_run_that_is_a_link_is_not_merged(foreign, tmp_path, capsys):
    (first, _) = foreign.run_folders()
    first.path.rename(tmp_path / "elsewhere")
    first.path.symlink_to(tmp_path / "elsewhere")
    assert main(["merge", str(foreign.root), "--out", str(tmp_path / "into")]) == 1
    assert "is damaged" in capsys.readouterr().err
    assert not (tmp_path / "into" / "runs" / first.path.name).exists()
    (tmp_path / "runs").symlink_to(foreign.root / "runs")
    with pytest.raises(UserError, match="is a link"):
        Store(tmp_path)


@pytest.mark.parametrize("name", ["manifest.json", "store.json", "statement.json"])
def test_a_suite_with_the_name_of_a_file_stops_nothing(name, foreign, capsys):
    path, content = suite_of(foreign)
    (foreign.root / name).unlink(missing_ok=True)
    path.parent.rename(foreign.root / name)
    write_sealed(foreign.root / name / "suite.json", {**content, "suite": name})
    tried(foreign.root, capsys)


def test_escapes_of_others_do_not_reach_the_terminal(foreign, capsys):
    run = foreign.run_folders()[0]
    for path in (run.path / "done.json", run.path / "rounds.jsonl"):
        path.unlink()
    run.fail({"reason": "\x1b]0;title\x07\x1b[31mred\x9b2J\u202e"})
    path, content = suite_of(foreign)
    write_sealed(path, {**content, "title": "\x1b[31m", "suite": "mi\x1bne"})
    for command in (["status", "{}"], ["leaderboard", "{}"], ["verify", "{}"]):
        main([part.format(foreign.root) for part in command])
        told = capsys.readouterr()
        assert not set("\x1b\x07\x9b\u202e") & set(told.out + told.err)
        assert command[0] == "verify" or r"\x1b" in told.out


@pytest.mark.parametrize("name", ["../../out", "/abs/out", "..", "a/../../../b"])
def test_an_export_stays_in_its_folder(name, made, tmp_path):
    """Names of algorithms became names of folders as they were."""
    pytest.importorskip("torch.utils.tensorboard")
    record = made.records()[0]
    record.spec["algorithm"] = {"name": name}
    (tmp_path / "in").mkdir()
    assert write_tensorboard([record], tmp_path / "in") == 1
    assert [path.name for path in tmp_path.iterdir()] == ["in"]
    assert len(list((tmp_path / "in").rglob("events.out.*"))) == 1
    assert files.safe_name(name) not in ("", ".", "..")


def tar(path, *members, whole=b""):
    """Write a compressed archive of headers and contents."""
    with gzip.open(path, "wb", compresslevel=9) as file:
        for header, content in members:
            file.write(header.tobuf(tarfile.USTAR_FORMAT))
            content(file) if callable(content) else file.write(content)
        file.write(whole)
    return path


def zeros(count):
    def write(file):
        for _ in range(count >> 20):
            file.write(bytes(1 << 20))

    return write


def test_a_header_may_not_be_as_long_as_it_likes(tmp_path, monkeypatch):
    """tarfile reads what an extended header says of its own length, before there is a member to refuse."""
    header = tarfile.TarInfo("x")
    header.type, header.size = tarfile.XHDTYPE, 64 << 20
    path = tar(tmp_path / "a.tar.gz", (header, zeros(64 << 20)))
    read = []
    whole = gzip.GzipFile.read
    monkeypatch.setattr(gzip.GzipFile, "read", lambda self, size=-1: read.append(size) or whole(self, size))
    with pytest.raises(UserError, match=r"not an archive of results|is not"), open_results(path):
        pass
    assert sum(read) <= 4096


def test_what_is_not_in_the_manifest_is_not_unpacked(tmp_path, monkeypatch):
    manifest = json.dumps({"format": 1, "files": {}}).encode()
    first, bomb = tarfile.TarInfo("results/manifest.json"), tarfile.TarInfo("results/store.json")
    first.size, bomb.size = len(manifest), 1 << 30
    padded = manifest + bytes(-len(manifest) % 512)
    path = tar(tmp_path / "a.tar.gz", (first, padded), (bomb, b""))
    with pytest.raises(UserError, match=r"'store\.json' is not in manifest\.json"), open_results(path):
        pass
    path = tar(tmp_path / "b.tar.gz", (bomb, b""))
    with pytest.raises(UserError, match=r"it has no manifest\.json"), open_results(path):
        pass


def test_an_archive_does_not_unpack_to_a_multiple_of_itself(tmp_path, monkeypatch):
    monkeypatch.setattr(archive, "LEAST_UNPACKED", 1 << 20)
    size = 32 << 20
    manifest = json.dumps({"format": 1, "files": {"store.json": "0" * 64}}).encode()
    first, bomb = tarfile.TarInfo("results/manifest.json"), tarfile.TarInfo("results/store.json")
    first.size, bomb.size = len(manifest), size
    padded = manifest + bytes(-len(manifest) % 512)
    path = tar(tmp_path / "a.tar.gz", (first, padded), (bomb, zeros(size)))
    with pytest.raises(UserError, match="unpacks to more than"), open_results(path):
        pass


@pytest.mark.parametrize("count", [6, pytest.param(60, marks=pytest.mark.slow)])
def test_mutated_folders_give_sentences(count, made, tmp_path, capsys, in_time, blank_pictures):
    """Every value may be of another type, missing, huge or no text: 18 kinds of them ended with a traceback."""
    for what, root in mutants(made.root, tmp_path / "copy", random.Random(3), count):
        try:
            tried(root, capsys, COMMANDS if count < 10 else (*COMMANDS[:4], ["report", "{}"]))
        except Exception as error:
            raise AssertionError(what) from error
        signal.alarm(60)
