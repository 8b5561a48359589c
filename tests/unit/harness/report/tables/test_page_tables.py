"""What the page says of epsilon, of clients, and in which order its columns stand."""

import math

import pytest

from harness.report.data.leaderboard import leaderboard
from harness.report.data.results import Results
from harness.report.html.table import table_of
from harness.report.tables import clients
from harness.report.tables.clients import by_client
from harness.report.tables.pivot import Grid, Place
from harness.report.tables.privacy import meaning
from harness.report.tables.rows import Board, board_of
from tests.support.records import done, evaluation, partition, private, spec, undone


def ran(algorithm="fedavg", seed=0, epsilon=None, accuracy=0.5, **parts):
    """Return a finished run; with an epsilon, one under privacy."""
    line = evaluation(20, epsilon=epsilon, accuracy=accuracy)
    return done(spec(algorithm, seed, privacy=private(epsilon) if epsilon else None, **parts), line)


def test_epsilon_is_explained_by_what_an_attacker_may_gain():
    """(1 + d e^-E) / (1 + e^-E): 0.7311 at epsilon 1, 0.8808 at 2, 0.9997 at 8."""
    text = meaning(leaderboard(Results([ran(epsilon=e) for e in (8, 1, 2)] + [ran()])))
    assert text.count(". ") == 1, "two sentences"
    assert "about one client with all its data" in text
    assert "at most 73.11 % at ε 1, 88.08 % at ε 2 and 99.97 % at ε 8 (delta 1e-05)" in text
    for epsilon, percent in ((1, "73.11"), (2, "88.08"), (8, "99.97")):
        assert f"{100 / (1 + math.exp(-epsilon)):.2f}" == percent


def test_epsilons_that_bound_nothing_are_not_explained():
    """No privacy, an infinite epsilon, none spent, and the noise of a larger federation."""
    assert meaning(leaderboard(Results([ran()]))) == ""
    endless, silent, larger = ran(epsilon=4), ran("ditto", epsilon=2), ran("apfl", epsilon=3)
    endless.rounds[-1]["privacy"]["epsilon_total"] = "inf"
    silent.rounds[-1]["privacy"]["epsilon_total"] = 0.0
    larger.spec["privacy"]["noise_cohort"] = 1000
    assert meaning(leaderboard(Results([endless, silent, larger]))) == ""
    assert meaning(leaderboard(Results([]))) == ""


def test_of_many_epsilons_a_few_are_explained():
    text = meaning(leaderboard(Results([ran(epsilon=float(e)) for e in range(1, 12)])))
    assert text.count("% at ε") <= 4 and "at ε 1," in text and "at ε 11 " in text


def named(record, **columns):
    """Give a run results of Rome and Oslo."""
    usual = {
        "n": [40, 6],
        "positives": [20, 0],
        "accuracy": [0.9, 0.5],
        "auroc": [0.95, None],
        "loss": [0.2, 0.7],
    }
    record.final["by_client"] = {"client": ["Rome", "Oslo"], **usual, **columns}
    return record


def table(runs):
    results = Results(runs)
    return by_client(results, board_of(results))


def test_clients_have_means_over_seeds_and_their_fewest_samples():
    """Accuracies of Rome .9 and .7; Oslo has 6 and 9 test samples, and both classes in one seed only."""
    second = named(ran(seed=1), n=[40, 9], accuracy=[0.7, 0.6], auroc=[0.85, 0.5])
    found = table([named(ran()), second])
    rome, oslo = found.rows
    assert (rome.client, rome.n, rome.fewest) == ("Rome", "40", 40)
    assert rome.means == {name: pytest.approx(x) for name, x in
                            (("accuracy", 0.8), ("auroc", 0.9), ("loss", 0.2))}  # fmt: skip
    assert (oslo.n, oslo.fewest, oslo.means["auroc"]) == ("6 to 9", 6, 0.5)
    assert (found.left, found.private, found.several) == (0, False, False)


def test_clients_are_told_for_the_best_setting_of_each_budget():
    runs = [
        named(ran(accuracy=0.8, lr=0.1)),
        named(ran(accuracy=0.9, lr=0.2), accuracy=[0.99, 0.5]),
        named(ran(epsilon=8.0, accuracy=0.7)),
        ran("scaffold", accuracy=0.95),
    ]
    found = table(runs)
    assert [(row.client, row.epsilon_text) for row in found.rows] == [
        ("Rome", ""), ("Rome", "8"), ("Oslo", ""), ("Oslo", "8"),
    ], "a hospital looks for itself first"  # fmt: skip
    assert found.rows[0].means["accuracy"] == 0.99 and found.private


def test_clients_are_told_what_protection_changes_under_every_method():
    """Rome loses ten points and Oslo gains ten under Ditto; of fedavg there is no run without privacy."""
    runs = [
        named(ran("ditto", accuracy=0.9)),
        named(ran("ditto", epsilon=8.0, accuracy=0.8), accuracy=[0.8, 0.6]),
        named(ran("fedavg", epsilon=8.0, accuracy=0.7)),
    ]
    found = table(runs)
    changes = {(row.client, row.algorithm, row.epsilon_text): row.change_text for row in found.rows}
    assert changes["Rome", "ditto", "8"] == "-10.0" and changes["Oslo", "ditto", "8"] == "+10.0"
    assert set(changes.values()) == {"-10.0", "+10.0", ""} and found.changed == "accuracy"
    assert table(runs[:1]).changed == ""


def test_beyond_the_limit_the_worst_methods_of_each_task_go(monkeypatch):
    """Room for three of four methods with two clients each: the second of one task is left out."""
    monkeypatch.setattr(clients, "MOST", 6)
    runs = [
        named(ran(name, accuracy=accuracy, partition=partition(alpha)))
        for alpha in (0.3, 5.0)
        for name, accuracy in (("fedavg", 0.8), ("ditto", 0.7))
    ]
    found = table(runs)
    assert (len(found.rows), found.left) == (6, 2)
    assert sum(row.algorithm == "fedavg" for row in found.rows) == 4


def test_there_is_no_table_without_names():
    assert table([ran(), undone(spec(seed=1), "failed", "no")]).rows == []


def test_results_come_first_and_what_seldom_tells_rows_apart_last():
    runs = [ran("fedavg", epsilon=8.0), ran("ditto", rounds=30), ran("local")]
    for run in runs:
        run.rounds[-1]["metrics"] |= {"auroc": 0.7, "loss": 0.1}
    (task,) = table_of(Board(leaderboard(Results(runs), "auroc", "local"))).tables
    heads = [column["heading"] for column in task.columns]
    assert heads[:5] == ["#", "Algorithm", "ε total", "AUROC", "Δ auroc"]
    assert heads.index("Accuracy") < heads.index("Up") < heads.index("Rounds")
    pinned = {column["heading"]: column["pinned"] for column in task.columns if column["pinned"]}
    assert pinned == {"Algorithm": 1, "ε total": 2, "AUROC": 3}


def test_every_task_has_a_table_with_a_heading_and_the_columns_that_vary_in_it():
    """Runs of one task differ in their rounds, those of the other do not; tasks differ in their partition."""
    runs = [
        ran(),
        ran("ditto", rounds=30),
        *(ran(name, partition=partition(5.0)) for name in ("fedavg", "ditto")),
    ]
    tables = table_of(Board(leaderboard(Results(runs)))).tables
    heads = {table.title: {column["heading"] for column in table.columns} for table in tables}
    assert sorted(heads) == ["adult · dirichlet(alpha=0.3)", "adult · dirichlet(alpha=5.0)"]
    assert "Rounds" in heads["adult · dirichlet(alpha=0.3)"]
    assert "Rounds" not in heads["adult · dirichlet(alpha=5.0)"]
    assert not any("Partition" in columns for columns in heads.values()), "the heading says it"
    assert [len(table.rows) for table in tables] == [2, 2]


def test_names_say_more_where_they_and_epsilon_do_not_tell_rows_apart():
    runs = [ran(lr=0.1), ran(lr=0.2), ran("ditto", lr=0.3), ran(epsilon=8.0, lr=0.1)]
    (task,) = table_of(Board(leaderboard(Results(runs)))).tables
    named = sorted(
        (field.text, field.also) for row in task.rows for field in row["values"] if field.pinned == 1
    )
    assert named == [("ditto", ""), ("fedavg", ""), ("fedavg", "lr=0.1"), ("fedavg", "lr=0.2")]
    assert "Variant" not in {column["heading"] for column in task.columns}


def test_names_say_the_model_where_that_tells_rows_apart():
    """What else differs, as a search chose it, is in the provenance."""
    runs = [
        done(spec("fedavg", model={"name": name}, lr=lr)) for name, lr in (("logistic", 0.1), ("mlp", 0.3))
    ]
    (task,) = table_of(Board(leaderboard(Results(runs)))).tables
    assert {field.also for row in task.rows for field in row["values"] if field.pinned == 1} == {
        "logistic",
        "mlp",
    }


def test_columns_of_words_are_told_from_those_of_numbers():
    texts = {("a", "who"): "fedavg, ditto", ("b", "who"): "", ("a", "far"): "317 kB", ("b", "far"): "none"}
    places = {key: Place(text, {}, "") for key, text in texts.items()}
    assert Grid("", "", "", ("a", "b"), ("who", "far", "nothing"), places).worded() == [True, False, False]


def test_filters_have_the_names_that_conditions_have():
    """What `leaderboard --where` takes, the page takes."""
    from harness.config.conditions import read_conditions

    frame = leaderboard(Results([ran(epsilon=8.0), ran("ditto")]))
    names = table_of(Board(frame)).names
    assert {"accuracy", "epsilon", "bytes_up", "bytes_relative"} <= set(names)
    read_conditions([f"{name} <= 1" for name in names], list(frame.columns))
