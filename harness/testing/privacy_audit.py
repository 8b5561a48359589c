"""Audits of the privacy claim of a run.

`audit_mechanism` sends canaries through the mechanism many times. It measures how well "canary" and "no canary" can
be distinguished, the scale of the noise and the independence of draws, which detects a broken mechanism almost
surely. `audit_run` trains once with many canaries, each included at random, and guesses from the final model which
were included (Steinke, Nasr, Jagielski, NeurIPS 2023). This gives a lower bound on epsilon for the whole run, which
is far below the upper bound even for a correct mechanism.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from datasets.federation import Batch, Federation
from harness.core import rng
from harness.core.algorithm import Algorithm, Meta
from harness.core.channel import Channel
from harness.core.clients import Clients
from harness.core.execution.vectorize import Rows
from harness.core.problem import Problem, cross_entropy, weighted_mean
from harness.core.registry import Incompatible, UserError
from harness.core.wire.dp_client import ADAPTIVE_START
from harness.core.wire.settings import Compression, Privacy
from harness.simulation.build import Setup
from harness.simulation.calibration import calibrated
from harness.simulation.simulation import Simulation
from privacy import Ledger, flags, joint_norm, one_run_epsilon, project, separation_mu

PLAIN = Compression(codec="float64")  # post-processing does not change privacy
WITNESSES = 4  # clients, or samples of each client, in the mechanism audit
PART = 16  # entries of each part of its messages
SHARES = (0.1, 0.25, 0.5, 1.0)  # of the canaries that are guessed, one test each


def audit_mechanism(
    privacy: Privacy,
    trials: int = 200,
    seed: int = 0,
    alarm: float = 0.01,
    clients: type[Clients] = Clients,
    channel: type[Channel] = Channel,
) -> dict[str, Any]:
    """Compare the mechanism's output with the noise that the ledger books.

    Parameters
    ----------
    privacy : Privacy
        Calibrated mechanism of a run. The audit covers one release, without amplification by sampling.
    trials : int
        Number of releases with a canary, and of releases without.
    seed : int
        Seed of canary and noise.
    alarm : float
        Probability of a false alarm.
    clients, channel : type
        The audited classes; tests pass broken ones.

    Returns
    -------
    dict
        ``mu_claimed`` (sensitivity over standard deviation, from the ledger), ``mu_measured`` with its 95 %
        interval ``mu_low`` and ``mu_high``, ``std_claimed`` and ``std_measured`` of the noise along the canary,
        ``findings`` (empty if there are none), ``trials``.
    """
    limits = privacy.clip if isinstance(privacy.clip, tuple) else (_limit(privacy),)
    generator = rng.stream(seed, "audit canary")
    parts = [torch.randn(PART, generator=generator, dtype=torch.float64) for _ in limits]
    parts = [part / part.norm() * limit for part, limit in zip(parts, limits, strict=True)]
    # Far beyond the clip norm and, if clipping is broken, the noise.
    strength = 10 * max(1.0, privacy.noise_multiplier)
    canary = [part * strength for part in parts]
    absent = [-part if privacy.adjacency == "replace" else part * 0 for part in canary]
    mechanism = replace(privacy, spec=privacy.spec.model_copy(update={"server_clip": None}), rate=1.0)
    release = _record_releases if privacy.unit == "record" else _message_releases
    with_it, ledgers = zip(*release(mechanism, canary, seed, trials, clients, channel), strict=True)
    without, _ = zip(*release(mechanism, absent, seed + 1, trials, clients, channel), strict=True)
    multiplier = ledgers[0].merge(Ledger()).closed[0].noise_multiplier
    if multiplier == 0:
        return {"part": "mechanism", "trials": trials, "note": "no noise, nothing claimed", "findings": []}
    mu, sensitivity = 1 / multiplier, joint_norm(limits) * privacy.factor
    direction = torch.cat(parts)
    seen, unseen = torch.stack(with_it), torch.stack(without)  # (trials, k, n): the canary's first
    measured = separation_mu(unseen[:, 0], seen[:, 0], direction)
    along = unseen @ (direction / direction.norm())
    # Noise must differ between clients, messages and rounds.
    pairs = [(along[:, 0], other) for other in along.T[1:]] + [(along[:-1, 0], along[1:, 0])]
    findings = flags(
        along[:, 0],
        project(seen[:, 0], direction),
        mu,
        alarm,
        claimed_std=sensitivity / mu,
        pairs=pairs,
    )
    return {
        "part": "mechanism",
        "trials": trials,
        "mu_claimed": mu,
        "mu_measured": measured.mu,
        "mu_low": measured.low,
        "mu_high": measured.high,
        "std_claimed": sensitivity / mu,
        "std_measured": measured.std,
        "findings": list(findings),
    }


def _limit(privacy: Privacy) -> float:
    return ADAPTIVE_START if privacy.clip == "adaptive" else privacy.bound()


# Releases (k, n), of which the first carries the canary; and the ledger so far.
Released = tuple[Tensor, Ledger]


def _message_releases(
    privacy: Privacy,
    message: Sequence[Tensor],
    seed: int,
    trials: int,
    clients: type[Clients],
    channel: type[Channel],
) -> Iterator[Released]:
    """Yield the releases of a message of the first client, with zeros of the others, and of a zero message."""
    empty = [part.new_zeros(WITNESSES, PART) for part in message]
    full = [torch.cat([part.unsqueeze(0), zeros[1:]]) for part, zeros in zip(message, empty, strict=True)]
    central = privacy.placement == "central"
    run = _world(torch.zeros(WITNESSES, 1, PART, dtype=torch.float64), seed, privacy, clients, channel)
    for trial in range(trials):
        sender = run.channel(run.clients(torch.arange(WITNESSES), trial))
        send = sender.mean if central else sender.gather
        first = _joint(send(*full))
        booked = sender.privacy_log.ledger
        sent = torch.stack([first, _joint(send(*empty))])
        # The server's average is one release, with weight 1 / WITNESSES of each message.
        yield (sent * WITNESSES if central else sent.flatten(0, 1)), booked


def _record_releases(
    privacy: Privacy,
    gradient: Sequence[Tensor],
    seed: int,
    trials: int,
    clients: type[Clients],
    channel: type[Channel],
) -> Iterator[Released]:
    """Yield private gradients of two clients in two steps; the first sample of the first has the given gradient."""
    samples = torch.zeros(2, WITNESSES, PART, dtype=torch.float64)
    (samples[0, 0],) = gradient
    run = _world(samples, seed, privacy, clients, channel)
    for trial in range(trials):
        cohort = run.clients(torch.arange(2), trial)
        start = cohort.rows(samples.new_zeros(PART))
        released, booked = [], None
        for batch in cohort.batches(run.algorithm, steps=2):
            released.append(cohort.grad(start, batch) * WITNESSES)
            booked = booked or cohort.privacy_log.ledger
        assert booked is not None
        yield torch.cat(released), booked


class State(NamedTuple):
    """The server's model."""

    x: Tensor


class Everything(Algorithm):
    """An algorithm that uses all samples in every step."""

    meta = Meta("everything", "audit", ("erm",), "-")

    def init(self, start: dict[str, Tensor], clients: Clients, channel: Channel) -> State:
        """Send nothing."""
        return State(start["x"])


def _world(
    x: Tensor, seed: int, privacy: Privacy, clients: type[Clients], channel: type[Channel]
) -> Simulation:
    """Return a simulation whose clients hold ``x``, ``(C, N, PART)``; a sample's gradient is the sample."""
    samples, none = x.flatten(0, 1), torch.zeros(x.shape[0] * x.shape[1], dtype=torch.int64)
    pool = Batch(samples, none, none, samples.new_ones(len(samples)))
    index = torch.arange(len(samples)).view(len(x), -1)
    problem = Problem(
        "linear",
        "erm",
        lambda generator: {"x": torch.zeros(PART)},
        lambda point, batch: weighted_mean(batch.x @ point, batch.weight),
    )
    federation = Federation(pool, {"train": index}, ("0",), (), "canaries", "")
    sides: Any = {"clients": clients, "channel": channel, "rows": Rows("vmap")}
    return Simulation(problem, federation, Everything(), privacy, PLAIN, (seed,), **sides)


def _joint(sent: Tensor | tuple[Tensor, ...]) -> Tensor:
    return torch.cat(sent, -1) if isinstance(sent, tuple) else sent


def audit_run(setup: Setup, canaries: int, confidence: float = 0.95) -> dict[str, Any]:
    """Train once with canaries that are included at random, and guess from the final model which were.

    A canary is a sample of normal features with a random label: the only sample of an additional client (unit
    client), or an additional sample of a client (unit record). An excluded canary leaves its client without that
    sample. Canaries whose loss has fallen most are guessed as included, those with the least fall as excluded.

    Parameters
    ----------
    setup : Setup
        A run; its noise is calibrated again, because the canaries are further units.
    canaries : int
        Number of canaries.
    confidence : float
        Confidence of the lower bound.

    Returns
    -------
    dict
        ``epsilon_lower`` at that confidence (Bonferroni-corrected over `SHARES`), ``epsilon_upper`` and
        ``delta`` of the ledger, ``correct`` of ``guesses``, ``canaries``, ``findings``.

    Raises
    ------
    Incompatible
        If the run claims no privacy, or has no server model that predicts classes.
    """
    if setup.privacy is None:
        raise Incompatible("audit: the run claims no privacy; give it a section privacy")
    if setup.problem.predict is None or setup.problem.kind == "vertical":
        raise Incompatible("audit: the run part needs a model that predicts classes")
    seed = setup.spec.seed
    planted, places = _planted(setup.federation, setup.privacy.unit, canaries, seed)
    inside = torch.rand(canaries, generator=rng.stream(seed, "audit coins")) < 0.5
    train = planted.splits["train"]
    train = torch.where(torch.isin(train, places[~inside]), -1, train).sort(-1, descending=True).values
    present = replace(planted, splits={**planted.splits, "train": train})
    run = Simulation.from_setup(calibrated(replace(setup, federation=present)))
    before = _losses(run, present, places)
    while run.round < setup.spec.rounds:
        run.step()
    fall = before - _losses(run, present, places)
    order, upper = fall.argsort(descending=True), (run.statement() or {})["epsilon_total"]
    best = (0.0, 0, 0)
    for share in SHARES:
        half = max(1, round(share * canaries / 2))
        correct = int(inside[order[:half]].sum() + (~inside[order[-half:]]).sum())
        doubt = 1 - (1 - confidence) / len(SHARES)
        bound = one_run_epsilon(correct, 2 * half, canaries, setup.privacy.delta, doubt)
        best = max(best, (bound, correct, 2 * half))
    lower, correct, guesses = best
    broken = lower > float(upper)
    return {
        "part": "run",
        "canaries": canaries,
        "guesses": guesses,
        "correct": correct,
        "epsilon_lower": lower,
        "epsilon_upper": upper,
        "delta": setup.privacy.delta,
        "confidence": confidence,
        "findings": [f"epsilon is at least {lower:.3g}, claimed {float(upper):.3g}"] if broken else [],
    }


def _planted(federation: Federation, unit: str, canaries: int, seed: int) -> tuple[Federation, Tensor]:
    """Return the federation with all canaries, and their places in its pool."""
    if canaries < 4 or canaries % 2:
        raise UserError(
            f"--canaries must be an even number from 4 on (0: leave the run out), given {canaries}"
        )
    generator, pool = rng.stream(seed, "audit canaries"), federation.pool
    x = torch.randn(canaries, *pool.x.shape[1:], generator=generator).to(pool.x)
    y = torch.randint(len(federation.classes), (canaries,), generator=generator).to(pool.y)
    added = Batch(x, y, pool.group.new_zeros(canaries), pool.weight.new_ones(canaries))
    merged = Batch(*(torch.cat([old, new]) for old, new in zip(pool, added, strict=True)))
    places = torch.arange(len(pool.y), len(pool.y) + canaries, device=pool.y.device)
    splits = {}
    for name, index in federation.splits.items():
        if name != "train":
            own = (
                index
                if unit == "record"
                else torch.cat([index, index.new_full((canaries, index.shape[1]), -1)])
            )
        elif unit == "client":
            rows = torch.cat([places[:, None], index.new_full((canaries, index.shape[1] - 1), -1)], 1)
            own = torch.cat([index, rows])
        else:  # distribute the canaries over the clients in turn
            each = -(-canaries // len(index))
            dealt = index.new_full((len(index) * each,), -1)
            dealt[:canaries] = places
            own = torch.cat([index, dealt.view(each, len(index)).T], 1).sort(-1, descending=True).values
        splits[name] = own
    return replace(federation, pool=merged, splits=splits), places


def _losses(run: Simulation, federation: Federation, places: Tensor) -> Tensor:
    """Return the loss of every canary under the server's model."""
    model = run.algorithm.model(run.state)
    if model.ndim > 1:
        raise Incompatible(
            "audit: the run part needs one model of the server; this algorithm has one a client"
        )
    predict = run.problem.predict
    assert predict is not None
    sample = federation.pool.at(places)
    return cross_entropy(predict(model, sample.x), sample.y)
