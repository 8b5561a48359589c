"""Secret draws are a run's own, so that runs of one seed compose as independent; shared ones are one joint draw."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from harness.config.recorded import SPECIAL, identity, versions
from harness.config.run import read_spec
from harness.core import rng
from harness.core.clients.sampling import draw_poisson_batches
from harness.core.errors import UserError
from harness.core.settings.privacy import Privacy
from harness.report.tables.privacy import in_words
from harness.simulation.build import prepare
from harness.simulation.cohorts import Cohorts
from harness.simulation.setup import Execution
from harness.simulation.simulation import Simulation
from privacy.event import Event
from privacy.joint import Released, joint_epsilon
from privacy.one_run import clopper_pearson_epsilon
from tests.support.runs import given, ready

CENTRAL = {"placement": "central", "clip": 1.0, "noise_multiplier": 1.0}
RUNS, TRIALS, RATE, NOISE, DELTA = 64, 1000, 0.05, 2.0, 1e-5
THRESHOLDS = (8.0, 16.0, 32.0, 48.0)  # of the sum of 64 releases, whose noise has a deviation of 16


def cohorts(draws, names, seed, **others):
    mechanism = Privacy.of(1.0, draws=draws, **{"sampling": "poisson", "rate": RATE, **others})
    return Cohorts(20, 1, False, mechanism, (seed,) * len(names), names)


def participation(draws, seed, names):
    """Return for each run whether the canary, client 7, takes part in one round; by the real cohorts."""
    ids, mask = cohorts(draws, names, seed).draw(0)
    assert mask is not None
    return ((ids == 7) & mask.bool()).any(-1).double().numpy()


def in_batches(keys):
    """Return for each run whether record 7 is in the first batch; by the real sampling."""
    count = torch.full((len(keys),), 20)
    order, _ = draw_poisson_batches(
        count, torch.tensor(keys), torch.zeros_like(count), steps=1, epochs=None, batch_size=1
    )
    return (order[0] == 7).any(-1).double().numpy()


def distinguished(took):
    """Return the largest lower bound on epsilon of attackers who add up the releases of all runs."""
    noise, bounds = np.random.default_rng(5), []
    present = (took + noise.normal(0, NOISE, took.shape)).sum(-1)
    absent = noise.normal(0, NOISE, took.shape).sum(-1)
    for threshold in THRESHOLDS:
        hits, alarms = int((present > threshold).sum()), int((absent > threshold).sum())
        bounds.append(clopper_pearson_epsilon(hits, len(took), alarms, len(took), DELTA))
    return max(bounds)


def figures():
    """Return the joint epsilons of 64 releases from draws of their own, and from one draw: 0.88 and 18.5."""
    event = (Event(NOISE, RATE, 1),)
    runs = ([Released(event, stream) for _ in range(RUNS)] for stream in (None, 0))
    return [joint_epsilon(own, DELTA).epsilon for own in runs]


def drawn(draws):
    names = [tuple(f"{trial} {run}" for run in range(RUNS)) for trial in range(TRIALS)]
    return np.stack([participation(draws, trial, own) for trial, own in enumerate(names)])


@pytest.mark.slow
def test_sixty_four_runs_with_draws_of_their_own_keep_their_joint_epsilon():
    """Of shared draws a canary is in all cohorts (a sum of 64, four deviations of the noise) or in none."""
    independent, joint = figures()
    own, shared = (distinguished(drawn(draws)) for draws in ("own", "shared"))
    assert own <= independent < shared <= joint, (own, independent, shared, joint)


@pytest.mark.slow
def test_so_do_secret_batches_of_records():
    independent, joint = figures()
    numbers = [[(trial, run) for run in range(RUNS)] for trial in range(TRIALS)]
    own = [
        in_batches([rng.key(f"{trial} {run}", "batch", "main", 0) for trial, run in row]) for row in numbers
    ]
    same = [in_batches([rng.key(trial, "batch", "main", 0) for trial, _ in row]) for row in numbers]
    low, high = (distinguished(np.stack(took)) for took in (own, same))
    assert low <= independent < high <= joint, (low, independent, high, joint)


@pytest.mark.parametrize("draws", ["own", "shared"])
def test_cohorts_of_two_runs_of_a_seed(data, draws):
    private = CENTRAL | {"draws": draws}
    one, other = (
        ready(data, cohort={"size": 3}, privacy=private | {"noise_multiplier": z}) for z in (1.0, 2.0)
    )
    ids = [[run.cohorts.draw(n) for n in range(20)] for run in map(Simulation.from_setup, (one, other))]
    same = [torch.equal(a[0], b[0]) and torch.equal(a[1], b[1]) for a, b in zip(*ids, strict=True)]
    assert all(same) == (draws == "shared")


@pytest.mark.parametrize("draws", ["own", "shared"])
def test_batches_of_records_of_two_runs_of_a_seed(data, draws):
    private = {"unit": "record", "clip": 1.0, "draws": draws}
    setups = [ready(data, privacy=private | {"noise_multiplier": z}) for z in (1.0, 2.0)]
    found = []
    for setup in setups:
        clients = Simulation.from_setup(setup).cohort()
        (first, _) = clients.batches(setup.algorithm)
        found.append(clients._records.of(first).samples.weight.sum(-1))
    assert torch.equal(*found) == (draws == "shared")


def test_public_draws_stay_those_of_the_seed(data):
    """Batches under unit client, and fixed cohorts, are what a comparison pairs."""
    for cohort in (None, {"size": 3}):
        private = {"placement": "local", "clip": 1.0}
        runs = [
            Simulation.from_setup(ready(data, cohort=cohort, privacy=private | {"noise_multiplier": z}))
            for z in (1.0, 2.0)
        ]
        one, other = (run.cohort() for run in runs)
        assert torch.equal(one.ids, other.ids)
        batches = [
            next(iter(clients.batches(run.algorithm)))
            for clients, run in zip((one, other), runs, strict=True)
        ]
        assert torch.equal(batches[0].x, batches[1].x)


def test_only_secret_draws_have_the_version_and_the_setting(data):
    def spec(**privacy):
        cohort = {"size": 3} if privacy.get("sampling") != "full" else None
        return read_spec(given(data, cohort=cohort, privacy={"placement": "central", "epsilon": 8} | privacy))

    secret, public = spec(), spec(sampling="fixed")
    assert versions(secret.model_dump(mode="json"))["draws"] == SPECIAL["draws"].version
    assert "draws" not in versions(public.model_dump(mode="json"))
    assert "draws" not in versions(spec(draws="shared").model_dump(mode="json"))
    assert identity(spec(draws="shared"), "d") != identity(secret, "d")
    assert spec(sampling="fixed", draws="shared") == public, "they are shared in any case"
    with pytest.raises(UserError, match=r"privacy\.draws: .* remove strict and secure_rng"):
        spec(draws="shared", secure_rng=True)
    with pytest.raises(UserError, match=r"privacy\.draws: shared draws follow from the seed"):
        spec(draws="shared", strict=True)


@pytest.mark.parametrize(("draws", "said"), [("own", "own"), ("shared", "do not compose as independent")])
def test_the_statement_says_whose_the_draws_are(data, draws, said):
    setup = ready(data, cohort={"size": 3}, privacy=CENTRAL | {"draws": draws})
    assert said in Simulation.from_setup(setup).statement()["secret_draws"]
    public = ready(data, cohort={"size": 3}, privacy=CENTRAL | {"sampling": "fixed"})
    assert "secret_draws" not in Simulation.from_setup(public).statement()


def test_own_draws_change_with_the_code_as_noise_does(data):
    spec = read_spec(given(data, cohort={"size": 3}, privacy=CENTRAL))
    names = [prepare(spec, Execution(noise_code=code * 32)).noise_key for code in "ab"]
    draws = [[cohorts("own", (name,), 0).draw(n)[0].tolist() for n in range(30)] for name in names]
    assert draws[0] != draws[1]
    shared = replace(cohorts("shared", (names[0],), 0), noise_keys=(names[1],))
    assert all(
        torch.equal(shared.draw(n)[0], cohorts("shared", (names[0],), 0).draw(n)[0]) for n in range(30)
    )


def test_the_sentence_says_what_ties_a_run_to_others(data):
    setup = ready(data, cohort={"size": 3}, privacy=CENTRAL | {"draws": "shared"})
    claim = Simulation.from_setup(setup).statement()
    assert "they do not compose as independent" in in_words(claim)
    assert "independent" not in in_words(claim | {"secret_draws": "own"})
    assert "that of code a, repeated by code b" in in_words(
        claim | {"noise_code": "that of code a, repeated by code b"}
    )


def moved(data, draws, multiplier, **cohort):
    """Return the model after one round of a run whose noise has some multiplier."""
    private = CENTRAL | {"draws": draws, "noise_multiplier": multiplier}
    run = Simulation.from_setup(ready(data, privacy=private, **cohort))
    run.step()
    return run.state.x


@pytest.mark.parametrize("cohort", [{"cohort": {"size": 3}}, {}], ids=["secret cohorts", "everybody"])
def test_paired_runs_share_their_noise_in_its_scale(data, cohort):
    still, once, twice = (moved(data, "paired", multiplier, **cohort) for multiplier in (0, 1.0, 2.0))
    torch.testing.assert_close(twice - still, 2 * (once - still), rtol=1e-4, atol=1e-6)
    own = [moved(data, "own", multiplier, **cohort) for multiplier in (0, 1.0, 2.0)]
    assert (own[2] - own[0] - 2 * (own[1] - own[0])).abs().max() > 0.01


def test_paired_noise_follows_from_the_seed_alone_and_is_said_to_protect_one_run(data):
    setups = [
        ready(data, privacy=CENTRAL | {"draws": "paired"}, algorithm={"name": "fedavg", "lr": lr}, seed=seed)
        for lr, seed in ((0.1, 0), (0.2, 0), (0.1, 1))
    ]
    assert setups[0].noise_key == setups[1].noise_key != setups[2].noise_key
    claim = Simulation.from_setup(setups[0]).statement()
    assert "epsilon is of this run alone" in claim["secret_draws"]
    assert "keyed by the seed" in claim["generator"]
    assert "share their noise" in in_words(claim)


def test_paired_draws_are_refused_where_they_must_be_secret(data):
    for asked in ("strict", "secure_rng"):
        with pytest.raises(UserError, match=r"privacy\.draws: paired draws follow from the seed"):
            read_spec(given(data, cohort={"size": 3}, privacy=CENTRAL | {"draws": "paired", asked: True}))
