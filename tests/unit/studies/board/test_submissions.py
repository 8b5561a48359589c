"""A submission is what its manifest says and its key signed; whatever else is in the folder is refused unread."""

import json
import os
import pickle
import shutil
import subprocess

import pytest

from harness.core.errors import UserError
from harness.storage import manifest as manifests
from harness.storage.manifest import MANIFEST, SIGNATURE, STATEMENT, Limits
from harness.storage.seals import read_sealed, write_sealed
from harness.storage.store import Store
from studies.board import submission as module
from studies.board.signature import signer
from studies.board.submission import read_submission, submissions, write_submission
from tests.support.submitted import forge, resealed, results

needs_ssh = pytest.mark.skipif(shutil.which("ssh-keygen") is None, reason="ssh-keygen is not installed")


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    return results(tmp_path_factory.mktemp("made"), seeds=2)


@pytest.fixture(scope="module")
def key(tmp_path_factory):
    path = tmp_path_factory.mktemp("keys") / "key"
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(path)], check=True)
    return path


@pytest.fixture
def unsigned(made, tmp_path):
    write_submission(made, "mine", tmp_path / "sub", "Ada")
    return tmp_path / "sub"


@pytest.fixture
def signed(made, key, tmp_path):
    write_submission(made, "mine", tmp_path / "sub", "Ada", key)
    return tmp_path / "sub"


def test_a_submission_holds_one_suite_and_says_where_it_was_made(made, unsigned):
    found = read_submission(unsigned)
    assert found.ids == sorted(run.path.name for run in made.run_folders())
    assert (found.submitter, found.signer) == ("Ada", None)
    (environment,) = found.statement["made_with"]
    assert environment["runs"] == 2 and environment["threads"] == 1 and "torch" in environment
    host = os.uname().nodename
    assert host not in (unsigned / STATEMENT).read_text() or len(host) < 4
    names = {path.name for path in unsigned.rglob("*") if path.is_file()}
    assert "claim" not in names and names <= {
        *("store.json", "suite.json", STATEMENT, MANIFEST),
        *("spec.json", "rounds.jsonl", "done.json", "predictions.csv"),
    }


def test_only_the_runs_of_the_suite_are_submitted(made, tmp_path):
    shutil.copytree(made.root, tmp_path / "out")
    store = results(tmp_path / "out", seeds=1, suite="other", rounds=1)
    write_submission(store, "other", tmp_path / "sub", "Ada")
    assert len(read_submission(tmp_path / "sub").ids) == 1
    assert not (tmp_path / "sub" / "mine").exists()


@pytest.mark.parametrize(
    ("suite", "name", "why"),
    [
        ("none", "Ada", "no suite 'none'"),
        ("mine", "", "printable name"),
        ("mine", "a\nb", "printable name"),
        ("mine", "a" * 101, "printable name"),
    ],
)
def test_what_cannot_be_submitted_leaves_nothing_behind(made, suite, name, why, tmp_path):
    with pytest.raises(UserError, match=why):
        write_submission(made, suite, tmp_path / "sub", name)
    assert list(tmp_path.iterdir()) == []


def test_a_folder_with_something_in_it_is_kept(made, unsigned):
    before = (unsigned / MANIFEST).read_bytes()
    with pytest.raises(UserError, match="is there already"):
        write_submission(made, "mine", unsigned, "Bob")
    assert (unsigned / MANIFEST).read_bytes() == before


@needs_ssh
def test_a_signature_is_one_of_that_manifest(signed, key):
    fingerprint = subprocess.run(
        ["ssh-keygen", "-l", "-f", f"{key}.pub"], capture_output=True, text=True, check=True
    ).stdout.split()[1]
    assert read_submission(signed).signer == fingerprint
    statement = json.loads((signed / STATEMENT).read_text())
    (signed / STATEMENT).write_text(json.dumps({**statement, "submitter": "Eve"}))
    with pytest.raises(UserError, match=r"statement\.json is not what the manifest says"):
        read_submission(signed)
    resealed(signed)
    with pytest.raises(UserError, match=r"not a signature of manifest\.json"):
        read_submission(signed)
    (signed / SIGNATURE).unlink()
    assert read_submission(signed).signer is None  # what nobody signed is told as such


@needs_ssh
def test_a_signature_made_for_something_else_does_not_count(signed, key):
    """Whoever signs a commit or a mail with the key has not signed results."""
    (signed / SIGNATURE).unlink()
    subprocess.run(
        ["ssh-keygen", "-q", "-Y", "sign", "-f", str(key), "-n", "git", str(signed / MANIFEST)],
        check=True,
        capture_output=True,
    )
    with pytest.raises(UserError, match="is not a signature"):
        read_submission(signed)


@needs_ssh
def test_other_kinds_of_keys_are_refused(made, tmp_path):
    other = tmp_path / "ecdsa"
    subprocess.run(["ssh-keygen", "-q", "-t", "ecdsa", "-N", "", "-f", str(other)], check=True)
    with pytest.raises(UserError, match="not by an Ed25519 key"):
        write_submission(made, "mine", tmp_path / "sub", "Ada", other)
    with pytest.raises(UserError, match=r"no file .*none; ssh-keygen -t ed25519 makes a key"):
        write_submission(made, "mine", tmp_path / "sub", "Ada", tmp_path / "none")
    assert not (tmp_path / "sub").exists()


def test_without_ssh_the_mend_is_told(unsigned, monkeypatch):
    monkeypatch.setenv("PATH", "")
    (unsigned / SIGNATURE).write_text("signature")
    with pytest.raises(UserError, match="openssh-client"):
        signer(unsigned / MANIFEST, unsigned / SIGNATURE)


def test_a_large_signature_is_not_read(unsigned):
    (unsigned / SIGNATURE).write_bytes(b"0" * 20_000)
    with pytest.raises(UserError, match="more than 16,384 bytes"):
        read_submission(unsigned)


class Bomb:
    def __reduce__(self):
        return os.mkdir, (str(Bomb.marker),)


def test_checkpoints_are_refused_and_never_opened(unsigned, tmp_path):
    Bomb.marker = tmp_path / "exploded"
    (run,) = {path.parent for path in list(unsigned.glob("runs/*/done.json"))[:1]}
    (run / "checkpoint.pt").write_bytes(pickle.dumps(Bomb()))
    with pytest.raises(UserError, match="checkpoints and all other files are refused"):
        read_submission(unsigned)
    content = json.loads((unsigned / MANIFEST).read_text())
    content["files"][f"runs/{run.name}/checkpoint.pt"] = manifests.sha256(run / "checkpoint.pt")
    (unsigned / MANIFEST).write_text(json.dumps(content))
    with pytest.raises(UserError, match="checkpoints and all other files are refused"):
        read_submission(unsigned)
    assert not Bomb.marker.exists()


@pytest.mark.parametrize(
    "name", ["../../x/spec.json", "/etc/passwd", "runs/../store.json", "runs/a/./spec.json"]
)
def test_a_manifest_names_nothing_outside(name, unsigned):
    content = json.loads((unsigned / MANIFEST).read_text())
    content["files"][name] = "0" * 64
    (unsigned / MANIFEST).write_text(json.dumps(content))
    with pytest.raises(UserError, match="is not a result"):
        read_submission(unsigned)


def test_links_are_refused(unsigned, tmp_path):
    (path, *_) = unsigned.glob("runs/*/rounds.jsonl")
    kept = shutil.move(path, tmp_path / "elsewhere")
    path.symlink_to(kept)
    with pytest.raises(UserError, match="is a link"):
        read_submission(unsigned)
    path.unlink()
    os.mkfifo(path)
    with pytest.raises(UserError, match="is a link or a device"):
        read_submission(unsigned)


def test_a_link_to_another_folder_is_no_submission(unsigned, tmp_path):
    (tmp_path / "linked").symlink_to(unsigned)
    with pytest.raises(UserError, match="link to another folder"):
        read_submission(tmp_path / "linked")


def test_tracebacks_stay_at_home(made, tmp_path):
    """They name folders; the reason and all checksums stay."""
    shutil.copytree(made.root, tmp_path / "out")
    store = Store(tmp_path / "out")
    run = store.run_folders()[0]
    (run.path / "done.json").unlink()
    run.fail({"reason": "why", "timing": {"traceback": 'File "/home/ada/x.py"', "seconds": 1.0}})
    write_submission(store, "mine", tmp_path / "sub", "Ada")
    there = read_submission(tmp_path / "sub").store.folder(run.path.name)
    assert there.read()[:2] == ("failed", "why")
    assert there.end("failed.json")["timing"] == {"seconds": 1.0}
    assert not [path for path in (tmp_path / "sub").rglob("*.json") if "/home/ada" in path.read_text()]


def test_files_beside_the_manifest_are_refused(unsigned):
    (unsigned / "runs" / "more").mkdir()
    (unsigned / "runs" / "more" / "spec.json").write_text("{}")
    with pytest.raises(UserError, match=r"'runs/more/spec\.json' is not in manifest\.json"):
        read_submission(unsigned)


@pytest.mark.parametrize(
    ("limits", "why"), [(Limits(3, 1 << 20, 1 << 20), "files"), (Limits(99, 1000, 1 << 20), "bytes")]
)
def test_a_submission_beyond_the_limits_is_refused(limits, why, unsigned, monkeypatch):
    monkeypatch.setattr(module, "LIMITS", limits)
    with pytest.raises(UserError, match=rf"at most .* {why}|more than 1,000 bytes"):
        read_submission(unsigned)


@pytest.mark.parametrize(
    "content", ["", "[]", "[" * 100_000, '{"format": 1}', '{"format": 1, "files": {"a": 1}}']
)
def test_a_manifest_that_is_none_is_refused(content, unsigned):
    (unsigned / MANIFEST).write_text(content)
    with pytest.raises(UserError):
        read_submission(unsigned)


def test_a_run_whose_seals_do_not_agree_is_refused(unsigned):
    run = next(iter(read_submission(unsigned).store.run_folders()))
    forge(run)
    text = (run.path / "done.json").read_text()
    (run.path / "done.json").write_text(text.replace("0.999", "0.998"))
    with pytest.raises(UserError, match="damaged"):
        read_submission(resealed(unsigned))


@pytest.mark.parametrize("figure", [0.999, None])
def test_an_end_that_its_evaluations_contradict_is_refused(unsigned, figure):
    """Leaderboards read the one, pictures the other."""
    run = next(iter(read_submission(unsigned).store.run_folders()))
    final, seal = read_sealed(run.path / "done.json")
    if figure is None:
        del final["bytes_up"]
    else:
        final["metrics"]["accuracy"] = figure
    write_sealed(run.path / "done.json", final, seal)
    with pytest.raises(
        UserError, match="last evaluation says, in " + ("bytes_up" if figure is None else "metrics")
    ):
        read_submission(resealed(unsigned))


def test_a_run_with_two_ends_is_refused(unsigned):
    """Readers take the first end that they find; which one somebody meant is not for them to say."""
    run = read_submission(unsigned).store.run_folders()[0]
    run.fail({"reason": "why"})
    content = json.loads((unsigned / MANIFEST).read_text())
    name = f"runs/{run.path.name}/failed.json"
    content["files"][name] = manifests.sha256(unsigned / name)
    (unsigned / MANIFEST).write_text(json.dumps(content))
    with pytest.raises(UserError, match="both ends"):
        read_submission(unsigned)


def test_submissions_are_the_folders_of_a_folder(unsigned, tmp_path):
    (tmp_path / ".git").mkdir()
    assert submissions(tmp_path) == [unsigned] == submissions(unsigned)
    (tmp_path / "empty").mkdir()
    for folder in (tmp_path / "empty", tmp_path / "none"):
        with pytest.raises(UserError, match="submissions"):
            submissions(folder)
