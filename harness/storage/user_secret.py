"""The secret of a user, by which strict runs name their data.

A digest of data confirms a guess of all of them. Keyed by a secret that is in no results folder, it is the
same in all runs of a user and tells others nothing.
"""

from __future__ import annotations

import hashlib
import os
import secrets
import stat
from pathlib import Path

from datasets.cache import cache_dir
from harness.core.errors import UserError

LENGTH = 32  # bytes


def salted(digest: str) -> str:
    """Return the digest of data under the user's secret.

    Raises
    ------
    UserError
        If the secret cannot be kept, or others may read it.
    """
    return hashlib.blake2b(digest.encode(), key=_secret(cache_dir("secret")), digest_size=32).hexdigest()


def _secret(path: Path) -> bytes:
    """Return the secret, which the first process that needs it makes."""
    try:
        if not path.exists():
            _make(path)
        status = path.stat()
        secret = path.read_bytes()
    except OSError as error:
        raise UserError(
            f"privacy.strict: the secret that hides the digest of the data cannot be kept in {path}: "
            f"{error.strerror}; set FEDFRONTIER_CACHE to a private folder"
        ) from None
    others = os.name == "posix" and (status.st_uid != os.getuid() or stat.S_IMODE(status.st_mode) & 0o077)
    if others or len(secret) != LENGTH:
        raise UserError(
            f"privacy.strict: {path} is not a valid secret ({LENGTH} bytes that only you can read); remove "
            "the file"
        )
    return secret


def _make(path: Path) -> None:
    """Write a secret at once, so that no process sees a part of it; the first of several keeps its own."""
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(f".{path.name}-{secrets.token_hex(8)}")
    file = os.open(draft, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600)
    try:
        with os.fdopen(file, "wb") as out:
            out.write(secrets.token_bytes(LENGTH))
        os.link(draft, path)
    except FileExistsError:
        pass  # another process was first
    finally:
        draft.unlink()
