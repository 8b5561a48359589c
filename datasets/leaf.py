"""JSON files of LEAF (Caldas et al. 2018, arXiv 1812.01097): FEMNIST, Shakespeare, Sent140 and others.

A file is an object of ``users``, ``num_samples`` and ``user_data``; the last maps a user to ``x`` and ``y``, a list
of samples and one of labels. Files are read one after the other, as each may have hundreds of megabytes.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeGuard

import numpy as np
from numpy.typing import NDArray

from datasets.arrays import Arrays, arrays_of
from datasets.encoding import LARGEST, Cells, Content, Kind, complete, number_cells
from datasets.errors import DataError
from datasets.formats import Reading
from datasets.limits import check_values, content
from datasets.shards import TEST, Shard, joint_digest, split_folders
from datasets.texts import SYMBOL_NAMES, symbol_numbers

VERSION = 1  # in the identity of runs; raise it when the same file gives other numbers
INPUT, LABEL, CLIENT = "x", "y", "client"
#: Fields of a sample of Sent140: number, date, query, user, what is said, and which file it was in.
TWEET, SAID, FILES = 6, 4, ("training", "test")
KEYS = ("users", "user_data")
IMAGES = (".jpg", ".jpeg", ".png")  # what CelebA's samples name


class Part(NamedTuple):
    """Samples of one user in one file: an array of numbers, or texts or lists of texts; and their labels."""

    where: str
    x: NDArray[Any] | list[Any]
    y: list[Any]


def read_leaf(path: Path, _: Reading) -> Content:
    """Read a LEAF file, a folder of them, or a folder with the folders ``train`` and ``test``.

    Returns
    -------
    Content
        Columns `LABEL` and `CLIENT`, and `INPUT`: images or vectors; signs, if most texts have one length and every
        label is one sign, which then follows; other texts, as a column of text.

    Raises
    ------
    DataError
        If a file is not of this layout, or its users or samples do not fit: the message names file and user.
    """
    parts: list[Part] = []
    users: list[str] = []
    splits: list[str] = []
    digests: list[tuple[str, str]] = []
    seen: dict[tuple[str, str], Path] = {}
    for shard in _files(path):
        raw = _bytes(shard.path)
        digests.append((shard.split, hashlib.sha256(raw).hexdigest()))
        for user, part in _parts(shard.path, raw).items():
            if (earlier := seen.setdefault((shard.split, user), shard.path)) != shard.path:
                raise DataError(
                    f"{shard.path} has the user {user!r}, whom {earlier.name} has too; a user is in one "
                    "file of a split"
                )
            parts.append(part)
            users += [user] * len(part.y)
            splits += [shard.split] * len(part.y)
        check_values(path, sum(part.x.size for part in parts if isinstance(part.x, np.ndarray)))
    if not users:
        raise DataError(f"{path} has no samples")
    labels = [label for part in parts for label in part.y]
    columns: dict[str, Callable[[Kind], Cells]] = {CLIENT: complete(users)}
    arrays: dict[str, Callable[[], Arrays]] = {}
    made = _joined(path, parts, labels)
    if isinstance(made, list):
        columns[INPUT] = complete(made)
        columns[LABEL] = _labels(path, labels)
    else:
        arrays[INPUT] = lambda: made
        columns[LABEL] = _signs(labels) if made.kind == "text" else _labels(path, labels)
    test = np.array(splits) == TEST
    usual = {"label": LABEL, "client": CLIENT, "input": INPUT}
    return Content(
        columns, len(users), joint_digest(digests), test if 0 < test.sum() < len(test) else None,
        typed=True, arrays=arrays, usual=usual,
    )  # fmt: skip


def _files(path: Path) -> list[Shard]:
    """Return the files of a folder in a fixed order, those of ``train`` first."""
    if not path.is_dir():
        return [Shard(path, "")]
    found = []
    for folder, split in split_folders(path):
        files = sorted(folder.glob("*.json"))
        if not files:
            inside = sorted({file.parent for file in folder.glob("*/*.json")})
            hint = f"; give one of: {', '.join(map(str, inside))}" if inside else ""
            raise DataError(f"the folder {folder} has no *.json{hint}")
        found += [Shard(file, split) for file in files]
    return found


def _bytes(path: Path) -> bytes:
    try:
        return content(path)
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror or error}") from error


def _parts(path: Path, raw: bytes) -> dict[str, Part]:
    """Return the samples of a file by user, after a check of its layout."""
    try:
        # The hook packs numbers as soon as a user is read, so that not all are Python objects at once.
        whole = json.loads(raw, object_pairs_hook=_packed)
    except (ValueError, RecursionError) as error:
        raise DataError(f"{path} is no JSON that can be read: {error}") from error
    if not isinstance(whole, dict) or not all(key in whole for key in KEYS):
        keys = ", ".join(list(whole)[:5]) if isinstance(whole, dict) else type(whole).__name__
        raise DataError(
            f"{path} is no file of LEAF: users, num_samples and user_data are needed, it has {keys}"
        )
    users, data, counts = whole["users"], whole["user_data"], whole.get("num_samples")
    if not isinstance(users, list) or not isinstance(data, dict):
        raise DataError(f"{path}: users must be a list, and user_data an object")
    names = [str(user) for user in users]
    known = {*names}
    if len(known) < len(names):
        twice = next(name for place, name in enumerate(names) if name in names[:place])
        raise DataError(f"{path}: users names {twice!r} twice")
    for name in names:
        if name not in data:
            raise DataError(f"{path}: the user {name!r} is missing in user_data")
    for name in data:
        if name not in known:
            raise DataError(f"{path}: user_data has {name!r}, who is not in users")
    if counts is not None and (not isinstance(counts, list) or len(counts) != len(names)):
        given = len(counts) if isinstance(counts, list) else type(counts).__name__
        raise DataError(f"{path}: {len(names)} users, but num_samples of {given}")
    parts = {name: _part(f"{path}: the user {name!r}", data[name]) for name in names}
    for name, count in zip(names, counts or (), strict=bool(counts)):
        if count != len(parts[name].y):
            raise DataError(
                f"{path}: the user {name!r} has {len(parts[name].y)} samples, and num_samples says {count}"
            )
    return parts


def _packed(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return an object with its lists of numbers as an array; what is no such list is left for `_part`.

    Raises
    ------
    ValueError
        If two entries have one name, as two users may: the first would be lost.
    """
    entry = dict(pairs)
    if len(entry) < len(pairs):
        twice = next(name for name, times in Counter(name for name, _ in pairs).items() if times > 1)
        raise ValueError(f"{twice!r} stands twice in one object")
    x = entry.get(INPUT)
    if LABEL in entry and isinstance(x, list) and x and isinstance(x[0], list):
        try:
            values = np.array(x)
        except ValueError:  # lists of different lengths
            return entry
        if values.dtype.kind in "biuf":
            with np.errstate(over="ignore"):  # infinite ones are refused later
                entry[INPUT] = values.astype(np.float32)
    return entry


def _spelled(values: list[Any]) -> TypeGuard[list[str]]:
    return bool(values) and all(isinstance(value, str) for value in values)


def _part(where: str, entry: Any) -> Part:
    """Return the samples of a user."""
    if not isinstance(entry, Mapping) or INPUT not in entry or LABEL not in entry:
        has = ", ".join(entry) if isinstance(entry, Mapping) else type(entry).__name__
        raise DataError(f"{where} needs x and y, and has {has}")
    x, y = entry[INPUT], entry[LABEL]
    if not isinstance(y, list) or not isinstance(x, list | np.ndarray):
        raise DataError(f"{where}: x and y must be lists")
    if len(x) != len(y):
        raise DataError(f"{where} has {len(x)} samples in x and {len(y)} labels in y")
    if isinstance(x, np.ndarray) or not x:
        return Part(where, x, y)
    if all(isinstance(one, int | float) and abs(one) < LARGEST for one in x):  # one number a sample
        return Part(where, np.array(x, np.float32)[:, None], y)
    if _spelled(x):
        return Part(where, x, y)
    if all(isinstance(one, list) and _spelled(one) for one in x):
        return Part(where, x, y)
    lengths = [len(one) if isinstance(one, list) else None for one in x]
    if None not in lengths and len({*lengths}) > 1:
        odd = next(place for place, length in enumerate(lengths) if length != lengths[0])
        raise DataError(
            f"{where}: sample {odd + 1} has {lengths[odd]} numbers, and the first has {lengths[0]}"
        )
    raise DataError(f"{where}: x must hold texts, or lists of numbers of one length")


def _joined(path: Path, parts: list[Part], labels: list[Any]) -> Arrays | list[str]:
    """Return the samples of all users, if they are of one kind and shape; texts that are no signs as they are."""
    parts = [part for part in parts if part.y]
    first = parts[0]
    for part in parts[1:]:
        if isinstance(part.x, list) != isinstance(first.x, list):
            raise DataError(f"{part.where} has {_kind(part)}, and another user {_kind(first)}")
        if isinstance(part.x, np.ndarray) and part.x.shape[1:] != np.shape(first.x)[1:]:
            raise DataError(
                f"{part.where} has samples of shape {part.x.shape[1:]}, and other users {np.shape(first.x)[1:]}"
            )
    if isinstance(first.x, np.ndarray):
        return arrays_of(f"{path}: x", np.concatenate([part.x for part in parts]))
    samples = [sample for part in parts for sample in part.x]
    tweets = all(
        isinstance(sample, list) and len(sample) == TWEET and sample[-1] in FILES for sample in samples
    )
    texts = [
        sample if isinstance(sample, str) else sample[SAID] if tweets else " ".join(sample)
        for sample in samples
    ]
    if all(text.lower().endswith(IMAGES) for text in texts):
        raise DataError(
            f"{parts[0].where} names image files, such as {texts[0]!r}, which are not in the file; put them into a "
            "folder for each client and class, and give images:FOLDER"
        )
    [(length, times)] = Counter(map(len, texts)).most_common(1)
    if not (_spelled(labels) and all(len(label) == 1 for label in labels)) or 2 * times <= len(texts):
        return texts
    for part in parts:
        for place, text in enumerate(part.x):
            if len(text) != length or not text:
                raise DataError(
                    f"{part.where}: the text of sample {place + 1} has {len(text)} signs, and most have {length}"
                )
    check_values(path, len(texts) * length)
    why = f"{length} signs and the next one"
    return Arrays("text", symbol_numbers(texts)[..., None].astype(np.uint8), why, SYMBOL_NAMES)


def _kind(part: Part) -> str:
    return "texts" if isinstance(part.x, list) else "numbers"


def _signs(labels: Sequence[str]) -> Callable[[Kind], Cells]:
    names = np.array(SYMBOL_NAMES, dtype=object)
    return complete(names[symbol_numbers(labels)[:, 0]].tolist())


def _labels(path: Path, labels: Sequence[Any]) -> Callable[[Kind], Cells]:
    """Return labels as numbers, or as text if one is text."""
    for label in labels:
        if not isinstance(label, str | int | float):
            raise DataError(f"{path}: y holds {type(label).__name__}; a class or a number a sample is needed")
        if not isinstance(label, str) and abs(label) > LARGEST:
            raise DataError(f"{path}: y holds an infinite number, or one above {LARGEST:.2g}")
    if any(isinstance(label, str) for label in labels):
        return complete([label if isinstance(label, str) else f"{label:.15g}" for label in labels])
    values = np.array(labels, np.float64)
    texts = complete([f"{label:.15g}" for label in values.tolist()])
    numbers = number_cells(f"{path}: y", values, np.isnan(values))
    return lambda kind: texts(kind) if kind == "text" else numbers
