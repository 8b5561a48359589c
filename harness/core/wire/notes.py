"""Notes on the first message of a round, for its diagnostics."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from harness.core.clients.clients import Clients
from harness.core.wire.diagnostics import Diagnostics
from harness.core.wire.dp_client import Mechanism
from harness.core.wire.dp_distributed import DistributedMechanism
from harness.core.wire.message import Message, joined, masked
from privacy.clipping import Clipped


@dataclass(slots=True)
class Notes:
    """Notes for the diagnostics; without them nothing is noted.

    Attributes
    ----------
    clients : Clients
        The cohort.
    mechanism : Mechanism or None
        The privacy mechanism.
    diagnostics : Diagnostics or None
        Receives norms and noise levels.
    """

    clients: Clients
    mechanism: Mechanism | None
    diagnostics: Diagnostics | None

    def on(self, message: Message) -> Diagnostics | None:
        """Return the diagnostics, if they describe this message."""
        return self.diagnostics if self.diagnostics and self.diagnostics.covers(message.slot) else None

    def unclipped(self, message: Message, row: Tensor) -> None:
        """Note the norms of what a mechanism would protect; rows that clients keep stay in it."""
        if (diagnostics := self.on(message)) is None:
            return
        if message.known is not None:
            row = row - masked(joined(message.known.rows), message.mask).nan_to_num()
        norms = torch.linalg.vector_norm(row, dim=-1, dtype=torch.float64)
        diagnostics.messages(norms, self._present(message))

    def clipped(self, message: Message, clipped: Clipped) -> None:
        """Note the norms of clipped messages."""
        if (diagnostics := self.on(message)) is not None and self.mechanism is not None:
            limits = self.mechanism.limits(message.slot)
            diagnostics.messages(clipped.norms, self._present(message), clipped.exceeded, limits)

    def noise(self, message: Message, row: Tensor, sensitivity: float | Tensor) -> None:
        """Note the noise of each client."""
        mechanism = self.mechanism
        if mechanism is None or not mechanism.noisy or (diagnostics := self.on(message)) is None:
            return
        present = self._present(message)
        sizes = _coordinates(row, message.mask)
        if mechanism.by_sample and message.samples is not None:
            sizes = _coordinates(row, None) / message.samples.weight.shape[-1]
        diagnostics.noise(mechanism.deviation(sensitivity), sizes.expand(present.shape), present)

    def noise_of_average(
        self, message: Message, row: Tensor, mask: Tensor | None, sensitivity: float | Tensor
    ) -> None:
        """Note the noise that the server adds to an average, on the entries of a mask."""
        mechanism = self.mechanism
        if mechanism is None or not mechanism.noisy or (diagnostics := self.on(message)) is None:
            return
        sizes = _coordinates(row, mask).expand(row.shape[:-1])
        diagnostics.noise_of_average(mechanism.deviation(sensitivity) * mechanism.spread, sizes, row)

    def noise_of_sum(
        self, message: Message, average: Tensor, clean: Tensor, mechanism: DistributedMechanism
    ) -> None:
        """Note the noise of an average that clients have added up, which without noise would be ``clean``."""
        if not mechanism.noisy or (diagnostics := self.on(message)) is None:
            return
        length = average.shape[-1]
        sizes = torch.tensor(length).double().expand(average.shape[:-1])
        diagnostics.noise_of_average(mechanism.deviation_of_average(length), sizes, clean)
        diagnostics.integers(mechanism.bits(length))

    def _present(self, message: Message) -> Tensor:
        """Return which clipped rows count: messages ``(..., C)``, or flattened samples ``(..., C B)``."""
        mask = self.clients.participation_mask.bool()
        if self.mechanism is None or not self.mechanism.by_sample or message.samples is None:
            return mask
        weight = message.samples.weight
        return ((weight > 0.5) & mask.unsqueeze(-1).to(weight.device)).flatten(-2)


def _coordinates(row: Tensor, mask: Tensor | None) -> Tensor:
    """Return the number of coordinates sent, float64, broadcastable against the leading axes."""
    count = torch.tensor(row.shape[-1]) if mask is None else mask.sum(-1)
    return count.double()
