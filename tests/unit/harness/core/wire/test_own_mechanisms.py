"""Messages under a user's mechanism: clipped in the L1 norm, noised as declared, and audited."""

import json
from functools import partial
from itertools import combinations
from typing import get_args

import numpy as np
import pytest
import torch

from harness.cli.parser import main
from harness.config import plugins
from harness.config.run import read_spec
from harness.core.algorithm import ALGORITHMS
from harness.core.errors import UserError
from harness.core.settings.privacy_kinds import Placement
from harness.core.wire.dp_client import AdditiveMechanism
from harness.simulation.build import prepare
from harness.simulation.calibration import calibrated
from harness.simulation.simulation import Simulation
from harness.simulation.stacking import stack_setups
from harness.testing.small_tasks import simulate, small, wide_task
from harness.testing.transcript_audit import audit_transcript
from privacy.accounting import account
from privacy.event import Event
from privacy.own_mechanism import MECHANISMS, RESERVED, Noise
from tests.support.mechanisms import Laplace, Logistic
from tests.support.wire import channel, privacy

PLUGIN = """
import numpy as np
from privacy.own_mechanism import OwnMechanism, mechanism

@mechanism
class Laplace(OwnMechanism):
    '''Laplace noise.'''
    name = "laplace"

    def log_density(self, x):
        return -np.abs(x) / SCALE - np.log(2)

    def log_cdf(self, x):
        return np.where(x < 0, x - np.log(2), np.log1p(-np.exp(-np.abs(x)) / 2))
"""

pytestmark = pytest.mark.usefixtures("registries")


@pytest.fixture(autouse=True)
def _registered():
    for kind in (Laplace, Logistic):
        MECHANISMS[kind.name] = Noise(kind())  # without the checks


def of_user(placement, z, name="laplace", **others):
    return privacy(placement, 1.0, z, mechanism=name, **others)


def spec(**given):
    return {
        "algorithm": "fedavg",
        "data": "breast-cancer",
        "model": "logistic",
        "partition": {"kind": "iid", "clients": 8},
        "rounds": 3,
    } | given


def test_messages_are_clipped_in_the_l1_norm_over_all_parts():
    """(3, -4; 5) has L1 norm 12: a twelfth of it is left."""
    parts = torch.tensor([[3.0, -4.0]]), torch.tensor([[5.0]])
    first, second = channel(of_user("local", 0.0), counts=(4,)).mean(*parts)
    assert torch.allclose(torch.cat([first, second]), torch.tensor([3.0, -4.0, 5.0]) / 12)


@pytest.mark.parametrize(("placement", "scale"), [("local", 2 * 3.0), ("central", 2 * 3.0 / 4)])
def test_noise_has_the_scale_of_the_multiplier_times_the_sensitivity(placement, scale):
    """A message of norm 1 that is replaced moves by 2, an average of four by a half."""
    given = of_user(placement, 3.0, adjacency="replace", sampling="full")
    sent = torch.zeros(4, 50_000)
    mean, rows = channel(given, counts=(4,) * 4).mean_and_sent(sent)
    noise = mean if placement == "central" else rows.flatten()
    assert float(noise.abs().mean()) == pytest.approx(scale, rel=0.03)  # of Laplace noise, the scale
    assert float(noise.std()) == pytest.approx(2**0.5 * scale, rel=0.03)


class Halved(AdditiveMechanism):
    def noise(self, *arguments, **settings):
        return super().noise(*arguments, **settings) / 2


class Longer(AdditiveMechanism):
    """Clips in the L2 norm."""

    def clip(self, slot, parts, samples=None):
        joint = torch.cat(parts, -1)
        factor = (1 / joint.norm(dim=-1, keepdim=True)).clamp(max=1.0)
        return super().clip(slot, parts, samples)._replace(parts=tuple(part * factor for part in parts))


class Gaussian(AdditiveMechanism):
    """Draws normal noise of the standard deviation that is claimed."""

    def noise(self, like, slot, sensitivity, sender, shared=None):
        std = self.deviation(sensitivity)
        return std * torch.randn(like.shape, generator=torch.Generator().manual_seed(self._clients.round)).to(
            like
        )


class Unbooked(AdditiveMechanism):
    def book(self, samples=None):
        if self._clients.round % 2:
            super().book(samples)


def audited(given, cohort=None, name="scaffold", rounds=8):
    cls = ALGORITHMS[name]
    make = partial(simulate, small(cls), wide_task(cls), rounds=0, cohort=cohort)
    return audit_transcript(make, given, rounds)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["laplace", "logistic"])
@pytest.mark.parametrize(
    ("placement", "cohort", "others"),
    [
        ("local", None, {}),
        ("local", 3, {"sampling": "fixed", "rate": 0.6}),
        ("central", None, {}),
        ("central", 2, {"rate": 0.4}),
    ],
)
def test_an_honest_run_under_own_noise_is_not_accused(name, placement, cohort, others):
    found = audited(of_user(placement, 3.0, name, **others), cohort)
    assert found["findings"] == [] and found["tests"] > 10
    assert found["std_measured"] == pytest.approx(found["std_claimed"], rel=0.2)
    assert 0 < found["epsilon_seen"] <= found["epsilon_claimed"] * (1 + 1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("placement", ["local", "central"])
@pytest.mark.parametrize(
    ("broken", "said"),
    [(Halved, "booked standard deviation"), (Longer, "without noise it is off"), (Unbooked, "are booked")],
)
def test_a_broken_use_of_own_noise_is_found(monkeypatch, placement, broken, said):
    monkeypatch.setattr("harness.core.wire.outbox.AdditiveMechanism", broken)
    assert any(said in one for one in audited(of_user(placement, 3.0))["findings"])


@pytest.mark.slow
def test_noise_of_another_distribution_is_found_by_the_audit(monkeypatch):
    monkeypatch.setattr("harness.core.wire.outbox.AdditiveMechanism", Gaussian)
    found = audited(of_user("local", 3.0), rounds=40)["findings"]
    assert any("not distributed as declared" in one for one in found)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"mechanism": "laplaze"}, "laplace"),
        ({"unit": "record", "placement": None}, "independent noise"),
        ({"placement": "distributed"}, "need independent noise"),
        ({"clip": "adaptive", "placement": "central"}, "one clip norm"),
        ({"clip": [1, 2]}, "one clip norm"),
        ({"accountant": "rdp"}, "accountant pld"),
        ({"epsilon": None, "epsilon_nominal": 1}, "of Gaussian noise"),
        ({"bands": 3}, "is for mechanism: banded"),
    ],
)
def test_settings_for_which_nothing_is_proved_are_refused(given, said):
    asked = {"placement": "local", "epsilon": 5, "clip": 1, "mechanism": "laplace"} | given
    with pytest.raises(UserError, match=said):
        read_spec(spec(privacy={name: value for name, value in asked.items() if value is not None}))


@pytest.mark.parametrize("placement", ["local", "central"])
@pytest.mark.parametrize("cohort", [None, {"size": 4}])
def test_a_budget_is_spent_by_the_noise_that_it_calibrates(placement, cohort):
    asked = {"placement": placement, "epsilon": 5, "clip": 1, "mechanism": "laplace"}
    given = spec(privacy=asked) | ({"cohort": cohort} if cohort else {})
    privacy = calibrated(prepare(read_spec(given))).privacy
    if cohort is None:
        spent = account([Event(privacy.noise_multiplier, 1.0, 3, noise=MECHANISMS["laplace"])], 1e-5).epsilon
        assert spent == pytest.approx(5, rel=1e-4) and spent <= 5
    gaussian = calibrated(
        prepare(read_spec(given | {"privacy": asked | {"mechanism": "independent"}}))
    ).privacy
    assert 0.2 < privacy.noise_multiplier / gaussian.noise_multiplier < 2
    release = {key: value for key, value in asked.items() if key != "epsilon"} | {"epsilon_release": 2.0}
    one = calibrated(prepare(read_spec(given | {"privacy": release}))).privacy
    assert MECHANISMS["laplace"].epsilon(1 / one.noise_multiplier, 1e-5) == pytest.approx(2, rel=1e-4)


@pytest.mark.slow
def test_a_statement_names_mechanism_plugin_and_accountant(tmp_path, capsys):
    del MECHANISMS["laplace"]
    plugin = tmp_path / "noise.py"
    plugin.write_text(PLUGIN.replace("SCALE", "1.0"))
    out = tmp_path / "out"
    asked = "privacy={placement: local, epsilon: 20, clip: 1, mechanism: laplace}"
    options = ["--algorithm", "fedavg", "--data", "breast-cancer", "--clients", "4", "--rounds", "2"]
    assert main(["run", *options, "--plugin", str(plugin), "--set", asked, "--out", str(out)]) == 0
    said, version = capsys.readouterr().out, plugins.loaded()[-1].version
    assert f"mechanism laplace ({version})" in said.replace("\n", " ") and "accountant pld" in said
    (folder,) = (out / "runs").iterdir()
    claim = json.loads((folder / "done.json").read_text())["privacy"]
    assert (claim["mechanism"], claim["mechanism_version"], claim["accountant"]) == (
        "laplace",
        version,
        "pld",
    )
    assert json.loads((folder / "spec.json").read_text())["versions"]["plugins"] == {"privacy": version}
    assert claim["epsilon_total"] == pytest.approx(20, rel=1e-4)
    assert main(["list", "mechanisms", "--plugin", str(plugin)]) == 0
    assert "Laplace noise." in capsys.readouterr().out


def test_a_plugin_whose_density_is_another_is_refused(tmp_path, capsys):
    del MECHANISMS["laplace"]
    plugin = tmp_path / "noise.py"
    plugin.write_text(PLUGIN.replace("SCALE", "0.9"))
    assert main(["list", "mechanisms", "--plugin", str(plugin)]) == 2
    said = capsys.readouterr().err.replace("\n", " ")
    assert "noise.py, line 5" in said and "log_cdf is not that of log_density" in said
    assert "laplace" not in MECHANISMS


def test_stacked_runs_under_own_noise_equal_separate_ones():
    asked = {"placement": "local", "clip": 1, "mechanism": "laplace"}
    setups = [prepare(read_spec(spec(privacy=asked | {"epsilon": budget}))) for budget in (5, 50)]
    stacked = Simulation.from_setup(calibrated(stack_setups(setups)))
    alone = [Simulation.from_setup(calibrated(one)) for one in setups]
    for run in (stacked, *alone):
        run.step()
    for number, one in enumerate(alone):
        assert torch.equal(stacked.state.x[number], one.state.x)


def test_noise_depends_on_the_keyed_stream_only():
    """The harness draws from a message's stream: again equal, for another client or round another."""
    given, sent = of_user("local", 3.0), torch.zeros(2, 40)
    first, again = (channel(given, counts=(4, 4)).mean_and_sent(sent)[1] for _ in range(2))
    later = channel(given, counts=(4, 4), round=1).mean_and_sent(sent)[1]
    assert torch.equal(first, again)
    each = [*first, *later]
    assert all(not (one == other).any() for one, other in combinations(each, 2))


def test_a_users_mechanism_is_never_replaced_by_noise_of_ours():
    """The name of a placement is not registered; were it, its noise would still be drawn."""
    assert {"independent", "banded", *get_args(Placement)} <= set(RESERVED)
    MECHANISMS["distributed"] = Noise(Laplace())
    sending = channel(of_user("central", 3.0, "distributed"), counts=(4,))
    assert isinstance(sending._mechanism, AdditiveMechanism)


def test_a_mechanism_that_is_not_registered_is_no_gaussian_noise():
    given = of_user("central", 3.0)
    del MECHANISMS["laplace"]
    with pytest.raises(UserError, match="laplace"):
        channel(given, counts=(4,)).mean(torch.zeros(1, 3))
    assert privacy("central", 1.0, 3.0).user_noise is None


@pytest.mark.parametrize("given", [{"noise_multiplier": 1e-9}, {"epsilon": 5, "delta": 1e-28}])
def test_a_budget_that_cannot_be_computed_is_refused(given):
    """Functions that end too early allow no noise that is so weak, and no delta is below the tails."""

    class Early(Laplace):
        def log_density(self, x):
            with np.errstate(divide="ignore"):
                return np.log(np.exp(-np.abs(x)) / 2)

    MECHANISMS["early"] = Noise(Early())
    asked = {"placement": "local", "clip": 1, "mechanism": "early"} | given
    setup = prepare(read_spec(spec(privacy=asked)))
    with pytest.raises(UserError, match=r"privacy\.mechanism"):
        run = Simulation.from_setup(calibrated(setup))
        run.step()
        run.statement()


@pytest.mark.parametrize("placement", ["local", "central"])
def test_a_resumed_run_under_own_noise_equals_a_straight_one(placement):
    asked = {"placement": placement, "clip": 1, "mechanism": "logistic", "epsilon": 20}
    setup = calibrated(prepare(read_spec(spec(privacy=asked))))
    straight, resumed = Simulation.from_setup(setup), Simulation.from_setup(setup)
    straight.step()
    resumed.load_state_dict(straight.state_dict())
    for run in (straight, resumed):
        run.step()
    assert torch.equal(straight.state.x, resumed.state.x)
