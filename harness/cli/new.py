"""Command ``new``: the file of an algorithm, and its test, to begin with."""

from __future__ import annotations

import argparse
import re
from pathlib import Path
from string import Template

from harness.cli.console import out
from harness.config.recorded import BUILT_IN
from harness.core.errors import UserError

TEMPLATES = Path(__file__).with_name("templates")
NAME = re.compile(r"[a-z][a-z0-9]*(_[a-z0-9]+)*")


def new_command(args: argparse.Namespace) -> int:
    """Write the files, and print what to do with them."""
    algorithm, test = write_algorithm(args.name, args.out)
    out.print(
        f"wrote {algorithm} and {test}: a method with a row of state for each client, to be changed into yours\n"
        f"python -m harness check {args.name} --plugin {algorithm}\n"
        f"python -m harness run --plugin {algorithm} --algorithm {args.name} --data breast-cancer --clients 5 "
        "--rounds 10",
        markup=False,
        soft_wrap=True,
    )
    return 0


def write_algorithm(name: str, folder: Path) -> tuple[Path, Path]:
    """Write ``NAME.py`` and ``test_NAME.py``, and return their paths.

    Raises
    ------
    UserError
        If the name is not one of a registry or is taken, or a file exists.
    """
    if not NAME.fullmatch(name):
        raise UserError(
            f"new algorithm: a name is lower case with underscores, such as fed_mine, given {name!r}"
        )
    if name in BUILT_IN["algorithm"]:
        raise UserError(f"new algorithm: {name!r} is an algorithm already; give another name")
    words = {"NAME": name, "CLASS": "".join(word.capitalize() for word in name.split("_"))}
    written = {
        folder / f"{name}.py": TEMPLATES / "algorithm.txt",
        folder / f"test_{name}.py": TEMPLATES / "test_algorithm.txt",
    }
    for path in written:
        if path.exists():
            raise UserError(f"new algorithm: {path} exists; remove it, or give another name or --out FOLDER")
    folder.mkdir(parents=True, exist_ok=True)
    for path, template in written.items():
        path.write_text(Template(template.read_text("utf-8")).substitute(words), "utf-8")
    algorithm, test = written
    return algorithm, test
