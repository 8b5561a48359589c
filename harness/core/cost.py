"""Cost of a run: bytes on the wire, floating-point operations and oracle calls."""

from __future__ import annotations

import threading

import torch
from torch import Tensor


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
        self.flops = torch.zeros(lead, dtype=torch.int64)
        self.oracle_calls = torch.zeros(lead, dtype=torch.int64)
        self._lock = threading.Lock()

    def sent(self, sizes: Tensor, *, up: bool) -> None:
        """Count messages of ``sizes`` bytes, ``(*lead, C)``."""
        with self._lock:
            if up:
                self.up = self.up + sizes.sum(-1)
            else:
                self.down = self.down + sizes.sum(-1)

    def work(self, flops: float, *times: Tensor, oracle: bool = False) -> None:
        """Count ``flops`` operations, as often as the sum of all ``times (*lead, C, n)`` says.

        With ``oracle`` each time is for a sample, and also counts as an oracle call.
        """
        number = torch.stack([count.sum((-2, -1), dtype=torch.int64) for count in times]).sum(0)
        with self._lock:
            self.flops = _added(self.flops, (number.double() * flops).round().long())
            if oracle:
                self.oracle_calls = _added(self.oracle_calls, number)

    def state(self) -> dict[str, Tensor]:
        """Return the counters for a checkpoint."""
        work = {"flops": self.flops.cpu(), "oracle_calls": self.oracle_calls.cpu()}
        return {"up": self.up, "down": self.down, **work}

    def restore(self, state: dict[str, Tensor]) -> None:
        """Restore the counters of a checkpoint."""
        self.up, self.down = state["up"], state["down"]
        self.flops, self.oracle_calls = state["flops"], state["oracle_calls"]


def _added(total: Tensor, number: Tensor) -> Tensor:
    """Return a sum on the clients' device, so that the round does not wait for a transfer."""
    where = number.device if total.device.type == "cpu" else total.device
    return total.to(where) + number.to(where)
