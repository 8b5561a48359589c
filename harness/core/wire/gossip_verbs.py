"""Messages between neighbors: everything that nodes of a graph send goes through `mix` or `mix_changes`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

from torch import Tensor

from harness.core.wire import gossip, low_rank, pipeline
from harness.core.wire.message import Message, Part, parts_of
from harness.core.wire.outbox import Outbox, repeatable


class GossipVerbs(Outbox):
    """The messages of a round, and what nodes do with them in gossip."""

    @repeatable
    def mix(
        self,
        *rows: Tensor | Part,
        rebroadcast: Sequence[Tensor] = (),
        onto: Sequence[Tensor] = (),
        hops: int = 1,
    ) -> gossip.Exchange:
        """Send rows ``(..., total, P)`` to the neighbors: gossip.

        A message is protected and booked once. Later hops only forward functions of what was received, but every
        hop is encoded and counted. With ``compression.rank`` factors of the differences between neighbors travel
        instead of the rows, also of ``rebroadcast`` (`harness.core.wire.edges`).

        Parameters
        ----------
        *rows : Tensor
            The parts of the message; without any, only ``rebroadcast`` is sent and nothing is released.
        rebroadcast : sequence of Tensor
            Rows that depend only on messages of earlier rounds. They are counted, but release nothing new, so
            they are not clipped, noised or sparsified.
        onto : sequence of Tensor
            Rows like ``rebroadcast``, one for each part, to which the protected message is added before it is
            sent: one vector travels instead of two (a tracker and the step of its estimate). Sparsification
            applies to the sum, in every hop.
        hops : int
            Number of exchanges between neighbors: 1 applies the mixing matrix, more use FastMix
            (`harness.core.wire.gossip`). A variable with a feasible set is projected after mixing: with more hops
            the mixture may lie outside.

        Returns
        -------
        Exchange
            What was sent (of an `Increment` the difference), and the mixtures of the messages, with ``onto`` added,
            and of ``rebroadcast``.

        Raises
        ------
        Incompatible
            If the settings of privacy or compression do not fit gossip.
        ValueError
            If the run has no topology, or there are no rows or hops.
        """
        parts = parts_of(rows)
        return self._exchange("mix", parts, rebroadcast, onto, hops=hops)

    @repeatable
    def mix_changes(
        self,
        *rows: Tensor | Part,
        memory: Sequence[Tensor],
        rebroadcast: Sequence[Tensor] = (),
        onto: Sequence[Tensor] = (),
    ) -> gossip.Exchange:
        """Gossip about rows of which the neighbors remember an estimate: only the difference to it travels.

        What sparsification and coding leave out is sent later, since the estimate then lacks it.

        Parameters
        ----------
        *rows, rebroadcast, onto
            As in `mix`. Sparsification applies to the differences, also to those of ``rebroadcast``.
        memory : sequence of Tensor
            What the neighbors remember of the rows (with ``onto`` added) and of ``rebroadcast``; rows of earlier
            calls, or a common start.

        Returns
        -------
        Exchange
            What was sent, before coding; the mixtures ``z + (W - I) m`` of every row z; and as ``received`` the new
            memory m, which is z if nothing is left out.
        """
        if len(memory) != len(rows) + len(rebroadcast):
            raise ValueError(
                f"mix_changes needs a memory for each of {len(rows) + len(rebroadcast)} rows; got {len(memory)}"
            )
        parts = parts_of(rows)
        return self._exchange("mix_changes", parts, rebroadcast, onto, memory=memory)

    def _exchange(
        self,
        method: str,
        rows: Sequence[Part],
        rebroadcast: Sequence[Tensor],
        onto: Sequence[Tensor],
        *,
        memory: Sequence[Tensor] = (),
        hops: int = 1,
    ) -> gossip.Exchange:
        """Send rows along the edges: the common part of `mix` and `mix_changes`."""
        self._local_only("gossips with its neighbors")
        mixing = gossip.checked(
            self._mixing,
            self._clients,
            self._mechanism,
            self._compression,
            neighbors_know=bool(onto or memory),
        )
        if hops < 1 or not (rows or rebroadcast):
            raise ValueError(
                f"mix needs at least one row and one hop; got {len(rows) + len(rebroadcast)} rows, {hops} hops"
            )
        everything = [*rows, *parts_of(rebroadcast)]
        factors = None if memory else low_rank.layout(self._clients, self._compression, everything)
        coded = not (
            onto or memory or factors
        )  # else protected first, and coded as part of a sum or difference
        sent = self._protected(method, rows, mixing, coded=coded) if rows else []
        held = [*([row + step for row, step in zip(onto, sent, strict=True)] if onto else sent), *rebroadcast]
        if factors is not None:
            mixed = gossip.spread(held, mixing, hops, partial(self._approach, mixing))
            received: Sequence[Tensor] = ()
        else:
            send = partial(self._send, mixing, sparsify=not coded and self._compression.sparsifies)
            if coded:
                received = [*sent, *(send(rebroadcast) if rebroadcast else ())]
            elif memory:
                changes = send([row - old for row, old in zip(held, memory, strict=True)])
                received = [old + change for old, change in zip(memory, changes, strict=True)]
            else:
                received = send(held)
            first = gossip.mixed(held, received, mixing)
            mixed = gossip.spread(held, mixing, hops, lambda now: gossip.mixed(now, send(now), mixing), first)
        return gossip.Exchange(
            tuple(sent), tuple(mixed[: len(rows)]), tuple(mixed[len(rows) :]), tuple(received)
        )

    def _protected(self, method: str, rows: Sequence[Part], mixing: Tensor, *, coded: bool) -> list[Tensor]:
        """Protect the message of each node, and send it to its neighbors unless it is coded later."""
        message = self._uplink(method, rows, selects=coded)
        message = replace(message, copies=message.copies * gossip.neighbors(mixing).cpu())
        return (pipeline.separate if coded else pipeline.uncoded)(self._stages, message)

    def _send(self, mixing: Tensor, rows: Sequence[Tensor], *, sparsify: bool) -> list[Tensor]:
        """Send rows that release nothing new to the neighbors, and return them as received."""
        slot, parts = self._slot(), parts_of(rows)
        mask = self._mask(slot, parts, sparsify=sparsify)
        copies = gossip.neighbors(mixing).cpu()
        return pipeline.public(self._stages, Message(slot, parts, copies, mask, "neighbor", sparsify))

    def _approach(self, mixing: Tensor, rows: Sequence[Tensor]) -> list[Tensor]:
        """Send factors of the differences between neighbors, and return the rows that they lead to."""
        slot, parts = self._slot(), parts_of(rows)
        mask = self._mask(slot, parts, sparsify=False)
        copies = self._clients.participation_mask
        message = Message(slot, parts, copies, mask, "neighbor", mixing=mixing)
        return pipeline.differences(self._stages, message)
