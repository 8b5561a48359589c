"""After a grid search: which setting a seed chooses, and what is said of the chosen ones."""

import math
from dataclasses import replace

import pytest
from scipy.stats import t as student

from harness.config.report import Choice, Published, ReportSpec, read_choice
from harness.core.errors import UserError
from harness.metrics import better_is_higher
from harness.report.data.results import Results
from harness.report.html.page import write_report
from harness.report.tables.model_selection import choose as choose_run
from harness.report.tables.model_selection import chosen_tables
from harness.report.tables.text import words
from tests.support.records import done, evaluation, spec, undone

BY_GAP = Choice("selection_eqopp", ("selection_accuracy", 0.02), ("accuracy", "eqopp"))


def run(algorithm="fedavg", seed=0, lr=0.1, chosen=(0.8, 0.1), tested=(0.8, 0.1), groups=(), **parts):
    """Return a run with (accuracy, gap) on selection and on test samples."""
    figures = {"selection_accuracy": chosen[0], "selection_eqopp": chosen[1]}
    figures |= {"accuracy": tested[0], "eqopp": tested[1]}
    record = done(spec(algorithm, seed, lr=lr, **parts), evaluation(10, **figures))
    record.final["groups"] = list(groups)
    return record


def choose(records, choice):
    found = choose_run(Results(records).runs, choice)
    return found and found.record


def rate(group, n, positives, tpr):
    return {"group": group, "n": n, "positives": positives, "tpr": tpr}


def test_the_smallest_gap_wins_at_nearly_the_best_accuracy():
    """.80, .785 and .70 with gaps .10, .05 and 0: the last, which predicts nothing, is not near enough."""
    rivals = [
        run(lr=1.0, chosen=(0.80, 0.10)),
        run(lr=0.1, chosen=(0.785, 0.05)),
        run(lr=0.001, chosen=(0.70, 0.0)),
    ]
    assert choose(rivals, BY_GAP) is rivals[1]
    assert choose(rivals, replace(BY_GAP, near=("selection_accuracy", 0.0))) is rivals[0]
    assert choose(rivals, replace(BY_GAP, near=None)) is rivals[2]
    assert choose(rivals, Choice("selection_accuracy")) is rivals[0]


def test_figures_of_test_samples_have_no_say():
    """However good a setting is on test samples, the one better on selection samples is chosen."""
    good, lucky = (
        run(lr=1.0, chosen=(0.8, 0.1), tested=(0.5, 0.9)),
        run(chosen=(0.8, 0.2), tested=(0.99, 0.0)),
    )
    assert choose([good, lucky], BY_GAP) is good


def test_runs_that_failed_or_lack_the_figures_are_not_chosen():
    bare = done(spec(lr=0.3), evaluation(10, accuracy=0.9))
    kept = run(lr=1.0)
    assert choose([undone(spec(lr=0.2), "failed", "diverged"), bare, kept], BY_GAP) is kept
    assert choose([bare], BY_GAP) is None


def test_every_seed_chooses_and_differences_are_paired():
    """FedAvg chooses lr 1 and .1: accuracies .80 and .84. FedReg's are .81 and .83: differences .01 and -.01.

    Their standard deviation is .01 sqrt(2), so half the interval is t_1(.975) .01 sqrt(2) / sqrt(2).
    """
    records = [
        run(seed=0, lr=1.0, chosen=(0.8, 0.1), tested=(0.80, 0.1)),
        run(seed=0, lr=0.1, chosen=(0.8, 0.2), tested=(0.90, 0.1)),
        run(seed=1, lr=1.0, chosen=(0.8, 0.2), tested=(0.90, 0.1)),
        run(seed=1, lr=0.1, chosen=(0.8, 0.1), tested=(0.84, 0.1)),
        run("fedreg", 0, tested=(0.81, 0.3)),
        run("fedreg", 1, tested=(0.83, 0.1)),
    ]
    (grid,) = chosen_tables(Results(records), BY_GAP, "fedavg")
    assert grid.rows == ("fedavg", "fedreg")
    assert grid.columns == ("Accuracy", "Δ Accuracy", "EqOpp gap", "Δ EqOpp gap", "Chosen", "Seeds")
    assert grid.places["fedavg", "Accuracy"].values == {0: 0.80, 1: 0.84}
    assert grid.places["fedavg", "Accuracy"].text == "0.8200 ± 0.0283"
    half = student.ppf(0.975, 1) * 0.01 * math.sqrt(2) / math.sqrt(2)
    found = grid.places["fedreg", "Δ Accuracy"]
    assert found.values == pytest.approx({0: 0.01, 1: -0.01})
    assert found.text == f"0.0000 ± {half:.4f}"
    assert grid.places["fedreg", "Δ EqOpp gap"].values == pytest.approx({0: 0.2, 1: 0.0})
    assert ("fedavg", "Δ Accuracy") not in grid.places
    assert grid.places["fedavg", "Chosen"].text == "lr=0.1 (1); lr=1.0 (1)"
    assert grid.places["fedreg", "Chosen"].text == "the only one"


def test_measures_of_other_samples_are_called_by_their_samples():
    measures = ("train_eqopp", "selection_accuracy", "worst_node_accuracy", "eqopp", "worst_client")
    assert [words(m) for m in measures] == [
        "Train EqOpp gap",
        "Selection accuracy",
        "Worst node accuracy",
        "EqOpp gap",
        "Worst client",
    ]
    assert all(better_is_higher(m) == (m != "train_eqopp") for m in measures if m != "eqopp")


def test_a_table_has_one_data_set_and_one_partition():
    records = [
        run(),
        run("fedbio", problem={"kind": "fair_weights"}, rounds=80),
        run(data={"name": "adult", "sensitive": "race"}),
    ]
    grids = chosen_tables(Results(records), BY_GAP, "fedavg")
    assert sorted(grid.rows for grid in grids) == [("fedavg",), ("fedavg", "fedbio")]
    assert {grid.title for grid in grids} == {
        "Chosen settings: adult",
        "Chosen settings: adult, data.sensitive=race",
    }


def test_a_paper_s_figures_stand_beside_ours_where_they_belong():
    paper = Published({"data.name": "adult", "data.sensitive": "race"}, {"fedavg": (".8239 ± .0167", ".042")})
    records = [run(), run(data={"name": "adult", "sensitive": "race"})]
    other, grid = chosen_tables(Results(records), replace(BY_GAP, published=(paper,)))
    assert "Accuracy, paper" not in other.columns
    assert grid.columns[:4] == ("Accuracy", "Accuracy, paper", "EqOpp gap", "EqOpp gap, paper")
    assert grid.places["fedavg", "EqOpp gap, paper"].text == ".042"


def test_rates_of_groups_are_those_of_the_chosen_runs():
    """Sizes are means over seeds; a group without positives has no rate."""
    records = [
        run(seed=0, groups=[rate("a", 100, 20, 0.5), rate("b", 10, 0, None)]),
        run(seed=1, groups=[rate("a", 100, 30, 0.7), rate("b", 10, 2, 0.5)]),
        run(seed=0, lr=9.0, chosen=(0.8, 0.9), groups=[rate("a", 100, 20, 0.0), rate("b", 10, 0, None)]),
    ]
    _, grid = chosen_tables(Results(records), BY_GAP)
    assert grid.columns == ("a (100, 25 positive)", "b (10, 1 positive)")
    assert grid.places["fedavg", "a (100, 25 positive)"].values == {0: 0.5, 1: 0.7}
    assert grid.places["fedavg", "b (10, 1 positive)"].text == "0.5000"


def test_what_a_file_says_of_the_choice_is_read():
    given = {
        "by": "selection_eqopp",
        "near": {"selection_accuracy": 0.02},
        "show": ["accuracy"],
        "published": [{"where": {"data.name": "adult"}, "values": {"fedavg": [0.8239]}}],
    }
    expected = Published({"data.name": "adult"}, {"fedavg": ("0.8239",)})
    near = ("selection_accuracy", 0.02)
    assert read_choice(given) == Choice("selection_eqopp", near, ("accuracy",), (expected,))
    assert read_choice(None) is None


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"by": "selection_eqop"}, "unknown measure of report.select 'selection_eqop'"),
        ({"measure": "eqopp"}, "unknown setting of report.select 'measure'"),
        ({"by": "eqopp", "near": {"accuracy": -1}}, "report.select.near"),
        ({"by": "eqopp", "near": {"accuracy": 1, "loss": 1}}, "report.select.near"),
        ({"by": "eqopp", "published": [{"values": {"fedavg": [1, 2]}}]}, "one value for each measure"),
    ],
)
def test_a_choice_that_cannot_be_meant_is_refused(given, message):
    with pytest.raises(UserError, match=message):
        read_choice(given)


@pytest.mark.slow
def test_a_report_holds_the_tables_and_the_further_pictures(tmp_path):
    curve = [evaluation(10 * i, 1000 * (i + 1), outer_loss=1 / (i + 1)) for i in range(3)]
    records = [run(), done(spec("fedbio", problem={"kind": "fair_weights"}), *curve)]
    look = ReportSpec(by="accuracy", choice=BY_GAP, curves=(("outer_loss", "round"), ("outer_loss", "bytes")))
    written = write_report(Results(records), tmp_path, look)
    pictures = {f"outer_loss-{against}{end}" for against in ("round", "bytes") for end in (".png", ".svg")}
    assert {"chosen.md", "chosen.csv"} | pictures <= set(written)
    assert "Chosen settings" in written["chosen.md"].read_text()
    assert "Chosen settings" in written["index.html"].read_text()
    write_report(Results(records), tmp_path, ReportSpec())
    assert not (tmp_path / "chosen.md").exists()
