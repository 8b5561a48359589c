"""Two private simulations never share a noise key, unless they are one."""

import pytest

from harness.core.settings.privacy import Privacy
from harness.testing.small_tasks import simulate, task
from privacy.own_mechanism import MECHANISMS, mechanism
from tests.support.mechanisms import Laplace
from tests.support.worlds import make_algorithm

LOCAL = {"placement": "local"}
RECORD = {"unit": "record", "sampling": "poisson"}
CENTRAL = {"placement": "central", "sampling": "poisson"}


def key(privacy, seed=0, **settings):
    algorithm = make_algorithm("fedavg", local_steps=1, batch_size=4, **settings)
    (found,) = simulate(algorithm, task("erm"), privacy=privacy, rounds=0, seeds=(seed,)).cohorts.noise_keys
    return found


def test_whatever_differs_in_the_mechanism_gives_other_noise():
    """In every setting of the section, and in the noise that was found."""
    others = [
        Privacy.of(1.0, **LOCAL),
        Privacy.of(1.0, **LOCAL, clip=2.0),
        Privacy.of(1.0, **LOCAL, clip=2.0 + 1e-15),
        Privacy.of(1.0, **LOCAL, clip=[2.0]),
        Privacy.of(1.0, **LOCAL, delta=1e-6),
        Privacy.of(1.0, **LOCAL, server_clip=1.0),
        Privacy.of(1.0, **LOCAL).with_noise(2.0),
        Privacy.of(1.0, **LOCAL).with_noise(1.0, 2),
        Privacy.of(1.0, **RECORD),
        Privacy.of(1.0, **RECORD, ghost=True),
        Privacy.of(1.0, **RECORD).with_noise(1.0, multipliers=(1.0,) * 5),
        Privacy.of(1.0, **RECORD).with_noise(1.0, multipliers=(1.0,) * 4 + (1.1,)),
        Privacy.of(1.0, **CENTRAL),
        Privacy.of(1.0, **CENTRAL, noise_cohort=7),
        Privacy.of(1.0, placement="central"),
        Privacy.of(1.0, placement="distributed"),
        Privacy.of(1.0, placement="distributed", bits=12),
        Privacy.of(1.0, placement="distributed", bits=13),
    ]
    keys = [key(one) for one in others] + [key(others[0], seed=1), key(others[0], lr=0.2)]
    assert len(set(keys)) == len(keys)
    assert key(others[0]) == keys[0], "the same simulation has the same noise"


@pytest.fixture
def cell():
    """Return a function that registers a mechanism as a cell of a notebook does."""
    yield lambda: mechanism(type("Mine", (Laplace,), {"name": "mine", "__module__": "__main__"}))
    MECHANISMS.pop("mine", None)


def test_a_mechanism_of_a_notebook_has_noise_of_its_own_each_time(cell):
    """Two shapes of one noise, both seen, would give the message away."""
    cell()
    privacy = Privacy.of(1.0, **LOCAL, mechanism="mine")
    first = key(privacy)
    cell()
    assert key(privacy) != first
