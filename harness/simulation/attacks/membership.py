"""Membership inference: whether a sample was trained on.

Shadow runs repeat the run with its settings, mechanism and start, but other draws, on data in which some training
samples are exchanged for test samples of the same client by chance. So for each sample there are models with and
without it, and every client keeps its number of samples. Where users are told apart, one sample of a user is
attacked and all of them are exchanged, as others of that user would tell of it.

- LiRA: the likelihood ratio of the sample's log odds under normal distributions fitted to both kinds of models.
- RMIA (gamma 1): the rank of the sample's probability over its mean in all models.
- Transcript: how much what was sent moves the model towards the sample's label, without shadow runs.

References
----------
N. Carlini et al., *Membership inference attacks from first principles*, IEEE S&P 2022,
https://arxiv.org/abs/2112.03570 (online attack, one variance for all samples).

S. Zarifzadeh, P. Liu and R. Shokri, *Low-cost high-power membership inference attacks*, ICML 2024,
https://arxiv.org/abs/2312.03262.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.stats import norm
from torch import Tensor

from datasets.federation import Batch, Federation
from harness.core import rng
from harness.simulation.attacks.roc import FALSE, area, detection, largest_rate
from harness.simulation.attacks.tap import shared_model, step_of, tapped
from harness.simulation.evaluation import applied
from harness.simulation.setup import Setup
from harness.simulation.simulation import Simulation
from harness.simulation.snapshot import Diverged
from harness.simulation.stacking import obstacle, stack_setups
from privacy.trade_off import detection_bound

Array = NDArray[np.float64]
CANDIDATES = "candidates"  # name of a split
FEWEST = 4  # shadow runs for which likelihood ratios are told
LARGEST = 32  # shadow runs side by side
STEP = 0.01  # of the model, along a message
TINY = 1e-30


class Pairs(NamedTuple):
    """Training samples, each with a test sample of the same client: places in the splits, ``(n,)`` each."""

    client: Tensor
    train: Tensor
    test: Tensor


def membership(setup: Setup, run: Simulation, number: int, shadows: int, most: int) -> dict[str, Any] | None:
    """Attack the final model of a run; None if clients have no common model.

    Parameters
    ----------
    setup : Setup
        The run, with calibrated noise.
    run, number : Simulation, int
        Where its final state is.
    shadows : int
        Number of shadow runs, even.
    most : int
        Number of samples to attack, half of them members, at most.
    """
    problem, meta = setup.problem, setup.algorithm.meta
    if (
        problem.predict is None
        or problem.kind == "vertical"
        or meta.pooled
        or shared_model(run, number) is None
    ):
        return None
    pairs = draw_pairs(setup, most // 2)
    if not len(pairs.client):
        return None
    index, member = candidates(setup.federation, pairs)
    watched = replace(setup.federation, splits={**setup.federation.splits, CANDIDATES: index})
    target = log_odds(setup, watched, run, number)
    outcomes: dict[int, tuple[Array, NDArray[np.bool_]]] = {}
    for some in _stacks(setup, shadows):
        outcomes |= _trained(setup, watched, pairs, some)
    kept = [number for number in outcomes if number ^ 1 in outcomes]  # of a pair both, else one side lacks
    scores: dict[str, Array] = {}
    if len(kept) >= FEWEST:
        odds, within = np.stack([outcomes[n][0] for n in kept]), np.stack([outcomes[n][1] for n in kept])
        scores = {"lira": lira(target, odds, within), "rmia": rmia(target, odds)}
    if (moved := transcript(setup, watched)) is not None:
        scores["transcript"] = moved
    values = _values(scores, member, run, number, whole=setup.federation.users is not None)
    return {"shadows": len(kept), **values}


def _trained(
    setup: Setup, watched: Federation, pairs: Pairs, numbers: Sequence[int]
) -> dict[int, tuple[Array, NDArray[np.bool_]]]:
    """Train shadow runs side by side; return log odds and who was trained on, without runs that diverge."""
    setups, coins = zip(*(shadow(setup, pairs, number) for number in numbers), strict=True)
    run = Simulation.from_setup(stack_setups(setups))
    try:
        for _ in range(setup.spec.rounds):
            run.step()
    except Diverged:
        alone = [[number] for number in numbers] if len(numbers) > 1 else []
        return {n: outcome for one in alone for n, outcome in _trained(setup, watched, pairs, one).items()}
    flags = (_flags(pairs, setup.federation, coin) for coin in coins)
    return {
        number: (log_odds(setup, watched, run, place), flag)
        for place, (number, flag) in enumerate(zip(numbers, flags, strict=True))
    }


def _stacks(setup: Setup, shadows: int) -> list[Sequence[int]]:
    """Return the numbers of the shadow runs that run side by side."""
    size = 1 if obstacle(setup) else LARGEST
    return [range(first, min(first + size, shadows)) for first in range(0, shadows, size)]


def draw_pairs(setup: Setup, most: int) -> Pairs:
    """Draw training samples, and for each a test sample of the same client."""
    federation, drawn = setup.federation, rng.numpy_stream(setup.spec.seed, "attack", "pairs")
    alone = None if federation.users is None else _at_one_client(federation, federation.users)
    rows = []
    for client in range(federation.clients):
        places_of_split = [_attackable(federation, split, client, alone) for split in ("train", "test")]
        n = min(map(len, places_of_split))
        places = [each[drawn.permutation(len(each))[:n]].tolist() for each in places_of_split]
        rows += [(client, one, other) for one, other in zip(*places, strict=True)]
    chosen = sorted(drawn.permutation(len(rows))[:most].tolist())
    return Pairs(*torch.tensor([rows[n] for n in chosen], dtype=torch.int64).view(-1, 3).unbind(1))


def _at_one_client(federation: Federation, users: Tensor) -> Tensor:
    """Return which users have all samples at one client, ``(U,)`` bool."""
    pairs = [
        torch.stack([users[index[index >= 0]], torch.nonzero(index >= 0)[:, 0]], 1)
        for index in federation.splits.values()
    ]
    who = torch.cat(pairs).unique(dim=0)[:, 0]
    return torch.bincount(who, minlength=int(users.max()) + 1) == 1


def _attackable(federation: Federation, split: str, client: int, alone: Tensor | None) -> NDArray[np.int64]:
    """Return places of the samples of a client that may be attacked: of a user the first, if at no other client."""
    row = federation.splits[split][client]
    row = row[row >= 0]
    if alone is None or federation.users is None:
        return np.arange(len(row))
    users = federation.users[row].numpy()
    _, first = np.unique(users, return_index=True)
    return np.sort(first[alone.numpy()[users[first]]])


def _exchanged(federation: Federation, pairs: Pairs) -> Tensor:
    """Return the training split with the pairs exchanged, with all samples of their users if these are known."""
    train, test = federation.splits["train"].clone(), federation.splits["test"]
    if federation.users is None:
        client, place, other = pairs
        train[client, place] = test[client, other]
        return train
    for client, place, other in zip(*(column.tolist() for column in pairs), strict=True):
        leaves, comes = (
            torch.nonzero((row >= 0) & (federation.users[row.clamp(min=0)] == federation.users[row[at]]))[
                :, 0
            ]
            for row, at in ((federation.splits["train"][client], place), (test[client], other))
        )  # as many come as leave, some twice or not at all
        comes = torch.cat([comes[comes == other], comes[comes != other]])
        train[client, leaves] = test[client, comes[torch.arange(len(leaves)) % len(comes)]]
    return train


def shadow(setup: Setup, pairs: Pairs, number: int) -> tuple[Setup, Tensor]:
    """Return a shadow run, and for which pairs it has the training sample; 2 k and 2 k + 1 are opposites."""
    seed, federation = setup.spec.seed, setup.federation
    coin = torch.rand(len(pairs.client), generator=rng.stream(seed, "attack", "shadow", number // 2)) < 0.5
    coin = coin if number % 2 == 0 else ~coin
    train = _exchanged(federation, Pairs(*(column[~coin] for column in pairs)))
    spec = setup.spec.model_copy(update={"seed": rng.key(seed, "attack", "seed", number) % 2**31})
    splits = {**federation.splits, "train": train}
    return (
        replace(
            setup,
            spec=spec,
            noise_key=f"{setup.noise_key} shadow {number}",
            federation=replace(federation, splits=splits),
        ),
        coin,
    )


def candidates(federation: Federation, pairs: Pairs) -> tuple[Tensor, NDArray[np.bool_]]:
    """Return the attacked samples as a split ``(C, N)``, and which of its entries are members, in its order."""
    train, test = federation.splits["train"], federation.splits["test"]
    width = 2 * int(torch.bincount(pairs.client, minlength=federation.clients).max())
    index = train.new_full((federation.clients, width), -1)
    for client in pairs.client.unique().tolist():
        inside = pairs.client == client
        row = torch.cat([train[client, pairs.train[inside]], test[client, pairs.test[inside]]])
        index[client, : len(row)] = row
    return index, _flags(pairs, federation, torch.ones(len(pairs.client), dtype=torch.bool))


def _flags(pairs: Pairs, federation: Federation, coin: Tensor) -> NDArray[np.bool_]:
    """Return which attacked samples are trained on if a coin says so of each pair, in the order of the split."""
    flags = [
        torch.cat([coin[inside], ~coin[inside]])
        for c in range(federation.clients)
        if (inside := pairs.client == c).any()
    ]
    flag: NDArray[np.bool_] = torch.cat(flags).numpy()
    return flag


def log_odds(setup: Setup, watched: Federation, run: Simulation, number: int) -> Array:
    """Return the log odds of the label of each attacked sample; minus the loss where numbers are predicted."""
    model: Any = shared_model(run, number)
    outputs = applied(setup.problem, watched, setup.executor, model, CANDIDATES)
    odds: Array = _odds(outputs.outputs.double(), outputs.batch).cpu().numpy()
    return odds


def _odds(outputs: Tensor, batch: Batch) -> Tensor:
    if batch.y.is_floating_point():
        return -(outputs.squeeze(-1) - batch.y).square() / 2
    if outputs.ndim == 1:
        return outputs * (2 * batch.y - 1)
    label = batch.y.unsqueeze(-1)
    others = outputs.scatter(-1, label, -torch.inf).logsumexp(-1)
    return outputs.gather(-1, label).squeeze(-1) - others


def lira(target: Array, odds: Array, inside: NDArray[np.bool_]) -> Array:
    """Return log likelihood ratios of ``target (n,)``, given shadow models ``(K, n)`` and who trained on what."""
    means = [np.where(which, odds, 0).sum(0) / np.maximum(which.sum(0), 1) for which in (inside, ~inside)]
    spread = [
        np.sqrt(np.square(np.where(which, odds - mean, 0)).sum() / max(1, which.sum() - which.shape[1]))
        for which, mean in zip((inside, ~inside), means, strict=True)
    ]
    one, other = (norm.logpdf(target, mean, std + TINY) for mean, std in zip(means, spread, strict=True))
    score: Array = np.nan_to_num(one - other)
    return score


def rmia(target: Array, odds: Array) -> Array:
    """Return the log of the probability of the label over its mean in the shadow models."""
    mean = np.exp(-np.logaddexp(0, -odds)).mean(0)
    score: Array = -np.logaddexp(0, -target) - np.log(mean + TINY)
    return score


def transcript(setup: Setup, watched: Federation) -> Array | None:
    """Return how fast log odds rise along what a sample's client sent, or along averages if only they are seen.

    None where test samples are dealt at random (``test: official``): labels would tell them from a client's own.
    """
    problem, partition = setup.problem, setup.spec.partition
    assert problem.predict is not None
    if partition is not None and partition.test == "official":
        return None
    run, tape = tapped(setup)
    index = watched.splits[CANDIDATES]
    owner, place = torch.nonzero(index >= 0, as_tuple=True)
    batch = watched.pool.at(index[owner, place])
    score, seen = torch.zeros(len(owner), dtype=torch.float64), False
    for _ in range(setup.spec.rounds):
        model = shared_model(run)
        tape.clear()
        run.step()
        after = shared_model(run)
        if model is None or after is None or not tape.messages:
            continue
        message = tape.messages[0]
        rows, _ = step_of(message, model, after)
        if rows.ndim == 1:
            score += _raised(problem.predict, model, rows, batch)
            seen = True
            continue
        for client, row, here in zip(message.ids.tolist(), rows, message.taking_part.tolist(), strict=True):
            inside = owner == client
            if here and bool(inside.any()):
                score[inside] += _raised(
                    problem.predict, model, row, Batch(*(column[inside] for column in batch))
                )
                seen = True
    return score.numpy() if seen else None


def _raised(predict: Any, model: Tensor, direction: Tensor, batch: Batch) -> Tensor:
    """Return how fast the log odds of each sample's label rise in a direction, by a central difference."""
    length = STEP * max(1.0, float(model.norm()))
    step = length * direction.to(model) / direction.norm().clamp(min=TINY).to(model)
    with torch.no_grad():
        ahead, behind = (_odds(predict(x, batch.x).double(), batch) for x in (model + step, model - step))
    rise: Tensor = (ahead - behind) / (2 * length)
    return rise.cpu()


def _values(
    scores: dict[str, Array], member: NDArray[np.bool_], run: Simulation, number: int, *, whole: bool
) -> dict[str, Any]:
    """Return areas and rates with intervals, and the bounds on the rates that the guarantee implies.

    ``ceiling`` is for the stated false positive rates. Those of a few others are known roughly, and an attacker
    that accuses none of 80 may have a rate of 4 %: ``ceiling_sampled`` is for the largest that fits. An epsilon of
    a record bounds neither if ``whole`` users are exchanged.
    """
    values: dict[str, Any] = {"members": int(member.sum()), "others": int((~member).sum())}
    for name, score in scores.items():
        inside, outside = score[member], score[~member]
        values[f"{name}_auc"] = area(inside, outside)
        values |= {f"{name}_tpr_{text}": detection(inside, outside, false) for text, false in FALSE.items()}
    claim = run.statement(number)
    # A shadow run exchanges samples, so users change and their numbers, which no epsilon for a user is about.
    unbounded = {"user", "record"} if whole else {"user"}
    if claim is None or claim["unit"] in unbounded:
        return values
    if claim["epsilon_total"] != "inf" and "noise_cohort" not in claim:
        epsilon = float(claim["epsilon_total"])
        delta, others = claim["delta"], values["others"]
        if claim["adjacency"] != "replace":  # a sample is exchanged for another: two steps, in and out
            epsilon, delta = 2 * epsilon, (1 + math.exp(min(epsilon, 700.0))) * delta
        bound = partial(detection_bound, epsilon, min(delta, 1.0))
        values["ceiling"] = {text: bound(false) for text, false in FALSE.items()}
        sampled = {text: largest_rate(others, false) for text, false in FALSE.items()}
        values["ceiling_sampled"] = {text: bound(rate) for text, rate in sampled.items()}
    return values
