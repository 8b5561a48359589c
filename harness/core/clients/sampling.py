"""Random sampling of batches and cohorts, vectorized over clients and runs."""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch
from torch import Tensor

from harness.core import rng

RANDOM_BITS = 40  # of a sort key; what is left of 64 bits is room for the number of a sample
BLOCK = 1 << 16  # sort keys drawn at once: 512 KiB


def draw_batches(
    counts: Tensor,
    keys: Tensor,
    ids: Tensor,
    *,
    steps: int | None,
    epochs: int | None,
    batch_size: int | None,
) -> tuple[Tensor, Tensor]:
    """Draw batches from reshuffled passes over each client's data.

    With ``epochs`` every pass is cut into batches, of which the last may be smaller, and clients with less data
    take fewer steps. With ``steps`` batches continue from one pass into the next, and all clients take the same
    number of steps. A batch as large as a client's data always contains each sample once.

    Parameters
    ----------
    counts : Tensor
        Samples of each client, ``(K,)``.
    keys, ids : Tensor
        Random key and client number of each row, ``(K,)``, which determine its batches.
    steps, epochs : int or None
        Amount of work; both None means one epoch.
    batch_size : int or None
        Samples per batch; None: all.

    Returns
    -------
    order : Tensor
        ``(S, K, B)`` int64, sample numbers within the client, -1 = padding.
    num_steps : Tensor
        Number of steps of each client, ``(K,)``.
    """
    epochs = 1 if steps is None and epochs is None else epochs
    size = _width(counts, batch_size)
    if full_batches(counts, batch_size):  # nothing to draw
        total = steps if steps is not None else epochs or 1
        slots = torch.arange(size).expand(len(counts), size)
        slots = torch.where(slots < counts[:, None], slots, -1)
        return slots.expand(total, *slots.shape), (counts > 0) * total

    widths = counts.clamp(max=size)  # the client's batch size
    if steps is not None:
        num_steps, used = (counts > 0) * steps, steps * widths
        start = torch.arange(steps)[:, None] * widths  # of each batch among what the client uses, (S, K)
        room = widths.expand(start.shape)  # samples in it
    else:
        assert epochs is not None
        per_pass = torch.where(counts > 0, -(-counts // widths.clamp(min=1)), 0)
        num_steps, used = per_pass * epochs, epochs * counts
        step = torch.arange(int(num_steps.max()))[:, None]
        within = (step % per_pass.clamp(min=1)) * widths
        start = step // per_pass.clamp(min=1) * counts + within
        room = torch.where(step < num_steps, counts - within, 0)
    shuffled, first = _passes(counts, used, keys, ids)
    slot = torch.arange(size)
    where = ((first + start)[..., None] + slot).masked_fill_(slot >= room[..., None], 0)
    return shuffled.index_select(0, where.flatten()).view(where.shape), num_steps


def full_batches(counts: Tensor, batch_size: int | None) -> bool:
    """Whether every batch holds all samples of its client, so that all steps have the same batches."""
    return bool((counts <= _width(counts, batch_size)).all())


def _width(counts: Tensor, batch_size: int | None) -> int:
    """Return the number of slots in a batch, at least 1: padding, if nobody has data."""
    largest = int(counts.max())
    return max(1, largest if batch_size is None else min(batch_size, largest))


def draw_poisson_batches(
    counts: Tensor,
    keys: Tensor,
    ids: Tensor,
    *,
    steps: int | None,
    epochs: int | None,
    batch_size: int | None,
    rate: float | None = None,
) -> tuple[Tensor, Tensor]:
    """Draw Poisson batches: every step includes each sample independently.

    Parameters and results are those of `draw_batches`, with as many steps. The probability is ``batch_size /
    samples``, so ``batch_size`` is the expected size, or ``rate`` if given: then the number of steps depends on no
    count either, and an epoch has ``1 / rate``. A batch may be empty.
    """
    (counts, keys, ids), which = _distinct(counts, keys, ids)
    if rate is None:
        size = int(counts.max()) if batch_size is None else batch_size
        per_pass = torch.where(counts > 0, -(-counts // counts.clamp(max=size).clamp(min=1)), 0)
        num_steps = (counts > 0) * steps if steps is not None else per_pass * (epochs or 1)
        chance = (size / counts.clamp(min=1)).clamp(max=1.0)[:, None]
    else:
        num_steps = torch.full_like(counts, math.ceil(1 / rate) * (epochs or 1) if steps is None else steps)
        chance = torch.full((len(counts), 1), rate, dtype=torch.float64)
    # At least one, for padding if nobody has data.
    most, largest = (max(1, int(number.max())) for number in (num_steps, counts))
    step, slot = torch.arange(most)[:, None, None], torch.arange(largest)
    draws = rng.uniform(keys[:, None], ids[:, None], step, slot)
    drawn = (draws < chance) & (slot < counts[:, None]) & (step < num_steps[:, None])
    widest = max(1, int(drawn.sum(-1).max()))
    order = torch.where(drawn, slot, -1).sort(-1, descending=True).values[..., :widest]
    return order[:, which], num_steps[which]


def _distinct(*columns: Tensor) -> tuple[list[Tensor], Tensor]:
    """Return the distinct rows, column by column, and each row's index among them; runs may share a seed.

    The last column has the numbers of clients, which ascend in a run.
    """
    ascend = bool((columns[-1].diff() > 0).all())
    if ascend or len(rng.bits(*columns).unique()) == len(columns[0]):  # much faster than comparing rows
        return list(columns), torch.arange(len(columns[0]))
    rows, which = torch.stack(columns, -1).unique(dim=0, return_inverse=True)
    return list(rows.unbind(-1)), which


def _passes(counts: Tensor, used: Tensor, keys: Tensor, ids: Tensor) -> tuple[Tensor, Tensor]:
    """Return the shuffled passes of all clients, ``used`` samples each, after a -1 for padding, and their offsets.

    Passes are shuffled by sorting keyed random numbers, in blocks that fit into the processor's cache.
    """
    (counts, used, keys, ids), which = _distinct(counts, used, keys, ids)
    passes = torch.where(counts > 0, -(-used // counts.clamp(min=1)), 0)
    owner = torch.repeat_interleave(torch.arange(len(counts)), passes)  # of each pass
    first_pass = passes.cumsum(0) - passes
    number = torch.arange(len(owner)) - first_pass[owner]  # of the pass within its client
    lengths = counts[owner]
    begins = (used[owner] - number * lengths).minimum(lengths)
    drawn = rng.bits(keys[owner], ids[owner], number)
    blocks = [_shuffled(drawn[some], lengths[some], begins[some]) for some in _blocks(lengths.tolist())]
    return torch.cat([torch.tensor([-1]), *blocks]), (used.cumsum(0) - used + 1)[which]


def _blocks(lengths: list[int]) -> Iterator[slice]:
    """Cut passes into blocks of at most `BLOCK` entries, each padded to its longest pass."""
    first = widest = 0
    for number, length in enumerate(lengths):
        widest = max(widest, length)
        if number > first and (number + 1 - first) * widest > BLOCK:
            yield slice(first, number)
            first, widest = number, length
    if lengths:
        yield slice(first, len(lengths))


def _shuffled(drawn: Tensor, lengths: Tensor, begins: Tensor) -> Tensor:
    """Return the concatenated beginnings of passes, as sample numbers.

    Random number and sample number are sorted as one integer, which is several times faster than argsort. The
    number of random bits must not depend on the other rows.
    """
    width = int(lengths.max())
    element, digits = torch.arange(width), (width - 1).bit_length()
    draws = rng.more_bits(drawn[:, None], element).bitwise_and_((1 << RANDOM_BITS) - 1)
    places = draws.bitwise_left_shift_(digits).bitwise_or_(element)
    places.masked_fill_(element >= lengths[:, None], torch.iinfo(torch.int64).max)
    places.numpy().sort(-1)
    return places.bitwise_and_((1 << digits) - 1)[element < begins[:, None]]


def draw_fixed_cohort(key: Tensor, total: int, size: int) -> Tensor:
    """Draw ``size`` of ``total`` clients without replacement, ascending, ``(..., size)``; one key per run."""
    draws = rng.bits(key[..., None], torch.arange(total))
    return draws.topk(size, largest=False, sorted=False).indices.sort(-1).values


def random_order(key: Tensor, total: int) -> Tensor:
    """Draw an order of all clients, ``(..., total)``; one key per run."""
    return rng.bits(key[..., None], torch.arange(total)).argsort(-1)


def balanced_cohort(order: Tensor, size: int, round: int) -> Tensor:
    """Return the next ``size`` clients of an endless repetition of an order, ascending, ``(..., size)``.

    Participation of any two clients differs by at most one round.
    """
    places = (torch.arange(size) + round * size) % order.shape[-1]
    return order[..., places].sort(-1).values


def draw_poisson_cohort(keys: Tensor, total: int, rate: float) -> tuple[Tensor, Tensor]:
    """Draw each of ``total`` clients independently with probability ``rate``; one key per run.

    Returns
    -------
    ids, participation_mask : Tensor
        ``(..., C)`` for the largest cohort, at least 1: the drawn clients, ascending, with mask 1, then other
        clients as padding, with mask 0. If the width is ``total``, clients are in their own order.
    """
    everybody = torch.arange(total)
    drawn = rng.uniform(keys[..., None], everybody) < rate
    width = max(1, int(drawn.sum(-1).max()))
    if width == total:
        return everybody.expand(drawn.shape), drawn.long()
    members_first = torch.where(drawn, everybody, everybody + total)
    ids = members_first.topk(width, largest=False, sorted=False).values.sort(-1).values
    return ids % total, (ids < total).long()
