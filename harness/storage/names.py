"""Whether our top-level packages are ours: names such as ``datasets`` are used by others too."""

from __future__ import annotations

from importlib.machinery import PathFinder
from importlib.metadata import PackageNotFoundError, distribution
from importlib.util import find_spec
from pathlib import Path

PACKAGES = ("algorithms", "compression", "datasets", "privacy")
ROOT = Path(__file__).resolve().parents[2]  # where all packages of ours are


def shadowed() -> list[str]:
    """Return a sentence for every package of ours that Python would find elsewhere, with a fix."""
    found = []
    for name in PACKAGES:
        spec = find_spec(name)
        origin = Path(spec.origin).resolve() if spec is not None and spec.origin else None
        if origin == ROOT / name / "__init__.py":
            continue
        if origin is None:  # a folder without __init__.py gives way to packages, so ours is missing
            found.append(f"package {name} is missing; reinstall fedfrontier")
        else:
            found.append(
                f"{origin} hides the package {name} of fedfrontier; use the command "
                "fedfrontier in place of python -m harness, start from another folder, or give fedfrontier an "
                "environment of its own"
            )
    return found


def shared() -> list[str]:
    """Return a sentence for every other distribution whose files lie among ours, with a fix."""
    found = []
    for name in PACKAGES:
        try:
            other = distribution(name)
        except PackageNotFoundError:
            continue
        place = PathFinder.find_spec(name, [str(other.locate_file(""))])
        if place is not None and place.origin and Path(place.origin).resolve().is_relative_to(ROOT / name):
            found.append(
                f"{name} {other.version} and fedfrontier have both installed files into {ROOT / name}; either may "
                f"be broken. Install them in separate environments; to mend this one, run pip uninstall {name}, "
                "and install fedfrontier again with --force-reinstall --no-deps"
            )
    return found
