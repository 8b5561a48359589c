"""Defaults, versions and descriptions of the parts of a run, without importing the parts.

Commands that only read results need nothing else of the parts that records name. Importing the parts takes a
second, most of it torch. So these facts are kept in a file of the cache, under a digest of our source code.
"""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Mapping
from contextlib import suppress
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from typing import Any, Protocol, cast

from datasets.cache import cache_dir, make_cache_folder, source_digest, trusted
from harness.storage.files import Unwritable, read_json, write_json

PACKAGES = ("harness", "privacy", "compression", "algorithms", "datasets")
REGISTRIES = {"torch", "datasets.catalog"}  # whoever registers something has imported one of them
Row = dict[str, Any]


class Parts(Protocol):
    """Facts about parts; sections and names are those of a run file."""

    def fields(self, section: str) -> Mapping[str, Any]:
        """Return the defaults of a section's own fields, as they are recorded; ``run`` is the run itself."""

    def defaults(self, section: str, name: str) -> Mapping[str, Any] | None:
        """Return the defaults of a part, as they are recorded; None if there is no such part."""

    def version(self, section: str, name: str) -> int | None:
        """Return the version of a part of ours; None if it has none or there is no such part."""

    def own_version(self, section: str, name: str) -> str | None:
        """Return the version of a part of a plugin or a notebook; None for ours."""

    def meta(self, algorithm: str) -> Mapping[str, Any] | None:
        """Return ``family`` and ``pooled`` of an algorithm's `Meta`; None if there is no such algorithm."""

    def rows(self, kind: str) -> list[Row]:
        """Return a line for every part of a kind, for lists."""


def parts() -> Parts:
    """Return the facts about all parts.

    If torch or the catalog of data sets has been imported, they come from the registries, which may hold parts of
    the user's.
    """
    return _registered() if REGISTRIES & sys.modules.keys() else _recalled()


@cache
def _registered() -> Parts:
    return cast(Parts, import_module("harness.config.registered").REGISTERED)


class Recalled:
    """Facts about our parts, read from the cache.

    Parameters
    ----------
    content : Mapping
        What `harness.config.registered.written_down` returns.
    """

    def __init__(self, content: Mapping[str, Any]) -> None:
        self._content = content

    def fields(self, section: str) -> Mapping[str, Any]:
        """See `Parts`."""
        return cast(Row, self._content["fields"].get(section, {}))

    def defaults(self, section: str, name: str) -> Mapping[str, Any] | None:
        """See `Parts`."""
        return cast("Row | None", self._content["defaults"].get(section, {}).get(name))

    def version(self, section: str, name: str) -> int | None:
        """See `Parts`."""
        return cast("int | None", self._content["versions"].get(section, {}).get(name))

    def own_version(self, section: str, name: str) -> str | None:
        """See `Parts`."""
        return None  # `parts` asks the registries where something may be registered

    def meta(self, algorithm: str) -> Mapping[str, Any] | None:
        """See `Parts`."""
        return cast("Row | None", self._content["metas"].get(algorithm))

    def rows(self, kind: str) -> list[Row]:
        """See `Parts`."""
        return cast(list[Row], self._content["rows"][kind])


@cache
def _recalled() -> Parts:
    """Return the facts that the cache holds for this source code; write them if it has none."""
    folders = _folders()
    source = source_digest(folders)
    if source is None:
        return _registered()
    place = hashlib.sha256(str(folders).encode(errors="surrogateescape")).hexdigest()[:16]
    with suppress(OSError, ValueError, KeyError, TypeError, RuntimeError):  # the last: no home for the cache
        path = cache_dir("parts") / f"{place}.json"
        content = read_json(path, "source", "seal", "parts") if path.exists() and trusted(path.parent) else {}
        if content and content["source"] == source and content["seal"] == _seal(content["parts"]):
            return Recalled(content["parts"])
    known = import_module("harness.config.registered").written_down()
    with suppress(OSError, Unwritable, RuntimeError):  # it is found out again next time
        path = cache_dir("parts") / f"{place}.json"
        if source_digest(folders) == source:  # or what was imported may be other code
            make_cache_folder(path.parent)
            if trusted(path.parent):
                write_json(path, {"source": source, "seal": _seal(known), "parts": known})
    return _registered()


def _seal(known: object) -> str:
    """Return the checksum of what is kept: a file that was damaged is written again."""
    return hashlib.sha256(json.dumps(known, sort_keys=True).encode()).hexdigest()


def _folders() -> list[str]:
    """Return the folders of our packages."""
    found = (find_spec(name) for name in PACKAGES)
    return [place for spec in found if spec for place in spec.submodule_search_locations or ()]
