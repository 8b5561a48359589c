"""Which parameters are worth their time: against a search through all choices."""

from itertools import product

import pytest
import torch

from compression.errors import CompressionError
from compression.importance import Layer, largest_weights, reconfigured

LAYERS = [Layer(0, 5, 0.05), Layer(6, 11, 0.15)]  # entry 5 is a bias, and always stays


def drawn(seed):
    draw = torch.Generator().manual_seed(seed)
    x = torch.randn(11, generator=draw, dtype=torch.float64)
    kept = torch.rand(11, generator=draw) < 0.6
    kept[5] = True
    return x * kept, kept, torch.rand(11, generator=draw, dtype=torch.float64) ** 3


def may_go(x, kept, removable):
    """The smallest weights of each layer that are there, and all that are not."""
    free = ~kept
    for start, stop, _ in LAYERS:
        places = [place for place in range(start, stop) if kept[place]]
        places.sort(key=lambda place: abs(float(x[place])))
        free[places[: int(removable * len(places) + 1e-9)]] = True
    return free


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize(("constant", "removable"), [(0.01, 0.9), (0.3, 0.5), (3.0, 0.3)])
def test_no_other_choice_has_more_importance_for_its_time(seed, constant, removable):
    """All 2^n choices of those that may go or come: none has a larger sum of g^2 over c + sum of t."""
    x, kept, importance = drawn(seed)
    time = torch.zeros(11, dtype=torch.float64)
    for start, stop, each in LAYERS:
        time[start:stop] = each
    free = may_go(x, kept, removable)
    found = reconfigured(x, kept, importance, LAYERS, constant=constant, removable=removable)
    assert bool((found | free).all())

    def worth(mask):
        return float(importance[mask].sum() / (constant + time[mask].sum()))

    best, places = 0.0, free.nonzero()[:, 0]
    for choice in product((False, True), repeat=len(places)):
        mask = ~free
        mask[places] = torch.tensor(choice)
        best = max(best, worth(mask))
    assert worth(found) == pytest.approx(best, rel=1e-12)


def test_the_model_grows_and_shrinks_with_the_fixed_time():
    """Saving a tenth of a short round matters more than of a long one."""
    x, kept, importance = drawn(3)
    sizes = [
        int(reconfigured(x, kept, importance, LAYERS, constant=constant, removable=0.9).sum())
        for constant in (1e-6, 0.1, 1.0, 1e6)
    ]
    assert sizes == sorted(sizes) and sizes[0] < int(kept.sum()) < sizes[-1] == 11


def test_a_largest_share_bounds_what_comes_back():
    """Five of the ten weights: those that must stay, and of the others those of the largest g^2 over t."""
    x, kept, importance = drawn(3)
    found = reconfigured(x, kept, importance, LAYERS, constant=1e6, removable=0.9, most=0.5)
    worth, free = importance / torch.tensor([0.05] * 6 + [0.15] * 5), may_go(x, kept, 0.9)
    assert int(found.sum()) == 5 + 1
    assert float(worth[found & free].min()) > float(worth[~found].max())


def test_no_importance_says_nothing():
    x, kept, importance = drawn(0)
    assert reconfigured(x, kept, 0 * importance, LAYERS, constant=1.0, removable=0.5) is kept


def test_the_largest_weights_of_each_layer_stay():
    x = torch.tensor([3.0, -1.0, 2.0, 0.5, -4.0, 0.0, 9.0, 8.0, -7.0, 6.0, 5.0])
    kept = largest_weights(x, LAYERS, 0.4)
    assert kept.nonzero()[:, 0].tolist() == [0, 4, 5, 6, 7]


@pytest.mark.parametrize("wrong", [{"constant": 0.0}, {"most": 0.0}, {"most": 1.5}, {"removable": 1.0}])
def test_what_makes_no_sense_is_refused(wrong):
    x, kept, importance = drawn(0)
    with pytest.raises(CompressionError):
        reconfigured(x, kept, importance, LAYERS, **{"constant": 1.0, "removable": 0.5, **wrong})
