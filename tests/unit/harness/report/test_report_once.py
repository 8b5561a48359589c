"""What a report asks of every run and row, which it finds out once however many figures and tables ask."""

from dataclasses import replace
from unittest import mock

from rich.console import Console

from harness.report.data import identity
from harness.report.data.results import Results
from harness.report.html import page
from harness.report.html.page import DEFAULT, write_report
from harness.report.tables import rows
from harness.report.tables.rows import board_of
from harness.report.tables.summary import print_summary
from tests.support.records import done, evaluation, private, pruned, spec

RUNS = [
    replace(
        done(
            spec(algorithm, seed, **parts),
            evaluation(20, 1000, 1.0 if parts else None, accuracy=0.5 + seed / 10),
        ),
        versions={"algorithm": 1},
    )
    for algorithm in ("fedavg", "scaffold")
    for parts in ({}, {"privacy": private(1.0)}, {"privacy": private(1.0), "compression": pruned(beta=0.9)})
    for seed in (0, 1)
]
CELLS = len(RUNS) // 2


def report(folder):
    """Write a report and print its summary, as the command does."""
    results = Results(RUNS)
    write_report(results, folder, DEFAULT)
    print_summary(results, board_of(results), DEFAULT.by, DEFAULT.baseline, Console(quiet=True, width=200))
    return results


def test_what_determines_a_cell_is_found_once(tmp_path, blank_pictures):
    """Every group of cells to compare has a digest of its own, all of them of one essential spec for all seeds."""
    with (
        mock.patch.object(identity, "essential", wraps=identity.essential) as essential,
        mock.patch.object(identity, "origin", wraps=identity.origin) as origin,
    ):
        report(tmp_path)
    assert essential.call_count == origin.call_count == CELLS


def test_rows_and_their_names_are_found_once(tmp_path, blank_pictures):
    """Page, Markdown, terminal and every figure name the same rows."""
    with (
        mock.patch.object(rows, "rows_of", wraps=rows.rows_of) as found,
        mock.patch.object(rows, "_traits", wraps=rows._traits) as traits,
        mock.patch.object(rows, "task_names", wraps=rows.task_names) as tasks,
    ):
        assert len(report(tmp_path).cells) == CELLS
    assert (found.call_count, tasks.call_count, traits.call_count) == (1, 1, CELLS)


def test_what_is_certain_is_found_once(tmp_path, blank_pictures):
    """Page and Markdown have the same tables above the leaderboard."""
    with mock.patch.object(page, "certainty", wraps=page.certainty) as found:
        report(tmp_path)
    assert found.call_count == 1


def test_what_a_search_chose_is_left_out_of_comparisons_alone():
    first = done(spec("fedavg", 0), evaluation(20, accuracy=0.5))
    chosen = [
        replace(
            first, spec=first.spec | {"algorithm": {"name": "fedavg", "lr": lr}}, chosen=("algorithm.lr",)
        )
        for lr in (0.3, 0.7)
    ]
    one, other = map(identity.Identity, chosen)
    assert one.cell != other.cell and one.spec != other.spec
    assert one.shared_key(("privacy",)) == other.shared_key(("privacy",))
    given = [identity.Identity(replace(record, chosen=())) for record in chosen]
    assert len({own.shared_key(("privacy",)) for own in given}) == 2, "without a search they differ"


def test_runs_that_differ_in_more_than_their_seed_are_told_apart():
    """One is a number, 1.0 another and True a third, as in the digests; an older run has versions of its own."""
    first = RUNS[0]
    settings = [first.spec["algorithm"] | {"lr": lr} for lr in (1, 1.0, True)]
    runs = [replace(first, spec=first.spec | {"algorithm": own}) for own in settings]
    runs += [
        replace(first, **other)
        for other in ({"suite": "b"}, {"profile": "b"}, {"digest": "b"}, {"versions": {}})
    ]
    runs.append(replace(first, versions={}, id="b"))
    runs.append(replace(first, chosen=("algorithm.lr",)))
    assert len(set(identity.identified([first, *runs]))) == len(runs) + 1
    seeds = [replace(run, spec=run.spec | {"seed": seed}) for run in runs for seed in (3, 4)]
    assert len(set(identity.identified(seeds))) == len(runs)
    found = identity.identified([first, *runs, *seeds])
    assert [one.cell for one in found] == [identity.cell_key(run) for run in [first, *runs, *seeds]]
