"""The section ``privacy`` of a run file: one of the kinds of privacy, recorded with the settings of all of them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, SerializerFunctionWrapHandler, WrapSerializer, create_model

from datasets.errors import together
from harness.core.errors import UserError
from harness.core.settings.privacy_kinds import (
    CentralPrivacy,
    DistributedPrivacy,
    LocalPrivacy,
    Placement,
    PrivacySettings,
    RecordPrivacy,
    Unit,
    UserPrivacy,
)
from harness.core.settings.section import Section

PrivacySpec = LocalPrivacy | CentralPrivacy | DistributedPrivacy | RecordPrivacy | UserPrivacy
KINDS: tuple[type[PrivacySettings], ...] = (
    LocalPrivacy,
    CentralPrivacy,
    DistributedPrivacy,
    RecordPrivacy,
    UserPrivacy,
)


def _all_fields() -> type[Section]:
    """Return a section with the settings of all kinds and their defaults: None where a kind requires them."""
    fields: dict[str, Any] = {}
    for kind in KINDS:
        for name, info in kind.model_fields.items():
            fields.setdefault(name, (Any, None if info.is_required() else info.default))
    return create_model("PrivacyFields", __base__=Section, **fields)


PrivacyFields = _all_fields()


def _kinds_with(name: str) -> str:
    """Return what a setting is for, or the kinds that have it: ``placement local or placement central``."""
    having = [kind for kind in KINDS if name in kind.model_fields]
    return having[0].model_fields[name].description or " or ".join(" ".join(kind.kind) for kind in having)


class _Kind(BaseModel):
    unit: Unit = "client"
    placement: Placement | None = None


def kind_of(given: Mapping[str, Any]) -> type[PrivacySettings]:
    """Return the class of some settings, by their unit and their placement.

    Raises
    ------
    UserError
        If there is none.
    """
    settings = _Kind.model_validate(given)
    name = settings.placement if settings.unit == "client" else settings.unit
    if name is None:
        raise UserError(
            "privacy.placement: missing; the same epsilon means different things. local: each client adds "
            "noise to its own messages, so that nobody needs to be trusted. central: a trusted server adds "
            "noise to the average, far less of it. distributed: clients add that little together, to a secure sum. "
            "Give local, central or distributed"
        )
    return next(kind for kind in KINDS if kind.kind[1] == name)


def read_privacy(given: object) -> object:
    """Return the settings of a section privacy; None without one.

    Raises
    ------
    UserError, ValueError
        If they are not valid.
    """
    if given is None or isinstance(given, PrivacySettings):
        return given
    if not isinstance(given, Mapping):
        raise ValueError(f"needs {PrivacySettings.shape}")
    kind = kind_of(given)
    return kind.model_validate(_of_kind(kind, given))


def _of_kind(kind: type[PrivacySettings], settings: Mapping[str, Any]) -> dict[str, Any]:
    """Leave out settings of other kinds at their defaults, as records hold them; refuse others."""
    fields = PrivacyFields.model_fields
    errors = [
        UserError(
            f"privacy.{name}: is for {_kinds_with(name)}; {' '.join(kind.kind)} does not support {name}, "
            f"given {value!r}; remove it"
        )
        for name, value in settings.items()
        if name in fields and name not in kind.model_fields and value != fields[name].default
    ]
    if errors:
        raise together(errors)
    return {
        name: value for name, value in settings.items() if name in kind.model_fields or name not in fields
    }


def _in_full(settings: PrivacySettings | None, write: SerializerFunctionWrapHandler) -> dict[str, Any] | None:
    """Write the settings of all kinds, so that every record has the same columns."""
    if settings is None:
        return None
    written: dict[str, Any] = write(settings)
    return {name: written.get(name, field.default) for name, field in PrivacyFields.model_fields.items()}


PrivacySection = Annotated[PrivacySpec | None, BeforeValidator(read_privacy), WrapSerializer(_in_full)]
