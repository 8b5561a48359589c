"""Every statement of a run can be computed again from what it prints."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from harness.cli.parser import main
from harness.config.run import read_spec
from harness.simulation.build import prepare
from harness.simulation.calibration import calibrated
from harness.simulation.statement import statement
from privacy.own_mechanism import MECHANISMS, Noise
from tests.support.mechanisms import Laplace
from tests.support.runs import given

STEPS = {"name": "fedavg", "local_steps": 2, "batch_size": 4}
CENTRAL, LOCAL = {"placement": "central"}, {"placement": "local"}
RECORD, USER = {"unit": "record"}, {"unit": "user", "user": "person"}
RATE = {"rate": 0.3, "divisor": 2}
COLUMNS = {"partition": {"kind": "columns", "clients": 2, "standardize": False}, "problem": "vertical"}
# Name -> settings of privacy, and other settings of the run.
CASES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "local, everybody": (LOCAL, {}),
    "local, fixed cohorts": (LOCAL, {"cohort": 3}),
    "local, balanced cohorts": (LOCAL, {"cohort": {"size": 3, "kind": "balanced"}}),
    "central, everybody, replace": (CENTRAL, {}),
    "central, everybody, zero-out": ({**CENTRAL, "adjacency": "zero-out"}, {}),
    "central, Poisson, zero-out": (CENTRAL, {"cohort": 3}),
    "central, Poisson, add-remove": (CENTRAL, {"cohort": RATE}),
    "central, without replacement": ({**CENTRAL, "sampling": "without-replacement"}, {"cohort": 3}),
    "central, fixed, replace": ({**CENTRAL, "sampling": "fixed"}, {"cohort": 3}),
    "central, fixed, zero-out": ({**CENTRAL, "sampling": "fixed", "adjacency": "zero-out"}, {"cohort": 3}),
    "central, adaptive": ({**CENTRAL, "clip": "adaptive"}, {"cohort": 3}),
    "central, two messages": (CENTRAL, {"algorithm": {**STEPS, "name": "scaffold"}, "cohort": 3}),
    "central, rdp": ({**CENTRAL, "accountant": "rdp"}, {"cohort": 3}),
    "central, prv": ({**CENTRAL, "accountant": "prv"}, {"cohort": 3}),
    "central, extrapolated": ({**CENTRAL, "noise_cohort": 5}, {"cohort": 3}),
    "banded": ({**CENTRAL, "mechanism": "banded"}, {"cohort": {"size": 3, "kind": "balanced"}}),
    "distributed, replace": ({"placement": "distributed"}, {}),
    "distributed, zero-out": ({"placement": "distributed", "adjacency": "zero-out"}, {"cohort": 3}),
    "record, zero-out": (RECORD, {"partition": {"kind": "dirichlet", "clients": 4, "alpha": 1.0}}),
    "record, per client": (
        {**RECORD, "noise": "per_client"},
        {"partition": {"kind": "dirichlet", "clients": 4}},
    ),
    "record, add-remove": ({**RECORD, "adjacency": "add-remove", "record_rate": 0.2}, {}),
    "record, cohorts": (RECORD, {"cohort": 3}),
    "user, zero-out": (USER, {"partition": {"kind": "natural", "test": 0.3, "stratify": []}}),
    "user, add-remove": (
        {**USER, "adjacency": "add-remove", "record_rate": 0.2},
        {"partition": {"kind": "natural", "test": 0.3, "stratify": []}},
    ),
    "parties, records": (RECORD, {**COLUMNS, "algorithm": {**STEPS, "name": "splitnn"}}),
    "parties, clients": (LOCAL, {**COLUMNS, "algorithm": {**STEPS, "name": "splitnn"}}),
}


def visits(folder: Path) -> Path:
    """Write a table of the visits of persons at hospitals."""
    lines = ["a,b,hospital,person,label"]
    for number in range(90):
        hospital = number % 3
        lines.append(f"{number % 7},{number % 5},h{hospital},p{hospital}-{number // 6},{number % 2}")
    path = folder / "visits.csv"
    path.write_text("\n".join(lines) + "\n")
    return path


@pytest.fixture(scope="module")
def claim_of(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], dict[str, Any]]:
    """Return what gives the statement of a run of three rounds, made without training, and once."""
    of_persons = str(visits(tmp_path_factory.mktemp("visits")))

    @cache
    def claim_of(name: str) -> dict[str, Any]:
        privacy, fields = CASES[name]
        if privacy.get("unit") == "user":
            source = {"name": "csv", "path": of_persons, "label": "label", "client": "hospital"}
            fields = {**fields, "data": {**source, "user": "person"}}
        budget = {"epsilon": 3.0, "clip": 0.5, **privacy}
        whole = {**given(data, STEPS, rounds=3), "privacy": budget, **fields}
        setup = calibrated(prepare(read_spec(whole)))
        assert setup.dry is not None and setup.privacy is not None
        return statement(setup.privacy, setup.dry.ledger, vertical=setup.problem.kind == "vertical")

    return claim_of


@pytest.mark.parametrize("name", CASES)
def test_the_epsilon_of_a_statement_follows_from_it(name: str, claim_of, tmp_path, capsys) -> None:
    claim = claim_of(name)
    file = tmp_path / "statement.json"
    file.write_text(json.dumps(claim))
    assert main(["epsilon", "--statement", str(file), "--json"]) == 0
    again = json.loads(capsys.readouterr().out)
    assert again["agrees"] and again["epsilon"] == pytest.approx(3.0, rel=1e-3)
    assert again["epsilon"] == pytest.approx(claim["epsilon_total"], rel=1e-9)
    assert again["accuracy"] <= again["accuracy_from_epsilon"] + 1e-9


@pytest.mark.parametrize("draws", ["own", "paired"])
def test_an_epsilon_of_one_run_alone_says_so(draws: str, data, tmp_path, capsys) -> None:
    spec = read_spec(given(data, STEPS, privacy={**CENTRAL, "epsilon": 3.0, "clip": 0.5, "draws": draws}))
    setup = calibrated(prepare(spec))
    assert setup.dry is not None and setup.privacy is not None
    file = tmp_path / "statement.json"
    file.write_text(json.dumps(statement(setup.privacy, setup.dry.ledger)))
    assert main(["epsilon", "--statement", str(file)]) == 0
    assert ("ε is of one run alone" in " ".join(capsys.readouterr().out.split())) == (draws == "paired")


@pytest.mark.parametrize(
    "name", [name for name in CASES if "central, two" not in name and "adaptive" not in name]
)
def test_so_it_does_from_single_options(name: str, claim_of, capsys) -> None:
    """Of one kind of draw: rate, number, noise over the clip norm, unit, placement and adjacency."""
    claim = claim_of(name)
    (one,) = claim["composition"]
    replaced = claim["adjacency"] == "replace"
    sampling = {"none": "full"}.get(one["sampling"], one["sampling"])
    options = {
        "noise-multiplier": one["noise_multiplier"] * one["releases"] ** 0.5 * (2 if replaced else 1),
        "rate": one["rate"],
        "rounds": one["draws"],
        "releases-per-round": one["releases"],
        "sampling": sampling if one["rate"] < 1 else "full",
        "delta": claim["delta"],
        "unit": claim["unit"],
        "placement": claim["placement"],
    }
    assert main(["epsilon", "--json", *(f"--{key}={value}" for key, value in options.items())]) == 0
    rows = json.loads(capsys.readouterr().out)["rows"]
    accountant = claim["accountant"]
    (row,) = [
        row
        for row in rows
        if row["accountant"] == accountant
        and row["adjacency"] == ("replace-one" if replaced else "add-remove")
    ]
    assert row["epsilon"] == pytest.approx(claim["epsilon_total"], rel=1e-9)


def test_rates_of_records_are_printed_as_they_are(claim_of) -> None:
    """Unequal clients: the range of all, and the rate of the most exposed; it read 1.0."""
    claim = claim_of("record, zero-out")
    low, high = claim["sampling_rates"]
    assert 0 < low < high < 1 and low <= claim["sampling_rate"] <= high
    assert claim["sampling_rate"] == claim["composition"][0]["rate"]


@pytest.mark.usefixtures("registries")
@pytest.mark.parametrize("cohort", [None, 3])
def test_so_does_that_of_a_mechanism_of_a_plugin_that_is_loaded(cohort, data, tmp_path, capsys) -> None:
    MECHANISMS["laplace"] = Noise(Laplace())  # without the checks
    mechanism = {"placement": "central", "mechanism": "laplace", "epsilon": 3.0, "clip": 0.5}
    fields = {"rounds": 2, "privacy": mechanism} | ({} if cohort is None else {"cohort": cohort})
    setup = calibrated(prepare(read_spec(given(data, STEPS, **fields))))
    assert setup.privacy is not None and setup.dry is not None
    file = tmp_path / "statement.json"
    file.write_text(json.dumps(statement(setup.privacy, setup.dry.ledger)))
    assert main(["epsilon", "--statement", str(file), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["epsilon"] == pytest.approx(3.0, rel=1e-3)


def test_a_statement_that_was_changed_is_found(claim_of, tmp_path, capsys) -> None:
    claim = claim_of("record, zero-out") | {"epsilon_total": 1.0}
    file = tmp_path / "statement.json"
    file.write_text(json.dumps(claim))
    assert main(["epsilon", "--statement", str(file)]) == 1
    assert "they differ" in capsys.readouterr().out
    file.write_text(json.dumps(claim | {"mechanism": "unheard_of", "mechanism_version": "1"}))
    assert main(["epsilon", "--statement", str(file)]) == 2
    assert "which only its plugin defines" in " ".join(capsys.readouterr().err.split())
    file.write_text("{}")
    assert main(["epsilon", "--statement", str(file)]) == 2
    assert main(["epsilon", "--statement", str(tmp_path)]) == 2  # a results folder
    said = " ".join(capsys.readouterr().err.split())
    assert "no such file" in said and "give a run, as results/runs/ID" in said and "Errno" not in said
