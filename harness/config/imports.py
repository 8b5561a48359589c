"""The sources that a Python file may execute: what it imports, read without importing anything.

Imports are found in the syntax, wherever they stand, also in functions that may never run. What has been imported
depends on the process; the syntax does not. Names that code makes up while it runs, and files that it reads itself,
are not found.
"""

from __future__ import annotations

import ast
import hashlib
import sys
import sysconfig
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib.machinery import ModuleSpec, PathFinder
from importlib.metadata import packages_distributions
from pathlib import Path
from pkgutil import get_importer

from harness.core.errors import UserError

PACKAGES = ("harness", "privacy", "compression", "algorithms", "datasets")  # ours
INSTALLED = {"site-packages", "dist-packages"}
STDLIB = tuple(Path(sysconfig.get_path(name)).resolve() for name in ("stdlib", "platstdlib"))
CALLS = {"import_module", "__import__"}  # functions whose first argument, if it is a text, names a module


@dataclass
class Sources:
    """The modules and packages that some files consist of.

    Attributes
    ----------
    files : dict of str to str
        Name of a module outside the standard library and installed packages -> digest of its file; ``absent`` where
        there is none.
    packages : set of str
        Installed packages that are imported, by the names of their topmost modules.
    """

    files: dict[str, str] = field(default_factory=dict)
    packages: set[str] = field(default_factory=set)


@dataclass(frozen=True)
class Source:
    """A file to begin with.

    Attributes
    ----------
    name : str
        Name of its module.
    content : bytes
        What is executed, which may no longer be what the file holds.
    folder : Path
        Where its imports are looked for last, besides the module path.
    package : str
        Package that its relative imports begin from; empty for a file in none.
    """

    name: str
    content: bytes
    folder: Path
    package: str = ""


def sources_of(roots: Sequence[Source], covered: Collection[str] = ()) -> Sources:
    """Return what some files consist of, with all that they import, directly or not.

    Parameters
    ----------
    roots : sequence of Source
        The files.
    covered : collection of str
        Topmost modules that are known by other means and not looked into.

    Raises
    ------
    UserError
        If a file that is imported cannot be read.
    """
    sources, waiting = Sources(), list(roots)
    for root in roots:
        sources.files[root.name] = _digest(root.content)
    while waiting:
        source = waiting.pop()
        for name in dict.fromkeys(_imported_names(source)):
            top = name.partition(".")[0]
            if top not in covered:
                waiting += _follow(name, source.folder, sources)
    return sources


distributions = cache(packages_distributions)


def is_installed(path: Path) -> bool:
    """Return whether a file belongs to an installed package, whose version tells what it holds."""
    return not INSTALLED.isdisjoint(path.parts)


def _follow(name: str, folder: Path, sources: Sources) -> Iterator[Source]:
    """Note a module and the packages around it; yield those whose imports are still to be followed."""
    places: Sequence[str] | None = None
    parts = name.split(".")
    for depth in range(1, len(parts) + 1):
        full = ".".join(parts[:depth])
        spec = _spec(full, places, folder)
        if spec is None:  # of a package, the rest names something in it that is no module
            if depth == 1:
                sources.files.setdefault(full, "absent")
            return
        places = spec.submodule_search_locations
        if spec.origin is None or not spec.has_location:
            if places is None:  # built into Python
                return
            continue  # a package without a file of its own
        path = Path(spec.origin)
        if is_installed(path) and parts[0] in distributions():  # else somebody has put it there
            sources.packages.add(parts[0])
            return
        if any(path.resolve().is_relative_to(library) for library in STDLIB):
            return
        if full not in sources.files:
            content = _content(full, path)
            sources.files[full] = _digest(content)
            if path.suffix == ".py":
                package = full if places is not None else full.rpartition(".")[0]
                yield Source(full, content, folder, package)
        if places is None:
            return


def _spec(name: str, places: Sequence[str] | None, folder: Path) -> ModuleSpec | None:
    """Return where a module is, without importing the packages around it as `importlib.util.find_spec` does.

    ``places`` are the folders of the package around it; None for a topmost module.
    """
    if places is None:
        specs = (finder.find_spec(name, None) for finder in sys.meta_path)
        return next(filter(None, specs), None) or PathFinder.find_spec(name, [str(folder)])
    portions: list[str] = []  # of a package without a file of its own
    for place in places:
        finder = get_importer(place)
        spec = finder.find_spec(name) if finder is not None else None
        if spec is not None and spec.loader is not None:
            return spec
        portions += (spec and spec.submodule_search_locations) or ()
    if not portions:
        return None
    package = ModuleSpec(name, None, is_package=True)
    package.submodule_search_locations = portions
    return package


def _content(name: str, path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise UserError(
            f"module {name} cannot be read ({error.strerror}), so a change of it would go unnoticed; import it "
            "from a folder, or install it as a package"
        ) from None


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def _imported_names(source: Source) -> Iterator[str]:
    """Yield the full names of what a file imports, with names that may be modules or not."""
    try:
        tree = ast.parse(source.content)
    except (SyntaxError, ValueError):  # whoever imports it will be told
        return
    calls = CALLS | set(_renamed_importers(tree))
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = _absolute(node.module or "", node.level, source.package)
            names = [alias.name for alias in node.names]
            yield from filter(None, [base])
            yield from (f"{base}.{name}" if base else name for name in names if name != "*")
            if "*" in names:  # also the modules that the package lists in __all__
                yield from (f"{base}.{name}" for name in _modules(base, source.folder))
        elif isinstance(node, ast.Call) and (name := _module_of_call(node, calls)):
            level = len(name) - len(name.lstrip("."))
            yield _absolute(name.lstrip("."), level, source.package)


def _absolute(name: str, level: int, package: str) -> str:
    """Return the full name of a module that is named relative to a package."""
    if not level:
        return name
    above = package.split(".")[: len(package.split(".")) - (level - 1)]
    return ".".join(filter(None, [*above, name]))


def _renamed_importers(tree: ast.Module) -> Iterator[str]:
    """Yield other names that a file gives to functions that import."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom):
            yield from (alias.asname for alias in node.names if alias.asname and alias.name in CALLS)


def _module_of_call(call: ast.Call, calls: Collection[str]) -> str:
    """Return the module that a call imports by a text; empty for other calls."""
    called = call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")
    arguments = [*call.args[:1], *(keyword.value for keyword in call.keywords if keyword.arg == "name")]
    text = (
        arguments[0].value if arguments and isinstance(arguments[0], ast.Constant) and called in calls else ""
    )
    return text if isinstance(text, str) else ""


def _modules(package: str, folder: Path) -> list[str]:
    """Return the names of the modules in a package of files; none if it is installed or no package."""
    places: Sequence[str] | None = None
    parts = package.split(".")
    for depth in range(1, len(parts) + 1):
        spec = _spec(".".join(parts[:depth]), places, folder)
        places = None if spec is None else spec.submodule_search_locations
        if places is None or (spec is not None and spec.origin and is_installed(Path(spec.origin))):
            return []
    inside = (path for place in places or () for path in sorted(Path(place).glob("*.py")))
    return [path.stem for path in inside if path.stem != "__init__"]
