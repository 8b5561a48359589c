"""The compositions of other systems' privacy settings: a function of its values for each."""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping
from dataclasses import dataclass

from privacy.accounting import account, calibrate, compose
from privacy.event import Event
from privacy.gaussian import classic_sigma, gaussian_epsilon

Values = Mapping[str, float]


@dataclass(frozen=True)
class Row:
    """An epsilon that a setting composes to, under one reading of it."""

    what: str
    adjacency: str
    epsilon: float
    delta: float
    accountant: str


def _row(what: str, adjacency: str, delta: float, *events: Event) -> Row:
    result = account(events, delta, "pld")
    return Row(what, adjacency, result.epsilon, delta, result.accountant)


def flower_local(at: Values) -> list[Row]:
    """Noise for one sensitivity on messages clipped to another norm."""
    std = classic_sigma(at["epsilon"], at["delta"], at["sensitivity"])
    rounds, delta = int(at["rounds"]), at["delta"]
    believed, left_out, replaced = std / at["sensitivity"], std / at["clip"], std / (2 * at["clip"])
    return [
        _row("one round, were the sensitivity as set", "as set", delta, Event(believed)),
        _row(f"{rounds} rounds, were the sensitivity as set", "as set", delta, Event(believed, 1.0, rounds)),
        _row("one round, an update left out", "add-remove", delta, Event(left_out)),
        _row("one round, an update replaced", "replace-one", delta, Event(replaced)),
        _row(f"{rounds} rounds, an update replaced", "replace-one", delta, Event(replaced, 1.0, rounds)),
    ]


def _cohorts(noise: float, at: Values) -> list[Row]:
    rounds, delta = int(at["rounds"]), at["delta"]
    secret = Event(noise, at["cohort"] / at["clients"], rounds, "without-replacement")
    return [
        _row("cohorts known to the attacker", "replace-one", delta, Event(noise, 1.0, rounds)),
        _row("cohorts secret", "replace-one", delta, secret),
    ]


def flower_fixed(at: Values) -> list[Row]:
    """Noise on the average of a cohort, to replaced clients."""
    return _cohorts(at["noise_multiplier"] / (2 * at["weight"]), at)


def flower_adaptive(at: Values) -> list[Row]:
    """Noise split between updates and the count of clipped ones."""
    z = at["noise_multiplier"]
    count = at["cohort"] / 20  # standard deviation on the number of clipped updates
    if z >= 2 * count:
        raise ValueError(
            f"flower-adaptive: Flower refuses noise_multiplier {z:g} with cohort {at['cohort']:g}, whose count "
            f"gets noise of cohort / 20 = {count:g}: less than half the multiplier"
        )
    update = (z**-2 - (2 * count) ** -2) ** -0.5
    left_out = Event(compose([update, count]), 1.0, int(at["rounds"]))
    return [
        _row("an update and its bit left out", "add-remove", at["delta"], left_out),
        *_cohorts(compose([update / 2, count]), at),
    ]


def svt_printed(at: Values) -> float:
    """Return what the filter logs: the budgets of selection and release, summed."""
    return int(at["rounds"]) * (at["epsilon"] + math.ceil(at["params"] * at["fraction"]) * at["noise_var"])


def svt(at: Values) -> list[Row]:
    """Laplace noise on each entry that is sent."""
    rounds, sent = int(at["rounds"]), math.ceil(at["params"] * at["fraction"])
    pure = svt_printed(at)
    released = _laplace_epsilon(at["noise_var"], sent * rounds, at["delta"])
    return [
        Row("selection and release, summed", "replace-one", pure, 0.0, "sum"),
        Row("the same at a delta", "replace-one", released + rounds * at["epsilon"], at["delta"], "pld"),
    ]


@functools.lru_cache(maxsize=64)
def _laplace_epsilon(each: float, releases: int, delta: float) -> float:
    """Epsilon at a delta of many Laplace releases, each with the pure epsilon ``each``."""
    from dp_accounting.pld.privacy_loss_distribution import from_laplace_mechanism

    single = from_laplace_mechanism(1 / each, value_discretization_interval=each / 4)  # losses end at +-each
    composed = single.self_compose(releases)
    return min(each * releases, float(composed.get_epsilon_for_delta(delta)))


def no_noise(at: Values) -> list[Row]:
    """Messages without noise."""
    return [Row("any number of rounds", "any", math.inf, at["delta"], "exact")]


def nvflare_gaussian(at: Values) -> list[Row]:
    """Noise relative to the largest entries, without a clip."""
    even = at["sigma0"] / math.sqrt(at["params"] * at["rounds"])  # the norm is sqrt(params) times an entry
    epsilon = gaussian_epsilon(even, at["delta"])
    return [
        *no_noise(at),
        Row("were all entries of one size, an update left out", "add-remove", epsilon, at["delta"], "exact"),
    ]


def flamby(at: Values) -> list[Row]:
    """Noise for one pass over the data a round, and many batches taken."""
    delta, rounds = at["delta"], int(at["rounds"])
    batches = math.ceil(at["records"] / at["batch"])
    accounted, steps = rounds * batches, int(rounds * at["updates"])
    z = calibrate(at["epsilon"], delta, [Event(1.0, 1 / batches, accounted)], "pld")
    visits = math.ceil(steps / batches)  # how often the loader reaches a record
    return [
        _row(f"{accounted} steps accounted for", "add-remove", delta, Event(z, 1 / batches, accounted)),
        _row(f"{steps} steps taken, were they Poisson", "add-remove", delta, Event(z, 1 / batches, steps)),
        _row(f"{steps} steps taken, {visits} with a record", "add-remove", delta, Event(z, 1.0, visits)),
    ]


def fl_bench(at: Values) -> list[Row]:
    """Noise for one round, and many rounds taken."""
    delta, rate = at["delta"], min(0.99, at["batch"] / at["records"])
    steps, rounds = int(at["epochs"]), int(at["rounds"])
    accounted = steps * math.ceil(at["records"] / at["batch"])
    z = calibrate(at["epsilon"], delta, [Event(1.0, rate, accounted)], "rdp")
    some = max(1, round(rounds * at["join_ratio"]))
    return [
        _row(f"{accounted} steps accounted for", "add-remove", delta, Event(z, rate, accounted)),
        _row(f"a client in {some} of {rounds} rounds", "add-remove", delta, Event(z, rate, steps * some)),
        _row(f"a client in all {rounds} rounds", "add-remove", delta, Event(z, rate, steps * rounds)),
    ]


def pfl(at: Values) -> list[Row]:
    """Noise for a large cohort, scaled down to a simulated one."""
    delta, rounds, rate = at["delta"], int(at["rounds"]), at["noise_cohort"] / at["population"]
    z = calibrate(at["epsilon"], delta, [Event(1.0, rate, rounds)], "pld")
    scaled = z * at["cohort"] / at["noise_cohort"]
    simulated = Event(scaled, at["cohort"] / at["users"], rounds)
    return [
        _row("a deployment of that size", "add-remove", delta, Event(z, rate, rounds)),
        _row("the run itself, for the users in it", "add-remove", delta, simulated),
    ]


def _opacus_steps(at: Values) -> tuple[int, int]:
    batches = math.ceil(at["records"] / at["batch"])
    return batches, batches * int(at["epochs"])


def opacus(at: Values) -> list[Row]:
    """Noise on batches, Poisson or shuffled."""
    z, delta = at["noise_multiplier"], at["delta"]
    batches, steps = _opacus_steps(at)
    replaced = Event(z / 2, 1 / batches, steps, "poisson-replace")
    return [
        _row("Poisson batches (default)", "add-remove", delta, Event(z, 1 / batches, steps)),
        _row("Poisson batches (default)", "replace-one", delta, replaced),
        _row("poisson_sampling=False", "add-remove", delta, Event(z, 1.0, int(at["epochs"]))),
    ]


def opacus_printed(at: Values) -> float:
    """Return what Opacus prints."""
    batches, steps = _opacus_steps(at)
    return account([Event(at["noise_multiplier"], 1 / batches, steps)], at["delta"], "prv").epsilon
