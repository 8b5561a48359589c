"""A run prepared from its spec: problem, algorithm, start values, privacy terms and identity."""

from __future__ import annotations

import secrets
from dataclasses import replace
from typing import TypeVar

import torch

from datasets.federation import Federation
from datasets.topology import mixing_matrix
from harness import models
from harness.config import notebook
from harness.config.code import code_of, noise_name, paired_name
from harness.config.recorded import identity, named_parts, own_version
from harness.config.run import RunSpec
from harness.core import rng
from harness.core.algorithm import ALGORITHMS
from harness.core.errors import Incompatible, UserError
from harness.core.problem import Problem
from harness.core.settings.privacy import PrivacyTerms
from harness.core.settings.privacy_kinds import CentralPrivacy
from harness.problems import PROBLEMS, Setting
from harness.problems.base import ProblemType
from harness.simulation.checks import (
    check_adapter,
    check_compression,
    check_data,
    check_privacy,
    check_rest,
)
from harness.simulation.federations import load_once, make_federation, task, user_column
from harness.simulation.setup import CACHED_PROBLEMS, Execution, Prepared
from harness.storage.user_secret import salted
from privacy.banded import MOST_ROUNDS
from privacy.event import SECRET

# Precision -> type of parameters and data, and the type that networks compute in if it differs.
DTYPES = {
    "float32": (torch.float32, None),
    "float64": (torch.float64, None),
    "bfloat16": (torch.float32, torch.bfloat16),
}


_problems: dict[object, Problem] = {}  # of earlier runs, the last CACHED_PROBLEMS
_frozen: dict[object, str] = {}  # digests of the frozen parts of models of plugins


def prepare(
    spec: RunSpec, execution: Execution | None = None, cache: dict[str, Federation] | None = None
) -> Prepared:
    """Load, partition and build everything a spec names.

    Parameters
    ----------
    spec, execution : RunSpec, Execution
        The run and its execution options.
    cache : dict, optional
        Partitioned data by the settings that decide them; missing entries are added. Runs of one seed share them,
        also in memory if neither type nor device is converted.

    Raises
    ------
    UserError, ValueError
        If the data are not available, or parts of the run are incompatible (`Incompatible`).
    """
    execution = execution or Execution()
    algorithm, (dtype, _) = spec.algorithm.made, DTYPES[spec.precision or "float32"]
    if type(algorithm) is not ALGORITHMS[spec.algorithm["name"]]:
        raise UserError(f"algorithm {algorithm.meta.name!r} was defined again since; read the spec once more")
    problem, federation = _task(spec, cache)
    check_rest(spec)
    viewed = algorithm.view(problem)
    check_data(spec, algorithm, federation)
    start = viewed.init(rng.stream(spec.seed, "start"))
    check_adapter(problem, algorithm, start)
    check_compression(spec, viewed, start, federation.clients)
    privacy = privacy_terms(spec, federation)
    if privacy is not None:
        check_privacy(spec, privacy, algorithm, federation, execution)
    mixing = None
    if spec.topology is not None:
        generator = rng.numpy_stream(spec.seed, "topology")
        mixing = mixing_matrix(spec.topology.made, federation.clients, generator).to(execution.device)
    federation = federation.to(execution.device, dtype)
    if (digest := named_digest(spec, federation.digest)) != federation.digest:
        federation = replace(federation, digest=digest)
    id = identity(spec, federation.digest, problem.frozen)
    secure = spec.privacy is not None and spec.privacy.secure_rng
    prepared = Prepared(
        spec=spec,
        id=id,
        noise_key=secrets.token_hex(32) if secure else id,
        privacy=privacy,
        compression=spec.compression,
        algorithm=algorithm,
        problem=problem,
        federation=federation,
        start={name: value.to(execution.device, dtype) for name, value in start.items()},
        mixing=mixing,
        executor=execution.executor(viewed),
        diagnostics=execution.diagnostics,
    )
    if spec.privacy is None or secure:
        return prepared
    return keyed(prepared, execution.noise_code or code_of(spec.model_dump(mode="json")))


def _task(spec: RunSpec, cache: dict[str, Federation] | None) -> tuple[Problem, Federation]:
    """Return the problem and the data of a run."""
    kind, computes = PROBLEMS[spec.problem["kind"]], DTYPES[spec.precision or "float32"][1]
    model = (spec.model["name"], spec.model.made) if spec.model else None
    setting = Setting(spec.problem.made, make_federation(spec, cache), model, spec.seed, computes)
    problem, federation = kind.build(setting)
    if computes is not None and not models.computes_in(computes, problem.module):
        raise Incompatible(
            f"precision: problem {kind.name} does not build its network with Setting.net, so {spec.precision} "
            "would not reach it; use float32 or float64"
        )
    return _cached_problem(spec, kind, problem, federation.digest), federation


P = TypeVar("P", bound=Prepared)


def keyed(setup: P, code: str) -> P:
    """Return a private run with the noise, and secret draws of its own, that it has under some code.

    They are those of the run without attacks: these release nothing, and another noise would be another release.
    Those of paired runs are the seed's.
    """
    if setup.spec.privacy is not None and setup.spec.privacy.draws == "paired":
        return replace(setup, noise_key=noise_name(paired_name(setup.spec.seed), code), code=code)
    spec = setup.spec.model_copy(update={"attacks": None})
    unattacked = identity(spec, setup.federation.digest, setup.problem.frozen)
    if setup.spec.privacy is not None and setup.spec.privacy.strict:
        unattacked = salted(unattacked)  # the name of a folder must not be the key of its noise
    return replace(setup, noise_key=noise_name(unattacked, code), code=code)


def privacy_terms(spec: RunSpec, federation: Federation) -> PrivacyTerms | None:
    """Return a run's mechanism before calibration; None without privacy."""
    settings, total = spec.privacy, federation.clients
    if not isinstance(settings, CentralPrivacy):
        return None if settings is None else PrivacyTerms(settings)
    secret = settings.sampling in SECRET and spec.cohort is not None
    rate = spec.cohort.share(total) if secret and spec.cohort is not None else 1.0
    cohort = total if spec.cohort is None else spec.cohort.expected
    if settings.noise_cohort is not None and settings.noise_cohort < cohort:
        raise Incompatible(
            f"privacy.noise_cohort: at least the {cohort} clients of a round, given {settings.noise_cohort}"
        )
    if settings.mechanism == "banded":
        return PrivacyTerms(settings, rate, spec.rounds, _bands(spec, settings, total))
    return PrivacyTerms(settings, rate)


def _bands(spec: RunSpec, privacy: CentralPrivacy, total: int) -> int:
    """Return over how many rounds banded noise is correlated: nobody may take part twice within them."""
    turns = spec.cohort is not None and spec.cohort.kind == "balanced"
    apart = total // spec.cohort.size if turns and spec.cohort is not None and spec.cohort.size else 1
    bands = min(privacy.bands or apart, spec.rounds)
    if apart < 2:
        raise Incompatible(
            "privacy.mechanism: banded noise needs clients that pause between their rounds; give cohort.kind "
            f"balanced and cohorts of at most half of the {total} clients"
        )
    if bands > apart:
        raise Incompatible(
            f"privacy.bands: at most {apart}, the rounds from one turn of a client to its next, given {bands}"
        )
    if bands > 1 and privacy.factorization == "optimal" and spec.rounds > MOST_ROUNDS:
        raise Incompatible(
            f"privacy.factorization: optimal is for at most {MOST_ROUNDS} rounds, given {spec.rounds}; use toeplitz"
        )
    return bands


def _cached_problem(spec: RunSpec, kind: ProblemType, problem: Problem, digest: str) -> Problem:
    """Return the equal problem of an earlier run, which may have traced functions, or else this one."""
    if problem.constants is None:
        return problem
    key = (
        kind.build,
        None if spec.model is None else own_version("model", spec.model["name"]),
        user_column(spec),  # is no feature
        _decides_problem(spec),
        digest,
        problem.constants,
        problem.frozen,
    )  # two plugins may use one name, and a file may change
    _problems[key] = cached = _problems.pop(key, problem)
    for old in list(_problems)[:-CACHED_PROBLEMS]:
        _problems.pop(old, None)
    return cached


def _decides_problem(spec: RunSpec) -> str:
    """Return the settings that decide a problem, but for the seed."""
    return spec.model_dump_json(include={"data", "partition", "problem", "model", "precision"})


def data_digest(spec: RunSpec) -> str:
    """Return the digest by which a run names its data, which are loaded."""
    if spec.data is None:
        return prepare(spec).federation.digest
    return named_digest(spec, load_once(spec.data, task(spec)).digest)


def named_digest(spec: RunSpec, digest: str) -> str:
    """Return the digest by which a run names its data: under strict, one that only its user can compute."""
    return salted(digest) if spec.privacy is not None and spec.privacy.strict else digest


def identify(spec: RunSpec) -> str:
    """Return a run's identity, under which it is stored; loads its data but trains nothing.

    Raises
    ------
    UserError
        If a notebook or a script defines a part of it.
    """
    notebook.require_files(named_parts(spec.model_dump()).items())
    return identity(spec, data_digest(spec), frozen_part(spec))


def frozen_part(spec: RunSpec, digest: str | None = None, cache: dict[str, Federation] | None = None) -> str:
    """Return the digest of the frozen part of a run's model; empty without any, as in ours without adapters.

    Of a run whose model or data are refused it is empty, too; `prepare` gives the reason. ``digest`` is that of the
    data, which are loaded if it is left out; ``cache`` has their federations.
    """
    if spec.model is None or spec.model["name"] not in models.MODELS:
        return ""
    entry = models.MODELS[spec.model["name"]]
    if entry.ours and "adapter" not in spec.model:
        return ""
    try:
        if digest is None and spec.data is not None:
            digest = data_digest(spec)
        key = entry.make, _decides_problem(spec), digest
        if key not in _frozen:
            _frozen[key] = _task(spec, cache)[0].frozen
    except (UserError, ValueError):
        return ""
    return _frozen[key]
