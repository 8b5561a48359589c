"""The gradient of the Moreau envelope of a maximum: against values by hand and another solver."""

import numpy as np
import pytest
import torch
from scipy.optimize import minimize

from harness.config.run import read_spec
from harness.core.errors import UserError
from harness.core.flat_model import Ravel
from harness.core.methods.moreau import envelope_gradient
from harness.simulation.build import prepare
from harness.simulation.calibration import calibrated
from harness.simulation.simulation import Simulation


def parabolas(z):
    """L_1 = z^2 / 2 and L_2 = (z - 2)^2 / 2 + 1/2 are equal at z = 1.25, where their slopes are 1.25 and -0.75."""
    return torch.cat([z**2 / 2, (z - 2) ** 2 / 2 + 0.5])


@pytest.mark.parametrize(("x", "expected"), [(1.25, 0.0), (1.35, 0.1), (10.0, 5.0), (-2.0, 2.0), (0.0, 1.0)])
def test_the_envelope_of_two_parabolas_is_known(x, expected):
    """w = 1. At the kink nothing moves: 0 is between the slopes. From 1.35 prox is the kink, as |1.25 - 1.35| is
    below the slope 1.25. Right of it Phi = z^2 / 2, so z + (z - 10) = 0, z = 5. Left of it (z - 2) + (z - x) = 0,
    z = (2 + x) / 2: 0 from -2, which is 2 away, and 1 from 0."""
    found = envelope_gradient(parabolas, torch.tensor([x]), 1.0)
    assert found == pytest.approx(expected, rel=0.011, abs=1e-4)


def test_more_weight_brings_it_closer_to_the_gradient():
    """From x = 10 prox is w x / (w + 1), and the result 10 w / (w + 1) tends to the slope 10."""
    for weight in (1.0, 10.0, 100.0):
        found = envelope_gradient(parabolas, torch.tensor([10.0]), weight)
        assert found == pytest.approx(10 * weight / (weight + 1), rel=0.011)


def test_losses_that_are_not_finite_give_none():
    assert np.isnan(envelope_gradient(lambda z: parabolas(z) * float("nan"), torch.tensor([1.0]), 1.0))


def solved(losses, x, weight):
    """Return w |x - prox(x)| by SLSQP on the epigraph form: min t + w/2 |z - x|^2 with all losses at most t."""
    start = np.append(x.numpy(), float(losses(x).max()))
    jacobian = torch.func.jacrev(losses)

    def slack(at):
        return at[-1] - losses(torch.from_numpy(at[:-1])).numpy()

    def slopes(at):
        rows = -jacobian(torch.from_numpy(at[:-1])).numpy()
        return np.c_[rows, np.ones(len(rows))]

    found = minimize(
        lambda at: at[-1] + weight / 2 * ((at[:-1] - x.numpy()) ** 2).sum(),
        start,
        jac=lambda at: np.append(weight * (at[:-1] - x.numpy()), 1.0),
        constraints={"type": "ineq", "fun": slack, "jac": slopes},
        method="SLSQP",
        options={"ftol": 1e-12, "maxiter": 500},
    )
    assert found.success
    return weight * float(np.linalg.norm(found.x[:-1] - x.numpy()))


SPEC = {
    "data": "breast-cancer",
    "partition": {"kind": "shards", "clients": 4, "by_class": True},
    "problem": {"kind": "fair_classification", "envelope": 0.5},
    "model": "logistic",
    "algorithm": {"name": "fedsgda_plus", "lr_x": 0.1, "lr_y": 0.1, "local_steps": 5, "batch_size": 20},
    "rounds": 3,
}


@pytest.mark.slow
def test_fair_classification_agrees_with_another_solver():
    """The losses are means over clients of their class means; a class that a client lacks counts 0 there."""
    setup = calibrated(prepare(read_spec(SPEC)))
    run = Simulation.from_setup(setup)
    for _ in range(3):
        run.step()
    pool, train, ravel = setup.federation.pool, setup.federation.splits["train"], Ravel(setup.problem.module)

    def losses(z):
        means = []
        for held in train:
            labels = pool.y[held[held >= 0]]
            errors = -ravel(z, pool.x[held[held >= 0]].double()).log_softmax(-1)
            own = [errors[labels == c, c].mean() if (labels == c).any() else errors.sum() * 0 for c in (0, 1)]
            means.append(torch.stack(own))
        return torch.stack(means).mean(0)

    expected = solved(losses, run.state.x.double(), 0.5)
    assert expected > 0.01
    assert run.evaluate().metrics["stationarity"] == pytest.approx(expected, rel=0.011)


def test_without_the_setting_there_is_no_stationarity():
    setup = calibrated(prepare(read_spec({**SPEC, "problem": "fair_classification"})))
    assert "stationarity" not in Simulation.from_setup(setup).evaluate().metrics


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"model": "mlp"}, "those of the model logistic; given mlp"),
        ({"problem": {"kind": "fair_classification", "envelope": 0}}, "must be positive, given 0"),
    ],
)
def test_an_envelope_that_cannot_be_measured_is_refused(changed, message):
    with pytest.raises(UserError, match=message):
        prepare(read_spec({**SPEC, **changed}))
