"""Correlated noise: factorizations, and their sensitivity by trying every pattern and every sign."""

from itertools import combinations, pairwise, product

import numpy as np
import pytest

from privacy.banded import MOST_ROUNDS, coefficients, matrix

KINDS = ("optimal", "toeplitz")


def prefix_error(diagonals):
    """Return the root mean squared error of prefix sums, for independent noise of standard deviation 1."""
    sums = np.cumsum(np.linalg.inv(matrix(diagonals)), axis=0)
    return float(np.sqrt(np.square(sums).sum() / len(diagonals)))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("rounds", "bands"), [(1, 1), (7, 1), (7, 2), (12, 4), (9, 9)])
def test_columns_have_norm_1_and_only_so_many_diagonals(rounds, bands, kind):
    c = matrix(coefficients(rounds, bands, kind))
    assert np.linalg.norm(c, axis=0) == pytest.approx(np.ones(rounds), abs=1e-15)
    assert np.array_equal(c, np.tril(c)) and np.array_equal(c, np.triu(c, 1 - bands))
    assert (c.diagonal() > 0).all()


def patterns(rounds, bands):
    """Return all sets of rounds that lie at least `bands` apart."""
    for size in range(1, rounds + 1):
        for some in combinations(range(rounds), size):
            if all(b - a >= bands for a, b in pairwise(some)):
                yield some


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("rounds", "bands"), [(6, 2), (8, 3), (9, 4)])
def test_no_pattern_and_no_signs_move_the_encoded_rounds_further_than_independent_ones(rounds, bands, kind):
    """A client moves each of its rounds by 1 in any direction: k rounds move C x by at most sqrt(k)."""
    c = matrix(coefficients(rounds, bands, kind))
    for rounds_of_a_client in patterns(rounds, bands):
        moved = max(
            np.linalg.norm(c[:, rounds_of_a_client] @ np.array(signs))
            for signs in product((1.0, -1.0), repeat=len(rounds_of_a_client))
        )
        assert moved <= np.sqrt(len(rounds_of_a_client)) * (1 + 1e-14)


def test_rounds_that_are_too_close_move_it_further():
    """So that the test above could fail, and bands must not exceed the rounds between two turns."""
    c = matrix(coefficients(6, 3, "toeplitz"))
    assert np.linalg.norm(c[:, [1, 2]].sum(1)) > 1.2 * np.sqrt(2)


@pytest.mark.parametrize(("rounds", "bands"), [(20, 5), (100, 10), (30, 30)])
def test_a_search_finds_less_error_than_the_formula_and_both_less_than_independent_noise(rounds, bands):
    best, simple, independent = (
        prefix_error(coefficients(rounds, own, kind))
        for own, kind in ((bands, "optimal"), (bands, "toeplitz"), (1, "optimal"))
    )
    assert best < 0.99 * simple < simple < independent == pytest.approx(np.sqrt((rounds + 1) / 2))


def test_the_best_two_bands_of_two_rounds_are_known():
    """C = [[cos a, 0], [sin a, 1]]: all angles are tried, in small steps."""
    tried = []
    for angle in np.linspace(0, 1.5, 20_001):
        c = np.array([[np.cos(angle), 0.0], [np.sin(angle), 1.0]])
        tried.append(np.square(np.cumsum(np.linalg.inv(c), axis=0)).sum())
    assert 2 * prefix_error(coefficients(2, 2)) ** 2 == pytest.approx(min(tried), rel=1e-6)


@pytest.mark.parametrize(("rounds", "bands"), [(5, 0), (5, 6), (MOST_ROUNDS + 1, 2)])
def test_impossible_factorizations_are_refused(rounds, bands):
    with pytest.raises(ValueError, match=r"bands must be|at most"):
        coefficients(rounds, bands)


def test_many_rounds_have_a_formula():
    assert coefficients(MOST_ROUNDS + 1, 2, "toeplitz").shape == (MOST_ROUNDS + 1, 2)
