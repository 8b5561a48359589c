"""What stands above a table whose rows were searched for: its resolution, groups of methods, failed searches."""

from dataclasses import replace

import pytest

from harness.config.report import ReportSpec
from harness.report.data.results import Results
from harness.report.html.page import write_report
from harness.report.tables.certainty import certainty_tables, inversion_sentences
from harness.report.tables.pivot import grids_markdown
from harness.report.tables.rows import board_of
from harness.report.tables.tuning import tuning_tables
from tests.support.records import JITTER, done, evaluation, private, searched, spec


def runs(algorithm, mean, epsilon=None, size=1000, finalists=(), jitter=JITTER, **parts):
    """Return ten seeds of a tuned cell; ``fedavg`` and ``fednova`` are one method."""
    privacy = None if epsilon is None else private(epsilon)
    records = [
        done(
            spec(algorithm, seed, privacy=privacy, **parts),
            evaluation(20, size, epsilon, accuracy=mean + off),
        )
        for seed, off in enumerate(jitter)
    ]
    return [
        replace(record, same=(("fedavg", "fednova"),))
        for record in searched(records, finalists, number=int(epsilon or 0))
    ]


def tables(*cells):
    results = Results([run for cell in cells for run in cell])
    grids = certainty_tables(results, board_of(results), "accuracy")
    return {grid.title: dict(grid.lines()) for grid in grids}, [grid.note for grid in grids]


def test_the_difference_of_namesakes_is_printed_by_task_and_budget():
    at_four = runs("fedavg", 0.70, 4.0), runs("fednova", 0.73, 4.0, jitter=JITTER[::-1])
    plain = runs("fedavg", 0.80), runs("fednova", 0.801)
    found, notes = tables(*at_four, *plain)
    (texts,) = found["What this table cannot tell apart"].values()
    assert texts[0] == "-0.1 [-0.1, -0.1]" and texts[1].startswith("-3.0 [-3.2, -2.8")
    assert "fedavg and fednova are one method under two names" in notes[0]
    assert "the largest is 3.0 points. The interval excludes 0 in 2 of 2" in notes[0]
    assert "Nine in ten are at most 2.7 points" in notes[0], "a quantile of .1 and 3"


def test_methods_that_are_level_with_the_best_are_one_line():
    cells = (
        runs("fedavg", 0.80, size=1000),
        runs("fednova", 0.81, size=2000),
        runs("fedprox", 0.815, size=3000),
    )
    found, _ = tables(*cells, runs("scaffold", 0.70), runs("q_fedavg", 0.76), runs("ditto", 0.9))
    (name,) = found["Methods that cannot be told from the best"]
    assert name == "adult, no privacy, for everybody", "ditto has no rival among models for each client"
    level, most, mean, interval, sent, behind = found["Methods that cannot be told from the best"][name]
    assert (level, most) == ("fedprox, fednova", "0.5 points") and mean == "0.8150"
    assert interval == "0.8140 to 0.8159" and (sent, behind) == ("6 kB to 9 kB", "3: 1.5 to 11.5")


def test_the_interval_of_a_group_is_that_of_the_search():
    found, _ = tables(runs("fedavg", 0.80, finalists=[(0.4, [0.7] * 10)]), runs("fedprox", 0.6))
    ((level, most, _, interval, *_),) = found["Methods that cannot be told from the best"].values()
    assert (level, most) == ("fedavg", "") and interval.startswith("0.70")


def test_rows_that_nobody_searched_for_have_no_such_tables():
    records = [done(spec(name, seed), accuracy=0.5) for name in ("fedavg", "fedprox") for seed in range(5)]
    results = Results(records)
    assert certainty_tables(results, board_of(results), "accuracy") == []
    assert inversion_sentences(results.cells) == []


@pytest.mark.usefixtures("blank_pictures")
def test_a_report_says_where_a_larger_budget_was_worse(tmp_path):
    worse = [
        *runs("fedavg", 0.80, 1.0),
        *runs("fedavg", 0.75, 8.0, jitter=JITTER[::-1]),
        *runs("fedavg", 0.9),
    ]
    write_report(Results(worse), tmp_path, ReportSpec())
    said = "Worse at a larger budget, beyond the interval (a failure of the search, not of privacy): fedavg"
    text = (tmp_path / "leaderboard.md").read_text()
    assert f"- {said} on adult at ε 8: accuracy 0.7500, 0.8000 at ε 1, -5.0 [-5.2" in text
    assert said in (tmp_path / "index.html").read_text()
    assert "had better results: fedavg, ε = 8." in (tmp_path / "tuned.md").read_text()
    good = [*runs("fedavg", 0.70, 1.0), *runs("fedavg", 0.75, 8.0)]
    assert inversion_sentences(Results(good).cells) == [
        "No larger budget has a worse result, beyond the interval of the difference."
    ]
    (grid,) = tuning_tables(Results(good))
    assert "none had better results at a smaller budget" in grid.note
    (grid,) = tuning_tables(Results(runs("fedavg", 0.7, 1.0)))
    assert "better results" not in grid.note


def test_a_table_of_choices_begins_with_a_sentence_for_each_method_and_budget():
    """Rows are named as in other tables, with options of the data only where data of one name differ."""
    stops, vote, other = (
        {"data": {"name": name, "sensitive": sensitive}}
        for name, sensitive in (("stops", "race"), ("vote", "race"), ("vote", "sex"))
    )
    records = [
        replace(record, search=record.search | {"number": number})
        for number, (data, epsilon) in enumerate([(stops, None), (stops, 8.0), (vote, 8.0), (other, 8.0)])
        for record in runs("fedavg", 0.8 - number / 100, epsilon, **data)
    ]
    for record in records:
        record.search["trials"][0]["settings"] = {"algorithm.lr": 0.25, "rounds": 30}
    (grid,) = tuning_tables(Results(records))
    assert grid.rows == (
        "fedavg, stops, no privacy",
        "fedavg, stops, ε = 8",
        "fedavg, vote(sensitive=race), ε = 8",
        "fedavg, vote(sensitive=sex), ε = 8",
    )
    reached = "accuracy 0.7900 [0.7890, 0.7910] on test samples, with lr 0.25, rounds 30."
    assert len(grid.answers) == 4 and grid.answers[1] == f"fedavg, stops, ε = 8: {reached}"
    text = grids_markdown([grid])
    assert text.index("- fedavg, stops") < text.index("| fedavg, stops") < text.index("In brackets: 95 %")


@pytest.mark.usefixtures("blank_pictures")
def test_the_short_tables_stand_above_all_rows(tmp_path):
    write_report(Results([*runs("fedavg", 0.80), *runs("fednova", 0.81)]), tmp_path, ReportSpec())
    for file in ("leaderboard.md", "index.html"):
        text = (tmp_path / file).read_text()
        apart, level = (
            text.index(title) for title in ("cannot tell apart<"[:-1], "cannot be told from the best")
        )
        rows = text.index("### All rows" if file.endswith("md") else 'id="task-1"')
        assert apart < level < rows, file
