"""Communication: everything that leaves a client or the server goes through a method of `Channel`.

The arguments of one call form one message, which is clipped jointly, counted once and booked once. `Channel`
decides who sends what to whom. `harness.core.wire.stages` processes the messages, in the order of
`harness.core.wire.pipeline`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Literal, overload

from torch import Tensor

from compression.sparse_index import position_bytes
from harness.core.clients.local_batch import LocalBatch
from harness.core.errors import Incompatible
from harness.core.wire import masks, pipeline
from harness.core.wire.gossip_verbs import GossipVerbs
from harness.core.wire.message import (
    Message,
    Part,
    Statistic,
    Value,
    Weighting,
    of_server,
    parts_of,
    plain,
    split,
)
from harness.core.wire.outbox import repeatable


class Channel(GossipVerbs):
    """The messages of one round, between a server and its clients or between neighbors.

    `Outbox` makes messages, with the arguments of the class, and `GossipVerbs` are those between neighbors.
    """

    @overload
    def down(self, vector: Tensor | Statistic, /) -> Tensor: ...
    @overload
    def down(self, vector: Tensor | Statistic, /, *more: Tensor | Statistic) -> tuple[Tensor, ...]: ...
    @repeatable
    def down(self, *vectors: Tensor | Statistic) -> Any:
        """Send server vectors ``(..., P)`` to the cohort and return the rows received, ``(..., C, P)``.

        The rows may be views, as those of `Clients.rows`.
        """
        return self._broadcast(parts_of(vectors), self._clients.participation_mask)

    @overload
    def rebroadcast(self, vector: Tensor, /) -> Tensor: ...
    @overload
    def rebroadcast(self, vector: Tensor, /, *more: Tensor) -> tuple[Tensor, ...]: ...
    @repeatable
    def rebroadcast(self, *vectors: Tensor) -> Any:
        """Send server vectors as `down` does, at no cost if every client has received them before.

        With partial participation no client is assumed to have received them, so every copy is counted.

        Raises
        ------
        Incompatible
            If everybody takes part and the downlink's code depends on more than each entry.
        """
        everybody, compression = self._clients.share == 1, self._compression
        same = self._stages.coding.down.entrywise and not (compression.downlink and compression.sparsifies)
        if everybody and not same:
            raise Incompatible(
                "compression.downlink: clients reuse what they received before, so the downlink needs a codec that "
                "rounds each entry by itself (float16, float32, ...) and no sparsification"
            )
        copies = self._clients.participation_mask * (not everybody)
        return self._broadcast(parts_of(vectors), copies)

    def _broadcast(self, vectors: Sequence[Part], copies: Tensor) -> Any:
        """Send server vectors; ``copies (..., C)`` says how many copies are counted for each client."""
        slot, sparsify = self._slot(), self._compression.downlink and self._compression.sparsifies
        mask = self._mask(slot, vectors, sparsify=sparsify)
        per_client = masks.per_client_mask(self._clients, mask) is not None  # each gets a different message
        rows = [replace(part, row=self._clients.rows(part.row)) for part in vectors]
        mask = mask if per_client else of_server(mask, vectors[0].row)
        message = Message(slot, rows if per_client else vectors, copies, mask, "server", sparsify)
        arrived = pipeline.public(self._stages, message)
        return plain(arrived if per_client else [self._clients.rows(part) for part in arrived])

    @repeatable
    def announce(self, kept: Tensor, *, changed: bool) -> None:
        """Tell the cohort which parameters the model has, ``(P,)``; from then on it trains and sends no others.

        Parameters
        ----------
        kept : Tensor
            Boolean, chosen from what has been released.
        changed : bool
            Whether it differs from the last round's. If not, only the members of partial cohorts are told.

        Raises
        ------
        Incompatible
            Under central privacy, whose costs are recorded as known before the run.
        """
        self._refuse_changing_sizes()
        clients = self._clients
        clients.restrict(kept)
        if changed or clients.share < 1:
            size = position_bytes(kept[None], None, kept.sum()[None])
            self.cost.sent(size.cpu() * clients.participation_mask, up=False)

    @repeatable
    def allot(self, x: Tensor, ratio: Tensor) -> Tensor:
        """Give each client a model of its own size for this round, as `Clients.shrink` makes them.

        A smaller model needs no positions: it arrives with the next message, and the server knows what it lacks.

        Returns
        -------
        Tensor
            Share of the parameters in the model of each member of the cohort, ``(C,)``.

        Raises
        ------
        Incompatible
            As `announce`.
        """
        self._refuse_changing_sizes()
        return self._clients.shrink(x, ratio)

    def _refuse_changing_sizes(self) -> None:
        if self._mechanism is not None and self._mechanism.privacy.placement == "central":
            raise Incompatible(
                "central privacy records bytes as known before the run, since those of a cohort tell about it, but "
                "the algorithm changes the size of the model as it goes; use placement local or unit record"
            )

    def mean(
        self,
        *rows: Tensor | Part,
        weighting: Weighting | None = None,
        stateless: bool = False,
    ) -> Any:
        """Send rows ``(..., C, P)`` to the server, which sees only their average ``(..., P)``.

        Parameters
        ----------
        *rows : Tensor or Part
            The parts of the message: rows; an `Increment` onto what the server has sent; a `Value` that replaces
            what the client has sent before. Of both the difference is sent, and the result is its mean. Parts are
            divided by their public scales before the joint clip.
        weighting : {"size", "uniform"}, optional
            Weight clients by their training samples, or equally. Default: by size, but equally under central
            and where counts are private, whose guarantees require it.
        stateless : bool
            Whether the message contains statistics of this round only. Error feedback is then refused, since a
            residual of old statistics must not be added to new ones.

        Raises
        ------
        Incompatible
            If the message cannot be protected or compressed as the settings require.
        """
        return self.mean_and_sent(*rows, weighting=weighting, stateless=stateless)[0]

    @repeatable
    def mean_and_sent(
        self,
        *rows: Tensor | Part,
        weighting: Weighting | None = None,
        stateless: bool = False,
    ) -> tuple[Any, Any]:
        """Send rows as `mean` does; a client also learns what it has sent, for rounds that build on it.

        Parameters
        ----------
        *rows, weighting, stateless
            As in `mean`.

        Returns
        -------
        mean : Tensor or tuple of tensors
            As of `mean`.
        sent : Tensor or tuple of tensors
            Each client's increments as the receiver has decoded them, ``(..., C, P)``; of a `Value` what the client
            keeps: the value as the receiver has it, or its own if changes are released.
        """
        self._refuse_feedback(stateless)
        mechanism = self._mechanism
        averages = mechanism is not None and mechanism.averages
        even = averages or self._clients.counts_private
        if even and weighting == "size":
            way = "private counts of samples exclude"
            if mechanism is not None and mechanism.averages:
                way = f"{mechanism.privacy.placement} privacy does not support"
            raise Incompatible(f"{way} a mean weighted by sample counts")
        message = replace(
            self._uplink("mean_and_sent", parts_of(rows)),
            weighting="uniform" if even else weighting or "size",
            together=not averages,  # a common factor would move everybody's message with one client's
        )
        order = pipeline.local if mechanism is None else pipeline.ORDERS[mechanism.privacy.placement]
        mean, joint = order(self._stages, message)
        pairs = zip(message.parts, split(joint, message.parts), strict=True)
        sent = [self._kept(part, part.restored(row)) for part, row in pairs]
        return plain(mean), plain(sent)

    def _kept(self, part: Part, sent: Tensor) -> Tensor:
        """Return what a client keeps of a part of which the receiver has decoded the change."""
        if not isinstance(part, Value):
            return sent
        return part.row if self._again is None or part.of is None else part.of + sent

    @repeatable
    def gather(
        self,
        *rows: Tensor | Part,
        stateless: bool = False,
        per_sample: LocalBatch | None = None,
        pass_on: Literal["all", "others"] | None = None,
    ) -> Any:
        """Send rows ``(..., C, P)`` to the server and return them as received; the server sees every message.

        Parameters
        ----------
        *rows : Tensor or Part
            The parts of the message.
        stateless : bool
            As in `mean`.
        per_sample : LocalBatch, optional
            The batch that the rows describe. The message is then one part with a vector per sample,
            ``(..., C, B, d)``. Slots without a sample are not sent. Sparsification chooses entries of the whole
            batch; record-level privacy clips and noises each sample's vector separately.
        pass_on : {"all", "others"}, optional
            Whether the server forwards the encoded messages to every client: all of them, or those of the
            other clients.

        Raises
        ------
        Incompatible
            If the message cannot be protected or compressed as the settings require.
        """
        self._local_only("gathers every client's message")
        self._refuse_feedback(stateless or per_sample is not None)
        if per_sample is not None and self._compression.shift is not None:
            raise Incompatible(
                "compression.shift: the algorithm sends a message per batch, which has no part in the next batch's"
            )
        parts = parts_of(rows)
        if per_sample is None:
            message = replace(self._uplink("gather", parts), pass_on=pass_on)
            return plain(pipeline.separate(self._stages, message))
        h = parts[0].row
        part = replace(parts[0], row=h.flatten(-2))
        message = replace(
            self._uplink(None, [part], real=_real(per_sample, h)), samples=per_sample, pass_on=pass_on
        )
        (seen,) = pipeline.separate(self._stages, message)
        seen = seen.unflatten(-1, h.shape[-2:])
        self._clients.note("omega", h - seen, per_sample)
        return seen

    @repeatable
    def scatter(self, *rows: Tensor, per_sample: LocalBatch | None = None) -> Any:
        """Send each client its own row ``(..., C, P)``, computed from what the server has received.

        With ``per_sample`` the message is one part, ``(..., C, B, d)``, as in `gather`.
        """
        slot = self._slot()
        parts = parts_of([row if per_sample is None else row.flatten(-2) for row in rows])
        real = None if per_sample is None else _real(per_sample, rows[0])
        mask = self._mask(slot, parts, sparsify=False, real=real)
        copies = self._clients.participation_mask
        message = Message(slot, parts, copies, mask, "server", sparsify=False)
        arrived = pipeline.public(self._stages, message)
        received = [part.view_as(row) for part, row in zip(arrived, rows, strict=True)]
        return plain(received)


def _real(batch: LocalBatch, rows: Tensor) -> Tensor | None:
    """Return which entries of flattened rows ``(..., C, B, d)`` describe a sample, ``(B d,)``; None: all.

    All clients have their samples in the same slots.
    """
    slots = batch.weight.flatten(0, -2)[0] > 0.5
    return None if bool(slots.all()) else slots.repeat_interleave(rows.shape[-1])
