"""The noise of a larger cohort: how much it is, and that everything says it is an extrapolation."""

import json

import pandas as pd
import pytest

from harness.cli.parser import main
from harness.config.run import read_spec
from harness.core.errors import Incompatible, UserError
from harness.report.plots.figure import extrapolation_note
from harness.simulation.build import prepare
from harness.simulation.simulation import Simulation
from tests.support.runs import finished, given, ready

CENTRAL = {"placement": "central", "clip": 0.5}


def test_noise_is_divided_by_the_larger_cohort_and_the_claim_names_it(data):
    """Nobody learns anything, so that the model moves by noise alone."""
    algorithm = {"name": "fedavg", "local_steps": 1, "lr": 1e-12}
    moves, claims = [], []
    for more in ({}, {"noise_cohort": 70}):
        privacy = CENTRAL | {"noise_multiplier": 4.0} | more
        setup = ready(data, algorithm, model={"name": "mlp", "hidden": [300]}, rounds=1, privacy=privacy)
        start, run = Simulation.from_setup(setup).state.x, finished(setup)
        moves.append(float((run.state.x - start).std()))
        claims.append(run.statement())
    assert moves[0] == pytest.approx(4.0 * 2 * 0.5 / 7, rel=0.1)
    assert moves[1] == pytest.approx(moves[0] / 10, rel=0.1)
    plain, larger = claims
    assert larger.pop("noise_cohort") == 70 and larger == plain


@pytest.mark.parametrize(
    ("privacy", "error", "text"),
    [
        (CENTRAL | {"noise_cohort": 6}, Incompatible, "at least the 7 clients of a round, given 6"),
        ({"placement": "local", "noise_cohort": 70}, UserError, "is for placement central"),
        (CENTRAL | {"clip": "adaptive", "noise_cohort": 70}, UserError, "fixed clip norms"),
        ({"unit": "record", "noise_cohort": 70}, UserError, "does not support noise_cohort"),
    ],
)
def test_where_it_has_no_meaning_it_is_refused(data, privacy, error, text):
    with pytest.raises(error, match=text):
        prepare(read_spec(given(data, privacy=privacy | {"epsilon": 1.0})))


@pytest.mark.slow
@pytest.mark.usefixtures("blank_pictures")
def test_tables_page_and_pictures_say_that_epsilon_is_extrapolated(data, tmp_path, capsys):
    file, out = tmp_path / "suite.json", tmp_path / "out"
    privacy = [None, CENTRAL | {"epsilon": 2.0, "noise_cohort": 1000}]
    content = {"suite": "s", "base": given(data, rounds=2), "sweep": {"privacy": privacy, "seed": [0, 1]}}
    file.write_text(json.dumps(content))
    assert main(["suite", str(file), "--out", str(out), "--jobs", "1"]) == 0
    printed = " ".join(capsys.readouterr().out.split())
    assert "2†" in printed
    assert "† Extrapolated: the noise is that of cohorts of up to 1,000 clients" in printed
    assert "ε = 2, extrapolated" in printed
    assert "It is extrapolated: the noise is that of cohorts of 1,000 clients" in printed
    assert "2†" in (out / "s" / "leaderboard.md").read_text()
    page = (out / "s" / "index.html").read_text()
    assert "2†" in page and "Extrapolated" in page
    assert main(["status", str(out)]) == 0
    assert "2†" in capsys.readouterr().out
    frame = pd.read_csv(out / "s" / "leaderboard.csv")
    assert frame["noise_cohort"].dropna().tolist() == [1000]


def test_pictures_have_a_note():
    class Made:
        def __init__(self, privacy):
            self.spec = {"privacy": privacy}

    assert extrapolation_note([Made(None), Made({"epsilon": 1})]) == ""
    assert "up to 1,000 clients" in extrapolation_note([Made(None), Made({"noise_cohort": 1000})])


def test_an_extrapolated_claim_cannot_be_audited(data, tmp_path, capsys):
    file = tmp_path / "run.json"
    file.write_text(json.dumps(given(data, privacy=CENTRAL | {"epsilon": 2.0, "noise_cohort": 1000})))
    assert main(["audit", "--spec", str(file), "--trials", "2"]) == 2
    assert "there is nothing to audit" in capsys.readouterr().err
