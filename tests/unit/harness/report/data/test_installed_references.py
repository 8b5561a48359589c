"""The references that are installed: those of the checkout, which federation is near, and what they answer."""

import gzip
import json
import tomllib
from pathlib import Path

import pytest
import yaml

from datasets.catalog import available
from datasets.client_statistics import ClientCounts
from harness import recommend
from harness.cli.parser import main
from harness.config.conditions import read_conditions
from harness.config.suite import read_suite
from harness.core.errors import UserError
from harness.report.data.evidence import Evidence
from harness.report.data.references import PATH, Shape, ask_references, distance, references, shapes_of
from harness.report.tables.recommendation import warnings
from studies.references import federations as federations_of
from studies.references import leaderboards, shape_of, table

ROOT = Path(__file__).parents[5]


@pytest.fixture(scope="module")
def evidence():
    return Evidence.of_table(references())


@pytest.mark.slow
def test_the_installed_references_are_those_of_the_checkout(evidence):
    """If not: make references. Shapes follow from the data, and one is counted again below."""
    known = {
        federation._replace(settings=()): shape for federation, shape in shapes_of(evidence.rows).items()
    }
    expected = table(leaderboards(), lambda federation: known[federation._replace(settings=())])
    assert gzip.decompress(PATH.read_bytes()).decode() == expected


def test_they_are_small_and_part_of_the_package():
    assert PATH.stat().st_size < 300_000
    packages = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["package-data"]
    assert str(PATH.relative_to(ROOT / "harness")) in packages["harness"]


@pytest.mark.slow
@pytest.mark.skipif(available("insurance") is None, reason="the data are not here")
def test_a_shape_is_that_of_the_data(evidence):
    recorded = {one.dataset: shape for one, shape in shapes_of(evidence.rows).items()}
    row = next(row for one, row in federations_of(leaderboards()).items() if one.dataset == "insurance")
    assert shape_of(row) == pytest.approx(recorded["insurance"], rel=1e-4)


def counts(**classes):
    return ClientCounts("", {"train": next(iter(classes.values()))}, classes, {})


def test_skew_is_the_distance_of_a_client_s_labels_from_all():
    """Shares .5 and .5 everywhere: 0; a class each: half of |1 - .5| + |0 - .5|. Clients count by their samples."""
    assert Shape.of(counts(a=(5, 10), b=(5, 10))) == (2, 15, 0.0)
    assert Shape.of(counts(a=(10, 0), b=(0, 10))) == (2, 10, 0.5)
    assert Shape.of(counts(a=(30, 0), b=(0, 10))) == (2, 20, 0.375)  # .75 * .25 + .25 * .75


def test_distances_are_in_doublings():
    """A doubling each of clients and of skew: the root of two. Skews below .05 are alike; unknowns are left out."""
    assert distance(Shape(300, 150, 0.1), Shape(150, 150, 0.2)) == pytest.approx(2**0.5)
    assert distance(Shape(300, 150), Shape(300, 600, 0.5)) == 2
    assert distance(Shape(10, 100, 0.0), Shape(10, 100, 0.05)) == 0
    assert distance(Shape(10), Shape(10, 100, 0.05)) == 0


@pytest.mark.parametrize(
    ("own", "said"),
    [
        (Shape(), "say something of your data"),
        (Shape(0, 10), "--clients: at least 1"),
        (Shape(10, 0.5), "--samples: at least 1"),
        (Shape(10, 10, 2), "--skew: from 0"),
    ],
)
def test_what_is_no_shape_is_refused(own, said, evidence):
    with pytest.raises(UserError, match=said):
        ask_references(own, evidence, [])


def said(capsys):
    return " ".join(capsys.readouterr().out.split())


def test_without_results_the_nearest_references_answer(capsys):
    assert main(["recommend", "--clients", "194", "--samples", "143", "--epsilon", "2"]) == 0
    text = said(capsys)
    assert text.startswith(
        "Your 194 clients with 143 samples are near insurance (194 clients with 143 samples)"
    )
    assert "On insurance" in text and ("They agree: " in text or "They do not agree: " in text)
    assert "A pilot run would settle" in text and ". --pilot pilot.yaml writes its suite file." in text


def test_a_better_method_that_misses_a_bound_in_more_seeds_is_named(capsys):
    """FedRep was first on vote and Ditto, better by 0.8 points for an eighth of the bytes, was not mentioned."""
    bounds = ["--epsilon", "1", "--bytes", "1MB", "--worst-client", "0.6", "--where", "dataset == vote"]
    assert main(["recommend", "--clients", "5", "--samples", "3000", *bounds]) == 0
    assert "; ditto reaches 0.947, with about 9 of 10 seeds within the bounds; " in said(capsys)


def test_data_unlike_all_references_are_told_so(capsys):
    assert main(["recommend", "--clients", "1000000", "--samples", "3", "--epsilon", "2"]) == 0
    text = said(capsys)
    assert "far from" in text and "no reference is near" in text


def test_a_budget_that_was_not_run_is_named(capsys):
    """No reference has ε 3; all central ones have 2."""
    assert (
        main(
            ["recommend", "--epsilon", "3", "--where", "dataset == insurance", "--where", "suite == natural"]
        )
        == 0
    )
    assert said(capsys).startswith("No run is at ε 3: the next smaller budget that was run is 2")
    assert main(["recommend", "--epsilon", "0.001"]) == 1
    assert "No run is at ε 0.001 or less: the smallest budget" in said(capsys)


def test_a_published_table_answers_as_a_file_and_as_a_folder(capsys):
    """Both were refused, as no runs are there."""
    folder = ROOT / "results" / "reference"
    bounds = ["--epsilon", "2", "--where", "dataset == insurance", "--json"]
    answers = []
    for place in ([str(folder / "natural" / "leaderboard.csv")], [str(folder), "--suite", "natural"]):
        assert main(["recommend", *place, *bounds]) == 0
        answers.append(json.loads(capsys.readouterr().out))
    assert answers[0] == answers[1]
    first = answers[0]["found"][0]
    assert first["data"] == "insurance" and first["epsilon_total"] <= 2 and first["loss"] == 0
    assert first["low"] < first["auroc"] < first["high"] and first["interval_over"]
    assert f"take {first['algorithm']}" in " ".join(answers[0]["said"])


def test_a_kind_of_privacy_can_be_asked_for(capsys, monkeypatch):
    """As if the clients of stops added the noise themselves, those of the others a trusted server."""
    table = references()
    table.loc[table["dataset"].eq("stops") & table["epsilon_asked"].notna(), "dp_placement"] = "local"
    monkeypatch.setattr("harness.cli.recommend.references", lambda: table)
    asked = ["recommend", "--clients", "85", "--samples", "514", "--epsilon", "2"]
    assert main(asked) == 0
    text = said(capsys)
    assert "stops (85 clients" in text
    assert "Their ε protect different things; --where 'dp_placement == central'" in text
    assert main([*asked, "--where", "dp_placement == central"]) == 0
    text = said(capsys)
    assert "stops (85 clients" not in text and "different things" not in text and "clients alone" in text


def test_all_answers_are_sure_of_their_search(evidence):
    """Rows of searches whose luck is not in their intervals are no references."""
    assert all(row["procedure_low"] < row["procedure_high"] for row in evidence.rows)


def test_the_nearest_are_in_the_json(capsys):
    assert main(["recommend", "--clients", "194", "--epsilon", "2", "--bytes", "1GB", "--json"]) == 0
    nearest = json.loads(capsys.readouterr().out)["nearest"]
    assert len(nearest) == 3 and len({row["data"] for row in nearest}) == 3
    distances = [row["distance"] for row in nearest]
    assert distances == sorted(distances) and distances[0] == 0


def test_a_recommendation_from_python_needs_no_results():
    answers = recommend(None, ["epsilon_total <= 2"], clients=194, samples=143)
    assert (answers["epsilon_total"] <= 2).all() and "near insurance" in answers.attrs["said"][0]
    with pytest.raises(UserError, match="clients, samples, skew"):
        recommend("results", ["epsilon_total <= 2"], clients=194)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ([], "give at least one bound"),
        (["--clients", "3"], "give at least one bound"),
        (["somewhere", "--clients", "3", "--epsilon", "1"], "leave out somewhere"),
        (["--epsilon", "1", "--bytes", "3x"], "bytes are needed, as 500kB"),
        (["--epsilon", "1", "--by", "aurocc"], "Did you mean 'auroc'"),
    ],
)
def test_what_cannot_be_asked_is_refused(options, message, capsys):
    assert main(["recommend", *options]) == 2
    assert message in " ".join(capsys.readouterr().err.split())


def test_a_pilot_compresses_messages_as_its_rows_do(tmp_path, monkeypatch):
    """It took the ratio alone, so that entries which error feedback sends later were lost."""
    table = references()
    table["beta"], table["settings"] = 0.9, table["settings"] + " compression.error_feedback=true"
    monkeypatch.setattr("harness.cli.recommend.references", lambda: table)
    path = tmp_path / "pilot.yaml"
    assert main(["recommend", "--clients", "194", "--epsilon", "2", "--pilot", str(path)]) == 0
    *blocks, alone = yaml.safe_load(path.read_text())["sweep"]
    assert blocks and all(block["compression"] == [{"beta": 0.9, "error_feedback": True}] for block in blocks)
    assert "compression" not in alone
    specs = [one.spec.model_dump() for one in read_suite(path).combinations if one.spec is not None]
    assert any(spec["compression"]["error_feedback"] for spec in specs)


@pytest.mark.slow
def test_a_pilot_is_a_suite_of_one_s_own_data(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    lines = [f"{n % 7},{n % 3},{'yes' if n % 5 > 1 else 'no'},site{n % 6}" for n in range(360)]
    Path("mine.csv").write_text("\n".join(["a,b,label,client", *lines]))
    asked = ["--epsilon", "3", "--pilot", "pilot.yaml"]
    assert main(["recommend", "--data", "csv:mine.csv?label=label&client=client", *asked]) == 0
    assert said(capsys).startswith("Your 6 clients with 60 samples and skew ")
    measured = yaml.safe_load(Path("pilot.yaml").read_text())
    assert measured["base"]["data"] == "csv:mine.csv?label=label&client=client"
    assert main(["recommend", "--clients", "6", "--samples", "60", *asked]) == 0
    content = yaml.safe_load(Path("pilot.yaml").read_text())
    assert content["base"]["data"] == {
        "name": "csv",
        "path": "mine.csv",
        "label": "label",
        "client": "client",
    }
    assert {3} == {kind["epsilon"] for block in content["sweep"] for kind in block.get("privacy", []) if kind}
    suite = read_suite("pilot.yaml")
    methods = {
        one.spec.model_dump()["algorithm"]["name"] for one in suite.combinations if one.spec is not None
    }
    assert {"fedavg", "fednova", "local", "centralized"} < methods and suite.tune is not None
    assert not [one.reason for one in suite.combinations if one.spec is None]
    assert main(["plan", "pilot.yaml", "--untimed", "--sweep", "seed=0"]) == 0


def test_a_bound_on_bytes_is_one_that_no_search_had(evidence):
    """Methods are not ordered by searches under it, which the answer says; budgets of privacy were searched."""
    asked = {
        name: ask_references(Shape(60, 150, 0.1), evidence, read_conditions([name], evidence.columns))
        for name in ("epsilon_total <= 2", "bytes <= 1e7")
    }
    said = {name: " ".join(warnings(one.recommendation)) for name, one in asked.items()}
    assert "no bound on bytes" in said["bytes <= 1e7"]
    assert "no bound on bytes" not in said["epsilon_total <= 2"]
