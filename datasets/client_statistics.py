"""Sample counts of every client by split, class and sensitive group; `datasets.counting` makes them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

Counts = Mapping[str, tuple[int, ...]]
PARTS = ("splits", "classes", "groups")


class ClientCounts(NamedTuple):
    """Sample counts per client; `classes` and `groups` add up all splits.

    Attributes
    ----------
    title : str
        Data and partition.
    splits, classes, groups : Mapping[str, tuple of int]
        Name to one count per client; empty without sensitive groups.
    names : tuple of str
        Names of the clients; empty if they have none.
    """

    title: str
    splits: Counts
    classes: Counts
    groups: Counts
    names: tuple[str, ...] = ()

    @property
    def clients(self) -> int:
        """Number of clients."""
        return len(next(iter(self.splits.values())))

    @property
    def numbers(self) -> int:
        """Total number of counts."""
        return self.clients * sum(len(getattr(self, part)) for part in PARTS)

    def packed(self) -> dict[str, Any]:
        """Return a JSON object in which the counts of all clients are one string."""
        texts: dict[str, Any] = {
            part: {name: " ".join(map(str, counts)) for name, counts in getattr(self, part).items()}
            for part in PARTS
        }
        return texts | ({"names": list(self.names)} if self.names else {})


def unpack(title: str, packed: Mapping[str, Any]) -> ClientCounts:
    """Restore the result of `ClientCounts.packed`."""
    splits, classes, groups = (
        {name: tuple(map(int, numbers.split())) for name, numbers in packed[part].items()} for part in PARTS
    )
    return ClientCounts(title, splits, classes, groups, tuple(packed.get("names", ())))
