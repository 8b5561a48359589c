"""The front page keeps its word: its example runs, its table is the committed one, its lists are complete."""

import re
import tomllib
from pathlib import Path

import pandas as pd
import pytest
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
    frame = pd.read_csv(ROOT / "results" / "reference" / "natural" / "leaderboard.csv")
    frame = frame[(frame["algorithm"] == "fedavg") & (frame["model"] == "logistic")]
    assert frame["seeds"].min() >= 10

    def auroc(data, epsilon, beta):
        asked = frame["epsilon_asked"]
        same = asked.isna() if epsilon is None else asked == epsilon
        (row,) = frame[same & (frame["dataset"] == data) & (frame["beta"] == beta)].to_dict("records")
        return row

    heads = re.search(r"^\| data \| clients \| no privacy \|(.*)\|$", README, re.M)[1].split("|")
    rows = re.findall(r"^\| (\w+) \| ([\d,]+) \w+ \| (\.\d{3}) \[\S+ \S+\] \|(.*)\|$", README, re.M)
    assert {data for data, *_ in rows} == set(frame["dataset"])
    for data, clients, plain, changes in rows:
        without = auroc(data, None, 0.0)
        assert (int(without["clients"]), f"{without['auroc_mean']:.3f}") == (
            int(clients.replace(",", "")),
            f"0{plain}",
        )
        columns = [float(head.strip().removeprefix("ε ")) for head in heads]
        told = re.findall(r"([\d.+-]+) \[([\d.+-]+), ([\d.+-]+)\]", changes.replace("\N{MINUS SIGN}", "-"))
        for epsilon, (change, low, high) in zip(columns, told, strict=True):
            row = auroc(data, epsilon, 0.0)
            assert row["dp_placement"] == "central"
            points = 100 * (row["auroc_mean"] - without["auroc_mean"])  # each over all of its seeds
            assert float(change) == pytest.approx(points, abs=0.0501)
            assert float(low) <= float(change) <= float(high)


def test_reference_tables_that_can_be_repeated_have_their_suite():
    """Tables that were made before rows held their spec lack both; see results/README.md."""
    for path in (ROOT / "results" / "reference").glob("*/leaderboard.csv"):
        with_specs = "spec" in pd.read_csv(path, nrows=0).columns
        assert (path.parent / "suite.json").exists() == with_specs, path.parent.name


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
