"""Coins: keyed draws that everybody knows, of all clients together or of each."""

import pytest
import torch

from harness.core.errors import Incompatible
from tests.support.wire import cohort, record
from tests.support.worlds import iid_federation, logistic


@pytest.mark.slow
def test_a_coin_shows_one_as_often_as_it_should() -> None:
    """4000 tosses with p = 0.3: 1200 expected, standard deviation sqrt(4000 * .3 * .7) = 29; 5 of them allowed."""
    world = {"data": iid_federation(), "problem": logistic()}
    each = sum(int(cohort(round=t, **world).coin(0.3, "a", each=True).sum()) for t in range(1000))
    common = sum(int(cohort(round=t, **world).coin(0.3, "a")) for t in range(4000))
    assert abs(each - 1200) < 145
    assert abs(common - 1200) < 145


@pytest.mark.parametrize("each", [False, True])
def test_sure_coins_are_sure(each) -> None:
    tosses = [cohort(round=t) for t in range(50)]
    assert all(bool((clients.coin(1.0, "a", each=each) == 1).all()) for clients in tosses)
    assert not any(bool(clients.coin(0.0, "a", each=each).any()) for clients in tosses)


def test_a_client_s_coin_does_not_depend_on_who_else_is_there() -> None:
    everybody = torch.cat([cohort(round=t).coin(0.5, "a", each=True) for t in range(20)], -1)
    some = torch.cat([cohort(round=t, ids=[1, 3]).coin(0.5, "a", each=True) for t in range(20)], -1)
    assert torch.equal(everybody[[1, 3]], some)
    assert len({tuple(row) for row in everybody.tolist()}) == 4, "clients have coins of their own"


def test_coins_differ_by_name_round_seed_and_kind() -> None:
    """20 tosses that were the same would agree; two fair ones do with probability 2^-20."""

    def tossed(name="a", seed=0, first=0, each=False):
        found = [
            cohort(round=first + t, seeds=(seed,)).coin(0.5, name, each=each).flatten()[0] for t in range(20)
        ]
        return tuple(map(float, found))

    seen = [tossed(), tossed("b"), tossed(seed=1), tossed(first=20), tossed(each=True)]
    assert len(set(seen)) == 5
    assert tossed() == tossed(), "a toss is no draw from a generator: asked again, it falls alike"


@pytest.mark.parametrize("each", [False, True])
def test_stacked_runs_toss_what_they_toss_apart(each) -> None:
    for t in range(10):
        together = cohort(round=t, seeds=(0, 1, 2)).coin(0.5, "a", each=each)
        apart = [cohort(round=t, seeds=(seed,)).coin(0.5, "a", each=each) for seed in range(3)]
        assert torch.equal(together, torch.stack(apart))
    assert together.shape == ((3, 4, 1) if each else (3, 1))


def test_under_record_privacy_releases_do_not_depend_on_coins() -> None:
    with pytest.raises(Incompatible, match="decide by a public coin"):
        cohort(mechanism=record()).coin(0.5, "a")
