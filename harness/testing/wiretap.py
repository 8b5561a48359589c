"""Clients and a channel that write a transcript.

It is taken outside the mechanism: where algorithms hand rows to the channel and receive what was sent, and where
they ask for gradients. What a release would be without noise is computed from its definition, so a broken mechanism
cannot vouch for itself. One client sends long random rows instead of its own, and every second round the gradients
of all samples are long, because clipping shows on long contributions only.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import lru_cache, partial
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from harness.core import rng
from harness.core.clients.batches import Batches, BatchPlan
from harness.core.clients.clients import Clients
from harness.core.clients.local_batch import Drawn, LocalBatch
from harness.core.execution.vectorize import Points
from harness.core.problem import Objective, problem_loss
from harness.core.wire import gossip, masks
from harness.core.wire.channel import Channel
from harness.core.wire.dp_client import ADAPTIVE_START
from harness.core.wire.message import Known, Part, Value, Weighting, parts_of, split
from harness.testing.transcript import Key, Limit, Transcript, clipped, clipped_sums

WORST = 0  # number of the client that sends long rows
LONG = 1e3  # length of its rows over the clip norm, and factor of the long gradients
TOLERANCE = {torch.float32: 1e-3, torch.float64: 1e-7}  # of the sensitivity, for rounding


class _Message(NamedTuple):
    """A message before it is sent: number, parts, what is clipped, known terms, bounds of its clip, its entries."""

    number: int
    rows: list[Part]
    parts: list[Tensor]
    known: Known | None
    limit: Limit
    sensitivity: float
    held: list[Tensor] | None


class Wiretap(Channel):
    """A channel that compares what is received with what clipping alone would let through."""

    def __init__(self, clients: Clients, *, transcript: Transcript, **options: Any) -> None:
        super().__init__(clients, **options)
        self._transcript = transcript
        self._sent = 0

    @property
    def _watched(self) -> bool:
        """Whether messages are releases; with unit record, gradients are, and what parties send."""
        return self._transcript.privacy.unit == "client" or self._clients.problem.kind == "vertical"

    def mean_and_sent(
        self,
        *rows: Tensor | Part,
        weighting: Weighting | None = None,
        stateless: bool = False,
    ) -> tuple[Any, Any]:
        """Send rows to the server and note the noise of their average."""
        options: dict[str, Any] = {"weighting": weighting, "stateless": stateless}
        parts = parts_of(rows)
        if not self._watched:
            return super().mean_and_sent(*parts, **options)
        privacy, clients = self._transcript.privacy, self._clients
        message = self._opened(parts, self.known("mean_and_sent"))
        mean, sent = super().mean_and_sent(*message.rows, **options)
        present, averages = clients.participation_mask.double(), privacy.placement != "local"
        sizes = (clients.sizes * present).double()
        even = averages or clients.counts_private or weighting == "uniform"
        weights = present / clients.n if even else sizes / sizes.sum().clamp(min=1)
        if (
            privacy.user_noise is not None and not averages
        ):  # an average of such noise is distributed otherwise
            self._note_each(message, mean, sent, weights)
            return mean, sent
        unit: Any = message.sensitivity * (1 / clients.n if averages else float(weights.norm()))
        clean = [weights.to(part) @ part for part in clipped(message.parts, message.limit, privacy.order)]
        if message.known is not None:
            terms = message.known.mean or [weights.to(one) @ one for one in message.known.rows]
            clean = _plus(clean, terms)
        if message.held is not None and message.held[0].ndim > 1:  # clients add no noise to what they lack
            unit = [message.sensitivity * (weights.square() @ one.double()).sqrt() for one in message.held]
        self._note(message, _scaled(mean, message.rows), clean, unit)
        if privacy.clip == "adaptive":
            self._note_count(message, present)
        return mean, sent

    def gather(
        self,
        *rows: Tensor | Part,
        stateless: bool = False,
        per_sample: LocalBatch | None = None,
        pass_on: Literal["all", "others"] | None = None,
    ) -> Any:
        """Send rows to the server and note the noise of each."""
        options: dict[str, Any] = {"stateless": stateless, "per_sample": per_sample, "pass_on": pass_on}
        parts = parts_of(rows)
        if not self._watched:
            return super().gather(*parts, **options)
        message = self._opened(parts, None if per_sample is not None else self.known("gather"), per_sample)
        sent, privacy = super().gather(*message.rows, **options), self._transcript.privacy
        if per_sample is None:
            clean = _plus(
                clipped(message.parts, message.limit, privacy.order), message.known and message.known.rows
            )
        else:  # slots without a sample are not sent, and do not count for the norm
            real = (per_sample.weight > 0.5).unsqueeze(-1)
            present = [torch.where(real, part, 0.0) for part in message.parts]
            whole = privacy.unit == "client"
            rows_of = [part.flatten(-2) for part in present] if whole else present
            clean = clipped(rows_of, message.limit, privacy.order)
            clean = [torch.where(real, part.view(message.parts[0].shape), torch.nan) for part in clean]
        self._note(message, _scaled(sent, message.rows), clean, message.sensitivity)
        return sent

    def mix(
        self,
        *rows: Tensor | Part,
        rebroadcast: Sequence[Tensor] = (),
        onto: Sequence[Tensor] = (),
        hops: int = 1,
    ) -> gossip.Exchange:
        """Send rows to the neighbors, note their noise, and compare the mixture with what was sent."""
        options: dict[str, Any] = {"rebroadcast": rebroadcast, "onto": onto, "hops": hops}
        return self._gossiped("mix", super().mix, parts_of(rows), options)

    def mix_changes(
        self,
        *rows: Tensor | Part,
        memory: Sequence[Tensor],
        rebroadcast: Sequence[Tensor] = (),
        onto: Sequence[Tensor] = (),
    ) -> gossip.Exchange:
        """Do the same where only changes are sent; uncompressed, they tell all of a row."""
        options = {"rebroadcast": rebroadcast, "onto": onto, "memory": memory}
        return self._gossiped("mix_changes", super().mix_changes, parts_of(rows), options)

    def _gossiped(
        self,
        method: str,
        verb: Callable[..., gossip.Exchange],
        rows: Sequence[Part],
        options: dict[str, Any],
    ) -> gossip.Exchange:
        """Send rows to the neighbors by one of the channel's verbs, and note."""
        if not (self._watched and rows):
            return verb(*rows, **options)
        onto, privacy = options["onto"], self._transcript.privacy
        message = self._opened(rows, self.known(method))
        exchange = verb(*message.rows, **options)
        sent = exchange.sent
        clean = clipped(message.parts, message.limit, privacy.order)
        clean = _plus(clean, message.known and message.known.rows)
        self._note(message, _scaled(sent, message.rows), clean, message.sensitivity)
        sums = [row + part for row, part in zip(onto, sent, strict=True)] if onto else list(sent)
        assert self._mixing is not None
        whole = partial(gossip.mixed, mixing=self._mixing)
        heard = gossip.spread(sums, self._mixing, options.get("hops", 1), lambda now: whole(now, now))
        self._compare(message, exchange.mixed, heard, "neighbors do not mix what was sent")
        return exchange

    def _compare(
        self, message: _Message, received: Sequence[Tensor], expected: Sequence[Tensor], difference: str
    ) -> None:
        """Note where parts that were received differ from what was sent by more than rounding."""
        for part, (one, other) in enumerate(zip(received, expected, strict=True)):
            most = float(other.abs().max()) + message.sensitivity
            if math.isfinite(most) and not float((one - other).abs().max()) <= TOLERANCE[one.dtype] * most:
                where = f"message {message.number}, part {part}, round {self._clients.round}"
                self._transcript.wrong.append(f"{where}: {difference}")

    def _note_each(self, message: _Message, mean: Any, sent: Any, weights: Tensor) -> None:
        """Note the noise of each client, and compare the average with what was sent."""
        pairs = zip(message.rows, [sent] if isinstance(sent, Tensor) else sent, strict=True)
        rows = _scaled(
            tuple(row - part.of if isinstance(part, Value) else row for part, row in pairs), message.rows
        )
        clean = clipped(message.parts, message.limit, 1)
        clean = _plus(clean, message.known and message.known.rows)
        active = self._clients.participation_mask.bool().unsqueeze(-1)
        self._note(
            message, rows, [torch.where(active, part, torch.nan) for part in clean], message.sensitivity
        )
        if message.held is None:
            averages = [weights.to(each) @ each for each in rows]
            received = _scaled(mean, message.rows)
            self._compare(message, received, averages, "the server does not average what was sent")

    def _opened(
        self, parts: Sequence[Part], known: Known | None, batch: LocalBatch | None = None
    ) -> _Message:
        """Return the message with long rows of one client, and charge it."""
        transcript, clients = self._transcript, self._clients
        privacy, round = transcript.privacy, clients.round
        number = self._sent if round >= 0 else -1 - self._sent  # apart from those of the rounds
        self._sent += 1
        limit: Limit = privacy.clip if privacy.clip != "adaptive" else self._norm()
        bound = float(limit) if isinstance(limit, Tensor) else privacy.bound()
        member = (clients.ids == WORST).unsqueeze(-1)
        changed: list[Part] = []
        for place, part in enumerate(parts):
            row, purpose = part.row, ("audit direction", round, number, place)
            shape = row.shape[1:]
            length = LONG * bound * (1.0 if part.scale is None else float(part.scale.value))
            long = torch.randn(shape, generator=rng.stream(0, *purpose), dtype=torch.float64)
            long = (length * long / long.norm(dim=-1, keepdim=True)).to(row)
            far = long if part.of is None else part.of + long
            whose = member.view(-1, *[1] * len(shape)).to(row.device)
            changed.append(replace(part, row=torch.where(whose, far, row)))
        self._charge(batch)
        private = [part.scaled for part in changed]
        if known is not None:
            private = [part - term for part, term in zip(private, known.rows, strict=True)]
        mask = masks.of_model(clients, parts)
        held = None if mask is None else split(mask, parts)
        if held is not None:
            private = [part * entries for part, entries in zip(private, held, strict=True)]
        return _Message(number, changed, private, known, limit, bound * privacy.factor, held)

    def _charge(self, batch: LocalBatch | None) -> None:
        transcript, clients = self._transcript, self._clients
        privacy, round = transcript.privacy, clients.round
        if privacy.unit == "record":
            assert batch is not None
            _charge_persons(transcript, clients, batch)
            return
        secret = privacy.secret_cohorts and round >= 0  # nobody may know that it was left out
        who = torch.ones(clients.federation.clients, dtype=torch.int64)
        if not secret:
            who = torch.zeros_like(who).index_add(0, clients.ids, clients.participation_mask)
        transcript.charge(("round", round), who, privacy.rate if secret else 1.0)

    def _note(self, message: _Message, sent: Sequence[Tensor], clean: Sequence[Tensor], unit: Any) -> None:
        """Keep the noise of a message: what arrived minus what would have arrived without, over ``unit``."""
        units = unit
        if not isinstance(unit, list):
            units = [unit * one.double() for one in message.held or [torch.ones(1)] * len(sent)]
        if not any(bool(one.any()) for one in units):
            return  # a cohort without samples: an average with weights of zero
        for part, (one, other, each) in enumerate(zip(sent, clean, units, strict=True)):
            other = torch.where(each > 0, other.double(), torch.nan)  # else it is neither sent nor noised
            noise, key = (one.double() - other) / each, ("message", message.number, part)
            round, ids = self._clients.round, self._clients.ids
            if bool((noise.isnan() & ~other.isnan() | noise.isinf()).any()):
                self._transcript.wrong.append(f"message {message.number}, part {part}: not finite")
            noise = noise.nan_to_num(torch.nan, torch.nan, torch.nan)
            if noise.ndim == 1:  # an average
                self._transcript.release(key, round, noise[None], torch.zeros(1, dtype=torch.int64), 1)
            else:
                self._transcript.release(key, round, noise.flatten(1), ids, self._clients.federation.clients)

    def _norm(self) -> Tensor:
        """Return the adaptive clip norm of the next message, which follows from earlier noisy counts."""
        start = torch.tensor(ADAPTIVE_START, dtype=torch.float64)
        return self.state.get(f"clip {self._slot_of(self._messages)}", start)

    def _slot_of(self, messages: int) -> int:
        return messages if self._clients.round >= 0 else -messages - 1

    def _note_count(self, message: _Message, present: Tensor) -> None:
        """Keep the noise of an adaptive clip's count, by the share that was released."""
        limit = torch.as_tensor(message.limit)
        share = float(self.state[f"clip share {self._slot_of(self._messages - 1)}"])
        norms = torch.cat(message.parts, -1).double().norm(dim=-1)
        count = float((((norms <= limit).double() - 0.5) * present).sum())
        noise = ((share - 0.5) * self._clients.n - count) * (
            1 if self._transcript.privacy.count_replaced else 2
        )
        key: Key = ("count", message.number)
        where = torch.zeros(1, dtype=torch.int64)
        self._transcript.release(key, self._clients.round, torch.tensor([[noise]]), where, 1)


class Witness(Clients):
    """Clients that note who is drawn, and compare private gradients with sums of clipped ones."""

    def __init__(self, *arguments: Any, transcript: Transcript, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._transcript = transcript
        self._rates: dict[str, Tensor] = {}  # that batches of each stream claim, (C,)
        self._made: Counter[tuple[str, int]] = Counter()  # gradients from each batch
        self._seen: Counter[tuple[str, int]] = Counter()  # batches of each stream and client
        privacy = transcript.privacy
        if privacy.by_gradient and self._records is None:
            transcript.wrong.append("clients compute without record-level privacy")
        if privacy.unit == "client" and privacy.sampling == "poisson" and self.round >= 0:
            drawn = self.ids[self.participation_mask.bool()]
            members = torch.zeros(self.federation.clients, dtype=torch.bool).index_fill(0, drawn, True)
            transcript.draw("cohort", privacy.rate, 0, members)

    def _drawn(self, plan: BatchPlan) -> Batches:
        """Draw batches and note who is in which."""
        batches, records, split = super()._drawn(plan), self._records, plan.split
        if records is None or records.public:
            return batches
        counts = records.counts(self.federation, split)[self.ids] if records.users else self.samples(split)
        rates = ((plan.batch_size or math.inf) / counts.clamp(min=1).double()).clamp(max=1.0)
        public = records.privacy.record_rate
        stream = f"{split} {plan.stream}"
        self._rates[stream] = rates if public is None else torch.full_like(rates, public)
        held = self.take(self.federation.splits[split])
        for row, client in enumerate(self.ids.tolist()):
            mine, rate = held[row][held[row] >= 0], float(self._rates[stream][row])
            if records.users:  # known by their first samples
                first = self.federation.by_user(split, records.each)[client, :, 0]
                mine = held[row][first[first >= 0]]
            for step in range(self._seen[stream, client], int(batches.num_steps[row])):
                members = torch.isin(mine.to(batches.positions.device), batches.positions[step, row])
                self._transcript.draw("batch", rate, client, members.cpu())
            # A stream that is drawn again gives the same batches.
            self._seen[stream, client] = max(self._seen[stream, client], int(batches.num_steps[row]))
        return batches

    def _gradients(
        self,
        points: tuple[Tensor, ...],
        batch: LocalBatch,
        by: Points = (),
        objective: Objective = problem_loss,
    ) -> list[Tensor]:
        if self._records is None:
            return super()._gradients(points, batch, by, objective)
        if self.round % 2:
            objective = partial(_lengthened, objective)
        gradients = super()._gradients(points, batch, by, objective)
        drawn = self._records.of(batch)
        call = self._made[drawn.stream, drawn.step]
        self._made[drawn.stream, drawn.step] += 1
        real = batch.revealed().samples
        problem, at, bound = self.problem, points, self._transcript.privacy.bound()
        if self.pruned is not None:
            (model,) = self.pruned.models
            problem, at = model.problem, tuple(map(model.take, points))
        clean = clipped_sums(objective(problem), at, real, by, bound, self._records.each)
        if self.pruned is not None:
            clean = [
                torch.where(model.mask, model.put(part, gradient), torch.nan)
                if model.inside(gradient)
                else part
                for part, gradient in zip(clean, gradients, strict=True)
            ]
        self._note(drawn, batch.active.squeeze(-1).bool(), call, gradients, clean)
        if self._records.public:
            _charge_persons(self._transcript, self, batch)
        else:
            active = batch.active.squeeze(-1).long().cpu()
            rates = torch.ones(self.federation.clients, dtype=torch.float64)
            rates[self.ids] = self._rates[drawn.stream]
            who = torch.zeros(self.federation.clients, dtype=torch.int64).index_add(0, self.ids, active)
            self._transcript.charge(("batch", drawn.stream, self.round, drawn.step), who, rates)
        return gradients

    def _note(
        self, drawn: Drawn, active: Tensor, call: int, gradients: list[Tensor], clean: list[Tensor]
    ) -> None:
        """Keep the noise of the gradients of clients that took the step."""
        privacy, ids = self._transcript.privacy, self.ids[active.cpu()]
        sensitivity = privacy.bound() * privacy.factor
        noise_of = torch.as_tensor(privacy.noise_multipliers)  # a client's noise, relative to the smallest
        unit = sensitivity * (noise_of[ids] / noise_of.min()).unsqueeze(-1) if noise_of.ndim else sensitivity
        for part, (one, other) in enumerate(zip(gradients, clean, strict=True)):
            noise = (one.double() * drawn.divisor - other)[active] / unit
            key = ("gradient", drawn.stream, drawn.step, call, part)
            self._transcript.release(key, self.round, noise, ids, self.federation.clients)


def _charge_persons(transcript: Transcript, clients: Clients, batch: LocalBatch) -> None:
    """Charge the persons of a public batch."""
    assert clients._records is not None
    numbers = clients._records.of(batch).numbers
    assert numbers is not None
    who = torch.bincount(numbers[numbers >= 0].cpu(), minlength=int(clients.sizes.max()))
    transcript.charge(("person",), who)


@lru_cache(maxsize=64)
def _times(loss: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Return a loss with long gradients; the same object for the same loss, because it may be recorded."""
    return lambda *arguments: LONG * loss(*arguments)


def _lengthened(objective: Objective, problem: Any) -> Callable[..., Tensor]:
    return _times(objective(problem))


def _plus(parts: Sequence[Tensor], terms: Sequence[Tensor] | None) -> list[Tensor]:
    """Return scaled parts plus scaled terms."""
    return list(parts) if terms is None else [part + term for part, term in zip(parts, terms, strict=True)]


def _scaled(sent: Any, like: Sequence[Part]) -> list[Tensor]:
    """Return the parts of a received message, divided by their scales."""
    rows = [sent] if isinstance(sent, Tensor) else list(sent)
    pairs = zip(like, rows, strict=True)
    return [row if part.scale is None else row / part.scale.of(row) for part, row in pairs]
