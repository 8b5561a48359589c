"""A user's table as a data set, whatever its format: the roles of columns, and what happens to missing cells."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray

from datasets.arrays import Encoded
from datasets.dataset import Dataset
from datasets.doubts import check_column_kinds, warn_of_doubts
from datasets.encoding import MISSING_CATEGORY, Cells, Content, LabelColumn, encode_table
from datasets.errors import DataError, nearest, tried, warn
from datasets.formats import OTHERWISE, POLICIES, as_list
from datasets.labels import warn_of_similar
from datasets.limits import check_cells
from datasets.texts import WORDS, word_counts

MANY_CLIENTS = 100  # above which nothing is said of single ones
RARE = 0.01  # share of the rows, below which a value of three or more may be a mistake


@dataclass(frozen=True, kw_only=True)
class Roles:
    """Roles of the columns of a table, and how cells are treated.

    Attributes
    ----------
    label : str
        Column of the label; its two or more values, sorted, become the classes, or it has numbers. Values that
        differ in case, spaces or a trailing dot only are refused.
    sensitive : str or sequence of str, optional
        Column of the sensitive attribute; several are crossed.
    client : str
        Column that says who holds a sample, for the partition ``natural``; it is no feature.
    user : str
        Column that names the user of a sample, for privacy of users inside clients; it is no feature.
    keep_sensitive : bool
        Whether sensitive columns remain features.
    missing : {"error", "drop", "fill"} or mapping of str to these
        Treatment of missing cells, of all columns or by column (``*``: of those not named, else ``error``): refuse
        the file, drop the rows, or fill with the column's mean over the rows that are kept, which counts as public
        (numbers), or a separate category (text). A label is never filled: its row is dropped. Nor is a user, which
        is refused.
    drop : str or sequence of str
        Columns to leave out, such as identifiers.
    text : str or sequence of str
        Columns of numbers to read as text, such as codes.
    encode : str or sequence of str
        Columns of text that an encoder makes features of; by themselves they are none.
    rare : int, optional
        Values of text features in fewer rows than this become "other".
    positive : str, optional
        The positive one of two classes. Default: that of an obvious pair (0 and 1, no and yes), else the last,
        with a warning.
    labels : mapping of str to str, optional
        Values of the label to rename, so that several spellings are one class.
    task : {"classification", "regression"}
        Whether the label's values are classes or numbers.
    input : str
        Column of images, vectors or texts that alone become the features: of texts words are counted. Default: the
        only column of images, vectors or signs that is not dropped, if there is one.
    normalize : {"none", "half"}
        Of images, see `datasets.arrays.Arrays.encode`.
    """

    label: str | None = None
    sensitive: str | Sequence[str] | None = None
    client: str = ""
    user: str = ""
    keep_sensitive: bool = True
    missing: str | Mapping[str, str] = "error"
    drop: str | Sequence[str] = ()
    text: str | Sequence[str] = ()
    encode: str | Sequence[str] = ()
    rare: int | None = None
    positive: str | None = None
    labels: Mapping[str, str] | None = None
    task: Literal["classification", "regression"] = "classification"
    input: str = ""
    normalize: str = "none"

    def __post_init__(self) -> None:
        """Refuse a number of rows that is none."""
        if self.rare is not None and self.rare < 1:
            raise DataError(f"rare is {self.rare}; give a number of rows, at least 1")

    @property
    def texts(self) -> tuple[str, ...]:
        """The columns that are read as text, whatever their cells are."""
        return (*as_list(self.text), *as_list(self.encode))

    def completed(self, path: Path, content: Content) -> Roles:
        """Return the roles with those that the format names, and the only column of arrays as the input."""
        usual = content.usual
        roles = replace(
            self,
            label=self.label if self.label is not None else usual.get("label"),
            client=self.client or usual.get("client", ""),
            input=self.input or ("" if self.encode else usual.get("input", "")),
        )
        if self.encode:  # whose features stand beside those of cells
            if self.input:
                raise DataError(
                    f"{path}: encode makes features of texts, and input takes its place; give one of them"
                )
            return roles
        arrays = [name for name in content.arrays if name not in as_list(self.drop)]
        if len(arrays) > 1 and not roles.input:
            raise DataError(
                f"{path} has several columns of arrays: {', '.join(arrays)}; choose one, as in input={arrays[0]}"
            )
        return roles if roles.input or not arrays else replace(roles, input=arrays[0])

    @property
    def roles_beside_label(self) -> tuple[str, ...]:
        """The columns that tell samples apart beside the label: sensitive ones, that of clients and of users."""
        return (*as_list(self.sensitive), *filter(None, (self.client, self.user)))

    @property
    def not_features(self) -> set[str]:
        """The columns beside the label that are no features."""
        hidden = () if self.keep_sensitive else as_list(self.sensitive)
        return {self.client, self.user, *as_list(self.encode), *hidden}

    def uses(self, column: str) -> bool:
        """Whether a column is used: all that are not dropped, or beside an input those that have a role."""
        if self.input:
            return column in (self.label, self.input, *self.roles_beside_label)
        return column not in as_list(self.drop)

    def label_in(self, path: Path, content: Content) -> str:
        """Return the column of the label, after checking that all named columns exist and fit their roles."""
        columns, dropped = content.columns, as_list(self.drop)
        if self.label is None:
            raise DataError(f"{path}: say which column is the label; {nearest('', columns)}")
        encoded = as_list(self.encode)
        cells = (self.label, *self.roles_beside_label, *as_list(self.text), *encoded)
        policies = (
            () if isinstance(self.missing, str) else [name for name in self.missing if name != OTHERWISE]
        )
        strange = [name for name in (*cells, *policies) if name not in columns]
        strange += [name for name in (*dropped, *filter(None, [self.input])) if name not in content.names]
        if strange := list(dict.fromkeys(strange)):
            note = f" ({content.note})" if content.note else ""
            what = f"column{'s' if len(strange) > 1 else ''} {', '.join(map(repr, strange))}"
            allowed = columns if {*strange} & {*cells, *policies} else content.names
            raise DataError(f"{path} has no {what}; {nearest(strange, allowed)}{note}")
        beside = {*self.roles_beside_label, *filter(None, [self.input])}
        if self.label in beside or {self.label, *beside} & set(dropped):
            raise DataError(
                f"{path}: the label cannot be sensitive, the client or the user, nor the input, and none of them "
                "can be dropped"
            )
        if twice := {self.label, *self.roles_beside_label, *dropped} & set(encoded):
            raise DataError(f"{path}: the column {min(twice)!r} cannot be encoded, as it has another role")
        return self.label

    def cells(self, path: Path, content: Content) -> dict[str, Cells]:
        """Return the columns that are used."""
        spelled = {self.user, self.input, *self.texts}

        def read(name: str) -> Cells:
            cells = content.columns[name]("text" if name in spelled else "guess")
            if cells.missing.all():
                raise DataError(f"{path}: the column {name!r} is empty; leave it out with drop")
            return cells

        used = [name for name in content.columns if self.uses(name)]
        return dict(zip(used, tried(partial(read, name) for name in used), strict=True))


def make_dataset(kind: str, path: Path, roles: Roles, content: Content) -> Dataset:
    """Make a data set of a table: numbers are kept, text is one-hot encoded, one column is the label.

    Parameters
    ----------
    kind : str
        Its format.
    path : Path
        The file, or the name of several, for messages and tables.
    roles : Roles
        What its columns are.
    content : Content
        What was read.

    Raises
    ------
    DataError
        If the file or the choice of columns is unusable.
    """
    if content.rows < 2:
        raise DataError(f"{path} has {content.rows} rows of data; at least 2 are needed")
    label = roles.label_in(path, content)
    policies = policies_of(path, roles.missing, content.columns)
    table = roles.cells(path, content)
    role_columns, texts = {label, *roles.roles_beside_label, roles.input}, roles.texts
    checked = {name: cells for name, cells in table.items() if name not in {roles.user, roles.input, *texts}}
    check_column_kinds(path, checked, role_columns, content)
    table, complete = _treat_missing(path, table, label, roles.user, policies)
    numbers = roles.task == "regression"
    features = {name: cells for name, cells in table.items() if name not in role_columns | roles.not_features}
    _warn_of_unused(path, roles, content)
    if not roles.input:  # whose labels are known to be classes
        warn_of_doubts(path, features, texts, label, table[label], quantity=numbers)
    _check_names(path, label, roles, table)
    extent = "" if complete.all() else f", {complete.sum()} of {content.rows} rows"
    made, classes = _input(path, roles, content, table, complete)
    dataset = encode_table(
        f"{kind}:{path.name}",
        table,
        label=LabelColumn(
            name=label, numbers=numbers, classes=classes, positive=roles.positive, renames=roles.labels
        ),
        sensitive=as_list(roles.sensitive),
        not_features=roles.not_features,
        source=f"{kind} ({path.name}{extent})",
        digest=content.digest,
        where=path,
        rare=roles.rare,
        encoded=as_list(roles.encode),
        made=made,
    )
    warn(path, [*_one_class(dataset, roles.client), *_rare_values(table, dataset, label, roles)])
    means = ("means of columns with missing cells, over all rows",) if "fill" in policies.values() else ()
    return replace(
        dataset,
        client=roles.client,
        public=(*means, *dataset.public),
        official_test=None if content.test is None else torch.from_numpy(content.test[complete]),
    )


def _check_names(path: Path, label: str, roles: Roles, table: Mapping[str, Cells]) -> None:
    """Refuse names of classes, groups, clients and users that no results file can hold; warn of similar ones."""
    for column in (name for name in (label, *roles.roles_beside_label) if not table[name].numeric):
        names = set(table[column].values.tolist())
        for name in names:
            try:
                name.encode()
            except UnicodeEncodeError:  # JSON and names of files may have such
                raise DataError(
                    f"{path}: the column {column!r} has the value {name!r}, which is no text in Unicode; rename it"
                ) from None
        if column != label:
            warn_of_similar(path, column, names)


def _one_class(dataset: Dataset, client: str) -> list[str]:
    """Return a line about clients whose samples are all of one class, unless clients are many, as persons are."""
    if not client or not dataset.classes:
        return []
    names, places = np.unique(dataset.columns[client], return_inverse=True)
    if len(names) > MANY_CLIENTS:
        return []
    counts = np.zeros((len(names), len(dataset.classes)), dtype=np.int64)
    np.add.at(counts, (places, dataset.y.numpy()), 1)
    alone = np.flatnonzero((counts > 0).sum(1) == 1)
    if not len(alone):
        return []
    first = alone[0]
    only, rows = dataset.classes[int(counts[first].argmax())], int(counts[first].sum())
    return [
        f"{len(alone)} of {len(names)} clients have one class only, such as {names[first]!r}, with {rows} rows of "
        f"{only!r}; figures that compare classes, such as AUROC, do not exist for them alone"
    ]


def _rare_values(table: Mapping[str, Cells], dataset: Dataset, label: str, roles: Roles) -> list[str]:
    """Return a line for each column of classes or groups, of three or more, of which one has hardly any row."""
    lines = []
    columns = {name: table[name].values.tolist() for name in as_list(roles.sensitive)}
    if dataset.classes:  # as they are after data.labels
        columns = {label: [dataset.classes[number] for number in dataset.y.tolist()], **columns}
    for name, values in columns.items():
        counts, rows = Counter(values), len(values)
        rare = [value for value, count in counts.items() if count < RARE * rows]
        if len(counts) < 3 or not rare:
            continue
        shown = rare[0] if isinstance(rare[0], str) else f"{rare[0]:.15g}"
        others = f", like {len(rare) - 1} more values," if len(rare) > 1 else ""
        lines.append(
            f"the value {shown!r} of the column {name!r}{others} is a {'class' if name == label else 'group'} of "
            f"its own with {counts[rare[0]]} of {rows} rows: if it is another spelling, set "
            f"map.{name}.{shown}=VALUE, and if it stands for nothing, na={shown}"
        )
    return lines


def _warn_of_unused(path: Path, roles: Roles, content: Content) -> None:
    unused = [name for name in content.columns if not roles.uses(name) and name not in as_list(roles.drop)]
    if unused and roles.input:
        warn(path, [f"beside the input {roles.input!r}, {', '.join(map(repr, unused))} are no features"])


def _input(
    path: Path, roles: Roles, content: Content, table: Mapping[str, Cells], complete: NDArray[np.bool_]
) -> tuple[Encoded | None, tuple[str, ...] | None]:
    """Return the features of the input, and the classes that it prescribes; None where there are none."""
    name = roles.input
    if name in content.arrays:
        arrays = content.arrays[name]()
        return arrays.encode(path, name, complete, roles.normalize), arrays.classes or None
    if roles.normalize != "none":
        raise DataError(f"{path}: normalize is for images, and the file has none")
    if not name:
        return None, None
    check_cells(path, int(complete.sum()), WORDS, "features")
    return Encoded(torch.from_numpy(word_counts(table[name].values.tolist()))), None


def policies_of(
    path: Path, missing: str | Mapping[str, str], columns: Mapping[str, object]
) -> dict[str, str]:
    """Return the policy of every column."""
    by_column = {OTHERWISE: missing} if isinstance(missing, str) else missing
    for column, policy in by_column.items():
        if column not in (*columns, OTHERWISE):
            raise DataError(f"{path} has no column {column!r} (missing); {nearest(column, columns)}")
        if policy not in POLICIES:
            raise DataError(f"missing={policy!r} is unknown; {nearest(policy, POLICIES)}")
    return {column: by_column.get(column, by_column.get(OTHERWISE, POLICIES[0])) for column in columns}


def _treat_missing(
    path: Path, table: Mapping[str, Cells], label: str, user: str, policies: Mapping[str, str]
) -> tuple[dict[str, Cells], NDArray[np.bool_]]:
    """Return the table without missing cells, and which of the rows are in it."""
    holes = {name: int(cells.missing.sum()) for name, cells in table.items() if cells.missing.any()}
    if refused := {name: count for name, count in holes.items() if policies[name] == "error"}:
        raise DataError(f"{path} {holes_without_policy(refused)}")
    if user in holes and policies[user] == "fill":
        raise DataError(
            f"{path}: the user {user!r} is missing in {holes[user]} rows; it is never filled: leave them out with "
            f"missing.{user}=drop"
        )
    complete = np.ones(len(table[label].missing), dtype=bool)
    causes = {name: count for name, count in holes.items() if policies[name] == "drop" or name == label}
    for name in causes:
        complete &= ~table[name].missing
    if complete.sum() < 2:
        raise DataError(f"{path}: every row but {complete.sum()} has a missing cell; nothing is left")
    if causes:
        columns = ", ".join(f"{name!r} ({count})" for name, count in causes.items())
        left_out = f"{len(complete) - complete.sum()} of {len(complete)} rows are left out"
        warn(path, [f"{left_out}, in which {columns} is missing"])
    remaining = {
        name: cells._replace(values=cells.values[complete], missing=cells.missing[complete])
        for name, cells in table.items()
    }
    if empty := [name for name, cells in remaining.items() if cells.missing.all()]:
        raise DataError(
            f"{path}: the column {empty[0]!r} is empty in the rows that are left; leave it out with drop"
        )
    return {name: _fill(cells) for name, cells in remaining.items()}, complete


def holes_without_policy(holes: Mapping[str, int]) -> str:
    """Return what to set for missing cells, by the numbers of them in columns that have no policy."""
    return (
        f"has missing cells in {', '.join(f'{name!r} ({count})' for name, count in holes.items())}; choose "
        "missing=drop (leave out those rows) or missing=fill (mean of a numeric column, a category of its own in "
        f"text), or by column, as in missing.{next(iter(holes))}=drop"
    )


def _fill(cells: Cells) -> Cells:
    if not cells.missing.any():
        return cells
    filling = cells.values[~cells.missing].mean() if cells.numeric else MISSING_CATEGORY
    return cells._replace(values=np.where(cells.missing, filling, cells.values))
