"""The digest of the code that decides what a run releases, which is part of the key of what protects it.

Two releases that differ in their code must not share noise, as their difference would be free of it. A run's id
does not tell all code apart: it holds versions that people raise, and the digest of a plugin's file alone.
"""

from __future__ import annotations

import hashlib
import re
import sys
from collections.abc import Iterable, Mapping
from functools import cache, partial
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from datasets.cache import code_digest
from datasets.encoders import ENCODERS
from harness.config import plugins
from harness.config.imports import PACKAGES, Source, Sources, distributions, is_installed, sources_of
from harness.config.recorded import named_parts
from harness.core.errors import UserError

PROJECT = "fedfrontier"
#: Packages whose arithmetic or accounting decides what is released.
ARITHMETIC = ("torch", "numpy", "scipy", "opacus", "dp-accounting")
#: What older records have instead of a digest: their noise is keyed by the id alone.
NO_CODE = "none"
DIGEST = re.compile(r"[0-9a-f]{32}")


def code_of(spec: Mapping[str, Any]) -> str:
    """Return the digest of the code that a recorded spec uses: 32 hexadecimal digits.

    It covers our packages, the plugins of the parts that are named with what they import, and the versions of the
    packages that compute.

    Raises
    ------
    UserError
        If the source of something is not known.
    """
    plugin_sources = (plugins.sources(section, name) for section, name in named_parts(spec).items())
    return _digest(*(sources for sources in plugin_sources if sources is not None))


def code_of_encoder(name: str) -> str | None:
    """Return the digest of the code of a plugin's encoder, with what it imports; empty for ours.

    None if its code is not known: a notebook, or a module that is no plugin, defines it.
    """
    if (sources := plugins.sources("encoder", name)) is not None:
        return hashlib.sha256(_of_plugins(sources).encode()).hexdigest()
    entry = ENCODERS.get(name)
    return "" if entry is None or is_known(entry.defined) else None


def code_of_class(cls: type) -> str | None:
    """Return the digest of the code of a class that need not be registered, with what its module imports.

    None if its code is not known: a notebook defines it, or a function has made it.
    """
    module = sys.modules.get(cls.__module__)
    file = getattr(module, "__file__", None)
    if file is None or getattr(module, cls.__qualname__, None) is not cls:
        return None
    if cls.__module__.partition(".")[0] in PACKAGES:
        return _digest()
    path, package = Path(file), getattr(module, "__package__", None) or ""
    return _digest(sources_of([Source(cls.__module__, path.read_bytes(), path.parent, package)], PACKAGES))


def is_known(thing: object) -> bool:
    """Return whether a function or a class is of our packages or torch, whose code every digest covers."""
    while isinstance(thing, partial):
        thing = thing.func
    return str(getattr(thing, "__module__", "")).partition(".")[0] in (*PACKAGES, "torch")


def noise_name(id: str, code: str) -> str:
    """Return the key of all that protects a run, from its id and the digest of the code."""
    return id if code == NO_CODE else f"{id} {code}"


def paired_name(seed: int) -> str:
    """Return the name by which the noise of all paired runs of a seed is keyed (``privacy.draws: paired``)."""
    return f"paired runs of seed {seed}"


def checked_code(digest: str) -> str:
    """Return a digest as ``spec.json`` has it, or `NO_CODE`.

    Raises
    ------
    UserError
        If it is neither.
    """
    if digest != NO_CODE and not DIGEST.fullmatch(digest):
        raise UserError(
            f"noise-code: the 32 hexadecimal digits of a row's column noise_code, or {NO_CODE} for records that "
            f"have none, given {digest!r}"
        )
    return digest


def digest_of(packages: Iterable[tuple[str, str]]) -> str:
    """Return the digest of our packages, given their names and folders.

    Installed ones are known by the version of the project, others by their files, wherever these lie.

    Raises
    ------
    UserError
        If there are neither files nor a version.
    """
    digests = {}
    for name, folder in packages:
        source = None if is_installed(Path(folder)) else code_digest([folder])
        try:
            digests[name] = source or version(PROJECT)
        except PackageNotFoundError:
            raise UserError(
                f"privacy: the source of package {name} cannot be read and it is not installed, so noise cannot be "
                "keyed by the code; install it, or set privacy.secure_rng"
            ) from None
    return _text(digests)


def _ours() -> str | UserError:
    folders = []
    for name in PACKAGES:
        module = find_spec(name)
        folders += [(name, place) for place in (module and module.submodule_search_locations) or ()]
    try:
        return digest_of(folders)
    except UserError as error:  # only runs with privacy need it
        return error


def _digest(*plugins: Sources) -> str:
    if isinstance(OURS, UserError):
        raise OURS
    text = "\x1f".join([OURS, _of_plugins(*plugins, packages=ARITHMETIC)])
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


def _of_plugins(*plugins: Sources, packages: Iterable[str] = ()) -> str:
    """Return the digests of plugins' files, and the versions of some packages and of those that they import."""
    files = "\x1d".join(
        sorted(_text(plugin.files) for plugin in plugins)
    )  # two plugins may have helpers of one name
    tops = {name for plugin in plugins for name in plugin.packages}
    versions = {name: _version(name) for name in packages} | {
        f"import {top}": _installed(top) for top in tops
    }
    return f"{files}\x1f{_text(versions)}"


def _text(values: Mapping[str, str]) -> str:
    return "\x1e".join(f"{name}={value}" for name, value in sorted(values.items()))


_version = cache(version)


@cache
def _installed(top: str) -> str:
    """Return the versions of the installed packages that bring a module."""
    names = sorted(set(distributions().get(top, ())))
    return " ".join(f"{name} {version(name)}" for name in names)


#: Of the code that is imported: taken here, as later the files may be others.
OURS = _ours()
