"""Suites that come with the harness."""

from __future__ import annotations

from pathlib import Path

from harness.config.yaml import read_yaml
from harness.core.errors import unknown

FOLDER = Path(__file__).parent / "suites"


def names() -> list[str]:
    """Return their names."""
    return sorted(path.stem for path in FOLDER.glob("*.yaml"))


def path_of(name: str) -> Path:
    """Return the file of a suite.

    Raises
    ------
    UserError
        If there is no such suite.
    """
    if name not in names():
        raise unknown("suite", name, names())
    return FOLDER / f"{name}.yaml"


def title_of(name: str) -> str:
    """Return the title of a suite, without expanding it."""
    return str(read_yaml(path_of(name)).get("title", name))
