"""Columns that may not be what they look like: numbers that would be categories, codes, identifiers, dates."""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Collection, Mapping
from pathlib import Path
from urllib.parse import quote

import numpy as np
from numpy.typing import NDArray

from datasets.encoding import Cells, Content
from datasets.errors import DataError, warn
from datasets.formats import Reading
from datasets.numerals import values_of

FEWEST = 20  # rows from which a column that differs in every one is called an identifier
MANY = 20  # different numbers of a label, above which they look like a quantity
#: Days since 1970 from 1800 to 2200, outside of which dates are placeholders.
PLAUSIBLE = (-62_091, 84_006)
NEAR = 10  # numbers next to one at the end, to which its distance is compared
OFTEN = 3  # times that a number occurs before it may stand for a missing cell behind a gap
WIDE_GAP = 3  # times the widest gap between numbers next to it
WIDE = 50  # values of a text column, above which the number of its features is said
#: Different numbers with one unit, or after a sign such as <, below which they look like categories.
FEW_UNITS = 10
FEW_SIGNS = 3  # different numbers after a sign, up to which they can be mapped one by one
DATE = re.compile(r"(\d{4}([-/.])\d\d?\2\d\d?|\d\d?([-/.])\d\d?\3\d{4})([ T]\d.*)?")
#: What people write where they have no value; in text the marks of the first kind are values of their own.
NOTHING = re.compile(r"#?n/?a|n\. ?a\.|nan|null|#null!|<na>|-{1,3}|\u2013|\.", re.IGNORECASE)
UNKNOWN = re.compile(
    r"|\?|none|nil|unknown|missing|not available|n\.d\.|k\. ?a\.|\.\.|#value!", re.IGNORECASE
)
SIGN, UNIT = r"[+\-\u2212\u2013]?", r"[%‰°$€£¥₹]|[A-Za-zµ%°/²³]{1,7}"
GROUP = r"[.,'\u2019\s_]"  # between groups of three digits
#: A number as people write it: a currency, groups of digits, decimals, an exponent, a unit.
WRITTEN = re.compile(
    rf"{SIGN}(?:[$€£¥₹]|[A-Z]{{3}} )? ?{SIGN}"
    rf"(?:\d+(?:[.,]\d+)?|\d{{1,3}}(?:{GROUP}\d{{3}})+(?:[.,]\d+)?|[.,]\d+)"
    rf"(?:[eE][+-]?\d+)? ?(?P<unit>{UNIT})?"
)
BOUND = re.compile(r"[<>≤≥~±]=? ?(?P<number>.+)")
SENTINELS = frozenset(
    sign * float(str(digit) * length) for sign in (1, -1) for digit in (7, 8, 9) for length in range(2, 9)
) | {-9.0, -8.0, -7.0, -998.0, -9998.0}


def check_column_kinds(
    path: Path, table: Mapping[str, Cells], roles: Collection[str], content: Content
) -> None:
    """Refuse text that is numbers but for how some are written, and codes that merge as numbers.

    Parameters
    ----------
    path : Path
        The file, for messages.
    table : Mapping[str, Cells]
        Columns that may be text or numbers.
    roles : collection of str
        Columns that tell samples apart.
    content : Content
        What was read of the file. If it says itself what is text, a column of plain numbers may be.

    Raises
    ------
    DataError
        If there is such a column.
    """
    for name, cells in table.items():
        if problem := kind_problem(name, cells, content, tells_apart=name in roles):
            raise DataError(f"{path}: {problem}")


def kind_problem(name: str, cells: Cells, content: Content, *, tells_apart: bool) -> str:
    """Return why a column is refused as it is read, and what to set; empty if it is not."""
    if cells.numeric:
        if len(cells.codes) > 1 and tells_apart:
            return (
                f"in the column {name!r}, {cells.codes[0]} and {cells.codes[1]} would be one number; read it as "
                f"text with text={name}"
            )
        return ""
    if cells.undated:
        return (
            f"most of the column {name!r} is dates, but {cells.undated}; correct it, give na with that text if "
            f"it stands for nothing, or set text={name}"
        )
    counts = dict(Counter(cells.values[~cells.missing].tolist()).most_common())
    rest = {value: count for value, count in counts.items() if not stands_for_nothing(value)}
    numeric = {value: match for value in rest if (match := _number_match(value))}
    units = Counter(match["unit"] or "" for match in numeric.values())
    unit, alike = units.most_common(1)[0] if units else ("", 0)
    if unit.isalpha() and alike < FEW_UNITS:  # categories such as 1a, 2b
        numeric = {value: match for value, match in numeric.items() if not match["unit"]}
    if len(numeric) < FEW_UNITS and all(map(BOUND.fullmatch, numeric)):  # classes such as <30, >30
        numeric = {}
    most = 2 * sum(rest[value] for value in numeric) > sum(rest.values()) or 2 * len(numeric) > len(rest)
    unread = [np.isnan(values_of([*counts], reading)) for reading in (Reading(), content.reading)]
    is_plain = dict(zip(counts, ~np.logical_and(*unread), strict=True))
    said = content.typed and len(numeric) == len(counts) and all(is_plain.values())
    return _advice(name, is_plain, numeric) if most and not said else ""


def stands_for_nothing(value: str) -> bool:
    """Whether a text is what people write where they have no value."""
    return bool(NOTHING.fullmatch(value) or UNKNOWN.fullmatch(value))


def _number_match(value: str) -> re.Match[str] | None:
    """Return a number as people write it, also after a sign such as "<"."""
    bound = BOUND.fullmatch(value)
    return None if DATE.fullmatch(value) else WRITTEN.fullmatch(bound["number"] if bound else value)


def _advice(name: str, is_plain: Mapping[str, bool], numeric: Collection[str]) -> str:
    """Return what to set so that a column of text becomes numbers.

    ``is_plain`` says of the values, the most frequent first, which are numbers as the file is read, or to us.
    """
    odd = [value for value, plain in is_plain.items() if not plain]
    others = [value for value in odd if value not in numeric]
    option, numbers = _way_of_writing([value for value in odd if value in numeric])
    signs = [value for value in odd if value in numeric and value not in numbers]
    advice = []
    if numbers:
        advice.append(f"set {option}")
    if others:
        missing = "&na=".join(map(quote, others[:5]))
        more = f" and {len(others) - 5} more" if len(others) > 5 else ""
        advice.append(f"set na={missing}{more} if these cells are missing")
    if signs:
        few = (
            f", or give map, as in map: {{{name}: {{{signs[0]!r}: NUMBER}}}}"
            if len(signs) <= FEW_SIGNS
            else ""
        )
        advice.append(f"take signs such as that of {signs[0]!r} out of the file{few}")
    if not advice:  # numbers to us, and not by the signs that were set
        grouped = all(re.fullmatch(r"\d{1,3}(\.\d{3})+", value) for value in is_plain)
        advice.append(
            "set thousands=. if that separates groups of three digits"
            if grouped
            else "set decimal and thousands as these are written"
        )
    examples = ", ".join(map(repr, [*others[:2], *numbers[:2], *signs[:2]][:4] or list(is_plain)[:3]))
    return (
        f"the column {name!r} is text, but most of it looks like numbers (among them {examples}): "
        f"{'; '.join(advice)}; or set text={name} if it really is text"
    )


def _way_of_writing(numbers: list[str]) -> tuple[str, list[str]]:
    """Return the options that read most of some numbers, and which these are."""
    separators = sorted({sign for number in numbers for sign in re.findall(GROUP, number)})
    ways = [{"decimal": ","}, *({"thousands": sign} for sign in separators if sign != ".")]
    ways += [{"decimal": ",", "thousands": sign} for sign in separators if sign != ","]
    read = [np.array(numbers)[~np.isnan(values_of(numbers, Reading(**way)))].tolist() for way in ways]
    best = max(range(len(ways)), key=lambda place: len(read[place]))
    if {"thousands": ","} in ways and read[best] == read[0] == read[ways.index({"thousands": ","})]:
        both = f"thousands=, if {numbers[0]!r} has groups of three digits, or decimal=, if it has decimals"
        return both, read[best]
    spelled = {key: quote(sign, safe=",'") for key, sign in ways[best].items()}
    return "&".join(f"{key}={sign}" for key, sign in spelled.items()), read[best]


def warn_of_doubts(
    path: Path,
    features: Mapping[str, Cells],
    texts: Collection[str],
    label: str,
    labels: Cells,
    *,
    quantity: bool,
) -> None:
    """Warn of features that may not be meant as they are read, and of a label of many numbers.

    Parameters
    ----------
    path : Path
        The file, for messages.
    features : Mapping[str, Cells]
        Columns that become features.
    texts : collection of str
        Columns that were asked to be text.
    label, labels : str, Cells
        The label and its cells.
    quantity : bool
        Whether the label is a number to predict, not a class.
    """
    lines = _sentinel(label, labels) if quantity and labels.numeric else []
    for name, cells in features.items():
        if constant := _constant(name, cells):
            lines.append(constant)
        else:
            lines += _numbers(name, cells) if cells.numeric else _words(name, cells, name in texts)
    if not quantity and labels.numeric and (many := len(np.unique(labels.values))) > MANY:
        lines.insert(
            0,
            f"the label {label!r} has {many} different numbers, and each is a class; to predict the number, give "
            "--problem regression",
        )
    lines += _same(features, label, labels)
    warn(path, lines)


def _numbers(name: str, cells: Cells) -> list[str]:
    """Return what is unusual about a column of numbers."""
    if cells.dates:
        return _placeholders(name, cells)
    remarks = _sentinel(name, cells)
    if cells.codes:
        both = " as ".join(cells.codes)
        remarks.append(
            f"the column {name!r} has numbers with leading zeros, such as {both}; to read codes as text, give "
            f"text={name}"
        )
    if cells.grouped:
        remarks.append(
            f"in the column {name!r} every point stands before three digits, as in {cells.grouped}; if it parts "
            "thousands, give thousands=.&decimal=,"
        )
    return remarks if (cells.values % 1).any() else remarks + _identifier(name, cells.values.tolist())


def _placeholders(name: str, cells: Cells) -> list[str]:
    """Return a line about dates of other centuries, which often stand for an open end or a typing error."""
    days = np.floor(cells.values[~cells.missing])
    far = days[(days < PLAUSIBLE[0]) | (days >= PLAUSIBLE[1])]
    if not len(far):
        return []
    return [
        f"the column {name!r} has dates such as {np.datetime64(int(far[0]), 'D')} in {len(far)} rows, far from all "
        "others; if they stand for missing cells, give na with their text, or leave them empty in the file"
    ]


def _constant(name: str, cells: Cells) -> str:
    """Return a line about a column of one value; empty if it has more."""
    if not len(cells.values) or (cells.values[1:] != cells.values[0]).any():
        return ""
    value = f"{cells.values[0]:.15g}" if cells.numeric else repr(cells.values[0])
    return f"the column {name!r} is {value} in every row and says nothing; leave it out with drop={name}"


def _same(features: Mapping[str, Cells], label: str, labels: Cells) -> list[str]:
    """Return lines about columns that say the same in every row as the label, or as a column before them.

    Numbers say the same if they are equal, text also under other names. Of columns that are constant, or whose
    text or whole numbers differ in every row, nothing is said.
    """
    lines = []
    first = {key: (label, f"tells the label {label!r} of every row") for key in _contents(labels)}
    for name, cells in features.items():
        keys = _contents(cells)
        if known := next((first[key] for key in keys if key in first), None):
            lines.append(f"the column {name!r} {known[1]}; leave it out with drop={name} if it repeats it")
        for key in keys:
            first.setdefault(key, (name, f"says the same as {name!r} in every row"))
    return lines


def _contents(cells: Cells) -> list[bytes]:
    """Return digests of what a column says; none of one value, or of text or whole numbers that all differ."""
    import pandas as pd  # slow to import; most data sets do without it

    codes, values = pd.factorize(cells.values)
    measured = cells.numeric and bool((cells.values % 1).any())
    if len(values) < 2 or (len(values) == len(codes) and not measured):
        return []
    partition = hashlib.sha256(codes.astype(np.int32).tobytes()).digest()
    few = not cells.numeric or len(values) == 2  # names, of which others may stand for the same
    return [partition] if few else [hashlib.sha256(cells.values.tobytes()).digest()]


def _sentinel(name: str, cells: Cells) -> list[str]:
    """Return a line about numbers that may stand for missing cells."""
    if not (codes := sentinels(cells.values)):
        return []
    codes_text, options, everywhere = (
        sign.join(way.format(f"{code:.15g}") for code in codes)
        for sign, way in ((" and ", "{}"), ("&", f"map.{name}.{{}}="), ("&", "na={}"))
    )
    count = int(np.isin(cells.values, codes).sum())
    return [
        f"the column {name!r} has {codes_text} in {count} rows, far from its other numbers; if they stand for "
        f"missing cells, give {options}, or {everywhere} if they do in every column"
    ]


def sentinels(values: NDArray[np.float64]) -> list[float]:
    """Return numbers such as -999 and 9999 that are apart from the others.

    They lie further from the others than these from each other, are the only negative ones, or occur several times
    behind a gap that is wide beside those of the numbers next to it, as 99 among ages up to 70.
    """
    if not len(values) or not {float(values.min()), float(values.max())} & SENTINELS:
        return []
    different = np.unique(values).tolist()
    others = [value for value in different if value not in SENTINELS]
    if len(others) < 2:
        return []
    low, high = others[0], others[-1]
    codes = {value for value in different if value in SENTINELS}
    negative = codes & {value for value in different if value < 0} if low >= 0 else set()
    ends = {different[0], different[-1]} & codes
    far = {code for code in ends if max(low - code, code - high) > high - low}
    behind = {
        code
        for code, near in ((different[0], others[:NEAR]), (different[-1], others[-NEAR:]))
        if code in codes and len(near) == NEAR and np.count_nonzero(values == code) >= OFTEN
        if min(abs(np.subtract(near, code))) >= WIDE_GAP * max(np.diff(near))
    }
    return sorted(negative | far | behind)


def _words(name: str, cells: Cells, declared: bool) -> list[str]:
    """Return what is unusual about a column of text."""
    values = cells.values.tolist()
    different = {*values}
    present = {*cells.values[~cells.missing].tolist()}
    if all(map(DATE.fullmatch, present)):
        return [
            f"the column {name!r} holds dates as text, and each of its {len(different)} values becomes a feature; "
            f"set {dates_written(present)} to read them as days, or leave it out with drop={name}"
        ]
    if remarks := _identifier(name, values):
        return remarks
    remarks = []
    if marks := sorted(filter(NOTHING.fullmatch, different)):
        count = sum(value in marks for value in values)
        remarks.append(
            f"the column {name!r} has {', '.join(map(repr, marks))} in {count} rows, a category like any other; "
            f"if it stands for missing cells, give {'&'.join(f'na={quote(mark)}' for mark in marks)}"
        )
    digits = not np.isnan(values_of([*different], Reading())).any()
    if not declared and (digits or len(different) > WIDE):
        remarks.append(
            f"the column {name!r} is text{' of digits' if digits else ''}, and each of its {len(different)} values "
            "becomes a feature"
        )
    return remarks


def dates_written(texts: Collection[str]) -> str:
    """Return the option that reads some dates; two, where day and month may be either."""
    if all(text[:4].isdecimal() for text in texts):
        return "dates=yyyy-mm-dd"
    sign = re.sub(r"\d", "", min(texts))[:1]
    german = f"dates=dd{sign}mm{sign}yyyy"
    return german if sign == "." else f"{german} or dates=mm{sign}dd{sign}yyyy"


def _identifier(name: str, values: list[object]) -> list[str]:
    """Return a line about a column that differs in every row."""
    if len({*values[:FEWEST]}) < FEWEST or len({*values}) < len(values):
        return []
    return [
        f"the column {name!r} is a feature and differs in every row; if it is an identifier, leave it out with "
        f"drop={name}"
    ]
