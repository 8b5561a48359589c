"""The epsilon calculator: what a user types and reads."""

import json

import pytest

from harness.cli.parser import main
from privacy.accounting import epsilon
from privacy.gaussian import gaussian_epsilon

COHORT = ["--cohort", "10/100", "--rounds", "100"]


def _rows(capsys, *arguments):
    assert main(["epsilon", *arguments, "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)["rows"]
    return {(row["adjacency"], row["accountant"]): row for row in rows}


def test_a_poisson_cohort_is_shown_by_every_accountant_and_adjacency(capsys):
    rows = _rows(capsys, "--noise-multiplier", "1.1", *COHORT, "--sampling", "poisson")
    assert set(rows) == {
        *(("add-remove", name) for name in ("exact", "rdp", "prv", "pld")),
        *(("replace-one", name) for name in ("exact", "rdp", "pld")),
    }
    for name in ("rdp", "prv", "pld"):
        assert rows["add-remove", name]["epsilon"] == epsilon(1.1, 100, 1e-5, 0.1, name)
    assert rows["add-remove", "exact"]["epsilon"] == pytest.approx(gaussian_epsilon(0.11, 1e-5), rel=1e-9)
    replaced = rows["replace-one", "pld"]
    assert replaced["noise_over_sensitivity"] == 0.55
    assert replaced["epsilon"] == epsilon(0.55, 100, 1e-5, 0.1, "pld", "poisson-replace")
    assert replaced["epsilon"] < epsilon(0.55, 100, 1e-5, 0.1, "pld", "without-replacement") / 2
    for row in rows.values():
        assert {"unit", "placement", "delta", "sampling", "releases", "accuracy"} <= set(row)


def test_review_b9_by_the_calculator(capsys):
    """z = 4 over the sensitivity under replacement is 8 over the clip norm."""
    rows = _rows(capsys, "--noise-multiplier", "8", *COHORT, "--sampling", "without-replacement")
    assert set(rows) == {("replace-one", name) for name in ("exact", "rdp", "pld")}
    assert rows["replace-one", "exact"]["epsilon"] == pytest.approx(13.2, abs=0.05)
    assert rows["replace-one", "pld"]["epsilon"] == pytest.approx(1.035, abs=0.005)


@pytest.mark.slow
def test_there_and_back(capsys):
    rows = _rows(capsys, "--for-epsilon", "2", *COHORT, "--releases-per-round", "4", "--clip", "0.5")
    for (adjacency, accountant), row in rows.items():
        assert 1.98 < row["epsilon"] <= 2.0, (adjacency, accountant)
        assert row["standard_deviation"] == 0.5 * row["noise_multiplier"]
    back = _rows(
        capsys, "--noise-multiplier", str(rows["add-remove", "pld"]["noise_multiplier"]), *COHORT,
        "--releases-per-round", "4",
    )  # fmt: skip
    assert back["add-remove", "pld"]["epsilon"] == rows["add-remove", "pld"]["epsilon"]
    assert back["add-remove", "pld"]["releases"] == 400


def test_words_say_what_an_attacker_gains(capsys):
    assert main(["epsilon", "--noise-multiplier", "2", "--cohort", "5/50", "--rounds", "30"]) == 0
    text = " ".join(capsys.readouterr().out.split())
    assert "unit client, placement central, poisson sampling of 5 of 50 (rate 0.1), 30 rounds" in text
    assert "He is then right at most 5" in text
    assert "1 in 1,000 cases" in text
    assert "only while nobody outside learns who was drawn" in text


def test_no_noise_is_an_infinite_epsilon_in_valid_json(capsys):
    rows = _rows(capsys, "--noise-multiplier", "0", "--rounds", "2")
    assert {row["epsilon"] for row in rows.values()} == {"inf"}
    assert {row["accuracy"] for row in rows.values()} == {1.0}


def test_local_noise_is_not_amplified(capsys):
    rows = _rows(capsys, "--noise-multiplier", "3", *COHORT, "--placement", "local")
    assert set(rows) == {("replace-one", "exact")}
    assert rows["replace-one", "exact"]["epsilon"] == pytest.approx(gaussian_epsilon(0.15, 1e-5), rel=1e-9)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "give either --noise-multiplier, or --for-epsilon"),
        (["--noise-multiplier", "1", "--cohort", "ten"], "--cohort is SIZE/TOTAL"),
        (["--noise-multiplier", "1", "--cohort", "20/10"], "between 1 and 10"),
        (["--noise-multiplier", "-1"], "noise multiplier"),
        (["--noise-multiplier", "1", "--delta", "2"], "delta"),
        (["--noise-multiplier", "1", "--rounds", "0"], "--rounds is at least 1"),
        (["--noise-multiplier", "1", "--cohort", "1/9", "--rounds", "1000001"], "--rounds is at most 1,000,000"),
        (["--noise-multiplier", "1", "--rounds", "1" + "0" * 400], "--rounds is at most 1,000,000,000,000"),
        (["--noise-multiplier", "1", "--clip", "0"], "--clip is a number above 0"),
        (["--for-epsilon", "0"], "epsilon must be positive"),
        (["--noise-multiplier", "1", "--cohort", "1/10", "--sampling", "full"], "takes everybody"),
        (["--noise-multiplier", "1", *COHORT, "--placement", "local", "--sampling", "poisson"], "sees who sends"),
    ],
)  # fmt: skip
def test_what_cannot_be_meant_is_refused_in_words(arguments, said, capsys):
    assert main(["epsilon", *arguments]) == 2
    assert said in " ".join(capsys.readouterr().err.split())
