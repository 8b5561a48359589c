"""Cost of a run: bytes on the wire, floating-point operations and oracle calls."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

MOST = 256  # pieces of work that wait to be added up
MOST_WEIGHTS = 1 << 20  # weights of samples in them


@dataclass(frozen=True, slots=True)
class Samples:
    """Samples of one batch, to be counted with those of other batches.

    Attributes
    ----------
    weight : Tensor
        Weights of the batch, ``(*lead, C, B)``: 1, or 0 for padding. Runs may share an axis of length 1.
    members : Tensor
        How often the samples of each client count, ``(*lead, C)``.
    """

    weight: Tensor
    members: Tensor

    def __mul__(self, times: Tensor) -> Samples:
        """Count the samples of each client ``times (*lead, C, 1)`` times."""
        return Samples(self.weight, self.members * times.squeeze(-1))


class _Work(NamedTuple):
    """Operations, how often they were done, in one or several parts, and whether they are oracle calls."""

    flops: float
    times: Sequence[Tensor | Samples]  # a tensor is summed up already
    oracle: bool


class Cost:
    """Counters, one per stacked run.

    Parameters
    ----------
    lead : tuple[int, ...]
        ``()`` for one run, ``(R,)`` for R stacked ones.

    Attributes
    ----------
    up, down : Tensor
        Bytes from clients (to the server or along edges) and to clients, int64 ``lead``.
    flops : Tensor
        Operations of the clients (matrix products and convolutions), int64 ``lead``.
    oracle_calls : Tensor
        Evaluations of gradients or other functions on single samples, int64 ``lead``: the complexity measure of
        theory, independent of the model. Both gradients at one point are one call.
    """

    def __init__(self, lead: tuple[int, ...] = ()) -> None:
        self.up = torch.zeros(lead, dtype=torch.int64)
        self.down = torch.zeros(lead, dtype=torch.int64)
        self._flops = torch.zeros(lead, dtype=torch.int64)
        self._oracle_calls = torch.zeros(lead, dtype=torch.int64)
        self._work: list[_Work] = []  # what is not yet added up
        self._weights = 0  # in it
        self._lock = threading.Lock()

    @property
    def flops(self) -> Tensor:
        """Operations of the clients."""
        self._add_up()
        return self._flops

    @property
    def oracle_calls(self) -> Tensor:
        """Evaluations of functions on single samples."""
        self._add_up()
        return self._oracle_calls

    def sent(self, sizes: Tensor, *, up: bool) -> None:
        """Count messages of ``sizes`` bytes, ``(*lead, C)``."""
        with self._lock:
            if up:
                self.up = self.up + sizes.sum(-1)
            else:
                self.down = self.down + sizes.sum(-1)

    def work(self, flops: float, *times: Tensor | Samples, oracle: bool = False) -> None:
        """Count ``flops`` operations, as often as the sum of all ``times (*lead, C, n)`` says.

        With ``oracle`` each time is for a sample, and also counts as an oracle call.
        """
        parts: list[Tensor | Samples] = []
        weights = 0
        for number in times:
            if isinstance(number, Samples):
                parts.append(number)
                weights += number.weight.numel()
            else:
                parts.append(number.sum((-2, -1), dtype=torch.int64))
        with self._lock:
            self._work.append(_Work(flops, parts, oracle))
            self._weights += weights
        if len(self._work) >= MOST or self._weights >= MOST_WEIGHTS:
            self._add_up()

    def _add_up(self) -> None:
        """Add what was counted since the last time, at once, as a step of a small model takes few operations."""
        with self._lock:
            if not (work := self._work):
                return
            sums = _totals(work)
            self._work, self._weights = [], 0
            # On the clients' device, so that the round does not wait for a transfer.
            devices = [self._flops.device, *(totals.device for _, totals in sums)]
            where = next((device for device in devices if device.type != "cpu"), devices[0])
            counts = torch.zeros(len(work), *self._flops.shape, dtype=torch.int64, device=where)
            for pieces, totals in sums:
                counts.index_add_(0, torch.tensor(pieces, device=where), totals.to(where))
            flops, calls = torch.tensor(
                [(piece.flops, piece.oracle) for piece in work], dtype=torch.float64
            ).T.to(where)
            each = counts.movedim(0, -1)
            self._flops = self._flops.to(where) + (each * flops).round().long().sum(-1)
            self._oracle_calls = self._oracle_calls.to(where) + (each * calls.long()).sum(-1)

    def state(self) -> dict[str, Tensor]:
        """Return the counters for a checkpoint."""
        work = {"flops": self.flops.cpu(), "oracle_calls": self.oracle_calls.cpu()}
        return {"up": self.up, "down": self.down, **work}

    def restore(self, state: dict[str, Tensor]) -> None:
        """Restore the counters of a checkpoint."""
        self.up, self.down = state["up"], state["down"]
        self._work, self._weights = [], 0
        self._flops, self._oracle_calls = state["flops"], state["oracle_calls"]


def _totals(work: Sequence[_Work]) -> list[tuple[list[int], Tensor]]:
    """Return numbers of pieces of work with how often each was done, ``(pieces, *lead)``.

    Those of one kind are counted together: batches of one shape, and what is summed up already.
    """
    alike: dict[object, list[tuple[int, Any]]] = {}
    for number, piece in enumerate(work):
        for times_of_piece in piece.times:
            tensors = (
                (times_of_piece.weight, times_of_piece.members)
                if isinstance(times_of_piece, Samples)
                else (times_of_piece,)
            )
            kind = tuple((tensor.shape, tensor.device) for tensor in tensors)
            alike.setdefault(kind, []).append((number, times_of_piece))
    sums = []
    for some in alike.values():
        numbers, times = [number for number, _ in some], [times_of_piece for _, times_of_piece in some]
        if isinstance(times[0], Samples):
            weight = torch.stack([times_of_piece.weight for times_of_piece in times])
            members = torch.stack([times_of_piece.members for times_of_piece in times]).to(weight.device)
            totals = ((weight > 0.5).sum(-1, dtype=torch.int32) * members).sum(-1)
        else:
            totals = torch.stack(times)
        sums.append((numbers, totals))
    return sums
