"""The audit of a transcript catches mechanisms that were broken on purpose, under the real algorithms."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch

from harness.core import rng
from harness.core.algorithm import ALGORITHMS
from harness.core.clients import private_batches as dp_record
from harness.core.clients import sampling
from harness.core.clients.clients import Clients
from harness.core.clients.private_batches import Records
from harness.core.execution import vectorize
from harness.core.wire import gossip
from harness.core.wire.channel import Channel
from harness.core.wire.dp_client import Mechanism
from harness.core.wire.stages import Stages
from harness.testing.conformance_privacy import AUDITED, audits

Mutate = Callable[[pytest.MonkeyPatch], None]
MUTANTS: dict[str, tuple[Mutate, str, list[str]]] = {}


def mutant(mechanism: str, names: str) -> Callable[[Mutate], Mutate]:
    """Say under which mechanism a mutant is audited, and with which algorithms: one for each way to send.

    A message to a server, several of them or of several parts, to neighbors, of parties, gathered one by one.
    """

    def add(mutate: Mutate) -> Mutate:
        MUTANTS[mutate.__name__] = mutate, mechanism, names.split()
        return mutate

    return add


def silence(patch: pytest.MonkeyPatch, where: Callable[[Mechanism, int], bool], factor: float = 0.0) -> None:
    """Scale the noise of some messages; ``where`` gets the mechanism of a round, and the message's number in it."""
    noise = Mechanism.noise

    def other(self, *given):
        self.sent = getattr(self, "sent", -1) + 1
        made = noise(self, *given)
        return factor * made if where(self, self.sent) else made

    patch.setattr(Mechanism, "noise", other)


@mutant("local", "fedavg dm_hsgd splitnn")
def half_the_noise_of_messages(patch):
    silence(patch, lambda mechanism, number: True, 0.5)


@mutant("central", "fedavg fairfed")
def half_the_noise_of_averages(patch):
    silence(patch, lambda mechanism, number: True, 0.5)


@mutant("record", "fedavg fedsgda_m splitnn")
def half_the_noise_of_records(patch):
    noise = dp_record.gaussian_noise
    patch.setattr(dp_record, "gaussian_noise", lambda like, std, streams: noise(like, 0.5 * std, streams))


@mutant("local", "scaffold dm_hsgd fcfl")
def second_part_not_clipped(patch):
    clip = Mechanism.clip

    def other(self, slot, parts, samples=None):
        clipped = clip(self, slot, parts, samples)
        return clipped._replace(parts=(clipped.parts[0], *parts[1:]))

    patch.setattr(Mechanism, "clip", other)


@mutant("record", "fedper codasca k_gt_minimax")
def second_gradient_not_clipped(patch):
    clipped = vectorize.clipped_sum

    def other(parts, norm, present):
        return *clipped(parts[:1], norm, present), *(present.to(part) @ part for part in parts[1:])

    patch.setattr(vectorize, "clipped_sum", other)


@mutant("local", "fairfed fednest splitnn")
def no_noise_on_the_second_message(patch):
    silence(patch, lambda mechanism, number: number == 1)


@mutant("central", "fairfed fednest")
def no_noise_on_the_third_message(patch):
    silence(patch, lambda mechanism, number: number == 2)


@mutant("record", "apfl fednest dm_hsgd")
def no_noise_on_the_second_gradient_of_a_batch(patch):
    noised = Records.noised

    def other(self, sums, batch, call, **given):
        kept = self.privacy
        self.privacy = replace(kept, noise_multiplier=kept.noise_multiplier * (call == 0))
        try:
            return noised(self, sums, batch, call, **given)
        finally:
            self.privacy = kept

    patch.setattr(Records, "noised", other)


@mutant("record", "fedavg k_gt_minimax fedbio")
def no_record_level_privacy(patch):
    init = Clients.__init__

    def other(self, *given, **options):
        init(self, *given, **options)
        self._records = None

    patch.setattr(Clients, "__init__", other)


@mutant("local", "dm_hsgd momentum_local_sgda fedminmax")
def no_noise_before_round_0(patch):
    silence(patch, lambda mechanism, number: mechanism._clients.round < 0)


@mutant("local", "scaffold dm_hsgd fcfl")
def second_part_not_noised(patch):
    add_noise = Stages.add_noise

    def other(self, message, row):
        first = message.parts[0].shape[-1]
        return torch.cat([add_noise(self, message, row)[..., :first], row[..., first:]], -1)

    patch.setattr(Stages, "add_noise", other)


@mutant("central", "fedavg ditto fairfed")
def cohorts_at_twice_the_booked_rate(patch):
    draw = sampling.draw_poisson_cohort
    patch.setattr(sampling, "draw_poisson_cohort", lambda keys, total, rate: draw(keys, total, 2 * rate))


@mutant("record", "fedavg fedrep fednest")
def shuffled_batches_booked_as_poisson(patch):
    patch.setattr(Records, "draw", property(lambda self: sampling.draw_batches))


def mixing_clean_rows(patch, *, sent_too):
    """Let neighbors receive rows before their protection, and the sender too."""

    def mixing_clean(verb):
        def other(self, *rows, onto=(), **given):
            exchange = verb(self, *rows, onto=onto, **given)
            if not rows:
                return exchange
            clean = [part.row if part.of is None else part.row - part.of for part in rows]
            sums = [part + row for part, row in zip(clean, onto, strict=True)] if onto else clean
            heard = gossip.spread(
                sums, self._mixing, given.get("hops", 1), lambda now: gossip.mixed(now, now, self._mixing)
            )
            return exchange._replace(sent=tuple(clean) if sent_too else exchange.sent, mixed=tuple(heard))

        return other

    for name in ("mix", "mix_changes"):
        patch.setattr(Channel, name, mixing_clean(getattr(Channel, name)))


@mutant("local", "dm_hsgd dream choco_sgd")
def mix_returns_clean_rows(patch):
    mixing_clean_rows(patch, sent_too=True)


@mutant("local", "dm_hsgd dream choco_sgd")
def neighbors_mix_clean_rows(patch):
    mixing_clean_rows(patch, sent_too=False)


@mutant("local", "fedavg codasca dm_hsgd")
def clip_norm_a_hundredth_too_long(patch):
    clip = Mechanism.clip

    def other(self, slot, parts, samples=None):
        longer = self.privacy.spec.model_copy(update={"clip": 1.01 * self.privacy.clip})
        kept, self.privacy = self.privacy, replace(self.privacy, spec=longer)
        try:
            return clip(self, slot, parts, samples)
        finally:
            self.privacy = kept

    patch.setattr(Mechanism, "clip", other)


@mutant("local", "fedavg dm_hsgd fcfl")
def equal_noise_in_every_round(patch):
    streams = Mechanism._streams

    def other(self, purpose, slot, rows, sender):
        round, self._clients.round = self._clients.round, 0
        try:
            return streams(self, purpose, slot, rows, sender)
        finally:
            self._clients.round = round

    patch.setattr(Mechanism, "_streams", other)


@mutant("local", "fairfed fednest splitnn")
def equal_noise_in_every_message(patch):
    streams = Mechanism._streams
    patch.setattr(
        Mechanism, "_streams", lambda self, purpose, slot, *others: streams(self, purpose, 0, *others)
    )


@mutant("record", "apfl fednest dm_hsgd")
def equal_noise_on_both_gradients_of_a_batch(patch):
    noised = Records.noised
    patch.setattr(
        Records, "noised", lambda self, sums, batch, call, **given: noised(self, sums, batch, 0, **given)
    )


@mutant("local", "fedavg dm_hsgd splitnn")
def equal_noise_of_all_clients(patch):
    streams = Mechanism._streams

    def other(self, purpose, slot, rows, sender):
        made = streams(self, purpose, slot, rows, "client")
        return [rng.noise_stream("run", purpose, self._clients.round, slot) for _ in made]

    patch.setattr(Mechanism, "_streams", other)


@mutant("central", "fednest fairfed")
def every_second_message_is_not_booked(patch):
    book, calls = Mechanism.book, []

    def other(self, samples=None):
        calls.append(samples)
        if len(calls) % 2:
            book(self, samples)

    patch.setattr(Mechanism, "book", other)


@mutant("local", "fedavg dm_hsgd fcfl")
def no_message_is_booked(patch):
    patch.setattr(Mechanism, "book", lambda self, samples=None: None)


@mutant("record", "fedavg fednest apfl")
def records_booked_at_half_their_rate(patch):
    rate = Records._rate

    def other(self, *given):
        name, divisor = rate(self, *given)
        if isinstance(name, str):
            self._ledger.rates[name] = self._ledger.rates[name] / 2
        return name, divisor

    patch.setattr(Records, "_rate", other)


CASES = [(name, algorithm) for name, (_, _, algorithms) in MUTANTS.items() for algorithm in algorithms]


@pytest.mark.slow
@pytest.mark.parametrize(("name", "algorithm"), CASES)
def test_a_mutant_is_caught(monkeypatch, name, algorithm):
    mutate, mechanism, _ = MUTANTS[name]
    mutate(monkeypatch)
    rounds = (
        2 * AUDITED if mechanism == "central" else AUDITED
    )  # one draw a round: some miss doubled rates in ten
    audit = dict(audits(ALGORITHMS[algorithm], only=[mechanism], rounds=rounds))[mechanism]
    assert audit["findings"], audit
