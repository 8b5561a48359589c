"""What a published table tells: its intervals, paired or not, and what two rows of one method differ by."""

import math

import pandas as pd
import pytest

from harness.cli.parser import main
from harness.config.conditions import Condition
from harness.core.errors import UserError
from harness.report.data.evidence import SEARCHES, SEEDS, Evidence, Federation
from harness.report.data.leaderboard import leaderboard
from harness.report.data.published import published_leaderboard
from harness.report.data.recommendation import recommend
from harness.report.data.results import Results
from harness.report.tables.write import csv_text
from harness.storage.files import output_text
from tests.support.records import done, evaluation, private, spec

NAMES = ("fedavg", "fednova", "fedprox", "ditto")


def table(**columns):
    """Return a leaderboard of four methods, ten seeds each, with columns set by method."""
    runs = [
        done(spec(name, seed, privacy=private(2.0)), evaluation(20, 1000, 2.0, accuracy=0.8))
        for name in NAMES
        for seed in range(10)
    ]
    frame = leaderboard(Results(runs), "accuracy", "fedavg")
    frame = frame.iloc[[frame["algorithm"].tolist().index(name) for name in NAMES]].reset_index(drop=True)
    for name, values in columns.items():
        frame[name] = values
    return frame


def rows(frame, **options):
    evidence = Evidence(frame, "accuracy", **options)
    return evidence, {row["algorithm"]: row for row in evidence.rows}


def test_a_table_comes_back_from_csv(tmp_path):
    frame = table(tuned=["surface of selection_auroc, =1", None, None, None], paired_difference=0.1)
    output_text(tmp_path / "leaderboard.csv", csv_text(frame))
    pd.testing.assert_frame_equal(published_leaderboard(tmp_path / "leaderboard.csv"), frame)
    pd.testing.assert_frame_equal(published_leaderboard(tmp_path), frame)
    pd.testing.assert_frame_equal(published_leaderboard(tmp_path.parent, tmp_path.name), frame)


def test_a_folder_of_tables_needs_the_name_of_one(tmp_path):
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        output_text(tmp_path / name / "leaderboard.csv", csv_text(table(suite=name)))
    with pytest.raises(UserError, match="--suite one or two"):
        published_leaderboard(tmp_path)
    with pytest.raises(UserError, match="Did you mean 'two'"):
        published_leaderboard(tmp_path, "tw0")
    assert set(published_leaderboard(tmp_path, "two")["suite"]) == {"two"}
    (tmp_path / "runs").mkdir()
    assert published_leaderboard(tmp_path) is None


@pytest.mark.parametrize(
    "text", ["", "a,b\n1,2\n", "algorithm,task,cell\n", "algorithm,task,cell\nfedavg,1\n"]
)
def test_what_is_no_table_is_refused(text, tmp_path, capsys):
    (tmp_path / "x.csv").write_text(text)
    assert main(["recommend", str(tmp_path / "x.csv"), "--epsilon", "2"]) == 2
    assert str(tmp_path / "x.csv") in "".join(capsys.readouterr().err.split("\n"))


def test_the_interval_is_over_searches_where_the_row_has_that():
    """Over seeds: t with 9 degrees of freedom is 2.262; 2.262 * .02 / sqrt(10) = .0143."""
    frame = table(accuracy_std=0.02, procedure_low=0.7, procedure_high=0.9)
    evidence, row = rows(frame.assign(tuned="best of 16 by selection_auroc, seeds 100 101"))
    estimate = evidence.estimate(row["fedavg"])
    assert estimate.over == SEEDS
    assert (estimate.low, estimate.high) == pytest.approx((0.8 - 0.01431, 0.8 + 0.01431), abs=1e-5)
    evidence, row = rows(frame.assign(tuned="surface of selection_accuracy over 96 settings"))
    assert evidence.estimate(row["fedavg"]) == (0.8, 0.7, 0.9, SEARCHES)


def test_rows_are_paired_by_the_columns_of_the_baseline_only():
    frame = table(
        accuracy_mean=[0.80, 0.79, 0.75, 0.81],
        paired_difference=[None, -0.01, -0.05, 0.01],
        paired_low=[None, -0.02, -0.06, -0.01],
        paired_high=[None, 0.01, -0.04, 0.02],
    )
    evidence, row = rows(frame)
    assert evidence.loss(row["fedavg"], row["fedprox"]) == pytest.approx((0.05, 0.04, 0.06, SEEDS, True))
    assert evidence.loss(row["ditto"], row["fedavg"]) == pytest.approx((0.01, -0.01, 0.02, SEEDS, True))
    assert not evidence.loss(row["ditto"], row["fedprox"]).paired
    other = {**row["fedavg"], "accuracy_mean": 0.7}  # of the baseline's name, and not the baseline
    assert not evidence.loss(row["fedprox"], other).paired
    frame = frame.assign(
        paired_procedure_low=[None, -0.2, -0.1, 0], paired_procedure_high=[None, 0.1, 0.2, 0]
    )
    evidence, row = rows(frame)
    assert evidence.loss(row["fedavg"], row["fedprox"]) == pytest.approx((0.05, -0.2, 0.1, SEARCHES, True))


def test_unpaired_intervals_add_up_by_squares():
    """Three, four, five: ends .03 and .04 from the means."""
    frame = table(
        accuracy_mean=[0.8, 0.8, 0.7, 0.75],
        procedure_low=[0.8, 0.8, 0.66, 0.72],
        procedure_high=[0.8, 0.8, 0.74, 0.78],
        tuned="surface of selection_accuracy",
    )
    evidence, row = rows(frame)
    assert evidence.loss(row["ditto"], row["fedprox"]) == pytest.approx((0.05, 0.0, 0.1, SEARCHES, False))


def test_a_single_seed_has_no_interval_and_tells_nothing_apart():
    runs = [done(spec(name, 0), evaluation(20, 1000, accuracy=0.5 + 0.1 * n)) for n, name in enumerate(NAMES)]
    found = recommend(Evidence(leaderboard(Results(runs)), "accuracy"), [Condition("bytes", "<=", 1e9)])
    (answer,) = found.answers
    assert answer.best.algorithm == "ditto" and len(answer.equal) == 2  # FedNova is a control
    assert answer.estimates[answer.best.key].over == "" and math.isinf(
        answer.losses[answer.equal[0].key].high
    )


def test_less_than_two_rows_of_one_method_differ_by_is_no_difference():
    """Fedprox is .02 below, beyond its interval; FedAvg and FedNova, one method, are .03 apart; ditto .05 below."""
    means = [0.80, 0.77, 0.78, 0.75]
    bound = [Condition("epsilon_total", "<=", 2.0)]
    frame = table(accuracy_mean=means, accuracy_std=0.001)
    (answer,) = recommend(Evidence(frame, "accuracy"), bound).answers
    assert answer.luck == pytest.approx(0.03)
    assert [row.algorithm for row in answer.equal] == ["fedprox"]
    epochs = frame["settings"].str.replace("local_steps", "local_epochs")  # then they are two methods
    (answer,) = recommend(Evidence(frame.assign(settings=epochs), "accuracy"), bound).answers
    assert answer.luck is None and not answer.equal


def test_published_seeds_within_a_bound_are_expected_ones():
    """A bound one deviation below the mean: 84 % of normal values are above it, 8 of 10."""
    frame = table(accuracy_std=0.1)
    evidence = Evidence(frame, "accuracy")
    found = recommend(evidence, [Condition("accuracy", ">=", 0.7), Condition("epsilon_total", "<=", 2.0)])
    assert {(row.within, row.counted) for row in found.rows} == {(8, False)}
    assert {row.counted for row in recommend(evidence, [Condition("bytes", "<=", 1e9)]).rows} == {True}


def test_sums_over_clients_are_scaled_to_one_s_own_number():
    """Twenty clients send 1,000 bytes and receive twice as many: three times as many clients, 9,000."""
    evidence, row = rows(table(), clients=60)
    assert evidence.value(row["fedavg"], "bytes") == 9000
    assert evidence.value(row["fedavg"], "accuracy") == 0.8
    evidence, row = rows(table())
    assert evidence.value(row["fedavg"], "bytes_up") == 1000


def test_a_measure_that_a_table_lacks_is_refused():
    with pytest.raises(UserError, match="Did you mean 'accuracy'"):
        Evidence.of_table(table(), "accuracyy")
    assert Evidence.of_table(table()).by == "accuracy"
    assert Federation.of(Evidence.of_table(table()).rows[0]).clients == 20
