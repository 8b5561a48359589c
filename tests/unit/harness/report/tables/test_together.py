"""A table says what all its private runs release together, or why that is not known."""

import json
from decimal import ROUND_CEILING, Decimal

import pytest

from harness.config.run import read_spec
from harness.executors.local import run_together
from harness.report.data.leaderboard import leaderboard
from harness.report.data.results import Results
from harness.report.tables.rows import Board
from harness.report.tables.together import together
from harness.report.tables.write import markdown_text, print_table
from harness.storage.files import output_text
from harness.storage.store import Store
from privacy.event import Event
from privacy.joint import Released, joint_epsilon
from tests.support.runs import given

CENTRAL = {"placement": "central", "clip": 1.0}


def table(data, root, *privacies, seeds=2, **fields):
    specs = [
        read_spec(given(data, rounds=3, seed=seed, privacy=privacy, **fields))
        for privacy in privacies
        for seed in range(seeds)
    ]
    assert {outcome.status for outcome in run_together(specs, root)} == {"done"}
    return leaderboard(Results(Store(root).some_records(None)))


def joint(count, *events, streams=None):
    runs = [Released(events, None if streams is None else number % streams) for number in range(count)]
    return rounded_up(joint_epsilon(runs, 1e-5).epsilon)


def rounded_up(epsilon):
    """Three digits, by decimal arithmetic."""
    exact = Decimal(epsilon)
    return f"{exact.quantize(Decimal(1).scaleb(exact.adjusted() - 2), ROUND_CEILING).normalize():f}"


def noisy(z, **others):
    return CENTRAL | {"noise_multiplier": z} | others


def test_own_draws_compose_over_rows_and_seeds(data, tmp_path):
    frame = table(data, tmp_path, noisy(2.0), noisy(2.0, clip=0.5), None, cohort={"size": 3})
    (line,) = together(frame)
    assert "all 4 private runs of these rows together: ε = " in line and "(own draws" in line
    assert f"ε = {joint(4, Event(2.0, 3 / 7, 3))} at δ = 1e-05" in line
    assert "the unit is one client of each partition" in line


def test_shared_draws_are_one_joint_draw_a_seed(data, tmp_path):
    shared = {"draws": "shared"}
    frame = table(data, tmp_path, noisy(2.0, **shared), noisy(2.0, clip=0.5, **shared), cohort={"size": 3})
    (line,) = together(frame)
    assert f"ε = {joint(4, Event(2.0, 3 / 7, 3), streams=2)} at" in line and "(one joint draw a seed" in line


def test_records_and_public_cohorts(data, tmp_path):
    frame = table(data, tmp_path / "a", {"unit": "record", "clip": 1.0, "noise_multiplier": 2.0})
    (line,) = together(frame)
    assert "all 2 private runs" in line and "own draws" in line and "partition" not in line
    local = {"placement": "local", "clip": 1.0, "noise_multiplier": 2.0}
    (line,) = together(table(data, tmp_path / "b", local))
    assert f"ε = {joint(2, Event(2.0, 1.0, 3))} at" in line and "draws" not in line


def test_different_units_have_a_sentence_each(data, tmp_path):
    frame = table(data, tmp_path, noisy(2.0), {"unit": "record", "clip": 1.0, "noise_multiplier": 2.0})
    lines = together(frame)
    assert len(lines) == 3 and "no joint ε" in lines[-1]
    assert {text.split(":")[0].split(", ", 1)[1] for text in lines[:2]} == {
        "unit client, replace", "unit record, zero-out",
    }  # fmt: skip


def test_what_is_missing_is_said(data, tmp_path):
    frame = table(data, tmp_path, noisy(2.0), cohort={"size": 3})
    earlier = frame.assign(released=[json.dumps([[seed, "shared", None] for seed in range(2)])])
    (line,) = together(earlier)
    assert "ε is not given: 2 runs" in line and "an earlier version" in line
    (line,) = together(frame.assign(noise_cohort=50))
    assert "is not given: that of 2 runs is extrapolated" in line


def test_one_run_says_it_in_its_row_and_tables_without_privacy_say_nothing(data, tmp_path):
    assert together(table(data, tmp_path / "a", noisy(2.0), seeds=1)) == []
    assert together(table(data, tmp_path / "b", None)) == []


def test_terminal_and_markdown_have_the_line(data, tmp_path, capsys):
    frame = table(data, tmp_path / "runs", noisy(2.0))
    (line,) = together(frame)
    output_text(tmp_path / "table.md", markdown_text(Board(frame)))
    print_table(Board(frame))
    assert "2 private runs of these rows together" in (tmp_path / "table.md").read_text()
    assert line.split(" at ")[0].rpartition(": ")[2] in " ".join(capsys.readouterr().out.split())


@pytest.mark.parametrize("cohort", [{"size": 3}, None], ids=["secret cohorts", "everybody"])
def test_paired_runs_have_no_joint_epsilon(data, tmp_path, cohort):
    """Their noise is one draw, so a weighted difference of two releases is free of it."""
    paired = {"draws": "paired"}
    frame = table(data, tmp_path, noisy(2.0, **paired), noisy(4.0, **paired), cohort=cohort)
    (line,) = together(frame)
    assert "ε is not given: 4 runs share their noise, as those of a search do: ε is of one run alone" in line


@pytest.mark.parametrize("draws", ["own", "shared", "paired"])
def test_the_cost_of_a_search_needs_draws_of_its_own(data, tmp_path, draws):
    """Also in records of earlier versions, whose versions name no draws: they shared them."""
    frame_of = Store(tmp_path)
    spec = read_spec(given(data, cohort={"size": 3}, privacy=noisy(2.0, draws=draws)))
    run_together([spec], tmp_path)
    (record,) = frame_of.some_records(None)
    record.search.update({"tune": {"seeds": [9], "metric": "accuracy"}, "trials": [{}], "epsilon": 3.0})
    (row,) = leaderboard(Results([record])).to_dict("records")
    assert (row["epsilon_with_search"] == 3.0) == (draws == "own")
    assert ("the search's runs share draws" in row["tuned"]) == (draws != "own")
    record.versions.pop("draws", None)
    (row,) = leaderboard(Results([record])).to_dict("records")
    assert row["epsilon_with_search"] != 3.0


def test_records_of_other_partitions_of_a_seed_are_not_drawn_independently(data, tmp_path):
    """Standardized or not, the same records are in the same batches."""
    shared = {"unit": "record", "clip": 1.0, "noise_multiplier": 2.0, "draws": "shared"}
    specs = [
        read_spec(given(data, privacy=shared, partition={"kind": "iid", "clients": 7, "standardize": each}))
        for each in (True, False)
    ]
    assert {outcome.status for outcome in run_together(specs, tmp_path)} == {"done"}
    (line,) = together(leaderboard(Results(Store(tmp_path).some_records(None))))
    assert "ε is not given: runs that share draws use them in different ways" in line


def test_runs_that_did_not_finish_are_named(data, tmp_path):
    """The rounds before a run diverged, or was stopped, are on record too."""
    frame = table(data, tmp_path, noisy(2.0), None).assign(failed=1, missing=2)
    line = together(frame)[-1]
    assert "3 private runs not finished and not counted; rounds that they had are released too" in line
