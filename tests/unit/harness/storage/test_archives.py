"""An archive holds the results of a folder and nothing else, in the same bytes every time; others are refused."""

import gzip
import io
import json
import os
import random
import shutil
import tarfile

import pytest

from harness.cli.parser import main
from harness.core.errors import UserError
from harness.storage.archive import open_results, write_archive
from harness.storage.manifest import MANIFEST, Limits, manifest, portable
from harness.storage.store import Store
from harness.storage.verification import verify
from tests.support.submitted import results


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    return results(tmp_path_factory.mktemp("made"), seeds=2)


@pytest.fixture
def copy(made, tmp_path):
    """Return a copy of the results that may be changed."""
    shutil.copytree(made.root, tmp_path / "copy")
    return Store(tmp_path / "copy")


@pytest.fixture(scope="module")
def packed(made, tmp_path_factory):
    path = tmp_path_factory.mktemp("packed") / "results.tar.gz"
    write_archive(made, path)
    return path


def members(path):
    with tarfile.open(path) as tar:
        return sorted(member.name for member in tar)


def tarball(path, contents, listed=True, **fields):
    """Write an archive with a manifest of its contents, and members with some fields of their own."""
    root = path.parent / "made up"
    root.mkdir()
    for name, content in contents.items():
        if ".." not in name and not name.startswith("/"):
            (root / name).parent.mkdir(parents=True, exist_ok=True)
            (root / name).write_bytes(content)
    known = [name for name in contents if (root / name).exists()]
    whole = {MANIFEST: manifest(root, known).encode(), **contents} if listed else contents
    with tarfile.open(path, "w:gz") as tar:
        for name, content in whole.items():
            member = tarfile.TarInfo(name if name.startswith("/") else f"results/{name}")
            member.size = len(content)
            if name != MANIFEST:
                for field, value in fields.items():
                    setattr(member, field, value)
            tar.addfile(member, io.BytesIO(content))
    return path


def test_the_same_results_are_packed_into_the_same_bytes(packed, copy, tmp_path):
    for path in copy.root.rglob("*"):
        os.utime(path, (1, 1))
    (copy.root / "mine" / "index.html").write_text("a report")
    (copy.root / "cache").mkdir()
    (copy.root / "cache" / "data.npz").write_bytes(b"0")
    write_archive(copy, tmp_path / "again.tgz")
    assert (tmp_path / "again.tgz").read_bytes() == packed.read_bytes()
    assert packed.read_bytes()[4:8] == bytes(4)  # the time in gzip's header


def test_checkpoints_claims_and_old_files_stay_at_home(packed, copy, tmp_path):
    first = copy.run_folders()[0]
    for name in ("checkpoint.pt", "claim", "done.json.damaged", ".rounds.jsonl.1f"):
        (first.path / name).write_bytes(b"0")
    write_archive(copy, tmp_path / "again.tar.gz")
    assert members(tmp_path / "again.tar.gz") == members(packed)
    assert {name.rpartition("/")[2] for name in members(packed)} == {
        *("manifest.json", "store.json", "suite.json"),
        *("spec.json", "rounds.jsonl", "done.json", "predictions.csv"),
    }


def test_damaged_and_unfinished_runs_are_left_out(copy, tmp_path):
    first, second = copy.run_folders()
    (first.path / "rounds.jsonl").write_bytes(b"")
    found = write_archive(copy, tmp_path / "a.tar.gz")
    assert found.ids == [second.path.name] and found.left_out == {"damaged": 1}
    assert not any(first.path.name in name for name in members(tmp_path / "a.tar.gz"))
    (second.path / "done.json").unlink()
    with pytest.raises(UserError, match="holds no run that has ended"):
        write_archive(copy, tmp_path / "b.tar.gz")
    assert not (tmp_path / "b.tar.gz").exists()


def test_unsealed_predictions_are_left_out(copy):
    first = next(run for run in copy.run_folders() if not (run.path / "predictions.csv").exists())
    (first.path / "predictions.csv").write_text("made up")
    assert f"runs/{first.path.name}/predictions.csv" not in portable(copy).names


def test_an_unpacked_archive_is_a_sound_results_folder(made, packed):
    with open_results(packed) as root:
        assert {verdict.state for verdict in verify(Store(root))} == {"sound"}
        read, kept = Store(root).records(), made.records()
        assert [(one.id, one.rounds, one.final) for one in read] == [
            (one.id, one.rounds, one.final) for one in kept
        ]


def test_a_changed_file_is_named_where_seals_would_not(packed, tmp_path, capsys):
    """Whoever rewrites the seals of a run too is found by the manifest, of which others may have a copy."""
    with open_results(packed) as root:
        shutil.copytree(root, tmp_path / "open")
    store = json.loads((tmp_path / "open" / "store.json").read_text())
    (tmp_path / "open" / "store.json").write_text(json.dumps(store))
    assert main(["verify", str(tmp_path / "open")]) == 2
    assert "manifest.json: store.json is not what the manifest says" in capsys.readouterr().out.replace(
        "\n", ""
    )


def test_no_flipped_bit_and_no_cut_goes_unnoticed(packed, tmp_path):
    """Some bits of gzip, as those that fill its last byte, change nothing that is packed."""
    draw, whole, path = random.Random(5), packed.read_bytes(), tmp_path / "a.tar.gz"
    refused = 0
    for number in range(100):
        place = draw.randrange(len(whole))
        flipped = whole[:place] + bytes([whole[place] ^ 1 << draw.randrange(8)]) + whole[place + 1 :]
        path.write_bytes(flipped if number % 4 else whole[:place])
        try:
            with open_results(path):
                assert gzip.decompress(path.read_bytes()) == gzip.decompress(whole)
        except UserError:
            refused += 1
    assert refused >= 90


@pytest.mark.parametrize(
    ("contents", "fields", "why"),
    [
        ({"../../evil.json": b"{}"}, {}, "is not a result"),
        ({"/tmp/evil.json": b"{}"}, {}, "is not a result"),
        ({"runs/../../../spec.json": b"{}"}, {}, "is not a result"),
        ({"runs/a/checkpoint.pt": b"pickle"}, {}, "checkpoints"),
        ({"runs/a/spec.json/x": b"{}"}, {}, "is not a result"),
        ({"runs/a/spec.json": b""}, {"type": tarfile.SYMTYPE, "linkname": "/etc/passwd"}, "is not a file"),
        ({"runs/a/spec.json": b""}, {"type": tarfile.LNKTYPE, "linkname": "store.json"}, "is not a file"),
        ({"runs/a/spec.json": b""}, {"type": tarfile.CHRTYPE}, "is not a file"),
    ],
)
def test_members_that_are_no_results_are_refused(contents, fields, why, tmp_path):
    inner = tmp_path / "inner" / "more"
    inner.mkdir(parents=True)
    listed = all(".." not in name and "checkpoint" not in name and "/x" not in name for name in contents)
    path = tarball(inner / "a.tar.gz", contents, listed=listed, **fields)
    with pytest.raises(UserError, match=why), open_results(path):
        pass
    assert not list(tmp_path.rglob("evil.json"))


def test_a_member_given_twice_is_refused(tmp_path):
    path = tmp_path / "a.tar.gz"
    with tarfile.open(path, "w:gz") as tar:
        for content in (b"{}", b"{ }"):
            member = tarfile.TarInfo("results/store.json")
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))
    with pytest.raises(UserError, match="twice"), open_results(path):
        pass


@pytest.mark.parametrize(
    ("limits", "why"),
    [
        (Limits(2, 500, 1000), "at most 2 files"),
        (Limits(9, 5, 1000), "at most 5 bytes in"),
        (Limits(9, 500, 20), "at most 20 bytes in all"),
    ],
)
def test_an_archive_beyond_the_limits_is_refused(limits, why, tmp_path):
    names = {f"runs/{letter}/spec.json": b"{} " * 4 for letter in "ab"}
    with pytest.raises(UserError, match=why), open_results(tarball(tmp_path / "a.tar.gz", names), limits):
        pass


def test_an_archive_padded_without_end_is_refused(packed, tmp_path):
    """Zeros compress a thousandfold; what comes after the last member is not read without a bound."""
    path = tmp_path / "a.tar.gz"
    path.write_bytes(gzip.compress(gzip.decompress(packed.read_bytes()) + bytes(1 << 22)))
    with pytest.raises(UserError, match="goes on after its last member"), open_results(path):
        pass


@pytest.mark.parametrize("content", [b"", b"no archive", gzip.compress(b"no tar" * 200, mtime=0)])
def test_what_is_no_archive_is_refused_in_one_line(content, tmp_path, capsys):
    (tmp_path / "a.tar.gz").write_bytes(content)
    assert main(["verify", str(tmp_path / "a.tar.gz")]) == 2
    assert capsys.readouterr().err.startswith("error: ")


def test_names_are_asked_for_as_they_are_read(made, tmp_path, capsys):
    assert main(["archive", str(made.root), str(tmp_path / "a.zip")]) == 2
    assert "ends in .tar.gz, given a.zip" in capsys.readouterr().err
    assert main(["archive", str(tmp_path / "none"), str(tmp_path / "a.tar.gz")]) == 2
    assert "no results folder" in capsys.readouterr().err


def test_a_run_that_the_manifest_does_not_name_is_refused(packed, tmp_path, capsys):
    """Added to an archive it counted as sound, though others may know the manifest of the real one."""
    with tarfile.open(packed) as old, tarfile.open(tmp_path / "more.tar.gz", "w:gz") as new:
        for member in old:
            new.addfile(member, old.extractfile(member))
        new.addfile(tarfile.TarInfo("results/runs/aa/rounds.jsonl"))
    assert main(["verify", str(tmp_path / "more.tar.gz")]) == 2
    assert "'runs/aa/rounds.jsonl' is not in manifest.json" in capsys.readouterr().err
    assert main(["verify", str(packed)]) == 0
    assert "2 runs and 1 suite and the manifest: 4 sound" in capsys.readouterr().out


def test_numbers_in_headers_that_are_none_are_refused(tmp_path, capsys):
    """They ended with a traceback of tarfile."""
    member = tarfile.TarInfo("results/store.json")
    member.pax_headers = {"GNU.sparse.map": "0,x"}
    with tarfile.open(tmp_path / "a.tar.gz", "w:gz", format=tarfile.PAX_FORMAT) as tar:
        tar.addfile(member)
    assert main(["verify", str(tmp_path / "a.tar.gz")]) == 2
    assert "is not an archive of results" in capsys.readouterr().err
