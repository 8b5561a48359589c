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
    """The folder takes no more: no run's fault, so none is marked as failed, and all can go on later."""


def read_json(path: Path, *needed: str) -> dict[str, Any]:
    """Read a JSON file that holds an object with certain fields.

    Raises
    ------
    UserError
        If it is damaged.
    """
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (json.JSONDecodeError, UnicodeDecodeError, RecursionError):
        content = None
    if not isinstance(content, dict) or any(name not in content for name in needed):
        raise UserError(
            f"{path} is damaged; remove it, or if it is a run's, that run's folder: the command that wrote it "
            "makes it again"
        )
    return content


def write_json(path: Path, content: Mapping[str, Any]) -> None:
    """Write a JSON file, whole or not at all."""
    write_text(path, json.dumps(content, indent=1) + "\n")


def write_text(path: Path, content: str) -> None:
    """Write a text file, whole or not at all."""
    with replacing(path) as temporary:
        temporary.write_text(content, encoding="utf-8")


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Give a temporary file that takes the path's place when all went well."""
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    try:
        with writing(path):
            yield temporary
            temporary.replace(path)
    finally:
        with suppress(OSError):  # what cannot be removed now is removed by the next holder of the claim
            temporary.unlink(missing_ok=True)


@contextmanager
def writing(path: Path) -> Iterator[Path]:
    """Say in one line what cannot be written and why, as on a full disk."""
    try:
        yield path
    except (OSError, RuntimeError) as error:
        cause = error if isinstance(error, OSError) else error.__context__  # torch wraps what its file said
        if not isinstance(cause, OSError):
            raise
        raise Unwritable(
            f"{path} cannot be written: {cause.strerror or cause}. Runs keep what they have; when the folder can "
            "be written again, the same command goes on from there"
        ) from None
