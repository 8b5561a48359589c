"""Partitions of samples among clients.

A partition is a frozen dataclass whose fields are its settings. It maps labels, sensitive groups and raw columns to
the sorted positions of every client's samples. Subclasses return the *owner of every sample*, so the parts are
disjoint by construction; the base class refuses clients without samples.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal, NamedTuple, Self, TypeVar

import numpy as np
from numpy.typing import NDArray

from datasets.allocation import Positions, deal_classes, even, proportional
from datasets.dataset import EXACT
from datasets.errors import nearest

REDRAWS = 1000


class PartitionError(ValueError):
    """Invalid settings of a partition, or data that do not fit them."""


class Samples(NamedTuple):
    """Data available to a partition, as in `Partition.__call__`."""

    labels: NDArray[Any]
    groups: NDArray[Any] | None
    columns: Mapping[str, NDArray[Any]]


class Partition(ABC):
    """Base class of partitions, which checks arguments and results.

    Attributes
    ----------
    kind : str
        Name in `PARTITIONS`.
    version : int
        Raised by hand when the same seed gives another partition; part of a run's identity.
    remedy : str
        Advice if a client is left without samples.
    drawn : bool
        Whether the generator decides who holds a sample.
    """

    kind: ClassVar[str]
    version: ClassVar[int] = 1
    drawn: ClassVar[bool] = True
    remedy: ClassVar[str] = "use fewer clients"

    def __call__(
        self,
        labels: NDArray[Any],
        groups: NDArray[Any] | None,
        columns: Mapping[str, NDArray[Any]],
        clients: int | None,
        rng: np.random.Generator,
    ) -> list[Positions]:
        """Distribute all samples among clients.

        Parameters
        ----------
        labels : ndarray
            ``(n,)``, integers.
        groups : ndarray or None
            Sensitive group of every sample, ``(n,)``.
        columns : Mapping[str, ndarray]
            Raw columns, each ``(n,)``.
        clients : int or None
            Number of clients; None if the partition determines it.
        rng : numpy.random.Generator
            The only source of randomness.

        Returns
        -------
        list of ndarray
            Sorted positions of every client: disjoint and nonempty.

        Raises
        ------
        PartitionError
            If the settings do not fit the data, or a client would hold no sample.
        """
        samples = Samples(np.asarray(labels), groups, columns)
        n = len(samples.labels)
        count = self.count(samples, clients)
        if count < 1:
            raise self.error(f"{count} clients; at least 1 is needed")
        if n < count:
            raise self.error(f"{n} samples are too few for {count} clients; {self.remedy}")
        owner = self.owners(samples, count, rng)
        assert owner.shape == (n,) and owner.min() >= -1 and owner.max() < count
        left_out = int((owner < 0).sum())
        sizes = np.bincount(owner[owner >= 0], minlength=count)
        if not sizes.all():
            raise self.error(f"client {sizes.argmin()} of {count} is left without samples; {self.remedy}")
        return np.split(np.argsort(owner, kind="stable")[left_out:], np.cumsum(sizes)[:-1])

    def resolved(self, client: str) -> Self:
        """Return the partition completed by the data set's column of clients, if it has one."""
        return self

    @property
    def hides(self) -> tuple[str, ...]:
        """The raw columns that a model must not see; overridden if there are any."""
        return ()

    @property
    def public(self) -> tuple[str, ...]:
        """Facts about who is a client that a privacy claim takes as public; overridden if counts decide."""
        return ()

    def names(self, samples: Samples) -> tuple[str, ...]:
        """Return the names of the clients; overridden if they have any."""
        return ()

    def count(self, samples: Samples, clients: int | None) -> int:
        """Return the number of clients; overridden if the partition determines it."""
        if clients is None:
            raise self.error("needs the number of clients")
        return clients

    @abstractmethod
    def owners(self, samples: Samples, clients: int, rng: np.random.Generator) -> Positions:
        """Return the client of every sample, ``(n,)``."""

    def error(self, message: str) -> PartitionError:
        """Return an error that names this kind."""
        return PartitionError(f"partition {self.kind!r}: {message}")


P = TypeVar("P", bound=Partition)
PARTITIONS: dict[str, type[Partition]] = {}


def partition(cls: type[P]) -> type[P]:
    """Register a partition under its kind; PartitionError if the name is taken, but not by an earlier definition.

    What a notebook, ``__main__``, has defined may be defined again.
    """
    registered = PARTITIONS.setdefault(cls.kind, cls)
    if registered is not cls and registered.__module__ != "__main__":
        raise PartitionError(f"two partitions are called {cls.kind!r}")
    PARTITIONS[cls.kind] = cls
    return cls


@partition
@dataclass(frozen=True)
class Iid(Partition):
    """Equal random parts; sizes differ by at most one."""

    kind: ClassVar[str] = "iid"

    def owners(self, samples: Samples, clients: int, rng: np.random.Generator) -> Positions:
        """Assign shuffled samples to clients in turn."""
        owner = np.empty(len(samples.labels), dtype=np.int64)
        owner[rng.permutation(len(owner))] = np.arange(len(owner)) % clients
        return owner


@partition
@dataclass(frozen=True)
class Classes(Partition):
    """Exactly `classes` classes per client, every class cut into equal shards.

    Each of the K classes is cut into ``clients * classes / K`` shards, and no client gets two shards of a class:
    the partition of FedReCo (Table 4; the rule is ours, consistent with its public code). Clients are equally large
    if the classes are.

    Attributes
    ----------
    classes : int
        Classes per client.
    """

    kind: ClassVar[str] = "classes"
    classes: int = 2

    def __post_init__(self) -> None:
        """Refuse fewer than one class per client."""
        if self.classes < 1:
            raise self.error(f"classes is {self.classes}; at least 1 class per client is needed")

    def owners(self, samples: Samples, clients: int, rng: np.random.Generator) -> Positions:
        """Cut every class into shards for the clients that hold the class."""
        names, label, class_sizes = np.unique(samples.labels, return_inverse=True, return_counts=True)
        shards = self._shards(len(names), clients)
        if class_sizes.min() < shards:
            raise self.error(
                f"class {names[class_sizes.argmin()]} has {class_sizes.min()} samples but must be cut into "
                f"{shards} shards; use fewer clients or fewer classes per client"
            )
        holds = deal_classes(len(names), self.classes, clients, rng)
        owner = np.full(len(label), -1, dtype=np.int64)
        for k, size in enumerate(class_sizes):
            takers = rng.permutation(np.flatnonzero(holds[:, k]))
            assert len(takers) == shards
            owner[rng.permutation(np.flatnonzero(label == k))] = np.repeat(takers, even(size, shards))
        return owner

    def _shards(self, count: int, clients: int) -> int:
        """Return the number of shards per class; the error names the nearest valid settings."""
        if self.classes > count:
            raise self.error(f"{self.classes} classes per client, but the data have {count}")
        if clients * self.classes % count == 0:
            return clients * self.classes // count
        fitting_clients = _neighbors(clients, count // math.gcd(count, self.classes))
        fitting_classes = _neighbors(self.classes, count // math.gcd(count, clients))
        raise self.error(
            f"{clients} clients x {self.classes} classes = {clients * self.classes} shards is not a multiple of "
            f"the {count} classes; use {fitting_clients} clients, or {fitting_classes} classes per client"
        )


@dataclass(frozen=True)
class Skew(Partition):
    """Base class of partitions in proportions from a symmetric Dirichlet distribution.

    Attributes
    ----------
    alpha : float
        Concentration, > 0.
    at_least : int
        Fewest samples a client may hold.
    """

    alpha: float = 0.5
    at_least: int = 2

    def __post_init__(self) -> None:
        """Refuse a concentration that is not positive and clients without samples."""
        if not (math.isfinite(self.alpha) and self.alpha > 0):
            raise self.error(f"alpha is {self.alpha}; it must be positive and finite")
        if self.at_least < 1:
            raise self.error(f"at_least is {self.at_least}; every client needs at least 1 sample")

    def check_room(self, n: int, clients: int) -> None:
        """Refuse more clients than the samples allow."""
        if n < clients * self.at_least:
            raise self.error(
                f"{n} samples cannot give each of {clients} clients at_least {self.at_least}; use fewer clients or "
                "a smaller at_least"
            )


@partition
@dataclass(frozen=True)
class Dirichlet(Skew):
    """Label skew: every class is distributed in proportions from a symmetric Dirichlet distribution.

    Small `alpha` gives clients with few classes, large `alpha` nearly equal shares (Yurochkin et al. 2019; Hsu et
    al. 2019 draw per client instead). The draw is repeated until every client has `at_least` samples.

    Attributes
    ----------
    alpha : float
        Concentration, > 0.
    at_least : int
        Fewest samples a client may hold.
    """

    kind: ClassVar[str] = "dirichlet"

    def owners(self, samples: Samples, clients: int, rng: np.random.Generator) -> Positions:
        """Distribute class by class."""
        self.check_room(len(samples.labels), clients)
        _, label, class_sizes = np.unique(samples.labels, return_inverse=True, return_counts=True)
        for _ in range(REDRAWS):
            shares = rng.dirichlet(np.full(clients, self.alpha), size=len(class_sizes))
            counts = proportional(class_sizes[:, None], shares)
            if counts.sum(0).min() >= self.at_least:
                break
        else:
            raise self.error(
                f"in {REDRAWS} draws with alpha {self.alpha} never did each of the {clients} clients hold "
                f"at_least {self.at_least} samples; use a larger alpha, a smaller at_least or fewer clients"
            )
        owner = np.empty(len(label), dtype=np.int64)
        for k, row in enumerate(counts):
            owner[rng.permutation(np.flatnonzero(label == k))] = np.repeat(np.arange(clients), row)
        return owner


@partition
@dataclass(frozen=True)
class Quantity(Skew):
    """Size skew: client sizes follow a symmetric Dirichlet distribution, labels are random.

    Every client gets `at_least` samples; the rest is distributed in the proportions drawn.

    Attributes
    ----------
    alpha : float
        Concentration, > 0; small: a few clients hold nearly all samples.
    at_least : int
        Fewest samples a client may hold.
    """

    kind: ClassVar[str] = "quantity"

    def owners(self, samples: Samples, clients: int, rng: np.random.Generator) -> Positions:
        """Draw the sizes, then assign shuffled samples."""
        n = len(samples.labels)
        self.check_room(n, clients)
        shares = rng.dirichlet(np.full(clients, self.alpha))
        sizes = self.at_least + proportional(np.array(n - clients * self.at_least), shares)
        return rng.permutation(np.repeat(np.arange(clients), sizes))


@partition
@dataclass(frozen=True)
class Sensitive(Partition):
    """Group skew: each sensitive group is cut by `ratio`, in an order of clients drawn per group.

    The non-IID setting of FedBiO is 2:2:6 over three clients.

    Attributes
    ----------
    ratio : tuple of float
        One positive share per client.
    """

    kind: ClassVar[str] = "sensitive"
    remedy: ClassVar[str] = "use a more even ratio, or fewer clients"
    ratio: tuple[float, ...] = (2.0, 2.0, 6.0)

    def __post_init__(self) -> None:
        """Refuse shares that are not positive numbers."""
        if not self.ratio or not all(math.isfinite(share) and share > 0 for share in self.ratio):
            raise self.error(f"ratio is {self.ratio}; give one positive number per client")

    def count(self, samples: Samples, clients: int | None) -> int:
        """Return the length of the ratio; a given number of clients must equal it."""
        if clients is not None and clients != len(self.ratio):
            raise self.error(
                f"ratio has {len(self.ratio)} shares for {clients} clients; give one share per client, "
                f"or {len(self.ratio)} clients"
            )
        return len(self.ratio)

    def owners(self, samples: Samples, clients: int, rng: np.random.Generator) -> Positions:
        """Cut group by group."""
        if samples.groups is None:
            raise self.error("the data have no sensitive attribute; use another partition or name one")
        owner = np.full(len(samples.labels), -1, dtype=np.int64)
        for value in np.unique(samples.groups):
            members = rng.permutation(np.flatnonzero(samples.groups == value))
            counts = proportional(np.array(len(members)), np.array(self.ratio))
            owner[members] = np.repeat(rng.permutation(clients), counts)
        return owner


@partition
@dataclass(frozen=True)
class Shards(Partition):
    """Disjoint shards of equal size (to one sample), cut from the samples sorted by class.

    By default samples are assigned in turn, which gives all clients equal parts of every class (FedSGDA+, public
    code).

    Attributes
    ----------
    by_class : bool
        Cut contiguous blocks instead, so that clients hold few classes: the heterogeneous variant.
    """

    kind: ClassVar[str] = "shards"
    by_class: bool = False

    def owners(self, samples: Samples, clients: int, rng: np.random.Generator) -> Positions:
        """Sort by class, at random within a class, and assign in turn or in blocks."""
        n = len(samples.labels)
        blocks = np.repeat(rng.permutation(clients), even(n, clients))
        turn = blocks if self.by_class else np.arange(n) % clients
        owner = np.empty(n, dtype=np.int64)
        owner[np.lexsort((rng.random(n), samples.labels))] = turn
        return owner


@partition
@dataclass(frozen=True)
class Natural(Partition):
    """One client per value of a column, in the order of the sorted values.

    The column is no feature, nor are columns that the data set names as telling it: a model would know whose sample
    it sees.

    Attributes
    ----------
    column : str, optional
        Name of the column. Default: the column of clients that the data set names.
    at_least : int, optional
        Fewest samples of a client. Default: 1.
    group : {"other"}, optional
        Values with fewer samples are together the client "other", which is left out if it is small too. Default:
        they are left out.
    """

    kind: ClassVar[str] = "natural"
    version: ClassVar[int] = 2
    drawn: ClassVar[bool] = False
    remedy: ClassVar[str] = "omit clients: every value of the column is one"
    column: str | None = None
    at_least: int | None = None
    group: Literal["other"] | None = None

    def __post_init__(self) -> None:
        """Refuse clients without samples."""
        if self.at_least is not None and self.at_least < 1:
            raise self.error(f"at_least is {self.at_least}; every client needs at least 1 sample")
        if self.group not in (None, "other"):
            raise self.error(f"group is {self.group!r}; {nearest(self.group, ['other'])}")

    def resolved(self, client: str) -> Self:
        """Return the partition by the given column, if no other is named."""
        return replace(self, column=self.column or client or None)

    @property
    def hides(self) -> tuple[str, ...]:
        """The column that tells clients apart."""
        return () if self.column is None else (self.column,)

    @property
    def public(self) -> tuple[str, ...]:
        """The clients with enough samples, a fact that a privacy claim takes as public."""
        return () if self.at_least is None else (f"which clients have at least {self.at_least} samples",)

    def count(self, samples: Samples, clients: int | None) -> int:
        """Return the number of values that are left; a given number of clients must equal it."""
        count = len(self.names(samples))
        if clients is not None and clients != count:
            raise self.error(f"column {self.column!r} has {count} values, not {clients}; {self.remedy}")
        return count

    def names(self, samples: Samples) -> tuple[str, ...]:
        """Return the values that are left, sorted, then perhaps "other"."""
        values, _, rest = self._large(samples)
        names = [f"{value:.15g}" if isinstance(value, float) else str(value) for value in values]
        return (*names, *(["other"] if rest else []))

    def owners(self, samples: Samples, clients: int, rng: np.random.Generator) -> Positions:
        """Return the index of each sample's value, -1 for samples that are left out."""
        values, owner, rest = self._large(samples)
        return np.where(owner < 0, len(values) if rest else -1, owner)

    def _large(self, samples: Samples) -> tuple[NDArray[Any], Positions, bool]:
        """Return the values with enough samples, each sample's index in them or -1, and whether the rest is one."""
        values, owner, sizes = np.unique(self._values(samples), return_inverse=True, return_counts=True)
        large = sizes >= (self.at_least or 1)
        rest = self.group == "other" and sizes[~large].sum() >= (self.at_least or 1)
        if rest and "other" in values[large].astype(str):
            raise self.error(f"a value of column {self.column!r} is called 'other'; leave out group")
        if not (large.any() or rest):
            raise self.error(f"no value of column {self.column!r} has at_least {self.at_least} samples")
        number = np.where(large, np.cumsum(large) - 1, -1)
        return values[large], number[owner].astype(np.int64), bool(rest)

    def _values(self, samples: Samples) -> NDArray[Any]:
        """Return the column; objects as text, since missing values and text cannot be sorted together."""
        if self.column is None:
            raise self.error(
                f"the data name no column of clients; name it with data.client; {nearest('', samples.columns)}"
            )
        if self.column not in samples.columns:
            raise self.error(f"unknown column {self.column!r}; {nearest(self.column, samples.columns)}")
        values = np.asarray(samples.columns[self.column])
        if values.dtype.kind == "f" and (np.abs(values) >= EXACT).any():
            raise self.error(
                f"column {self.column!r} has numbers of more than 15 digits, which are not exact; read it as text "
                "(data.text)"
            )
        return values.astype(str) if values.dtype == object else values


def _neighbors(number: int, step: int) -> str:
    """Return the positive multiples of `step` next to `number`, as text."""
    below = number // step * step
    return f"{below} or {below + step}" if below else str(step)
