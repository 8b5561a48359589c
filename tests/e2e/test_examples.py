"""The examples run as they are."""

import os
import runpy
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_the_study_prints_draws_and_makes_no_run_twice(tmp_path, monkeypatch, capsys):
    study = str(ROOT / "docs" / "examples" / "study.py")
    world = os.environ | {"PYTHONPATH": str(ROOT), "MPLBACKEND": "Agg"}
    first = subprocess.run([sys.executable, study], cwd=tmp_path, env=world, capture_output=True, text=True)
    assert first.returncode == 0, first.stderr
    runs = tmp_path / "results" / "study" / "runs"
    written = {path: path.stat().st_mtime_ns for path in runs.glob("*/done.json")}
    assert len(written) == 3 * (1 + 2 * 4)  # seeds x (no privacy + placements x budgets)
    table = first.stdout.split("rank")[0].splitlines()
    assert len(table) == 2 + 9 + 1 and all(line.split()[-1] == "3" for line in table[2:11])
    assert (tmp_path / "results" / "study" / "privacy-ladder.png").stat().st_size > 10_000
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MPLBACKEND", "Agg")
    runpy.run_path(study, run_name="__main__")
    assert capsys.readouterr().out == first.stdout
    assert written == {path: path.stat().st_mtime_ns for path in runs.glob("*/done.json")}
