"""Facts about registered parts, from their classes; those of built-in parts are kept in ``parts.json``.

Commands that read results take them from the file (`harness.config.recorded`): torch and all parts take two seconds
to import. ``python -m tests.golden.update --defaults`` writes it.
"""

from __future__ import annotations

from collections import ChainMap
from functools import cache
from typing import Any

from pydantic_core import to_jsonable_python

import algorithms
from compression.codec import CODECS
from datasets.catalog import CATALOG
from datasets.encoders import ENCODERS
from datasets.opening import FORMATS
from datasets.partition import PARTITIONS
from datasets.topology import TOPOLOGIES
from datasets.vertical import VERTICAL
from harness import models
from harness.config import notebook
from harness.config.fields import SECTIONS
from harness.config.run import RunSpec
from harness.config.settings import defaults
from harness.core.algorithm import ALGORITHMS
from harness.core.registry import PLUGGED
from harness.core.settings.section import Section
from harness.problems import PROBLEMS
from privacy.own_mechanism import MECHANISMS

algorithms.load()

Facts = dict[str, Any]
MECHANISM_TEXTS = {
    "independent": "Gaussian noise, of its own for every release.",
    "banded": "Gaussian noise that is correlated between rounds.",
}
#: What can be described, by the sections of a run file that name it; ``section`` has these sections themselves.
KINDS: dict[str, Any] = {
    "section": {"run": RunSpec, **SECTIONS},
    "algorithm": ALGORITHMS,
    "compression": CODECS,
    "data": ChainMap(FORMATS, CATALOG),
    "encoder": ENCODERS,
    "model": models.MODELS,
    "partition": ChainMap(PARTITIONS, VERTICAL),
    "privacy": ChainMap(MECHANISM_TEXTS, MECHANISMS),
    "problem": PROBLEMS,
    "topology": TOPOLOGIES,
}


def facts(kind: str, name: str) -> Facts:
    """Return what records and lists need of a part; empty if nothing has the name.

    Returns
    -------
    dict[str, Any]
        Of parts that have them: ``version``; ``defaults``, the settings as they are recorded; ``row``, the line in
        lists without the name; ``pooled`` of an algorithm; ``own_version``, that of a plugin or a notebook.
    """
    if name not in KINDS[kind]:
        return {}
    own_version = PLUGGED.get((kind, name)) or notebook.version(kind, name)
    return _described(kind, name) | ({"own_version": own_version} if own_version else {})


def _described(kind: str, name: str) -> Facts:
    part = KINDS[kind][name]
    match kind:
        case "section":
            return {"defaults": _fields(part)}
        case "algorithm":
            m = part.meta
            row = {"family": m.family, "solves": ", ".join(m.solves), "paper": m.paper, "url": m.url}
            return {"version": m.version, "defaults": _defaults(part), "row": row, "pooled": m.pooled}
        case "compression":
            own = getattr(part, "defined", None)  # a class that somebody wrote
            bits = None if own else part.values.bits
            return {"row": {"bits": bits, **_about(own or type(part.values))}}
        case "data":  # digests name what was read of data sets, which have no version
            return {"version": part.version} if name in FORMATS else {}
        case "encoder":  # digests name the weights
            kinds = {"reads": part.reads, "features": part.features, "size": part.size}
            return {"row": {**kinds, **_about(part.make)}}
        case "model":
            return {"defaults": to_jsonable_python(models.complete(name, {})), "row": models.describe(name)}
        case "privacy":
            return {"row": {"about": part} if name in MECHANISM_TEXTS else _about(part.defined)}
        case "problem":
            row = {"kind": part.kind, "data": part.data, "about": part.about}
            return {"version": part.version, "defaults": _defaults(part.settings), "row": row}
        case _:
            version = {"version": part.version} if kind == "partition" else {}
            return {**version, "defaults": _defaults(part), "row": _about(part)}


def _about(thing: object) -> dict[str, str]:
    """Return the first line of a docstring."""
    return {"about": (thing.__doc__ or "").partition("\n")[0]}


@cache
def _fields(cls: type[Section]) -> dict[str, Any]:
    """Return the defaults of a section's own fields, as they are recorded."""
    optional = {name: field for name, field in cls.model_fields.items() if not field.is_required()}
    usual = {name: field.get_default(call_default_factory=True) for name, field in optional.items()}
    written: dict[str, Any] = to_jsonable_python(usual)
    written.pop("settings", None)  # those of a partition are recorded beside its fields
    return written


@cache
def _defaults(cls: type) -> dict[str, Any]:
    written: dict[str, Any] = to_jsonable_python(defaults(cls))
    return written
