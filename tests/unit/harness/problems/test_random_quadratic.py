"""The heterogeneity knob: what it moves, what it leaves alone, and what local steps make of it."""

import pytest
import torch

from harness.core.errors import UserError
from harness.problems import PROBLEMS, Setting
from harness.problems.quadratic import Minimax, minimax_shapes, reader
from tests.support.worlds import close, quadratic_minimax, settled

SMALL = {"clients": 4, "dims": (3, 2), "condition": 4.0}


def built(**settings):
    kind = PROBLEMS["random_quadratic"]
    return kind.build(Setting(kind.settings(**{**SMALL, **settings}), None, None))


def coefficients(federation):
    """Return name -> ``(C, S, ...)``."""
    return reader(minimax_shapes(3, 2))(federation.pool.at(federation.splits["train"]).x)


def saddle(federation):
    """Solve [P B; B' -Q] z = -[c; d] for the averages."""
    k = {name: value.mean((0, 1)) for name, value in coefficients(federation).items()}
    system = torch.cat([torch.cat([k["P"], k["B"]], -1), torch.cat([k["B"].mT, -k["Q"]], -1)])
    return torch.linalg.solve(system, -torch.cat([k["c"], k["d"]]))


def figures(problem, federation, z):
    data = federation.pool.at(federation.splits["train"])
    return problem.measure({"x": z[:3], "y": z[3:]}, data)


def test_the_saddle_does_not_depend_on_knob_or_noise():
    (_, calm), (_, wild) = built(heterogeneity=0.0), built(heterogeneity=3.0, noise=2.0, samples=5)
    for name, value in coefficients(calm).items():
        torch.testing.assert_close(
            value.mean((0, 1)), coefficients(wild)[name].mean((0, 1)), atol=1e-12, rtol=0
        )
    assert close(saddle(wild), saddle(calm), 1e-10)


def test_without_heterogeneity_all_clients_are_alike():
    for value in coefficients(built(heterogeneity=0.0)[1]).values():
        assert bool((value == value[:1]).all())


def test_deviations_grow_in_proportion_to_the_knob():
    """Root mean square over clients at 1: spectral norms 1/2 of P and B, lengths 1 of c and d; Q is shared."""
    alike, one, two = (coefficients(built(heterogeneity=h)[1]) for h in (0.0, 1.0, 2.0))
    for name, expected in (("P", 0.5), ("B", 0.5), ("Q", 0.0), ("c", 1.0), ("d", 1.0)):
        away = (one[name] - alike[name])[:, 0]
        norms = torch.linalg.norm(away, 2, dim=tuple(range(1, away.ndim)))
        assert float(norms.square().mean().sqrt()) == pytest.approx(expected, abs=1e-12)
        torch.testing.assert_close((two[name] - alike[name])[:, 0], 2 * away, atol=1e-12, rtol=0)


def test_linear_heterogeneity_moves_gradients_and_no_smoothness():
    """At the saddle the lengths of the clients' gradients by x and by y have the root mean square given; with 0 all
    clients share the saddle. The matrices, whose norms are the smoothness of a client, do not move.
    """
    for given in (0.0, 1.0, 4.0):
        _, federation = built(heterogeneity=2.0, linear_heterogeneity=given)
        k = {name: value[:, 0] for name, value in coefficients(federation).items()}
        usual = coefficients(built(heterogeneity=2.0)[1])
        assert all(bool((k[name] == usual[name][:, 0]).all()) for name in ("P", "B", "Q"))
        z = saddle(federation)
        assert close(z, saddle(built(heterogeneity=0.0)[1]), 1e-10)
        x, y = z[:3], z[3:]
        for slope in (k["P"] @ x + k["B"] @ y + k["c"], k["B"].mT @ x - k["Q"] @ y + k["d"]):
            assert float(slope.norm(dim=1).square().mean().sqrt()) == pytest.approx(given, abs=1e-10)


def test_eigenvalues_span_the_condition_number():
    """4.0 with three and two of them: 1, 1/2, 1/4 and 1, 1/4; the largest singular value of B is 1."""
    k = coefficients(built(heterogeneity=0.0)[1])
    assert torch.linalg.eigvalsh(k["P"][0, 0]).tolist() == pytest.approx([0.25, 0.5, 1.0], abs=1e-12)
    assert torch.linalg.eigvalsh(k["Q"][0, 0]).tolist() == pytest.approx([0.25, 1.0], abs=1e-12)
    assert float(torch.linalg.matrix_norm(k["B"][0, 0], 2)) == pytest.approx(1.0, abs=1e-12)


def test_noise_is_the_samples_deviation_in_c_and_d_only():
    """2,000 samples of 5 entries at 4 clients: the sample deviation of 0.3 errs by 0.3 / sqrt(80,000) = 0.001."""
    k = coefficients(built(noise=0.3, samples=2000)[1])
    assert float(torch.cat([k["c"], k["d"]], -1).std(1).mean()) == pytest.approx(0.3, abs=0.005)
    assert all(bool((k[name] == k[name][:, :1]).all()) for name in ("P", "B", "Q"))


def test_at_the_saddle_every_figure_of_optimality_is_zero():
    problem, federation = built(heterogeneity=2.0)
    z = saddle(federation)
    found = figures(problem, federation, z)
    assert found["stationarity"] < 1e-12 and found["distance"] < 1e-12
    away = torch.tensor([1.0, 0.0, 0.0, 0.0, 2.0], dtype=torch.float64)
    assert figures(problem, federation, z + away)["distance"] == pytest.approx(5**0.5, abs=1e-10)


def test_stationarity_is_the_gradient_of_the_inner_maximum():
    """MM4: Phi(x) = .25 x^2 + x + (x + 1)^2 / 4, so Phi'(0) = 1.5 whatever y is; distance to (-1.5, -.25)."""
    problem, federation = quadratic_minimax()
    data = federation.pool.at(federation.splits["train"])
    for y in (0.0, 7.0):
        point = {"x": torch.zeros(1).double(), "y": torch.tensor([y]).double()}
        found = problem.measure(point, data)
        assert found["stationarity"] == pytest.approx(1.5, abs=1e-12)
        assert found["distance"] == pytest.approx((1.5**2 + (y + 0.25) ** 2) ** 0.5, abs=1e-12)


def test_of_many_saddles_the_distance_is_to_the_nearest():
    """F = -1/2 y^2 + x_1 y: stationary where x_1 = y = 0, whatever x_2. From (3, 9, 4): sqrt(9 + 16) = 5."""
    singular = Minimax(
        P=[[[0.0, 0.0], [0.0, 0.0]]], B=[[[1.0], [0.0]]], Q=[[[1.0]]], c=[[0.0, 0.0]], d=[[0.0]]
    )
    problem, federation = quadratic_minimax(singular)
    point = {"x": torch.tensor([3.0, 9.0]).double(), "y": torch.tensor([4.0]).double()}
    found = problem.measure(point, federation.pool.at(federation.splits["train"]))
    assert found["distance"] == pytest.approx(5.0, abs=1e-12)


@pytest.mark.slow
def test_bias_grows_with_the_knob_and_tracking_has_none():
    """Exact gradients, five local steps. Alike clients: none; the bias is of second order in the knob, since it
    takes a deviation of a matrix times one of a gradient. K-GT-Minimax ends at the saddle whatever the knob."""

    def rest(name, h, **more):
        problem, federation = built(heterogeneity=h)
        work = {"lr_x": 0.05, "lr_y": 0.05, "local_steps": 5, "batch_size": None}
        state = settled(name, problem, federation, **work, **more)
        x, y = (value if value.ndim == 1 else value.mean(0) for value in (state.x, state.y))
        return figures(problem, federation, torch.cat([x, y]))["distance"]

    none, some, much = (rest("local_sgda", h) for h in (0.0, 0.1, 0.2))
    assert none < 1e-9 and 3.5 < much / some < 4.5 and some > 1e-5
    ring = torch.tensor([[2, 1, 0, 1], [1, 2, 1, 0], [0, 1, 2, 1], [1, 0, 1, 2]]).double() / 4
    for h in (0.0, 0.2, 1.0):
        assert rest("k_gt_minimax", h, mixing=ring) < 1e-8


@pytest.mark.parametrize(
    "settings",
    [
        {"dims": (0, 1)},
        {"condition": 0.5},
        {"heterogeneity": -1.0},
        {"noise": 0.1},
        {"clients": 0},
        {"matrix_noise": 0.1},
        {"nonconvex": -0.1},
    ],
)
def test_settings_without_meaning_are_refused(settings):
    with pytest.raises(UserError, match="at least"):
        built(**settings)


def test_seed_null_draws_an_instance_for_every_seed_of_a_run():
    """Seed 3 of the run is seed 3 of the problem; both instances of one setting have the digest of a cell."""
    kind = PROBLEMS["random_quadratic"]

    def drawn(own, run):
        return kind.build(Setting(kind.settings(seed=own, noise=0.1, samples=3), None, None, run))[1]

    assert torch.equal(drawn(None, 3).pool.x, drawn(3, 0).pool.x)
    assert not torch.equal(drawn(None, 3).pool.x, drawn(None, 4).pool.x)
    assert drawn(None, 3).digest == drawn(None, 4).digest != drawn(3, 0).digest != drawn(4, 0).digest
    assert drawn(5, 0).digest == drawn(5, 1).digest


def test_noise_in_matrices_leaves_every_client_its_mean():
    """Of 2,000 samples the entries of P and B deviate by 0.3; P stays symmetric, Q, c and d have no noise."""
    noisy, calm = (coefficients(built(matrix_noise=n, samples=2000)[1]) for n in (0.3, 0.0))
    for name, value in noisy.items():
        torch.testing.assert_close(value.mean(1), calm[name].mean(1), atol=1e-12, rtol=0)
    assert float(torch.cat([noisy[n].flatten(2) for n in "PB"], -1).std(1).mean()) == pytest.approx(
        0.3, abs=0.005
    )
    assert torch.equal(noisy["P"], noisy["P"].mT)
    assert all(bool((noisy[n] == noisy[n][:, :1]).all()) for n in ("Q", "c", "d"))


def test_only_noise_in_matrices_is_in_gradient_differences():
    """The gradient in x of a sample, at two points: its difference is P (u - v) with the sample's own P."""

    def differences(**settings):
        problem, federation = built(samples=6, **settings)
        slope = torch.func.grad(problem.loss)
        u, v, y = torch.ones(3).double(), torch.zeros(3).double(), torch.ones(2).double()
        samples = [federation.pool.at(torch.tensor([n])) for n in range(6)]  # those of the first client
        return torch.stack([slope(u, y, one) - slope(v, y, one) for one in samples])

    assert float(differences(noise=1.0).std(0).max()) < 1e-12
    assert float(differences(matrix_noise=1.0).std(0).min()) > 0.1


def test_a_nonconvex_phi_curves_down_and_is_bounded_below():
    """m = 0.5, three and two entries: one direction n with B'n = 0, where Phi(tn) - Phi(0) - t c'n is
    -t^2 m / 2 + O(t^4). Far away the curvature is at least -m + 2 m > 0."""
    problem, federation = built(nonconvex=0.5, heterogeneity=1.0)
    k = {name: value.mean((0, 1)) for name, value in coefficients(federation).items()}
    assert torch.linalg.eigvalsh(k["P"]).min() == pytest.approx(-0.5, abs=1e-12)
    n = torch.linalg.svd(k["B"])[0][:, -1]
    assert float((k["B"].mT @ n).norm()) < 1e-12

    def phi(x):
        y = torch.linalg.solve(k["Q"], k["B"].mT @ x + k["d"])
        return problem.loss(x, y, federation.pool.at(federation.splits["train"]))

    zero, far = torch.zeros(3).double(), 1e3
    curvature = torch.autograd.functional.hessian(phi, zero)
    assert float(n @ curvature @ n) == pytest.approx(-0.5, abs=1e-10)
    assert float(torch.linalg.eigvalsh(curvature).max()) > 0  # neither convex nor concave
    for direction in torch.eye(3).double():
        assert float(phi(far * direction) - phi(zero)) > 0.2 * far**2 / 2


@pytest.mark.parametrize("nonconvex", [0.0, 0.5])
def test_stationarity_is_the_derivative_of_phi_by_autograd(nonconvex):
    problem, federation = built(nonconvex=nonconvex, noise=0.2, matrix_noise=0.2, samples=4)
    k = {name: value.mean((0, 1)) for name, value in coefficients(federation).items()}
    data = federation.pool.at(federation.splits["train"])
    phi = lambda x: problem.loss(x, torch.linalg.solve(k["Q"], k["B"].mT @ x + k["d"]), data)  # noqa: E731
    x = torch.tensor([0.7, -1.3, 2.0]).double()
    found = figures(problem, federation, torch.cat([x, torch.zeros(2).double()]))
    assert found["stationarity"] == pytest.approx(float(torch.func.grad(phi)(x).norm()), abs=1e-10)
    assert ("distance" in found) == (nonconvex == 0)


def test_the_drawn_point_is_stationary_also_without_convexity():
    """c is drawn for it: the gradients of the convex and of the nonconvex problem vanish at one point."""
    saddle_of = saddle(built(heterogeneity=1.0)[1])
    problem, federation = built(heterogeneity=1.0, nonconvex=0.5)
    assert figures(problem, federation, saddle_of)["stationarity"] < 1e-12


def test_nonconvexity_needs_directions_that_y_does_not_see():
    with pytest.raises(UserError, match="x longer than y"):
        built(dims=(2, 2), nonconvex=0.5)
