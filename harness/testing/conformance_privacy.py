"""Conformance checks of an algorithm under privacy and compression."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import cache, partial
from itertools import pairwise, product
from typing import Any

import torch
from torch import Tensor, nn

from harness import models
from harness.core.algorithm import Algorithm, Release
from harness.core.clients.batches import Batches, BatchPlan
from harness.core.clients.clients import Clients
from harness.core.clients.pruning import masked_state, prune_own_models
from harness.core.errors import Incompatible
from harness.core.execution.vectorize import ClientExecutor, Mode
from harness.core.problem import Kind, Problem
from harness.core.settings.compression import Compression, Ratio
from harness.core.settings.privacy import Privacy
from harness.core.wire.channel import Channel
from harness.core.wire.message import Average, Code, Message
from harness.core.wire.stages import Stages
from harness.problems.classify import classifier
from harness.problems.vertical import split_classifier
from harness.simulation.simulation import Simulation
from harness.simulation.snapshot import Diverged
from harness.testing.small_tasks import (
    RAW,
    ROUNDS,
    Check,
    Failed,
    NotedStages,
    Task,
    run,
    same_state,
    simulate,
    small,
    suited,
    task,
    task_of,
    wide_task,
)
from harness.testing.transcript_audit import audit_transcript
from privacy.gaussian import gaussian_epsilon
from privacy.ledger import Draw, Ledger, PrivacyReport

TINY = 1e-9  # clip norm that hides the data of a client
SHOWS = 1e-5  # change of a state that reveals data
HEAVY = 10.0  # noise multiplier
DELTA = 1e-5
CLOSE = 0.1  # clip norm that most contributions exceed
AUDITED = 10  # rounds of an audit
ALARM = 1e-4  # probability of a false alarm of an audit; all algorithms have a hundred of them
COHORT = 2  # expected clients in its rounds under central privacy

LOCAL: dict[str, Any] = {"placement": "local", "delta": DELTA}
CENTRAL = {**LOCAL, "placement": "central", "sampling": "poisson"}
RECORD = {**LOCAL, "unit": "record", "sampling": "poisson"}
MECHANISMS = {"local": LOCAL, "central": CENTRAL, "record": RECORD}
SPARSE = Compression(beta=0.5, codec="float64", error_feedback=True)
FORGETFUL = Compression(beta=0.5, codec="float64")
SHIFTED = Compression(beta=0.5, codec="float64", shift=1.0)
FACTORED = Compression(rank=1, codec="float64")

CHANNEL_CHECKS: list[Check] = []


class DirectStages(Stages):
    """Stages without encoding."""

    def encode(self, message: Message, row: Tensor) -> Code:
        """Deliver the message unchanged, in zero bytes."""
        return Code(row, torch.zeros(row.shape[:-1], dtype=torch.int64))


class PlainStages(Stages):
    """Stages with plain averages, as under central privacy."""

    def weights(self, message: Message) -> Tensor:
        """Return equal weights."""
        return super().weights(replace(message, weighting="uniform"))


class WatchedStages(Stages):
    """Stages that check that every client message is booked."""

    def book(self, message: Message) -> None:
        """Book the message, and compare the ledger before and after."""
        before = self.clients.ledger.made
        super().book(message)
        # With unit client the message is a release; with unit record its gradients are.
        releases = self.mechanism is not None and not self.mechanism.by_sample
        if self.clients.ledger.made == (before if releases else 0):
            raise Failed("a message left a client and no release was booked")


class Noticed(NotedStages):
    """Stages that note the first client's messages as they are clipped, and let the server see zeros."""

    def clip(self, message: Message, row: Tensor) -> Tensor:
        """Note the first row, without known terms, and clip."""
        if message.sender == "client" and self.clients.round >= 0:
            self.log.append(row[0].clone())
        return super().clip(message, row)

    def average(self, message: Message, row: Tensor) -> Average:
        """Return zeros, so that later messages depend on no earlier one of another client."""
        average = super().average(message, row)
        return average._replace(row=torch.zeros_like(average.row))


class Noted(Clients):
    """Clients that record the sampling rates of their batches in a set."""

    def __init__(self, *arguments: Any, rates: set[float], **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.rates = rates

    def _drawn(self, plan: BatchPlan) -> Batches:
        """Record the rate and draw batches."""
        size, counts = plan.batch_size, self.federation.counts(plan.split).flatten().tolist()
        self.rates.update(1.0 if size is None else min(1.0, size / count) for count in counts)
        return super()._drawn(plan)


class Summed(ClientExecutor):
    """An executor that counts clipped sums of gradients."""

    def __init__(self, mode: Mode) -> None:
        super().__init__(mode)
        self.sums: list[tuple[Tensor, ...]] = []  # which the copies of a simulation's steps share

    def clipped_sums(self, *arguments: Any, **options: Any) -> tuple[Tensor, ...]:
        """Perform the call and keep what it returns."""
        self.sums.append(super().clipped_sums(*arguments, **options))
        return self.sums[-1]


def _check(fn: Check) -> Check:
    CHANNEL_CHECKS.append(fn)
    return fn


@_check
def _lossless(cls: type[Algorithm]) -> None:
    """Change nothing under a codec that loses nothing."""
    algorithm, task = small(cls), task_of(cls)
    same_state(
        "the state",
        run(algorithm, task, channel=partial(Channel, stages=DirectStages)),
        run(algorithm, task),
        exactly=True,
    )


@_check
def _unprotected(cls: type[Algorithm]) -> None:
    """Give the result without privacy if the clip norm is infinite and there is no noise."""
    algorithm, task = cls(local_steps=cls.meta.steps or 2, batch_size=None), task_of(cls)
    for name, simulation in _protected(cls, algorithm, task, clip=float("inf")):
        stages = PlainStages if name == "central" else Stages
        usual = run(algorithm, task, channel=partial(Channel, stages=stages))
        whole = not issubclass(cls, Release)  # messages in one piece, so that nothing rounds
        exactly = name == "local" and whole
        same_state(f"the state under {name} privacy", simulation.state, usual, exactly=exactly)


@_check
def _bounded(cls: type[Algorithm]) -> None:
    """Bound the effect of a client's data on others by the clip norm."""
    algorithm, secret = small(cls), 1
    for name, simulation in _protected(cls, algorithm, task_of(cls), clip=TINY):
        other = run(algorithm, task_of(cls, changed=secret), privacy=simulation.privacy)
        for field, one, two in zip(other._fields, simulation.state, other, strict=True):
            if one.ndim > 1:
                others = torch.arange(len(one)) != secret
                one, two = one[others], two[others]
            gap = float((one - two).abs().max()) if one.numel() else 0.0
            if not gap <= SHOWS:
                raise Failed(
                    f"{field} moves by {gap:.3g} with client {secret}'s data, around the {name} clip"
                )


@_check
def _separate(cls: type[Algorithm]) -> None:
    """Send the same message whoever else is in the cohort.

    A clipped message bounds what its client can change, not what a client can change through others' messages.
    """
    if cls.meta.gossip or cls.meta.pooled or cls.meta.solves[0] == "vertical":
        return  # everybody takes part in every round
    problem = _hidden(cls)  # of clients with different numbers of steps, if there is one
    problem_and_data = task_of(cls) if problem is None or cls.meta.groups else (problem, task("erm")[1])
    steps = (
        {"local_steps": None, "local_epochs": 1} if cls.meta.epochs else {"local_steps": cls.meta.steps or 2}
    )
    algorithm, sizes = cls(**steps, batch_size=4), problem_and_data[1].counts()
    member, small, large = 0, int(sizes.argmin()), int(sizes.argmax())
    sent = []
    for other in (small, large):
        seen: list[Tensor] = []
        with suppress(Incompatible):
            run = Simulation(
                *problem_and_data,
                algorithm,
                Privacy.of(0.0, clip=1e9, **CENTRAL),
                channel=partial(Channel, stages=partial(Noticed, log=seen)),
            )
            for _ in range(ROUNDS):  # from the second on, clients remember something
                run.step(torch.tensor(sorted((member, other))))
        sent.append(seen)
    for number, (one, two) in enumerate(zip(*sent, strict=True)):
        gap = float((one - two).abs().max())
        if not gap <= TINY * max(1.0, float(one.abs().max())):
            raise Failed(
                f"message {number} of a client changes by {gap:.3g} with another member of the cohort"
            )


@_check
def _refuses(cls: type[Algorithm]) -> None:
    """Book every message under privacy, or be refused."""
    watched = partial(Channel, stages=WatchedStages)
    for _ in _protected(cls, small(cls), task_of(cls), channel=watched, noise=1.0):
        pass


@_check
def _heavy_noise(cls: type[Algorithm]) -> None:
    """Keep the state finite under heavy noise."""
    try:
        for _ in _protected(cls, small(cls), task_of(cls), noise=HEAVY):
            pass
    except Diverged:
        raise Failed(f"with noise multiplier {HEAVY} the state is not finite") from None


@_check
def _accounted(cls: type[Algorithm]) -> None:
    """Account for every round, by as many releases each."""
    if cls.meta.pooled:
        return  # it is the reference without protection, and says so
    algorithm, task = small(cls), task_of(cls)
    for name, mechanism in _mechanisms(cls).items():
        reports = _reports(algorithm, task, Privacy.of(2.0, clip=1.0, **mechanism))
        releases = [report["releases"] for report in reports]
        epsilons = [report["epsilon_total"] for report in reports]
        if not releases or releases[-1] == 0:
            continue  # refused; or nothing of a client's is released
        if len({later - earlier for earlier, later in pairwise(releases)}) != 1:
            raise Failed(f"under {name} privacy {releases} releases are booked after 0, 1, ... rounds")
        exact = gaussian_epsilon(2.0 / releases[-1] ** 0.5, DELTA)
        if sorted(set(epsilons)) != epsilons or abs(epsilons[-1] - exact) > 1e-6 * exact:
            raise Failed(f"under {name} privacy epsilon after 0, 1, ... rounds is {epsilons}")


@_check
def _sampled(cls: type[Algorithm]) -> None:
    """Book every gradient of sampled records once, at the rate of its batch."""
    executor, algorithm = Summed("vmap"), cls(local_steps=cls.meta.steps or 2, batch_size=2)
    privacy = Privacy.of(0.0, clip=1.0, **RECORD)
    drawn: set[float] = set()
    clients = partial(Noted, rates=drawn)
    try:
        ledger = simulate(algorithm, task_of(cls), privacy=privacy, clients=clients, executor=executor).ledger
    except Incompatible:
        return
    if ledger.made != len(executor.sums):
        raise Failed(f"{len(executor.sums)} noisy gradients were made, and {ledger.made} booked")
    rates = {rate for draw in ledger.counts for rate in _rates(ledger, draw)}
    if rates - drawn:
        raise Failed(f"batches drawn at rates {sorted(drawn)} are booked at {sorted(rates)}")


@_check
def _audited(cls: type[Algorithm]) -> None:
    """Release nothing but what its statement of privacy claims: the audit of a transcript."""
    for name, audit in audits(cls):
        if audit["findings"]:
            raise Failed(f"under {name} privacy: {'; '.join(audit['findings'])}")


def audits(
    cls: type[Algorithm], *, only: Sequence[str] = tuple(MECHANISMS), rounds: int = AUDITED, seed: int = 0
) -> Iterator[tuple[str, dict[str, Any]]]:
    """Audit an algorithm under every mechanism that is not refused; yield its name and the result."""
    if cls.meta.pooled:
        return  # no mechanism applies to pooled data
    task, mechanisms = wide_task(cls), _mechanisms(cls)
    for name in only:
        mechanism = mechanisms[name]
        sampled = name == "central" and not cls.meta.gossip and cls.meta.solves[0] != "vertical"
        rate = COHORT / task[1].clients if sampled else 1.0
        privacy = Privacy.of(1.0, clip=CLOSE, rate=rate, **mechanism)
        make = partial(
            simulate, small(cls), task, rounds=0, seeds=(seed,), cohort=COHORT if sampled else None
        )
        with suppress(Incompatible):
            yield name, audit_transcript(make, privacy, rounds, ALARM)


@_check
def _pruned(cls: type[Algorithm]) -> None:
    """Keep at zero what is pruned from the model, whatever is sparsified and noised."""
    if cls.meta.solves[0] == "vertical":
        return _pruned_parties(cls)
    problem = _hidden(cls)
    if problem is None or cls.meta.pooled:
        return  # no problem of this kind has a model that can be pruned; or nothing travels
    algorithm, federation = small(cls), task("erm")[1]
    each = tuple(torch.linspace(0, 0.75, federation.clients).tolist())  # every client a model of its own size
    ratios: tuple[Ratio, ...] = (0.5,) if cls.meta.gossip else (0.5, each)
    for name, simulation in _compressed(
        cls, algorithm, (problem, federation), ratios, (RAW, SPARSE, SHIFTED, FORGETFUL, FACTORED)
    ):
        assert simulation.pruned is not None
        masked = masked_state(simulation.pruned, simulation.state)
        for field, part, inside in zip(masked._fields, simulation.state, masked, strict=True):
            if not torch.equal(inside, part):
                raise Failed(f"{field} lives on pruned coordinates, under {name} privacy")


def _pruned_parties(cls: type[Algorithm]) -> None:
    """Check that parties' models are pruned, and remain so, when a round requires it."""
    federation = task_of(cls)[1]
    party = nn.Sequential(nn.Linear(federation.pool.x.shape[-1], 8), nn.ReLU(), nn.Linear(8, 4))
    task = split_classifier(party, nn.Linear(federation.clients * 4, 2)), federation
    ratios = (0.5, (0.25, 0.5, 0.75))
    for name, simulation in _compressed(cls, small(cls), task, ratios, (RAW, FORGETFUL)):
        # Pruning a pruned model again selects the same units, which have no weights.
        alpha = torch.as_tensor(simulation.compression.alpha, dtype=torch.float64)
        left, y = prune_own_models(task[0], simulation.state.y, alpha, None), simulation.state.y
        if left is None or not torch.equal(left.masked(y), y):
            raise Failed(f"y is not pruned as far as the rounds ask, under {name} privacy; see Clients.prune")


def _compressed(
    cls: type[Algorithm],
    algorithm: Algorithm,
    task: Task,
    alphas: Sequence[Ratio],
    settings: Sequence[Compression],
) -> Iterator[tuple[str, Simulation]]:
    """Run with pruned models under every mechanism and without privacy, except where refused."""
    for alpha, setting in product(alphas, settings):
        compression = setting.model_copy(update={"alpha": alpha})
        yield from _protected(cls, algorithm, task, noise=1.0, compression=compression)
        with suppress(Incompatible):
            yield "no", simulate(algorithm, task, compression=compression)


def _protected(
    cls: type[Algorithm],
    algorithm: Algorithm,
    task: Task,
    *,
    clip: float = 1.0,
    noise: float = 0.0,
    **options: Any,
) -> Iterator[tuple[str, Simulation]]:
    """Run under every mechanism that is not refused; yield its name and the run."""
    if cls.meta.pooled:
        return  # no mechanism applies to pooled data; run specs refuse it
    for name, mechanism in _mechanisms(cls).items():
        privacy = Privacy.of(noise, clip=clip, **mechanism)
        try:
            simulation = simulate(algorithm, task, privacy=privacy, **options)
        except Incompatible:
            continue
        yield name, simulation


def _mechanisms(cls: type[Algorithm]) -> dict[str, dict[str, Any]]:
    """Return the mechanisms; vertical problems have public batches and hence full sampling."""
    public = {**RECORD, "sampling": "full"}
    return MECHANISMS | ({"record": public} if cls.meta.solves[0] == "vertical" else {})


def _reports(algorithm: Algorithm, task: Task, privacy: Privacy) -> list[PrivacyReport]:
    """Return the privacy reports after 0, 1, ... rounds of a run; none if it is refused."""
    reports = []
    try:
        simulation = simulate(algorithm, task, privacy=privacy, rounds=0)
        for _ in range(ROUNDS):
            reports.append(simulation.ledger.report(DELTA, noise_multiplier=privacy.noise_multipliers))
            simulation.step()
    except Incompatible:
        return []
    return [*reports, simulation.ledger.report(DELTA, noise_multiplier=privacy.noise_multipliers)]


def _rates(ledger: Ledger, draw: Draw) -> set[float]:
    """Return the rates at which a kind of draw is booked."""
    return set(ledger.rates[draw.rate].flatten().tolist()) if isinstance(draw.rate, str) else {draw.rate}


def _hidden(cls: type[Algorithm]) -> Problem | None:
    """Return a problem of the algorithm's kind whose model has hidden units; None if there is none."""
    problem = _with_hidden_units(cls.meta.solves[0])
    return problem and suited(cls, problem)


@cache
def _with_hidden_units(kind: Kind) -> Problem | None:
    make = {"erm": classifier, "minimax": _weighed}.get(kind)
    return None if make is None else make(models.build("mlp", (6,), 2, {"hidden": [8, 4]}))


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
