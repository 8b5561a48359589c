"""Users' mechanisms: epsilon follows from what they declare, and what they declare is checked."""

import math

import numpy as np
import pytest
from dp_accounting.pld import privacy_loss_distribution

from privacy import Event, Ledger, account, attack_bound, calibrate, calibrate_all, gaussian_epsilon
from privacy.own_mechanism import MECHANISMS, MechanismError, Noise, mechanism
from tests.support.mechanisms import Laplace, Logistic, Mixture, Normal

DELTA = 1e-5
LAPLACE, NORMAL, LOGISTIC = (Noise(kind()) for kind in (Laplace, Normal, Logistic))


@pytest.mark.parametrize("z", [0.1, 1.0, 7.0])
def test_a_release_of_laplace_noise_has_its_closed_form(z):
    """Shifted by a, ``delta(epsilon) = 1 - exp((epsilon - a) / 2)``: epsilon is ``a + 2 log(1 - delta)``."""
    for delta in (1e-5, 0.02):
        found = account([Event(z, noise=LAPLACE)], delta)
        assert found == (pytest.approx(1 / z + 2 * math.log1p(-delta), rel=1e-9), "exact", "")


@pytest.mark.parametrize("z", [0.1, 1.0, 7.0])
def test_declared_normal_noise_has_the_epsilon_of_gaussian_noise(z):
    assert NORMAL.epsilon(1 / z, DELTA) == pytest.approx(gaussian_epsilon(z, DELTA), rel=1e-9)
    for sampling in ("poisson", "without-replacement"):
        events = [Event(z, 0.2, 30, sampling, noise) for noise in (NORMAL, None)]
        own, ours = (account([event], DELTA).epsilon for event in events)
        assert own == pytest.approx(ours, rel=0.01)


@pytest.mark.parametrize(("z", "rate", "times"), [(10.0, 1.0, 50), (2.0, 0.1, 50), (1.0, 0.1, 100)])
def test_compositions_of_laplace_noise_are_those_of_dp_accounting(z, rate, times):
    single = privacy_loss_distribution.from_laplace_mechanism(
        z, sampling_prob=rate, value_discretization_interval=1e-4
    )
    known = single.self_compose(times).get_epsilon_for_delta(DELTA)
    found = account([Event(z, rate, times, noise=LAPLACE)], DELTA)
    assert found.accountant == "pld" and known * 0.999 <= found.epsilon <= known * 1.01


@pytest.mark.parametrize("share", [0.3, 0.5])
@pytest.mark.parametrize("noise", [LAPLACE, LOGISTIC])
def test_a_shift_of_two_entries_is_no_worse_than_one_of_their_sum(noise, share):
    """The hockey-stick divergence over the plane, by quadrature, against that of a single entry."""
    shift, loss = 1.5, 0.4
    first, second = share * shift, (1 - share) * shift

    at = np.linspace(-12, 14, 2601)
    (moved, other), (still, _) = (
        [np.exp(noise.own.log_density(at - by)) for by in pair] for pair in ((first, second), (0.0, 0.0))
    )
    excess = np.maximum(0.0, np.outer(moved, other) - math.exp(loss) * np.outer(still, still))
    found = excess.sum() * (at[1] - at[0]) ** 2
    assert 0.01 < found <= noise.divergence(shift, np.array([loss]))[0] + 1e-4


@pytest.mark.parametrize("sampling", ["poisson", "without-replacement"])
def test_calibrated_noise_spends_the_budget_and_no_more(sampling):
    events = [Event(1.0, 0.2, 20, sampling, LAPLACE), Event(2.0, 1.0, 1, sampling, LAPLACE)]
    factor = calibrate(1.5, DELTA, events)
    scaled = [event._replace(noise_multiplier=factor * event.noise_multiplier) for event in events]
    assert 1.5 * 0.9999 <= account(scaled, DELTA).epsilon <= 1.5


def test_the_most_exposed_unit_is_charged_and_releases_of_a_draw_add_up():
    """Unit 0 takes part twice with two messages: four releases. A secret draw of two has the shift of both."""
    ledger = Ledger(3)
    for members in ([0, 1], [0, 2]):
        ledger.begin(np.array(members))
        for _ in range(2):
            ledger.book(("round",))
        ledger.end()
    report = ledger.report(DELTA, noise_multiplier=5.0, noise=LAPLACE)
    assert (report["unit_most"], report["releases"], report["draws"]) == (0, 4, 2)
    assert report["epsilon_total"] == account([Event(5.0, 1.0, 4, noise=LAPLACE)], DELTA).epsilon
    assert report["epsilon_median"] == account([Event(5.0, 1.0, 2, noise=LAPLACE)], DELTA).epsilon
    assert report["epsilon_release"] == LAPLACE.epsilon(0.2, DELTA)
    histories = ledger.histories(noise=LAPLACE)
    factor = calibrate_all(2.0, DELTA, histories)
    assert account([Event(factor, 1.0, 4, noise=LAPLACE)], DELTA).epsilon == pytest.approx(2.0, rel=1e-4)
    secret = Ledger(3)
    for _ in range(2):
        secret.book("draw", sampling="poisson", rate=0.1)
    secret.end()
    found = secret.report(DELTA, noise_multiplier=5.0, noise=LAPLACE)
    assert found["epsilon_total"] == account([Event(2.5, 0.1, 1, noise=LAPLACE)], DELTA).epsilon


def test_an_attacker_gains_no_more_than_the_noise_allows():
    """One release shifted by a: the total variation of Laplace noise is ``1 - exp(-a / 2)``."""
    found = attack_bound([Event(2.0, 1.0, 2, noise=LAPLACE)], DELTA)
    alone = 1 - math.exp(-0.25)
    assert (1 + alone) / 2 < found.accuracy <= (1 + (1 - math.exp(-0.5))) / 2 * 1.001


@pytest.mark.parametrize("accountant", ["rdp", "prv"])
def test_gaussian_accountants_refuse_a_users_noise(accountant):
    with pytest.raises(ValueError, match="by accountant pld"):
        account([Event(1.0, noise=LAPLACE)], DELTA, accountant)
    with pytest.raises(ValueError, match="by accountant pld"):
        account([Event(1.0, noise=LAPLACE), Event(1.0)], DELTA)


@pytest.mark.usefixtures("registries")
@pytest.mark.parametrize("kind", [Laplace, Logistic, Normal])
def test_an_honest_mechanism_is_registered(kind):
    mechanism(kind)
    assert MECHANISMS[kind.name].defined is kind
    assert MECHANISMS[kind.name].std == pytest.approx(
        {"laplace": 2**0.5, "logistic": 1.8138, "normal": 1}[kind.name]
    )
    with pytest.raises(MechanismError, match="two mechanisms are called"):
        mechanism(type("Other", (kind,), {}))


def _quiet(self, count, generator):
    return 0.97 * generator.laplace(size=count)


def _cut(self, count, generator):
    return np.clip(generator.laplace(size=count), -8.0, 8.0)


def _stale(self, count, generator):
    return np.random.default_rng(0).laplace(size=count)


def _changing(self, count, generator):
    return np.random.default_rng().laplace(size=count)


def _repeated(self, count, generator):
    return np.repeat(generator.laplace(size=-(-count // 2)), 2)[:count]


def _loud_and_quiet(self, count, generator):
    """Laplace entries that share one size: a normal number times the root of an exponential one."""
    return generator.standard_normal(count) * np.sqrt(2 * generator.standard_exponential())


def _weak_alone(self, count, generator):
    return generator.laplace(size=count) * (0.5 if count < 10 else 1.0)


def _shifted(self, count, generator):
    return generator.laplace(size=count) + 0.02


@pytest.mark.usefixtures("registries")
@pytest.mark.parametrize(
    ("sample", "why"),
    [
        (_quiet, "standard deviation 0.969 times"),
        (_cut, "expected 52.4"),
        (_shifted, "not distributed as declared"),
        (_weak_alone, "draws of 1 are not distributed as declared"),
        (_stale, "from its generator only"),
        (_changing, "from its generator only"),
        (_repeated, "not independent"),
        (_loud_and_quiet, "not independent|not distributed"),
        (lambda self, count, generator: generator.laplace(size=count).astype(np.float32), "float64 array"),
        (lambda self, count, generator: generator.laplace(size=count + 1), "must return 0 numbers"),
        (lambda self, count, generator: np.full(count, np.nan), "not finite"),
    ],
)  # fmt: skip
def test_a_sampler_that_draws_something_else_is_refused(sample, why):
    with pytest.raises(MechanismError, match=f"mechanism 'broken': .*({why})"):
        mechanism(type("Broken", (Laplace,), {"name": "broken", "sample": sample}))
    assert "broken" not in MECHANISMS


@pytest.mark.usefixtures("registries")
@pytest.mark.parametrize(
    ("changed", "why"),
    [
        ({"log_density": lambda self, x: -np.abs(x / 2) - np.log(4)}, "log_cdf is not that of log_density"),
        ({"log_density": lambda self, x: -np.abs(x)}, "log_cdf is not that of log_density"),
        ({"log_cdf": lambda self, x: Laplace.log_cdf(self, x / 2)}, "log_cdf is not that of log_density"),
        ({"log_density": lambda self, x: Laplace.log_density(self, x - 1)}, "not symmetric"),
        ({"log_density": lambda self, x: np.where(np.abs(x) < 9, -np.log(18), -np.inf)}, "finite number"),
        ({"log_density": lambda self, x: 0.0}, "finite number"),
        ({"log_cdf": lambda self, x: np.log(np.arctan2(1.0, -x) / np.pi)}, "fall below -60"),
        ({"log_cdf": lambda self, x: 1 / 0}, "ZeroDivisionError"),
        ({"name": "banded"}, "two mechanisms are called"),
        ({"name": "of mine"}, "invalid mechanism name"),
    ],
)  # fmt: skip
def test_a_declaration_that_is_wrong_is_refused(changed, why):
    with pytest.raises(MechanismError, match=why):
        mechanism(type("Broken", (Laplace,), {"name": "broken", **changed}))
    assert "broken" not in MECHANISMS


@pytest.mark.usefixtures("registries")
def test_noise_for_which_nothing_is_proved_is_refused():
    with pytest.raises(MechanismError, match="not log-concave"):
        mechanism(Mixture)
    with pytest.raises(MechanismError, match="subclass of"):
        mechanism(int)
