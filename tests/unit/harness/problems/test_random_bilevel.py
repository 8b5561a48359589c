"""Random bilevel problems: their minimum, the hypergradient at samples' means, and what the knobs move."""

import pytest
import torch

from harness.core.errors import UserError
from harness.core.methods.derivatives import exact_hypergradient, inner_gradient, neumann_hypergradient
from harness.problems import PROBLEMS, Setting
from harness.problems.quadratic import bilevel_shapes, reader
from tests.support.worlds import close, settled

SMALL = {"clients": 4, "dims": (2, 3), "condition": 4.0}


def built(run_seed=0, **settings):
    kind = PROBLEMS["random_bilevel"]
    return kind.build(Setting(kind.settings(**{**SMALL, **settings}), None, None, run_seed))


def coefficients(federation):
    """Return name -> ``(C, S, ...)``."""
    return reader(bilevel_shapes(2, 3))(federation.pool.at(federation.splits["train"]).x)


def figures(problem, federation, x):
    data = federation.pool.at(federation.splits["train"])
    return problem.measure({"x": x, "y": torch.zeros(3).double()}, data)


def minimum(federation, rho=0.1):
    """Solve ``sum (rho I + B'A^-2 B) x = sum B'A^-1 (t - A^-1 b)``, client by client."""
    k = {name: value.mean(1) for name, value in coefficients(federation).items()}
    left, right = torch.zeros(2, 2).double(), torch.zeros(2).double()
    for a, b, shift, t in zip(k["A"], k["B"], k["b"], k["t"], strict=True):
        inverse = torch.linalg.inv(a)
        left += rho * torch.eye(2).double() + b.T @ inverse @ inverse @ b
        right += b.T @ inverse @ (t - inverse @ shift)
    return torch.linalg.solve(left, right)


def test_at_the_minimum_stationarity_and_distance_are_zero():
    problem, federation = built(heterogeneity=2.0, noise=0.5, samples=5)
    best = minimum(federation)
    found = figures(problem, federation, best)
    assert found["stationarity"] < 1e-12 and found["distance"] < 1e-12
    away = figures(problem, federation, best + torch.tensor([3.0, 4.0]).double())
    assert away["distance"] == pytest.approx(5.0, abs=1e-10)
    assert away["loss"] > found["loss"]


def test_stationarity_is_the_slope_of_the_loss_measured():
    """Central differences of the mean of f_m(x, y_m(x)); they are exact for a quadratic."""
    problem, federation = built(noise=0.5, samples=5)
    x = torch.tensor([0.4, -1.2]).double()
    steps = 1e-3 * torch.eye(2).double()
    losses = [[figures(problem, federation, x + sign * step)["loss"] for sign in (1, -1)] for step in steps]
    slope = torch.tensor([(up - down) / 2e-3 for up, down in losses], dtype=torch.float64)
    assert figures(problem, federation, x)["stationarity"] == pytest.approx(float(slope.norm()), abs=1e-9)


def test_hypergradients_of_clients_average_to_the_gradient():
    """At each client's inner solution, with all its samples; in a Neumann series of 200 terms too."""
    problem, federation = built(noise=0.5, samples=5)
    x = torch.tensor([0.4, -1.2]).double()
    found, series = [], []
    for rows, b, shift, a in zip(
        federation.splits["train"],
        *(coefficients(federation)[n].mean(1) for n in ("B", "b", "A")),
        strict=True,
    ):
        batch, y = federation.pool.at(rows), torch.linalg.solve(a, b @ x + shift)
        assert float(inner_gradient(problem)(x, y, batch).abs().max()) < 1e-12
        found.append(exact_hypergradient(problem)(x, y, batch, batch))
        series.append(neumann_hypergradient(problem, 0.9)(x, y, batch, batch, *[batch] * 200))
    expected = figures(problem, federation, x)["stationarity"]
    assert float(torch.stack(found).mean(0).norm()) == pytest.approx(expected, abs=1e-12)
    assert float(torch.stack(series).mean(0).norm()) == pytest.approx(expected, abs=1e-9)


def test_the_condition_number_is_the_inner_problems_alone():
    """Eigenvalues 1, 1/2, 1/4 of A; x, stationarity and loss do not change with them."""
    (easy, one), (hard, two) = built(condition=1.0), built(condition=4.0)
    values = torch.linalg.eigvalsh(coefficients(two)["A"][0, 0]).tolist()
    assert values == pytest.approx([0.25, 0.5, 1.0], abs=1e-12)
    x = torch.tensor([0.4, -1.2]).double()
    assert figures(easy, one, x) == pytest.approx(figures(hard, two, x), abs=1e-10)


def test_clients_inner_solutions_deviate_in_proportion():
    """Root mean square over clients at 1: spectral norm 1/2 of W, lengths 1 of w and t; A is shared."""
    assert all(bool((v == v[:1]).all()) for v in coefficients(built(heterogeneity=0.0)[1]).values())
    for h in (1.0, 2.0):
        k = {name: value[:, 0] for name, value in coefficients(built(heterogeneity=h)[1]).items()}
        assert bool((k["A"] == k["A"][:1]).all())
        slope, shift = torch.linalg.solve(k["A"], k["B"]), torch.linalg.solve(k["A"], k["b"])
        for value, size in ((slope, 0.5), (shift, 1.0), (k["t"], 1.0)):
            away = value - value.mean(0)
            norms = torch.linalg.norm(away, 2, dim=tuple(range(1, away.ndim)))
            assert float(norms.square().mean().sqrt()) == pytest.approx(h * size, abs=1e-12)


def test_samples_differ_in_matrices_but_not_in_their_mean():
    """2,000 samples at 4 clients. Noise .3: .3 in b and t, .3 / sqrt 3 off the diagonal of A, .3 / sqrt 2 in B."""
    calm, noisy = (coefficients(built(noise=n, samples=2000)[1]) for n in (0.0, 0.3))
    for name, value in calm.items():
        torch.testing.assert_close(value.mean(1), noisy[name].mean(1), atol=1e-12, rtol=0)
    for name, spread in (("b", 0.3), ("t", 0.3), ("B", 0.3 / 2**0.5)):
        assert float(noisy[name].std(1).mean()) == pytest.approx(spread, abs=0.005)
    a = noisy["A"]
    assert torch.equal(a, a.mT)
    assert float(a[..., 0, 1].std(1).mean()) == pytest.approx(0.3 / 3**0.5, abs=0.005)


def test_a_seed_of_null_follows_the_run():
    of = lambda run_seed, **more: coefficients(built(run_seed, **more)[1])["B"]  # noqa: E731
    assert torch.equal(of(1), of(0, seed=1)) and not torch.equal(of(0), of(1))
    assert torch.equal(of(0, seed=7), of(1, seed=7))


@pytest.mark.slow
def test_fedbio_with_exact_gradients_rests_at_the_minimum():
    """One local step: no bias whatever the heterogeneity. A short Neumann series has one."""
    problem, federation = built(heterogeneity=2.0)
    work = {"lr_x": 0.2, "lr_y": 0.5, "local_steps": 1, "batch_size": None}
    rest = settled("fedbio", problem, federation, **work, neumann_terms=None)
    assert close(rest.x, minimum(federation), 1e-8)
    short = settled("fedbio", problem, federation, **work, neumann_terms=2, neumann_step=0.5)
    assert figures(problem, federation, short.x)["stationarity"] > 1e-2


@pytest.mark.parametrize(
    "settings",
    [
        {"dims": (0, 1)},
        {"condition": 0.5},
        {"heterogeneity": -1.0},
        {"noise": 0.1},
        {"clients": 0},
        {"rho": -1.0},
    ],
)
def test_settings_that_define_no_bilevel_problem_fail(settings):
    with pytest.raises(UserError, match="at least"):
        built(**settings)
