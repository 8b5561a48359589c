"""Atomic file writes, and one-line errors for files that cannot be read or written."""

from __future__ import annotations

import json
import secrets
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from harness.core.registry import UserError


class Unwritable(UserError):
    """A folder that cannot be written. No run is marked as failed, and all can continue later."""


def read_json(path: Path, *needed: str) -> dict[str, Any]:
    """Read a JSON file that holds an object with the needed fields.

    Raises
    ------
    UserError
        If the file is damaged.
    """
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (json.JSONDecodeError, UnicodeDecodeError, RecursionError):
        content = None
    if not isinstance(content, dict) or any(name not in content for name in needed):
        raise UserError(
            f"{path} is damaged; remove it, or the folder of the run that it belongs to, and repeat the command "
            "that wrote it"
        )
    return content


def write_json(path: Path, content: Mapping[str, Any]) -> None:
    """Write a JSON file atomically."""
    write_text(path, json.dumps(content, indent=1) + "\n")


def write_text(path: Path, content: str) -> None:
    """Write a text file atomically."""
    with replacing(path) as temporary:
        temporary.write_text(content, encoding="utf-8")


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Yield a temporary path that replaces ``path`` on success."""
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    try:
        with writing(path):
            yield temporary
            temporary.replace(path)
    finally:
        with suppress(OSError):  # otherwise the next holder of the claim removes it
            temporary.unlink(missing_ok=True)


@contextmanager
def writing(path: Path) -> Iterator[Path]:
    """Turn write errors, as on a full disk, into `Unwritable`."""
    try:
        yield path
    except (OSError, RuntimeError) as error:
        cause = (
            error if isinstance(error, OSError) else error.__context__
        )  # torch wraps the error of its file
        if not isinstance(cause, OSError):
            raise
        raise Unwritable(
            f"{path} cannot be written: {cause.strerror or cause}. Results so far are kept; when the folder can "
            "be written again, the same command continues from there"
        ) from None
