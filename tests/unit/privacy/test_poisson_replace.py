"""Poisson sampling with one unit replaced: the exact pair of distributions."""

import math

import dp_accounting
import numpy as np
import pytest
from dp_accounting.pld import privacy_loss_distribution

from privacy.accounting import account
from privacy.attacker import attack_bound
from privacy.event import Event
from privacy.pld import _exchanged


@pytest.mark.parametrize(("z", "rate"), [(0.2, 0.3), (0.5, 0.1), (0.55, 0.004), (3.0, 0.5)])
@pytest.mark.parametrize("loss", [-2.0, -0.1, 0.0, 0.05, 0.7, 3.0])
def test_the_divergence_is_the_integral_over_both_mixtures(z: float, rate: float, loss: float) -> None:
    x = np.linspace(-12 * z - 1, 12 * z + 1, 200_001)

    def mixture(mean: float) -> np.ndarray:
        normal = (np.exp(-0.5 * ((x - at) / z) ** 2) for at in (0.0, mean))
        return ((1 - rate) * next(normal) + rate * next(normal)) / (z * math.sqrt(2 * math.pi))

    whole = np.maximum(mixture(0.5) - math.exp(loss) * mixture(-0.5), 0).sum() * (x[1] - x[0])
    assert _exchanged(z, rate, np.array([loss]))[0] == pytest.approx(whole, abs=1e-6)


@pytest.mark.parametrize(("z", "rate", "draws"), [(1.1, 0.1, 500), (1.0, 0.01, 300), (2.0, 0.3, 50)])
def test_epsilon_agrees_with_another_library(z: float, rate: float, draws: int) -> None:
    """``z`` is over the clip norm, half of that over the sensitivity. Never below, and within 1 %."""
    single = privacy_loss_distribution.from_gaussian_mechanism(
        z,
        sampling_prob=rate,
        neighboring_relation=dp_accounting.NeighboringRelation.REPLACE_ONE,
        value_discretization_interval=1e-4,
    )
    other = single.self_compose(draws).get_epsilon_for_delta(1e-5)
    found = account([Event(z / 2, rate, draws, "poisson-replace")], 1e-5)
    assert found.accountant == "pld" and found.epsilon == pytest.approx(other, rel=0.01)
    assert found.epsilon <= account([Event(z / 2, rate, draws, "without-replacement")], 1e-5).epsilon


def test_what_was_reviewed() -> None:
    """Printed before were 8.22, 48.5 and 73.6."""
    assert account([Event(0.55, 0.1, 500, "poisson-replace")], 1e-5).epsilon == pytest.approx(24.9, abs=0.06)


def test_of_everybody_it_is_the_gaussian_and_an_attacker_gains_no_more_than_epsilon_says() -> None:
    assert account([Event(1.0, 1.0, 3, "poisson-replace")], 1e-5).accountant == "exact"
    bound = attack_bound([Event(0.5, 0.1, 10, "poisson-replace")], 1e-5)
    assert 0.5 < bound.accuracy < attack_bound([Event(0.5, 1.0, 10)], 1e-5).accuracy
