"""Strict runs name their data under a secret of the user."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from harness.config.recorded import identity
from harness.config.run import read_spec
from harness.core.errors import UserError
from harness.executors.local import run_one
from harness.executors.records import checked_record
from harness.executors.replay import replay
from harness.simulation.build import identify, prepare
from harness.simulation.setup import Execution
from harness.storage.store import Store
from harness.storage.user_secret import salted
from tests.support.runs import RAW, given, table

STRICT = {"privacy": {"placement": "central", "clip": 1.0, "epsilon": 4.0, "strict": True}, **RAW}


@pytest.fixture
def cache(tmp_path, monkeypatch):
    """A user without a secret yet."""
    monkeypatch.setenv("FEDFRONTIER_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def test_a_user_has_one_secret_which_others_cannot_read(cache, tmp_path, monkeypatch) -> None:
    first = salted("abc")
    assert salted("abc") == first != salted("abcd")
    path = cache / "secret"
    assert path.stat().st_mode & 0o777 == 0o600 and [one.name for one in cache.iterdir()] == ["secret"]
    monkeypatch.setenv("FEDFRONTIER_CACHE", str(tmp_path / "other"))
    assert salted("abc") != first


def test_a_secret_that_others_can_read_is_refused(cache) -> None:
    salted("abc")
    (cache / "secret").chmod(0o644)
    with pytest.raises(UserError, match="is not a valid secret"):
        salted("abc")


def test_nothing_of_a_strict_run_confirms_a_guess_of_its_data(cache, tmp_path) -> None:
    """The digest of the data is in no file, and the id does not follow from it; the user repeats the run all "
    "the same."""
    spec = read_spec(given(table(tmp_path), **STRICT))
    free = spec.model_copy(update={"privacy": spec.privacy.model_copy(update={"strict": False})})
    digest = prepare(free).federation.digest
    assert run_one(spec, tmp_path / "out", Execution()).status == "done"
    folder = Store(tmp_path / "out").folder(identify(spec))
    assert folder.path.name != identity(spec, digest)
    for path in folder.path.iterdir():
        assert digest not in path.read_text() and identity(spec, digest) not in path.read_text()
    assert json.loads((folder.path / "spec.json").read_text())["digest"] == salted(digest)
    assert replay(Store(tmp_path / "out"), folder.path.name).state == "identical"
    with pytest.raises(UserError, match="nobody else can repeat it"):
        checked_record(Store(tmp_path / "out"), folder.path.name)


def test_noise_of_a_strict_run_follows_from_its_data_and_not_from_its_folder(cache, tmp_path) -> None:
    """Two data sets share no noise, one user repeats his own, and the name of the folder is not the key."""
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    one, other = (
        prepare(read_spec(given(table(tmp_path / name, count), **STRICT)))
        for name, count in (("a", 140), ("b", 139))
    )
    assert one.noise_key != other.noise_key and one.id != other.id and one.noise_key != one.id
    assert prepare(one.spec).noise_key == one.noise_key
    with pytest.raises(UserError, match="remove --diagnostics"):
        prepare(one.spec, replace(Execution(), diagnostics=True))
