"""How batches and cohorts are dealt, for any sizes of clients."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.core import rng
from harness.core.clients import sampling
from harness.core.clients.sampling import (
    draw_batches,
    draw_fixed_cohort,
    draw_poisson_batches,
    draw_poisson_cohort,
)

SIZES = st.lists(st.integers(0, 17), min_size=1, max_size=5).filter(any)
SOME = settings(max_examples=40, deadline=None)


def deal(sizes, *, ids=None, seed=0, steps=None, epochs=None, batch_size=None, how=draw_batches):
    ids = list(range(len(sizes))) if ids is None else ids
    keys = torch.tensor([rng.key(seed, "batch", "main", 0)] * len(sizes))
    return how(
        torch.tensor(sizes), keys, torch.tensor(ids), steps=steps, epochs=epochs, batch_size=batch_size
    )


def rows(order, client):
    """Return the batches of a client, as lists without padding."""
    return [[int(s) for s in batch if s >= 0] for batch in order[:, client]]


@SOME
@given(sizes=SIZES, epochs=st.integers(1, 3), batch_size=st.one_of(st.none(), st.integers(1, 20)))
def test_every_epoch_visits_every_sample_exactly_once(sizes, epochs, batch_size):
    order, taken = deal(sizes, epochs=epochs, batch_size=batch_size)
    for client, size in enumerate(sizes):
        own = min(size, batch_size or max(sizes))
        steps = -(-size // own) if size else 0
        assert int(taken[client]) == steps * epochs
        batches = rows(order, client)
        for epoch in range(epochs):
            seen = [s for batch in batches[epoch * steps : (epoch + 1) * steps] for s in batch]
            assert sorted(seen) == list(range(size))
        assert not any(batches[steps * epochs :])  # then only padding


@SOME
@given(sizes=SIZES, steps=st.integers(1, 9), batch_size=st.one_of(st.none(), st.integers(1, 20)))
def test_steps_run_on_through_reshuffled_passes(sizes, steps, batch_size):
    """All clients take as many steps; any n samples from the start of a pass on are all samples once."""
    order, taken = deal(sizes, steps=steps, batch_size=batch_size)
    assert len(order) == steps
    for client, size in enumerate(sizes):
        assert int(taken[client]) == (steps if size else 0)
        batches = rows(order, client)
        own = min(size, batch_size or max(sizes))
        assert [len(batch) for batch in batches] == [own] * steps
        seen = [s for batch in batches for s in batch]
        for first in range(0, len(seen) - size + 1, max(1, size)):
            assert sorted(seen[first : first + size]) == list(range(size))


@pytest.mark.parametrize("block", [1 << 16, 5000, 1])
def test_a_pass_has_one_order_for_every_block_size(block, monkeypatch):
    """Few of the first client's samples are used, all of the others'."""
    monkeypatch.setattr(sampling, "BLOCK", block)
    sizes, steps, size = [4000, 30, 31, 1, 0, 2], 6, 10
    order, _ = deal(sizes, steps=steps, batch_size=size)
    key = torch.tensor(rng.key(0, "batch", "main", 0))
    for client, count in enumerate(sizes):
        used = steps * min(size, count)
        passes = [
            (rng.bits(key, torch.tensor(client), torch.tensor(number), torch.arange(count)) % 2**40).argsort()
            for number in range(-(-used // max(count, 1)))
        ]
        expected = torch.cat([*passes, torch.empty(0, dtype=torch.int64)])[:used].tolist()
        assert [s for batch in rows(order, client) for s in batch] == expected


@SOME
@given(sizes=SIZES, steps=st.integers(1, 4), extra=st.integers(0, 5))
def test_a_batch_as_large_as_the_data_is_all_the_data(sizes, steps, extra):
    for batch_size in (None, max(sizes) + extra):
        for length in ({"steps": steps}, {"epochs": steps}):
            order, _ = deal(sizes, batch_size=batch_size, **length)
            for client, size in enumerate(sizes):
                assert all(sorted(batch) == list(range(size)) for batch in rows(order, client))


@SOME
@given(
    sizes=SIZES,
    length=st.one_of(
        st.builds(lambda n: {"steps": n}, st.integers(1, 5)),
        st.builds(lambda n: {"epochs": n}, st.integers(1, 3)),
    ),
    batch_size=st.integers(1, 12),
)
def test_padding_is_at_the_end_of_a_batch_only(sizes, length, batch_size):
    order, _ = deal(sizes, batch_size=batch_size, **length)
    padding = order < 0
    assert bool((padding[..., 1:] >= padding[..., :-1]).all())


@SOME
@given(
    sizes=st.lists(st.integers(1, 17), min_size=2, max_size=5),
    client=st.integers(0, 4),
    length=st.sampled_from([{"steps": 5}, {"epochs": 2}]),
    batch_size=st.integers(1, 12),
    how=st.sampled_from([draw_batches, draw_poisson_batches]),
)
def test_a_clients_batches_do_not_depend_on_who_else_is_there(sizes, client, length, batch_size, how):
    """Neither on how many the others are, nor on their data, nor on its place in the cohort.

    Within a batch the order may differ: a batch of everything is not shuffled when nobody's needs to be.
    """
    client %= len(sizes)
    together, _ = deal(sizes, batch_size=batch_size, how=how, **length)
    alone, taken = deal([sizes[client]], ids=[client], batch_size=batch_size, how=how, **length)
    assert [sorted(batch) for batch in rows(together, client)[: int(taken[0])]] == [
        sorted(batch) for batch in rows(alone, 0)
    ]


@SOME
@given(
    sizes=SIZES,
    length=st.sampled_from([{"steps": 5}, {"epochs": 2}]),
    batch_size=st.integers(1, 12),
    how=st.sampled_from([draw_batches, draw_poisson_batches]),
)
def test_runs_of_one_seed_are_dealt_the_same_wherever_they_stand(sizes, length, batch_size, how):
    once, steps = deal(sizes, batch_size=batch_size, how=how, **length)
    ids = list(range(len(sizes)))
    thrice, taken = deal(
        [*sizes, *sizes[::-1], *sizes], ids=[*ids, *ids[::-1], *ids], batch_size=batch_size, how=how, **length
    )
    assert torch.equal(thrice, torch.cat([once, once.flip(1), once], 1))
    assert torch.equal(taken, torch.cat([steps, steps.flip(0), steps]))


def test_clients_rounds_and_streams_draw_differently():
    order, _ = deal([40, 40], steps=1, batch_size=20)
    assert rows(order, 0) != rows(order, 1)
    other, _ = deal([40, 40], steps=1, batch_size=20, seed=1)
    assert rows(order, 0) != rows(other, 0)
    passes, _ = deal([40, 40], epochs=2, batch_size=20)
    assert rows(passes, 0)[:2] != rows(passes, 0)[2:]  # each pass in a new order


def test_every_order_of_three_samples_is_as_likely():
    """4096 clients with 3 samples: 6 orders, 682.7 each; chi-square with 5 degrees stays below 20.5 (p = .001)."""
    order, _ = deal([3] * 4096, epochs=1, batch_size=1)
    codes = (order[:, :, 0] * torch.tensor([9, 3, 1])[:, None]).sum(0)
    _, counts = codes.unique(return_counts=True)
    assert len(counts) == 6
    expected = 4096 / 6
    assert float(((counts - expected) ** 2 / expected).sum()) < 20.5


@SOME
@given(sizes=SIZES, steps=st.integers(1, 4), batch_size=st.integers(1, 20))
def test_poisson_batches_hold_a_sample_at_most_once(sizes, steps, batch_size):
    order, taken = deal(sizes, steps=steps, batch_size=batch_size, how=draw_poisson_batches)
    for client, size in enumerate(sizes):
        batches = rows(order, client)
        assert all(len(set(batch)) == len(batch) and all(s < size for s in batch) for batch in batches)
        if batch_size >= size:  # probability one
            assert all(len(batch) == size for batch in batches[: int(taken[client])])


@pytest.mark.parametrize("draw", [draw_batches, draw_poisson_batches])
@pytest.mark.parametrize("length", [{"steps": 3, "epochs": None}, {"steps": None, "epochs": 2}])
def test_clients_without_samples_get_padding(draw, length):
    nobody = torch.zeros(2, dtype=torch.int64)
    order, num_steps = draw(nobody, nobody, torch.arange(2), batch_size=4, **length)
    assert len(order) >= 1 and order.shape[1:] == (2, 1)
    assert (order == -1).all() and not num_steps.any()


def test_poisson_batches_have_the_expected_size():
    """500 steps of 30 of 100: mean 30, standard deviation of the mean sqrt(21 / 500) = .2."""
    order, _ = deal([100], steps=500, batch_size=30, how=draw_poisson_batches)
    sizes = (order[:, 0] >= 0).sum(-1).double()
    assert abs(float(sizes.mean()) - 30) < 1.0
    assert 3.5 < float(sizes.std()) < 5.7  # sqrt(21) = 4.58


@SOME
@given(total=st.integers(1, 40), size=st.integers(1, 40), seed=st.integers(0, 1000))
def test_a_cohort_is_drawn_without_replacement_and_sorted(total, size, seed):
    size = min(size, total)
    drawn = draw_fixed_cohort(torch.tensor(rng.key(seed, "cohort", 0)), total, size)
    assert drawn.shape == (size,)
    assert bool((drawn[1:] > drawn[:-1]).all())
    assert int(drawn[0]) >= 0 and int(drawn[-1]) < total


def test_cohorts_of_stacked_runs_are_those_of_the_runs_apart():
    keys = torch.tensor([rng.key(seed, "cohort", 3) for seed in (0, 1, 2)])
    together = draw_fixed_cohort(keys, 20, 5)
    assert torch.equal(together, torch.stack([draw_fixed_cohort(key, 20, 5) for key in keys]))


def test_all_clients_are_drawn_equally_often():
    """1000 cohorts of 3 of 10: 300 times each, standard deviation sqrt(1000 * .3 * .7) = 14.5."""
    keys = torch.tensor([rng.key(0, "cohort", round) for round in range(1000)])
    counts = torch.bincount(draw_fixed_cohort(keys, 10, 3).flatten(), minlength=10)
    assert int((counts - 300).abs().max()) < 65
    drawn = [int(draw_poisson_cohort(key, 10, 0.3)[1].sum()) for key in keys]
    assert abs(sum(drawn) / 1000 - 3.0) < 0.25


def short_and_long(size):
    """Return a walk of three steps, and the first three of one through many passes."""
    counts = torch.tensor([1000, 950, 1000])
    ids, keys = torch.arange(3), torch.full((3,), rng.key(0, "batch", "main", 0))
    short, long = (
        draw_batches(counts, keys, ids, steps=n, epochs=None, batch_size=size)[0] for n in (3, 400)
    )
    return short, long[:3]


@pytest.mark.parametrize("size", [10, 100, 300])
def test_a_short_walk_begins_like_a_long_one(size):
    """Of a pass only the beginning is used; that must not show."""
    assert torch.equal(*short_and_long(size))


def test_stacked_poisson_cohorts_are_filled_with_absent_clients():
    """Each run's drawn clients are those it has alone, ascending; what fills up is not present."""
    keys = torch.tensor([rng.key(seed, "cohort", 0) for seed in range(20)])
    ids, present = draw_poisson_cohort(keys, 12, 0.3)
    for key, row, here in zip(keys, ids, present, strict=True):
        alone, there = draw_poisson_cohort(key, 12, 0.3)
        assert torch.equal(row[here.bool()], alone[there.bool()])
        assert here.tolist() == sorted(here.tolist(), reverse=True)
        assert len(set(row.tolist())) == len(row)


def test_a_full_cohort_has_every_client_in_its_place():
    """Rows of a full cohort are taken for all clients in order; some run of forty draws all three at rate 0.7."""
    keys = torch.tensor([rng.key(seed, "cohort", 0) for seed in range(40)])
    ids, present = draw_poisson_cohort(keys, 3, 0.7)
    assert torch.equal(ids, torch.arange(3).expand(40, 3))
    assert 3 in present.sum(-1) and present.sum(-1).unique().numel() > 1
