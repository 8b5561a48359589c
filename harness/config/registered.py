"""Facts about the registered parts of a run: ours and those of plugins and notebooks."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

from pydantic_core import to_jsonable_python

import algorithms
from compression import CODECS
from datasets.files import FORMATS
from datasets.partition import PARTITIONS
from datasets.topology import TOPOLOGIES
from datasets.vertical import VERTICAL
from harness import models
from harness.config import notebook
from harness.config.fields import SECTIONS
from harness.config.parts import Row
from harness.config.run import RunSpec
from harness.config.settings import defaults
from harness.core.algorithm import ALGORITHMS
from harness.core.registry import PLUGGED
from harness.core.settings.section import Section
from harness.problems import PROBLEMS
from privacy.own_mechanism import MECHANISMS

algorithms.load()


def own_version(section: str, name: str) -> str | None:
    """Return the version of a part of a plugin or a notebook; None for ours."""
    return PLUGGED.get((section, name)) or notebook.version(section, name)


class Registered:
    """Facts from the registries; see `harness.config.parts.Parts`."""

    def fields(self, section: str) -> Mapping[str, Any]:
        """Return the defaults of a section's own fields."""
        cls = RunSpec if section == "run" else SECTIONS.get(section)
        return {} if cls is None else _fields(cls)

    def defaults(self, section: str, name: str) -> Mapping[str, Any] | None:
        """Return the defaults of a part."""
        if section == "model":
            return to_jsonable_python(models.complete(name, {})) if name in models.names() else None
        kinds = self._kinds().get(section, {})
        if name not in kinds:
            return None
        made = kinds[name]
        return _values(made.settings if section == "problem" else made)

    def version(self, section: str, name: str) -> int | None:
        """Return the version of a part."""
        if section == "data":
            return FORMATS[name].version if name in FORMATS else None
        kinds = self._kinds()[section]
        if name not in kinds:
            return None
        made = kinds[name]
        number: int = made.meta.version if section == "algorithm" else made.version
        return number

    def own_version(self, section: str, name: str) -> str | None:
        """Return the version of a part of a plugin or a notebook."""
        return own_version(section, name)

    def meta(self, algorithm: str) -> Mapping[str, Any] | None:
        """Return ``family`` and ``pooled`` of an algorithm."""
        if algorithm not in ALGORITHMS:
            return None
        meta = ALGORITHMS[algorithm].meta
        return {"family": meta.family, "pooled": meta.pooled}

    def rows(self, kind: str) -> list[Row]:
        """Return a line for every part of a kind."""
        return ROWS[kind]()

    @staticmethod
    def _kinds() -> dict[str, Any]:
        """Return the registered parts of the sections that have settings and versions."""
        return {
            "algorithm": ALGORITHMS,
            "problem": PROBLEMS,
            "topology": TOPOLOGIES,
            "partition": {**PARTITIONS, **VERTICAL},
        }


REGISTERED = Registered()


def written_down() -> dict[str, Any]:
    """Return all facts as JSON values, for `harness.config.parts.Recalled`."""
    kinds = {**Registered._kinds(), "model": models.names()}
    return {
        "fields": {section: dict(REGISTERED.fields(section)) for section in ("run", *SECTIONS)},
        "defaults": {
            section: {name: REGISTERED.defaults(section, name) for name in names}
            for section, names in kinds.items()
        },
        "versions": {
            section: {name: REGISTERED.version(section, name) for name in names}
            for section, names in {**kinds, "data": FORMATS}.items()
            if section in ("algorithm", "problem", "partition", "data")
        },
        "metas": {name: REGISTERED.meta(name) for name in ALGORITHMS},
        "rows": {kind: rows() for kind, rows in ROWS.items()},
    }


@cache
def _fields(cls: type[Section]) -> dict[str, Any]:
    """Return the defaults of a section, as they are recorded."""
    optional = {name: field for name, field in cls.model_fields.items() if not field.is_required()}
    usual = {name: field.get_default(call_default_factory=True) for name, field in optional.items()}
    written: dict[str, Any] = to_jsonable_python(usual)
    written.pop("settings", None)  # those of a partition are recorded beside its fields
    return written


@cache
def _values(cls: type) -> dict[str, Any]:
    written: dict[str, Any] = to_jsonable_python(defaults(cls))
    return written


def _algorithms() -> list[Row]:
    return [
        {"name": m.name, "family": m.family, "solves": ", ".join(m.solves), "paper": m.paper, "url": m.url}
        for m in (ALGORITHMS[name].meta for name in ALGORITHMS)
    ]


def _codecs() -> list[Row]:
    formats = {name: getattr(codec, "defined", type(codec.values)) for name, codec in CODECS.items()}
    return [{"name": name, "about": (cls.__doc__ or "").splitlines()[0]} for name, cls in formats.items()]


def _mechanisms() -> list[Row]:
    ours = {
        "independent": "Gaussian noise, of its own for every release.",
        "banded": "Gaussian noise that is correlated between rounds.",
    }
    users = {name: (noise.defined.__doc__ or "").split("\n")[0] for name, noise in MECHANISMS.items()}
    return [{"name": name, "about": about} for name, about in (ours | users).items()]


def _models() -> list[Row]:
    return [dict(row) for row in models.describe()]


def _partitions() -> list[Row]:
    return _documented({**PARTITIONS, **VERTICAL})


def _problems() -> list[Row]:
    return [
        {"name": name, "kind": p.kind, "data": p.data, "about": p.about}
        for name, p in ((name, PROBLEMS[name]) for name in PROBLEMS)
    ]


def _topologies() -> list[Row]:
    return _documented(dict(TOPOLOGIES))


def _documented(kinds: dict[str, Any]) -> list[Row]:
    """Return names and the first lines of docstrings."""
    return [
        {"name": kind, "about": (cls.__doc__ or "").splitlines()[0]} for kind, cls in sorted(kinds.items())
    ]


ROWS: dict[str, Callable[[], list[Row]]] = {
    "algorithms": _algorithms,
    "codecs": _codecs,
    "mechanisms": _mechanisms,
    "models": _models,
    "partitions": _partitions,
    "problems": _problems,
    "topologies": _topologies,
}
