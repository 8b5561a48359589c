"""The file ``suite.json``: the runs of a suite, those that differ in their seed alone with one spec.

::

    "specs": [{"spec": {...}, "versions": {...}, "digest": ...}, ...]   settings of the first run of each kind
    "cells": [{"id": ..., "of": 0, "seed": 3}, ...]                      number of its entry, and its seed

`read_suite` returns cells that have all of it, as files of earlier versions do. With 20 seeds a suite of 2,000 runs
takes a tenth of the bytes, and is read in a fraction of the time, as every spec is checked. Searches for settings
are written by column (`harness.storage.tuning_file`).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from harness.storage.files import Damaged
from harness.storage.seals import read_sealed, write_sealed
from harness.storage.shapes import SuiteRecord, check_shape
from harness.storage.tuning_file import pack_tuning, unpack_tuning


def read_suite(path: Path) -> tuple[dict[str, Any], dict[str, str]]:
    """Read a ``suite.json`` and return it with its seal.

    Raises
    ------
    Damaged
        If it is damaged or has not the shape of one, or its folder is a link.
    """
    if path.parent.is_symlink():
        raise Damaged(path, "is in a folder that is a link")
    content, seal = read_sealed(path, "suite", "profile", "cells")
    if content.get("tuning") is not None:
        content["tuning"] = unpack_tuning(path, content["tuning"])
    check_shape(path, SuiteRecord, content)
    specs = content.pop("specs", ())
    return {**content, "cells": [_whole(cell, specs) for cell in content["cells"]]}, seal


def write_suite(path: Path, content: Mapping[str, Any]) -> None:
    """Write a ``suite.json``, with its seal."""
    numbers: dict[str, int] = {}
    specs: list[dict[str, Any]] = []
    cells = []
    for cell in content.get("cells", ()):
        shared = {name: value for name, value in cell.items() if name != "id"}
        spec = shared.get("spec")
        if cell["id"] is None or not isinstance(spec, Mapping) or "seed" not in spec:
            cells.append(cell)
            continue
        kind = json.dumps({**shared, "spec": {**spec, "seed": None}}, sort_keys=True)
        if kind not in numbers:
            numbers[kind] = len(specs)
            specs.append(shared)
        cells.append({"id": cell["id"], "of": numbers[kind], "seed": spec["seed"]})
    listed = {"specs": specs, "cells": cells} if specs else {}
    tuning = {"tuning": pack_tuning(content["tuning"])} if content.get("tuning") else {}
    write_sealed(path, {**content, **tuning, **listed})


def _whole(cell: dict[str, Any], specs: list[dict[str, Any]]) -> dict[str, Any]:
    """Return a cell with all that its entry of ``specs`` says."""
    if "of" not in cell:
        return cell
    shared = specs[cell["of"]]
    return {"id": cell["id"], **shared, "spec": {**shared["spec"], "seed": cell["seed"]}}
