"""A single run is prepared once, and its noise is looked for once."""

from collections import Counter

import pytest
import yaml

import harness
from harness.api import making
from harness.cli import parser
from harness.cli import run as command
from harness.executors import local
from harness.simulation import calibration
from harness.storage.store import Store
from tests.support.runs import given

PRIVATE = {"placement": "central", "epsilon": 8, "clip": 1.0}


@pytest.mark.parametrize("way", ["command", "python"])
def test_a_run_is_prepared_and_calibrated_once(way, data, tmp_path, monkeypatch):
    calls = Counter()

    def counting(module, name):
        function = getattr(module, name)

        def counted(*arguments, **options):
            calls[name] += 1
            return function(*arguments, **options)

        monkeypatch.setattr(module, name, counted)

    for module in (making.build, command, local):
        counting(module, "prepare")
    counting(calibration, "dry_run")
    fields = given(data, privacy=PRIVATE)
    if way == "python":
        harness.run(fields, tmp_path / "out")
    else:
        (tmp_path / "run.yaml").write_text(yaml.safe_dump(fields))
        assert parser.main(["run", "--spec", str(tmp_path / "run.yaml"), "--out", str(tmp_path / "out")]) == 0
    assert calls == {"prepare": 1, "dry_run": 1}
    (folder,) = Store(tmp_path / "out").run_folders()
    assert folder.end()["privacy"]["epsilon_total"] == pytest.approx(8, rel=1e-3)


def test_a_run_prepared_beforehand_ends_as_one_that_is_not(data, tmp_path):
    fields = given(data, privacy=PRIVATE)
    record = harness.run(fields, tmp_path / "before")
    outcome = local.run_one(harness.RunSpec.model_validate(record.spec), tmp_path / "after")
    ends = [Store(tmp_path / name).folder(outcome.id).end() for name in ("before", "after")]
    assert ends[0]["metrics"] == ends[1]["metrics"] and ends[0]["privacy"] == ends[1]["privacy"]
