"""The only road out: everything that leaves a client or the server goes through a verb of `Channel`.

The arguments of one call are one message: clipped jointly, counted once, booked once. What happens to a
message, and in which order, is decided in `Channel._send` and nowhere else. The order is a property of where the
noise is added:

====  ==============================================  ====================================================
step  local (each client protects itself)             central (the server adds noise to the average)
====  ==============================================  ====================================================
1     increment against ``base``; each part divided   same
      by its public ``scale``
2     public mask (random-k, pruned model)            same, then add the error-feedback residual
3     clip the joint norm of the parts                encode and decode, then clip what was decoded
4     Gaussian noise on the kept positions            average with a fixed denominator; noise on it
5     add the residual; choose entries, encode,       -
      decode: post-processing of what is protected
6     count the bytes of the code; book the release   same
7     restore the scales; server clip                 same
====  ==============================================  ====================================================

Without privacy steps 3 and 4 are left away. A residual is what entered the encoder minus what came out of it;
error feedback is for what clients send.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar, Literal, overload

import torch
from torch import Tensor

from compression import Codec, find_codec, top_k
from datasets.federation import Batch
from harness.core import rng
from harness.core.clients import Clients
from harness.core.execution.client_chunks import Assembly
from harness.core.registry import Incompatible
from harness.core.wire import gossip, masks
from harness.core.wire.dp_client import Mechanism, generators, protected_by_sample
from harness.core.wire.message import combined, increments, joined, of_server, plain, restored, split
from harness.core.wire.settings import PLAIN, Compression, Privacy, PrivacyLog

Weighting = Literal["size", "uniform"]


class Channel:
    """What leaves, for one round.

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
        What is left away, and the format on the wire.
    state : dict[str, Tensor]
        What the channel remembers from round to round, by message slot: residuals ``(..., total, n)`` of all
        clients, adaptive clip norms ``(...)``.
    multipliers : Tensor or None
        Of stacked runs, each one's noise multiplier, ``(R,)``; None: all have that of `privacy`.
    assembly : Assembly or None
        Where a part of the cohort posts its messages, when the cohort is processed in parts.
    """

    mechanism: ClassVar[type[Mechanism]] = Mechanism  # a test of the audit puts a broken one in

    def __init__(
        self,
        clients: Clients,
        *,
        mixing: Tensor | None = None,
        privacy: Privacy | None = None,
        compression: Compression = PLAIN,
        state: dict[str, Tensor] | None = None,
        multipliers: Tensor | None = None,
        assembly: Assembly | None = None,
        diagnose: bool = False,
    ) -> None:
        self.diagnostics: dict[str, Tensor] = {}
        self.cost = clients.cost
        self.state = dict(state or {})
        self._clients = clients
        self._mixing = mixing
        self._mechanism: Mechanism | None = None
        if privacy is not None and privacy.unit == "client":
            self._mechanism = self.mechanism(privacy, clients, self.state, multipliers)
        parties = privacy is not None and privacy.unit == "record" and clients.problem.kind == "vertical"
        self._by_sample = privacy if parties else None
        self._compression = compression
        self._up: Codec = find_codec(compression.codec)
        alike = compression.codec == "float64" or compression.downlink
        self._down: Codec = self._up if alike else find_codec("float32")
        self._assembly = assembly
        self._messages = 0

    def part(self, number: int, assembly: Assembly) -> Channel:
        """Return the channel of one client of the cohort, which posts to the assembly."""
        one: Channel = object.__new__(type(self))
        one.__dict__.update(self.__dict__)
        one._clients, one._assembly = self._clients.part(number), assembly
        one.state = dict(self.state)
        one._mechanism = self._mechanism and self._mechanism.of(one._clients, one.state)
        return one

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
        everybody = self._clients.n == self._clients.total
        again = self._down.entrywise and not (self._compression.downlink and self._compression.thin)
        if everybody and not again:
            raise Incompatible(
                "compression.downlink: a message in which other entries are kept, or that is coded by chance or as "
                "a whole, does not say again what clients have kept"
            )
        return self._broadcast(vectors, self._clients.participation_mask * (not everybody))

    def _broadcast(self, vectors: Sequence[Tensor], times: Tensor) -> Any:
        """Send vectors of the server, counted so many times for each of the cohort, ``(..., C)``."""
        slot = self._slot()
        joint, thin = joined(vectors), self._compression.downlink and self._compression.thin
        shared = self._shared(slot, vectors, thin=thin)
        per_client_mask = masks.per_client_mask(self._clients, shared)
        if per_client_mask is None:
            decoded, sizes = self._encode(
                joint, slot, thin=thin, sender="server", shared=of_server(shared, joint)
            )
            decoded, sizes = self._clients.rows(decoded), sizes.unsqueeze(-1)
        else:
            joint = self._clients.rows(joint) * per_client_mask
            decoded, sizes = self._encode(joint, slot, thin=thin, sender="server", shared=per_client_mask)
        self.cost.sent(sizes * times, up=False)
        return plain(split(decoded, vectors))

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
        slot = self._slot()
        shared = self._shared(slot, rows)
        sent = joined(self._send(slot, rows, base, scale, shared=shared, restore=False))
        weights = self._weights("uniform" if even else weighting or "size").to(sent).unsqueeze(-2)
        per_client_mask = masks.per_client_mask(self._clients, shared)
        sums = [
            self._combined(weights, of)
            for of in ([sent] if per_client_mask is None else [sent, per_client_mask.to(sent)])
        ]
        if self._assembly is not None:
            sums = self._assembly.post(sums)
        total = sums[0]
        if mechanism is not None and mechanism.central:
            bound = mechanism.sensitivity(slot) / self._clients.n
            union = shared if per_client_mask is None else masks.of_everybody(self._clients, rows).any(-2)
            total = total + mechanism.noise(total, slot, bound, "server", of_server(union, total))
        if per_client_mask is not None:
            # Who lacks an entry has no say in its average. Who takes part is secret under central privacy.
            held = masks.of_everybody(self._clients, rows).to(total).mean(-2) if central else sums[1]
            total = total / torch.where(held > 0, held, 1.0)
        total = total if mechanism is None else mechanism.clipped_by_server(total)
        return plain(restored(split(total, rows), scale))

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
        base, scale, anew : optional
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
        slot = self._slot()
        if per_sample is None:
            shared = self._shared(slot, rows)
            return plain(self._send(slot, rows, base, scale, shared=shared, pass_on=pass_on))
        (h,) = rows
        flat = [h.flatten(-2)]
        shared = masks.shared(self._clients, self._compression, slot, flat, real=_real(per_sample, h))
        (seen,) = self._send(slot, flat, base, scale, shared=shared, about=per_sample, pass_on=pass_on)
        seen = seen.unflatten(-1, h.shape[-2:])
        self._clients.note("omega", h - seen, per_sample)
        return seen

    def scatter(self, *rows: Tensor, per_sample: Batch | None = None) -> Any:
        """Send each client its own row ``(..., C, P)``, a function of what the server has received.

        With ``per_sample`` it is one part, ``(..., C, B, d)``, as in `gather`.
        """
        slot, like = self._slot(), rows
        shared = self._shared(slot, rows, thin=False)
        if per_sample is not None:
            shared, rows = _real(per_sample, rows[0]), (rows[0].flatten(-2),)
        joint = joined(rows) if shared is None else joined(rows) * shared
        decoded, sizes = self._encode(joint, slot, thin=False, sender="server", shared=shared)
        self.cost.sent(sizes * self._clients.participation_mask, up=False)
        parts = zip(split(decoded, rows), like, strict=True)
        return plain([part.view_as(whole) for part, whole in parts])

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
            counted, but release nothing anew: neither clipped nor noised nor pruned.
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
        if self._clients.thinned is not None and self._clients.thinned.which is not None:
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
        copies, thin = gossip.neighbors(self._mixing).cpu(), bool(onto) and self._compression.thin

        def tell(parts: Sequence[Tensor]) -> list[Tensor]:
            joint, slot = joined(parts), self._slot()
            shared = self._shared(slot, parts, thin=thin)
            decoded, sizes = self._encode(joint, slot, thin=thin, sender="neighbor", shared=shared)
            self.cost.sent(sizes * copies, up=True)
            return split(decoded, parts)

        sent: list[Tensor] = []
        if rows:
            slot = self._slot()
            shared = self._shared(slot, rows, thin=not onto)
            sent = self._send(
                slot, rows, base, scale, shared=shared, copies=None if onto else copies, code=not onto
            )
        whole = [own + step for own, step in zip(onto, sent, strict=True)] if onto else sent
        heard = tell([*whole, *rebroadcast]) if onto else [*sent, *(tell(rebroadcast) if rebroadcast else ())]
        mixed = gossip.spread([*whole, *rebroadcast], heard, self._mixing, hops, tell)
        return tuple(sent), tuple(mixed[: len(rows)]), tuple(mixed[len(rows) :])

    def _send(
        self,
        slot: int,
        rows: Sequence[Tensor],
        base: Any,
        scale: Sequence[float] | None,
        *,
        shared: Tensor | None,
        copies: Tensor | None = None,
        code: bool = True,
        restore: bool = True,
        about: Batch | None = None,
        pass_on: Literal["all", "others"] | None = None,
    ) -> list[Tensor]:
        """Take one message of every client through the steps of the table above.

        Without ``code`` it is protected and booked; what it becomes part of is encoded and counted.
        """
        mechanism = self._mechanism
        joint = joined(increments(rows, base, scale))
        if shared is not None:
            joint = joint * shared
        if mechanism is not None and not mechanism.central:
            joint = joined(mechanism.clipped(slot, split(joint, rows)))
            joint = joint + mechanism.noise(joint, slot, mechanism.sensitivity(slot), "client", shared)
        if self._by_sample is not None:
            joint = protected_by_sample(self._by_sample, self._clients, joint, slot, about, shared)
        if code:
            thin = self._compression.thin
            joint, sizes = self._encode(joint, slot, thin=thin, sender="client", shared=shared)
            sizes = sizes * self._clients.participation_mask
            self.cost.sent(sizes if copies is None else sizes * copies, up=True)
            if pass_on is not None:
                onward = sizes.sum(-1, keepdim=True) - (sizes if pass_on == "others" else 0)
                self.cost.sent(onward * self._clients.participation_mask, up=False)
        if mechanism is not None and mechanism.central:
            joint = joined(mechanism.clipped(slot, split(joint, rows)))
        if mechanism is not None:
            mechanism.book()
        parts = split(joint, rows)
        return restored(parts, scale) if restore else parts

    def _encode(
        self, joint: Tensor, slot: int, *, thin: bool, sender: str, shared: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """Encode and decode messages ``(..., n)``; return what arrives and the bytes it took."""
        setting, codec = self._compression, self._down if sender == "server" else self._up
        feedback = setting.error_feedback and sender == "client"
        name = f"residual {slot}"
        if feedback:
            joint = joint + self._remembered(name, joint)
        kept = None
        if thin and setting.select == "top_k":
            ratio = masks.ratio(self._clients, setting)
            # Everybody knows the ratio: where it is 0, all entries travel, and nobody needs to be told which.
            kept = top_k(joint, ratio, shared) if bool((torch.as_tensor(ratio) > 0).any()) else None
        elif thin and setting.threshold is not None:
            kept = joint.abs() >= setting.threshold
            kept = kept if shared is None else kept & shared
        chances = (
            generators(self._clients, rng.stream, "code", slot, joint, sender) if codec.stochastic else None
        )
        decoded, sizes = codec.apply(joint, kept, chances, shared=shared)
        if feedback:
            self._remember(name, joint - decoded)
        return decoded, sizes.cpu()

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

    def _shared(self, slot: int, parts: Sequence[Tensor], *, thin: bool = True) -> Tensor | None:
        """Return which entries of a message travel at all; unless ``thin``, those of the model."""
        return masks.shared(self._clients, self._compression if thin else PLAIN, slot, parts)

    def _remembered(self, name: str, like: Tensor) -> Tensor:
        """Return what earlier messages of this slot left unsent; a slot of another length is a new stage's."""
        kept = self.state.get(name)
        return (
            torch.zeros_like(like)
            if kept is None or kept.shape[-1] != like.shape[-1]
            else self._clients.take(kept)
        )

    def _remember(self, name: str, residual: Tensor) -> None:
        shape = (*residual.shape[:-2], self._clients.total, residual.shape[-1])
        full = self.state.get(name)
        full = residual.new_zeros(shape) if full is None or full.shape != shape else full
        self.state[name] = self._clients.put(full, residual)

    def _slot(self) -> int:
        """Return the next message's number: 0, 1, ... in a round; -1, -2, ... before the first."""
        self._messages += 1
        return self._messages - 1 if self._clients.round >= 0 else -self._messages

    def _combined(self, weights: Tensor, rows: Tensor) -> Tensor:
        """Return the sum of the cohort's rows ``(..., C, P)`` by its weights ``(..., 1, C)``, ``(..., P)``.

        Of cohorts of unlike size side by side, run by run: with rows that only fill up it would round differently.
        """
        here = self._clients.participation_mask.bool()
        if rows.ndim == 2 or bool(here.all()):
            return combined(weights, rows).squeeze(-2)
        each = zip(weights, rows, here.to(rows.device), strict=True)
        return torch.stack([combined(weight[:, own], row[own]).squeeze(-2) for weight, row, own in each])

    def _weights(self, weighting: Weighting) -> Tensor:
        """Return the clients' weights in the average, ``(..., C)``."""
        everyone = self._assembly.clients if self._assembly is not None else self._clients
        participation_mask = self._clients.participation_mask.double()
        if weighting == "uniform":
            return participation_mask / everyone.n
        sizes = everyone.sizes * everyone.participation_mask
        return self._clients.sizes * participation_mask / sizes.sum(-1, keepdim=True).clamp(min=1)


def _real(batch: Batch, rows: Tensor) -> Tensor | None:
    """Return which entries of rows ``(..., C, B, d)``, laid flat, are about a sample, ``(B d,)``; None: all are.

    The batches of all clients have their samples in the same slots.
    """
    slots = batch.weight.flatten(0, -2)[0] > 0.5
    return None if bool(slots.all()) else slots.repeat_interleave(rows.shape[-1])
