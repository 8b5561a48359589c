"""Which samples make up which batch: all batches of a round drawn at once, for all clients."""

from __future__ import annotations

import torch
from torch import Tensor

from harness.core import random

RANDOM_BITS = 40  # of a sample's place in a pass; leaves room for 8 million passes a round


def plan(
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
    taken : Tensor
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
    per_pass = torch.where(counts > 0, -(-counts // own.clamp(min=1)), 0)
    if steps is not None:
        taken = (counts > 0) * steps
        step, slot = torch.arange(steps)[:, None, None], torch.arange(size)
        position = step * own[:, None] + slot
        valid = (slot < own[:, None]).expand(position.shape)
        passes, slot = position // counts.clamp(min=1)[:, None], position % counts.clamp(min=1)[:, None]
        used = steps * own
    else:
        assert epochs is not None
        taken = per_pass * epochs
        step = torch.arange(int(taken.max()))[:, None, None]
        passes = (step // per_pass.clamp(min=1)[:, None]).expand(-1, -1, size)
        slot = (step % per_pass.clamp(min=1)[:, None]) * own[:, None] + torch.arange(size)
        valid = (slot < counts[:, None]) & (step < taken[:, None])
        used = epochs * counts
    shuffled, first = _passes(counts, used, keys, ids)
    where = first[:, None] + passes * counts[:, None] + slot
    return torch.where(valid, shuffled[torch.where(valid, where, 0)], -1), taken


def poisson_plan(
    counts: Tensor,
    keys: Tensor,
    ids: Tensor,
    *,
    steps: int | None,
    epochs: int | None,
    batch_size: int | None,
) -> tuple[Tensor, Tensor]:
    """Deal batches for differential privacy: every step draws each sample independently.

    As many steps as `plan` makes; the probability is ``batch_size / samples``, so ``batch_size`` is the
    expected size. A batch may be empty.

    Returns
    -------
    order, taken : Tensor
        As `plan` does.
    """
    size = int(counts.max()) if batch_size is None else batch_size
    per_pass = torch.where(counts > 0, -(-counts // counts.clamp(max=size).clamp(min=1)), 0)
    taken = (counts > 0) * steps if steps is not None else per_pass * (epochs or 1)
    step, slot = torch.arange(int(taken.max()))[:, None, None], torch.arange(int(counts.max()))
    rate = (size / counts.clamp(min=1)).clamp(max=1.0)[:, None]
    draws = random.uniform(keys[:, None], ids[:, None], step, slot)
    drawn = (draws < rate) & (slot < counts[:, None]) & (step < taken[:, None])
    widest = max(1, int(drawn.sum(-1).max()))
    order = torch.where(drawn, slot, -1).sort(-1, descending=True).values[..., :widest]
    return order, taken


def _passes(counts: Tensor, used: Tensor, keys: Tensor, ids: Tensor) -> tuple[Tensor, Tensor]:
    """Return the shuffled passes of all clients end to end, as far as ``used``, and where each client's begin.

    A random order is the order of keyed random numbers; sorting them all at once, pass by pass, costs no
    loop over clients.
    """
    passes = torch.where(counts > 0, -(-used // counts.clamp(min=1)), 0)
    owner = torch.repeat_interleave(torch.arange(len(counts)), passes)  # of each pass
    first_pass = passes.cumsum(0) - passes
    number = torch.arange(len(owner)) - first_pass[owner]  # of the pass within its client
    lengths = counts[owner]
    owners = torch.repeat_interleave(torch.arange(len(owner)), lengths)  # pass of each element
    starts = lengths.cumsum(0) - lengths
    element = torch.arange(len(owners)) - starts[owners]
    draws = random.more_bits(random.bits(keys[owner], ids[owner], number)[owners], element)
    # The high bits hold the pass, so that one sort shuffles within each pass only; how many random bits are
    # left must not depend on who else is there.
    draws = draws & ((1 << RANDOM_BITS) - 1)
    totals, begins = passes * counts, (used[owner] - number * lengths).minimum(lengths)
    if 2 * int(begins.sum()) < int(lengths.sum()):
        kept = _beginnings(draws, owners, begins, lengths)
        owners, element, draws = owners[kept], element[kept], draws[kept]
        totals = torch.zeros_like(counts).index_add(0, owner, torch.bincount(owners, minlength=len(owner)))
    order = ((owners << RANDOM_BITS) | draws).argsort(stable=True)
    return element[order], totals.cumsum(0) - totals


def _beginnings(draws: Tensor, owners: Tensor, begins: Tensor, lengths: Tensor) -> Tensor:
    """Say which elements must be sorted to know the first ``begins`` of each pass: those of small draws.

    Six standard deviations more than are expected to do; should they not, all are sorted.
    """
    share = (begins + 6 * begins.double().sqrt() + 20) / lengths
    kept = draws < (share.clamp(max=1.0) * (1 << RANDOM_BITS)).long()[owners]
    enough = torch.bincount(owners[kept], minlength=len(begins)) >= begins
    return kept if bool(enough.all()) else torch.ones_like(kept)


def cohort(key: Tensor, total: int, size: int) -> Tensor:
    """Draw ``size`` of ``total`` clients without replacement, sorted, ``(..., size)``; one key a run."""
    draws = random.bits(key[..., None], torch.arange(total))
    return draws.topk(size, largest=False, sorted=False).indices.sort(-1).values


def poisson(keys: Tensor, total: int, rate: float) -> tuple[Tensor, Tensor]:
    """Draw each of ``total`` clients with probability ``rate``; one key a run.

    Returns
    -------
    ids, present : Tensor
        ``(..., C)``, as wide as the largest of the cohorts, at least 1: those who were drawn, ascending, and 1
        for each; then others, and 0, to fill up. Where that is everybody all stand in their order.
    """
    everybody = torch.arange(total)
    drawn = (random.uniform(keys[..., None], everybody) < rate).long()
    width = max(1, int(drawn.sum(-1).max()))
    if width == total:
        return everybody.expand(drawn.shape), drawn
    present, ids = drawn.sort(dim=-1, descending=True, stable=True)
    return ids[..., :width], present[..., :width]
