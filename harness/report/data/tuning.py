"""Searches for settings, as a suite recorded them, and what they bought."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from statistics import fmean
from typing import Any

from harness.metrics import better_is_higher
from harness.report.data.results import Cell, Results, grouped

SURFACE = "surface"  # as in `harness.config.tune`, which imports torch


@dataclass(frozen=True)
class Searched:
    """A search and the cells that it chose settings for.

    Attributes
    ----------
    cells : tuple of Cell
        At least one.
    found : Mapping
        As ``suite.json`` keeps it.
    """

    cells: tuple[Cell, ...]
    found: Mapping[str, Any]

    @property
    def tune(self) -> Mapping[str, Any]:
        """The suite's section ``tune``."""
        own: Mapping[str, Any] = self.found["tune"]
        return own

    @property
    def by_surface(self) -> bool:
        """Whether a surface over all budgets has chosen, and not successive halving at one."""
        return self.tune.get("sampler") == SURFACE

    @property
    def price(self) -> Mapping[str, Any] | None:
        """The privacy of all runs of the search; None without privacy, and in records of earlier versions."""
        own: Mapping[str, Any] | None = self.found.get("price")
        return own

    @property
    def chosen(self) -> Mapping[str, Any] | None:
        """The trial that won; None if no setting has a value."""
        number = self.found["chosen"]
        return None if number is None else self.found["trials"][number]

    @property
    def by_seed(self) -> dict[int, float]:
        """Seed of the search -> the measure that chooses, of the trial that won."""
        if self.chosen is None:
            return {}
        seeds = self.chosen.get("seeds") or self.tune["seeds"]
        values = zip(seeds, self.chosen["values"], strict=False)
        return {seed: value for seed, value in values if value is not None}

    @property
    def mean(self) -> float | None:
        """Mean of `by_seed`; None without values."""
        values = self.by_seed.values()
        return fmean(values) if values else None

    @property
    def at_ends(self) -> dict[str, float]:
        """Settings whose chosen value is the lowest or highest of a list of numbers, which is never widened."""
        ends, chosen = {}, self.chosen or {"settings": {}}
        ranges = self.tune.get("settings", {})
        for path, value in chosen["settings"].items():
            choices = ranges.get(path, {}).get("choice", ())
            numbers = len(choices) > 1 and all(type(choice) in (int, float) for choice in choices)
            if numbers and value in (min(choices), max(choices)):
                ends[path] = value
        return ends

    @property
    def failed(self) -> int:
        """Number of settings without a value for the first seed."""
        return sum(trial["values"][0] is None for trial in self.found["trials"])

    @cached_property
    def _tests_in_order(self) -> list[float]:
        """Test values of the settings tried, with the first seed, the one best on the selection samples first."""
        tried = [(trial["values"][0], trial["tests"][0]) for trial in self.found["trials"]]
        pairs = [(value, test) for value, test in tried if value is not None and test is not None]
        pairs.sort(key=lambda pair: pair[0], reverse=better_is_higher(self.tune["metric"]))
        return [test for _, test in pairs]

    def best_of(self, number: int) -> float | None:
        """Return the expected value on test samples of the best of some settings, with the first seed.

        The mean over all choices of ``number`` of the settings tried of the test value of the one that is best on
        the selection samples (Dodge et al. 2019, https://doi.org/10.18653/v1/D19-1224, there with one value for
        both). Settings without a value are tried and never the best; choices of nothing else are left out.
        """
        tests, tried = self._tests_in_order, len(self.found["trials"])
        if not 1 <= number <= tried or not tests:
            return None
        weights = [math.comb(tried - 1 - place, number - 1) for place in range(len(tests))]
        total = sum(weights)
        return math.fsum(weight / total * test for weight, test in zip(weights, tests, strict=True))


def searched(results: Results) -> list[Searched]:
    """Return the searches behind the results, in the order of the suites and of their files."""
    tuned = (cell for cell in results.cells if cell.records[0].search)
    groups = grouped(tuned, lambda cell: (cell.suite, cell.records[0].search["number"]))
    return [Searched(tuple(cells), cells[0].records[0].search) for _, cells in sorted(groups.items())]
