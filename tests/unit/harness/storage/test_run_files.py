"""A run's files are one list: what is sealed is packed, submitted, merged and verified."""

import re

import pytest

from harness.cli.parser import main
from harness.config.run import read_spec
from harness.executors.scheduler import run_one
from harness.simulation.setup import Execution
from harness.storage import run_files
from harness.storage.archive import open_results, write_archive
from harness.storage.merge import merge
from harness.storage.seals import read_sealed, write_sealed
from harness.storage.store import Store
from harness.storage.verification import verify
from studies.board.submission import read_submission, write_submission
from tests.support.submitted import SPEC


def saved(root, *extras):
    """Make a results folder with a suite of one run, saved with some files."""
    spec = read_spec(SPEC)
    outcome = run_one(spec, root, Execution(), save=list(extras))
    store = Store(root)
    cells = [{"id": outcome.id, "spec": spec.model_dump(mode="json")}]
    store.write_suite("mine", {"suite": "mine", "profile": "", "cells": cells})
    return store, store.folder(outcome.id)


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    return saved(tmp_path_factory.mktemp("whole"), *run_files.EXTRAS)


def test_an_end_seals_all_that_may_leave_the_folder(whole):
    _, run = whole
    _, seal = read_sealed(run.path / "done.json")
    assert seal.keys() - {"run", "done.json"} == set(run_files.SEALED)
    assert set(run.results()) == {*run_files.SEALED, "done.json"}


def test_an_archive_keeps_a_saved_model(whole, tmp_path, capsys):
    """It was sealed and not packed, so that the run was damaged once it was unpacked."""
    store, run = whole
    write_archive(store, tmp_path / "a.tar.gz")
    with open_results(tmp_path / "a.tar.gz") as root:
        assert {verdict.state for verdict in verify(Store(root))} == {"sound"}
        assert (root / "runs" / run.path.name / run_files.MODEL).exists()
        assert [record.status for record in Store(root).records()] == ["done"]
    assert main(["verify", str(tmp_path / "a.tar.gz")]) == 0


def test_a_run_with_a_model_can_be_submitted(whole, tmp_path):
    store, run = whole
    write_submission(store, "mine", tmp_path / "sub", "Ada")
    assert read_submission(tmp_path / "sub").ids == [run.path.name]


def test_a_model_that_no_run_sealed_stays_at_home(tmp_path):
    store, run = saved(tmp_path / "a")
    (run.path / run_files.MODEL).write_bytes(b"planted")
    assert run_files.MODEL not in run.results()
    merge([store.root], tmp_path / "b")
    assert not (tmp_path / "b" / "runs" / run.path.name / run_files.MODEL).exists()


def test_merge_adds_the_model_that_the_target_lacks(whole, tmp_path):
    """The same run was made there without --save-model."""
    store, run = whole
    _, there = saved(tmp_path / "b")
    made = merge([store.root], tmp_path / "b")
    assert (made.copied, made.same, made.left) == (0, 1, {})
    for name in run_files.EXTRAS:
        assert (there.path / name).read_bytes() == (run.path / name).read_bytes()
    assert there.status == "done" and there.has(run_files.MODEL)
    assert not list((tmp_path / "b").rglob(".*"))


def test_a_seal_names_no_files_elsewhere(whole, tmp_path):
    """It is written by others too: what it named was read, wherever it was."""
    _, run = saved(tmp_path)
    content, seal = read_sealed(run.path / "done.json")
    write_sealed(run.path / "done.json", content, {**seal, "../../../../../dev/zero": "1" * 64})
    status, reason = run.read()[:2]
    assert status == "damaged" and re.search("zero is not a file of a run", str(reason))
