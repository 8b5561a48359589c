"""The leaderboard: figures computed by hand, and rows that must not vanish."""

import math
import random
from dataclasses import replace

import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.config.report import ReportSpec
from harness.report.data.columns import LEADERBOARD
from harness.report.data.leaderboard import leaderboard
from harness.report.data.results import Results
from harness.report.tables.rows import Board, board_of
from harness.report.tables.write import markdown_text, summary
from harness.storage.files import output_text
from tests.support.records import (
    diagnosed,
    done,
    evaluation,
    partition,
    private,
    pruned,
    spec,
    statement,
    undone,
)

CONTRACT = (
    "suite dataset partition problem model algorithm dp_unit dp_placement epsilon_release epsilon_total "
    "delta clip alpha beta codec rounds clients seeds accuracy_mean accuracy_std worst_client_mean "
    "eqopp_mean eqopp_std auroc_mean auroc_std bytes_up bytes_down flops seconds done failed skipped rank"
)


def row(frame, **where):
    """Return the one row that matches."""
    for name, value in where.items():
        frame = frame[frame[name] == value]
    assert len(frame) == 1
    return frame.iloc[0]


def three_seeds(algorithm, values, **parts):
    return [done(spec(algorithm, seed, **parts), accuracy=value) for seed, value in enumerate(values)]


def test_a_schedule_is_ranked_by_its_largest_ratio(tmp_path):
    """0.2 from round 0, 0.4 and 0.6 from round 10: the largest is 0.6; in the table for people stands all of it."""
    rising = {"alpha": [[0, 0.2], [10, [0.4, 0.6]]], "beta": (0.1, 0.3), "codec": "float32"}
    frame = leaderboard(
        Results([done(spec("lvfl", compression=c), accuracy=0.5) for c in (rising, pruned(0.9))])
    )
    assert sorted(zip(frame["alpha"], frame["beta"], strict=True)) == [(0.0, 0.9), (0.6, 0.3)]
    output_text(tmp_path / "table.md", markdown_text(Board(frame)))
    text = (tmp_path / "table.md").read_text()
    assert "| 0.2@0,0.4/0.6@10 | [0.1,0.3] |" in text and "| 0 | 0.9 |" in text


def test_columns_start_with_the_contract():
    assert " ".join(LEADERBOARD).startswith(CONTRACT + " ")
    assert tuple(leaderboard(Results([])).columns) == LEADERBOARD


def test_a_wide_table_is_made_without_a_warning():
    """Warnings are errors here: pandas warns of an insertion into more than a hundred columns of numbers."""
    assert len(leaderboard(Results([done(spec(), **{f"metric_{number}": 0.5 for number in range(60)})]))) == 1


def test_mean_deviation_and_interval_of_three_seeds():
    """Seeds 0.7, 0.8, 0.9: mean 0.8; sample variance (0.01 + 0 + 0.01) / 2 = 0.01, hence deviation 0.1;
    half width t(0.975, 2 degrees) * 0.1 / sqrt(3) = 4.302653 * 0.0577350 = 0.248414."""
    only = leaderboard(Results(three_seeds("fedavg", (0.7, 0.8, 0.9)))).iloc[0]
    assert only["accuracy_mean"] == pytest.approx(0.8)
    assert only["accuracy_std"] == pytest.approx(0.1)
    assert only["accuracy_ci95"] == pytest.approx(0.248414, abs=1e-6)
    assert (only["seeds"], only["done"], only["rank"]) == (3, 3, 1)


def test_one_seed_has_no_spread():
    only = leaderboard(Results(three_seeds("fedavg", (0.7,)))).iloc[0]
    assert only["accuracy_mean"] == 0.7
    assert math.isnan(only["accuracy_std"]) and math.isnan(only["accuracy_ci95"])


def test_figures_are_those_of_the_last_evaluation():
    run = done(spec(), evaluation(10, 500, accuracy=0.9), evaluation(20, 1000, accuracy=0.6))
    only = leaderboard(Results([run])).iloc[0]
    assert (only["accuracy_mean"], only["bytes_up"], only["bytes_down"]) == (0.6, 1000, 2000)
    assert (only["flops"], only["seconds"]) == (10_000, 2.0)


def test_a_metric_that_does_not_apply_is_empty_not_zero():
    only = leaderboard(Results(three_seeds("fedavg", (0.7, 0.8)))).iloc[0]
    assert math.isnan(only["eqopp_mean"]) and math.isnan(only["auroc_std"])
    assert pd.isna(only["epsilon_total"]) and pd.isna(only["dp_unit"])


def test_ranks_follow_the_direction_and_share_ties():
    """Accuracy .8, .8, .7: ranks 1, 1, 3. EqOpp .3, .1, none: smaller is better, none is unranked."""
    records = [
        done(spec("fedavg"), accuracy=0.8, eqopp=0.3),
        done(spec("fedbio"), accuracy=0.8, eqopp=0.1),
        done(spec("ditto"), accuracy=0.7),
    ]
    by_accuracy = leaderboard(Results(records)).set_index("algorithm")["rank"]
    assert by_accuracy.to_dict() == {"fedavg": 1, "fedbio": 1, "ditto": 3}
    by_gap = leaderboard(Results(records), by="eqopp").set_index("algorithm")["rank"]
    assert by_gap["fedbio"] == 1 and by_gap["fedavg"] == 2 and pd.isna(by_gap["ditto"])


def test_ranks_count_within_a_task():
    """The weaker run on another partition is the best of its own task; so is the cell in another suite."""
    records = [
        done(spec("fedavg"), accuracy=0.8),
        done(spec("fedavg", partition=partition(0.1)), accuracy=0.7),
        done(spec("fedavg"), suite="other", accuracy=0.6),
    ]
    assert list(leaderboard(Results(records))["rank"]) == [1, 1, 1]


def test_tasks_on_one_data_set_are_told_apart_for_a_reader(tmp_path):
    """Five groups or two: the same data, partition and problem otherwise; digits is there once, and is digits."""
    data = [
        {"name": "adult", "sensitive": "race"},
        {"name": "adult", "sensitive": "race2"},
        {"name": "digits"},
    ]
    frame = leaderboard(Results([done(spec("fedavg", data=own), accuracy=0.8) for own in data]))
    assert sorted(frame["dataset"]) == ["adult", "adult", "digits"]
    assert sorted(tasks["dataset"] for tasks in Board(frame).tasks.values()) == [
        "adult(sensitive=race)",
        "adult(sensitive=race2)",
        "digits",
    ]
    output_text(tmp_path / "table.md", markdown_text(Board(frame)))
    assert "| adult(sensitive=race2) |" in (tmp_path / "table.md").read_text()


def test_an_unknown_measure_names_the_nearest():
    with pytest.raises(ValueError, match=r"'auroc2'.*'auroc'"):
        leaderboard(Results([]), by="auroc2")
    with pytest.raises(ValueError, match=r"baseline 'fedav'.*'fedavg'"):
        leaderboard(Results([done(spec(), accuracy=0.5)]), baseline="fedav")


def test_unfinished_runs_keep_their_row_and_their_reason():
    records = [
        *three_seeds("fedavg", (0.7, 0.9)),
        undone(spec("fedavg", 2), "failed", "loss is NaN\nin round 7"),
        *(undone(spec("fedbio", seed), "skipped", "needs groups") for seed in range(3)),
        undone(spec("ditto", 0), "missing"),
        undone(spec("ditto", 1), "running"),
    ]
    frame = leaderboard(Results(records))
    half = row(frame, algorithm="fedavg")
    assert (half["seeds"], half["done"], half["failed"]) == (3, 2, 1)
    assert half["accuracy_mean"] == pytest.approx(0.8) and half["reasons"] == "loss is NaN in round 7"
    skipped = row(frame, algorithm="fedbio")
    assert (skipped["seeds"], skipped["skipped"], skipped["reasons"]) == (3, 3, "needs groups (3 runs)")
    assert math.isnan(skipped["accuracy_mean"]) and pd.isna(skipped["rank"]) and pd.isna(skipped["bytes_up"])
    missing = row(frame, algorithm="ditto")
    assert (missing["seeds"], missing["missing"], missing["done"]) == (2, 2, 0)


def test_figures_of_failed_runs_are_not_averaged():
    """A run that died at round 10 with accuracy 0.1 says nothing about round 20."""
    died = undone(spec(seed=1), "failed", "loss is NaN")
    died.rounds.append(evaluation(10, accuracy=0.1))
    assert leaderboard(Results([done(spec(), accuracy=0.8), died])).iloc[0]["accuracy_mean"] == 0.8


def test_hyper_parameters_make_cells():
    frame = leaderboard(Results([done(spec(lr=lr), accuracy=lr) for lr in (0.1, 0.5)]))
    assert list(frame["settings"]) == ["local_steps=10 lr=0.5", "local_steps=10 lr=0.1"]
    assert frame["cell"].nunique() == 2 and frame["task"].nunique() == 1


def test_settings_name_what_has_no_column_only_where_it_differs():
    records = [done(spec(cohort={"size": n}), accuracy=0.5) for n in (5, 10)]
    assert set(leaderboard(Results(records))["settings"]) == {
        "local_steps=10 lr=0.1 cohort.size=5",
        "local_steps=10 lr=0.1 cohort.size=10",
    }
    assert "cohort" not in leaderboard(Results(records[:1])).iloc[0]["settings"]


def test_a_matrix_in_a_spec_is_shown_by_its_digest():
    problem = {"kind": "quadratic_minimax", "P": [[[1.0, 0.0], [0.0, 1.0]]] * 4}
    only = leaderboard(
        Results([done(spec(data=None, partition=None, model=None, problem=problem), loss=0.1)])
    ).iloc[0]
    assert only["clients"] == 4 and pd.isna(only["dataset"]) and only["problem"] == "quadratic_minimax"
    assert only["loss_mean"] == 0.1 and math.isnan(only["accuracy_mean"])


def test_paired_difference_to_the_baseline():
    """Fedavg .70 .80 .75, ditto .75 .82 .83: differences .05 .02 .08, mean .05, deviation .03,
    half width 4.302653 * .03 / sqrt(3) = .074524. Unpaired spreads would be larger."""
    records = [*three_seeds("fedavg", (0.7, 0.8, 0.75)), *three_seeds("ditto", (0.75, 0.82, 0.83))]
    frame = leaderboard(Results(records), baseline="fedavg")
    ditto = row(frame, algorithm="ditto")
    assert ditto["paired_difference"] == pytest.approx(0.05)
    assert ditto["paired_ci95"] == pytest.approx(0.074524, abs=1e-6)
    assert math.isnan(row(frame, algorithm="fedavg")["paired_difference"])
    assert leaderboard(Results(records))["paired_difference"].isna().all()


def test_pairs_use_common_seeds_only():
    """Ditto ran seeds 1 and 2 only: differences .02 and .08, whatever seed 0 of fedavg was."""
    records = [*three_seeds("fedavg", (0.1, 0.8, 0.75)), *three_seeds("ditto", (0.9, 0.82, 0.83))[1:]]
    ditto = row(leaderboard(Results(records), baseline="fedavg"), algorithm="ditto")
    assert ditto["paired_difference"] == pytest.approx(0.05)


def test_pairs_share_the_setting_and_take_the_best_baseline():
    """Under DP there is no fedavg: no pair. Without, the reference is lr .5 (.8), not lr .1 (.6)."""
    records = [
        done(spec("fedavg", lr=0.1), accuracy=0.6),
        done(spec("fedavg", lr=0.5), accuracy=0.8),
        done(spec("ditto"), accuracy=0.9),
        done(spec("ditto", privacy=private(8.0)), evaluation(20, epsilon=8.0, accuracy=0.5)),
        done(spec("k_gt_minimax", topology={"kind": "ring"}), accuracy=0.7),
    ]
    frame = leaderboard(Results(records), baseline="fedavg")
    plain, noisy = row(frame, algorithm="ditto", accuracy_mean=0.9), row(frame, accuracy_mean=0.5)
    assert plain["paired_difference"] == pytest.approx(0.1) and math.isnan(noisy["paired_difference"])
    assert row(frame, algorithm="k_gt_minimax")["paired_difference"] == pytest.approx(-0.1)
    assert row(frame, accuracy_mean=0.6)["paired_difference"] == pytest.approx(-0.2)


def test_pareto_in_accuracy_bytes_and_epsilon():
    """A .9/3000 B/no DP; B .8/3000 B/no DP (A beats it); C .8/1500 B (fewer bytes); D .7/3000 B/eps 1
    (private); E .6/3000 B/eps 1 (D beats it); F has no accuracy."""

    def point(name, accuracy, size=1000, epsilon=None):
        parts = {"privacy": None if epsilon is None else private(epsilon)}
        return done(spec(name, **parts), evaluation(20, size, epsilon, accuracy=accuracy))

    records = [point("a", 0.9), point("b", 0.8), point("c", 0.8, 500), point("d", 0.7, epsilon=1.0)]
    records += [point("e", 0.6, epsilon=1.0), point("f", None)]
    found = leaderboard(Results(records)).set_index("algorithm")["pareto"]
    assert found.drop("f").to_dict() == {"a": True, "b": False, "c": True, "d": True, "e": False}
    assert pd.isna(found["f"])


def test_privacy_columns_tell_the_largest_epsilon_of_the_seeds():
    records = [
        done(spec(seed=seed, privacy=private(8.0)), evaluation(20, epsilon=epsilon, accuracy=0.5))
        for seed, epsilon in enumerate((7.5, 7.9))
    ]
    only = leaderboard(Results(records)).iloc[0]
    assert (only["epsilon_total"], only["epsilon_release"], only["epsilon_asked"]) == (7.9, 7.9 / 4, 8.0)
    assert (only["dp_unit"], only["dp_placement"], only["clip"], only["releases"]) == (
        "client",
        "local",
        10,
        20,
    )


def test_whose_the_largest_epsilon_is_stands_in_table_and_notes(tmp_path):
    """Client 7 has ten times what the median has; under unit record it sets the noise of all."""

    def board(**claim):
        own = (
            statement(8.0)
            | {"unit": "record", "epsilon_median": 0.8, "unit_most": 7, "units_most": 1}
            | claim
        )
        line = evaluation(20, accuracy=0.5) | {"privacy": own}
        return board_of(Results([done(spec("fedavg", privacy=private(8.0)), line)]))

    frame = board().frame
    assert list(frame["epsilon_of"]) == ["client 7"] and list(frame["epsilon_median"]) == [0.8]
    output_text(tmp_path / "table.md", markdown_text(board()))
    text = (tmp_path / "table.md").read_text()
    assert "| 0.8 (client 7 has most) |" in text
    assert "Client 7 sets the noise of all clients, as its records are drawn most often" in text
    assert "ε is that of client 7, the largest (in brackets the median): fedavg 8 (0.8)." in text
    assert list(board(units_most=3).frame["epsilon_of"]) == ["client 7 and 2 more"]
    even = board(epsilon_median=8.0, unit_most=0, units_most=int(frame["clients"][0]))
    assert list(even.frame["epsilon_of"]) == ["all clients"]
    output_text(tmp_path / "table.md", markdown_text(even))
    assert "median" not in (tmp_path / "table.md").read_text()
    person = board(protects="the features of one person", unit_most=3)
    assert list(person.frame["epsilon_of"]) == ["person 3"]
    output_text(tmp_path / "table.md", markdown_text(person))
    assert "sets the noise" not in (tmp_path / "table.md").read_text()


def test_a_skipped_cell_still_says_what_was_asked():
    asked = undone(spec(privacy=private(2.0), compression=pruned(0.9)), "skipped", "needs a server")
    only = leaderboard(Results([asked])).iloc[0]
    assert (only["dp_unit"], only["delta"], only["epsilon_asked"], only["beta"]) == ("client", 1e-5, 2.0, 0.9)
    assert math.isnan(only["epsilon_total"])


def test_bytes_are_averaged_only_where_seeds_differ():
    """1000 and 1001 bytes: 1000.5, exactly; 1000 and 1000: 1000, an integer."""
    frame = leaderboard(Results([done(spec(seed=s), evaluation(20, 1000 + s, accuracy=0.5)) for s in (0, 1)]))
    assert frame.iloc[0]["bytes_up"] == 1000.5
    same = leaderboard(Results([done(spec(seed=s), evaluation(20, 1000, accuracy=0.5)) for s in (0, 1)]))
    assert str(same["bytes_up"].dtype) == "Int64" and same.iloc[0]["bytes_up"] == 1000


@pytest.mark.slow
@settings(max_examples=20, deadline=None)
@given(st.randoms(use_true_random=False), st.lists(st.floats(0, 1), min_size=2, max_size=6))
def test_the_order_of_records_does_not_matter(shuffler: random.Random, values):
    records = [done(spec(f"a{i % 2}", i), accuracy=value) for i, value in enumerate(values)]
    records.append(undone(spec("a0", 99), "failed", "no luck"))
    shuffled = records.copy()
    shuffler.shuffle(shuffled)
    pd.testing.assert_frame_equal(leaderboard(Results(records)), leaderboard(Results(shuffled)))


def test_a_run_without_noise_has_an_infinite_epsilon():
    clipped = spec(privacy=private(8) | {"placement": "local", "epsilon": None, "noise_multiplier": 0.0})
    unprotected = {"privacy": statement(1.0) | {"epsilon_total": "inf"}}  # as it is written down
    runs = [done(clipped, evaluation(20, accuracy=0.9) | unprotected)]
    runs += [done(spec(privacy=private(8)), accuracy=0.8, epsilon=8.0)]
    frame = leaderboard(Results(runs), by="epsilon")
    assert frame["epsilon_total"].tolist() == [8.0, math.inf]
    assert frame["rank"].tolist() == [1, 2]
    assert frame["pareto"].tolist() == [True, True]


def test_clip_norms_are_numbers_if_fixed_and_joint(tmp_path):
    def clipped(clip):
        claim = statement(8) | {"clip": clip}
        return done(spec(privacy=private(8) | {"clip": clip}), evaluation(20) | {"privacy": claim})

    def board(*clips):
        return leaderboard(Results([clipped(clip) for clip in clips]))

    assert sorted(board(0.5, 2)["clip"]) == [0.5, 2.0]
    mixed = board(0.5, "adaptive", [0.5, 1.0])
    assert sorted(mixed["clip"]) == ["0.5", "0.5/1", "adaptive"]
    output_text(tmp_path / "table.md", markdown_text(Board(mixed)))
    text = (tmp_path / "table.md").read_text()
    assert all(f"clip={norm} " in text for norm in ("0.5", "0.5/1", "adaptive"))


def test_diagnostics_are_last_columns_and_means_over_seeds():
    """Shares .25 and .75 of two seeds: mean .5. A run without diagnostics has none, and no column moves."""
    runs = [
        done(
            spec(seed=seed),
            diagnosed(evaluation(10, accuracy=0.5), clipped_share=1.0, noise_to_signal=9.0),
            diagnosed(evaluation(20, accuracy=0.5), clipped_share=share, noise_to_signal=2.0),
        )
        for seed, share in ((0, 0.25), (1, 0.75))
    ]
    plain = done(spec("ditto"), accuracy=0.4)
    frame, before = leaderboard(Results([*runs, plain])), leaderboard(Results([plain]))
    assert [*before.columns, "clipped_share", "noise_to_signal"] == list(frame.columns)
    assert (row(frame, algorithm="fedavg")[["clipped_share", "noise_to_signal"]] == [0.5, 2.0]).all()
    assert row(frame, algorithm="ditto")[["clipped_share", "noise_to_signal"]].isna().all()


def test_a_diagnostic_never_takes_the_column_of_something_else():
    run = done(spec(), diagnosed(evaluation(20, accuracy=0.5), clip=3.0, accuracy=9.0))
    only = leaderboard(Results([run])).iloc[0]
    assert only["accuracy_mean"] == 0.5 and pd.isna(only["clip"])


def test_ranks_pareto_and_settings_are_those_of_comparing_every_pair():
    """The oracle compares each cell with each other one; ties, gaps and missing figures are among 200 cells."""
    draw = random.Random(7)
    runs = []
    for n in range(200):
        epsilon = draw.choice([None, 1.0, 2.0, 8.0])
        own = {"lr": n / 1000, "local_steps": draw.choice([1, 10])}
        parts = {"own": own, "partition": partition(draw.choice([0.1, 1.0]))}
        parts |= {
            "model": draw.choice([{"name": "logistic"}, {"name": "mlp", "hidden": draw.choice([[2], [3]])}])
        }
        parts |= {"cohort": {"size": 2}} if n % 50 == 0 else {}
        line = evaluation(20, draw.choice([1, 2, 3]), epsilon, accuracy=draw.choice([0.1, 0.2, 0.3, None]))
        runs.append(done(spec(draw.choice(["fedavg", "ditto"]), **parts), line))
    frame = leaderboard(Results(runs))
    assert len(frame) == 200
    rows = frame.astype(object).where(frame.notna(), None).to_dict("records")

    def cost(one):
        epsilon = math.inf if one["epsilon_total"] is None else one["epsilon_total"]
        return -one["accuracy_mean"], one["bytes_up"] + one["bytes_down"], epsilon

    def beats(a, b):
        return a != b and all(x <= y for x, y in zip(a, b, strict=True))

    for one in rows:
        if one["accuracy_mean"] is None:
            assert one["rank"] is None and one["pareto"] is None
            continue
        rivals = [r for r in rows if r["task"] == one["task"] and r["accuracy_mean"] is not None]
        assert one["rank"] == 1 + sum(r["accuracy_mean"] > one["accuracy_mean"] for r in rivals)
        assert one["pareto"] == (not any(beats(cost(r), cost(one)) for r in rivals))
        words = dict(word.split("=") for word in one["settings"].split())
        assert ("model.hidden" in words) == (one["model"] == "mlp") and "lr" in words
    assert sum("cohort.size=2" in one["settings"] for one in rows) == 4


def test_the_pareto_front_is_that_of_the_measure_that_ranks():
    """It went by accuracy whatever ranked: here the row with more bytes and a higher AUROC was left out."""
    small = [done(spec("fedavg", seed), evaluation(1, 100, accuracy=0.9, auroc=0.6)) for seed in range(2)]
    large = [done(spec("scaffold", seed), evaluation(1, 200, accuracy=0.8, auroc=0.7)) for seed in range(2)]
    assert leaderboard(Results([*small, *large]), "auroc")["pareto"].tolist() == [True, True]
    assert leaderboard(Results([*small, *large]))["pareto"].tolist() == [True, False]


def test_what_ranks_by_itself_follows_from_the_results():
    """Always predicting one class has an accuracy of 0.945 of the second data set, where accuracy says little."""
    balanced = with_constant(done(spec("fedavg"), accuracy=0.8, auroc=0.9), 0.6)
    lopsided = with_constant(done(spec("fedavg"), accuracy=0.945, auroc=0.7), 0.945)
    assert Results([balanced]).ranked(ReportSpec()).by == "accuracy"
    assert Results([lopsided]).ranked(ReportSpec()).by == "auroc"
    assert Results([lopsided]).ranked(ReportSpec(by="accuracy")).by == "accuracy"
    assert Results([lopsided, done(spec("ditto"), accuracy=0.9)]).ranked(ReportSpec()).by == "accuracy"
    assert Results([done(spec("fedavg"), mae=3.0)]).ranked(ReportSpec()).by == "mae"
    searched = replace(balanced, search={"tune": {"metric": "auroc"}})
    assert Results([searched]).ranked(ReportSpec()).by == "auroc"


def test_tables_say_how_accurate_one_class_for_all_is():
    frame = leaderboard(Results([with_constant(done(spec("fedavg"), accuracy=0.945, auroc=0.7), 0.945)]))
    assert frame["accuracy_constant"].tolist() == [0.945]
    sentence = "Always predicting the most frequent class has an accuracy of 0.945"
    assert sentence in summary(frame)
    assert sentence not in summary(
        leaderboard(Results([with_constant(done(spec("fedavg"), accuracy=0.9), 0.6)]))
    )


def with_constant(record, constant):
    return replace(record, tested={"samples": 100, "constant": constant})
