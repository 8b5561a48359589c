"""Build what a run spec names: data, problem, algorithm and start values."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from functools import lru_cache
from pathlib import Path
from typing import Literal, TypeVar

import torch
from torch import Tensor

from compression.codec import find_codec
from datasets.catalog import CATALOG, available, load
from datasets.dataset import Dataset, halves
from datasets.encoders import ENCODERS, blank, encode
from datasets.errors import warn_once
from datasets.federation import Federation, federate
from datasets.formats import is_pattern
from datasets.opening import FORMATS, matching_files
from datasets.partition import PARTITIONS
from datasets.splitting import Splitting
from datasets.stand_in import stand_in
from datasets.topology import mixing_matrix
from datasets.users import most_of_a_user
from datasets.vertical import VERTICAL
from harness import models
from harness.config import notebook
from harness.config.code import checked_code, code_of, code_of_encoder, noise_name, paired_name
from harness.config.fields import DataSpec, PartitionSpec
from harness.config.recorded import identity, named_parts, own_version
from harness.config.run import RunSpec, refuse_too_many
from harness.core import rng
from harness.core.algorithm import ALGORITHMS, Algorithm
from harness.core.clients.pruning import prunable
from harness.core.execution.vectorize import ClientExecutor
from harness.core.flat_model import loops_of
from harness.core.methods.personal import Split
from harness.core.problem import Problem, names_by_length
from harness.core.registry import Incompatible, UserError
from harness.core.settings.compression import Compression
from harness.core.settings.privacy import Privacy, PrivacyTerms
from harness.core.settings.privacy_kinds import CentralPrivacy, GradientPrivacy, UserPrivacy
from harness.core.wire import low_rank
from harness.problems import PROBLEMS, Setting
from harness.problems.base import ProblemType
from harness.simulation.totals import DryRun
from harness.storage.user_secret import salted
from privacy.banded import MOST_ROUNDS
from privacy.event import SECRET

# Precision -> type of parameters and data, and the type that networks compute in if it differs.
DTYPES = {
    "float32": (torch.float32, None),
    "float64": (torch.float64, None),
    "bfloat16": (torch.float32, torch.bfloat16),
}

CACHED_PROBLEMS = 4  # problems of earlier runs that later runs can reuse
_problems: dict[object, Problem] = {}
_frozen: dict[object, str] = {}  # digests of the frozen parts of models of plugins


@dataclass(frozen=True)
class Execution:
    """Execution options; never part of a run's identity.

    Attributes
    ----------
    device : str
        A torch device.
    vectorize : {"auto", "vmap", "loop"}
        How clients are run. auto: dense models vectorized, convolutions on a CPU in a loop.
    threads : int
        Worker threads of the loop.
    stack : int or None
        Largest number of stacked runs, which differ in seed and numbers such as noise; 1: no stacking. None: as
        many as is faster.
    diagnostics : bool
        Whether runs with privacy also write figures of private data that no noise protects: of training samples,
        and of messages before their noise.
    noise_code : str or None
        Repeat the noise that a run has had under other code, to verify it: the digest in its record or in the
        column ``noise_code`` of a leaderboard, or ``none`` for a record without one. None: noise of its own for the
        code that is imported.
    memory : int or None
        Bytes that this process may take in all, as one of several workers; None: what is left when a run begins.
    """

    device: str = "cpu"
    vectorize: Literal["auto", "vmap", "loop"] = "auto"
    threads: int = 1
    stack: int | None = None
    diagnostics: bool = False
    noise_code: str | None = None
    memory: int | None = None

    def __post_init__(self) -> None:
        try:
            kind = torch.device(self.device).type
        except RuntimeError:
            raise UserError(f"device: invalid device {self.device!r}; expected cpu or cuda[:N]") from None
        if kind == "cuda" and not torch.cuda.is_available():
            raise UserError("device: torch finds no CUDA device on this machine; use cpu")
        if self.noise_code is not None:
            checked_code(self.noise_code)

    def rows(self, problem: Problem) -> ClientExecutor:
        """Return the executor of one-client functions of a problem.

        Raises
        ------
        Incompatible
            If clients are to be vectorized, and torch cannot do that with the problem's model.
        """
        if self.vectorize == "vmap" and loops_of(problem.module) in ("clients", "samples"):
            raise Incompatible(
                "vectorize: torch.func.vmap cannot compute the model's gradients for several clients at once, or "
                "computes others than a loop does; use auto or loop"
            )
        dense = problem.dense or (
            torch.device(self.device).type == "cuda" and loops_of(problem.module) in (None, "faster")
        )
        mode = self.vectorize if self.vectorize != "auto" else "vmap" if dense else "loop"
        make = new_rows if problem.constants is None else _rows
        return make(problem, mode, self.threads)


@dataclass(frozen=True)
class Prepared:
    """A prepared run, or a stack of runs, before the noise of its budget is known.

    Attributes
    ----------
    spec : RunSpec
        The run.
    id, noise_key : str
        Identity of the run, and the key of its noise and of its own draws: made of the id and ``code``, or a secret
        from the system's entropy.
    privacy, compression : PrivacyTerms or None, Compression
        Treatment of messages; `harness.simulation.calibration.calibrated` finds the noise.
    algorithm, problem, federation : Algorithm, Problem, Federation
        What the spec names.
    start : dict[str, Tensor]
        Start values.
    mixing : Tensor or None
        Mixing matrix of a gossip algorithm.
    rows : ClientExecutor
        How clients are run.
    diagnostics : bool
        As of `Execution`.
    code : str
        Digest of the code whose noise the run has (`harness.config.code`); empty without noise to be repeated.
    in_parts : bool or None
        Whether the cohort is processed client by client, as of `harness.simulation.simulation.Simulation`.
    members : tuple of Prepared
        The single runs of a stack (`harness.simulation.stacking`), for which `federation`, `start` and `mixing`
        have a leading axis. Empty for a single run.
    """

    spec: RunSpec
    id: str
    noise_key: str
    privacy: PrivacyTerms | None
    compression: Compression
    algorithm: Algorithm
    problem: Problem
    federation: Federation
    start: dict[str, Tensor]
    mixing: Tensor | None
    rows: ClientExecutor
    diagnostics: bool = False
    code: str = ""
    in_parts: bool | None = None
    members: tuple[Prepared, ...] = ()

    @property
    def each(self) -> tuple[Prepared, ...]:
        """Single runs: the members of a stack, or this run."""
        return self.members or (self,)

    @property
    def seeds(self) -> tuple[int, ...]:
        """Seed of every single run."""
        return tuple(run.spec.seed for run in self.each)

    @property
    def training(self) -> Federation:
        """Training federation of a single run; for the centralized reference, one client with all data."""
        return self.federation.merged() if self.algorithm.meta.pooled else self.federation

    def with_noise(self, noise: Callable[[PrivacyTerms, int], Privacy], dry: DryRun | None = None) -> Setup:
        """Return the run with the noise that a function gives each single run, by its number."""
        each = [
            Setup(**{**vars(run), "privacy": run.privacy and noise(run.privacy, number)})
            for number, run in enumerate(self.each)
        ]
        if not self.members:
            return replace(each[0], dry=dry)
        whole = {**vars(self), "privacy": each[0].privacy, "members": tuple(each), "dry": dry}
        return Setup(**whole)


@dataclass(frozen=True)
class Setup(Prepared):
    """A prepared run, or a stack of runs, that can be carried out.

    Attributes
    ----------
    privacy : Privacy or None
        The mechanism, with its noise.
    members : tuple of Setup
        The single runs of a stack.
    dry : DryRun or None
        That by which the noise was found.
    """

    privacy: Privacy | None
    members: tuple[Setup, ...] = ()
    dry: DryRun | None = None

    @property
    def each(self) -> tuple[Setup, ...]:
        """Single runs: the members of a stack, or this run."""
        return self.members or (self,)

    def uncalibrated(self) -> Prepared:
        """Return the run, to find the noise of its budget anew after a change."""
        shared = {field.name: getattr(self, field.name) for field in fields(Prepared)}
        return Prepared(**{**shared, "members": tuple(run.uncalibrated() for run in self.members)})


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
    viewed = algorithm.view(problem)
    _check_data(spec, algorithm, federation)
    start = viewed.init(rng.stream(spec.seed, "start"))
    _check_adapter(problem, algorithm, start)
    _check_compression(spec, viewed, start, federation.clients)
    privacy = privacy_terms(spec, federation)
    if privacy is not None:
        _check_privacy(spec, privacy, algorithm, federation, execution)
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
        rows=execution.rows(viewed),
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


def _check_data(spec: RunSpec, algorithm: Algorithm, federation: Federation) -> None:
    """Refuse data that lack what a run needs of them."""
    kind = PROBLEMS[spec.problem["kind"]]
    if spec.cohort is not None and spec.cohort.size is not None:
        refuse_too_many(spec.cohort.size, federation.clients)
    if algorithm.meta.groups and len(federation.groups) < 2:
        raise Incompatible(
            f"algorithm {algorithm.meta.name} compares sensitive groups, and the data have "
            f"{len(federation.groups) or 'none'}; name an attribute: data.sensitive"
        )
    if algorithm.meta.classes and kind.labels == "numbers":
        raise Incompatible(
            f"algorithm {algorithm.meta.name} distinguishes classes, and problem {kind.name} predicts numbers"
        )
    if _user(spec) is not None and federation.users is None:
        raise Incompatible(f"privacy.user: problem {kind.name} has its own data, without users")


def _check_adapter(problem: Problem, algorithm: Algorithm, start: dict[str, Tensor]) -> None:
    """Refuse an adapter of which clients keep a factor where the algorithm makes no such division."""
    if problem.module is None or not (names := models.factors_to_share(problem.module)):
        return
    shared = sum(problem.module.get_parameter(name).numel() for name in names)
    if not isinstance(algorithm, Split) or len(start["x"]) != shared:
        raise Incompatible(
            f"model.adapter.kind: under fedsa_lora clients share A and keep B, and algorithm {algorithm.meta.name} "
            "does not divide a model so; use one that shares a part and keeps the rest (fedper, fedrep), "
            "or kind lora"
        )


def _check_compression(spec: RunSpec, problem: Problem, start: dict[str, Tensor], clients: int) -> None:
    """Refuse compression that does not fit the model or the clients."""
    hidden = spec.cohort is not None and spec.cohort.rate is not None
    spec.compression.check_clients(clients, hidden=hidden)
    if spec.compression.alpha != 0:
        prunable(problem)
        names_by_length(start, "alpha")
    if spec.compression.rank is not None:
        low_rank.checked(problem, spec.compression.rank)


def _check_privacy(
    spec: RunSpec, privacy: PrivacyTerms, algorithm: Algorithm, federation: Federation, execution: Execution
) -> None:
    """Refuse what would tell more than the mechanism does, and warn of users whom it does not protect."""
    if privacy.costs_expected and not find_codec(spec.compression.codec).fixed:
        raise Incompatible(
            f"compression.codec: under {privacy.placement} placement bytes are expected values, as lengths of "
            f"messages tell of the data; those of codec {spec.compression.codec} follow from the data alone. Use a "
            "codec of fixed length, or local placement"
        )
    if privacy.spec.strict:
        _strict(spec, algorithm, federation)
        if execution.diagnostics:
            raise UserError(
                "privacy.strict: such a run writes no figure of private data; remove --diagnostics"
            )
    if federation.users is not None and privacy.unit != "user":
        _remark_users(spec, federation, privacy.counts_private)


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


def new_rows(problem: Problem, mode: Literal["vmap", "loop"], threads: int = 1) -> ClientExecutor:
    """Return an executor of one-client functions of a problem, sample by sample where its model needs that."""
    return ClientExecutor(mode, threads, singly=loops_of(problem.module) == "samples")


_rows = lru_cache(maxsize=CACHED_PROBLEMS)(new_rows)


def _cached_problem(spec: RunSpec, kind: ProblemType, problem: Problem, digest: str) -> Problem:
    """Return the equal problem of an earlier run, whose functions may have been traced, or this one."""
    if problem.constants is None:
        return problem
    key = (
        kind.build,
        None if spec.model is None else own_version("model", spec.model["name"]),
        _user(spec),  # is no feature
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


def _strict(spec: RunSpec, algorithm: Algorithm, federation: Federation) -> None:
    """Raise Incompatible if the run treats something about the clients' data as public."""
    taken = list(federation.public)
    if isinstance(spec.privacy, GradientPrivacy):
        if spec.privacy.record_rate is None:
            taken.append("numbers of samples, as the rate at which a record is drawn")
    elif algorithm.local_steps is None:
        taken.append("numbers of samples, as the steps of an epoch")
    if taken:
        raise Incompatible(
            f"privacy.strict: the run takes as public: {'; '.join(taken)}; see partition.standardize, "
            "algorithm.local_steps, privacy.unit"
        )


def _remark_users(spec: RunSpec, federation: Federation, private: bool) -> None:
    """Warn that an epsilon of a record, or of a client, does not cover a user who has several or is at several."""
    unit: Literal["record", "client"] = "client"
    if spec.privacy is not None and spec.privacy.unit == "record":
        unit = "record"
    train = federation.splits["train"]
    if spec.partition is not None and spec.partition.kind in VERTICAL:
        train = train[:1]  # parties hold columns of the same records
    assert federation.users is not None
    if (most := most_of_a_user(federation.users, train, unit)) > 1:
        where = "training records" if unit == "record" else "clients, with training records at each"
        warn_once(
            f"privacy.unit: a user of column {_user(spec)!r} has {'several' if private else f'up to {most}'} "
            f"{where}, so the epsilon is one of a {unit} and not of a user; unit user protects users at one client"
        )


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


def frozen_part(spec: RunSpec) -> str:
    """Return the digest of the frozen part of a run's model; empty without any, as in ours without adapters.

    Of a run whose model or data are refused it is empty, too; `prepare` gives the reason.
    """
    if spec.model is None or spec.model["name"] not in models.MODELS:
        return ""
    entry = models.MODELS[spec.model["name"]]
    if entry.ours and "adapter" not in spec.model:
        return ""
    try:
        key = entry.make, _decides_problem(spec), None if spec.data is None else data_digest(spec)
        if key not in _frozen:
            _frozen[key] = _task(spec, None)[0].frozen
    except (UserError, ValueError):
        return ""
    return _frozen[key]


def data_key(spec: RunSpec) -> str:
    """Return the settings that decide the partitioned data of a run."""
    unit = "" if spec.privacy is None else spec.privacy.unit  # users may have to be at one client
    fields = spec.model_dump_json(include={"data", "partition", "seed"})
    return f"{task(spec)} {_user(spec) or ''} {unit == 'user'} {fields}"


def _user(spec: RunSpec) -> str | None:
    """Return the column of users inside clients, whom the data name or privacy protects."""
    named = None if spec.data is None else spec.data.user
    return named or (spec.privacy.user if isinstance(spec.privacy, UserPrivacy) else None)


def task(spec: RunSpec) -> Literal["classification", "regression"]:
    """Return what a run predicts of its data set."""
    return "regression" if PROBLEMS[spec.problem["kind"]].labels == "numbers" else "classification"


def make_federation(spec: RunSpec, cache: dict[str, Federation] | None = None) -> Federation | None:
    """Return the partitioned data of a spec, from the cache if possible; None if its problem has its own."""
    if spec.data is None or spec.partition is None:
        return None
    key = data_key(spec)
    cache = {} if cache is None else cache
    if key not in cache:
        cache[key] = _partitioned(spec, spec.data, spec.partition, load_once(spec.data, task(spec)))
    return cache[key]


def stand_in_federation(spec: RunSpec) -> Federation | None:
    """Return a federation in the shape of the spec's data if they are not here, to plan with; None if they are.

    Raises
    ------
    DataError
        If the data are not here, and are no images.
    """
    if spec.data is None or spec.partition is None or spec.data.path is not None:
        return None
    if available(spec.data.name):
        return None
    dataset = stand_in(spec.data.name)
    settings = spec.data.encoder_settings()
    dataset = dataset if settings is None else blank(dataset, settings)
    dataset = dataset if spec.data.binary is None else halves(dataset)
    return _partitioned(spec, spec.data, spec.partition, dataset)


def _partitioned(spec: RunSpec, data: DataSpec, part: PartitionSpec, dataset: Dataset) -> Federation:
    generator = rng.numpy_stream(spec.seed, "partition")
    vertical = part.kind in VERTICAL
    deal = PARTITIONS["iid"]() if vertical else part.settings.made
    selection_seed = part.selection_seed
    split = Splitting(
        test=part.test,
        stratify=part.stratify,
        limit=part.limit,
        drop_negatives=data.drop_negatives,
        selection=part.selection,
        selection_rng=None if selection_seed is None else rng.numpy_stream(selection_seed, "selection"),
        user=_user(spec),
        one_client=spec.privacy is not None and spec.privacy.unit == "user",
    )
    clients = 1 if vertical else part.clients
    federation = federate(dataset, deal, clients, generator, split, standardize=part.standardize)
    if not vertical:
        return federation
    features = () if federation.inputs is None else federation.inputs.features
    columns: Federation = part.settings.made(federation, features, part.clients)
    return columns


def load_once(data: DataSpec, task: Literal["classification", "regression"] = "classification") -> Dataset:
    """Load a data set, cached because the runs of a suite mostly share one.

    A file that changed is read again, also one of an encoder's weights, and so is what a notebook reads or encodes
    by a function that it has defined again.
    """
    try:
        own = data.name in FORMATS
        weights = ENCODERS[data.encoder].own_files if data.encoder in ENCODERS else ()
        paths = [*map(Path, _paths(data)), *weights]
        state = tuple(_state(path.expanduser(), own) for path in paths) or None
    except OSError:  # reading says what is wrong
        state = None
    versions = own_version("data", data.name), own_version("encoder", data.encoder or "")
    return _load(data, task, state, versions)


def _paths(data: DataSpec) -> list[str]:
    """Return the paths of the user's files."""
    named = [one if isinstance(one, str) else str(one["path"]) for one in (data.files or {}).values()]
    return named if data.path is None else [data.path]


def _state(path: Path, inside: bool) -> object:
    """Return what changes with a file, or ``inside`` a folder or a pattern with any of its files."""
    if inside and is_pattern(str(path)):
        every = matching_files(str(path))
    else:
        every = sorted(path.rglob("*")) if inside and path.is_dir() else [path]
    now = [(str(file), file.stat()) for file in every]
    return tuple((name, file.st_mtime_ns, file.st_size, file.st_ino) for name, file in now)


@lru_cache(maxsize=2)
def _load(
    data: DataSpec, task: Literal["classification", "regression"], state: object, versions: object
) -> Dataset:
    beside = {"binary", "drop_negatives", "encoder", "size", "norm", "until"}
    beside |= set() if data.name in FORMATS else {"user", "encode"}
    options = data.model_dump(exclude_none=True, exclude=beside)
    settings = data.encoder_settings(code_of_encoder(data.encoder or ""))
    if settings is not None and "normalize" in (CATALOG[data.name].options if data.name in CATALOG else ()):
        options["normalize"] = "none"  # encoders scale pixels themselves
    read = load(**options, task=task)
    read = read if settings is None else encode(read, settings)
    return read if data.binary is None else halves(read)
