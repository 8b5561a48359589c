"""Files that are one data set together: their order, their splits and their digest."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from datasets.errors import DataError

TRAIN, TEST = "train", "test"


class Shard(NamedTuple):
    """A file of a data set, and the split that its name or folder says; empty if none."""

    path: Path
    split: str


def joint_digest(parts: Iterable[tuple[str, str]]) -> str:
    """Return the digest of one file, or of the splits and digests of several."""
    parts = list(parts)
    if len(parts) == 1:
        return parts[0][1]
    lines = "".join(f"{split} {digest}\n" for split, digest in parts)
    return hashlib.sha256(lines.encode()).hexdigest()


def split_folders(path: Path) -> list[tuple[Path, str]]:
    """Return the folders ``train`` and ``test`` of a folder with their names, or the folder itself without a name.

    Raises
    ------
    DataError
        If it has one of them only.
    """
    present = [name for name in (TRAIN, TEST) if (path / name).is_dir()]
    if len(present) == 1:
        other = TEST if present == [TRAIN] else TRAIN
        raise DataError(
            f"the folder {path} has a folder {present[0]!r} and no {other!r}; give {path / present[0]}, or both"
        )
    return [(path / name, name) for name in present] or [(path, "")]
