"""Plugins: files named with ``--plugin``, and installed packages.

A plugin registers its parts with the same decorators as the harness. The identity of a run includes the version of
every plugin that it uses: the digest of a file, or the version of a package. A changed file therefore gives new
runs. Modules that a plugin imports are no part of the identity, but of the key of a run's noise
(`harness.config.code`).
"""

from __future__ import annotations

import hashlib
import logging
import sys
from collections.abc import Callable, Iterable, Mapping, MutableMapping
from functools import partial
from importlib.metadata import EntryPoint, entry_points
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from traceback import extract_tb
from types import FunctionType
from typing import Any, NamedTuple

import algorithms
from compression.codec import CODECS
from compression.errors import CompressionError
from datasets.catalog import CATALOG
from datasets.encoders import ENCODERS
from datasets.errors import DataError
from datasets.partition import PARTITIONS, PartitionError
from datasets.vertical import VERTICAL
from harness.config.imports import PACKAGES, Source, Sources, sources_of
from harness.core.algorithm import ALGORITHMS, Algorithm
from harness.core.errors import UserError
from harness.core.registry import PLUGGED, PLUGINS, Registry
from harness.metrics import METRICS
from harness.models import MODELS
from harness.problems import PROBLEMS
from privacy.own_mechanism import MECHANISMS, MechanismError

algorithms.load()  # so that a plugin cannot take the name of a built-in

log = logging.getLogger(__name__)

REGISTRIES: dict[str, Registry[Any] | MutableMapping[str, Any]] = {
    "algorithm": ALGORITHMS,
    "problem": PROBLEMS,
    "data": CATALOG,
    "encoder": ENCODERS,
    "partition": PARTITIONS,
    "model": MODELS,
    "compression": CODECS,
    "privacy": MECHANISMS,
    "metric": METRICS,
}


class Plugin(NamedTuple):
    """A plugin file as it was read; worker processes execute these bytes even if the file has changed."""

    path: Path
    source: bytes

    @property
    def version(self) -> str:
        """Version of the code in the identity of a run."""
        return f"sha256:{hashlib.sha256(self.source).hexdigest()[:16]}"


_files: dict[Path, Plugin] = {}
_packages: set[str] = set()
_sources: dict[str, Sources] = {}  # by the versions of plugins, as they were when these were loaded


def load(paths: Iterable[str | Path] = ()) -> None:
    """Load the installed plugins and the given files.

    A file that has not changed is not loaded again. The parts of one that has take the place of its earlier ones.

    Raises
    ------
    UserError
        If a plugin cannot be read, raises, registers nothing or takes an existing name. What was registered before
        stays.
    """
    installed: dict[str, list[EntryPoint]] = {}
    for point in entry_points(group=PLUGINS):
        package = f"{point.dist.name} {point.dist.version}" if point.dist else point.value
        installed.setdefault(package, []).append(point)
    for package, points in sorted(installed.items()):
        if package not in _packages:
            _register(f"plugin {package}", package, partial(_load_all, points))
            _packages.add(package)
            _sources[package] = _of_package(points)
    for path in paths:
        resolved = Path(path).expanduser().resolve()
        try:
            _run(Plugin(resolved, resolved.read_bytes()))
        except FileNotFoundError:
            raise UserError(f"plugin {path}: no such file") from None
        except OSError as error:
            raise UserError(f"plugin {path} cannot be read: {error.strerror}") from None


def loaded() -> tuple[Plugin, ...]:
    """Return the files loaded so far, for `restore` in another process."""
    return tuple(_files.values())


def restore(plugins: Iterable[Plugin]) -> None:
    """Load the plugins that another process has loaded."""
    load()
    for plugin in plugins:
        _run(plugin)


def sources(section: str, name: str) -> Sources | None:
    """Return what the plugin that brings a part consists of, with its imports; None for parts of no plugin."""
    return _sources.get(PLUGGED.get((section, name), ""))


def authors_line(error: BaseException, algorithm: type[Algorithm]) -> str:
    """Return the line of an algorithm or a plugin that has raised an error, or called what has.

    Returns
    -------
    str
        Such as `` (mine.py, line 12, in round)``; empty if no line of theirs took part.
    """
    methods = [vars(cls).get(name) for cls in algorithm.__mro__ for name in ("init", "round")]
    written = {method.__code__.co_filename for method in methods if isinstance(method, FunctionType)}
    written = {*written, *map(str, _files)} - {Algorithm.round.__code__.co_filename}
    frames = [frame for frame in extract_tb(error.__traceback__) if frame.filename in written]
    if not frames:
        return ""
    last = frames[-1]
    return f" ({Path(last.filename).name}, line {last.lineno}, in {last.name})"


def _of_package(points: Iterable[EntryPoint]) -> Sources:
    """Return the sources of the modules of entry points; none for installed packages, which have versions."""
    lines = "\n".join(f"import {point.module}" for point in points)
    return sources_of([Source("entry points", lines.encode(), Path.cwd())], PACKAGES)


def _load_all(points: Iterable[EntryPoint]) -> None:
    for point in points:
        point.load()


def _run(plugin: Plugin) -> None:
    loaded = _files.get(plugin.path)
    if loaded == plugin:
        return
    number = len(_files) if loaded is None else list(_files).index(plugin.path)
    name = f"fedfrontier_plugin_{number}_{plugin.path.stem}"
    earlier = sys.modules.pop(name, None)

    def execute() -> None:
        spec = spec_from_file_location(name, plugin.path)
        if spec is None:
            raise UserError("is not a Python file; its name must end in .py")
        module = sys.modules[name] = module_from_spec(spec)  # dataclasses look up their module
        exec(compile(plugin.source, str(plugin.path), "exec", dont_inherit=True), vars(module))
        # Afterwards, as it may have added to the module path.
        source = Source("plugin", plugin.source, plugin.path.parent)
        _sources[plugin.version] = sources_of([source], PACKAGES)

    try:
        _register(
            f"plugin {plugin.path}", plugin.version, execute, None if loaded is None else loaded.version
        )
    except UserError:
        sys.modules.pop(name, None)
        if earlier is not None:
            sys.modules[name] = earlier
        raise
    _files[plugin.path] = plugin


def _register(plugin: str, version: str, execute: Callable[[], object], earlier: str | None = None) -> None:
    """Execute a plugin and record what it registers, in the place of what its earlier version has registered.

    If it raises, everything is as before.
    """
    before = _parts()
    replaced = [key for key, brought_by in PLUGGED.items() if brought_by == earlier]
    for kind, name in replaced:
        del REGISTRIES[kind][name]
    try:
        execute()
        new = _new(before)
        if duplicates := PARTITIONS.keys() & VERTICAL.keys():
            raise UserError(f"two partitions are called {duplicates.pop()!r}")
        if not new:
            raise UserError(
                "registers nothing; put @register above an algorithm, @partition above a partition, @codec above a "
                "codec, @mechanism above a mechanism, @model(...), @metric(...), @data_set(...) or @encoder(...) "
                "above a function"
            )
    except (Exception, SystemExit) as error:  # a plugin may raise anything
        _restore(before)
        expected = isinstance(
            error, UserError | DataError | PartitionError | CompressionError | MechanismError
        )
        why = str(error) if expected else f"{type(error).__name__}: {error}"
        lines = [frame.lineno for frame in extract_tb(error.__traceback__) if plugin.endswith(frame.filename)]
        raise UserError(f"{plugin}{f', line {lines[-1]}' if lines else ''}: {why}") from error
    for key in replaced:
        del PLUGGED[key]
    PLUGGED.update(dict.fromkeys(new, version))
    log.info("%s (%s) brings %s", plugin, version, ", ".join(f"{kind} {name}" for kind, name in new))


class _Part(NamedTuple):
    """A registered part, and the class or function that somebody wrote, if the part is another."""

    thing: Any
    defined: object = None


def _parts() -> dict[tuple[str, str], _Part]:
    """Return all that is registered."""
    return {
        (kind, name): _Part(things[name], things.defined(name) if isinstance(things, Registry) else None)
        for kind, things in REGISTRIES.items()
        for name in things
    }


def _new(before: Mapping[tuple[str, str], _Part]) -> list[tuple[str, str]]:
    """Return what was registered since, also in the place of what a notebook has defined."""
    return sorted(
        key for key, part in _parts().items() if key not in before or before[key].thing is not part.thing
    )


def _restore(before: Mapping[tuple[str, str], _Part]) -> None:
    """Unregister what was registered since, and register again what has given way."""
    for kind, name in _new(before):
        del REGISTRIES[kind][name]
    for (kind, name), earlier in before.items():
        things = REGISTRIES[kind]
        if name in things:
            continue
        if isinstance(things, Registry):
            things.add(name, earlier.thing, earlier.defined)
        else:
            things[name] = earlier.thing
