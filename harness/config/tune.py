"""The ``tune`` section of a suite: settings that every algorithm chooses for itself before the suite's runs.

::

    tune:
      settings:                              # a combination takes those that it has
        algorithm.lr: {log_uniform: [0.01, 1]}
        algorithm.local_steps: {log_integer: [1, 50]}
        privacy.clip: {log_uniform: [0.03, 1]}
        rounds: {choice: [5, 10, 20]}
      budget: 25                             # settings tried for each combination
      metric: auroc                          # the measure that chooses ...
      split: selection                       # ... on samples that no run trains or tests on
      seeds: [100, 101]                      # of the search, other than those reported
      halving: 3                             # after each seed, one setting in three is tried with the next
      once_for: [compression.beta]           # combinations that differ in these fields only share a search
      sampler: sobol                         # or one of Optuna's, as TPESampler
      batch: 8                               # settings that such a sampler proposes at a time

Points are a Sobol sequence, shifted by a keyed draw for each setting. They depend on nothing else, so all
combinations try the same values, and a larger budget tries further ones.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from harness.config.fields import SECTIONS
from harness.config.ranges import Range, read_range
from harness.config.run import RunSpec, read_spec
from harness.config.sweep import Combination, assign
from harness.config.yaml import mapping, shown
from harness.core import rng
from harness.core.algorithm import ALGORITHMS
from harness.core.registry import Incompatible, UserError, unknown
from harness.metrics import ELSEWHERE, better_is_higher

FIELDS = (
    "settings", "budget", "metric", "split", "seeds", "halving", "once_for", "sampler", "batch",
)  # fmt: skip
SPLIT = "selection"
SOBOL = "sobol"
MOST = 1000  # settings
LENGTHS = ("algorithm.local_steps", "algorithm.local_epochs")  # which some algorithms leave no choice of
#: What may be tuned: sections, or single fields of a section whose others say what is compared.
TUNABLE = (
    *("algorithm", "model", "problem", "cohort", "rounds"),
    *("privacy.clip", "privacy.server_clip", "compression.shift", "compression.error_feedback"),
)


@dataclass(frozen=True)
class TuneSpec:
    """How settings are searched; the fields are those of the section."""

    settings: Mapping[str, Range]
    metric: str
    budget: int = 25
    seeds: tuple[int, ...] = (100, 101)
    halving: int = 3
    once_for: tuple[str, ...] = ()
    sampler: str = SOBOL
    batch: int = 8

    @property
    def measure(self) -> str:
        """The measure that chooses, as evaluations name it."""
        return f"{SPLIT}_{self.metric}"

    def sizes(self) -> list[int]:
        """Return the number of settings tried with each seed."""
        sizes = [self.budget]
        for _ in self.seeds[1:]:
            sizes.append(math.ceil(sizes[-1] / self.halving))
        return sizes

    def stored(self) -> dict[str, Any]:
        """Return the section as ``suite.json`` keeps it."""
        ranges = {path: {over.kind: list(over.bounds)} for path, over in self.settings.items()}
        rest = asdict(self)
        return {**rest, "settings": ranges, "seeds": list(self.seeds), "once_for": list(self.once_for)}


@dataclass
class Trial:
    """One setting of a search.

    Attributes
    ----------
    settings : dict
        Dotted path -> value.
    values : list of float or None
        The measure that chooses, one for each seed tried; None if a run did not end or has no such figure.
    tests : list of float or None
        The metric on the test samples of those runs, by which nothing is chosen.
    """

    settings: dict[str, Any]
    values: list[float | None] = field(default_factory=list)
    tests: list[float | None] = field(default_factory=list)


@dataclass
class Search:
    """The search of one combination for its settings.

    Attributes
    ----------
    cells : list of Combination
        The combinations that take what is chosen; the first is searched.
    paths : tuple of str
        Settings that are searched.
    trials : list of Trial
        In the order tried.
    """

    cells: list[Combination]
    paths: tuple[str, ...]
    trials: list[Trial]

    def spec(self, settings: Mapping[str, Any], seed: int) -> RunSpec:
        """Return the run of some settings.

        Raises
        ------
        UserError
            If they are not valid; Incompatible if they do not fit together.
        """
        return _set(self.cells[0], {**settings, "seed": seed})

    def order(self, measure: str) -> list[Trial]:
        """Return the trials that have a figure for every seed tried most, the best first."""
        most = max((len(trial.values) for trial in self.trials), default=0)
        sign = -1 if better_is_higher(measure) else 1
        scored = [
            (sign * math.fsum(values) / most, number)
            for number, trial in enumerate(self.trials)
            if most and len(values := [v for v in trial.values if v is not None]) == most
        ]
        return [self.trials[number] for _, number in sorted(scored)]

    def chosen(self, measure: str) -> Iterator[dict[str, Any]]:
        """Yield what becomes of the fields of each combination; of a search without a figure they are skipped."""
        best = self.order(measure)
        why = f"tuning: none of {len(self.trials)} settings has a {measure} with every seed"
        for cell in self.cells:
            assert cell.spec is not None
            yield {"spec": _set(cell, best[0].settings)} if best else {"spec": None, "reason": why}


def read_tune(given: Any) -> TuneSpec | None:
    """Read the section; None if it is absent.

    Raises
    ------
    UserError
        If a field is unknown or a value has another form than shown above.
    """
    if given is None:
        return None
    for key in mapping("tune", given):
        if key not in FIELDS:
            raise unknown("field of tune", key, FIELDS)
    settings = mapping("tune.settings", given.get("settings", {}))
    if not settings:
        raise UserError("tune.settings: name what is tuned, as algorithm.lr: {log_uniform: [0.01, 1]}")
    for path in settings:
        if not _tunable(path):
            raise UserError(
                f"tune.settings: {path} says what is compared and is not tuned; settings of "
                f"{', '.join(TUNABLE)} are"
            )
    split, metric = given.get("split", SPLIT), given.get("metric", "accuracy")
    if split != SPLIT:
        raise UserError(
            f"tune.split: settings are chosen on {SPLIT} samples, which no run trains or tests on; given "
            f"{shown(split)}"
        )
    if metric not in ELSEWHERE[SPLIT]:
        raise unknown(f"metric of the {SPLIT} samples", str(metric), ELSEWHERE[SPLIT])
    numbers = {name: given.get(name, usual) for name, usual in (("budget", 25), ("halving", 3), ("batch", 8))}
    for name, number in numbers.items():
        if isinstance(number, bool) or not isinstance(number, int) or not 1 <= number <= MOST:
            raise UserError(f"tune.{name}: a whole number from 1 to {MOST:,}, given {shown(number)}")
    seeds, once_for = given.get("seeds", [100, 101]), given.get("once_for", [])
    if not isinstance(seeds, list) or not seeds or not all(type(seed) is int and seed >= 0 for seed in seeds):
        raise UserError(f"tune.seeds: a list of whole numbers of at least 0, given {shown(seeds)}")
    if len(set(seeds)) < len(seeds):
        raise UserError(f"tune.seeds: each once, given {shown(seeds)}")
    if not isinstance(once_for, list):
        raise UserError(f"tune.once_for: a list of fields, given {shown(once_for)}")
    for path in once_for:
        if str(path).split(".")[0] not in RunSpec.model_fields:
            raise unknown("field of a run", str(path), RunSpec.model_fields)
    sampler = given.get("sampler", SOBOL)
    if not isinstance(sampler, str):
        raise UserError(
            f"tune.sampler: {SOBOL}, or the name of one of Optuna's samplers, given {shown(sampler)}"
        )
    return TuneSpec(
        settings={path: read_range(f"tune.settings.{path}", over) for path, over in settings.items()},
        metric=metric,
        seeds=tuple(seeds),
        once_for=tuple(map(str, once_for)),
        sampler=sampler,
        **numbers,
    )


def searches(cells: Sequence[Combination], tune: TuneSpec) -> list[Search]:
    """Return the searches of a suite, without trials, in the order of the combinations.

    Raises
    ------
    UserError
        If a setting exists in no combination, a seed of the search is reported, or a combination holds out no
        selection samples.
    """
    groups: dict[str, list[Combination]] = {}
    specs = [(cell, cell.spec) for cell in cells if cell.spec is not None]
    for cell, spec in specs:
        if spec.seed in tune.seeds:
            raise UserError(f"tune.seeds: {spec.seed} is a seed of the reported runs; give others")
        if spec.partition is None or spec.partition.selection_seed is None:
            raise UserError(
                "tune: the runs need partition.selection, the share of samples that settings are chosen on, as "
                f"partition: {{selection: 0.2}}; {spec.algorithm['name']} on {spec.problem['kind']} has none"
            )
        groups.setdefault(_without(spec, ("seed", *tune.once_for)), []).append(cell)
    dumps = [spec.model_dump(mode="json") for _, spec in specs]
    for path in tune.settings:
        if dumps and not _exists(path) and not any(_has(dump, path) for dump in dumps):
            raise unknown("setting to tune", path, sorted({name for dump in dumps for name in _leaves(dump)}))
    found = []
    rests: set[str] = set()
    for own in groups.values():
        assert own[0].spec is not None
        rest = _without(own[0].spec, ("seed", *tune.once_for, *tune.settings))
        if rest in rests:
            raise UserError(
                f"tune.settings: combinations of {own[0].spec.algorithm['name']} differ in nothing but what is "
                "tuned; a setting is either swept or tuned"
            )
        rests.add(rest)
        dump = own[0].spec.model_dump(mode="json")
        fixed = ALGORITHMS[dump["algorithm"]["name"]].meta.steps is not None
        paths = [path for path in tune.settings if _has(dump, path)]
        found.append(Search(own, tuple(p for p in paths if not (fixed and p in LENGTHS)), []))
    return found


def points(tune: TuneSpec) -> list[dict[str, Any]]:
    """Return the settings that all combinations try, ``tune.budget`` of them."""
    from scipy.stats import qmc  # slow to import

    sequence = qmc.Sobol(len(tune.settings), scramble=False).random_base2(math.ceil(math.log2(tune.budget)))
    shifts = [rng.numpy_stream(0, "tune", path).random() for path in tune.settings]
    return [
        {
            path: over.at((share + shift) % 1)
            for (path, over), share, shift in zip(tune.settings.items(), point.tolist(), shifts, strict=True)
        }
        for point in sequence[: tune.budget]
    ]


def runs_of(cells: Sequence[Combination], tune: TuneSpec | None) -> list[Combination]:
    """Return the combinations that a suite's searches try, with the settings of the file, as estimates of costs."""
    found = [] if tune is None else searches(cells, tune)
    return [search.cells[0] for search in found for _ in range(sum(tune.sizes() if tune else ()))]


def hold_out(cell: dict[str, Any]) -> None:
    """Let the selection samples of a run of a tuned suite be the same under every seed."""
    part = cell.get("partition")
    if isinstance(part, Mapping) and part.get("selection"):
        cell["partition"] = {"selection_seed": 0, **part}


def step_sizes(spec: RunSpec) -> list[str]:
    """Return the settings of a run's algorithm that are step sizes."""
    names = (name for name in spec.algorithm if name == "lr" or name.startswith("lr_"))
    return [f"algorithm.{name}" for name in names if name not in ("lr_decay", "lr_schedule", "lr_period")]


def _set(cell: Combination, settings: Mapping[str, Any]) -> RunSpec:
    assert cell.spec is not None
    given = cell.spec.model_dump(mode="json")
    for path, value in settings.items():
        assign(given, path, value)
    try:
        return read_spec(given)
    except Incompatible:
        raise
    except UserError as error:
        raise UserError(f"tune.settings: {error}") from None


def _without(spec: RunSpec, fields: Sequence[str]) -> str:
    """Return a key of all of a run but some fields."""
    dump = spec.model_dump(mode="json")
    for path in fields:
        *sections, last = path.split(".")
        part: Any = dump
        for section in sections:
            part = part.get(section) if isinstance(part, dict) else None
        if isinstance(part, dict):
            part.pop(last, None)
    return str(dump)


def _tunable(path: str) -> bool:
    named = path.endswith((".name", ".kind"))
    return not named and any(path == own or path.startswith(f"{own}.") for own in TUNABLE)


def _exists(path: str) -> bool:
    """Return whether some algorithm, or the section of a run, has a setting."""
    section, _, name = path.partition(".")
    if section == "algorithm":
        return any(name in cls.__dataclass_fields__ for cls in map(ALGORITHMS.__getitem__, ALGORITHMS))
    return section in SECTIONS and name in SECTIONS[section].model_fields


def _has(dump: Mapping[str, Any], path: str) -> bool:
    part: Any = dump
    for name in path.split("."):
        if not isinstance(part, Mapping) or name not in part:
            return False
        part = part[name]
    return True


def _leaves(dump: Mapping[str, Any], prefix: str = "") -> Iterator[str]:
    for name, part in dump.items():
        path = f"{prefix}{name}"
        if isinstance(part, Mapping):
            yield from _leaves(part, f"{path}.")
        elif _tunable(path):
            yield path
