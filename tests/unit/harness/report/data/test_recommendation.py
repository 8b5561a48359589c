"""Bounds: how they are written, what satisfies them, and which one excludes the rest."""

import json
import math

import pytest
import yaml

from harness.cli.parser import main
from harness.config.conditions import Condition, read_conditions
from harness.core.errors import UserError
from harness.report.data.columns import LEADERBOARD
from harness.report.data.evidence import Evidence
from harness.report.data.leaderboard import leaderboard
from harness.report.data.recommendation import recommend
from harness.report.data.results import Results
from harness.report.tables.rated_rows import readable_rows, recommendation_rows
from harness.report.tables.recommendation import notes, sentences, warnings
from harness.report.tables.write import summary
from tests.support.records import done, evaluation, private, spec, undone


def run(name, seed, accuracy, size=1000, epsilon=None, worst=0.5):
    parts = {"privacy": None if epsilon is None else private(epsilon)}
    return done(
        spec(name, seed, **parts), evaluation(20, size, epsilon, accuracy=accuracy, worst_client=worst)
    )


RUNS = [
    *(run("fedavg", seed, 0.9 + seed / 100) for seed in range(4)),
    *(run("fedavg", seed, 0.80 + seed / 100, epsilon=8.0) for seed in range(4)),
    *(run("ditto", seed, 0.7 + seed / 100, epsilon=2.0) for seed in range(4)),
    *(run("apfl", seed, 0.71, size=100, epsilon=2.0) for seed in range(4)),
]


def answer(*texts, runs=RUNS, by="accuracy"):
    results = Results(runs)
    frame = leaderboard(results, by)
    return recommend(Evidence(frame, by, results.cells), read_conditions(texts, frame.columns))


def names(*texts):
    return [one.algorithm for one in answer(*texts).rows]


def said(found):
    return [*sentences(found), *notes(found)]


@pytest.mark.parametrize(
    ("text", "condition"),
    [
        ("epsilon_total <= 2", Condition("epsilon_total", "<=", 2.0)),
        ("auroc>=.8", Condition("auroc", ">=", 0.8)),
        (" algorithm == fedavg ", Condition("algorithm", "==", "fedavg")),
        ("dataset = 'adult'", Condition("dataset", "=", "adult")),
        ("bytes < 1e6", Condition("bytes", "<", 1e6)),
        ("beta != 0", Condition("beta", "!=", 0.0)),
    ],
)
def test_bounds_are_read(text, condition):
    assert read_conditions([text], LEADERBOARD) == [condition]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("epsilon_totl <= 2", "Did you mean 'epsilon_total'"),
        ("accuracy", "a name, one of <=, >=, ==, !=, <, >, =, and a value"),
        ("accuracy <= ", "and a value"),
        ("<= 2", "and a value"),
        ("accuracy <= much", "<= needs a number"),
        ("accuracy <= nan", "a number is needed"),
        ("accuracy => 2", "and a value"),
    ],
)
def test_what_is_no_bound_is_refused(text, said):
    with pytest.raises(UserError) as refused:
        read_conditions([text], LEADERBOARD)
    assert said in str(refused.value)


def test_no_privacy_is_no_small_epsilon():
    assert not Condition("epsilon_total", "<=", 1e9).holds(None)
    assert Condition("epsilon_total", ">", 8.0).holds(math.nan)
    assert not Condition("eqopp_low", "<=", 1.0).holds(None)


def test_what_is_within_all_bounds_the_surest_first():
    """Apfl is above .705 in all seeds, ditto (.70 to .73) in three of four; fedavg at 8 is too loose."""
    assert names("epsilon_total <= 2", "accuracy >= 0.705") == ["apfl", "ditto"]
    found = answer("epsilon_total <= 2", "accuracy >= 0.705")
    assert [(one.within, one.seeds) for one in found.rows] == [(4, 4), (3, 4)]
    low, high = found.rows[1].interval
    assert (low, high) == pytest.approx((0.1941, 0.9937), abs=1e-4)  # Clopper and Pearson, 3 of 4
    assert found.rows[0].interval == pytest.approx((0.3976, 1.0), abs=1e-4)
    text = " ".join(said(found))
    assert "2 of 4 rows are within epsilon_total <= 2 and accuracy >= 0.705" in text
    assert "On adult (20 clients), take apfl" in text
    assert "ditto is better by 0.5 points, but only 3 of 4 seeds are within the bounds" in text
    shown = readable_rows(found)
    assert [row["within bounds"] for row in shown] == ["4 of 4", "3 of 4"]
    assert shown[0]["protection"] == "ε = 2"
    (best, _) = recommendation_rows(found)
    assert (best["within_low"], best["within_high"]) == found.rows[0].interval and best["within_counted"]


def test_texts_and_relative_bytes_are_bounds_too():
    assert names("algorithm == ditto") == ["ditto"]
    assert names("bytes_relative <= 0.1") == ["apfl"]
    assert names("algorithm != fedavg", "epsilon <= 2") == ["ditto", "apfl"]


def test_the_bound_that_excludes_everything_is_named_with_the_nearest_miss():
    found = answer("epsilon_total <= 2", "accuracy >= 0.8")
    assert not found.rows
    said = sentences(found)
    assert said[0] == "None of 4 rows is within epsilon_total <= 2 and accuracy >= 0.8."
    # Ditto's mean is .715; without the bound on epsilon, fedavg at 8.
    assert (
        "accuracy >= 0.8 excludes all that is within the other bounds: ditto on adult (ε = 2) comes nearest, "
        in (said[1])
    )
    assert said[1].endswith("with 0.715.")
    assert "epsilon_total <= 2 excludes" in said[2] and said[2].endswith("with 8.")


def test_two_bounds_that_exclude_everything_together_and_alone():
    found = answer("epsilon_total <= 1", "accuracy >= 0.99")
    assert not found.obstacles
    assert "No single bound does it" in sentences(found)[-1]


def test_a_failed_seed_is_within_no_bound():
    """Ditto fails under three of four seeds: one of four, not one of one."""
    runs = [run("ditto", 0, 0.9), *(undone(spec("ditto", seed), "failed", "diverged") for seed in (1, 2, 3))]
    runs += [run("apfl", seed, 0.8 + 0.1 * (seed > 0)) for seed in range(4)]
    found = answer("accuracy >= 0.85", runs=runs)
    assert [(one.algorithm, one.within, one.seeds) for one in found.rows] == [
        ("apfl", 3, 4),
        ("ditto", 1, 4),
    ]


def test_what_sends_nothing_is_not_praised_for_it():
    alone = [done(spec("local", seed), evaluation(20, 0, accuracy=0.95)) for seed in range(4)]
    found = answer("bytes_relative <= 0.5", "accuracy >= 0.9", runs=[*RUNS, *alone])
    assert [one.algorithm for one in found.rows] == ["local"]
    assert "local: every client learns alone" in said(found)[-1]


@pytest.mark.slow
def test_commands(tmp_path, capsys):
    content = {
        "base": {
            "data": "breast-cancer",
            "partition": {"kind": "iid", "clients": 3},
            "model": "logistic",
            "rounds": 2,
        },
        "sweep": {"algorithm": ["fedavg", "local"], "compression.beta": [0, 0.9], "seed": [0, 1]},
    }
    (tmp_path / "few.yaml").write_text(yaml.safe_dump(content))
    out = str(tmp_path / "out")
    assert main(["suite", str(tmp_path / "few.yaml"), "--out", out, "--jobs", "1"]) == 0
    capsys.readouterr()
    assert (
        main(["recommend", out, "--where", "bytes_relative <= 0.9", "--where", "accuracy > 0.5", "--json"])
        == 0
    )
    found = json.loads(capsys.readouterr().out)["found"]
    assert {row["algorithm"] for row in found} == {"fedavg", "local"}
    assert main(["recommend", out, "--where", "accuracy > 2"]) == 1
    assert "None of 4 rows is within accuracy > 2" in capsys.readouterr().out
    for command in (["recommend", out], ["recommend", out, "--where", "acuuracy > 0"]):
        assert main(command) == 2
    capsys.readouterr()
    table = tmp_path / "t.csv"
    chosen = ["--columns", "algorithm,beta,bytes_relative", "--csv", str(table)]
    assert main(["leaderboard", out, "--where", "algorithm == fedavg", "--where", "beta > 0", *chosen]) == 0
    lines = table.read_text().splitlines()
    assert lines[0] == "algorithm,beta,bytes_relative"
    assert [line.split(",")[:2] for line in lines[1:]] == [["fedavg", "0.9"]]
    assert main(["leaderboard", out, "--columns", "algorithn"]) == 2
    assert "Did you mean 'algorithm'" in capsys.readouterr().err
    latex = tmp_path / "t.tex"
    chosen = ["--columns", "algorithm,accuracy,epsilon", "--bold-best", "--latex", str(latex)]
    assert main(["leaderboard", out, "--where", "beta == 0", *chosen]) == 0
    text = latex.read_text()
    assert r"Algorithm & Accuracy & $\varepsilon$ total \\" in text and text.count("fedavg &") == 1
    assert main(["leaderboard", out, "--bold-best"]) == 2
    assert "--markdown or --latex" in capsys.readouterr().err
    assert main(["leaderboard", out, "--columns", "help"]) == 0
    assert "bytes_relative" in capsys.readouterr().out
    assert main(["leaderboard", "--columns", "help"]) == 0
    assert "procedure_low" in capsys.readouterr().out
    assert main(["leaderboard"]) == 2
    assert "the results folder DIR is missing" in capsys.readouterr().err


def test_extrapolated_epsilons_are_marked_as_in_tables():
    parts = {"privacy": {**private(2.0), "noise_cohort": 1000}}
    wide = [done(spec("fedavg", seed, **parts), evaluation(20, 100, 2.0, accuracy=0.95)) for seed in range(4)]
    found = answer("epsilon <= 4", runs=[*RUNS, *wide])
    shown = [row["protection"] for row in readable_rows(found)]
    assert [text for text in shown if "1,000" in text or "†" in text] == [
        "ε = 2†, extrapolated to cohorts of 1,000"
    ]
    assert sum(text == "ε = 2" for text in shown) == 2
    (note,) = (text for text in said(found) if text.startswith("†"))
    assert "cohorts of up to 1,000 clients" in note
    assert note in summary(leaderboard(Results([*RUNS, *wide])))
    assert "under ε = 2† for a client" in said(found)[1]
    missed = answer("epsilon <= 1", "accuracy >= 0.9", runs=wide)
    assert any("with 2†." in text for text in said(missed))


def test_no_note_without_an_extrapolated_epsilon():
    assert not any("†" in text for text in said(answer("epsilon <= 4")))


def both_ways(name, seed, accuracy, data="adult", **options):
    part = {"name": data, "path": None, "label": None, "sensitive": None, "options": {}}
    privacy = private(options.pop("epsilon")) if "epsilon" in options else None
    line = evaluation(20, options.pop("size", 1000), privacy and privacy["epsilon"], accuracy=accuracy)
    return done(spec(name, seed, privacy=privacy, data=part, **options), line)


def ten(name, accuracy, spread=0.01, **options):
    """Return ten runs whose values go up and down by as much as `spread`, all by the same seeds."""
    return [both_ways(name, seed, accuracy + spread * (seed % 2 - 0.5), **options) for seed in range(10)]


def test_the_answer_names_setting_value_interval_next_best_and_what_is_as_good():
    """Seeds move all methods alike, so paired differences are exact: ditto is .01 below, scaffold as good."""
    runs = [*ten("fedavg", 0.80, epsilon=2.0), *ten("ditto", 0.79, epsilon=2.0)]
    runs += [*ten("scaffold", 0.80, 0.012, epsilon=2.0, size=100), *ten("fedprox", 0.85)]
    found = answer("epsilon_total <= 2", runs=runs)
    text = " ".join(sentences(found))
    assert "take fedavg (logistic) with lr" not in text  # its step size is the default
    assert "take fedavg (logistic) with local_steps 10, rounds 20, clip 10: accuracy 0.800 [0.79" in text
    assert "is expected (95 % interval over 10 seeds), under ε = 2 for a client (local noise)" in text
    assert "The next best, scaffold, costs 0.0 points (" in text
    assert (
        "fedavg cannot be told apart from scaffold; of these, scaffold sends least: 300 B in place of 3 kB"
        in text
    )
    assert "without privacy the best reaches 0.850" in text.lower()
    assert [row["told apart"] for row in readable_rows(found)] == ["", "no", "yes"]
    rows = {row["algorithm"]: row for row in recommendation_rows(found)}
    assert rows["ditto"]["loss"] == pytest.approx(0.01) and rows["ditto"]["loss_paired"]
    assert rows["ditto"]["told_apart"] and not rows["scaffold"]["told_apart"]


def test_models_of_each_client_are_no_model_for_everybody():
    runs = [*ten("ditto", 0.8, epsilon=2.0), *ten("fedavg", 0.7, epsilon=2.0)]
    text = " ".join(sentences(answer("epsilon <= 2", runs=runs)))
    assert "with one model for everybody the best is fedavg, with 0.700" in text
    alone = answer("epsilon <= 2", "model_for == everybody", runs=runs)
    assert [row.algorithm for row in alone.rows] == ["fedavg"]


def test_an_answer_that_lone_clients_beat_says_so_first():
    """No federated method is near what clients reach alone, where nothing is told to anybody."""
    runs = [*ten("fedavg", 0.6, epsilon=2.0), *ten("local", 0.7, size=0)]
    text = sentences(answer("epsilon <= 2", runs=runs))
    assert "clients alone, with nothing sent, reach accuracy 0.700: better by 10.0 points than all" in text[0]
    assert text[1].startswith("Of those methods, take fedavg")
    text = sentences(answer("epsilon <= 2", "model_for == everybody", runs=runs))
    assert not any("clients alone" in one for one in text)  # they have no model for everybody
    runs = [*ten("fedavg", 0.7, epsilon=2.0), *ten("local", 0.7, 0.011, size=0)]
    text = sentences(answer("epsilon <= 2", runs=runs))
    assert text[0].startswith("On adult") and "which cannot be told apart" in text[-1]


def test_lone_clients_are_told_of_once():
    """Under a budget they have rows of their own, with ε 0."""
    runs = [*ten("ditto", 0.7, epsilon=2.0), *ten("local", 0.7, 0.011, size=0, epsilon=2.0)]
    text = sentences(answer("epsilon <= 2", runs=runs))
    assert sum("clients alone" in one.lower() for one in text) == 1
    assert "No other method that sends anything is within the bounds; ditto stands alone." in text
    noisy = [
        *ten("ditto", 0.7, epsilon=2.0),
        *ten("local", 0.7, 0.011, size=0),
        *ten("local", 0.6, size=0, epsilon=2.0),
    ]
    found = answer("epsilon <= 2", runs=noisy)  # their samples' noise is needless, as they send nothing
    assert [row.algorithm for row in found.rows] == ["ditto"]
    assert sum("clients alone" in one.lower() for one in sentences(found)) == 1


def test_shares_end_at_one():
    runs = [*ten("fedavg", 0.99, 0.2), *ten("ditto", 0.5)]
    found = answer("accuracy >= 0.1", runs=runs)
    assert "accuracy 0.990 [0.915, 1.000]" in sentences(found)[0]


def test_pooled_data_are_a_yardstick_and_no_answer():
    runs = [*ten("centralized", 0.9, size=0), *ten("fedavg", 0.8)]
    found = answer("accuracy >= 0.5", runs=runs)
    assert [row.algorithm for row in found.rows] == ["fedavg"]
    assert "Pooled data give 0.900" in sentences(found)[-1]


def test_of_several_federations_the_answer_is_what_holds_on_most():
    runs = [*ten("fedavg", 0.8, epsilon=2.0), *ten("ditto", 0.7, epsilon=2.0)]
    runs += [*ten("fedavg", 0.6, data="german", epsilon=2.0), *ten("ditto", 0.65, data="german", epsilon=2.0)]
    runs += ten("fedavg", 0.9, data="heart", epsilon=8.0)
    found = answer("epsilon <= 2", runs=runs)
    text = " ".join(sentences(found))
    assert "No method is first, or not told apart from the first, on two federations" in text
    assert "Nothing is within the bounds on heart (20 clients)" in text
    assert "Not every federation was run at ε 2: the smallest budget that was run is 8 on heart" in text
    assert [(row["federation"], row["method"], row["costs (points)"]) for row in readable_rows(found)] == [
        ("adult", "fedavg", ""),
        ("adult", "ditto", "10.0"),
        ("german", "ditto", ""),
        ("german", "fedavg", "5.0"),
    ]
    one = answer("epsilon <= 2", "dataset == german", runs=runs)
    assert "On german (20 clients), take ditto" in sentences(one)[0]
    assert "heart" not in " ".join(said(one)) and one.considered == 2


def test_bytes_of_bounds_have_units():
    (bound,) = read_conditions(["bytes <= 1500000"], LEADERBOARD)
    missed = said(recommend(Evidence(leaderboard(Results(RUNS)), "accuracy"), [bound._replace(value=10.0)]))
    assert missed[0] == "None of 4 rows is within bytes <= 10 B."


def test_costs_rank_without_intervals():
    """Published bytes have no deviation and are exact: 300 bytes are 2,700 fewer than 3,000."""
    frame = leaderboard(Results([*ten("fedavg", 0.8), *ten("ditto", 0.8, size=100)]), "bytes")
    for cells in ([], Results([*ten("fedavg", 0.8), *ten("ditto", 0.8, size=100)]).cells):
        found = recommend(Evidence(frame, "bytes", cells), read_conditions(["accuracy >= 0.5"], LEADERBOARD))
        text = " ".join(sentences(found))
        assert "take ditto" in text and "The next best, fedavg, costs 2.7 kB" in text
        assert "every other method can be told apart from ditto" in text


def test_one_method_under_another_name_is_a_control_and_no_answer():
    """FedNova takes as many steps at every client as FedAvg, is ahead of it by luck, and is not recommended."""
    runs = [
        *ten("fedavg", 0.80, epsilon=2.0),
        *ten("fednova", 0.803, epsilon=2.0),
        *ten("ditto", 0.7, epsilon=2.0),
    ]
    found = answer("epsilon <= 2", runs=runs)
    assert [row.algorithm for row in found.rows] == ["fedavg", "ditto"]
    assert "fedavg and fednova, one method here, differ by 0.3 points" in " ".join(sentences(found))
    assert [row.algorithm for row in answer("epsilon <= 2", runs=runs[10:]).rows] == ["fednova", "ditto"]


def test_a_control_has_the_compression_of_its_own_row():
    """Messages with and without error feedback are two settings, and FedNova is a control of one of them."""
    plain, fed_back = (
        {"alpha": 0.0, "beta": 0.9, "error_feedback": feedback, "codec": "float32"}
        for feedback in (False, True)
    )
    runs = [
        *ten("fedavg", 0.79, epsilon=2.0, compression=plain),
        *ten("fedavg", 0.80, epsilon=2.0, compression=fed_back),
        *ten("fednova", 0.803, epsilon=2.0, compression=fed_back),
        *ten("ditto", 0.7, epsilon=2.0),
    ]
    found = answer("epsilon <= 2", runs=runs)
    assert [row.algorithm for row in found.rows] == ["fedavg", "fedavg", "ditto"]
    text = " ".join(sentences(found))
    assert "fedavg and fednova, one method here, differ by 0.3 points" in text
    assert "90 % of message entries dropped, error feedback" in text
    assert readable_rows(found)[0]["method"] == "fedavg, beta 0.9, error feedback"


def test_warnings_say_whom_the_measure_favors_and_what_epsilon_does_not_cover():
    def by_auroc(name, auroc):
        return [
            done(spec(name, seed), evaluation(20, 100, None, accuracy=auroc, auroc=auroc)) for seed in (0, 1)
        ]

    mixed = answer("bytes <= 1e9", runs=[*by_auroc("fedavg", 0.7), *by_auroc("ditto", 0.8)], by="auroc")
    common = answer("bytes <= 1e9", runs=by_auroc("fedavg", 0.7), by="auroc")
    assert "share of positives" in " ".join(warnings(mixed)) and not warnings(common)
    beside_lone = answer("bytes <= 1e9", runs=[*by_auroc("fedavg", 0.7), *by_auroc("local", 0.8)], by="auroc")
    assert "share of positives" in " ".join(warnings(beside_lone))
    private = both_ways("ditto", 0, 0.8, epsilon=2.0)
    assert private.spec["privacy"]["unit"] == "client"
    assert warnings(answer("epsilon <= 2", runs=[private])) == [
        "Epsilon covers what the server releases; models of a client's own are trained without noise."
    ]
