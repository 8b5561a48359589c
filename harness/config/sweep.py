"""Sweeps: runs from lists and random draws of values.

A block of a sweep names fields by dotted paths and gives each a list; the runs are the cross product. A list may
contain ranges of whole numbers, ``0..9``. A budget of ``null`` means a run without privacy, for use as a reference.
Under ``random`` a block draws values::

    random: {draws: 20, seed: 0, over: {algorithm.lr: {log_uniform: [0.001, 1]}}}

with the ranges of `harness.config.ranges`. Draws are keyed: further draws or fields do not change existing ones.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from copy import deepcopy
from dataclasses import dataclass, field
from functools import partial
from itertools import chain, product
from typing import Annotated, Any, Self

from pydantic import BeforeValidator, Field, model_validator

from harness.config.ranges import Range, read_ranges
from harness.config.run import RunSpec, validated
from harness.config.settings import construct
from harness.config.yaml import mapping
from harness.core import rng
from harness.core.errors import Incompatible, UserError
from harness.core.settings.privacy_kinds import BUDGETS
from harness.problems import PROBLEMS

MAX_RUNS = 100_000

Setting = tuple[str, Any]


class Parts(RunSpec):
    """The parts of a combination, each with its defaults, whether or not they go together: nothing to be run."""

    @model_validator(mode="after")
    def _together(self) -> Self:
        if self.precision is None:
            double = PROBLEMS[self.problem["kind"]].float64
            object.__setattr__(self, "precision", "float64" if double else "float32")
        if self.privacy is not None:
            with suppress(UserError):
                object.__setattr__(self, "privacy", self._sampled(self.privacy))
        return self


@dataclass(frozen=True)
class RandomSearch:
    """The section ``random`` of a block: a number of draws, their seed, and the ranges of fields."""

    draws: Annotated[int, Field(ge=1, le=MAX_RUNS)] = 10
    seed: Annotated[int, Field(ge=0, le=MAX_RUNS)] = 0
    over: Annotated[dict[str, Range], BeforeValidator(partial(read_ranges, "sweep.random.over"))] = field(
        default_factory=dict
    )

    def __post_init__(self) -> None:
        if not self.over:
            raise UserError(
                "sweep.random.over: name the fields to draw, as algorithm.lr: {log_uniform: [0.001, 1]}"
            )

    def settings(self, number: int) -> list[Setting]:
        """Return the settings of one draw."""
        return [(path, self._value(path, over, number)) for path, over in self.over.items()]

    def _value(self, path: str, over: Range, number: int) -> Any:
        generator = rng.numpy_stream(self.seed, "search", path, number)
        if over.number is not None:
            return over.value(int(generator.integers(over.number)))
        return over.at(generator.random())


@dataclass(frozen=True, eq=False)
class Combination:
    """One combination of a suite; another one with the same settings is another combination.

    Attributes
    ----------
    given : dict
        Its fields in the file.
    spec : RunSpec or None
        The run; None if the combination is incompatible.
    reason : str or None
        Why it is incompatible.
    search : int or None
        Number of the search that chose some of its settings.
    """

    given: dict[str, Any]
    spec: RunSpec | None
    reason: str | None = None
    search: int | None = None

    @property
    def parts(self) -> RunSpec:
        """The run, or the `Parts` of one that is not possible."""
        return Parts.model_validate(self.given) if self.spec is None else self.spec


def expand(
    base: Mapping[str, Any], blocks: Sequence[Any], complete: Callable[[dict[str, Any]], None] | None = None
) -> tuple[Combination, ...]:
    """Return the distinct combinations of all blocks; ``complete`` may add to the fields of each.

    Raises
    ------
    UserError
        If a value is not valid. Incompatible values give a combination with the reason.
    """
    expanded: list[Combination] = []
    for block in blocks:
        alike: dict[str, Combination] = {}
        for settings in combinations(block):
            combination = None if complete is not None else _with_other_seed(settings, alike)
            if combination is None:
                combination = _combination(base, settings, complete)
                alike.setdefault(_all_but_seed(settings), combination)
            expanded.append(combination)
            if len(expanded) > MAX_RUNS:
                raise UserError(f"sweep: more than {MAX_RUNS:,} runs")
    if not expanded:
        raise UserError("sweep: a list of blocks is empty; remove sweep for a single run")
    return distinct(expanded)


def _combination(
    base: Mapping[str, Any], settings: Sequence[Setting], complete: Callable[[dict[str, Any]], None] | None
) -> Combination:
    """Return the combination of a base and the settings of a block."""
    content = deepcopy(dict(base))
    for path, value in sorted(settings, key=_order):
        _set_field(content, path, deepcopy(value))
    if complete is not None:
        complete(content)
    try:
        return Combination(content, validated(content))
    except Incompatible as error:
        return Combination(content, None, str(error))


def _with_other_seed(settings: Sequence[Setting], alike: Mapping[str, Combination]) -> Combination | None:
    """Return an earlier combination with another seed, which needs no check; None without an earlier one."""
    seed = next((value for path, value in settings if path == "seed"), None)
    earlier = alike.get(_all_but_seed(settings)) if type(seed) is int and seed >= 0 else None
    if earlier is None:
        return None
    spec = earlier.spec and earlier.spec.model_copy(update={"seed": seed})
    return Combination({**deepcopy(earlier.given), "seed": seed}, spec, earlier.reason)


def _all_but_seed(settings: Sequence[Setting]) -> str:
    """Return the settings of a combination without its seed, as text."""
    return repr([setting for setting in settings if setting[0] != "seed"])


def distinct(repeated: Iterable[Combination]) -> tuple[Combination, ...]:
    """Return the combinations without duplicates."""
    unique: dict[str, Combination] = {}
    for combination in repeated:
        unique.setdefault(
            combination.spec.model_dump_json() if combination.spec else repr(combination.given), combination
        )
    return tuple(unique.values())


def combinations(block: Any) -> list[list[Setting]]:
    """Return the settings of every combination of a block, with drawn settings last."""
    lists = dict(mapping("sweep", block))
    search = lists.pop("random", None)
    choices = [[[(path, value)] for value in _values(path, values)] for path, values in lists.items()]
    if search is not None:
        sampler = construct("sweep.random", RandomSearch, mapping("sweep.random", search))
        for path in sampler.over:
            if path in lists:
                raise UserError(f"sweep: {path} has both a list of values and a random draw")
        choices.append([sampler.settings(number) for number in range(sampler.draws)])
    if math.prod(len(choice) for choice in choices) > MAX_RUNS:
        raise UserError(f"sweep: more than {MAX_RUNS:,} runs")
    return [list(chain(*chosen)) for chosen in product(*choices)]


def _order(setting: Setting) -> tuple[bool, int]:
    """Return the sort key of a setting: sections before their fields, and the removal of privacy last."""
    path, value = setting
    return _no_budget(path, value), path.count(".")


def _no_budget(path: str, value: Any) -> bool:
    section, _, name = path.partition(".")
    return section == "privacy" and name in BUDGETS and value is None


def _set_field(content: dict[str, Any], path: str, value: Any) -> None:
    """Set a field; a null budget removes privacy."""
    if _no_budget(path, value):
        content["privacy"] = None
    else:
        assign(content, path, value)


def _values(path: str, content: Any) -> list[Any]:
    """Return the values of a list with ranges expanded."""
    if content == []:
        raise UserError(f"sweep.{path}: the list has no values")
    values: list[Any] = []
    for value in content if isinstance(content, list) else [content]:
        ends = re.fullmatch(r"(\d{1,9})(\.{2,}|…)(\d{1,9})", value) if isinstance(value, str) else None
        if ends is None:
            values.append(value)
            continue
        if ends[2] != "..":
            raise UserError(f"sweep.{path}: {value!r} is no range. Did you mean '{ends[1]}..{ends[3]}'?")
        first, last = int(ends[1]), int(ends[3])
        if not first <= last < first + MAX_RUNS:
            raise UserError(f"sweep: a range ascends over at most {MAX_RUNS:,} numbers, given {value}")
        values.extend(range(first, last + 1))
    return values


def assign(target: dict[str, Any], path: str, value: Any) -> None:
    """Set a field by its dotted path; a section given as a name becomes one with settings."""
    *sections, last = str(path).split(".")
    for section in sections:
        inner = target.get(section)
        if isinstance(inner, str):
            inner = {"kind" if section in ("partition", "problem", "topology") else "name": inner}
        if not isinstance(inner, Mapping):
            inner = {}
        target[section] = dict(inner)
        target = target[section]
    target[last] = value
