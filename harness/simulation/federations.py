"""The data of a run: loaded once, encoded, and dealt to clients."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path
from typing import Literal

from datasets.catalog import CATALOG, available, load
from datasets.dataset import Dataset, halves
from datasets.encoders import ENCODERS, blank, encode
from datasets.federation import Federation, federate
from datasets.formats import is_pattern
from datasets.opening import FORMATS, matching_files
from datasets.partition import PARTITIONS
from datasets.splitting import Splitting
from datasets.stand_in import stand_in
from datasets.vertical import VERTICAL
from harness.config.code import code_of_encoder
from harness.config.fields import DataSpec, PartitionSpec
from harness.config.recorded import own_version
from harness.config.run import RunSpec
from harness.core import rng
from harness.core.settings.privacy_kinds import UserPrivacy
from harness.problems import PROBLEMS


def data_key(spec: RunSpec) -> str:
    """Return the settings that decide the partitioned data of a run."""
    unit = "" if spec.privacy is None else spec.privacy.unit  # users may have to be at one client
    fields = spec.model_dump_json(include={"data", "partition", "seed"})
    return f"{task(spec)} {user_column(spec) or ''} {unit == 'user'} {fields}"


def user_column(spec: RunSpec) -> str | None:
    """Return the column of users inside clients, whom the data name or privacy protects."""
    named = None if spec.data is None else spec.data.user
    return named or (spec.privacy.user if isinstance(spec.privacy, UserPrivacy) else None)


def task(spec: RunSpec) -> Literal["classification", "regression"]:
    """Return what a run predicts of its data set."""
    return "regression" if PROBLEMS[spec.problem["kind"]].labels == "numbers" else "classification"


def make_federation(
    spec: RunSpec, cache: dict[str, Federation] | None = None, *, encoded: bool = True
) -> Federation | None:
    """Return the partitioned data of a spec, from the cache if possible; None if its problem has its own.

    What an encoder makes of them is not computed if ``encoded`` is False: it is zeros, of the features' shape.
    """
    if spec.data is None or spec.partition is None:
        return None
    key = data_key(spec)
    cache = {} if cache is None else cache
    if key not in cache:
        dataset = load_once(spec.data, task(spec), encoded=encoded)
        cache[key] = _partitioned(spec, spec.data, spec.partition, dataset)
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


def _partitioned(spec: RunSpec, data: DataSpec, partition: PartitionSpec, dataset: Dataset) -> Federation:
    generator = rng.numpy_stream(spec.seed, "partition")
    vertical = partition.kind in VERTICAL
    deal = PARTITIONS["iid"]() if vertical else partition.settings.made
    selection_seed = partition.selection_seed
    split = Splitting(
        test=partition.test,
        stratify=partition.stratify,
        limit=partition.limit,
        drop_negatives=data.drop_negatives,
        selection=partition.selection,
        selection_rng=None if selection_seed is None else rng.numpy_stream(selection_seed, "selection"),
        user=user_column(spec),
        one_client=spec.privacy is not None and spec.privacy.unit == "user",
    )
    clients = 1 if vertical else partition.clients
    federation = federate(dataset, deal, clients, generator, split, standardize=partition.standardize)
    if not vertical:
        return federation
    features = () if federation.inputs is None else federation.inputs.features
    columns: Federation = partition.settings.made(federation, features, partition.clients)
    return columns


def load_once(
    data: DataSpec,
    task: Literal["classification", "regression"] = "classification",
    *,
    encoded: bool = True,
) -> Dataset:
    """Load a data set, cached because the runs of a suite mostly share one.

    A file that changed is read again, also one of an encoder's weights, and so is what a notebook reads or encodes
    by a function that it has defined again. ``encoded`` is that of `make_federation`.
    """
    try:
        own = data.name in FORMATS
        weights = ENCODERS[data.encoder].own_files if data.encoder in ENCODERS else ()
        paths = [*map(Path, _paths(data)), *weights]
        state = tuple(_state(path.expanduser(), own) for path in paths) or None
    except OSError:  # reading says what is wrong
        state = None
    versions = own_version("data", data.name), own_version("encoder", data.encoder or "")
    return _load(data, task, encoded, state, versions)


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
    data: DataSpec,
    task: Literal["classification", "regression"],
    encoded: bool,
    state: object,
    versions: object,
) -> Dataset:
    beside = {"binary", "drop_negatives", "encoder", "size", "norm", "until"}
    beside |= set() if data.name in FORMATS else {"user", "encode"}
    options = data.model_dump(exclude_none=True, exclude=beside)
    settings = data.encoder_settings(code_of_encoder(data.encoder or ""))
    if settings is not None and "normalize" in (CATALOG[data.name].options if data.name in CATALOG else ()):
        options["normalize"] = "none"  # encoders scale pixels themselves
    read = load(**options, task=task)
    read = read if settings is None else encode(read, settings, computed=encoded)
    return read if data.binary is None else halves(read)
