"""The shape of the package: few rooms, one direction of imports, short files."""

import ast
import importlib
import pkgutil
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGES = ("harness", "privacy", "compression", "datasets", "algorithms")


def module_name(file: Path) -> str:
    """Return the dotted name of a file of ours."""
    parts = file.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


@cache
def files() -> dict[str, Path]:
    return {
        module_name(file): file for package in PACKAGES for file in sorted((ROOT / package).rglob("*.py"))
    }


def imported(file: Path) -> set[str]:
    """Return the modules of ours that a file imports, also inside functions and for types only."""
    found = set()
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            inner = {f"{node.module}.{alias.name}" for alias in node.names}
            found |= inner & files().keys() or {node.module}
    return found & files().keys()


@pytest.mark.slow
def test_no_two_files_import_each_other():
    graph = {name: imported(file) for name, file in files().items()}
    assert graph["harness.core.clients.clients"], "the search for imports finds nothing"
    pairs = sorted({tuple(sorted((a, b))) for a in graph for b in graph[a] if a != b and a in graph[b]})
    assert pairs == []


#: Rooms whose titles are still to be written.
PENDING = (
    "harness.cli.board", "harness.config", "harness.core.clients", "harness.core.execution",
    "harness.core.settings", "harness.executors", "harness.report", "harness.simulation.footprint",
    "harness.simulation.plan", "harness.storage.shapes", "privacy.claims", "privacy.compositions",
)  # fmt: skip


def titles(file: Path) -> list[str]:
    """Return the first word of every docstring of a file."""
    kinds = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
    nodes = [
        node for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))) if isinstance(node, kinds)
    ]
    return [text.split()[0] for node in nodes if (text := ast.get_docstring(node))]


def test_titles_are_imperative_or_name_a_thing():
    """A title as `What a run holds` names nothing; `Say how` and `Let it` do not tell what a function does."""
    found = {name for name, file in files().items() if {"What", "Let", "Say"} & set(titles(file))}
    assert sorted(name for name in found if not name.startswith(PENDING)) == []


def test_harness_has_at_most_a_dozen_rooms():
    entries = {path.stem for path in (ROOT / "harness").iterdir() if not path.name.startswith(("_", "py."))}
    assert len(entries) <= 12, sorted(entries)


@pytest.mark.parametrize("package", ["datasets", "harness.core", "privacy"])
def test_no_lazy_name_is_that_of_a_module(package):
    """A module that has been imported would stand in its place."""
    module = importlib.import_module(package)
    modules = {found.name for found in pkgutil.iter_modules(module.__path__)}
    assert not modules & set(module.__all__)
    assert all(getattr(module, name) is not None for name in module.__all__)


#: Commands that write a folder of their own, and read nothing else in it.
WRITERS = {"harness.cli.doctor", "harness.cli.run", "harness.api.making"}


def test_whoever_reads_results_checks_their_ids():
    """`results_folder` compares ids with records; a `Store` alone takes them as they are."""
    rooms = ("harness.cli", "harness.api", "harness.report")
    calls = {
        name
        for name, file in files().items()
        if name.startswith(rooms)
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8")))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "Store"
    }
    assert calls <= WRITERS
