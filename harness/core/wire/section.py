"""Sections of run files."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict


class Section(BaseModel):
    """A section of a run file; unknown keys are errors."""

    model_config = ConfigDict(frozen=True, extra="forbid")
