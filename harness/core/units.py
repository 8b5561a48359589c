"""Numbers with units or nouns, wherever a person reads them. Files for other programs keep plain numbers."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence


def size(value: float | None) -> str:
    """Return bytes as ``4.91 MB`` (powers of 1000)."""
    return _scaled(value, ("B", "kB", "MB", "GB", "TB", "PB"))


def read_size(text: str) -> float:
    """Return the bytes of a text such as ``4.91 MB``, ``500kB`` or ``1e6``.

    Raises
    ------
    ValueError
        If it is no number with one of these units.
    """
    match = re.fullmatch(r"\s*([\d.]+(?:e\d+)?)\s*([kMGTP]?)B?\s*", text)
    if match is None:
        raise ValueError(text)
    return float(match[1]) * 1000.0 ** " kMGTP".index(match[2] or " ")


def count(value: float | None) -> str:
    """Return a large number as ``3.2 M`` (powers of 1000)."""
    return _scaled(value, ("", "k", "M", "G", "T", "P")).rstrip()


def work(value: float | None) -> str:
    """Return floating-point operations as ``3.2 GFLOP``."""
    return _scaled(value, ("FLOP", "kFLOP", "MFLOP", "GFLOP", "TFLOP", "PFLOP"))


def duration(seconds: float | None) -> str:
    """Return a time as ``3.2 s``, ``14 min`` or ``2.1 h``."""
    if seconds is None or seconds != seconds:
        return ""
    return (
        f"{seconds:.3g} s"
        if seconds < 120
        else f"{seconds / 60:.3g} min"
        if seconds < 7200
        else f"{seconds / 3600:.3g} h"
    )


def energy(joules: float | None) -> str:
    """Return an energy as ``3.2 kJ``."""
    return _scaled(joules, ("J", "kJ", "MJ", "GJ", "TJ"))


def counted(count: object, noun: str) -> str:
    """Return a number, or a range in words, with its noun: in the plural unless it is one."""
    number = f"{count:,}" if isinstance(count, int) else str(count)
    plural = "es" if noun.endswith(("s", "x", "ch", "sh")) else "s"
    return f"{number} {noun}{'' if number in ('1', '1.0') else plural}"


def _scaled(value: float | None, units: Sequence[str]) -> str:
    if value is None or value != value:
        return ""
    step = 0 if value < 1000 else min(len(units) - 1, math.floor(math.log10(value) / 3 + 1e-9))
    return f"{value:.0f} {units[0]}" if step == 0 else f"{value / 1000**step:.3g} {units[step]}"
