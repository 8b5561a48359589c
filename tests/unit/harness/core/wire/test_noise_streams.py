"""Rule 8: every draw of a run has a key of its own."""

import pytest
import torch

from harness.config.run import read_spec
from harness.core import rng
from harness.core.algorithm import ALGORITHMS
from harness.core.settings.compression import Compression
from harness.simulation.build import prepare
from harness.simulation.calibration import calibrated
from tests.support.runs import finished, ready
from tests.support.wire import channel, cohort, privacy, record

LOCAL = {"placement": "local", "clip": 1.0, "noise_multiplier": 1.0}
CENTRAL = {**LOCAL, "placement": "central"}
RUNS = {
    "local": {"privacy": LOCAL, "compression": {"codec": "q4", "beta": 0.5, "downlink": True}},
    "random-k": {"privacy": LOCAL, "compression": {"beta": 0.5, "select": "random_k", "downlink": True}},
    "central": {"privacy": {**CENTRAL, "clip": "adaptive"}, "cohort": {"size": 3}},
    "record": {"privacy": {**LOCAL, "unit": "record"}},
}


@pytest.fixture
def keys(monkeypatch: pytest.MonkeyPatch) -> list[tuple]:
    """Record what every key is made for."""
    seen: list[tuple] = []

    def spy(plain):
        def called(seed, *purpose):
            seen.append((seed, *purpose))
            return plain(seed, *purpose)

        return called

    for name in ("key", "noise_stream"):
        monkeypatch.setattr(rng, name, spy(getattr(rng, name)))
    return seen


@pytest.mark.parametrize("name", RUNS)
@pytest.mark.parametrize("algorithm", ["fedavg", "scaffold"])
def test_no_key_is_drawn_twice_in_a_private_run(data, keys, name: str, algorithm: str) -> None:
    setup = ready(data, algorithm, **RUNS[name], rounds=3)
    keys.clear()
    finished(setup)
    drawn = [key for key in keys if key[1] not in ("partition", "start")]
    assert len(drawn) == len(set(drawn))
    assert any("noise" in str(key[1]) for key in drawn)


def test_no_key_is_drawn_twice_in_a_gossiping_run(keys) -> None:
    matrices = {"P": [1, -0.5, 1], "B": [1, 2, 1], "Q": [1, 2, 1], "c": [2, -2, 0], "d": [0, 4, 1]}
    for unit in ("client", "record"):
        spec = read_spec(
            {
                "problem": {"kind": "quadratic_minimax", **matrices},
                "algorithm": {"name": "k_gt_minimax", "local_steps": 2, "batch_size": 1},
                "topology": "complete",
                "privacy": {"unit": unit, **LOCAL},
                "compression": {"codec": "q8"},
                "rounds": 3,
            }
        )
        setup = calibrated(prepare(spec))
        keys.clear()
        finished(setup)
        assert len(keys) == len(set(keys))
        assert sum("noise" in str(key[1]) for key in keys) >= 3 * 3


def noise(seed: int = 0, round: int = 0, message: int = 0) -> torch.Tensor:
    """Return the noise of one message of each client."""
    way = channel(privacy(z=1.0), round=round, seeds=(seed,))
    zeros = torch.zeros(4, 50, dtype=torch.float64)
    return [way.gather(zeros) for _ in range(message + 1)][-1]


def test_noise_differs_between_clients_rounds_messages_and_seeds() -> None:
    """All pairs of 50 normal numbers are uncorrelated up to chance, |r| < 0.65 (4.6 sigma)."""
    drawn = torch.cat([noise(), noise(round=1), noise(round=-1), noise(message=1), noise(seed=1)])
    correlation = torch.corrcoef(drawn) - torch.eye(20, dtype=torch.float64)
    assert correlation.abs().max() < 0.65


def test_noise_is_reproducible_and_does_not_depend_on_the_cohort() -> None:
    assert torch.equal(noise(), noise())
    alone = channel(privacy(z=1.0), ids=[2]).gather(torch.zeros(1, 50, dtype=torch.float64))
    assert torch.equal(alone[0], noise()[2])


def test_the_server_s_noise_is_its_own() -> None:
    zeros = torch.zeros(4, 50, dtype=torch.float64)
    one = channel(privacy("central", z=1.0)).mean(zeros)
    two = channel(privacy("central", z=1.0), round=1).mean(zeros)
    own = noise()
    correlation = torch.corrcoef(torch.stack([one, two, *own])) - torch.eye(6, dtype=torch.float64)
    assert correlation.abs().max() < 0.65


def test_the_noise_of_every_gradient_is_its_own() -> None:
    """Two gradients on one batch, two batches, two clients: eight different draws."""
    clients = cohort(mechanism=record(z=1.0))
    x = clients.rows(torch.zeros(8, dtype=torch.float64))
    drawn = [
        clients.grad(x, batch)
        for batch in clients.batches(ALGORITHMS["fedavg"](local_steps=2, batch_size=None))
        for _ in range(2)
    ]
    base = cohort(mechanism=record())
    (batch,) = base.batches(ALGORITHMS["fedavg"](local_steps=1, batch_size=None))
    noises = torch.cat([one - base.grad(x, batch) for one in drawn])
    gaps = torch.cdist(noises, noises) + torch.eye(16, dtype=torch.float64)
    assert gaps.min() > 1e-3


SECRETS = {
    "local": {"privacy": {**LOCAL, "secure_rng": True}},
    "central": {"privacy": {**CENTRAL, "clip": 1.0, "secure_rng": True}, "cohort": {"size": 3}},
    "record": {"privacy": {"unit": "record", "clip": 1.0, "noise_multiplier": 0.0, "secure_rng": True}},
}


@pytest.mark.parametrize("name", SECRETS)
def test_what_protects_comes_from_the_system_if_asked(data, keys, name: str) -> None:
    """Noise, and cohorts and batches whose secrecy is claimed; with noise 0 the batches alone."""
    setups = [ready(data, "fedavg", **SECRETS[name], rounds=2) for _ in range(2)]
    assert setups[0].id == setups[1].id and setups[0].noise_key != setups[1].noise_key
    keys.clear()
    one, two = (finished(setup) for setup in setups)
    assert not torch.equal(one.state.x, two.state.x)
    seeded = {key[1] for key in keys if key[0] == 0}
    assert seeded == {"local": {"batch"}, "central": {"batch"}, "record": set()}[name]


def test_runs_of_a_ladder_share_no_noise(data) -> None:
    """Shared, the noise of two budgets cancels: (z1 d2 - z2 d1) / (z1 - z2) is the clean update."""
    mechanism = {"placement": "central", "clip": 1.0}
    clean, *noisy = (
        finished(ready(data, "fedavg", privacy={**mechanism, "noise_multiplier": z}, rounds=1)).state.x
        for z in (0.0, 1.0, 3.0)
    )
    guess = (3.0 * noisy[0] - 1.0 * noisy[1]) / 2.0
    assert (guess - clean).norm() > 0.3 * (noisy[0] - clean).norm()


def test_a_stochastic_code_uses_other_numbers_than_the_noise() -> None:
    """Both at once: dropping the code's randomness changes nothing of the noise."""
    zeros = torch.zeros(4, 50, dtype=torch.float64)
    plain = channel(privacy(z=1.0)).gather(zeros)
    coded = channel(privacy(z=1.0), Compression(codec="q8")).gather(zeros)
    assert torch.corrcoef(torch.stack([plain[0], coded[0]]))[0, 1] > 0.99
