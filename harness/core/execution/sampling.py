"""Which samples make up which batch: all batches of a round drawn at once, for all clients."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor

from harness.core import rng

RANDOM_BITS = 40  # of a sample's place in a pass
ELEMENT_BITS = 63 - RANDOM_BITS  # for its number, beside them in one integer
BLOCK = 1 << 16  # places that are drawn at once: 512 KiB


def draw_batches(
    counts: Tensor,
    keys: Tensor,
    ids: Tensor,
    *,
    steps: int | None,
    epochs: int | None,
    batch_size: int | None,
) -> tuple[Tensor, Tensor]:
    """Deal each client's samples into batches.

    A client walks through passes over its data, each pass in a new random order. With ``epochs`` every
    pass is cut into batches (the last may be smaller) and clients with less data take fewer steps; with
    ``steps`` the batches run on from one pass into the next, and all clients take as many steps. A batch as
    large as a client's data is always exactly those data.

    Parameters
    ----------
    counts : Tensor
        Samples of each client, ``(K,)``.
    keys, ids : Tensor
        Random key and client number of each row, ``(K,)``: a row's batches depend on nothing else.
    steps, epochs : int or None
        How long; both None means one epoch.
    batch_size : int or None
        Samples a batch; None: everything.

    Returns
    -------
    order : Tensor
        ``(S, K, B)`` int64, numbers of samples within the client, -1 = padding.
    num_steps : Tensor
        ``(K,)`` steps each client really takes.
    """
    epochs = 1 if steps is None and epochs is None else epochs
    largest = int(counts.max())
    size = largest if batch_size is None else min(batch_size, largest)
    if bool((counts <= size).all()):  # full batches: nothing to draw
        total = steps if steps is not None else epochs or 1
        slots = torch.arange(size).expand(len(counts), size)
        slots = torch.where(slots < counts[:, None], slots, -1)
        return slots.expand(total, *slots.shape), (counts > 0) * total

    own = counts.clamp(max=size)  # the client's batch size
    if steps is not None:
        num_steps, used = (counts > 0) * steps, steps * own
        start = torch.arange(steps)[:, None] * own  # of each batch among what the client uses, (S, K)
        room = own.expand(start.shape)  # samples in it
    else:
        assert epochs is not None
        per_pass = torch.where(counts > 0, -(-counts // own.clamp(min=1)), 0)
        num_steps, used = per_pass * epochs, epochs * counts
        step = torch.arange(int(num_steps.max()))[:, None]
        within = (step % per_pass.clamp(min=1)) * own
        start = step // per_pass.clamp(min=1) * counts + within
        room = torch.where(step < num_steps, counts - within, 0)
    shuffled, first = _passes(counts, used, keys, ids)
    slot = torch.arange(size)
    padding, where = slot >= room[..., None], (first + start)[..., None] + slot
    order = shuffled.index_select(0, where.masked_fill_(padding, 0).flatten())
    return order.view(where.shape).masked_fill_(padding, -1), num_steps


def draw_poisson_batches(
    counts: Tensor,
    keys: Tensor,
    ids: Tensor,
    *,
    steps: int | None,
    epochs: int | None,
    batch_size: int | None,
) -> tuple[Tensor, Tensor]:
    """Deal batches for differential privacy: every step draws each sample independently.

    As many steps as `draw_batches` makes; the probability is ``batch_size / samples``, so ``batch_size`` is the
    expected size. A batch may be empty.

    Returns
    -------
    order, num_steps : Tensor
        As `draw_batches` does.
    """
    (counts, keys, ids), which = _distinct(counts, keys, ids)
    size = int(counts.max()) if batch_size is None else batch_size
    per_pass = torch.where(counts > 0, -(-counts // counts.clamp(max=size).clamp(min=1)), 0)
    num_steps = (counts > 0) * steps if steps is not None else per_pass * (epochs or 1)
    step, slot = torch.arange(int(num_steps.max()))[:, None, None], torch.arange(int(counts.max()))
    rate = (size / counts.clamp(min=1)).clamp(max=1.0)[:, None]
    draws = rng.uniform(keys[:, None], ids[:, None], step, slot)
    drawn = (draws < rate) & (slot < counts[:, None]) & (step < num_steps[:, None])
    widest = max(1, int(drawn.sum(-1).max()))
    order = torch.where(drawn, slot, -1).sort(-1, descending=True).values[..., :widest]
    return order[:, which], num_steps[which]


def _distinct(*columns: Tensor) -> tuple[list[Tensor], Tensor]:
    """Return the distinct rows, column by column, and each row's index among them: runs may share a seed."""
    if len(rng.bits(*columns).unique()) == len(columns[0]):  # much faster than to compare whole rows
        return list(columns), torch.arange(len(columns[0]))
    rows, which = torch.stack(columns, -1).unique(dim=0, return_inverse=True)
    return list(rows.unbind(-1)), which


def _passes(counts: Tensor, used: Tensor, keys: Tensor, ids: Tensor) -> tuple[Tensor, Tensor]:
    """Return the shuffled passes of all clients end to end, as far as ``used``, and where each client's begin.

    A random order is the order of keyed random numbers. They are drawn and sorted some passes at a time, few enough
    to stay in the processor's cache.
    """
    (counts, used, keys, ids), which = _distinct(counts, used, keys, ids)
    passes = torch.where(counts > 0, -(-used // counts.clamp(min=1)), 0)
    owner = torch.repeat_interleave(torch.arange(len(counts)), passes)  # of each pass
    first_pass = passes.cumsum(0) - passes
    number = torch.arange(len(owner)) - first_pass[owner]  # of the pass within its client
    lengths = counts[owner]
    begins = (used[owner] - number * lengths).minimum(lengths)
    drawn, below = rng.bits(keys[owner], ids[owner], number), _limits(begins, lengths)
    pieces, kept = [torch.empty(0, dtype=torch.int64)], torch.zeros_like(lengths)
    for some in _blocks(lengths.tolist()):
        order, kept[some] = _shuffled(drawn[some], lengths[some], begins[some], below[some])
        pieces.append(order)
    totals = torch.zeros_like(counts).index_add(0, owner, kept)
    return torch.cat(pieces), (totals.cumsum(0) - totals)[which]


def _limits(begins: Tensor, lengths: Tensor) -> Tensor:
    """Return the number that draws of a pass must be below to be sorted, so that its first ``begins`` are known.

    Six standard deviations more than are expected to do; `_shuffled` sorts all where they do not.
    """
    share = (begins + 6 * begins.double().sqrt() + 20) / lengths
    return (share.clamp(max=1.0) * (1 << RANDOM_BITS)).long()


def _blocks(lengths: list[int]) -> Iterator[slice]:
    """Cut passes into runs of neighbors that fill at most `BLOCK` places when each gets as many as the longest."""
    first = widest = 0
    for number, length in enumerate(lengths):
        widest = max(widest, length)
        if number > first and (number + 1 - first) * widest > BLOCK:
            yield slice(first, number)
            first, widest = number, length
    if lengths:
        yield slice(first, len(lengths))


def _shuffled(drawn: Tensor, lengths: Tensor, begins: Tensor, below: Tensor) -> tuple[Tensor, Tensor]:
    """Return the beginnings of some passes end to end, as numbers of samples, and how much of each pass that is.

    Draw and number are sorted as one integer, several times as fast as to sort draws and ask for the order. How
    many random bits there are must not depend on who else is there.
    """
    width = int(lengths.max())
    element, row = torch.arange(width), torch.arange(len(lengths))[:, None]
    draws = rng.more_bits(drawn[:, None], element).bitwise_and_((1 << RANDOM_BITS) - 1)
    there = element < lengths[:, None]
    small = (draws < below[:, None]).logical_and_(there)
    kept = small.sum(-1)
    if bool((kept < begins).any()):  # once in a thousand million passes
        small, kept = there, lengths
    digits = (width - 1).bit_length()
    if digits > ELEMENT_BITS:  # such a pass is a block of its own
        return small.nonzero()[:, 1][draws[small].argsort(stable=True)], kept
    places = draws.bitwise_left_shift_(digits).bitwise_or_(element).bitwise_or_(row << (RANDOM_BITS + digits))
    whole = int(kept.sum()) == places.numel()
    order = torch.from_numpy(np.sort((places.flatten() if whole else places[small]).numpy()))
    return order.bitwise_and_((1 << digits) - 1), kept


def cohort(key: Tensor, total: int, size: int) -> Tensor:
    """Draw ``size`` of ``total`` clients without replacement, sorted, ``(..., size)``; one key a run."""
    draws = rng.bits(key[..., None], torch.arange(total))
    return draws.topk(size, largest=False, sorted=False).indices.sort(-1).values


def poisson(keys: Tensor, total: int, rate: float) -> tuple[Tensor, Tensor]:
    """Draw each of ``total`` clients with probability ``rate``; one key a run.

    Returns
    -------
    ids, participation_mask : Tensor
        ``(..., C)``, as wide as the largest of the cohorts, at least 1: those who were drawn, ascending, and 1
        for each; then others, and 0, to fill up. Where that is everybody all stand in their order.
    """
    everybody = torch.arange(total)
    drawn = (rng.uniform(keys[..., None], everybody) < rate).long()
    width = max(1, int(drawn.sum(-1).max()))
    if width == total:
        return everybody.expand(drawn.shape), drawn
    participation_mask, ids = drawn.sort(dim=-1, descending=True, stable=True)
    return ids[..., :width], participation_mask[..., :width]
