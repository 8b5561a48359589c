"""What a table cannot tell apart: one method under two names, and what follows for ranks, stars and bold."""

from dataclasses import replace

import pytest

from harness.report.data.best import best_of
from harness.report.data.evidence import rows_of
from harness.report.data.leaderboard import leaderboard
from harness.report.data.resolution import Resolution
from harness.report.data.results import Results
from harness.report.tables.columns import difference
from tests.support.records import JITTER, done, private, pruned, searched, spec

SAME = (("fedavg", "fednova"),)
SEEDS = range(10)


def runs(algorithm, mean, jitter=JITTER, same=SAME, **parts):
    """Return ten seeds around a mean."""
    return [
        replace(done(spec(algorithm, seed, **parts), accuracy=mean + off), same=same)
        for seed, off in zip(SEEDS, jitter, strict=True)
    ]


def by_algorithm(frame):
    return {row["algorithm"]: row for row in rows_of(frame)}


def resolution_of(records):
    cells = Results(records).cells
    resolution = Resolution(cells, "accuracy")
    return {(cell.algorithm, cell.given.get("privacy.epsilon")): resolution.of(cell) for cell in cells}


def pair(difference, mean=0.8, **parts):
    return runs("fedavg", mean, **parts) + runs("fednova", mean + difference, **parts)


def test_it_is_what_one_method_differs_by_from_itself():
    (namesakes,) = Resolution(Results(pair(0.03)).cells, "accuracy").namesakes
    assert namesakes.difference == pytest.approx(-0.03)
    assert [cell.algorithm for cell in namesakes.cells] == ["fedavg", "fednova"]
    assert namesakes.interval == pytest.approx((-0.03, -0.03)), "the seeds of both are the same"
    assert resolution_of(pair(0.03) + runs("scaffold", 0.9))["scaffold", None] == pytest.approx(0.03)


def test_a_suite_that_names_none_has_none():
    assert set(resolution_of(pair(0.03, same=())).values()) == {0.0}


def test_each_task_and_budget_has_its_own():
    found = resolution_of(pair(0.001) + pair(0.04, 0.6, privacy=private(1.0)))
    assert found["fedavg", None] == pytest.approx(0.001) and found["fedavg", "1.0"] == pytest.approx(0.04)


def test_the_nearest_stands_in_where_there_is_none():
    """Other models at the budget, then other budgets on the data, then nine in ten of the suite."""
    own = pair(0.01) + pair(0.02, privacy=private(1.0))
    mlp = {"model": {"name": "mlp"}}
    found = resolution_of(own + runs("fedrep", 0.7, **mlp) + runs("scaffold", 0.7, privacy=private(8.0)))
    assert found["fedrep", None] == pytest.approx(0.01), "another model, the same budget"
    assert found["scaffold", "8.0"] == pytest.approx(0.02), "the largest of these data"
    elsewhere = resolution_of(own + runs("scaffold", 0.7, data={"name": "credit"}))
    assert elsewhere["scaffold", None] == pytest.approx(0.9 * 0.02 + 0.1 * 0.01), "a quantile of .01 and .02"


def test_pruned_rows_have_their_own():
    found = Resolution(Results(pair(0.01) + pair(0.05, compression=pruned(0.9))).cells, "accuracy")
    assert sorted(abs(each.difference) for each in found.namesakes) == pytest.approx([0.01, 0.05])
    whole = resolution_of(pair(0.01) + runs("scaffold", 0.7) + pair(0.05, compression=pruned(0.9)))
    assert whole["scaffold", None] == pytest.approx(0.01)


def test_rows_that_are_not_told_apart_share_a_rank():
    """.80 and .83 are one method; .85 is within .03 of .83 and beyond .80."""
    records = pair(0.03) + runs("scaffold", 0.85) + runs("afl", 0.60)
    rows = by_algorithm(leaderboard(Results(records)))
    ranks = {name: row["rank"] for name, row in rows.items()}
    assert ranks == {"scaffold": 1, "fednova": 1, "fedavg": 2, "afl": 4}
    assert list(rows) == ["scaffold", "fednova", "fedavg", "afl"], "the best first among equal ranks"
    plain = by_algorithm(leaderboard(Results([replace(record, same=()) for record in records])))
    assert {name: row["rank"] for name, row in plain.items()} == {
        "scaffold": 1,
        "fednova": 2,
        "fedavg": 3,
        "afl": 4,
    }


def test_a_smaller_difference_has_no_star():
    records = (
        pair(0.03) + runs("scaffold", 0.82, jitter=JITTER[::-1]) + runs("fedprox", 0.9, jitter=JITTER[::-1])
    )
    rows = by_algorithm(leaderboard(Results(records), baseline="fedavg"))
    assert difference(rows["scaffold"]).startswith("≈ +0.02") and "*" not in difference(rows["scaffold"])
    assert difference(rows["fedprox"]).startswith("+0.1000*")
    assert difference(rows["fednova"]).startswith("≈ +0.03")
    alone = by_algorithm(
        leaderboard(Results([replace(record, same=()) for record in records]), baseline="fedavg")
    )
    assert difference(alone["scaffold"]).startswith("+0.0200*"), "its seeds alone would tell it"


def test_all_within_reach_of_the_best_are_bold():
    records = pair(0.03) + runs("scaffold", 0.85, jitter=JITTER[::-1]) + runs("afl", 0.6)
    cells = Results(records).cells
    bold = {cell.algorithm for cell in cells if (cell.key, "accuracy") in best_of(cells, ["accuracy"])}
    assert bold == {"scaffold", "fednova"}


def test_what_another_search_could_turn_around_has_no_rank_of_its_own():
    """A third of the searches of the better row would have chosen a setting of .70."""
    lucky = searched(runs("scaffold", 0.85, same=()), [(0.33, [0.70] * 10)])
    rows = by_algorithm(
        leaderboard(Results([*lucky, *searched(runs("fedavg", 0.80, same=()))]), baseline="fedavg")
    )
    assert (rows["scaffold"]["rank"], rows["fedavg"]["rank"]) == (1, 1)
    assert rows["scaffold"]["paired_procedure_low"] < 0 and "*" not in difference(rows["scaffold"])
    certain = searched(runs("scaffold", 0.85, same=()), [(0.33, [0.84] * 10)])
    rows = by_algorithm(
        leaderboard(Results([*certain, *searched(runs("fedavg", 0.80, same=()))]), baseline="fedavg")
    )
    assert (rows["scaffold"]["rank"], rows["fedavg"]["rank"]) == (1, 2) and "*" in difference(
        rows["scaffold"]
    )


def test_no_row_is_ranked_behind_a_worse_one():
    """At ε 1 rows within .2 are not told apart, so .65 is told from nothing; .70 is better and ranked no worse."""
    records = pair(0.0) + runs("scaffold", 0.70) + pair(0.2, 0.40, privacy=private(1.0))
    records += runs("scaffold", 0.65, privacy=private(1.0))
    rows = rows_of(leaderboard(Results(records)))
    assert [(row["accuracy_mean"], row["rank"]) for row in rows if row["algorithm"] == "scaffold"] == [
        (pytest.approx(0.70), 1),
        (pytest.approx(0.65), 1),
    ]
    assert [row["accuracy_mean"] for row in rows] == sorted((r["accuracy_mean"] for r in rows), reverse=True)
