"""The ``tune`` section of a suite: settings that every algorithm chooses for itself before the suite's runs.

::

    tune:
      settings:                              # a combination takes those that it has
        algorithm.lr: {log_uniform: [0.01, 1]}
        algorithm.local_steps: {log_integer: [1, 50]}
        privacy.clip: {log_uniform: [0.03, 1]}
        rounds: {log_integer: [5, 100], fixed: true}     # a fixed range is not widened
        algorithm.server_lr: {log_uniform: [0.01, 1], algorithms: [fedadam]}      # of these only
      metric: auroc                          # the measure that chooses ...
      split: selection                       # ... on samples that no run trains or tests on
      budget: 64                             # settings that every search tries first
      repeats: [1, 4, 16]                    # seeds of all settings, of the best third, of the finalists
      halving: 3                             # a third
      finalists: 4                           # of every budget
      most_steps: 1500                       # local steps of a client in a run that is tried, at most
      seed: 0                                # another one makes an independent search
      standard_error: 0.005                  # report further seeds where that of a mean is larger,
      most_seeds: 50                         # up to so many
      once_for: [compression.beta]           # values of compression that share a search

One search is made for a method, a federation and a kind of privacy, over all its budgets, by a surface that is
fitted to all of its runs (`harness.executors.tuning.rungs`). With ``sampler: latin``, or a sampler of Optuna as
``TPESampler``, every budget has a search of its own, and the best mean is chosen
(`harness.executors.tuning.halving`)::

    tune:
      sampler: latin
      budget: 25                             # settings tried
      seeds: [100, 101]                      # of the search, other than those reported
      halving: 3                             # after each seed, one setting in three is tried with the next
      batch: 8                               # settings that a sampler of Optuna proposes at a time
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass, field, fields
from functools import partial
from typing import Annotated, Any, Final, Literal

from pydantic import AfterValidator, BeforeValidator, Field

from harness.config.ranges import TUNED, Range, read_ranges
from harness.config.run import RunSpec
from harness.config.settings import construct
from harness.config.yaml import mapping, shown
from harness.core import rng
from harness.core.errors import UserError, unknown
from harness.metrics import PREFIXES

SPLIT = "selection"
SHARED = "compression"  # the section whose values may share a search
SURFACE: Final = "surface"  # samplers
LATIN = "latin"
OPTUNA = "Sampler"  # how names of Optuna's samplers end
FIRST_SEED, SEEDS = 10**6, 10**8  # of searches by a surface: the first, and how many there are
WIDENINGS = 2  # of the ranges of a search by a surface, at most
STEPS = 3  # of the second rung
NEW = 1 / 3  # share of its settings that were not tried before; each takes two places, as it costs more seeds
ADDED = 1 / 3  # of the length of a range, and of the number of settings, for every end that is widened
MOST_SETTINGS = 1000  # settings
MOST_STEPS = 4  # step sizes of an algorithm, which have the first coordinates of a point
#: What may be tuned: sections, or single fields of a section whose others say what is compared.
TUNABLE = (
    *("algorithm", "model", "problem", "cohort", "rounds"),
    *("privacy.clip", "privacy.server_clip", "compression.shift", "compression.error_feedback"),
)
TUNED_SECTIONS = tuple(dict.fromkeys(path.split(".")[0] for path in TUNABLE))
SECTIONS = {*TUNED_SECTIONS, *RunSpec.model_fields}


def _metric(name: str) -> str:
    """Return the name of a metric of the selection samples."""
    if name not in PREFIXES[SPLIT]:
        raise unknown(f"metric of the {SPLIT} samples", name, PREFIXES[SPLIT])
    return name


def _free(path: str) -> str:
    """Return a field whose values may share a search."""
    if path.split(".")[0] != SHARED:
        raise UserError(
            f"tune.once_for: {SHARED} or fields of it, which cost no privacy, given {shown(path)}"
        )
    return path


def _three(given: Any) -> Any:
    """Return the seeds of the rungs, which are three."""
    if not isinstance(given, list | tuple) or len(given) != 3:
        raise UserError(
            "tune.repeats: three numbers, the seeds of all settings, of the best of them, and of the finalists; "
            f"given {shown(given)}"
        )
    return given


Count = Annotated[int, Field(ge=1, le=MOST_SETTINGS)]


@dataclass(frozen=True)
class TuneSpec(ABC):
    """Settings of a search; the fields are those of the section."""

    settings: Annotated[dict[str, Range], BeforeValidator(partial(read_ranges, TUNED))] = field(
        default_factory=dict
    )
    metric: Annotated[str, AfterValidator(_metric)] = "accuracy"
    split: str = SPLIT
    halving: Count = 3
    once_for: tuple[Annotated[str, AfterValidator(_free)], ...] = ()

    def __post_init__(self) -> None:
        if not self.settings:
            raise UserError("tune.settings: name what is tuned, as algorithm.lr: {log_uniform: [0.01, 1]}")
        for path in self.settings:
            if not is_tunable(path):
                if (section := path.split(".")[0]) not in SECTIONS:
                    raise unknown("section of tune.settings", section, TUNED_SECTIONS)
                raise UserError(
                    f"tune.settings: {path} says what is compared and is not tuned; settings of "
                    f"{', '.join(TUNABLE)} are"
                )
        if self.split != SPLIT:
            raise UserError(
                f"tune.split: settings are chosen on {SPLIT} samples, which no run trains or tests on; given "
                f"{shown(self.split)}"
            )

    @property
    def measure(self) -> str:
        """The measure that chooses, as evaluations name it."""
        return f"{SPLIT}_{self.metric}"

    @abstractmethod
    def sizes(self) -> list[int]:
        """Return how many runs each stage of a search takes, for one budget."""

    @abstractmethod
    def seeds_of(self, algorithm: str) -> tuple[int, ...]:
        """Return the seeds of the searches of an algorithm."""

    def stored(self) -> dict[str, Any]:
        """Return the section as ``suite.json`` keeps it."""
        ranges = {path: over.stored() for path, over in self.settings.items()}
        rest = {name: value for name, value in vars(self).items() if name not in ("settings", "split")}
        lists = {name: list(value) if isinstance(value, tuple) else value for name, value in rest.items()}
        return {**lists, "settings": ranges}

    def takes(self, path: str, algorithm: str) -> bool:
        """Return whether an algorithm that has a setting searches it."""
        return algorithm in (self.settings[path].algorithms or (algorithm,))


@dataclass(frozen=True)
class SurfaceTune(TuneSpec):
    """A search by a surface over settings and budgets, in three rungs."""

    sampler: Literal["surface"] = SURFACE
    budget: Count = 64
    repeats: Annotated[tuple[Count, Count, Count], BeforeValidator(_three)] = (1, 4, 16)
    finalists: Count = 4
    most_steps: Annotated[int, Field(ge=1)] | None = None
    seed: Annotated[int, Field(ge=0)] = 0
    standard_error: Annotated[float, Field(gt=0)] | None = None
    most_seeds: Count = 50

    def __post_init__(self) -> None:
        super().__post_init__()
        if list(self.repeats) != sorted(self.repeats):
            raise UserError(
                "tune.repeats: seeds of all settings, of the best of them, and of the finalists, none fewer than "
                f"before; given {list(self.repeats)}"
            )

    def sizes(self) -> list[int]:
        """Return how many runs the rungs take for one budget, if its best settings are those of no other."""
        first, second, third = self.repeats
        tried, better = self.budget, 0
        for _ in range(STEPS):
            again, new = self.step(tried, MOST_SETTINGS)
            tried, better = tried + new, better + again * (second - first) + new * second
        return [self.budget * first, better, self.finalists * (third - second)]

    def step(self, tried: int, untried: int) -> tuple[int, int]:
        """Return how many settings that were tried, and how many that were not, a budget chooses in a step."""
        most = math.ceil(tried / (self.halving * STEPS))
        new = min(math.ceil(most * NEW), untried)
        return max(1, most - 2 * new), new

    def seeds_of(self, algorithm: str) -> tuple[int, ...]:
        """Return the seeds of the searches of an algorithm: its own, so that two names of one method differ."""
        keys = (rng.key(self.seed, "tune", algorithm, number) for number in range(self.repeats[-1]))
        return tuple(FIRST_SEED + key % SEEDS for key in keys)


@dataclass(frozen=True)
class HalvingTune(TuneSpec):
    """A search by successive halving over seeds, for every budget apart."""

    sampler: str = LATIN
    budget: Count = 25
    seeds: Annotated[tuple[Annotated[int, Field(ge=0)], ...], Field(min_length=1)] = (100, 101)
    batch: Count = 8

    def __post_init__(self) -> None:
        super().__post_init__()
        if len(set(self.seeds)) < len(self.seeds):
            raise UserError(f"tune.seeds: a seed is given twice in {list(self.seeds)}")

    def sizes(self) -> list[int]:
        """Return the number of settings tried with each seed."""
        sizes = [self.budget]
        for _ in self.seeds[1:]:
            sizes.append(math.ceil(sizes[-1] / self.halving))
        return sizes

    def seeds_of(self, algorithm: str) -> tuple[int, ...]:
        """Return the seeds, which are those of every algorithm."""
        return self.seeds


def read_tune(given: Any) -> TuneSpec | None:
    """Read the section; None if it is absent.

    Raises
    ------
    UserError
        If a field is unknown or a value has another form than shown above.
    """
    if given is None:
        return None
    section = mapping("tune", given)
    sampler = section.get("sampler", SURFACE)
    if isinstance(sampler, str) and sampler not in (SURFACE, LATIN) and not sampler.endswith(OPTUNA):
        raise unknown("sampler of tune", sampler, (SURFACE, LATIN, f"TPE{OPTUNA}"))
    own, other = (SurfaceTune, HalvingTune) if sampler == SURFACE else (HalvingTune, SurfaceTune)
    names, others = ({each.name for each in fields(cls)} for cls in (own, other))
    for name in section:
        if name in others - names:
            owner = f"{LATIN} and samplers of Optuna have" if own is SurfaceTune else f"{SURFACE} has"
            raise UserError(
                f"{unknown(f'setting of tune with sampler {sampler}', name, names)} The sampler {owner} it."
            )
    if "most_seeds" in section and section.get("standard_error") is None:
        raise UserError(
            "tune.most_seeds bounds the further seeds of standard_error; give that too, or remove most_seeds"
        )
    return construct("tune", own, section)


def is_tunable(path: str) -> bool:
    """Whether a search may choose a setting."""
    named = path.endswith((".name", ".kind"))
    return not named and any(path == own or path.startswith(f"{own}.") for own in TUNABLE)
