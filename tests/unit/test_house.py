"""The shape of the package: few rooms, one direction of imports, short files."""

import ast
import importlib
import pkgutil
from collections.abc import Collection, Iterator, Mapping, Set
from functools import cache
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
PACKAGES = ("harness", "privacy", "compression", "datasets", "algorithms", "studies")


def module_name(file: Path) -> str:
    """Return the dotted name of a file of ours."""
    parts = file.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


@cache
def files() -> dict[str, Path]:
    return {
        module_name(file): file for package in PACKAGES for file in sorted((ROOT / package).rglob("*.py"))
    }


@cache
def tree(file: Path) -> ast.Module:
    return ast.parse(file.read_text(encoding="utf-8"))


def imported(code: ast.AST, known: Collection[str]) -> set[str]:
    """Return the known modules that code imports, also inside functions, for types only, or by a string."""
    found = set()
    for node in ast.walk(code):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            inner = {f"{node.module}.{alias.name}" for alias in node.names}
            found |= inner & set(known) or {node.module}
        elif isinstance(node, ast.Call) and ast.unparse(node.func).endswith(("import_module", "__import__")):
            constants = (part.value for part in ast.walk(node) if isinstance(part, ast.Constant))
            found |= {value for value in constants if isinstance(value, str)}
    return found & set(known)


def circles(graph: Mapping[str, Set[str]]) -> list[list[str]]:
    """Return the strongly connected components of more than one module: modules that reach each other."""
    reached: dict[str, set[str]] = {}
    for start in graph:
        seen, left = set(), [start]
        while left:
            new = graph[left.pop()] - seen
            seen |= new
            left += new
        reached[start] = seen - {start}
    groups = {
        tuple(sorted([name, *(other for other in reached[name] if name in reached[other])])) for name in graph
    }
    return sorted(list(group) for group in groups if len(group) > 1)


def test_no_files_import_each_other_in_a_circle():
    graph = {name: imported(tree(file), files().keys()) for name, file in files().items()}
    assert graph["harness.core.clients.clients"], "the search for imports finds nothing"
    assert circles(graph) == []


def test_a_circle_of_three_is_found_however_it_is_closed():
    """a imports b inside a function, b imports c for its types, c imports a by a string; d is no part of it."""
    code = {
        "p.a": "def f():\n    from p.b import g",
        "p.b": "if TYPE_CHECKING:\n    import p.c",
        "p.c": "importlib.import_module('p.a')",
        "p.d": "from p import a",
    }
    graph = {name: imported(ast.parse(text), code) for name, text in code.items()}
    assert circles(graph) == [["p.a", "p.b", "p.c"]]


MOST_METHODS = 25  # of a class
MOST_LINES = 60  # of a function


def definitions(kind: type[ast.AST] | tuple[type[ast.AST], ...]) -> Iterator[tuple[str, Any]]:
    """Yield the definitions of a kind in our packages, with their names."""

    def inside(node: ast.AST, name: str) -> Iterator[tuple[str, Any]]:
        for part in ast.iter_child_nodes(node):
            named = f"{name}.{part.name}" if isinstance(part, FUNCTIONS | ast.ClassDef) else name
            if isinstance(part, kind):
                yield named, part
            yield from inside(part, named)

    for module, file in files().items():
        yield from inside(tree(file), module)


FUNCTIONS = ast.FunctionDef | ast.AsyncFunctionDef


def test_no_class_has_too_many_methods():
    methods = {
        name: sum(isinstance(part, FUNCTIONS) for part in node.body)
        for name, node in definitions(ast.ClassDef)
    }
    assert {name: count for name, count in methods.items() if count > MOST_METHODS} == {}


def test_no_function_has_to_be_scrolled():
    lines = {
        name: node.end_lineno - node.lineno + 1
        for name, node in definitions((ast.FunctionDef, ast.AsyncFunctionDef))
    }
    assert {name: count for name, count in lines.items() if count > MOST_LINES} == {}


def titles(file: Path) -> list[str]:
    """Return the first word of every docstring of a file."""
    kinds = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
    nodes = [
        node for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))) if isinstance(node, kinds)
    ]
    return [text.split()[0] for node in nodes if (text := ast.get_docstring(node))]


def test_titles_are_imperative_or_name_a_thing():
    """A title as `What a run holds` names nothing; `Say how` and `Let it` do not tell what a function does."""
    coy = {"What", "Which", "How", "Who", "Whose", "Where", "Let", "Say"}
    found = {name for name, file in files().items() if coy & set(titles(file))}
    assert found == set()


def test_a_part_is_one_of_a_message():
    """A state has fields, samples have columns, a cohort has chunks. What plugins bring is of other rooms."""
    messages = ("harness.core.wire", "harness.core.clients.pruning", "harness.simulation.attacks.tap")
    found = {
        name
        for name, file in files().items()
        if name.startswith(("harness.core", "harness.simulation")) and not name.startswith(messages)
        for node in ast.walk(tree(file))
        for word in (getattr(node, key, None) for key in ("id", "arg", "attr", "name"))
        if word in ("part", "parts")
    }
    assert found == {"harness.core.problem"}  # `set_apart`: of a model


def test_harness_has_at_most_a_dozen_rooms():
    entries = {path.stem for path in (ROOT / "harness").iterdir() if not path.name.startswith(("_", "py."))}
    assert len(entries) <= 12, sorted(entries)


def test_no_lazy_name_is_that_of_a_module():
    """A module that has been imported would stand in its place."""
    module = importlib.import_module("harness.core")
    modules = {found.name for found in pkgutil.iter_modules(module.__path__)}
    assert not modules & set(module.__all__)
    assert all(getattr(module, name) is not None for name in module.__all__)


#: Those that write a folder of their own and read nothing else; records of submissions are checked one by one.
WRITERS = {"harness.cli.doctor", "harness.cli.run", "harness.api.making", "studies.board.submission"}


def test_whoever_reads_results_checks_their_ids():
    """`results_folder` compares ids with records; a `Store` alone takes them as they are."""
    rooms = ("harness.cli", "harness.api", "harness.report", "studies")
    calls = {
        name
        for name, file in files().items()
        if name.startswith(rooms)
        for node in ast.walk(tree(file))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "Store"
    }
    assert calls <= WRITERS
