"""Rows that clients keep between rounds, at a cost that grows with the cohort and not with the population."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod
from typing import Any, Self

import torch
from torch import Tensor
from torch.utils._pytree import tree_map_only

IN_PLACE = "rows that clients keep are not changed in place; clients.put returns changed ones"


class RowTable(Tensor):
    """A tensor ``(..., total, P)`` that shares memory with its successors.

    It has a value, like any tensor. `with_rows` returns another table and writes only the new rows: both share one
    store, which has the rows of the newest table, and an older one remembers the rows that it had instead. Whoever
    reads an older table gets a copy of the store, so linear use is cheap and any other use is correct. Rows that
    nobody has written take no memory.

    Any operation of torch works on a table as on the tensor with the same value, which it computes first. A table
    cannot be changed in place.
    """

    _store: _Store
    # The successor, where it differs, the rows here, and which of them had been written.
    _newer: tuple[RowTable, Tensor, Tensor, Tensor] | None

    @staticmethod
    def __new__(cls, store: _Store) -> Self:
        """Return a tensor without memory of its own."""
        like = store.common
        table: Self = Tensor._make_wrapper_subclass(cls, store.shape, dtype=like.dtype, device=like.device)
        return table

    def __init__(self, store: _Store) -> None:
        self._store = store
        self._newer = None

    @classmethod
    def of(cls, full: Tensor) -> RowTable:
        """Return the table of a tensor; if all rows of a run are views of one, only that one is kept."""
        if isinstance(full, RowTable):
            return full
        same = one_row(full)
        places = torch.arange(0 if same else prod(full.shape[:-1]), device=full.device)
        rows = full[..., :0, :] if same else full
        return cls(_Store(full.shape, full[..., 0, :], places, rows.flatten(0, -2)))

    def rows(self, places: Tensor) -> Tensor:
        """Return the rows at some places of the flattened leading axes."""
        return self._newest().read(places)

    def with_rows(self, places: Tensor, rows: Tensor) -> RowTable:
        """Return a table with other rows at some places of the flattened leading axes."""
        store = self._newest()
        table = RowTable(store)
        # Before the store is written: this table keeps its value even if an interrupt comes in between.
        self._newer = table, places, store.read(places), store.has(places)
        store.write(places, rows)
        return table

    def dense(self) -> Tensor:
        """Return an ordinary tensor of the same value."""
        store = self._newest()
        full: Tensor = store.read(torch.arange(len(store), device=self.device)).view(self.shape)
        return full

    def of_run(self, number: int) -> RowTable:
        """Return the table of one of several runs, in memory of its own."""
        store, total = self._newest(), self.shape[-2]
        places, rows = store.written()
        inside = (places // total) == number
        kept = places[inside] - number * total
        return RowTable(_Store(self.shape[1:], store.common[number], kept, rows[inside]))

    @classmethod
    def stack(cls, tables: Sequence[RowTable]) -> RowTable:
        """Return the table of several runs, of their tables ``(total, P)``."""
        stores, total = [table._newest() for table in tables], tables[0].shape[-2]
        written = [store.written() for store in stores]
        places = torch.cat([place + number * total for number, (place, _) in enumerate(written)])
        common = torch.cat([store.common for store in stores])
        shape = (len(tables), *tables[0].shape)
        return cls(_Store(shape, common, places, torch.cat([rows for _, rows in written])))

    def packed(self) -> dict[str, Any]:
        """Return the table as plain values, for a file: the rows that have been written, and what others are."""
        store = self._newest()
        places, rows = store.written()
        return {"shape": tuple(self.shape), "common": store.common, "places": places, "rows": rows}

    @classmethod
    def unpacked(cls, values: Mapping[str, Any]) -> RowTable:
        """Return the table that `packed` returned."""
        return cls(_Store(**values))

    def _newest(self) -> _Store:
        """Return the store with the rows of this table; a copy if there is a newer table."""
        if self._newer is not None:
            table, differences = self, []
            while table._newer is not None:
                table, *difference = table._newer
                differences.append(difference)
            newest = table._store
            store = _Store(newest.shape, newest.common, *newest.written())
            for places, rows, had in reversed(differences):
                store.write(places, rows)
                store.forget(places[~had])
            self._store, self._newer = store, None
        return self._store

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        """Compute the value first; refuse to change it."""
        if func._schema.is_mutable and isinstance(args[0], RowTable):
            raise TypeError(IN_PLACE)
        args, kwargs = tree_map_only(RowTable, RowTable.dense, (args, kwargs or {}))
        return func(*args, **kwargs)

    def __setitem__(self, *_: Any) -> None:
        """Refuse to change the value."""
        raise TypeError(IN_PLACE)

    def __repr__(self, *, tensor_contents: Any = None) -> str:  # type: ignore[override]
        """Return the representation of the value."""
        return f"RowTable({self.dense()!r})"

    def __reduce_ex__(self, _: Any) -> Any:
        """Copy the value: two tables of one store must be versions of each other."""
        return RowTable.unpacked, (self.packed(),)

    def __deepcopy__(self, _: Any) -> RowTable:
        """Copy the value."""
        return RowTable.unpacked(self.packed())

    def tolist(self) -> Any:
        """Return the value as lists."""
        return self.dense().tolist()

    def numpy(self, **options: Any) -> Any:
        """Return the value as an array."""
        return self.dense().numpy(**options)


def one_row(full: Tensor) -> bool:
    """Whether memory holds a single row, of which all rows ``(..., total, P)`` are views; it saves work only."""
    return full.stride(-2) == 0


def of_run(field: Tensor, number: int) -> Tensor:
    """Return the field of a state or channel of one of several runs, in memory of its own."""
    return field.of_run(number) if isinstance(field, RowTable) else field[number].clone()


def stacked(fields: Sequence[Tensor]) -> Tensor:
    """Return the field of a state or channel of several runs."""
    if any(isinstance(field, RowTable) for field in fields):
        return RowTable.stack([RowTable.of(field) for field in fields])
    return torch.stack(list(fields))


class _Store:
    """The rows of the newest of several tables.

    Parameters
    ----------
    shape : tuple of int
        ``(..., total, P)``.
    common : Tensor
        What rows are that have not been written, ``(..., P)``.
    places, rows : Tensor
        The rows that have been written, ``(k,)`` and ``(k, P)``.
    """

    def __init__(self, shape: tuple[int, ...], common: Tensor, places: Tensor, rows: Tensor) -> None:
        self.shape = torch.Size(shape)
        self.common = common.reshape(-1, shape[-1]).clone()
        self._rows = rows.new_empty(
            0, shape[-1]
        )  # side by side, in the order in which places were first written
        self._used = 0
        self._slots = torch.full((prod(shape[:-1]),), -1, device=rows.device)  # of a place among the rows
        self.write(places, rows)

    def __len__(self) -> int:
        """Return the number of places."""
        return len(self._slots)

    def read(self, places: Tensor) -> Tensor:
        """Return the rows at some places."""
        common = self.common if len(self.common) == 1 else self.common[places // self.shape[-2]]
        if not self._used:
            return common.expand(len(places), -1).clone()
        slots = self._slots[places]
        return torch.where((slots >= 0).unsqueeze(-1), self._rows[slots.clamp(min=0)], common)

    def has(self, places: Tensor) -> Tensor:
        """Return which of some places have been written."""
        return self._slots[places] >= 0

    def forget(self, places: Tensor) -> None:
        """Mark rows as unwritten; their memory is not used again."""
        self._slots[places] = -1

    def write(self, places: Tensor, rows: Tensor) -> None:
        """Replace the rows at some places."""
        slots = self._slots[places]
        new = (slots < 0).nonzero().squeeze(-1)
        if len(new):
            first, self._used = self._used, self._used + len(new)
            self._reserve(first)
            slots[new] = torch.arange(first, self._used, device=slots.device)
        self._rows[slots] = rows
        self._slots[places] = slots  # last: an interrupt leaves no place without a row

    def written(self) -> tuple[Tensor, Tensor]:
        """Return the places that have been written, ascending, and their rows."""
        places = (self._slots >= 0).nonzero().squeeze(-1)
        return places, self._rows[self._slots[places]]

    def _reserve(self, kept: int) -> None:
        """Make room for the rows in use, of which the first ``kept`` are there; doubled, so that it is rare."""
        if self._used > len(self._rows):
            room = max(self._used, min(len(self), 2 * len(self._rows)))
            rows = self._rows.new_empty(room, self.shape[-1])
            rows[:kept] = self._rows[:kept]
            self._rows = rows
