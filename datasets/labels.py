"""Names of classes: which of two is the positive one, and spellings of one name."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from datasets.dataset import Column
from datasets.errors import DataError, nearest, warn

#: Pairs of a negative and a positive class that need no setting, as `folded` writes them.
OBVIOUS = frozenset(
    [
        *(("0", "1"), ("-1", "1"), ("false", "true"), ("f", "t"), ("no", "yes"), ("n", "y"), ("off", "on")),
        *(("nein", "ja"), ("n", "j"), ("nee", "ja"), ("nej", "ja"), ("nei", "ja"), ("falsch", "wahr")),
        *(("non", "oui"), ("faux", "vrai"), ("no", "sí"), ("no", "si"), ("no", "sì"), ("falso", "verdadero")),
        *(("não", "sim"), ("nao", "sim"), ("falso", "verdadeiro"), ("falso", "vero"), ("nu", "da")),
        *(("nie", "tak"), ("ne", "ano"), ("nie", "áno"), ("ne", "da"), ("нет", "да"), ("ні", "так")),
        *(("ei", "kyllä"), ("nem", "igen"), ("hayir", "evet"), ("否", "是"), ("いいえ", "はい")),
        *(("negative", "positive"), ("neg", "pos"), ("negativ", "positiv"), ("négatif", "positif")),
        *(("negativo", "positivo"), ("negatief", "positief"), ("absent", "present"), ("absent", "présent")),
        *(("ausente", "presente"), ("abwesend", "anwesend"), ("afwezig", "aanwezig"), ("control", "case")),
    ]
)
#: What YAML reads as a truth value, where somebody meant a class.
WORDS = {"true": ("true", "yes", "on"), "false": ("false", "no", "off")}
SPELLING = "case, spaces or a trailing dot"
MOST_SHOWN = 20  # values of a label in a message


def folded(name: str) -> str:
    """Return a name without case, surrounding and doubled spaces, and trailing dots, which are mostly slips."""
    return " ".join(unicodedata.normalize("NFKC", name).casefold().split()).rstrip(". ")


def similar_groups(names: Iterable[str]) -> list[list[str]]:
    """Return the groups of names that `folded` makes equal."""
    groups: dict[str, list[str]] = {}
    for name in names:
        groups.setdefault(folded(name), []).append(name)
    return [group for group in groups.values() if len(group) > 1]


def warn_of_similar(where: object, column: str, names: Iterable[str]) -> None:
    """Warn of values of a column that may be one: they count as different."""
    if groups := similar_groups(names):
        examples = "; ".join(", ".join(map(repr, group)) for group in groups[:3])
        more = f" and {len(groups) - 3} more" if len(groups) > 3 else ""
        count = f"differ in {SPELLING} only, and count as different"
        warn(where, [f"values of the column {column!r} {count}: {examples}{more}"])


def relabel(where: object, label: str, values: NDArray[np.str_], names: Mapping[str, str]) -> Column:
    """Return the values of a label with some of them renamed.

    Raises
    ------
    DataError
        If one that is to be renamed does not occur.
    """
    new_names: dict[str, str] = {}
    for old, new in names.items():
        if new_names.setdefault(old.strip(), new.strip()) != new.strip():
            raise DataError(f"{where}: labels names {old.strip()!r} twice; spaces around cells are ignored")
    old_names, codes = np.unique(values, return_inverse=True)
    for old in new_names:
        if old not in old_names:
            raise DataError(
                f"{where}: labels renames {old!r}, which is not a value of {label!r}; "
                f"{nearest(old, old_names.tolist()[:MOST_SHOWN])}"
            )
    renamed: Column = np.array([new_names.get(str(name), str(name)) for name in old_names], dtype=object)
    return renamed[codes]


def check_spelling(where: object, label: str, classes: Sequence[str], names: Mapping[str, str]) -> None:
    """Refuse classes that differ in their spelling only, unless ``labels`` names all of them.

    Raises
    ------
    DataError
        With the list of them and what to set.
    """
    reviewed = {name.strip() for pair in names.items() for name in pair}
    groups = [group for group in similar_groups(classes) if not reviewed.issuperset(group)]
    if groups:
        texts = "; ".join(", ".join(map(repr, group)) for group in groups)
        example = ", ".join(f"{name!r}: {group[-1]!r}" for group in groups for name in group[:-1])
        raise DataError(
            f"{where}: values of the label {label!r} differ in {SPELLING} only: {texts}. Write them alike in the "
            f"file, or say which are one class with data.labels, as in labels: {{{example}}}; name each as itself "
            "if they are different classes"
        )


def positive_last(
    where: object, label: str, classes: tuple[str, ...], positive: str | None
) -> tuple[str, ...]:
    """Return the classes with the positive one of two last; more than two as they are.

    Parameters
    ----------
    where, label
        What messages name: a file, and a column.
    classes : tuple of str
        Sorted.
    positive : str, optional
        The positive class. Default: that of an obvious pair, else the last, with a warning.

    Raises
    ------
    DataError
        If there is no such class, or there are not two.
    """
    if positive is not None:
        place = _place(positive, classes)
        if len(classes) != 2 or place is None:
            listing = ", ".join(map(repr, classes[:MOST_SHOWN])) + (
                " ..." if len(classes) > MOST_SHOWN else ""
            )
            wrong = (
                f"positive is for two classes, and the label {label!r} has {len(classes)}"
                if len(classes) != 2
                else f"positive is {positive!r}, which is not a class of the label {label!r}"
            )
            raise DataError(f"{where}: {wrong}: {listing}")
        return classes if place == 1 else classes[::-1]
    if len(classes) != 2:
        return classes
    for pair in (classes, classes[::-1]):
        if (folded(pair[0]), folded(pair[1])) in OBVIOUS:
            return pair
    first, second = classes
    warn(
        where,
        [
            f"the label {label!r} has the classes {first!r} and {second!r}; {second!r} counts as the positive one, "
            f"only because it comes last in sorted order; say which it is with data.positive ({first} or {second})"
        ],
    )
    return classes


def _place(positive: str, classes: Sequence[str]) -> int | None:
    """Return the place of the class that is meant: as it is written, or the only one that is spelled like it."""
    if positive.strip() in classes:
        return classes.index(positive.strip())
    spellings = WORDS.get(folded(positive), (folded(positive),))
    places = [number for number, name in enumerate(classes) if folded(name) in spellings]
    return places[0] if len(places) == 1 else None
