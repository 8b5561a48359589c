"""The front page keeps its word: its example runs, its table is the committed one, its lists are complete."""

import re
import tomllib
from pathlib import Path

import pandas as pd
import yaml

from harness.core.algorithm import ALGORITHMS

ROOT = next(folder for folder in Path(__file__).parents if (folder / "pyproject.toml").exists())
README = (ROOT / "README.md").read_text()


def test_the_python_example_of_the_readme_runs(tmp_path, monkeypatch, capsys):
    (example,) = re.findall(r"^```python\n(.*?)^```$", README, re.MULTILINE | re.DOTALL)
    monkeypatch.chdir(tmp_path)
    exec(compile(example, "README.md", "exec"), {})
    assert "accuracy_mean" in capsys.readouterr().out
    assert len(list(tmp_path.glob("results/example/runs/*/done.json"))) == 6


def test_the_table_of_the_readme_is_that_of_the_committed_results():
    frame = pd.read_csv(ROOT / "results" / "reference" / "privacy-compression" / "leaderboard.csv")
    frame = frame[
        (frame["algorithm"] == "fedavg") & (frame["dataset"] == "adult") & (frame["model"] == "logistic")
    ]
    rows = re.findall(
        r"^\| (none|ε = [\d.]+) \| ([\d.]+) \| ([\d.]+) ± ([\d.]+) \| ([\d.]+) ± ([\d.]+) \| ([\d.]+) MB",
        README,
        re.M,
    )
    assert len(rows) == 5
    for budget, beta, *figures in rows:
        asked = frame["epsilon_asked"]
        same = asked.isna() if budget == "none" else asked == float(budget.removeprefix("ε = "))
        (row,) = frame[same & (frame["alpha"] == 0) & (frame["beta"] == float(beta))].to_dict("records")
        assert (
            row["seeds"],
            row["clients"],
            row["dp_placement"] in ("central", None) or budget == "none",
        ) == (5, 500, True)
        expected = [row[name] for name in ("accuracy_mean", "accuracy_std", "auroc_mean", "auroc_std")]
        assert [f"{value:.3f}" for value in expected] == figures[:4]
        assert f"{row['bytes_up'] / 1e6:.3g}" == figures[4]


def test_the_page_of_algorithms_names_every_one_with_its_paper():
    page = (ROOT / "docs" / "algorithms.md").read_text()
    rows = dict(re.findall(r"^\| \[(\w+)\]\(\S+\) \| (.*)$", page, re.MULTILINE))
    assert sorted(rows) == sorted(ALGORITHMS)
    for name in ALGORITHMS:
        assert getattr(ALGORITHMS[name].meta, "url", "") in rows[name], name


def test_citation_and_package_agree():
    cited = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert cited["cff-version"] == "1.2.0" and cited["type"] == "software"
    assert (cited["version"], cited["license"]) == (project["version"], project["license"])
    assert cited["authors"] and cited["title"] and cited["message"]
    assert "Apache License" in (ROOT / project["license-files"][0]).read_text()
