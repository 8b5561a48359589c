"""The source archive makes a wheel with every file of the packages, and no other."""

import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

ROOT = next(folder for folder in Path(__file__).parents if (folder / "pyproject.toml").exists())
PACKAGES = ("algorithms", "compression", "datasets", "harness", "privacy")
#: Builds in the current folder, with the tool of pyproject.toml and without an index.
BUILD = (
    "import sys; from setuptools import build_meta as tool; print(getattr(tool, sys.argv[1])(sys.argv[2]))"
)


def build(what, source, into):
    """Build `source` in a process of its own; return the path of what was made."""
    command = [sys.executable, "-c", BUILD, what, str(into)]
    done = subprocess.run(command, cwd=source, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return into / done.stdout.splitlines()[-1]


@pytest.mark.slow
def test_the_wheel_has_every_file_of_the_packages(tmp_path):
    """A suite, a template or a style that pyproject.toml forgets works in a checkout only."""
    source = tmp_path / "source"
    for name in PACKAGES:
        shutil.copytree(ROOT / name, source / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "MANIFEST.in", "README.md", "LICENSE", "CHANGELOG.md", "CITATION.cff"):
        shutil.copy(ROOT / name, source)
    there = {str(path.relative_to(source)) for name in PACKAGES for path in (source / name).rglob("*.*")}
    archive = build("build_sdist", source, tmp_path)
    with tarfile.open(archive) as packed:
        packed.extractall(tmp_path, filter="data")
    unpacked = tmp_path / archive.name.removesuffix(".tar.gz")
    assert (unpacked / "CITATION.cff").exists() and (unpacked / "CHANGELOG.md").exists()
    with zipfile.ZipFile(build("build_wheel", unpacked, tmp_path)) as wheel:
        held = {name for name in wheel.namelist() if not name.split("/")[0].endswith(".dist-info")}
    assert held == there
