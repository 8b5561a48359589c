"""Communication: everything that leaves a client or the server goes through a method of `Channel`.

The arguments of one call form one message, which is clipped jointly, counted once and booked once. `Channel`
decides who sends what to whom. `harness.core.wire.stages` processes the messages, in the order of
`harness.core.wire.pipeline`:
"""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from dataclasses import replace
from functools import partial
from typing import Any, ClassVar, Literal, TypeVar, overload

from torch import Tensor

from compression import position_bytes
from harness.core.clients.clients import Clients
from harness.core.clients.local_batch import LocalBatch
from harness.core.clients.silenced import Silenced
from harness.core.cost import Cost
from harness.core.per_run import PerRun
from harness.core.registry import Incompatible
from harness.core.settings.compression import PLAIN, Compression
from harness.core.settings.privacy import Privacy
from harness.core.wire import gossip, low_rank, masks, pipeline
from harness.core.wire.client_chunks import Assembly
from harness.core.wire.diagnostics import Diagnostics
from harness.core.wire.dp_banded import BandedMechanism
from harness.core.wire.dp_client import AdditiveMechanism, Mechanism, SampleMechanism
from harness.core.wire.dp_distributed import DistributedMechanism
from harness.core.wire.known_terms import Delivered, Round, SilencedChannel, known_terms, refuse_private
from harness.core.wire.message import (
    Known,
    Message,
    Part,
    Value,
    Weighting,
    of_server,
    parts_of,
    plain,
    split,
)
from harness.core.wire.stages import Stages
from privacy import Ledger

__doc__ = f"{__doc__}\n{pipeline.table()}\n"

R = TypeVar("R")


class Channel:
    """The messages of one round.

    In the shapes below ``...`` is empty for one run and ``R`` for R stacked runs.

    Parameters
    ----------
    clients : Clients
        The cohort.
    mixing : Tensor or None
        Mixing matrix ``(total, total)`` of a decentralized run, ``(..., total, total)`` when stacked.
    privacy : Privacy or None
        The Gaussian mechanism; None: no clipping, no noise, no bookings.
    compression : Compression
        Sparsification and wire format.
    state : dict[str, Tensor]
        State kept between rounds, by message slot: residuals or shifts ``(..., total, n)`` of all clients, factors
        ``(..., k)`` or ``(..., total, k)``, and adaptive clip norms ``(...)``.
    diagnose : bool
        Whether to record norms of the messages for `diagnostics`.
    """

    mechanism: ClassVar[type[Mechanism]] = Mechanism  # tests of the audit substitute a broken one
    stages: ClassVar[type[Stages]] = Stages  # a dry run substitutes stages without encoding and noise

    def __init__(
        self,
        clients: Clients,
        *,
        mixing: Tensor | None = None,
        privacy: Privacy | None = None,
        compression: Compression = PLAIN,
        state: dict[str, Tensor] | None = None,
        diagnose: bool = False,
    ) -> None:
        memory = dict(state or {})
        mechanism: Mechanism | None = None
        if privacy is not None and privacy.unit == "client":
            kind = self.mechanism
            if privacy.own is not None:
                kind = AdditiveMechanism
            elif privacy.placement == "distributed":
                kind = DistributedMechanism
            elif privacy.spec.mechanism == "banded":
                kind = BandedMechanism
            mechanism = kind(privacy, clients, memory)
        elif privacy is not None and clients.problem.kind == "vertical":
            mechanism = SampleMechanism(privacy, clients, memory)
        strict = privacy is not None and privacy.spec.strict
        diagnostics = Diagnostics() if diagnose and not strict else None
        self._stages = self.stages(clients, mechanism, compression, memory, None, diagnostics)
        self._mixing = mixing
        self._messages = 0
        self._round: Round | None = None
        self._delivered: list[Delivered] = []

    def release_values(self, round: Round) -> None:
        """Set apart what follows from earlier releases: from now on only the rest of a message is protected.

        Parameters
        ----------
        round : Callable
            ``round(clients, channel)`` of the algorithm with the state before this round. It is gone through
            without gradients for every message (`harness.core.wire.known_terms`).
        """
        self._round = round

    def known(self, method: str) -> Known | None:
        """Return the terms of the next message, to be sent by a method, that follow from earlier releases.

        None if messages are protected as they are, or neither protected nor diagnosed.
        """
        if self._round is None or (self._mechanism is None and self._stages.notes.diagnostics is None):
            return None
        averages = self._mechanism is not None and self._mechanism.averages
        return self._known(self._round, method, averages=averages)

    def _known(self, round: Round, method: str, *, averages: bool) -> Known:
        def silenced(clients: Silenced) -> SilencedChannel:
            return SilencedChannel(clients, self._delivered, method, lambda: self.gap)

        return known_terms(round, self._clients, silenced, averages=averages)

    def _returned(self, method: str, result: R) -> R:
        """Keep the result of a method for silenced rounds, and return it."""
        if self._round is not None:
            self._delivered.append(Delivered.of(method, result))
        return result

    def part(self, clients: Clients, assembly: Assembly) -> Channel:
        """Return the channel of one client, a cohort of size 1, which posts its messages to the assembly."""
        channel = copy(self)
        channel._delivered = []
        channel._stages = self._stages.part(clients, assembly)
        return channel

    @property
    def _clients(self) -> Clients:
        return self._stages.clients

    @property
    def _mechanism(self) -> Mechanism | None:
        return self._stages.mechanism

    @property
    def _compression(self) -> Compression:
        return self._stages.compression

    @property
    def cost(self) -> Cost:
        """The counters of bytes and operations."""
        return self._clients.cost

    @property
    def ledger(self) -> Ledger:
        """The record of the run's releases."""
        return self._clients.ledger

    @property
    def state(self) -> dict[str, Tensor]:
        """State for the next round's channel."""
        return self._stages.state

    @property
    def gap(self) -> Any:  # a float or a PerRun
        """The graph's ``p = 1 - lambda^2``, or that of each stacked run; it is public.

        Lambda is the second largest absolute eigenvalue of the mixing matrix.
        """
        if self._mixing is None:
            raise ValueError("this run has no topology, so no spectral gap")
        found = gossip.gaps(self._mixing)
        return found[0] if self._mixing.ndim == 2 else PerRun(found)

    @property
    def diagnostics(self) -> dict[str, Tensor]:
        """Figures of this round's first uplink message, ``(...)`` each; see `Diagnostics.figures`.

        They depend on private data and are not released. Empty under strict privacy and without ``diagnose``.
        """
        diagnostics = self._stages.notes.diagnostics
        return {} if diagnostics is None else diagnostics.figures()

    @overload
    def down(self, vector: Tensor, /) -> Tensor: ...
    @overload
    def down(self, vector: Tensor, /, *more: Tensor) -> tuple[Tensor, ...]: ...
    def down(self, *vectors: Tensor) -> Any:
        """Send server vectors ``(..., P)`` to the cohort and return the rows received, ``(..., C, P)``.

        The rows may be views, as those of `Clients.rows`.
        """
        return self._returned("down", self._broadcast(vectors, self._clients.participation_mask))

    @overload
    def rebroadcast(self, vector: Tensor, /) -> Tensor: ...
    @overload
    def rebroadcast(self, vector: Tensor, /, *more: Tensor) -> tuple[Tensor, ...]: ...
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
        return self._returned("rebroadcast", self._broadcast(vectors, copies))

    def _broadcast(self, vectors: Sequence[Tensor], copies: Tensor) -> Any:
        """Send server vectors; ``copies (..., C)`` says how many copies are counted for each client."""
        slot, sparsify = self._slot(), self._compression.downlink and self._compression.sparsifies
        mask = self._mask(slot, vectors, sparsify=sparsify)
        per_client = masks.per_client_mask(self._clients, mask) is not None  # each gets a different message
        parts = [self._clients.rows(vector) for vector in vectors] if per_client else vectors
        mask = mask if per_client else of_server(mask, vectors[0])
        message = Message(slot, parts_of(parts), copies, mask, "server", sparsify)
        arrived = pipeline.public(self._stages, message)
        return plain(arrived if per_client else [self._clients.rows(part) for part in arrived])

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
        self._returned("announce", None)

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
        return self._returned("allot", self._clients.shrink(x, ratio))

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
        return self._returned("mean_and_sent", (plain(mean), plain(sent)))

    def _kept(self, part: Part, sent: Tensor) -> Tensor:
        """Return what a client keeps of a part of which the receiver has decoded the change."""
        if not isinstance(part, Value):
            return sent
        return part.row if self._round is None or part.of is None else part.of + sent

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
            return self._returned("gather", plain(pipeline.separate(self._stages, message)))
        h = parts[0].row
        part = replace(parts[0], row=h.flatten(-2))
        message = replace(
            self._uplink(None, [part], real=_real(per_sample, h)), samples=per_sample, pass_on=pass_on
        )
        (seen,) = pipeline.separate(self._stages, message)
        seen = seen.unflatten(-1, h.shape[-2:])
        self._clients.note("omega", h - seen, per_sample)
        return self._returned("gather", seen)

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
        return self._returned("scatter", plain(received))

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
        heard = self._exchange("mix", parts, rebroadcast=rebroadcast, onto=onto, hops=hops)
        return self._returned("mix", heard)

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
        heard = self._exchange("mix_changes", parts, rebroadcast=rebroadcast, onto=onto, memory=memory)
        return self._returned("mix_changes", heard)

    def _exchange(
        self,
        method: str,
        rows: Sequence[Part],
        rebroadcast: Sequence[Tensor] = (),
        onto: Sequence[Tensor] = (),
        memory: Sequence[Tensor] = (),
        hops: int = 1,
    ) -> gossip.Exchange:
        """Send rows along the edges: the common part of `mix` and `mix_changes`."""
        self._local_only("gossips with its neighbors")
        mixing = gossip.checked(
            self._mixing, self._clients, self._mechanism, self._compression, known=bool(onto or memory)
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

    def _uplink(
        self,
        method: str | None,
        parts: Sequence[Part],
        *,
        selects: bool = True,
        real: Tensor | None = None,
    ) -> Message:
        """Create a message of the clients, before its first stage; it has known terms if a method is named.

        With ``selects`` the common random choice of entries applies to it.
        """
        known = None if method is None else self.known(method)
        if known is not None and self._mechanism is not None:
            refuse_private(known, parts)
        slot, copies = self._slot(), self._clients.participation_mask
        mask = self._mask(slot, parts, sparsify=selects, real=real)
        replaced = [isinstance(part, Value) for part in parts] if self._round is not None else ()
        return Message(
            slot, parts, copies, mask, sparsify=self._compression.sparsifies, known=known, replaced=replaced
        )

    def _refuse_feedback(self, refuse: bool) -> None:
        if refuse and self._compression.error_feedback:
            raise Incompatible(
                "compression.error_feedback: the algorithm sends statistics of this round or of single samples, "
                "and the residual of one message must not be added to the next"
            )

    def _local_only(self, does: str) -> None:
        if self._mechanism is not None and self._mechanism.averages:
            placement = self._mechanism.privacy.placement
            raise Incompatible(
                f"{placement} privacy protects only averages, but the algorithm {does}; use placement local"
            )

    def _mask(
        self, slot: int, parts: Sequence[Tensor | Part], *, sparsify: bool, real: Tensor | None = None
    ) -> Tensor | None:
        """Return the public mask of a message; without ``sparsify`` only that of the pruned model."""
        return masks.shared(self._clients, self._compression if sparsify else PLAIN, slot, parts, real)

    def _slot(self) -> int:
        """Return the next message's number: 0, 1, ... in a round; -1, -2, ... before the first round."""
        self._messages += 1
        return self._messages - 1 if self._clients.round >= 0 else -self._messages


def _real(batch: LocalBatch, rows: Tensor) -> Tensor | None:
    """Return which entries of flattened rows ``(..., C, B, d)`` describe a sample, ``(B d,)``; None: all.

    All clients have their samples in the same slots.
    """
    slots = batch.weight.flatten(0, -2)[0] > 0.5
    return None if bool(slots.all()) else slots.repeat_interleave(rows.shape[-1])
