"""A channel that encodes nothing and counts how long messages will be."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from compression import kept_count
from harness.core.channel import Channel


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
        n = joint.shape[-1] if shared is None else int(shared.sum(-1).flatten()[0])
        ratios: list[float | None] = [None]
        if thin and setting.select == "top_k":
            ratios = torch.as_tensor(self._ratio(), dtype=torch.float64).flatten().tolist()
        elif thin and setting.select == "threshold":
            ratios = [0.0]  # how many entries pass cannot be foreseen: the plan takes all of them
        counts = [None if ratio is None else kept_count(n, ratio) for ratio in ratios]
        sizes = [
            codec.largest_size(n, kept) if self._size_at_most else round(codec.expected_size(n, kept))
            for kept in counts
        ]
        lead = joint.shape[:-1]
        return joint, torch.tensor(sizes).view(lead) if len(sizes) > 1 else torch.full(lead, sizes[0])
