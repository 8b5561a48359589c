"""A class of settings for each unit and placement, recorded as one section with all settings."""

from math import inf

import pytest

from harness.config.settings import checked
from harness.core.errors import UserError
from harness.core.settings.privacy import PrivacyTerms
from harness.core.settings.privacy_kinds import (
    CentralPrivacy,
    DistributedPrivacy,
    LocalPrivacy,
    RecordPrivacy,
    UserPrivacy,
)
from harness.core.settings.privacy_section import PrivacyFields, PrivacySection, read_privacy
from harness.core.settings.section import Section

USUAL = {
    "unit": "client",
    "user": None,
    "user_records": None,
    "placement": None,
    "clip": 10.0,
    "epsilon": None,
    "epsilon_release": None,
    "epsilon_nominal": None,
    "noise_multiplier": None,
    "delta": 1e-5,
    "adjacency": None,
    "sampling": None,
    "record_rate": None,
    "mechanism": "independent",
    "bands": None,
    "factorization": "optimal",
    "noise": "shared",
    "ghost": False,
    "bits": None,
    "dropouts": None,
    "aggregation": None,
    "accountant": "pld",
    "noise_cohort": None,
    "server_clip": None,
    "strict": False,
    "draws": "own",
    "secure_rng": False,
}
KINDS = [
    (LocalPrivacy, {"placement": "local", "noise_multiplier": 0.0, "clip": inf, "server_clip": 2.0}),
    (CentralPrivacy, {"placement": "central", "epsilon_nominal": 2.0, "clip": "adaptive"}),
    (CentralPrivacy, {"placement": "central", "epsilon": 4.0, "mechanism": "banded", "bands": 2}),
    (DistributedPrivacy, {"placement": "distributed", "epsilon": 2.0, "clip": [1.0, 2.0], "bits": 12}),
    (RecordPrivacy, {"unit": "record", "epsilon": 8.0, "ghost": True, "noise": "per_client"}),
    (UserPrivacy, {"unit": "user", "epsilon": 8.0, "user": "person", "user_records": 4}),
]


class Record(Section):
    """A run's record, as far as it is about privacy."""

    privacy: PrivacySection


def read(given):
    return checked("privacy", read_privacy, given)


@pytest.mark.parametrize(("kind", "given"), KINDS)
def test_every_kind_is_recorded_with_the_settings_of_all(kind, given) -> None:
    """So ids, and what is read from old records, do not depend on which class holds a setting."""
    settings = read(given)
    assert type(settings) is kind
    assert Record(privacy=settings).model_dump(mode="json") == {"privacy": USUAL | given}
    assert read(USUAL | given) == settings


def test_defaults_of_the_section_are_those_of_its_kinds() -> None:
    assert {name: field.default for name, field in PrivacyFields.model_fields.items()} == USUAL


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({"placement": "local", "bits": 9}, r"bits: is for placement distributed; .* given 9; remove it"),
        ({"placement": "local", "bands": 9}, "bands: is for mechanism: banded, with placement central"),
        ({"placement": "central", "record_rate": 0.1}, "record_rate: is for unit record or unit user"),
        ({"unit": "record", "user": "person"}, "user: is for unit user; unit record does not support user"),
        ({"unit": "user", "user": "person", "ghost": True}, "ghost: is for unit record"),
    ],
)
def test_a_setting_of_another_kind_is_refused_by_name(given, text: str) -> None:
    with pytest.raises(UserError, match=f"privacy.{text}"):
        read({"epsilon": 1.0} | given)


def test_a_mechanism_without_noise_has_no_multiplier() -> None:
    """It was a placeholder, 1 or 1e-9, that a simulation took for the noise of the run."""
    settings = read({"placement": "local", "epsilon": 1.0, "sampling": "full", "adjacency": "replace"})
    terms = PrivacyTerms(settings)
    assert not hasattr(terms, "noise_multiplier")
    assert terms.with_noise(3.0).noise_multiplier == 3.0 and terms.sensitivity == 20.0
