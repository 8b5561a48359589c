"""Users' mechanisms: epsilon follows from what they declare, and what they declare is checked."""

import math

import numpy as np
import pytest
from dp_accounting.pld import privacy_loss_distribution
from scipy.stats import kstest, laplace, logistic, norm

from privacy.accounting import account, calibrate
from privacy.attacker import attack_bound
from privacy.event import Event
from privacy.gaussian import gaussian_epsilon
from privacy.individual import calibrate_all
from privacy.ledger import Ledger
from privacy.own_mechanism import MECHANISMS, MechanismError, Noise, mechanism
from tests.support.mechanisms import Laplace, Logistic, Mixture, Normal

DELTA = 1e-5
LAPLACE, NORMAL, LOGISTIC = (Noise(kind()) for kind in (Laplace, Normal, Logistic))


@pytest.fixture(autouse=True)
def _none_registered():
    """What other tests of this process have registered does not take the names."""
    before = dict(MECHANISMS)
    MECHANISMS.clear()
    yield
    MECHANISMS.clear()
    MECHANISMS.update(before)


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


@pytest.mark.parametrize(
    ("noise", "known"),
    [(LAPLACE, laplace), (LOGISTIC, logistic), (NORMAL, norm)],
    ids=["laplace", "logistic", "normal"],
)
def test_sizes_have_the_declared_tails_down_to_the_deepest(noise, known):
    deep = np.array([0.0, 1e-12, 1e-3, 0.7, 3.0, 20.0, 44.0, 70.0, 99.0])
    assert np.allclose(noise.quantile(deep), known.isf(np.exp(-deep) / 2), rtol=1e-12, atol=2e-14)
    assert noise.quantile(np.array([1e4])) <= noise.end
    drawn = noise.draw(200_000, np.random.default_rng(3))
    assert kstest(drawn, known.cdf).pvalue > 1e-6
    signs, sizes = np.sign(drawn), np.abs(drawn)
    for other in (signs[1:] * signs[:-1], signs, (sizes[1:] - sizes.mean()) * (sizes[:-1] - sizes.mean())):
        assert abs(other.mean()) < 5 * other.std() / math.sqrt(len(other))


class _Bent(Laplace):
    """Flat at first, then steep, with corners: its quantiles have corners too."""

    def log_density(self, x):
        return np.log(0.25) - np.maximum(0.0, np.abs(x) - 1.0)

    def log_cdf(self, x):
        far, near = 1.0 - np.maximum(np.abs(x), 1.0), np.minimum(np.abs(x), 1.0)
        tail = np.where(np.abs(x) > 1, np.log(0.25) + far, np.log(0.5 - near / 4))
        return np.where(x < 0, tail, np.log1p(-np.exp(tail)))


@pytest.mark.usefixtures("registries")
def test_densities_with_corners_are_inverted_too():
    mechanism(type("Bent", (_Bent,), {"name": "bent"}))
    deep = np.linspace(0.0, 40.0, 100_001)
    exact = np.where(deep < math.log(2), 2 * -np.expm1(-deep), 1 + deep - math.log(2))
    assert np.allclose(MECHANISMS["bent"].quantile(deep), exact, rtol=1e-12, atol=1e-12)


class _Deep:
    """A generator whose exponential numbers end early, as numpy's do."""

    def __init__(self):
        self.calls = 0

    def standard_exponential(self, count):
        self.calls += 1
        return np.full(count, 5.0 if self.calls == 3 else 31.0)

    def random(self, count):
        return np.zeros(count)


def test_tails_go_deeper_than_one_number_of_the_generator():
    assert LAPLACE.draw(2, _Deep()) == pytest.approx([-65.0, -65.0])


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
        ({"log_cdf": lambda self, x: np.log(np.arctan2(1.0, -x) / np.pi)}, "fall below -100"),
        ({"log_cdf": lambda self, x: 1 / 0}, "ZeroDivisionError"),
        ({"name": "banded"}, "is reserved"),
        ({"name": "distributed"}, "is reserved"),
        ({"sample": lambda self, count, generator: generator.laplace(size=count)}, "remove sample"),
        ({"log_cdf": lambda self, x: Laplace.log_cdf(self, x - 1e-3 * x.mean())}, "not elementwise"),
        ({"log_density": lambda self, x: Laplace.log_density(self, x).astype(np.float32)}, "float64"),
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


@pytest.mark.usefixtures("registries")
@pytest.mark.parametrize("steps", [8, 128, 1000, 2**20])
def test_stairs_are_refused_whatever_their_width(steps):
    """exp(-floor(|x| steps) / steps): a shift by less than a step is seen as clearly as one by a step."""

    def log_density(self, x):
        return np.log(-np.expm1(-1 / steps) / 2 * steps) - np.floor(np.abs(x) * steps) / steps

    def log_cdf(self, x):
        whole = np.floor(np.abs(x) * steps)
        tail = -whole / steps + np.log1p((np.abs(x) * steps - whole) * np.expm1(-1 / steps)) - np.log(2)
        return np.where(x < 0, tail, np.log1p(-np.exp(tail)))

    with pytest.raises(MechanismError, match="not log-concave"):
        mechanism(type("Stairs", (Laplace,), {"log_density": log_density, "log_cdf": log_cdf}))


def _own(**functions):
    """Return noise of a class with these functions, which pass the checks of registration."""
    cls = type("Own", (Normal,), {"name": "own", **functions})
    mechanism(cls)
    return MECHANISMS["own"]


UNDERFLOW = {"log_density": lambda self, x: np.log(norm.pdf(x))}
FLOOR = {"log_density": lambda self, x: np.log(norm.pdf(x) + 1e-300)}
FLOORED = {"log_cdf": lambda self, x: np.log(norm.cdf(x) + 1e-300)}
FAR = {
    "log_density": lambda self, x: np.log(np.exp(-np.abs(x)) / 2),
    "log_cdf": Laplace.log_cdf,
}
GRID = np.linspace(-140, 140, 2801)
TABLE = {
    "log_density": lambda self, x: np.interp(x, GRID, -np.abs(GRID) - np.log(2)),
    "log_cdf": Laplace.log_cdf,
}


@pytest.mark.filterwarnings("ignore:divide by zero")
@pytest.mark.usefixtures("registries")
@pytest.mark.parametrize("functions", [UNDERFLOW, FLOOR, FLOORED])
def test_functions_that_end_too_early_never_understate_epsilon(functions):
    """Up to about 38 they are those of normal noise; what needs more of them is refused."""
    noise = _own(**functions)
    for z, times in ((0.1, 1), (1.0, 100)):
        found = account([Event(z, 1.0, times, noise=noise)], DELTA)
        exact = gaussian_epsilon(z / math.sqrt(times), DELTA)
        assert exact * (1 - 1e-9) <= found.epsilon <= 1.01 * exact
    with pytest.raises(MechanismError, match="stay exact far out"):
        account([Event(0.01, noise=noise)], DELTA)
    for times in (1, 20):
        factor = calibrate(8.0, DELTA, [Event(1.0, 1.0, times, noise=noise)])
        assert 7.9 < gaussian_epsilon(factor / math.sqrt(times), DELTA) < 8 * (1 + 1e-6)


@pytest.mark.filterwarnings("ignore:divide by zero")
@pytest.mark.usefixtures("registries")
@pytest.mark.parametrize("functions", [FAR, TABLE])
def test_laplace_functions_that_end_too_early_are_refused_there(functions):
    noise = _own(**functions)
    exact = account([Event(0.1, noise=LAPLACE)], DELTA)
    assert account([Event(0.1, noise=noise)], DELTA).epsilon == pytest.approx(exact.epsilon, rel=1e-9)
    for times in (1, 10):
        with pytest.raises(MechanismError, match="stay exact far out"):
            account([Event(1e-4, 1.0, times, noise=noise)], DELTA)
    factor = calibrate(8.0, DELTA, [Event(1.0, 1.0, 5, noise=noise)])
    assert account([Event(factor, 1.0, 5, noise=LAPLACE)], DELTA).epsilon <= 8 * (1 + 1e-6)


@pytest.mark.usefixtures("registries")
def test_a_table_that_ends_before_the_tails_is_refused():
    short = np.linspace(-70, 70, 8961)
    with pytest.raises(MechanismError, match="not log-concave"):
        _own(
            log_density=lambda self, x: np.interp(x, short, -np.abs(short) - np.log(2)),
            log_cdf=Laplace.log_cdf,
        )


def test_exact_functions_reach_any_shift_or_epsilon_is_infinite():
    assert NORMAL.epsilon(100.0, DELTA) == pytest.approx(gaussian_epsilon(0.01, DELTA), rel=1e-9)
    assert LAPLACE.epsilon(1e6, DELTA) == pytest.approx(1e6, rel=1e-9)
    assert NORMAL.epsilon(1e9, DELTA) == math.inf


@pytest.mark.usefixtures("registries")
def test_no_function_is_evaluated_where_it_is_not_checked():
    seen = []

    def log_density(self, x):
        seen.append(float(np.abs(x).max(initial=0.0)))
        return Normal.log_density(self, x)

    def log_cdf(self, x):
        seen.append(float(np.abs(x).max(initial=0.0)))
        return Normal.log_cdf(self, x)

    noise = _own(log_density=log_density, log_cdf=log_cdf)
    assert max(seen) <= noise.end
    account([Event(0.1, noise=noise)], DELTA)
    noise.draw(10_000, np.random.default_rng(0))
    noise.normal(np.array([1e9, np.nan]))
    assert max(seen) <= noise.end


def test_a_delta_beyond_the_tails_has_no_epsilon():
    """e^-60: below it, what lies in tails that are not drawn would count."""
    for delta in (1e-25, 1e-20):
        assert NORMAL.epsilon(1.0, delta) == pytest.approx(gaussian_epsilon(1.0, delta), rel=1e-9)
    assert account([Event(1.0, noise=NORMAL)], 1e-27).epsilon == math.inf
    with pytest.raises(MechanismError, match="spent by no factor"):
        calibrate(8.0, 1e-27, [Event(1.0, noise=NORMAL)])


def test_calibration_refuses_the_end_of_its_bracket():
    class Silent(Noise):
        def epsilon(self, shift, delta):
            return 0.0

    with pytest.raises(MechanismError, match="spent by no factor"):
        calibrate(8.0, DELTA, [Event(1.0, noise=Silent(Normal()))])
