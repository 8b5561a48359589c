"""Methods for fair models against averaging, saddle points and numbers by hand."""

from dataclasses import replace
from functools import partial
from itertools import pairwise

import pytest
import torch

from algorithms.fairness.fairfed import _distance
from datasets.federation import Batch
from harness.core import Problem
from harness.core.errors import Incompatible
from harness.core.losses import weighted_mean
from harness.core.methods.fairness import (
    decisions,
    group_shares,
    group_weighted_loss,
    penalized_loss,
    soft_gap,
)
from harness.core.settings.compression import Compression
from tests.support.worlds import (
    close,
    federation_of,
    largest_difference,
    logistic,
    random_federation,
    run_algorithm,
)
from tests.support.worlds import scalar_quadratic as plain_quadratic

GROUPS = ("a", "b")


def classes(sizes=(9, 20, 14)):
    return logistic(4, 2), random_federation(sizes, classes=2, groups=2)


def points(*centers, copies=None):
    """Clients whose losses are (w - c)^2 / 2, who decide nothing: all scores are 0."""
    problem, federation = plain_quadratic([1.0] * len(centers), centers, copies)
    scores = lambda x, inputs: 0 * x + x.new_zeros(len(inputs), 2)  # noqa: E731
    return replace(problem, predict=scores), replace(federation, groups=GROUPS)


def two_groups(held=((9, 1), (18, 2), (63, 7))):
    """Clients with so many samples of groups at 0 and 4, the loss (w - c)^2 / 2."""

    def loss(w, batch):
        return weighted_mean(0.5 * (w - batch.x[..., 0]) ** 2, batch.weight)

    groups = [torch.repeat_interleave(torch.arange(2), torch.tensor(sizes)) for sizes in held]
    federation = federation_of([4.0 * group[:, None].double() for group in groups])
    federation = replace(federation, pool=federation.pool._replace(group=torch.cat(groups)), groups=GROUPS)
    start = lambda generator: {"x": torch.zeros(1, dtype=torch.float64)}  # noqa: E731
    return Problem("two groups", "erm", start, loss), federation


def sample(scores, labels, group, weight=None):
    """One batch whose inputs are the scores themselves, and the problem that returns them."""
    x = torch.tensor(scores, dtype=torch.float64)
    weight = torch.ones(len(x), dtype=torch.float64) if weight is None else torch.tensor(weight).double()
    batch = Batch(torch.stack([0 * x, x], -1), torch.tensor(labels), torch.tensor(group), weight)
    problem = Problem(
        "scores", "erm", lambda g: {}, lambda x, b: x.sum(), predict=lambda x, inputs: x * inputs
    )
    return problem, batch


ONE = torch.ones(1, dtype=torch.float64)


@pytest.mark.parametrize("name", ["fairfed", "fedminmax", "afl", "drfa", "q_fedavg", "fcfl"])
def test_losses_and_rates_of_a_round_take_no_error_feedback(name):
    """What was not sent of last round's loss is not to be added to this round's."""
    owed = Compression(beta=0.5, error_feedback=True, codec="float64")
    work = {"local_steps": 1, "batch_size": 4}
    with pytest.raises(Incompatible, match="statistics of this round"):
        run_algorithm(name, *classes(), 1, compression=owed, **work)
    run_algorithm(name, *classes(), 1, compression=owed.model_copy(update={"error_feedback": False}), **work)


def test_the_soft_gap_of_hand_made_scores():
    """Rates of positives: sigmoid(0) = 1/2; (sigmoid(ln 3) + 1/2) / 2 = 5/8; group 2 has none. Gap 1/8."""
    ln3 = float(torch.tensor(3.0).log())
    problem, batch = sample([0.0, ln3, 0.0, 9.0, 9.0], [1, 1, 1, 0, 0], [0, 1, 1, 1, 2])
    assert close(soft_gap(problem, 3)(ONE, batch), 0.125, 1e-7)


def test_the_soft_gap_ignores_padding_and_is_zero_of_one_group():
    problem, batch = sample([0.0, 5.0], [1, 1], [0, 1], weight=[1, 0])
    assert close(soft_gap(problem, 2)(ONE, batch), 0.0, 0)
    leaf = ONE.clone().requires_grad_()
    (gradient,) = torch.autograd.grad(soft_gap(problem, 2)(leaf, batch), leaf)
    assert close(gradient, 0.0, 0)


def test_the_penalty_s_gradient_is_its_finite_difference():
    problem, federation = classes()
    batch = federation.pool.at(torch.arange(30))
    loss = penalized_loss(problem, 2, 0.7, 3.0)
    x = torch.linspace(-1, 1, 10, dtype=torch.float64)
    found = torch.func.grad(loss)(x, batch)
    for i in range(len(x)):
        bump = torch.zeros_like(x)
        bump[i] = 1e-6
        slope = float(loss(x + bump, batch) - loss(x - bump, batch)) / 2e-6
        assert float(found[i]) == pytest.approx(slope, abs=1e-7)
    assert float((found - torch.func.grad(problem.loss)(x, batch)).norm()) > 1e-2


def test_fedreg_without_penalty_is_fedavg():
    """B8."""
    hyper = {"lr": 0.3, "local_steps": 4, "batch_size": 5}
    plain = run_algorithm("fedavg", *classes(), 6, **hyper).state
    assert (
        largest_difference(run_algorithm("fedreg", *classes(), 6, penalty=0.0, **hyper).state, plain) < 1e-12
    )
    assert (
        largest_difference(run_algorithm("fedreg", *classes(), 6, penalty=0.5, **hyper).state, plain) > 1e-3
    )


def test_fedminmax_without_ascent_is_fedavg():
    """B9: mu stays rho, so all weights are 1."""
    plain = run_algorithm("fedavg", *classes(), 8, lr=0.3, local_steps=1, batch_size=6).state
    fair = run_algorithm("fedminmax", *classes(), 8, lr=0.3, lr_mu=0.0, batch_size=6).state
    assert close(fair.x, plain.x, 1e-12)


def test_fedminmax_brings_the_risks_of_two_groups_together():
    """B6: 90 samples at 0, 10 at 4. Risks are equal at 2, which mu = (1/2, 1/2) makes the minimum.

    rho = (.9, .1), and plain averaging ends at .4.
    """
    state = run_algorithm("fedminmax", *two_groups(), 120, lr=0.5, lr_mu=0.02, batch_size=None).state
    assert close(state.rho, [0.9, 0.1], 1e-12)
    assert close(state.x, 2.0, 1e-6) and close(state.mu, [0.5, 0.5], 1e-6)
    plain = run_algorithm("fedavg", *two_groups(), 40, lr=0.5, local_steps=1, batch_size=None).state
    assert close(plain.x, 0.4, 1e-6)


def test_fedminmax_follows_the_gradient_of_all_samples():
    """Clients of (90, 10), (10, 90) and (5, 45) samples: after one round x = lr sum_a mu_a (c_a - 0).

    The first mixture is rho = (105, 145) / 250, risks at 0 are (0, 8), so mu_1 moves by .1 * 8 / 2 on the simplex.
    """
    task = two_groups(((90, 10), (10, 90), (5, 45)))
    once = run_algorithm("fedminmax", *task, 1, lr=0.1, lr_mu=0.1, batch_size=None).state
    assert close(once.x, 0.1 * 0.58 * 4, 1e-12)
    assert close(once.mu, [0.42 - 0.4, 0.58 + 0.4], 1e-12)
    twice = run_algorithm("fedminmax", *task, 2, lr=0.1, lr_mu=0.1, batch_size=None).state
    assert close(twice.x, 0.232 + 0.1 * (0.98 * 4 - 0.232), 1e-12)


def test_group_risks_add_up_to_the_mean_loss():
    problem, federation = classes()
    batch = federation.pool.at(torch.tensor([*range(12), -1, -1]))
    x, w = torch.linspace(-1, 1, 10, dtype=torch.float64), torch.tensor([0.3, 1.7], dtype=torch.float64)
    risks = torch.func.grad(group_weighted_loss(problem), argnums=1)(x, w, batch)
    assert close(risks.sum(), problem.loss(x, batch), 1e-12)
    assert close(group_weighted_loss(problem)(x, w, batch), w @ risks, 1e-12)
    assert close(group_shares(2)(batch).sum(), 1.0, 1e-12)


@pytest.mark.slow
def test_fcfl_in_its_first_stage_lowers_the_larger_loss():
    """B7: losses (w - c)^2 / 2 with c = 0 and 4 are equal at 2; plain steps of size .01 stay within .05 of it."""
    hyper = {"lr": 0.01, "weight_decay": 0.0, "batch_size": None}
    hyper["start"] = {"x": torch.full((1,), 1.6, dtype=torch.float64)}
    state = run_algorithm("fcfl", *points(0.0, 4.0), 300, **hyper).state
    assert close(state.x, 2.0, 0.05)
    assert float(state.width_loss) < 0.01  # the maximum has become sharp
    unequal = run_algorithm("fcfl", *points(0.0, 0.0, 4.0), 300, **hyper).state
    assert close(unequal.x, 2.0, 0.05)


@pytest.mark.slow
def test_fcfl_in_its_second_stage_raises_nobody_s_loss():
    """From 6 both losses fall until w is at most 4, where one of them would rise: there the run stays.

    The last step is at most lr times the larger gradient, 4.
    """
    seen = []
    hyper = {"lr": 0.05, "weight_decay": 0.0, "minmax_rounds": 0, "batch_size": None}
    start = {"x": torch.full((1,), 6.0, dtype=torch.float64)}
    run_algorithm("fcfl", *points(0.0, 4.0), 150, start=start, watch=seen.append, **hyper)
    path = torch.cat([state.x for state in seen])
    for center in (0.0, 4.0):
        losses = (path - center) ** 2 / 2
        assert bool((losses[1:] <= losses[:-1] + 1e-9).all())
    assert close(path[-1], 4.0, 0.05 * 4) and close(path[-1], path[-50], 1e-12)


@pytest.mark.slow
def test_fcfl_ignores_gaps_within_the_budget():
    """Then in the first stage only the way along the worst loss can be taken, unless the gap's agrees more."""
    task = classes()
    hyper = {"lr": 0.1, "batch_size": None, "minmax_rounds": 0, "weight_decay": 0.0}
    mild, steep = (run_algorithm("fcfl", *task, 20, budget=1e9, slope=s, **hyper).state for s in (1.0, 30.0))
    assert close(mild.x, steep.x, 1e-12)
    tight = run_algorithm("fcfl", *task, 20, budget=0.0, slope=1.0, **hyper).state
    assert float((tight.x - mild.x).abs().max()) > 1e-4


def test_afl_without_ascent_averages_clients_equally():
    task = logistic(), random_federation([8, 8, 8])
    hyper = {"lr": 0.3, "local_steps": 3, "batch_size": 4}
    plain = run_algorithm("fedavg", *task, 5, **hyper).state
    assert close(run_algorithm("afl", *task, 5, lr_weights=0.0, **hyper).state.x, plain.x, 1e-12)


def test_afl_finds_the_model_that_is_fair_to_any_mixture():
    """(w - c)^2 / 2 with c = 0, 0, 4: risks are equal at 2, where the third client weighs 1/2."""
    task = points(0.0, 0.0, 4.0)
    state = run_algorithm("afl", *task, 160, lr=0.5, lr_weights=0.03, local_steps=1, batch_size=None).state
    assert close(state.x, 2.0, 1e-6)
    assert close(state.weights[2], 0.5, 1e-6) and close(state.weights.sum(), 1.0, 1e-12)


def test_a_cohort_of_afl_shares_out_its_own_weight():
    task = points(0.0, 1.0, 4.0, 5.0)
    seen = []
    run_algorithm(
        "afl", *task, 6, cohort=2, local_steps=1, batch_size=None, lr_weights=0.01, watch=seen.append
    )
    for before, after in pairwise(seen):
        assert close(after.weights.sum(), 1.0, 1e-12)
        assert int((after.weights != before.weights).sum()) == 2


def test_q_fedavg_with_q_0_averages_clients_equally():
    task = logistic(), random_federation([8, 8, 8])
    hyper = {"lr": 0.3, "local_steps": 3, "batch_size": 4}
    plain = run_algorithm("fedavg", *task, 5, **hyper).state
    assert close(run_algorithm("q_fedavg", *task, 5, q=0.0, **hyper).state.x, plain.x, 1e-12)


def test_one_round_of_q_fedavg_by_hand():
    """At w = 1 with c = 0, 4 and lr = .1: losses .5, 4.5; steps -.1, .3; q = 1.

    Pushes .5 (-.1) + 4.5 (.3) = 1.3, masses (.01 / .1 + .5) + (.09 / .1 + 4.5) = 6, so w = 1 + 1.3 / 6.
    """
    start = {"x": torch.ones(1, dtype=torch.float64)}
    hyper = {"lr": 0.1, "q": 1.0, "local_steps": 1, "batch_size": None}
    state = run_algorithm("q_fedavg", *points(0.0, 4.0), 1, start=start, **hyper).state
    assert close(state.x, 1 + 1.3 / 6, 1e-12)


def test_q_fedavg_divides_by_powers_of_small_losses_too():
    """At w = 0 with c = 0.3 and lr = .1: loss .045, step .03, length .0009; q = 5, alike at both clients.

    .045^5 .03 / (5 .045^4 .009 + .045^5) = .045 (.03) / (.045 + .045) = .015. The divisor is 4e-7.
    """
    hyper = {"lr": 0.1, "q": 5.0, "local_steps": 1, "batch_size": None}
    assert close(run_algorithm("q_fedavg", *points(0.3, 0.3), 1, **hyper).state.x, 0.015, 1e-12)


def test_fairfed_without_budget_is_fedavg():
    hyper = {"lr": 0.3, "local_steps": 3, "batch_size": 4}
    plain = run_algorithm("fedavg", *classes(), 5, **hyper).state
    fair = run_algorithm("fairfed", *classes(), 5, budget=0.0, **hyper).state
    assert close(fair.x, plain.x, 1e-12)
    assert close(fair.weights, [[9 / 43], [20 / 43], [14 / 43]], 1e-12)


def test_decisions_are_shares_of_all_samples():
    """Of 4 samples: group 0 has one positive, decided rightly; group 1 two, one rightly; the negative is wrong."""
    problem, batch = sample([1.0, 1.0, -1.0, 1.0], [1, 1, 1, 0], [0, 1, 1, 0])
    assert close(decisions(problem, 2)(ONE, batch), [0.25, 0.25, 0.25, 0.5, 0.5], 1e-12)


def test_the_distance_of_gaps_in_fairfed():
    """Rates here (1, 1/2), everywhere (3/4, 3/4): gaps 1/2 and 0. Without two groups: accuracies .9 and .6."""
    every = torch.tensor([[0.3, 0.3, 0.4, 0.4, 0.6]] * 2, dtype=torch.float64)
    own = torch.tensor([[0.2, 0.2, 0.2, 0.4, 0.8], [0.2, 0.0, 0.4, 0.0, 0.9]], dtype=torch.float64)
    assert close(_distance(own, every, 2), [[0.5], [0.3]], 1e-12)


def test_fairfed_weighs_down_clients_with_unusual_gaps():
    """Weights move by -budget (Delta_k - mean), so their sum stays 1 as long as none is cut off at 0."""
    seen = []
    hyper = {"lr": 0.3, "local_steps": 3, "batch_size": 4, "budget": 0.05}
    problem, federation = classes((30, 30, 30))
    run_algorithm("fairfed", problem, federation, 3, watch=seen.append, **hyper)
    rows = federation.pool.at(federation.splits["train"])
    own = torch.stack(
        [decisions(problem, 2)(seen[1].x, Batch(*(part[k] for part in rows))) for k in range(3)]
    )
    apart = _distance(own, own.mean(0).expand(3, -1), 2)
    moved = seen[2].weights - seen[1].weights
    assert close(moved, -0.05 * (apart - apart.mean()), 1e-12)
    assert float(moved.abs().max()) > 1e-3 and close(seen[3].weights.sum(), 1.0, 1e-12)


def test_a_function_of_a_problem_is_the_same_object_every_time():
    """Work is measured, and functions are recorded, once an object."""
    problem, _ = classes()
    assert partial(soft_gap, groups=2, slope=1.0)(problem) is partial(soft_gap, groups=2, slope=1.0)(problem)
