"""What determines runs: which are compared, and which are told apart."""

from __future__ import annotations

from dataclasses import replace

import pytest

from harness.config.recorded import SPECIAL, versions
from harness.report.data.identity import Identity
from tests.support.records import done, private, spec

SETTINGS = {
    "draws": {"privacy": private(8.0) | {"placement": "central", "sampling": "poisson"}},
    "adaptive_clip": {"privacy": private(8.0) | {"clip": "adaptive"}},
    "users": {"privacy": private(8.0) | {"unit": "user", "user": "id"}, "attacks": {"kinds": ["membership"]}},
    "privacy": {"privacy": private(8.0)},
    "known_terms": {"algorithm": "scaffold", "own": {"weight_decay": 0.1}, "privacy": private(8.0)},
}


def identity(**parts):
    given = spec(**parts)
    return Identity(replace(done(given), digest="d", versions=versions(given)))


@pytest.mark.parametrize("name", SPECIAL)
def test_runs_with_a_version_of_their_own_are_compared_with_the_others_of_their_task(name):
    method = {key: value for key, value in SETTINGS[name].items() if key in ("algorithm", "own")}
    plain, special = identity(**method), identity(**SETTINGS[name])
    assert name in special.record.versions and name not in plain.record.versions
    assert special.task == plain.task
    assert special.shared_key(("privacy", "attacks")) == plain.shared_key(("privacy", "attacks"))


@pytest.mark.parametrize("name", SPECIAL)
def test_such_runs_of_two_versions_are_told_apart(name):
    today = identity(**SETTINGS[name]).record
    earlier = replace(today, versions={key: value for key, value in today.versions.items() if key != name})
    assert Identity(earlier).cell != Identity(today).cell
    assert Identity(earlier).task == Identity(today).task
