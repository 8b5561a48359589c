"""The examples run as they are."""

import runpy
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_the_study_prints_draws_and_makes_no_run_twice(tmp_path, monkeypatch, capsys):
    study = str(ROOT / "docs" / "examples" / "study.py")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MPLBACKEND", "Agg")
    runpy.run_path(study, run_name="__main__")
    first = capsys.readouterr().out
    runs = tmp_path / "results" / "study" / "runs"
    written = {path: path.stat().st_mtime_ns for path in runs.glob("*/done.json")}
    assert len(written) == 3 * (1 + 2 * 4)  # seeds x (no privacy + placements x budgets)
    table = first.split("rank")[0].splitlines()
    assert len(table) == 2 + 9 + 1 and all(line.split()[-1] == "3" for line in table[2:11])
    assert (tmp_path / "results" / "study" / "privacy-ladder.png").stat().st_size > 10_000
    runpy.run_path(study, run_name="__main__")
    assert capsys.readouterr().out == first
    assert written == {path: path.stat().st_mtime_ns for path in runs.glob("*/done.json")}
