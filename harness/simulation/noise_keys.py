"""Noise keys of runs that have no id."""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Sequence

from torch import Tensor

from compression.codec import find_codec
from datasets.federation import Federation
from harness.config.code import code_of_class, is_known, paired_name
from harness.core.problem import Problem
from harness.simulation.one_run import OneRun


def default_noise_keys(
    problem: Problem, runs: Sequence[OneRun], draws: tuple[object, ...], values: Sequence[Tensor]
) -> list[str]:
    """Return a digest of each run's problem, settings, cohorts, seed, data, code and further ``values``.

    A secret under secure_rng, and for problems, algorithms, codecs and mechanisms whose code is not known; of
    paired runs their seed.

    Two runs that differ in any of them must not share noise: the difference of their releases would be free of it.
    Values of several stacked runs have a leading axis.
    """
    if runs[0].privacy is None:
        return [str(run.seed) for run in runs]  # nothing is noised
    if runs[0].privacy.spec.draws == "paired":
        return [paired_name(run.seed) for run in runs]
    codecs = [find_codec(run.compression.codec) for run in runs]
    coded = all(is_known(kind) for codec in codecs for kind in (type(codec), type(codec.values)))
    if runs[0].privacy.spec.secure_rng or not (coded and _identified(problem)):
        return [secrets.token_hex(32) for _ in runs]
    model: tuple[object, ...] = problem.kind, repr(problem.module), problem.constants, problem.settings
    model += (problem.frozen,) if problem.frozen else ()
    keys = []
    for number, run in enumerate(runs):
        mechanism = None if run.privacy is None else run.privacy.user_noise
        classes = [type(run.algorithm), *([] if mechanism is None else [mechanism.defined])]
        codes = [code_of_class(each) for each in classes]
        if None in codes:
            keys.append(secrets.token_hex(32))
            continue
        own_settings = run.algorithm, run.compression, *draws, problem.name, *model
        text = repr((own_settings, run.privacy, run.seed, codes))
        digest = hashlib.blake2b(text.encode(), digest_size=16)
        own = [value[number] if len(runs) > 1 and len(value) == len(runs) else value for value in values]
        for tensor in (*own, *_content(run.federation)):
            digest.update(tensor.detach().cpu().contiguous().numpy().tobytes())
        keys.append(digest.hexdigest())
    return keys


def _identified(problem: Problem) -> bool:
    """Whether constants, settings, and the text and the frozen part of its module tell a problem from others.

    Functions and modules of users may be others of the same text.
    """
    stated = (problem.loss, problem.inner, problem.embed, problem.project, problem.project_x)
    layers = [] if problem.module is None else map(type, problem.module.modules())
    known = all(is_known(each) for each in (*filter(None, stated), *layers))
    return problem.constants is not None and known


def _content(federation: Federation) -> list[Tensor]:
    """Return all that the clients hold: every column of the samples of every split, and how many each client has.

    Not the pool as it lies in memory, which runs of a stack share.
    """
    content = []
    for _, index in sorted(federation.splits.items()):
        held = index[index >= 0].to(federation.pool.x.device)
        content += [(index >= 0).sum(-1), *(column[held] for column in federation.pool)]
    return content
