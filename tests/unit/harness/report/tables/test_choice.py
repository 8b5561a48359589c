"""Columns that a user names, and what is printed in bold."""

from dataclasses import replace

import pytest

from harness.core.errors import UserError
from harness.report.data.best import best_of
from harness.report.data.leaderboard import leaderboard
from harness.report.data.results import Results
from harness.report.tables.named_columns import column_names, columns_named
from harness.report.tables.rows import Board
from harness.report.tables.write import latex_text, markdown_text
from harness.storage.files import output_text
from tests.support.records import done, evaluation, private, spec


def board(**asked):
    """FedAvg with two seeds and a budget of 8, of which 7.9999 are used."""
    runs = [
        done(spec(seed=seed, privacy=private(8.0)), evaluation(20, 1000, 7.9999, accuracy=0.9 + seed / 50))
        for seed in (0, 1)
    ]
    return leaderboard(Results(runs), **asked)


def shown(frame, *given):
    """Return heading -> text of the first row."""
    row = frame.to_dict("records")[0]
    return {one.column.heading: one.column.text(row) for one in columns_named(Board(frame), given)}


def test_a_measure_is_its_mean_and_spread_in_one_cell():
    """0.90 and 0.92: mean 0.91, deviation 0.02 / sqrt(2)."""
    (one,) = columns_named(Board(board()), ["accuracy"])
    assert one.names == ("accuracy_mean", "accuracy_std")
    assert shown(board(), "accuracy") == {"Accuracy": "0.9100 ± 0.0141"}
    assert shown(board(), "accuracy_mean") == {"Accuracy mean": "0.9100"}


def test_short_names_stand_for_what_people_call_it():
    texts = shown(board(), "algorithm", "epsilon", "dp", "bytes", "runs", "model")
    assert texts == {
        "Algorithm": "fedavg", "ε total": "8", "DP": "client/local", "Bytes": "3 kB", "Runs": "2/2",
        "Model": "logistic",
    }  # fmt: skip


@pytest.mark.parametrize("worst", ["worst_client", "worst_client_std"])
def test_columns_without_a_value_are_empty_not_missing(worst):
    assert list(shown(board(), worst, "paired_p").values()) == ["", ""]


@pytest.mark.parametrize(("given", "near"), [("accuracies", "accuracy"), ("epsilon_totl", "epsilon_total")])
def test_an_unknown_column_names_the_nearest(given, near):
    with pytest.raises(UserError, match=f"Did you mean '{near}'"):
        columns_named(Board(board()), ["algorithm", given])


def test_every_listed_name_can_be_chosen():
    frame = board(baseline="fedavg")
    listed = column_names(frame)
    assert len(columns_named(Board(frame), listed)) == len(listed) and listed["epsilon"]
    assert {"accuracy", "accuracy_mean", "difference", "paired_p_holm"} <= set(listed)
    (difference,) = columns_named(Board(frame), ["difference"])  # a table of few seeds has the half
    assert {"paired_low", "paired_ci95"} <= set(difference.names)
    assert all(isinstance(text, str) for text in shown(frame, *listed).values())


def rivals(seeds, **values):
    """Runs of algorithms with accuracies of 0.5 + VALUE and a common spread."""
    return [
        done(spec(name, seed, **parts), accuracy=0.5 + value + 0.01 * seed)
        for name, (value, parts) in values.items()
        for seed in range(seeds)
    ]


def bold(records):
    found = Results(records)
    algorithm = {cell.key: cell.algorithm for cell in found.cells}
    return {algorithm[key] for key, _ in best_of(found.cells, ["accuracy"])}


@pytest.mark.parametrize(("seeds", "best"), [(6, {"scaffold"}), (10, {"scaffold"}), (2, {"scaffold"})])
def test_the_best_alone_is_bold_where_it_is_certain(seeds, best):
    """With 6 seeds p is 1/32 for a difference of one sign; with 2 it is 1/2, which decides nothing."""
    assert bold(rivals(seeds, fedavg=(0.1, {}), scaffold=(0.2, {}))) == best


def test_what_seeds_cannot_tell_from_the_best_is_bold_too():
    """Seed by seed fedprox is better and worse in turn; fedavg always loses."""
    runs = rivals(8, fedavg=(0.0, {}), scaffold=(0.2, {}))
    turns = [done(spec("fedprox", s), accuracy=0.7 + 0.01 * s + 0.02 * (-1) ** s - 0.001) for s in range(8)]
    assert bold(runs + turns) == {"scaffold", "fedprox"}


def test_budgets_and_purposes_are_no_rivals():
    """Ditto ends with a model for each client; fedprox under privacy has another budget than its rivals."""
    protected = {"privacy": private(2.0)}
    runs = rivals(6, fedavg=(0.1, {}), scaffold=(0.2, {}), ditto=(0.4, {}), fedprox=(0.0, protected))
    assert bold(runs) == {"scaffold"}


def gap(name, seed, eqopp, worst):
    """A run with a gap between groups; it predicts one class if it hits nothing of the other."""
    metrics = {"eqopp": eqopp, "worst_class": worst, "balanced_accuracy": (1 + worst) / 2}
    return done(spec(name, seed), accuracy=0.7, **metrics)


def test_the_gap_of_a_model_that_predicts_one_class_is_no_best():
    """FedAvg decides the same for all in one of two seeds: its gap of 0 there says nothing."""
    runs = [gap("fedavg", 0, 0.0, 0.0), gap("fedavg", 1, 0.01, 0.2)]
    runs += [gap(name, seed, value, 0.4) for name, value in (("scaffold", 0.1), ("ditto", 0.2), ("fedprox", 0.3))
             for seed in (0, 1)]  # fmt: skip
    found = Results(runs)
    algorithm = {cell.key: cell.algorithm for cell in found.cells}
    assert {algorithm[key] for key, _ in best_of(found.cells, ["eqopp"])} == {"scaffold"}
    rows = leaderboard(found, by="eqopp").set_index("algorithm")
    assert rows["rank"].dropna().to_dict() == {"scaffold": 1, "ditto": 2, "fedprox": 3}
    assert rows["pareto"].isna()["fedavg"] and "predicts one class" in rows.loc["fedavg", "unranked"]
    assert rows.loc["fedavg", "eqopp_mean"] == 0.005


def plugged(records, name, **meta):
    """The records with those of one algorithm as if a plugin had brought it."""
    versions = {"algorithm": 1, "plugins": {"algorithm": "3a"}}
    return [
        replace(one, versions=versions, meta=meta) if one.spec["algorithm"]["name"] == name else one
        for one in records
    ]


def test_an_algorithm_of_a_plugin_has_rivals():
    """What it is for was recorded with the run, as a reader need not load the plugin."""
    runs = rivals(6, fedavg=(0.1, {}), mine=(0.2, {}), ditto=(0.4, {}))
    assert bold(plugged(runs, "mine", family="centralized", pooled=False)) == {"mine"}
    assert bold(plugged(runs, "mine", family="personalized", pooled=False)) == {"ditto"}
    assert bold(plugged(runs, "mine")) == set()  # of an earlier version: nobody knows


def test_what_is_registered_counts_before_what_a_record_says():
    """A record may come from others; it counts for an algorithm that is not here, as of another version."""
    runs = rivals(6, fedavg=(0.1, {}), scaffold=(0.2, {}), ditto=(0.4, {}))
    said = [replace(one, meta={"family": "centralized", "pooled": False}) for one in runs]
    assert bold(said) == bold(runs) == {"scaffold"}
    assert bold([*said, *(replace(one, meta=said[0].meta) for one in rivals(6, gone=(0.3, {})))]) == {"gone"}


def test_bold_and_chosen_columns_reach_markdown_and_latex(tmp_path):
    results = Results(rivals(6, fedavg=(0.1, {}), k_gt=(0.2, {})))
    frame = leaderboard(results)
    columns = [one.column for one in columns_named(Board(frame), ["algorithm", "accuracy"])]
    best = best_of(results.cells, ["accuracy"])
    output_text(tmp_path / "a.md", markdown_text(Board(frame), columns, best))
    output_text(tmp_path / "a.tex", latex_text(Board(frame), columns, best))
    lines = (tmp_path / "a.md").read_text().splitlines()
    assert lines[2:6] == [
        "| Algorithm | Accuracy |",
        "| :--- | ---: |",
        "| k_gt | **0.7250 ± 0.0187** |",
        "| fedavg | 0.6250 ± 0.0187 |",
    ]
    assert any("Bold: the best mean" in line for line in lines)
    text = (tmp_path / "a.tex").read_text()
    assert r"k\_gt & \textbf{0.7250 $\pm$ 0.0187} \\" in text and r"fedavg & 0.6250 $\pm$ 0.0187 \\" in text
    assert r"\begin{tabular}{lr}" in text and "% Bold:" in text


def test_a_rule_parts_the_tasks_of_a_latex_table(tmp_path):
    data = [{"name": name} for name in ("adult", "german")]
    results = Results([done(spec(data=one), accuracy=0.5) for one in data])
    output_text(tmp_path / "a.tex", latex_text(Board(leaderboard(results))))
    lines = (tmp_path / "a.tex").read_text().splitlines()
    assert [line.startswith(r"\midrule") for line in lines].count(True) == 2
    between = next(i for i, line in enumerate(lines) if "adult" in line and i > 2) + 1
    assert lines[between] == r"\midrule" and "german" in lines[between + 1]
