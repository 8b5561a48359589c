"""Messages of a round before they are sent: their numbers, masks and known terms."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import copy
from functools import wraps
from typing import Any, Self, TypeVar, cast

from torch import Tensor

from harness.core.clients.clients import Clients
from harness.core.clients.silenced import Silenced
from harness.core.cost import Cost
from harness.core.errors import Incompatible
from harness.core.per_run import PerRun
from harness.core.settings.compression import PLAIN, Compression
from harness.core.settings.privacy import Privacy
from harness.core.wire import gossip, masks
from harness.core.wire.client_chunks import Assembly
from harness.core.wire.diagnostics import Diagnostics
from harness.core.wire.dp_banded import BandedMechanism
from harness.core.wire.dp_client import AdditiveMechanism, Mechanism, SampleMechanism
from harness.core.wire.dp_distributed import DistributedMechanism
from harness.core.wire.known_terms import Delivered, Round, SilencedChannel, known_terms, refuse_private
from harness.core.wire.message import Known, Message, Part, Value
from harness.core.wire.stages import Stages
from privacy.ledger import Ledger

Method = TypeVar("Method", bound=Callable[..., Any])


def repeatable(method: Method) -> Method:
    """Make a method of a channel one that silenced rounds can call again: what it returns is kept for them."""

    @wraps(method)
    def kept(channel: Outbox, *arguments: Any, **options: Any) -> Any:
        result = method(channel, *arguments, **options)
        if channel._again is not None:
            channel._delivered.append(Delivered.of(method.__name__, result))
        return result

    return cast(Method, kept)


class Outbox:
    """The messages of one round, before their first stage. `Channel` says what they are.

    In the shapes below ``...`` is empty for one run and ``R`` for R stacked runs.

    Parameters
    ----------
    clients : Clients
        The cohort.
    mixing : Tensor or None
        Mixing matrix ``(total, total)`` of a decentralized run, ``(..., total, total)`` when stacked.
    privacy : Privacy or None
        Clipping and noise of messages; None: no clipping, no noise, no bookings.
    compression : Compression
        Sparsification and wire format.
    state : dict[str, Tensor]
        State kept between rounds, by message slot: residuals or shifts ``(..., total, n)`` of all clients, factors
        ``(..., k)`` or ``(..., total, k)``, and adaptive clip norms ``(...)``.
    again : Callable or None
        ``round(clients, channel)`` of an algorithm that releases values, with the state before this round. It is
        gone through again without gradients for every message (`harness.core.wire.known_terms`): what follows from
        earlier releases is set apart, and only the rest is protected. None: messages are protected as they are.
    diagnose : bool
        Whether to record norms of the messages for `diagnostics`.
    stages : Callable
        The class of the stages, or what makes them from its arguments. A dry run has stages without encoding and
        noise.
    """

    def __init__(
        self,
        clients: Clients,
        *,
        mixing: Tensor | None = None,
        privacy: Privacy | None = None,
        compression: Compression = PLAIN,
        state: dict[str, Tensor] | None = None,
        again: Round | None = None,
        diagnose: bool = False,
        stages: Callable[..., Stages] = Stages,
    ) -> None:
        memory = dict(state or {})
        mechanism = None if privacy is None else _mechanism(privacy, clients, memory)
        strict = privacy is not None and privacy.spec.strict
        diagnostics = Diagnostics() if diagnose and not strict else None
        self._new_stages = stages
        self._stages = stages(clients, mechanism, compression, memory, None, diagnostics)
        self._mixing = mixing
        self._messages = 0
        self._again = again
        self._delivered: list[Delivered] = []

    def known(self, method: str) -> Known | None:
        """Return the terms of the next message, to be sent by a method, that follow from earlier releases.

        None if messages are protected as they are, or neither protected nor diagnosed.
        """
        if self._again is None or (self._mechanism is None and self._stages.notes.diagnostics is None):
            return None
        averages = self._mechanism is not None and self._mechanism.averages
        return self._known(self._again, method, averages=averages)

    def _known(self, round: Round, method: str, *, averages: bool) -> Known:
        def silenced(clients: Silenced) -> SilencedChannel:
            return SilencedChannel(clients, self._delivered, method, lambda: self.gap)

        return known_terms(round, self._clients, silenced, averages=averages)

    def for_client(self, clients: Clients, assembly: Assembly) -> Self:
        """Return the channel of one client, a cohort of size 1, which posts its messages to the assembly."""
        channel = copy(self)
        channel._delivered = []
        state, diagnostics = dict(self.state), self._stages.notes.diagnostics
        mechanism = self._mechanism and self._mechanism.of(clients, state)
        channel._stages = self._new_stages(
            clients, mechanism, self._compression, state, assembly, diagnostics
        )
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
        gaps = gossip.gaps(self._mixing)
        return gaps[0] if self._mixing.ndim == 2 else PerRun(gaps)

    @property
    def diagnostics(self) -> dict[str, Tensor]:
        """Values of this round's first uplink message, ``(...)`` each; see `Diagnostics.values`.

        They depend on private data and are not released. Empty under strict privacy and without ``diagnose``.
        """
        diagnostics = self._stages.notes.diagnostics
        return {} if diagnostics is None else diagnostics.values()

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
        replaced = [isinstance(part, Value) for part in parts] if self._again is not None else ()
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


def _mechanism(privacy: Privacy, clients: Clients, memory: dict[str, Tensor]) -> Mechanism | None:
    """Return the mechanism of messages; None where gradients are protected in their place."""
    if privacy.unit != "client":
        return SampleMechanism(privacy, clients, memory) if clients.problem.kind == "vertical" else None
    if privacy.user_noise is not None:
        return AdditiveMechanism(privacy, clients, memory)
    if privacy.placement == "distributed":
        return DistributedMechanism(privacy, clients, memory)
    if privacy.spec.mechanism == "banded":
        return BandedMechanism(privacy, clients, memory)
    return Mechanism(privacy, clients, memory)
