"""The ``tune`` section of a suite: settings that every algorithm chooses for itself before the suite's runs.

::

    tune:
      settings:                              # a combination takes those that it has
        algorithm.lr: {log_uniform: [0.01, 1]}
        algorithm.local_steps: {log_integer: [1, 50]}
        privacy.clip: {log_uniform: [0.03, 1]}
        rounds: {choice: [5, 10, 20]}
        algorithm.server_lr: {log_uniform: [0.01, 1], algorithms: [fedadam]}      # of these only
      budget: 25                             # settings tried for each combination
      metric: auroc                          # the measure that chooses ...
      split: selection                       # ... on samples that no run trains or tests on
      seeds: [100, 101]                      # of the search, other than those reported
      halving: 3                             # after each seed, one setting in three is tried with the next
      once_for: [compression.beta]           # values of compression that share a search
      sampler: latin                         # or one of Optuna's, as TPESampler
      batch: 8                               # settings that such a sampler proposes at a time

Settings are the points of a Latin hypercube that fills pairs of ranges evenly, the same for all combinations. Its
first coordinates are for the step sizes of an algorithm, in their order, whatever their names.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from functools import partial
from typing import Annotated, Any

from pydantic import AfterValidator, BeforeValidator, Field

from harness.config.ranges import TUNED, Range, read_ranges
from harness.config.settings import construct
from harness.config.yaml import mapping, shown
from harness.core.registry import UserError, unknown
from harness.metrics import ELSEWHERE

SPLIT = "selection"
SHARED = "compression"  # the section whose values may share a search
LATIN = "latin"
MOST = 1000  # settings
MOST_STEPS = 4  # step sizes of an algorithm, which have the first coordinates of a point
#: What may be tuned: sections, or single fields of a section whose others say what is compared.
TUNABLE = (
    *("algorithm", "model", "problem", "cohort", "rounds"),
    *("privacy.clip", "privacy.server_clip", "compression.shift", "compression.error_feedback"),
)


def _metric(name: str) -> str:
    """Return the name of a metric of the selection samples."""
    if name not in ELSEWHERE[SPLIT]:
        raise unknown(f"metric of the {SPLIT} samples", name, ELSEWHERE[SPLIT])
    return name


def _free(path: str) -> str:
    """Return a field whose values may share a search."""
    if path.split(".")[0] != SHARED:
        raise UserError(
            f"tune.once_for: {SHARED} or fields of it, which cost no privacy, given {shown(path)}"
        )
    return path


Count = Annotated[int, Field(ge=1, le=MOST)]


@dataclass(frozen=True)
class TuneSpec:
    """How settings are searched; the fields are those of the section."""

    settings: Annotated[dict[str, Range], BeforeValidator(partial(read_ranges, TUNED))] = field(
        default_factory=dict
    )
    metric: Annotated[str, AfterValidator(_metric)] = "accuracy"
    split: str = SPLIT
    budget: Count = 25
    seeds: Annotated[tuple[Annotated[int, Field(ge=0)], ...], Field(min_length=1)] = (100, 101)
    halving: Count = 3
    once_for: tuple[Annotated[str, AfterValidator(_free)], ...] = ()
    sampler: str = LATIN
    batch: Count = 8

    def __post_init__(self) -> None:
        if not self.settings:
            raise UserError("tune.settings: name what is tuned, as algorithm.lr: {log_uniform: [0.01, 1]}")
        for path in self.settings:
            if not is_tunable(path):
                raise UserError(
                    f"tune.settings: {path} says what is compared and is not tuned; settings of "
                    f"{', '.join(TUNABLE)} are"
                )
        if self.split != SPLIT:
            raise UserError(
                f"tune.split: settings are chosen on {SPLIT} samples, which no run trains or tests on; given "
                f"{shown(self.split)}"
            )
        if len(set(self.seeds)) < len(self.seeds):
            raise UserError(f"tune.seeds: a seed is given twice in {list(self.seeds)}")

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
        rest = {name: value for name, value in vars(self).items() if name not in ("settings", "split")}
        ranges = {path: over.stored() for path, over in self.settings.items()}
        return {**rest, "settings": ranges, "seeds": list(self.seeds), "once_for": list(self.once_for)}

    def takes(self, path: str, algorithm: str) -> bool:
        """Return whether an algorithm that has a setting searches it."""
        return algorithm in (self.settings[path].algorithms or (algorithm,))


def read_tune(given: Any) -> TuneSpec | None:
    """Read the section; None if it is absent.

    Raises
    ------
    UserError
        If a field is unknown or a value has another form than shown above.
    """
    return None if given is None else construct("tune", TuneSpec, mapping("tune", given))


def is_tunable(path: str) -> bool:
    """Whether a search may choose a setting."""
    named = path.endswith((".name", ".kind"))
    return not named and any(path == own or path.startswith(f"{own}.") for own in TUNABLE)
