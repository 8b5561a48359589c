"""A channel that encodes nothing and counts how long messages will be."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from compression import Codec, kept_count
from harness.core.channel import Channel
from harness.core.wire import masks


class Counting(Channel):
    """Counts bytes from the shapes of messages alone.

    Parameters
    ----------
    largest : bool
        Count what no message exceeds, not what it takes on average; a code of fixed length has both alike.
    """

    def __init__(self, *arguments: Any, largest: bool, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._size_at_most = largest

    def _encode(
        self, joint: Tensor, slot: int, *, thin: bool, sender: str, shared: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        setting, codec = self._compression, self._down if sender == "server" else self._up
        lead = joint.shape[:-1]
        n = torch.tensor(joint.shape[-1]) if shared is None else shared.sum(-1).cpu()
        entries = n.expand(lead).flatten().tolist()
        ratios: list[float | None] = [None] * len(entries)  # all entries, without a choice of the sender
        if thin and setting.select == "top_k":
            ratio = torch.as_tensor(masks.ratio(self._clients, setting), dtype=torch.float64)
            if bool((ratio > 0).any()):
                ratios = list(ratio.expand(lead).flatten().tolist())
        elif thin and setting.select == "threshold":
            ratios = [0.0] * len(entries)  # how many pass cannot be foreseen: the plan takes all of them
        size = {pair: self._size(codec, *pair) for pair in set(zip(entries, ratios, strict=True))}
        sizes = [size[pair] for pair in zip(entries, ratios, strict=True)]
        return joint, torch.tensor(sizes).view(lead)

    def _noise(
        self, like: Tensor, slot: int, sensitivity: float | Tensor, sender: str, shared: Tensor | None = None
    ) -> Tensor:
        return torch.zeros_like(like)

    def _size(self, codec: Codec, entries: int, ratio: float | None) -> int:
        kept = None if ratio is None else kept_count(entries, ratio)
        at_most = self._size_at_most
        return codec.largest_size(entries, kept) if at_most else round(codec.expected_size(entries, kept))
