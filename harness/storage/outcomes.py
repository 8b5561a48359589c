"""Comparison of two executions of one run, recorded by any version of this package."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

#: Of a statement: whose noise was repeated, if it is not that of the code that ran.
REPEATED = "noise_code"
#: Of a record, and of its privacy statement, what follows from the settings; versions of the package word it anew.
WORDED = frozenset({"public", "not_covered"})
WORDED_OF_CLAIM = frozenset(
    {
        "generator",
        "arithmetic",
        "warning",
        "sampling_rate",
        "sampling_rates",
        "composition",
        "secret_draws",
        REPEATED,
    }
)


def timeless(content: Mapping[str, Any]) -> dict[str, Any]:
    """Return an object of a record without fields that differ between executions."""
    return {name: value for name, value in content.items() if name != "timing"}


def computed_fields(content: Mapping[str, Any]) -> dict[str, Any]:
    """Return an object of a record without fields that differ between executions, or repeat it in words.

    Words follow from the settings, and versions of the package word them differently.
    """
    values = {name: value for name, value in timeless(content).items() if name not in WORDED}
    if isinstance(claim := values.get("privacy"), Mapping):
        values["privacy"] = {name: value for name, value in claim.items() if name not in WORDED_OF_CLAIM}
    return values


def agree(value: Any, other: Any) -> bool:
    """Return whether two JSON values are equal where both say something.

    One record may say more than another of the same run: those of later versions do, and those with diagnostics.
    """
    if isinstance(value, dict) and isinstance(other, dict):
        return all(agree(value[name], other[name]) for name in value.keys() & other.keys())
    if isinstance(value, list) and isinstance(other, list):
        return len(value) == len(other) and all(map(agree, value, other))
    return bool(value == other)
