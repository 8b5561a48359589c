"""Encoding of messages: selected entries, factors, codes, and the senders' memory of what a code lost."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

from compression.codec import Codec, find_codec
from compression.low_rank import Factors
from compression.select import threshold, top_k
from harness.core import rng
from harness.core.clients.clients import Clients
from harness.core.settings.compression import Compression
from harness.core.wire import edges, low_rank, masks
from harness.core.wire.dp_client import generators
from harness.core.wire.message import Code, Message, joined, placed, sent_entries, split

Summed = Callable[[Tensor], Tensor]


class Coding:
    """The codes of a round's messages.

    Parameters
    ----------
    clients : Clients
        The cohort.
    compression : Compression
        Sparsification and wire format.
    state : dict[str, Tensor]
        State kept between rounds, by message slot; residuals and shifts are ``(..., total, n)``. Written here.

    Attributes
    ----------
    up, down : Codec
        Codecs of what clients send and of what the server sends.
    """

    def __init__(self, clients: Clients, compression: Compression, state: dict[str, Tensor]) -> None:
        self.clients = clients
        self.compression = compression
        self.state = state
        self.up: Codec = find_codec(compression.codec)
        same = compression.codec == "float64" or compression.downlink
        self.down: Codec = self.up if same else find_codec("float32")

    def recall(self, message: Message, row: Tensor) -> Tensor:
        """Add the residual of the slot's earlier messages (error feedback), or subtract the slot's shift."""
        if not self.compression.remembers:
            return row
        memory = self._remembered(message, row)
        return row + (memory if self.compression.error_feedback else -memory)

    def encode(self, message: Message, row: Tensor, summed: Summed) -> Code:
        """Encode and decode; ``summed`` adds rows ``(..., C, n)`` up as the message's average does."""
        codec = self.down if message.sender == "server" else self.up
        chances = None
        if codec.stochastic:
            kind = "code", message.slot
            chances = generators(self.clients, rng.stream, self.clients.seeds, *kind, row, message.sender)
        if (factors := self.factors(message)) is not None:
            return self._encode_factors(
                message, row, factors, partial(codec.apply, generators=chances), summed
            )
        kept = self._selected(message, row) if message.sparsify else None
        decoded, sizes = codec.apply(row, kept, chances, shared=message.mask)
        return Code(decoded, sizes.cpu())

    def approach(self, message: Message, row: Tensor) -> Code:
        """Move rows towards their neighbors' along factors of the differences."""
        factors, key, stacked = self.factors(message), f"edges {message.slot}", self.clients.axes > 1
        assert factors is not None and message.mixing is not None
        graphs = edges.graphs(message.mixing, len(self.clients.seeds))
        start = self._start(message, row, factors, self.state.get(key), graphs[0].number)
        rows = sent_entries(row, message.mask)
        runs = zip(
            *((rows, start) if stacked else ([rows], [start])), graphs, self.clients.seeds, strict=True
        )
        hops = [
            edges.hop(nodes, graph, factors, begin, self._along_edges(message, graph, seed))
            for nodes, begin, graph, seed in runs
        ]
        rows, self.state[key], sizes = (
            torch.stack(parts) if stacked else parts[0] for parts in zip(*hops, strict=True)
        )
        return Code(placed(rows, message.mask, row), sizes)

    def remember(self, message: Message, entered: Tensor, code: Code) -> Tensor:
        """Store the input minus the output of the encoder; or add the shift and move it along the output.

        Returns the row as the receiver has it.
        """
        if not self.compression.remembers:
            return code.row
        received = code.row
        if self.compression.shift is None:
            memory = _left_out(message, entered - received)
        else:
            before = self._remembered(message, received)
            memory, received = before + self.compression.shift * received, before + received
            if message.mask is not None:  # a model that has been pruned lacks entries that its shift may have
                received = received * message.mask
        self._store(self._slot(message), memory)
        return received

    def factors(self, message: Message) -> Factors | None:
        """Return the layout of the message's factors; None if it travels as it is."""
        return low_rank.layout(self.clients, self.compression, message.parts) if message.sparsify else None

    def _selected(self, message: Message, row: Tensor) -> Tensor | None:
        """Return the entries that the sender selects by magnitude; None: all, without a header."""
        setting = self.compression
        if setting.select == "top_k":
            ratio = masks.ratio(self.clients, setting)
            return top_k(row, ratio, message.mask) if bool((torch.as_tensor(ratio) > 0).any()) else None
        if setting.threshold is None:
            return None
        kept = threshold(row, setting.threshold)
        return kept if message.mask is None else kept & message.mask

    def _encode_factors(
        self, message: Message, row: Tensor, factors: Factors, code: low_rank.Encode, summed: Summed
    ) -> Code:
        """Send the factors of the message's matrices, found together or by each client."""
        rows, key, together = sent_entries(row, message.mask), f"factors {message.slot}", message.together
        kept = self.state.get(key)
        kept = kept if kept is None or together else self.clients.take(kept)
        start = self._start(message, row, factors, kept, None if together else rows.shape[-2])
        server = low_rank.Server(summed, self.down.apply) if together else None
        exchanged = low_rank.exchange(rows, factors, start, code, server)
        if together:
            self.state[key] = exchanged.start
        else:
            self._store(key, exchanged.start)
        answers = None if exchanged.answers is None else exchanged.answers.cpu()
        return Code(placed(exchanged.decoded, message.mask, row), exchanged.sizes.cpu(), answers)

    def _start(
        self, message: Message, like: Tensor, factors: Factors, kept: Tensor | None, count: int | None
    ) -> Tensor:
        """Return the right factors to begin with: common ones ``(..., k)``, or for each of ``count`` its own."""
        drawn = low_rank.first(self.clients, message.slot, factors, like)
        if count is not None:
            drawn = drawn.unsqueeze(-2).expand(*drawn.shape[:-1], count, -1)
        return drawn if kept is None or kept.shape != drawn.shape else factors.revived(kept, drawn)

    def _along_edges(self, message: Message, graph: edges.Edges, seed: int) -> low_rank.Encode:
        """Return the code of what travels along the edges of a run, where each end draws its own chances."""
        if not self.up.stochastic:
            return self.up.apply
        ways = [*graph.ends.T.tolist(), *graph.ends.flip(0).T.tolist()]
        name = ("code", self.clients.round, message.slot, "edge")
        return partial(self.up.apply, generators=[rng.stream(seed, *name, *way) for way in ways])

    def _remembered(self, message: Message, like: Tensor) -> Tensor:
        """Return the cohort's memory of the slot; zeros if the message had another length before."""
        kept = self.state.get(self._slot(message))
        if kept is None or kept.shape[-1] != like.shape[-1]:
            return torch.zeros_like(like)
        return self.clients.take(kept)

    def _store(self, key: str, rows: Tensor) -> None:
        """Replace the cohort's rows in the state."""
        shape = (*rows.shape[:-2], self.clients.federation.clients, rows.shape[-1])
        full = self.state.get(key)
        full = rows.new_zeros(()).expand(shape) if full is None or full.shape != shape else full
        self.state[key] = self.clients.put(full, rows)

    def _slot(self, message: Message) -> str:
        """Return the key of a slot's residuals or shifts in the state."""
        return f"{'shift' if self.compression.shift is not None else 'residual'} {message.slot}"


def _left_out(message: Message, residual: Tensor) -> Tensor:
    """Return what the encoder left out of a message, except in parts that will contain it at their next change."""
    if not any(message.replaced):
        return residual
    pairs = zip(split(residual, message.parts), message.replaced, strict=True)
    return joined([0 * part if replaced else part for part, replaced in pairs])
