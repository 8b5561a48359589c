"""Descriptions of a user's table: how each column is read and why, what it becomes, and what may be wrong.

A description comes from the same functions as the data set, so that both say the same.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from datasets.doubts import DATE, kind_problem, sentinels, stands_for_nothing
from datasets.encoding import Cells, Content, Kind
from datasets.errors import DataError, gathered
from datasets.files import Roles, holes_without_policy, make_dataset, policies_of
from datasets.formats import OTHERWISE, as_list

if TYPE_CHECKING:
    from datasets.arrays import Arrays
    from datasets.dataset import Column, Dataset

SHOWN = 4  # values, columns


@dataclass(frozen=True, kw_only=True)
class ColumnDescription:
    """A column of a table.

    Attributes
    ----------
    name : str
        Its name.
    role : str
        ``feature``, ``label``, ``client``, ``user``, ``sensitive`` (with or without ``, feature``), ``input``,
        ``encoded`` or ``left out``.
    kind : {"numbers", "dates as numbers", "text", "dates as text", "images", "empty", "unreadable"}
        How its cells are read.
    why : str
        Why they are read so.
    features : int
        How many features it becomes: one, or one for each value of text; 0 if it is no feature.
    missing : int
        Cells without a value.
    different : int
        Different values.
    values : str
        The range and mean of numbers, or the most frequent values with their counts.
    codes : dict[str, int]
        Values that may stand for missing cells, with their counts.
    """

    name: str
    role: str
    kind: str
    why: str
    features: int = 0
    missing: int = 0
    different: int = 0
    values: str = ""
    codes: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Description:
    """A table as it is read.

    Attributes
    ----------
    source : str
        Format and name of the file.
    rows, used : int
        Rows in the file, and rows that become samples; 0 if the table is refused.
    columns : tuple[ColumnDescription, ...]
        The columns, in their order.
    features : int
        Number of features; 0 if the table is refused.
    classes : dict[str, int]
        Classes with their samples; empty for numbers to predict.
    positive : str
        The positive one of two classes.
    groups, clients : dict[str, int]
        Sensitive groups and clients with their samples; empty without such a column.
    users : dict[str, int]
        ``users``, the ``fewest`` and ``most`` samples of one, and, of data with clients, how many are ``scattered``
        over several; empty without such a column.
    summary : tuple[str, ...]
        The most important in three to six lines, as a run begins with.
    problems : tuple[str, ...]
        What must be set before the table can be used, in words; empty if it can be.
    warnings : tuple[str, ...]
        What may not be meant as it is read.
    """

    source: str
    rows: int
    used: int = 0
    columns: tuple[ColumnDescription, ...]
    features: int = 0
    classes: dict[str, int] = field(default_factory=dict)
    positive: str = ""
    groups: dict[str, int] = field(default_factory=dict)
    clients: dict[str, int] = field(default_factory=dict)
    users: dict[str, int] = field(default_factory=dict)
    summary: tuple[str, ...] = ()
    problems: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()

    def __str__(self) -> str:
        """Return the summary, a line for each column, and what to set or to look at."""
        lines = [*self.summary, ""]
        for one in self.columns:
            width = f", {one.features} features" if one.features > 1 else ""
            missing = f", {one.missing} missing" if one.missing else ""
            lines.append(f"{one.name}: {one.role}{width}{missing}; {one.kind} ({one.why}); {one.values}")
        lines += [f"to be set: {problem}" for problem in self.problems]
        return "\n".join([*lines, *(f"warning: {warning}" for warning in self.warnings)])


def describe_content(kind: str, path: Path, content: Content, roles: Roles) -> Description:
    """Describe a table in a file.

    Parameters
    ----------
    kind : str
        Its format.
    path : Path
        The file, for messages.
    content : Content
        What was read of it.
    roles : Roles
        What its columns are, completed; without a label the columns are described, and the label is a problem to
        be solved.

    Returns
    -------
    Description
        Nothing of it is logged.
    """
    dataset: Dataset | None = None
    holes: list[str] = []
    with gathered() as warnings:
        table, problems = _cells(content, roles)
        try:
            holes = _holes(path, roles, content, table)
            problems += holes
            made = make_dataset(kind, path, _filled(roles) if holes else roles, content)
            dataset = None if holes else made  # what else is wrong is told beside them
        except DataError as error:
            said = [str(one).removeprefix(f"{path}:").strip() for one in error.errors or (error,)]
            if not {roles.label, *roles.roles_beside_label} <= {*content.names, None}:
                problems = [*said, *problems]  # other problems may be those of the wrong columns
            elif problems == holes or roles.label is None:
                problems += said
    widths = Counter(() if dataset is None else dataset.origins)
    columns = tuple(
        describe_column(name, table.get(name), content, roles, widths[name] if dataset is not None else None)
        for name in content.columns
    ) + tuple(_describe_arrays(name, arrays, roles) for name, arrays in content.arrays.items())
    read = Description(
        source=f"{kind}:{path.name}",
        rows=content.rows,
        columns=columns,
        summary=(f"{path.name}: {content.rows} rows, {len(columns)} columns, not usable as it is",),
        problems=tuple(problems),
        warnings=tuple(warnings),
    )
    if dataset is None:
        return read
    found = replace(read, **_of_samples(dataset, roles))
    if several := found.users.get("scattered", 0):
        line = (
            f"{several:,} users of column {roles.user!r} have samples at several clients, which privacy of users "
            "refuses. If they are different people with one name, tell them apart by map, as in map: "
            f"{{{roles.user}: {{'*': 'B*'}}}} of one file"
        )
        return replace(found, warnings=(*found.warnings, line))
    return found


def describe_known(dataset: Dataset) -> Description:
    """Describe a data set that is no user's table: its samples, without columns."""
    return Description(source=dataset.name, rows=len(dataset), columns=(), **_of_samples(dataset, Roles()))


def _of_samples(dataset: Dataset, roles: Roles) -> dict[str, Any]:
    """Return the fields of a description that tell what has become of a table."""
    facts = _facts(dataset, roles)
    return {
        "used": len(dataset),
        "features": dataset.x[0].numel(),
        "summary": tuple(summary(dataset, roles)),
        "positive": dataset.classes[1] if len(dataset.classes) == 2 else "",
        **{name: facts.get(name, {}) for name in ("classes", "groups", "clients", "users")},
    }


def _cells(content: Content, roles: Roles) -> tuple[dict[str, Cells], list[str]]:
    """Return the columns as they are read, and what refuses them."""
    table: dict[str, Cells] = {}
    problems: list[str] = [] if content.rows else ["there is no row below the header"]
    role_columns = {roles.label, *roles.roles_beside_label}
    for name, cells in content.columns.items():
        kind = _kind(name, roles)
        try:
            table[name] = cells(kind)
        except DataError as error:
            if roles.uses(name):
                problems.append(str(error))
            continue
        if not roles.uses(name) or kind == "text":
            continue
        tells_apart = name in role_columns
        if problem := kind_problem(name, table[name], content, tells_apart=tells_apart):
            problems.append(problem)
        if content.rows and table[name].missing.all():
            problems.append(f"the column {name!r} is empty; leave it out with drop={name}")
    return table, problems


def _kind(name: str, roles: Roles) -> Kind:
    spelled = (roles.user, roles.input, *as_list(roles.text), *as_list(roles.encode))
    return "text" if name in spelled else "guess"


def _holes(path: Path, roles: Roles, content: Content, table: Mapping[str, Cells]) -> list[str]:
    """Return the line about missing cells without a policy, if there are any."""
    policies = policies_of(path, roles.missing, content.columns)
    counts = {name: int(cells.missing.sum()) for name, cells in table.items() if roles.uses(name)}
    holes = {
        name: count
        for name, count in counts.items()
        if 0 < count < content.rows and policies[name] == "error"
    }
    return [f"the file {holes_without_policy(holes)}"] if holes else []


def _filled(roles: Roles) -> Roles:
    """Return roles by which missing cells are no reason to refuse the table."""
    own = {OTHERWISE: roles.missing} if isinstance(roles.missing, str) else roles.missing
    allowed = {name: policy for name, policy in own.items() if policy != "error"}
    users = {roles.user: "drop"} if roles.user else {}
    return replace(roles, missing={OTHERWISE: "fill", **users, **allowed})


def describe_column(
    name: str, cells: Cells | None, content: Content, roles: Roles, width: int | None
) -> ColumnDescription:
    """Describe one column.

    Parameters
    ----------
    name : str
        Its name.
    cells : Cells or None
        Its cells; None if they cannot be read.
    content, roles
        Of the table.
    width : int or None
        Features that it has become; None if the table is refused, which makes it an estimate.
    """
    role = _role(name, roles)
    if cells is None:
        return ColumnDescription(name=name, role=role, kind="unreadable", why="see what is to be set")
    present = cells.values[~cells.missing]
    missing = int(cells.missing.sum())
    counts = Counter(present.tolist())
    if width is None:
        width = (1 if cells.numeric else len(counts)) if role.endswith("feature") else 0
    codes: dict[str, int] = {}
    if not len(present):
        kind, why, values = "empty", "no cell has a value", ""
    elif cells.dates:
        kind, why = "dates as numbers", "days since 1970"
        first, last = (str(np.datetime64(int(day // 1), "D")) for day in (present.min(), present.max()))
        values = f"{first} to {last}"
    elif cells.numeric:
        kind, why = "numbers", "every cell is a number or missing"
        values = f"{present.min():z.6g} to {present.max():z.6g}, mean {present.mean():z.4g}"
        codes = {f"{code:.15g}": counts[code] for code in sentinels(present)}
    else:
        dates = all(map(DATE.fullmatch, counts))
        kind = "dates as text" if dates else "text"
        why = _why_text(name, counts, content, roles)
        values = f"{min(counts)} to {max(counts)}" if dates else _most(counts)
        codes = {value: count for value, count in counts.items() if stands_for_nothing(value)}
    return ColumnDescription(
        name=name, role=role, kind=kind, why=why, features=width, missing=missing, different=len(counts),
        values=values, codes=codes,
    )  # fmt: skip


def _describe_arrays(name: str, arrays: Callable[[], Arrays], roles: Roles) -> ColumnDescription:
    """Describe a column of images, vectors or signs."""
    role = "input" if name == roles.input else "left out"
    try:
        made = arrays()
    except DataError as error:
        return ColumnDescription(name=name, role=role, kind="unreadable", why=str(error))
    return ColumnDescription(name=name, role=role, kind=made.kind, why=made.why, values=made.shape)


def _role(name: str, roles: Roles) -> str:
    if not roles.uses(name):
        return "left out"
    if name == roles.input:
        return "input"
    if name == roles.label:
        return "label"
    named = [
        role
        for role, columns in (
            ("client", [roles.client]),
            ("user", [roles.user]),
            ("sensitive", as_list(roles.sensitive)),
            ("encoded", as_list(roles.encode)),
        )
        if name in columns
    ]
    return ", ".join([*named, *([] if name in roles.not_features else ["feature"])])


def _why_text(name: str, counts: Counter[str], content: Content, roles: Roles) -> str:
    if name in as_list(roles.text):
        return "asked for by text"
    if name in as_list(roles.encode):
        return "asked for by encode"
    if name == roles.user:
        return "names of users are"
    if name == roles.input:
        return "the input"
    if content.typed:
        return "the file says so"
    odd = next((value for value in counts if kind_of(value) == "text"), next(iter(counts)))
    return f"{odd!r} is no number"


def kind_of(value: str) -> str:
    """Return whether a cell alone would be a number or text."""
    try:
        float(value)
    except ValueError:
        return "text"
    return "number"


def _most(counts: Mapping[str, int]) -> str:
    """Return the most frequent values with their counts, and how many more there are."""
    common = Counter(counts).most_common(SHOWN)
    more = f" and {len(counts) - SHOWN} more" if len(counts) > SHOWN else ""
    return ", ".join(f"{value} {count}" for value, count in common) + more


def _counted(values: Column) -> dict[str, int]:
    """Return the values of a column as text, sorted, with their counts."""
    names, counts = np.unique(
        [f"{value:.15g}" if isinstance(value, float) else str(value) for value in values.tolist()],
        return_counts=True,
    )
    return dict(zip(names.tolist(), counts.tolist(), strict=True))


def _facts(dataset: Dataset | None, roles: Roles) -> dict[str, dict[str, int]]:
    """Return the classes, groups, clients and users of a data set with the numbers of their samples."""
    if dataset is None:
        return {}
    facts: dict[str, dict[str, int]] = {}
    if dataset.classes:
        counts = np.bincount(dataset.y.numpy(), minlength=len(dataset.classes)).tolist()
        facts["classes"] = {name: count for name, count in zip(dataset.classes, counts, strict=True) if count}
    if dataset.group is not None:
        counts = np.bincount(dataset.group.numpy(), minlength=len(dataset.groups)).tolist()
        facts["groups"] = dict(zip(dataset.groups, counts, strict=True))
    if dataset.client in dataset.columns:
        facts["clients"] = _counted(dataset.columns[dataset.client])
    if roles.user in dataset.columns:
        by_user = _counted(dataset.columns[roles.user]).values()
        facts["users"] = {"users": len(by_user), "fewest": min(by_user), "most": max(by_user)}
        if "clients" in facts:
            places = {
                *zip(
                    dataset.columns[roles.user].tolist(),
                    dataset.columns[dataset.client].tolist(),
                    strict=True,
                )
            }
            at = Counter(user for user, _ in places)
            facts["users"]["scattered"] = sum(count > 1 for count in at.values())
    return facts


def summary(dataset: Dataset, roles: Roles) -> list[str]:
    """Return what a run says first of a user's table: samples, features, label, groups, clients and users."""
    facts = _facts(dataset, roles)
    encoded = as_list(roles.encode)
    widths = Counter(name for name in dataset.origins if name not in encoded)
    numbers = {*widths} & {*dataset.features}  # sets, as tables have up to 200,000 columns
    single = [name for name in widths if name in numbers]
    one_hot = [f"{name} ({count})" for name, count in widths.items() if name not in numbers]
    parts = [
        f"{what} {_some(names)}"
        for what, names in (("numbers:", single), ("one-hot:", one_hot), ("encoded:", encoded))
        if names
    ]
    width, columns = len(dataset.features), len(widths) + len(encoded)
    made = (
        f"{width} feature{'s' * (width != 1)} from {columns} column{'s' * (columns != 1)}: {'; '.join(parts)}"
        if parts
        else f"each has {' x '.join(f'{length:,}' for length in dataset.x.shape[1:])} numbers"
    )
    lines = [f"{dataset.name.partition(':')[2] or dataset.name}: {len(dataset):,} rows; {made}"]
    label = " ".join(filter(None, ["label", roles.label]))
    if classes := facts.get("classes"):
        positive = f"; {dataset.classes[-1]} is positive" if len(classes) == 2 else ""
        lines.append(f"{label}: {_most(classes)}{positive}")
    else:
        lines.append(
            f"{label}: numbers from {dataset.y.min():z.6g} to {dataset.y.max():z.6g}, mean "
            f"{dataset.y.mean():z.4g}"
        )
    if groups := facts.get("groups"):
        by = f" by {' & '.join(as_list(roles.sensitive))}" if roles.sensitive else ""
        lines.append(f"groups{by}: {_most(groups)}")
    if clients := facts.get("clients"):
        lines.append(f"clients by {dataset.client}: {len(clients)}, {_most(clients)}")
    if users := facts.get("users"):
        fewest, most = users["fewest"], users["most"]
        span = f"{fewest}" if fewest == most else f"{fewest} to {most}"
        several = users.get("scattered", 0)
        lines.append(
            f"users by {roles.user}: {users['users']:,}, with {span} row{'s' * (most != 1)} each"
            + (
                f"; {several:,} of them at several clients: the same people, or numbers used twice?"
                if several
                else ""
            )
        )
    left_out = [*as_list(roles.drop), *(name for name in (roles.client, roles.user) if name)]
    if parts and left_out:
        lines.append(f"no features: {_some(left_out)}")
    return lines


def _some(names: Sequence[str]) -> str:
    """Return the first of some names, and how many more there are."""
    most = 2 * SHOWN
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")
