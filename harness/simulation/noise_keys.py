"""Noise keys of runs that have no id."""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Sequence

from torch import Tensor

from datasets.federation import Federation
from harness.config.code import code_of_class, is_known, paired_name
from harness.core.problem import Problem
from harness.core.settings.privacy import Privacy


def default_noise_keys(
    settings: Sequence[Sequence[object]],
    privacies: Sequence[Privacy],
    seeds: Sequence[int],
    federations: Sequence[Federation],
    values: Sequence[Tensor],
) -> list[str]:
    """Return a digest of each run's settings, seed, data, code and further ``values``.

    A secret under secure_rng, and for algorithms and mechanisms whose code is not known; of paired runs their seed.

    Two runs that differ in any of them must not share noise: the difference of their releases would be free of it.
    ``settings`` are lists with one object for all runs, or one for each; the first are the algorithms. Values of
    several stacked runs have a leading axis of runs.
    """
    if not privacies:
        return list(map(str, seeds))  # nothing is noised
    if privacies[0].spec.secure_rng:
        return [secrets.token_hex(32) for _ in seeds]
    if privacies[0].spec.draws == "paired":
        return list(map(paired_name, seeds))
    keys = []
    for number, (seed, federation) in enumerate(zip(seeds, federations, strict=True)):
        own_settings = tuple(each[number % len(each)] for each in settings)
        privacy = privacies[number % len(privacies)]
        classes = [type(own_settings[0]), *([] if privacy.own is None else [privacy.own.defined])]
        codes = [code_of_class(one) for one in classes]
        if None in codes:
            keys.append(secrets.token_hex(32))
            continue
        text = repr((own_settings, privacy, seed, codes))
        found = hashlib.blake2b(text.encode(), digest_size=16)
        own = [value[number] if len(seeds) > 1 and len(value) == len(seeds) else value for value in values]
        for part in (*own, *_content(federation)):
            found.update(part.detach().cpu().contiguous().numpy().tobytes())
        keys.append(found.hexdigest())
    return keys


def is_identified(problem: Problem) -> bool:
    """Whether nothing but its constants, its settings and the text of its module tells a problem from others.

    Functions and modules of users may be others of the same text.
    """
    stated = (problem.loss, problem.inner, problem.embed, problem.project, problem.project_x)
    layers = [] if problem.module is None else map(type, problem.module.modules())
    known = all(is_known(one) for one in (*filter(None, stated), *layers))
    return problem.constants is not None and known


def _content(federation: Federation) -> list[Tensor]:
    """Return all that the clients hold: every part of the samples of every split, and how many each client has.

    Not the pool as it lies in memory, which runs of a stack share.
    """
    content = []
    for _, index in sorted(federation.splits.items()):
        held = index[index >= 0].to(federation.pool.x.device)
        content += [(index >= 0).sum(-1), *(part[held] for part in federation.pool)]
    return content
