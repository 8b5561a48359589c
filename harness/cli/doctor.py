"""Command ``doctor``: a check of the installation, with fixes."""

from __future__ import annotations

import argparse
import json
import shutil
import tempfile
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

import torch

import datasets.catalog
from harness.cli.console import out, print_rows
from harness.executors import cores
from harness.storage.environment import machine, versions
from harness.storage.files import has_locks
from harness.storage.names import shadowed, shared
from harness.storage.store import Store

#: Package -> the extra that installs it, and what needs it.
EXTRAS = {
    "pyarrow": ("export", "Parquet and Arrow files"),
    "openpyxl": ("excel", "Excel files"),
    "h5py": ("tff", "HDF5 files of TensorFlow Federated"),
    "tensorboard": ("export", "export --tensorboard"),
    "ray": ("ray", "--executor ray"),
    "optuna": ("tune", "samplers of Optuna in searches"),
}
BROWSERS = ("chromium", "chromium-browser", "google-chrome", "chrome", "firefox")
LEAST_FREE = 2**30  # bytes on the disk


class Finding(NamedTuple):
    """One thing that was looked at.

    Attributes
    ----------
    what, state : str
        The thing, and "ok", "missing" (something optional) or "wrong".
    about, fix : str
        What was found, and what to do.
    """

    what: str
    state: str
    about: str
    fix: str = ""


def doctor_command(args: argparse.Namespace) -> int:
    """Print the findings; return 1 if something is wrong."""
    checks = list(findings(args.out))
    if args.json:
        print(json.dumps([check._asdict() for check in checks], indent=1))
    else:
        print_rows(
            [{"": check.what, "state": check.state, "found": check.about} for check in checks], "fedfrontier"
        )
        for check in checks:
            if check.fix:
                out.print(f"{check.what}: {check.fix}", markup=False, soft_wrap=True)
    return 1 if any(check.state == "wrong" for check in checks) else 0


def findings(results: Path) -> Iterator[Finding]:
    """Yield the findings; ``results`` is the results folder that would be used."""
    about = versions()
    yield Finding("versions", "ok", ", ".join(f"{name} {version}" for name, version in about.items()))
    conflicts = [*shadowed(), *shared()]
    yield Finding(
        "packages", "wrong" if conflicts else "ok", f"{len(conflicts)} hidden or mixed", "; ".join(conflicts)
    )
    hardware = machine()
    yield Finding("processor", "ok", f"{cores()} cores, {hardware['memory_gib']} GiB of memory")
    if torch.cuda.is_available():
        yield Finding("GPU", "ok", torch.cuda.get_device_name(0))
    else:
        yield Finding("GPU", "missing", "none", "runs use the CPU, which is faster for small models")
    for package, (extra, use) in EXTRAS.items():
        if find_spec(package) is None:
            yield Finding(package, "missing", use, f"pip install 'fedfrontier[{extra}]'")
        else:
            yield Finding(package, "ok", use)
    absent = [str(row["name"]) for row in datasets.catalog.describe() if not row["available"]]
    fix = "data fetch NAME downloads; data list --json says what to do offline" if absent else ""
    yield Finding("data", "missing" if absent else "ok", f"not here: {', '.join(absent) or 'none'}", fix)
    browser = next(filter(None, map(shutil.which, BROWSERS)), None)
    why = "" if browser else "pages of reports open in any browser, also on another machine"
    yield Finding("browser", "ok" if browser else "missing", Path(browser).name if browser else "none", why)
    yield from _folder(results)


def _folder(results: Path) -> Iterator[Finding]:
    """Look whether a results folder can be written and locked, in a folder beside it."""
    place = next(path for path in (results.resolve(), *results.resolve().parents) if path.exists())
    try:
        with tempfile.TemporaryDirectory(dir=place) as folder:
            locked = has_locks(Store(Path(folder) / "results").open().root)
    except OSError as error:
        yield Finding(
            "results", "wrong", f"{results} cannot be written", f"{error.strerror}; use another --out"
        )
        return
    if not locked:
        fix = "two processes could carry out one run; use a folder whose file system has locks (flock)"
        yield Finding("results", "wrong", f"{results} has no file locks", fix)
        return
    free = shutil.disk_usage(place).free
    state, fix = ("wrong", "free some, or use another --out") if free < LEAST_FREE else ("ok", "")
    yield Finding("results", state, f"{results} can be written; {free / 2**30:.1f} GiB free", fix)
