"""Runs whose records are clipped without gradients of their own."""

from dataclasses import replace

import pytest
import torch
from torch import nn

import harness
from harness.config.run import read_spec
from harness.core.errors import Incompatible, UserError
from harness.models import model
from harness.simulation.build import prepare
from harness.simulation.calibration import calibrated
from tests.support.runs import finished, given, ready

RECORD = {"unit": "record", "noise_multiplier": 1.0, "clip": 0.3}
MLP = {"name": "mlp", "hidden": [16]}
COMPRESSED = {"alpha": 0.5, "beta": 0.5}


@pytest.mark.parametrize(
    ("algorithm", "fields"),
    [
        ("fedavg", {}),
        ("scaffold", {"compression": COMPRESSED}),
        ({"name": "fedrep", "local_steps": 2}, {}),
        ({"name": "splitnn", "local_steps": 2, "batch_size": 16}, {"problem": "vertical"}),
    ],
)
def test_a_run_ends_as_with_gradients_of_samples_but_for_rounding(data, algorithm, fields):
    """Noise is keyed by the run, whose name is another: the same is given to both."""
    if fields.get("problem") == "vertical":
        fields = fields | {"partition": {"kind": "columns", "clients": 2}}
    ends = []
    for ghost in (False, True):
        setup = ready(
            data, algorithm, model=MLP, privacy=RECORD | {"ghost": ghost}, precision="float64", **fields
        )
        setup = replace(setup, noise_key="the same noise")
        run = finished(setup)
        ends.append(torch.cat([part.flatten() for part in run.state if part.is_floating_point()]))
        assert run.statement()["epsilon_total"] > 0
    assert float((ends[0] - ends[1]).norm() / ends[0].norm()) < 1e-9
    assert setup.executor._layouts, "another way to compute"


def test_what_cannot_be_is_refused_before_the_run_also_for_pruned_networks(data):
    privacy = RECORD | {"ghost": True}
    run = given(data, "fedavg", model=MLP, privacy=privacy, precision="bfloat16")
    with pytest.raises(Incompatible, match="precision float32 or float64"):
        calibrated(prepare(read_spec(run)))
    run = given(data, {"name": "prunefl", "local_steps": 2}, model=MLP, privacy=privacy)
    with pytest.raises(Incompatible, match=r"privacy\.ghost"):
        calibrated(prepare(read_spec(run)))


class Longer(nn.Linear):
    def forward(self, x):
        return 10 * super().forward(x)


@pytest.mark.usefixtures("registries")
def test_run_and_plan_refuse_a_model_without_a_formula(data, tmp_path):
    def longer(shape, outputs):
        return nn.Sequential(Longer(shape[0], 8), nn.ReLU(), nn.Linear(8, outputs))

    model("tables")(longer)
    run = given(data, "fedavg", model="longer", privacy=RECORD | {"ghost": True})
    for begin in (harness.prepare, lambda spec: harness.run(spec, tmp_path / "out")):
        with pytest.raises(Incompatible, match=r"privacy\.ghost: .*no formula for a layer Longer"):
            begin(run)
    assert "no formula for a layer Longer" in harness.plan(run)["reason"][0]
    assert not [*tmp_path.rglob("done.json")]


def test_it_is_for_unit_record(data):
    privacy = {"placement": "central", "epsilon": 1.0, "ghost": True}
    with pytest.raises(UserError, match=r"privacy\.ghost: is for unit record"):
        read_spec(given(data, privacy=privacy))


def test_a_loss_without_a_formula_is_refused_before_the_run(data):
    """Of AUROC the network's parameters are in one variable with two others."""
    algorithm = {"name": "fedsgda_m", "local_steps": 2, "batch_size": 16}
    fields = {"problem": "auroc", "model": MLP, "privacy": RECORD | {"ghost": True}}
    with pytest.raises(Incompatible, match="a variable of the 129 parameters of a network alone"):
        calibrated(prepare(read_spec(given(data, algorithm, **fields))))
