"""Bands and bars of tuned rows, which are over searches and seeds."""

import pytest

from harness.report.data.results import Results
from harness.report.plots.budgets import accuracy_against_epsilon
from harness.report.plots.figure import mean_and_reach
from harness.report.plots.frontier import accuracy_against_bytes
from harness.report.plots.pareto import pareto
from tests.support.records import JITTER, done, evaluation, private, pruned, searched, spec
from tests.support.written import texts_in

pytestmark = pytest.mark.usefixtures("vectors_only")

OVER_BOTH = "95 % intervals over searches and seeds"


def cell(name, mean, epsilon=None, finalists=None, size=1000, **parts):
    """Return ten seeds; with finalists (of which there may be none) those of a search."""
    privacy = None if epsilon is None else private(epsilon)
    runs = [
        done(spec(name, seed, privacy=privacy, **parts), evaluation(20, size, epsilon, accuracy=mean + off))
        for seed, off in enumerate(JITTER)
    ]
    return runs if finalists is None else searched(runs, finalists)


def test_the_reach_of_a_tuned_row_is_that_of_its_search():
    """A deviation of .0014 over seeds; .2 below with other searches."""
    (plain,) = Results(cell("fedavg", 0.8)).cells
    mean, below, above = mean_and_reach(plain, "accuracy")
    assert mean == pytest.approx(0.8) and below == above == pytest.approx(0.00139, abs=1e-4)
    (tuned,) = Results(cell("fedavg", 0.8, finalists=[(0.4, [0.6] * 10)])).cells
    mean, below, above = mean_and_reach(tuned, "accuracy")
    assert mean == pytest.approx(0.8) and below == pytest.approx(0.2, abs=0.01) and above < 0.002


@pytest.mark.parametrize(
    ("finalists", "noted", "bands"), [(None, False, 0), ([], True, 1), ([(0.4, [0.6] * 10)], True, 1)]
)
def test_lines_over_budgets_have_bands_of_searches(finalists, noted, bands, tmp_path):
    runs = [run for epsilon in (1.0, 8.0, None) for run in cell("fedavg", 0.8, epsilon, finalists)]
    svg = accuracy_against_epsilon(Results(runs), tmp_path / "a")[1]
    assert (OVER_BOTH in texts_in(svg)) == noted
    assert svg.read_text().count("FillBetweenPolyCollection") == bands


def test_lines_are_named_by_their_models(tmp_path):
    """Not by the settings that only one of the models has, unless they tell lines apart."""

    def legend(*models):
        runs = [
            run
            for number, model in enumerate(models)
            for epsilon in (1.0, 8.0, None)
            for run in cell("fedavg", 0.8, epsilon, size=1000 + number, model=model)
        ]
        svg = accuracy_against_epsilon(Results(runs), tmp_path / "a")[1]
        return {text for text in texts_in(svg) if text.startswith("fedavg")}

    mlp = {"name": "mlp", "hidden": [16]}
    assert legend({"name": "logistic"}, mlp) == {"fedavg logistic", "fedavg mlp"}
    assert legend(mlp, mlp | {"hidden": [8]}) == {"fedavg hidden=[16]", "fedavg hidden=[8]"}


def test_points_by_bytes_say_what_their_bars_are(tmp_path):
    runs = [
        r for b in (0.0, 0.9) for r in cell("fedavg", 0.8, finalists=[], compression=pruned(b), size=2000 + b)
    ]
    (note,) = [
        text
        for text in texts_in(accuracy_against_bytes(Results(runs), tmp_path / "a")[1])
        if "lines join" in text
    ]
    assert note.endswith(OVER_BOTH)
    mixed = runs[:10] + cell("fedavg", 0.7, compression=pruned(0.9))
    (note,) = [
        text
        for text in texts_in(accuracy_against_bytes(Results(mixed), tmp_path / "b")[1])
        if "lines join" in text
    ]
    assert note.endswith(f"{OVER_BOTH}, of other rows one standard deviation over seeds")


def test_what_is_not_told_apart_is_no_front(tmp_path):
    """With more bytes scaffold is better by .02, which other searches could turn around; afl by .2."""
    lucky = [(0.4, [0.75] * 10)]
    runs = cell("fedavg", 0.80, finalists=[]) + cell("scaffold", 0.82, finalists=lucky, size=2000)
    runs += cell("afl", 0.5, 2.0, [], size=3000) + cell("fedprox", 0.4, finalists=[], size=3000)
    texts = texts_in(pareto(Results(runs), tmp_path / "a", "accuracy")[1])
    assert texts.count("scaffold") == 0 and texts.count("fedavg") == 1, "by bytes the cheaper one of the two"
    assert "scaffold +1" in texts, "the best without privacy, and another that is as good"
    assert any(text.endswith(f"bars: {OVER_BOTH}") for text in texts)
    certain = runs[:10] + cell("scaffold", 0.82, finalists=[], size=2000) + runs[20:]
    assert texts_in(pareto(Results(certain), tmp_path / "b", "accuracy")[1]).count("scaffold") == 2
