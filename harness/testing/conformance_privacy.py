"""Conformance checks of an algorithm under privacy and compression."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from itertools import pairwise, product
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from harness import models
from harness.core.algorithm import Algorithm
from harness.core.channel import Channel
from harness.core.clients import Clients
from harness.core.execution.batches import Batches, LocalWork
from harness.core.execution.vectorize import Rows
from harness.core.problem import Problem
from harness.core.registry import Incompatible
from harness.core.wire.message import Message
from harness.core.wire.model_pruning import PrunedModels, prune_models, prune_own_models
from harness.core.wire.settings import Compression, Privacy, PrivacyLog
from harness.core.wire.stages import Stages
from harness.problems.classify import classifier
from harness.problems.vertical import split_classifier
from harness.testing.conformance import ROUNDS, Check, Failed, Task, _same, _small, _task, run, task
from privacy import Ledger, gaussian_epsilon

TINY = 1e-9  # clip norm below which nothing of a client's shows
SHOWS = 1e-5  # what would
HEAVY = 10.0  # noise multiplier
DELTA = 1e-5

LOCAL = Privacy("client", "local", 1.0, 0.0, "replace", "full", 1.0, DELTA, "rdp")
CENTRAL = replace(LOCAL, placement="central", adjacency="add-remove", sampling="poisson")
RECORD = replace(LOCAL, unit="record", adjacency="add-remove", sampling="poisson")
MECHANISMS = {"local": LOCAL, "central": CENTRAL, "record": RECORD}
RAW = Compression(codec="float64")
SPARSE = Compression(beta=0.5, codec="float64", error_feedback=True)

CHANNEL_CHECKS: list[Check] = []


class DirectStages(Stages):
    """Stages without a code."""

    def encode(self, message: Message) -> None:
        """Let the message arrive as it is, in zero bytes."""
        message.sizes = torch.zeros(message.joint.shape[:-1], dtype=torch.int64)


class PlainStages(Stages):
    """Stages with plain averages, as under central privacy."""

    def weights(self, message: Message) -> Tensor:
        """Return equal weights."""
        return super().weights(replace(message, weighting="uniform"))


class WatchedStages(Stages):
    """Stages that check whether every message of a client is booked."""

    def book(self, message: Message) -> None:
        """Book, and look at the ledger before and after."""
        before = self.clients.privacy_log.ledger.releases
        super().book(message)
        # With unit client this message is a release; with unit record its gradients were.
        own = self.mechanism is not None and not self.mechanism.by_sample
        if self.clients.privacy_log.ledger.releases == (before if own else 0):
            raise Failed("a message left a client and no release was booked")


class Direct(Channel):
    """A channel that encodes nothing."""

    stages = DirectStages


class Plain(Channel):
    """A channel that averages plainly."""

    stages = PlainStages


class Watched(Channel):
    """A channel that checks every message that a client sends."""

    stages = WatchedStages


class Noted(Clients):
    """Clients that note at which rates their batches are drawn."""

    rates: ClassVar[set[float]] = set()

    def batches(self, work: LocalWork | None, *, batch_size: int | None = None, **options: Any) -> Batches:
        """Note the rate, and draw."""
        size = batch_size or (work.batch_size if work is not None else None)
        fewest = int(self.federation.counts().min())
        self.rates.add(1.0 if size is None else min(1.0, size / fewest))
        return super().batches(work, batch_size=batch_size, **options)


class Summed(Rows):
    """Rows that count how often gradients were clipped and summed."""

    sums = 0

    def clipped_sums(self, *arguments: Any, **options: Any) -> tuple[Tensor, ...]:
        """Count, and do it."""
        self.sums += 1
        return super().clipped_sums(*arguments, **options)


def _check(fn: Check) -> Check:
    CHANNEL_CHECKS.append(fn)
    return fn


@_check
def _lossless(cls: type[Algorithm]) -> None:
    """Change nothing under a codec that loses nothing."""
    algorithm, small = _small(cls), _task(cls)
    _same("the state", run(algorithm, small, channel=Direct), run(algorithm, small), exactly=True)


@_check
def _unprotected(cls: type[Algorithm]) -> None:
    """Do under an infinite clip norm and no noise what is done without privacy."""
    algorithm, small = cls(local_steps=cls.meta.steps or 2, batch_size=None), _task(cls)
    for name, mechanism, state in _protected(cls, algorithm, small, clip=float("inf")):
        usual = run(algorithm, small, channel=Plain if mechanism.placement == "central" else Channel)
        _same(f"the state under {name} privacy", state, usual, exactly=name == "local")


@_check
def _bounded(cls: type[Algorithm]) -> None:
    """Let a client's data change as little for others as the clip norm is small."""
    algorithm, secret = _small(cls), 1
    for name, mechanism, state in _protected(cls, algorithm, _task(cls), clip=TINY):
        other = _run(algorithm, _task(cls, changed=secret), mechanism)
        for field, one, two in zip(state._fields, state, other, strict=True):
            if one.ndim > 1:
                others = torch.arange(len(one)) != secret
                one, two = one[others], two[others]
            gap = float((one - two).abs().max()) if one.numel() else 0.0
            if not gap <= SHOWS:
                raise Failed(
                    f"{field} moves by {gap:.3g} with client {secret}'s data, around the {name} clip"
                )


@_check
def _refuses(cls: type[Algorithm]) -> None:
    """Book every message under privacy, or be refused."""
    for _ in _protected(cls, _small(cls), _task(cls), channel=Watched, noise=1.0):
        pass


@_check
def _heavy_noise(cls: type[Algorithm]) -> None:
    """Keep the state finite under heavy noise."""
    for name, _, state in _protected(cls, _small(cls), _task(cls), noise=HEAVY):
        if not all(bool(part.isfinite().all()) for part in state):
            raise Failed(f"under {name} privacy with noise multiplier {HEAVY} the state is not finite")


@_check
def _accounted(cls: type[Algorithm]) -> None:
    """Account for every round, by as many releases each."""
    if cls.meta.pooled:
        return  # it is the reference without protection, and says so
    algorithm, small = _small(cls), _task(cls)
    for name, mechanism in _mechanisms(cls).items():
        noisy = replace(mechanism, noise_multiplier=2.0)
        ledgers = [_ledger(algorithm, small, noisy, rounds) for rounds in range(ROUNDS + 1)]
        releases = [ledger.releases for ledger in ledgers if ledger is not None]
        epsilons = [ledger.report(DELTA)["epsilon_total"] for ledger in ledgers if ledger is not None]
        if len(releases) <= ROUNDS or releases[-1] == 0:
            continue  # refused; or nothing of a client's is released
        if len({later - earlier for earlier, later in pairwise(releases)}) != 1:
            raise Failed(f"under {name} privacy {releases} releases are booked after 0, 1, ... rounds")
        exact = gaussian_epsilon(2.0 / releases[-1] ** 0.5, DELTA)
        if sorted(set(epsilons)) != epsilons or abs(epsilons[-1] - exact) > 1e-6 * exact:
            raise Failed(f"under {name} privacy epsilon after 0, 1, ... rounds is {epsilons}")


@_check
def _sampled(cls: type[Algorithm]) -> None:
    """Book every gradient of sampled records once, at the rate of its batch."""
    privacy_log, rows = PrivacyLog(), Summed("vmap")
    Noted.rates.clear()
    try:
        steps = cls.meta.steps or 2
        _run(
            cls(local_steps=steps, batch_size=2),
            _task(cls),
            RECORD,
            side=Noted,
            privacy_log=privacy_log,
            mode=rows,
        )
    except Incompatible:
        return
    if privacy_log.ledger.releases != rows.sums:
        raise Failed(f"{rows.sums} noisy gradients were made, and {privacy_log.ledger.releases} booked")
    rates = {draw.rate for draw in privacy_log.ledger.merge(Ledger()).closed}
    if rates - Noted.rates:
        raise Failed(f"batches drawn at rates {sorted(Noted.rates)} are booked at {sorted(rates)}")


@_check
def _pruned(cls: type[Algorithm]) -> None:
    """Keep at zero what is pruned from the model, whatever is sparsified and noised."""
    if cls.meta.solves[0] == "vertical":
        return _pruned_parties(cls)
    problem = _hidden(cls)
    if problem is None or cls.meta.pooled:
        return  # no problem of this kind has a model that can be pruned; or nothing travels
    algorithm, federation = _small(cls), task("erm")[1]
    viewed = algorithm.view(problem)
    drawn = viewed.init(torch.Generator().manual_seed(0))["x"].double()
    start = run(algorithm, (problem, federation), rounds=0)
    own: float | Tensor = torch.linspace(0, 0.75, federation.clients)  # every client a model of its own size
    ratios = (0.5,) if cls.meta.gossip else (0.5, own)
    for ratio, compression in product(ratios, (RAW, SPARSE, replace(SPARSE, error_feedback=False))):
        pruned = prune_models(viewed, drawn, ratio, None)
        masked = type(start)(*(pruned.masked(part) for part in start))
        small = problem, federation
        options = {"state": masked, "pruned": pruned, "compression": compression}
        found = {name: state for name, _, state in _protected(cls, algorithm, small, noise=1.0, **options)}
        with suppress(Incompatible):
            found["no"] = _run(algorithm, small, None, **options)
        for name, state in found.items():
            for field, part in zip(state._fields, state, strict=True):
                if not torch.equal(pruned.masked(part), part):
                    raise Failed(f"{field} lives on pruned coordinates, under {name} privacy")


def _pruned_parties(cls: type[Algorithm]) -> None:
    """Look whether parties' own models are pruned, and stay so, when rounds ask for it."""
    federation = _task(cls)[1]
    party = nn.Sequential(nn.Linear(federation.pool.x.shape[-1], 8), nn.ReLU(), nn.Linear(8, 4))
    small = split_classifier(party, nn.Linear(federation.clients * 4, 2)), federation
    ratios: tuple[float | Tensor, ...] = (0.5, torch.tensor([0.25, 0.5, 0.75], dtype=torch.float64))
    for asked, compression in product(ratios, (RAW, replace(SPARSE, error_feedback=False))):
        options: Any = {"alpha": asked, "compression": compression}
        found = {name: state for name, _, state in _protected(cls, _small(cls), small, noise=1.0, **options)}
        with suppress(Incompatible):
            found["no"] = _run(_small(cls), small, None, **options)
        for name, state in found.items():
            # What is pruned has no weights, so pruning anew finds the same units; if nothing was, it finds others.
            left = prune_own_models(small[0], state.y, asked, None)
            if left is None or not torch.equal(left.masked(state.y), state.y):
                raise Failed(
                    f"y is not pruned as far as the rounds ask, under {name} privacy; see Clients.prune"
                )


def _run(
    algorithm: Algorithm,
    small: Task,
    mechanism: Privacy | None,
    *,
    side: type[Clients] = Clients,
    channel: type[Channel] = Channel,
    compression: Compression = RAW,
    privacy_log: PrivacyLog | None = None,
    pruned: PrunedModels | None = None,
    alpha: float | Tensor = 0.0,
    **options: Any,
) -> Any:
    """Run under a mechanism; the channel remembers from round to round what it has to."""
    privacy_log, ways = privacy_log or PrivacyLog(), list[Channel]()

    def members(*arguments: Any, **others: Any) -> Clients:
        given = {"privacy_log": privacy_log, "privacy": mechanism, "pruned": pruned}
        return side(*arguments, **{**others, **given, "alpha": alpha if others["round"] >= 0 else 0.0})

    def out(clients: Clients, *, mixing: Tensor | None, **_: Any) -> Channel:
        memory = ways[-1].state if ways else {}
        ways.append(channel(clients, mixing=mixing, privacy=mechanism, compression=compression, state=memory))
        return ways[-1]

    given: Any = {"clients": members, "channel": out}
    return run(algorithm, small, **given, **options)


def _protected(
    cls: type[Algorithm],
    algorithm: Algorithm,
    small: Task,
    *,
    clip: float = 1.0,
    noise: float = 0.0,
    **options: Any,
) -> Iterator[tuple[str, Privacy, Any]]:
    """Run under every mechanism that is not refused; give its name, itself and the state."""
    if cls.meta.pooled:
        return  # no mechanism protects data that are in one place; run files that say so are refused
    for name, mechanism in _mechanisms(cls).items():
        settled = replace(mechanism, clip=clip, noise_multiplier=noise)
        try:
            state = _run(algorithm, small, settled, **options)
        except Incompatible:
            continue
        yield name, settled, state


def _mechanisms(cls: type[Algorithm]) -> dict[str, Privacy]:
    """Return the mechanisms; parties know who is in a batch, so their records are not sampled in secret."""
    known = replace(RECORD, adjacency="replace", sampling="full")
    return MECHANISMS | ({"record": known} if cls.meta.solves[0] == "vertical" else {})


def _ledger(algorithm: Algorithm, small: Task, mechanism: Privacy, rounds: int) -> Ledger | None:
    """Return what so many rounds book; None if the run is refused."""
    privacy_log = PrivacyLog()
    try:
        _run(algorithm, small, mechanism, rounds=rounds, privacy_log=privacy_log)
    except Incompatible:
        return None
    return privacy_log.ledger


def _hidden(cls: type[Algorithm]) -> Problem | None:
    """Return a problem of the algorithm's kind whose model has hidden units; None if there is none."""
    module = models.build("mlp", (6,), 2, {"hidden": [8, 4]})
    made = {"erm": classifier, "minimax": _weighed}.get(cls.meta.solves[0])
    return None if made is None else made(module)


def _weighed(module: nn.Module) -> Problem:
    """Return the problem of fitting a module while an adversary weighs the loss."""
    plain = classifier(module)
    return replace(
        plain,
        kind="minimax",
        init=lambda generator: {**plain.init(generator), "y": torch.zeros(2)},
        loss=lambda x, y, batch: (1 + y.sum()) * plain.loss(x, batch) - y.square().sum() / 2,
        rebuild=_weighed,
    )
