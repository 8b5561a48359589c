"""Communication: everything that leaves a client or the server goes through a method of `Channel`.

The arguments of one call form one message, which is clipped jointly, counted once and booked once. `Channel`
decides who sends what to whom. `harness.core.wire.stages` processes the messages, in the order of
`harness.core.wire.pipeline`:
"""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from typing import Any, ClassVar, Literal, overload

from torch import Tensor

from compression import position_bytes
from harness.core.clients.clients import Clients
from harness.core.clients.local_batch import LocalBatch
from harness.core.cost import Cost
from harness.core.per_run import PerRun
from harness.core.public import Scale
from harness.core.registry import Incompatible
from harness.core.settings.compression import PLAIN, Compression
from harness.core.settings.privacy import Privacy
from harness.core.wire import gossip, low_rank, masks
from harness.core.wire.client_chunks import Assembly
from harness.core.wire.diagnostics import Diagnostics
from harness.core.wire.dp_banded import BandedMechanism
from harness.core.wire.dp_client import AdditiveMechanism, Mechanism, SampleMechanism
from harness.core.wire.dp_distributed import DistributedMechanism
from harness.core.wire.message import Known, Message, Weighting, of_server, plain, restored, split
from harness.core.wire.pipeline import DIFFERENCES, LOCAL, ORDERS, PUBLIC, SEPARATE, UNCODED, table
from harness.core.wire.stages import Stages
from privacy import Ledger

__doc__ = f"{__doc__}\n{table()}\n"


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
        strict = privacy is not None and privacy.strict
        diagnostics = Diagnostics() if diagnose and not strict else None
        self._stages = self.stages(clients, mechanism, compression, memory, None, diagnostics)
        self._mixing = mixing
        self._messages = 0

    def part(self, clients: Clients, assembly: Assembly) -> Channel:
        """Return the channel of one client, a cohort of size 1, which posts its messages to the assembly."""
        channel = copy(self)
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
        diagnostics = self._stages.diagnostics
        return {} if diagnostics is None else diagnostics.figures()

    @overload
    def down(self, vector: Tensor, /) -> Tensor: ...
    @overload
    def down(self, vector: Tensor, /, *more: Tensor) -> tuple[Tensor, ...]: ...
    def down(self, *vectors: Tensor) -> Any:
        """Send server vectors ``(..., P)`` to the cohort and return the rows received, ``(..., C, P)``."""
        return self._broadcast(vectors, self._clients.participation_mask)

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
        same = self._stages.down.entrywise and not (compression.downlink and compression.sparsifies)
        if everybody and not same:
            raise Incompatible(
                "compression.downlink: clients reuse what they received before, so the downlink needs a codec that "
                "rounds each entry by itself (float16, float32, ...) and no sparsification"
            )
        return self._broadcast(vectors, self._clients.participation_mask * (not everybody))

    def _broadcast(self, vectors: Sequence[Tensor], copies: Tensor) -> Any:
        """Send server vectors; ``copies (..., C)`` says how many copies are counted for each client."""
        slot, sparsify = self._slot(), self._compression.downlink and self._compression.sparsifies
        mask = self._mask(slot, vectors, sparsify=sparsify)
        per_client = masks.per_client_mask(self._clients, mask) is not None  # each gets a different message
        parts = [self._clients.rows(vector) for vector in vectors] if per_client else vectors
        mask = mask if per_client else of_server(mask, vectors[0])
        message = Message(slot, parts, copies, mask, "server", sparsify)
        arrived = self._stages.process(message, PUBLIC)
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
        *rows: Tensor,
        base: Any = None,
        scale: Scale | None = None,
        weighting: Weighting | None = None,
        stateless: bool = False,
    ) -> Any:
        """Send rows ``(..., C, P)`` to the server, which sees only their average ``(..., P)``.

        Parameters
        ----------
        *rows : Tensor
            The parts of the message.
        base : Tensor or tuple of tensors, optional
            Reference of the increments: a vector the server sent, or rows whose mean it keeps (SCAFFOLD's
            control variates). The clients send the increments, and the result is their mean.
        scale : sequence of Public or None, optional
            Public magnitudes by which the parts are divided before the joint clip; None: 1.
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
        return self.mean_and_sent(*rows, base=base, scale=scale, weighting=weighting, stateless=stateless)[0]

    def mean_and_sent(
        self,
        *rows: Tensor,
        base: Any = None,
        known: Sequence[Known | None] | None = None,
        scale: Scale | None = None,
        weighting: Weighting | None = None,
        stateless: bool = False,
    ) -> tuple[Any, Any]:
        """Send rows as `mean` does; a client also learns what it has sent, for terms that are known later.

        Parameters
        ----------
        *rows, base, scale, weighting, stateless
            As in `mean`.
        known : sequence of Known or None, optional
            For each part a term of its rows that follows from earlier releases, or None. Rows are clipped and
            noised without it, and travel with it: a value is released where a change is sent, so that the noise
            of what a server accumulates does not add up (docs/releases.md).

        Returns
        -------
        mean : Tensor or tuple of tensors
            As of `mean`, with the known terms.
        sent : Tensor or tuple of tensors
            Each client's rows as the receiver has decoded them, ``(..., C, P)``. A client may keep its own.
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
        message = self._uplink(rows, base, scale)
        message.known, message.weighting = known, "uniform" if even else weighting or "size"
        message.together = not averages  # a common factor would move everybody's message with one client's
        mean = self._stages.process(
            message, LOCAL if mechanism is None else ORDERS[mechanism.privacy.placement]
        )
        return plain(mean), plain(restored(split(message.sent, rows), scale))

    def gather(
        self,
        *rows: Tensor,
        base: Any = None,
        scale: Scale | None = None,
        stateless: bool = False,
        per_sample: LocalBatch | None = None,
        pass_on: Literal["all", "others"] | None = None,
    ) -> Any:
        """Send rows ``(..., C, P)`` to the server and return them as received; the server sees every message.

        Parameters
        ----------
        *rows : Tensor
            The parts of the message.
        base, scale, stateless : optional
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

    def scatter(self, *rows: Tensor, per_sample: LocalBatch | None = None) -> Any:
        """Send each client its own row ``(..., C, P)``, computed from what the server has received.

        With ``per_sample`` the message is one part, ``(..., C, B, d)``, as in `gather`.
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
        known: Sequence[Known | None] | None = None,
        scale: Scale | None = None,
        hops: int = 1,
    ) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...], tuple[Tensor, ...]]:
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
        base, known, scale : optional
            As in `mean_and_sent`.
        hops : int
            Number of exchanges between neighbors: 1 applies the mixing matrix, more use FastMix
            (`harness.core.wire.gossip`).

        Returns
        -------
        sent : tuple of Tensor
            The message of each client after protection and coding, without ``onto`` (increments, with
            ``base``); before coding if differences travel. A tracker must use this version of its own share.
        mixed, mixed_rebroadcast : tuple of Tensor
            The mixtures of the messages (with ``onto`` added) and of ``rebroadcast``.

        Raises
        ------
        Incompatible
            If the settings of privacy or compression do not fit gossip.
        ValueError
            If the run has no topology, or there are no rows or hops.
        """
        options: dict[str, Any] = {
            "rebroadcast": rebroadcast, "onto": onto, "base": base, "known": known, "scale": scale,
        }  # fmt: skip
        heard = self._exchange(*rows, hops=hops, **options)
        return heard.sent, heard.mixed[: len(rows)], heard.mixed[len(rows) :]

    def mix_changes(
        self,
        *rows: Tensor,
        memory: Sequence[Tensor],
        rebroadcast: Sequence[Tensor] = (),
        onto: Sequence[Tensor] = (),
        base: Any = None,
        scale: Scale | None = None,
    ) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...], tuple[Tensor, ...]]:
        """Gossip about rows of which the neighbors remember an estimate: only the difference to it travels.

        What sparsification and coding leave out is sent later, since the estimate then lacks it.

        Parameters
        ----------
        *rows, rebroadcast, onto, base, scale
            As in `mix`. Sparsification applies to the differences, also to those of ``rebroadcast``.
        memory : sequence of Tensor
            What the neighbors remember of the rows (with ``onto`` added) and of ``rebroadcast``; rows of earlier
            calls, or a common start.

        Returns
        -------
        sent : tuple of Tensor
            The message of each client after protection and before coding, without ``onto``.
        mixed, memory : tuple of Tensor
            ``z + (W - I) m`` for every row z, and the new memory m, which is z if nothing is left out.
        """
        if len(memory) != len(rows) + len(rebroadcast):
            raise ValueError(
                f"mix_changes needs a memory for each of {len(rows) + len(rebroadcast)} rows; got {len(memory)}"
            )
        options = {"rebroadcast": rebroadcast, "onto": onto, "memory": memory, "base": base, "scale": scale}
        heard: gossip.Heard = self._exchange(*rows, **options)
        return heard

    def _exchange(
        self,
        *rows: Tensor,
        rebroadcast: Sequence[Tensor] = (),
        onto: Sequence[Tensor] = (),
        memory: Sequence[Tensor] = (),
        base: Any = None,
        known: Sequence[Known | None] | None = None,
        scale: Scale | None = None,
        hops: int = 1,
    ) -> gossip.Heard:
        """Send rows along the edges: the common part of `mix` and `mix_changes`."""
        self._local_only("gossips with its neighbors")
        mixing = gossip.checked(
            self._mixing, self._clients, self._mechanism, self._compression, known=bool(onto or memory)
        )
        if hops < 1 or not (rows or rebroadcast):
            raise ValueError(
                f"mix needs at least one row and one hop; got {len(rows) + len(rebroadcast)} rows, {hops} hops"
            )
        everything = [*rows, *rebroadcast]
        factors = None if memory else low_rank.layout(self._clients, self._compression, everything)
        later = bool(onto or memory or factors)  # protected first, and coded as part of a sum or difference
        copies, sparsify = gossip.neighbors(mixing).cpu(), later and self._compression.sparsifies

        def send(parts: Sequence[Tensor]) -> list[Tensor]:
            if memory:
                parts = [part - old for part, old in zip(parts, memory, strict=True)]
            slot = self._slot()
            mask = self._mask(slot, parts, sparsify=sparsify)
            told = self._stages.process(Message(slot, parts, copies, mask, "neighbor", sparsify), PUBLIC)
            return [old + part for old, part in zip(memory, told, strict=True)] if memory else told

        def approach(parts: Sequence[Tensor]) -> list[Tensor]:
            slot = self._slot()
            mask, once = self._mask(slot, parts, sparsify=False), self._clients.participation_mask
            return self._stages.process(
                Message(slot, parts, once, mask, "neighbor", mixing=mixing), DIFFERENCES
            )

        sent: list[Tensor] = []
        if rows:
            message = self._uplink(rows, base, scale, sparsify=not later)
            message.copies, message.known = message.copies * copies, known
            sent = self._stages.process(message, UNCODED if later else SEPARATE)
        sums = [row + step for row, step in zip(onto, sent, strict=True)] if onto else sent
        held = [*sums, *rebroadcast]
        if factors is not None:
            return gossip.Heard(tuple(sent), tuple(gossip.spread(held, mixing, hops, approach)), ())
        received = send(held) if later else [*sent, *(send(rebroadcast) if rebroadcast else ())]
        brought = [received]  # by the first hop

        def hop(now: Sequence[Tensor]) -> list[Tensor]:
            return gossip.mixed(now, brought.pop() if brought else send(now), mixing)

        return gossip.Heard(tuple(sent), tuple(gossip.spread(held, mixing, hops, hop)), tuple(received))

    def _uplink(
        self,
        rows: Sequence[Tensor],
        base: Any,
        scale: Scale | None,
        *,
        sparsify: bool = True,
        real: Tensor | None = None,
    ) -> Message:
        """Create a message of the clients, before its first stage."""
        slot, copies = self._slot(), self._clients.participation_mask
        mask = self._mask(slot, rows, sparsify=sparsify, real=real)
        return Message(
            slot, rows, copies, mask, sparsify=self._compression.sparsifies, base=base, scale=scale
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
        self, slot: int, parts: Sequence[Tensor], *, sparsify: bool, real: Tensor | None = None
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
