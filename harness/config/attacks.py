"""The attacks that a run is measured by."""

from __future__ import annotations

from typing import Any, ClassVar, Literal

from pydantic import Field, model_validator

from harness.core.errors import UserError
from harness.core.settings.section import Section

Kind = Literal["membership", "inversion", "labels"]


class AttackSpec(Section):
    """Attacks on what a run releases; a list of names stands for their usual settings.

    Attributes
    ----------
    kinds : list of {"membership", "inversion", "labels"}
        Whether a sample was trained on; which samples a client's first message was made of; the labels behind
        the gradients that a party gets.
    shadows : int
        Runs on other samples that membership inference is calibrated with, even.
    samples : int
        Samples whose membership is guessed, at most; half of them are members.
    """

    shape: ClassVar[str] = "a list of attacks, or named fields such as {kinds: [membership]}"

    kinds: tuple[Kind, ...] = Field(min_length=1)
    shadows: int = Field(default=64, ge=4, multiple_of=2)
    samples: int = Field(default=2000, ge=4)

    @model_validator(mode="before")
    @classmethod
    def _named(cls, value: Any) -> Any:
        return {"kinds": value} if isinstance(value, list | tuple) else value

    @model_validator(mode="after")
    def _check(self) -> AttackSpec:
        if len(set(self.kinds)) < len(self.kinds):
            raise UserError(f"attacks: each at most once, given {', '.join(self.kinds)}")
        return self
