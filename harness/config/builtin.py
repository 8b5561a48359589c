"""Suites that come with the harness."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from harness.config.yaml import read_yaml
from harness.core.registry import unknown

COMMAND = "python -m harness suite"
#: The command of a suite as its report tells it. What it changes is one word of a shell, with or without quotes.
TOLD = re.compile(
    rf"{COMMAND} (?P<suite>[\w.-]+) --profile (?P<profile>[\w.-]+)"
    r"( --(sweep|random) ([\w.]+=[\w.,:+-]*|'[\w.]+=[^'\x00-\x1f]*')| --draws \d+)*"
    r"( --name (?P<name>[\w.-]+))?(?P<strict> --strict)?(?P<secure_rng> --secure-rng)? --out DIR"
)
FOLDER = Path(__file__).parent / "suites"


def names() -> list[str]:
    """Return their names."""
    return sorted(path.stem for path in FOLDER.glob("*.yaml"))


def repeats(command: str, suite: str, profile: str, specs: Iterable[Mapping[str, Any]]) -> bool:
    """Return whether a command, as a results folder tells it, could have made its suite.

    It is to be copied into a shell, and the folder may come from others: only this command, with words that a
    shell does not interpret, is one. What it says of lists of settings is not compared with the specs.
    """
    match = TOLD.fullmatch(command)
    if match is None or match["suite"] not in names():
        return False
    private = [spec["privacy"] for spec in specs if spec.get("privacy")]
    switches = all(
        privacy.get(name) is True for privacy in private for name in ("strict", "secure_rng") if match[name]
    )
    return (match["name"] or match["suite"], match["profile"]) == (suite, profile) and switches


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
