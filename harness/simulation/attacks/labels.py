"""Label inference in vertical runs: what a party without labels reads from the gradients that it gets.

The gradient of a sample's embedding points away from the outputs of other labels, so samples of one label get
similar gradients. The attacker knows the labels of a few samples and gives each other sample that of the one whose
gradient is most similar, by the cosine.

References
----------
O. Li et al., *Label leakage and protection in two-party split learning*, ICLR 2022,
https://arxiv.org/abs/2102.08504.

Y. Zou et al., *VFLAIR: a research library and benchmark for vertical federated learning*, ICLR 2024,
https://arxiv.org/abs/2310.09827.
"""

from __future__ import annotations

from typing import Any

import torch

from harness.core import rng
from harness.simulation.attacks.tap import tapped
from harness.simulation.setup import Setup

KNOWN = 4  # samples of each class whose labels the attacker has


def labels(setup: Setup) -> dict[str, Any] | None:
    """Attack the labels behind the gradients of the first round; None where parties get no gradients.

    Returns
    -------
    dict
        ``labels_accuracy``: share of right labels. ``labels_blind``: that of always guessing the commonest.
    """
    if setup.problem.kind != "vertical" or not setup.federation.classes:
        return None
    run, tape = tapped(setup)
    run.step()
    if not tape.gradients:
        return None
    real = [batch.weight > 0.5 for _, batch in tape.gradients]
    rows = torch.cat([g[inside] for (g, _), inside in zip(tape.gradients, real, strict=True)]).double()
    truth = torch.cat([batch.y[inside] for (_, batch), inside in zip(tape.gradients, real, strict=True)])
    rows = rows / rows.norm(dim=-1, keepdim=True).clamp(min=1e-30)
    order = torch.randperm(len(truth), generator=rng.stream(setup.spec.seed, "attack", "labels"))
    examples = torch.cat([order[truth[order] == label][:KNOWN] for label in truth.unique()])
    hidden = torch.ones(len(truth), dtype=torch.bool)
    hidden[examples] = False
    if not bool(hidden.any()):
        return None
    guessed = truth[examples][(rows[hidden] @ rows[examples].T).argmax(-1)]
    commonest = truth[examples].new_tensor(int(torch.bincount(truth).argmax()))
    return {
        "samples": int(hidden.sum()),
        "known": len(examples),
        "labels_accuracy": float((guessed == truth[hidden]).double().mean()),
        "labels_blind": float((truth[hidden] == commonest).double().mean()),
    }
