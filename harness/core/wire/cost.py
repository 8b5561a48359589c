"""Cost of a run: bytes on the wire, floating-point operations and oracle calls."""

from __future__ import annotations

import threading

import torch
from torch import Tensor

MOST = 256  # pieces of work that wait to be added up


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
        self._work: list[tuple[float, Tensor, bool]] = []  # what is not yet added up
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

    def work(self, flops: float, times: Tensor, *, oracle: bool = False) -> None:
        """Count ``flops`` operations, as often as the sum of ``times (*lead, C, n)`` says.

        With ``oracle`` each time is for a sample, and also counts as an oracle call.
        """
        with self._lock:
            self._work.append((flops, times.sum((-2, -1), dtype=torch.int64), oracle))
        if len(self._work) >= MOST:
            self._add_up()

    def _add_up(self) -> None:
        """Add what was counted since the last time, at once, as a step of a small model takes few operations."""
        with self._lock:
            if not (work := self._work):
                return
            self._work = []
            # On the clients' device, so that the round does not wait for a transfer.
            devices = [self._flops.device, *(count.device for _, count, _ in work)]
            where = next((device for device in devices if device.type != "cpu"), devices[0])
            counts = torch.stack([count.to(where) for _, count, _ in work], -1)
            flops = torch.tensor([each for each, _, _ in work], dtype=torch.float64).to(where)
            calls = torch.tensor([oracle for _, _, oracle in work]).to(where)
            self._flops = self._flops.to(where) + (counts * flops).round().long().sum(-1)
            self._oracle_calls = self._oracle_calls.to(where) + (counts * calls).sum(-1)

    def state(self) -> dict[str, Tensor]:
        """Return the counters for a checkpoint."""
        work = {"flops": self.flops.cpu(), "oracle_calls": self.oracle_calls.cpu()}
        return {"up": self.up, "down": self.down, **work}

    def restore(self, state: dict[str, Tensor]) -> None:
        """Restore the counters of a checkpoint."""
        self.up, self.down = state["up"], state["down"]
        self._work, self._flops, self._oracle_calls = [], state["flops"], state["oracle_calls"]
