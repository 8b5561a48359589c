"""Sections of run files."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, ClassVar

from pydantic import (
    BaseModel,
    ConfigDict,
    ValidationError,
    ValidatorFunctionWrapHandler,
    field_validator,
    model_validator,
)
from pydantic_core import InitErrorDetails

NO_NUMBER = "a number is needed, no truth value (true, false, yes, no, on, off)"

#: What messages say in place of pydantic's words for types of Python.
PLAINLY = {
    "bool_parsing": "true or false is needed",
    "bool_type": "true or false is needed",
    "dict_type": "named fields are needed",
    "float_parsing": "a number is needed",
    "float_type": "a number is needed",
    "int_from_float": "a whole number is needed",
    "int_parsing": "a whole number is needed",
    "int_type": "a whole number is needed",
    "list_type": "a list is needed",
    "missing": "missing",
    "string_type": "a text is needed",
    "too_short": "at least one is needed",
    "tuple_type": "a list is needed",
}


class UnknownField(ValueError):
    """A field that a section does not have.

    Parameters
    ----------
    name : str
        The field.
    allowed : Collection[str]
        The fields of the section.
    """

    def __init__(self, name: str, allowed: Collection[str]) -> None:
        super().__init__(name)
        self.name, self.allowed = name, allowed


class Section(BaseModel):
    """A section of a file; unknown keys are errors, and true is no number.

    ``shape`` says in messages what is written there.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", ser_json_inf_nan="constants")
    shape: ClassVar[str] = "named fields"

    @model_validator(mode="before")  # those of sections, which read short forms, come before it
    @classmethod
    def _has_fields(cls, given: object) -> object:
        if not isinstance(given, Mapping | cls):
            raise ValueError(f"needs {cls.shape}")
        if isinstance(given, Mapping):
            strange = [
                UnknownField(str(name), cls.model_fields) for name in given if name not in cls.model_fields
            ]
            if strange:
                known = {name: value for name, value in given.items() if name in cls.model_fields}
                raise ValidationError.from_exception_data(
                    cls.__name__, [*(_details(one, given) for one in strange), *_errors_in(cls, known)]
                )
        return given

    @field_validator("*", mode="wrap")
    @classmethod
    def _no_truths(cls, given: Any, read: ValidatorFunctionWrapHandler) -> Any:
        value = read(given)
        if counts_truth(given, value):
            raise ValueError(NO_NUMBER)
        return value


def _details(error: UnknownField, given: object) -> InitErrorDetails:
    return InitErrorDetails(type="value_error", loc=(), input=given, ctx={"error": error})


def _errors_in(section: type[Section], known: Mapping[str, Any]) -> list[InitErrorDetails]:
    """Return what is wrong in a section beside unknown fields, so that all is told at once."""
    try:
        section.model_validate(known)
    except ValidationError as error:
        return [
            InitErrorDetails(type=one["type"], loc=one["loc"], input=one["input"], ctx=one.get("ctx") or {})
            for one in error.errors()
        ]
    return []


def counts_truth(given: Any, value: Any) -> bool:
    """Whether true, false, yes or no was read as a number, as pydantic does."""
    if isinstance(given, bool):
        return type(value) in (int, float)
    if isinstance(given, Mapping):
        names = given.keys() & value.keys() if isinstance(value, Mapping) else ()
        return any(counts_truth(given[name], value[name]) for name in names)
    both = isinstance(given, list | tuple) and isinstance(value, list | tuple)
    return both and any(map(counts_truth, given, value))


def plainly(error: Mapping[str, Any]) -> str:
    """Return what an error of pydantic (one of ``errors()``) says, in the words of our messages."""
    return PLAINLY.get(error["type"]) or str(error["msg"])
