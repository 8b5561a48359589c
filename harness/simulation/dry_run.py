"""A channel that encodes nothing and counts how long messages will be."""

from __future__ import annotations

from typing import Any

import torch

from compression import Codec, kept_count
from harness.core.channel import Channel
from harness.core.wire import masks
from harness.core.wire.message import Message
from harness.core.wire.stages import Stages


class DryStages(Stages):
    """Stages that encode nothing, draw no noise, and know the length of a code from its message's shape."""

    largest = False

    def add_noise(self, message: Message) -> None:
        """Draw nothing."""

    def add_noise_to_average(self, message: Message) -> None:
        """Draw nothing."""

    def add_residual(self, message: Message) -> None:
        """Add nothing: nothing is left unsent."""

    def encode(self, message: Message) -> None:
        """Note how long the code would be."""
        codec = self.down if message.sender == "server" else self.up
        lead = message.joint.shape[:-1]
        n = torch.tensor(message.joint.shape[-1]) if message.mask is None else message.mask.sum(-1).cpu()
        entries = n.expand(lead).flatten().tolist()
        ratios = self._ratios(message, lead)
        size = {pair: self._size(codec, *pair) for pair in set(zip(entries, ratios, strict=True))}
        sizes = [size[pair] for pair in zip(entries, ratios, strict=True)]
        message.sizes = torch.tensor(sizes).view(lead)

    def _ratios(self, message: Message, lead: torch.Size) -> list[float | None]:
        """Return the share of entries that each sender drops by its own choice; None: it chooses nothing."""
        count, select = lead.numel(), self.compression.select
        if message.sparsify and select == "top_k":
            ratio = torch.as_tensor(masks.ratio(self.clients, self.compression), dtype=torch.float64)
            if bool((ratio > 0).any()):
                return list(ratio.expand(lead).flatten().tolist())
        if message.sparsify and select == "threshold":
            return [0.0] * count  # how many pass cannot be foreseen: the plan takes all of them
        return [None] * count

    def _size(self, codec: Codec, entries: int, ratio: float | None) -> int:
        kept = None if ratio is None else kept_count(entries, ratio)
        return (
            codec.largest_size(entries, kept) if self.largest else round(codec.expected_size(entries, kept))
        )


class LargestStages(DryStages):
    """The same, with lengths that no message exceeds."""

    largest = True


class Counting(Channel):
    """A channel that counts bytes from the shapes of messages alone.

    Parameters
    ----------
    largest : bool
        Count what no message exceeds, not what it takes on average; for a code of fixed length they are the same.
    """

    def __init__(self, *arguments: Any, largest: bool, **options: Any) -> None:
        self.stages = LargestStages if largest else DryStages  # type: ignore[misc]
        super().__init__(*arguments, **options)
