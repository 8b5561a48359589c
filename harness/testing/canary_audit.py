"""An audit of a whole run with canaries.

`audit_run` trains once with many canaries, each included at random, and guesses from the final model which were.
This gives a lower bound on epsilon, which is far below the upper bound even for a correct mechanism.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from datasets.federation import Batch, Federation
from harness.core import rng
from harness.core.errors import Incompatible, UserError
from harness.core.losses import cross_entropy
from harness.core.settings.privacy import Privacy
from harness.simulation.calibration import recalibrated
from harness.simulation.setup import Setup
from harness.simulation.simulation import Simulation
from privacy.one_run import one_run_epsilon, one_run_gaussian_epsilon

SHARES = (0.1, 0.25, 0.5, 1.0)  # of the canaries that are guessed, one test each


def audit_run(setup: Setup, canaries: int, confidence: float = 0.95) -> dict[str, Any]:
    """Train once with canaries that are included at random, and guess from the final model which were.

    A canary is a sample of normal features with a random label: the only sample of an additional client (unit
    client), or an additional sample of a client (unit record). An excluded canary leaves its client without that
    sample. Canaries whose loss has fallen most are guessed as included, those with the least fall as excluded.

    Parameters
    ----------
    setup : Setup
        A run; its noise is calibrated again, because the canaries are further units.
    canaries : int
        Number of canaries.
    confidence : float
        Confidence of the lower bound.

    Returns
    -------
    dict
        ``epsilon_lower`` at that confidence (Bonferroni-corrected over `SHARES`), ``bound`` ("gaussian" if all
        releases compose to a Gaussian, else "guesses") and the values of both, ``epsilon_guesses`` and
        ``epsilon_gaussian`` (None where it does not hold); ``epsilon_upper`` and ``delta`` of the ledger,
        ``correct`` of ``guesses``, ``canaries``, ``findings``.

    Raises
    ------
    Incompatible
        If the run claims no privacy, has no server model that predicts classes, or has no place for canaries.
    """
    seed, privacy = setup.spec.seed, _audited(setup)
    planted, places = _planted(setup.federation, privacy.unit, canaries, seed)
    inside = torch.rand(canaries, generator=rng.stream(seed, "audit coins")) < 0.5
    train = planted.splits["train"]
    train = torch.where(torch.isin(train, places[~inside]), -1, train).sort(-1, descending=True).values
    present = replace(planted, splits={**planted.splits, "train": train})
    if privacy.secret_cohorts and privacy.rate < 1:  # cohorts keep their size among more clients
        privacy = replace(privacy, rate=privacy.rate * setup.federation.clients / present.clients)
    run = Simulation.from_setup(recalibrated(replace(setup, federation=present, privacy=privacy)))
    before = _losses(run, present, places)
    while run.round < setup.spec.rounds:
        run.step()
    order = (before - _losses(run, present, places)).argsort(descending=True)
    statement = run.statement() or {}
    gaussian = statement["accountant"] == "exact" and privacy.user_noise is None
    bound = "gaussian" if gaussian else "guesses"  # chosen before anything is seen
    tried = [_bounds(inside[order], share, privacy.delta, confidence, bound) for share in SHARES]
    best = max(tried, key=lambda bounds: float(bounds[f"epsilon_{bound}"]))
    lower, upper = best[f"epsilon_{bound}"], statement["epsilon_total"]
    finding = f"epsilon is at least {lower:.3g}, claimed {float(upper):.3g}"
    return {
        "part": "run",
        "canaries": canaries,
        **best,
        "bound": bound,
        "epsilon_lower": lower,
        "epsilon_upper": upper,
        "delta": privacy.delta,
        "confidence": confidence,
        "findings": [finding] if lower > float(upper) else [],
    }


def _audited(setup: Setup) -> Privacy:
    """Return the mechanism of a run in which canaries can be planted, or refuse the run."""
    if setup.privacy is None:
        raise Incompatible("audit: the run claims no privacy; give it a section privacy")
    if setup.problem.predict is None or setup.problem.kind == "vertical":
        raise Incompatible("audit: the run part needs a model that predicts classes; use --canaries 0")
    if setup.mixing is not None and setup.privacy.unit == "client":
        raise Incompatible(
            "audit: canaries of unit client are further clients, for which a topology has no place; use "
            "--canaries 0"
        )
    return setup.privacy


def _bounds(ordered: Tensor, share: float, delta: float, confidence: float, bound: str) -> dict[str, Any]:
    """Guess the first canaries as included and the last as excluded, a share of all, and bound epsilon."""
    half = max(1, round(share * len(ordered) / 2))
    correct = int(ordered[:half].sum() + (~ordered[-half:]).sum())
    counts, doubt = (correct, 2 * half, len(ordered)), 1 - (1 - confidence) / len(SHARES)
    return {
        "guesses": 2 * half,
        "correct": correct,
        "epsilon_guesses": one_run_epsilon(*counts, delta, doubt),
        "epsilon_gaussian": one_run_gaussian_epsilon(*counts, delta, doubt) if bound == "gaussian" else None,
    }


def _planted(federation: Federation, unit: str, canaries: int, seed: int) -> tuple[Federation, Tensor]:
    """Return the federation with all canaries, and their places in its pool."""
    if canaries < 4 or canaries % 2:
        raise UserError(
            f"--canaries must be an even number from 4 on (0: leave the run out), given {canaries}"
        )
    generator, pool = rng.stream(seed, "audit canaries"), federation.pool
    x = torch.randn(canaries, *pool.x.shape[1:], generator=generator).to(pool.x)
    y = torch.randint(len(federation.classes), (canaries,), generator=generator).to(pool.y)
    added = Batch(x, y, pool.group.new_zeros(canaries), pool.weight.new_ones(canaries))
    merged = Batch(*(torch.cat([old, new]) for old, new in zip(pool, added, strict=True)))
    places = torch.arange(len(pool.y), len(pool.y) + canaries, device=pool.y.device)
    splits = {}
    for name, index in federation.splits.items():
        if unit == "client":  # every canary is at a client of its own
            rows = index.new_full((canaries, index.shape[1]), -1)
            if name == "train":
                rows[:, 0] = places
            splits[name] = torch.cat([index, rows])
        elif name == "train":  # distribute the canaries over the clients in turn
            each = -(-canaries // len(index))
            dealt = index.new_full((len(index) * each,), -1)
            dealt[:canaries] = places
            whole = torch.cat([index, dealt.view(each, len(index)).T], 1)
            splits[name] = whole.sort(-1, descending=True).values
        else:
            splits[name] = index
    users = federation.users
    if users is not None:  # each canary is a user of its own
        users = torch.cat([users, users.max() + 1 + torch.arange(canaries)])
    return replace(federation, pool=merged, splits=splits, users=users), places


def _losses(run: Simulation, federation: Federation, places: Tensor) -> Tensor:
    """Return the loss of every canary under the server's model."""
    model = run.algorithm.model(run.state)
    if model.ndim > 1:
        raise Incompatible(
            "audit: the run part needs one model of the server, and this algorithm has one a client; use "
            "--canaries 0"
        )
    predict = run.problem.predict
    assert predict is not None
    sample = federation.pool.at(places)
    scores = predict(model, sample.x)
    if scores.ndim == 1:
        raise Incompatible("audit: the run part needs class scores; this problem ranks; use --canaries 0")
    return cross_entropy(scores, sample.y)
