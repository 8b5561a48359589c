"""The only way out: everything that leaves a client or the server goes through a verb of `Channel`.

The arguments of one call are one message: clipped jointly, counted once, booked once. `Channel` says who sends what
to whom. What happens to a message on its way is in `harness.core.wire.stages`, and in which order in
`harness.core.wire.pipeline`:
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar, Literal, overload

from torch import Tensor

from datasets.federation import Batch
from harness.core.clients import Clients
from harness.core.execution.client_chunks import Assembly
from harness.core.registry import Incompatible
from harness.core.wire import gossip, masks
from harness.core.wire.cost import Cost
from harness.core.wire.diagnostics import Diagnostics
from harness.core.wire.dp_client import Mechanism, SampleMechanism
from harness.core.wire.message import Message, Weighting, of_server, plain
from harness.core.wire.pipeline import CENTRAL, LOCAL, PUBLIC, SEPARATE, UNCODED, table
from harness.core.wire.settings import PLAIN, Compression, Privacy, PrivacyLog
from harness.core.wire.stages import Stages

__doc__ = f"{__doc__}\n{table()}\n"


class Channel:
    """The verbs by which messages leave, for one round.

    Leading axes are free: ``...`` below is nothing for one run and ``R`` for R stacked ones.

    Parameters
    ----------
    clients : Clients
        The cohort whose messages these are.
    mixing : Tensor or None
        Mixing matrix ``(total, total)`` of a decentralized run, ``(..., total, total)`` when stacked.
    privacy : Privacy or None
        The Gaussian mechanism; None: no clipping, no noise, nothing booked.
    compression : Compression
        Sparsification and wire format.
    state : dict[str, Tensor]
        What the channel remembers from round to round, by message slot: residuals ``(..., total, n)`` of all
        clients, adaptive clip norms ``(...)``.
    multipliers : Tensor or None
        Of stacked runs, each one's noise multiplier, ``(R,)``; None: all have that of `privacy`.
    diagnose : bool
        Whether to note norms of the messages for `diagnostics`.
    """

    mechanism: ClassVar[type[Mechanism]] = Mechanism  # a test of the audit puts a broken one in
    stages: ClassVar[type[Stages]] = Stages  # a dry run encodes nothing and draws no noise

    def __init__(
        self,
        clients: Clients,
        *,
        mixing: Tensor | None = None,
        privacy: Privacy | None = None,
        compression: Compression = PLAIN,
        state: dict[str, Tensor] | None = None,
        multipliers: Tensor | None = None,
        diagnose: bool = False,
    ) -> None:
        memory = dict(state or {})
        mechanism: Mechanism | None = None
        if privacy is not None and privacy.unit == "client":
            mechanism = self.mechanism(privacy, clients, memory, multipliers)
        elif privacy is not None and clients.problem.kind == "vertical":
            mechanism = SampleMechanism(privacy, clients, memory, None)
        strict = privacy is not None and privacy.strict
        noted = Diagnostics() if diagnose and not strict else None
        self._stages = self.stages(clients, mechanism, compression, memory, None, noted)
        self._mixing = mixing
        self._messages = 0

    def part(self, number: int, assembly: Assembly) -> Channel:
        """Return the channel of one client of the cohort, which posts to the assembly."""
        one: Channel = object.__new__(type(self))
        one.__dict__.update(self.__dict__)
        one._stages = self._stages.part(self._clients.part(number), assembly)
        return one

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
        """Where bytes are counted."""
        return self._clients.cost

    @property
    def state(self) -> dict[str, Tensor]:
        """What the next round's channel needs to know."""
        return self._stages.state

    @property
    def diagnostics(self) -> dict[str, Tensor]:
        """Figures of this round's first uplink message, ``(...)`` each; see `Diagnostics.figures`.

        They are the simulator's knowledge and not released: empty under strict privacy, and without ``diagnose``.
        """
        noted = self._stages.diagnostics
        return {} if noted is None else noted.figures()

    @property
    def privacy_log(self) -> PrivacyLog:
        """Where releases are booked."""
        return self._clients.privacy_log

    @overload
    def down(self, vector: Tensor, /) -> Tensor: ...
    @overload
    def down(self, vector: Tensor, /, *more: Tensor) -> tuple[Tensor, ...]: ...
    def down(self, *vectors: Tensor) -> Any:
        """Send server vectors ``(..., P)`` to the cohort; returns their rows ``(..., C, P)``."""
        return self._broadcast(vectors, self._clients.participation_mask)

    @overload
    def rebroadcast(self, vector: Tensor, /) -> Tensor: ...
    @overload
    def rebroadcast(self, vector: Tensor, /, *more: Tensor) -> tuple[Tensor, ...]: ...
    def rebroadcast(self, *vectors: Tensor) -> Any:
        """Return rows, as `down`, of vectors that the server has sent before: those who were there pay nothing.

        If not everybody takes part in every round, nobody is taken to have been there, and all pay.
        """
        everybody, compression = self._clients.n == self._clients.total, self._compression
        same = self._stages.down.entrywise and not (compression.downlink and compression.sparsifies)
        if everybody and not same:
            raise Incompatible(
                "compression.downlink: a message in which other entries are kept, or that is coded by chance or as "
                "a whole, does not say again what clients have kept"
            )
        return self._broadcast(vectors, self._clients.participation_mask * (not everybody))

    def _broadcast(self, vectors: Sequence[Tensor], copies: Tensor) -> Any:
        """Send vectors of the server, counted as often for each of the cohort as ``copies (..., C)`` says."""
        slot, sparsify = self._slot(), self._compression.downlink and self._compression.sparsifies
        mask = self._mask(slot, vectors, sparsify=sparsify)
        own = masks.per_client_mask(self._clients, mask) is not None  # then each gets another message
        parts = [self._clients.rows(vector) for vector in vectors] if own else vectors
        mask = mask if own else of_server(mask, vectors[0])
        message = Message(slot, parts, copies, mask, "server", sparsify)
        arrived = self._stages.process(message, PUBLIC)
        return plain(arrived if own else [self._clients.rows(part) for part in arrived])

    def mean(
        self,
        *rows: Tensor,
        base: Any = None,
        scale: Sequence[float] | None = None,
        weighting: Weighting | None = None,
        stateless: bool = False,
    ) -> Any:
        """Send rows ``(..., C, P)`` to the server, which sees their average ``(..., P)`` only.

        Parameters
        ----------
        *rows : Tensor
            The parts of the message.
        base : Tensor or tuple of tensors, optional
            What the increments are taken against: something the server sent, or keeps the mean of (SCAFFOLD's
            control variates). The increments travel, and their mean is returned.
        scale : sequence of float, optional
            Public magnitudes of the parts, divided out before the joint clip.
        weighting : {"size", "uniform"}, optional
            Average weighted by the clients' training samples, or plain. Left open, it is by size, and plain
            under central and under strict privacy, whose guarantees need it.
        stateless : bool
            Some of the parts are statistics that stand for themselves in every round. Error feedback is refused:
            what was not sent of old ones is not to be added to new ones.
        """
        self._refuse_feedback(stateless)
        mechanism = self._mechanism
        central = mechanism is not None and mechanism.central
        even = mechanism is not None and (central or mechanism.privacy.strict)
        if even and weighting == "size":
            way = "centrally" if central else "strictly"
            raise Incompatible(f"a mean weighted by sample numbers cannot be protected {way}")
        message = self._uplink(rows, base, scale)
        message.weighting = "uniform" if even else weighting or "size"
        return plain(self._stages.process(message, CENTRAL if central else LOCAL))

    def gather(
        self,
        *rows: Tensor,
        base: Any = None,
        scale: Sequence[float] | None = None,
        stateless: bool = False,
        per_sample: Batch | None = None,
        pass_on: Literal["all", "others"] | None = None,
    ) -> Any:
        """Send rows ``(..., C, P)`` to the server, which sees every message; returns what it sees.

        With ``base`` that are increments, as in `mean`.

        Parameters
        ----------
        *rows : Tensor
            The parts of the message.
        base, scale, stateless : optional
            As in `mean`.
        per_sample : Batch, optional
            The batch that the rows are about: one part, ``(..., C, B, d)``, that holds a vector for each sample.
            Slots without a sample do not travel. Entries are dropped over the whole batch; under record-level
            privacy every sample's vector is clipped and noised by itself.
        pass_on : {"all", "others"}, optional
            The server sends what it has received on to every client, in the code in which it came: all of it, or
            what the others have sent.
        """
        self._local_only("gathers every client's message")
        self._refuse_feedback(stateless or per_sample is not None)
        if per_sample is None:
            message = self._uplink(rows, base, scale)
            message.pass_on = pass_on
            return plain(self._stages.process(message, SEPARATE))
        (h,) = rows
        message = self._uplink([h.flatten(-2)], base, scale, real=_real(per_sample, h))
        message.samples, message.pass_on = per_sample, pass_on
        (seen,) = self._stages.process(message, SEPARATE)
        seen = seen.unflatten(-1, h.shape[-2:])
        self._clients.note("omega", h - seen, per_sample)
        return seen

    def scatter(self, *rows: Tensor, per_sample: Batch | None = None) -> Any:
        """Send each client its own row ``(..., C, P)``, a function of what the server has received.

        With ``per_sample`` it is one part, ``(..., C, B, d)``, as in `gather`.
        """
        slot, parts = self._slot(), [row if per_sample is None else row.flatten(-2) for row in rows]
        real = None if per_sample is None else _real(per_sample, rows[0])
        mask = self._mask(slot, parts, sparsify=False, real=real)
        copies = self._clients.participation_mask
        message = Message(slot, parts, copies, mask, "server", sparsify=False)
        arrived = self._stages.process(message, PUBLIC)
        return plain([part.view_as(row) for part, row in zip(arrived, rows, strict=True)])

    def mix(
        self,
        *rows: Tensor,
        rebroadcast: Sequence[Tensor] = (),
        onto: Sequence[Tensor] = (),
        base: Any = None,
        scale: Sequence[float] | None = None,
        hops: int = 1,
    ) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...], tuple[Tensor, ...]]:
        """Gossip: send rows ``(..., total, P)`` to the neighbors.

        A message is protected and booked once, however far it goes: what nodes pass on in later hops is made of
        what they have received. Every hop is encoded and counted.

        Parameters
        ----------
        *rows : Tensor
            The parts of the message; none: nothing is released, only ``rebroadcast`` travels.
        rebroadcast : sequence of Tensor
            Rows that are functions of what was sent in earlier rounds only. They travel whole and are
            counted, but release nothing more: they are neither clipped nor noised nor pruned.
        onto : sequence of Tensor
            Rows known in the same sense, one a part, to which the protected message is added before it travels:
            one vector goes where ``rebroadcast`` would make it two (a tracker and the step of its estimate).
            What is pruned is the sum, in every hop.
        base, scale : optional
            As in `mean`.
        hops : int
            How often neighbors exchange: 1 applies the mixing matrix, more are FastMix
            (`harness.core.wire.gossip`).

        Returns
        -------
        sent : tuple of Tensor
            What each client really sent (increments, with ``base``; without ``onto``); a tracker must use this
            version of its own share.
        mixed, mixed_known : tuple of Tensor
            The mix of what all sent (with ``onto`` added), and of what was rebroadcast.
        """
        if self._mixing is None:
            raise ValueError(
                "this run has no topology to mix over; an algorithm that gossips says so: Meta(..., gossip=True)"
            )
        if self._clients.pruned is not None and self._clients.pruned.which is not None:
            raise Incompatible("compression.alpha: gossip averages rows of models of one size")
        if hops < 1 or not (rows or rebroadcast):
            raise ValueError(f"nothing to mix: {len(rows) + len(rebroadcast)} rows, {hops} hops")
        self._local_only("gossips with its neighbors")
        if self._mechanism is not None and self._mechanism.privacy.server_clip is not None:
            raise Incompatible("privacy.server_clip: in gossip there is no server that averages")
        if self._compression.downlink:
            raise Incompatible("compression.downlink: in gossip there is no server that sends")
        if onto and self._compression.error_feedback:
            raise Incompatible(
                "compression.error_feedback: the algorithm sends sums of what is new and what is known; what is "
                "missing of the known is not to be added to the next one"
            )
        copies, sparsify = gossip.neighbors(self._mixing).cpu(), bool(onto) and self._compression.sparsifies

        def tell(parts: Sequence[Tensor]) -> list[Tensor]:
            slot = self._slot()
            mask = self._mask(slot, parts, sparsify=sparsify)
            return self._stages.process(Message(slot, parts, copies, mask, "neighbor", sparsify), PUBLIC)

        sent: list[Tensor] = []
        if rows:
            message = self._uplink(rows, base, scale, sparsify=not onto)
            message.copies = message.copies * copies
            sent = self._stages.process(message, UNCODED if onto else SEPARATE)
        whole = [own + step for own, step in zip(onto, sent, strict=True)] if onto else sent
        heard = tell([*whole, *rebroadcast]) if onto else [*sent, *(tell(rebroadcast) if rebroadcast else ())]
        mixed = gossip.spread([*whole, *rebroadcast], heard, self._mixing, hops, tell)
        return tuple(sent), tuple(mixed[: len(rows)]), tuple(mixed[len(rows) :])

    def _uplink(
        self,
        rows: Sequence[Tensor],
        base: Any,
        scale: Sequence[float] | None,
        *,
        sparsify: bool = True,
        real: Tensor | None = None,
    ) -> Message:
        """Return a message of the clients that has not gone through any stage."""
        slot, here = self._slot(), self._clients.participation_mask
        mask = self._mask(slot, rows, sparsify=sparsify, real=real)
        return Message(slot, rows, here, mask, sparsify=self._compression.sparsifies, base=base, scale=scale)

    def _refuse_feedback(self, refuse: bool) -> None:
        if refuse and self._compression.error_feedback:
            raise Incompatible(
                "compression.error_feedback: the algorithm sends statistics of this round, or of some samples; "
                "what was not sent of some is not to be added to others"
            )

    def _local_only(self, does: str) -> None:
        if self._mechanism is not None and self._mechanism.central:
            raise Incompatible(
                f"central privacy protects averages only, and the algorithm {does}; use placement local"
            )

    def _mask(
        self, slot: int, parts: Sequence[Tensor], *, sparsify: bool, real: Tensor | None = None
    ) -> Tensor | None:
        """Return which entries of a message travel at all; unless ``sparsify``, those of the model."""
        return masks.shared(self._clients, self._compression if sparsify else PLAIN, slot, parts, real)

    def _slot(self) -> int:
        """Return the next message's number: 0, 1, ... in a round; -1, -2, ... before the first."""
        self._messages += 1
        return self._messages - 1 if self._clients.round >= 0 else -self._messages


def _real(batch: Batch, rows: Tensor) -> Tensor | None:
    """Return which entries of rows ``(..., C, B, d)``, laid flat, are about a sample, ``(B d,)``; None: all are.

    The batches of all clients have their samples in the same slots.
    """
    slots = batch.weight.flatten(0, -2)[0] > 0.5
    return None if bool(slots.all()) else slots.repeat_interleave(rows.shape[-1])
