"""Combinations that a suite skips: their settings in full, for reports."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from pydantic import ValidationError, model_validator

from harness.config.run import RunSpec
from harness.core.registry import UserError
from harness.problems import PROBLEMS


class _Apart(RunSpec):
    """Sections that are valid each by itself."""

    @model_validator(mode="after")
    def _together(self) -> _Apart:
        float64 = PROBLEMS[self.problem["kind"]].float64
        object.__setattr__(self, "precision", self.precision or ("float64" if float64 else "float32"))
        if self.privacy is not None:
            with suppress(UserError):  # where sampling is what does not go together with the rest
                object.__setattr__(self, "privacy", self._sampled(self.privacy))
        return self


def resolved(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of a combination that was refused, with defaults as a run's spec has them.

    Without them it could not be compared with runs of the same settings. What is not valid, or belongs to a plugin
    that is not loaded, stays as it was given.
    """
    try:
        return _Apart.model_validate(given).model_dump(mode="json")
    except (UserError, ValidationError):
        return dict(given)
