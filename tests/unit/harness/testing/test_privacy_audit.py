"""The audit of the real mechanism finds what was broken on purpose, and hardly ever accuses an honest one."""

import json

import numpy as np
import pytest
import torch
from scipy import stats

from harness.cli.parser import main
from harness.config.run import read_spec
from harness.core.channel import Channel
from harness.core.clients import Clients
from harness.core.wire.dp_client import Mechanism
from harness.simulation.build import prepare
from harness.testing.privacy_audit import audit_mechanism, audit_run
from tests.support.wire import privacy, record

TRIALS = 60
MECHANISMS = {
    "local": privacy("local", 1.0, 3.0),
    "central": privacy("central", 1.0, 3.0),
    "each part": privacy("local", (1.0, 4.0), 1.0),
    "adaptive": privacy("central", "adaptive", 3.0),
    "strong noise": privacy("central", 0.5, 40.0),
}


class HalfTheNoise(Mechanism):
    def noise(self, *arguments, **settings):
        return 0.5 * super().noise(*arguments, **settings)


class NoClip(Mechanism):
    def clip(self, slot, parts, samples=None):
        return super().clip(slot, parts)._replace(parts=tuple(parts))  # a norm may have to be remembered


class NoiseBeforeTheClip(Mechanism):
    def clip(self, slot, parts, samples=None):
        joint = torch.cat(parts, -1)
        super().clip(slot, parts)
        noisy = joint + super().noise(joint, slot, self.sensitivity(slot), "client")
        return super().clip(slot, list(noisy.split([part.shape[-1] for part in parts], -1)))

    def noise(self, like, *arguments, **settings):
        return torch.zeros_like(like)


class SameNoiseInEveryMessage(Mechanism):
    def _streams(self, purpose, slot, rows, sender):
        return super()._streams(purpose, 0, rows, sender)


class SameNoiseInEveryRound(Mechanism):
    def _streams(self, purpose, slot, rows, sender):
        seed, count = self._clients.seeds[0], len(super()._streams(purpose, slot, rows, sender))
        return [np.random.default_rng((seed, slot, n)) for n in range(count)]


BROKEN = [HalfTheNoise, NoClip, NoiseBeforeTheClip, SameNoiseInEveryMessage, SameNoiseInEveryRound]


def with_broken(kind):
    """Return a channel whose mechanism is broken."""
    return type("Broken", (Channel,), {"mechanism": kind})


def alarms(mechanism, times, trials=TRIALS, **what):
    """Audit so many times, each with its own canary and noise."""
    found = [audit_mechanism(mechanism, trials, seed=10 * n, **what)["findings"] for n in range(times)]
    return sum(bool(findings) for findings in found)


@pytest.mark.parametrize("broken", BROKEN)
@pytest.mark.parametrize("name", MECHANISMS)
def test_a_broken_channel_is_flagged(name, broken):
    assert alarms(MECHANISMS[name], 6, channel=with_broken(broken)) == 6


@pytest.mark.parametrize("broken", BROKEN)
def test_power_is_at_least_99_in_100(broken):
    """All of 300 flagged: a power below 0.99 would do that with probability below 0.05."""
    assert 0.99**300 < 0.05
    assert alarms(MECHANISMS["local"], 300, trials=30, channel=with_broken(broken)) == 300


@pytest.mark.parametrize("name", ["local", "central"])
def test_an_honest_channel_is_hardly_ever_flagged(name):
    """At a false-alarm rate of 0.01, more than 8 alarms in 200 audits have probability below 1e-3."""
    assert stats.binom.sf(8, 200, 0.01) < 1e-3
    assert alarms(MECHANISMS[name], 200, trials=30) <= 8


class HalfTheRecordNoise(Clients):
    def _private_gradients(self, mechanism, *arguments):
        honest = super()._private_gradients(mechanism, *arguments)
        return [0.5 * gradient for gradient in honest]


def test_record_level_gradients_are_audited_too():
    mechanism = record(1.0, 3.0)
    assert audit_mechanism(mechanism, TRIALS)["findings"] == []
    assert audit_mechanism(mechanism, TRIALS, clients=HalfTheRecordNoise)["findings"]


def test_clipping_alone_claims_nothing():
    assert audit_mechanism(privacy("local", 1.0, 0.0), 5)["note"] == "no noise, nothing claimed"


def run_file(**mechanism):
    return {
        "data": "breast-cancer",
        "partition": {"kind": "iid", "clients": 10},
        "model": "logistic",
        "algorithm": {"name": "fedavg", "lr": 1.0, "local_steps": 5, "batch_size": None},
        "privacy": {"unit": "client", "placement": "central", "clip": 1.0} | mechanism,
        "rounds": 4,
    }


def test_a_run_without_noise_betrays_its_canaries():
    """With fewer clients than parameters nothing hides who took part; the claim is then infinite, and true."""
    setup = prepare(read_spec(run_file(noise_multiplier=0)))
    found = audit_run(setup, 40)
    assert found["epsilon_lower"] > 0.3 and found["epsilon_upper"] == "inf" and not found["findings"]


def test_a_run_that_forgets_its_noise_is_caught(monkeypatch):
    setup = prepare(read_spec(run_file(epsilon=0.1)))
    assert not audit_run(setup, 40)["findings"]
    monkeypatch.setattr(Mechanism, "noise", lambda self, like, *others, **named: torch.zeros_like(like))
    assert audit_run(setup, 40)["findings"]


@pytest.mark.parametrize("unit", ["client", "record"])
def test_the_command_prints_both_parts(unit, tmp_path, capsys):
    content = run_file(epsilon=4) | {"privacy": {"unit": unit, "clip": 1.0, "epsilon": 4}}
    file = tmp_path / "run.yaml"
    file.write_text(json.dumps(content))
    assert main(["audit", "--spec", str(file), "--trials", "20", "--canaries", "8", "--json"]) == 0
    mechanism, run = json.loads(capsys.readouterr().out)
    assert (mechanism["part"], run["part"]) == ("mechanism", "run")
    assert run["epsilon_lower"] <= run["epsilon_upper"] <= 4 * (1 + 1e-6)


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"privacy": None}, "claims no privacy"),
        ({"algorithm": {"name": "local"}}, "one model of the server"),
    ],
)
def test_what_cannot_be_audited_is_refused(change, complaint, tmp_path, capsys):
    file = tmp_path / "run.yaml"
    file.write_text(json.dumps(run_file(epsilon=4) | change))
    assert main(["audit", "--spec", str(file), "--trials", "20", "--canaries", "8"]) == 2
    assert complaint in capsys.readouterr().err
