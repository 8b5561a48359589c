"""What it took to reach a target, and tables by two settings, by hand."""

import csv
import math

import pandas as pd
import pytest

from harness.config.report import Pivot, ReportSpec, Target, read_target
from harness.core.errors import UserError
from harness.report.data.leaderboard import leaderboard
from harness.report.data.results import Results
from harness.report.html.page import write_report
from harness.report.tables.columns import narrow_columns
from harness.report.tables.pivot import grids_latex, grids_markdown, tabulate
from harness.report.tables.rows import Board
from tests.support.records import done, evaluation, private, spec, undone

NEAR = Target("stationarity", 0.1)
BY_K = Pivot("algorithm.local_steps", "algorithm.name")


def falling(algorithm, seed, values, **parts):
    """Return a run with these stationarities at rounds 0, 10, 20, ...; 1000 bytes up a round of ten."""
    rounds = [evaluation(10 * i, 1000 * i, stationarity=v) for i, v in enumerate(values)]
    return done(spec(algorithm, seed, **parts), *rounds)


def test_a_target_is_reached_at_the_first_good_evaluation():
    """Seed 0 at round 10 (0.1 is at most 0.1), seed 1 at round 20: 15 rounds in the mean, (3000 + 6000) / 2 bytes
    both ways, (5000 + 10000) / 2 calls. That seed 0 is worse again at round 20 does not matter."""
    records = [falling("fedavg", 0, (3.0, 0.1, 0.2)), falling("fedavg", 1, (3.0, 0.5, 0.05))]
    (row,) = leaderboard(Results(records), by="stationarity", target=NEAR).to_dict("records")
    assert (row["target"], row["reached"]) == ("stationarity <= 0.1", 2)
    assert (row["rounds_to_target"], row["bytes_to_target"], row["oracle_calls_to_target"]) == (
        15,
        4500,
        7500,
    )


def test_where_larger_is_better_the_target_is_a_least_value():
    run = done(spec(), *(evaluation(10 * i, accuracy=a) for i, a in enumerate((0.4, 0.7, 0.9))))
    (row,) = leaderboard(Results([run]), target=Target("accuracy", 0.7)).to_dict("records")
    assert (row["target"], row["rounds_to_target"]) == ("accuracy >= 0.7", 10)


@pytest.mark.parametrize(
    "other", [falling("fedavg", 1, (3.0, 0.2)), undone(spec("fedavg", 1), "failed", "diverged")]
)
def test_a_cell_of_which_a_seed_did_not_reach_it_has_no_figure(other):
    """The mean over those that did would flatter it; how many did is told."""
    frame = leaderboard(Results([falling("fedavg", 0, (3.0, 0.1)), other]), by="stationarity", target=NEAR)
    row = frame.iloc[0]
    assert row["reached"] == 1 and pd.isna(row["rounds_to_target"]) and pd.isna(row["bytes_to_target"])
    assert {c.heading: c.text(row) for c in narrow_columns(Board(frame))}["Reached"] == "1/2"


def test_without_a_target_there_is_nothing_to_reach():
    frame = leaderboard(Results([falling("fedavg", 0, (3.0, 0.1))]), by="stationarity")
    assert pd.isna(frame.iloc[0]["target"]) and "Reached" not in [
        c.heading for c in narrow_columns(Board(frame))
    ]
    assert frame.iloc[0]["oracle_calls"] == 5000


@pytest.mark.parametrize("given", [{"stationarity": 0.1}, "stationarity=0.1", {"stationarity": "1e-1"}])
def test_a_target_is_one_measure_and_its_value(given):
    assert read_target(given) == NEAR


@pytest.mark.parametrize("given", ["stationarity", {}, {"a": 1, "b": 2}, {"accuracy": "high"}])
def test_anything_else_is_no_target(given):
    with pytest.raises(UserError, match="one measure"):
        read_target(given)


def test_an_unknown_measure_of_a_target_names_the_nearest():
    with pytest.raises(UserError, match=r"'stationary'.*'stationarity'"):
        leaderboard(Results([]), target=Target("stationary", 0.1))


def grid_of_four():
    """FedAvg and Ditto with 1 and 5 local steps; FedAvg with two step sizes; two seeds."""
    table = {
        ("fedavg", 1, 0.1): 4.0,
        ("fedavg", 1, 0.5): 2.0,
        ("fedavg", 5, 0.1): 1.0,
        ("ditto", 1, 0.1): 8.0,
    }
    return [
        falling(name, seed, (10.0, value + seed), lr=lr, own={"local_steps": steps})
        for (name, steps, lr), value in table.items()
        for seed in (0, 1)
    ]


def test_a_pivot_shows_the_best_setting_of_every_place():
    """FedAvg with one step: of (4, 5) at lr 0.1 and (2, 3) at lr 0.5 the latter, 2.5 +- sqrt(1/2) = 0.707."""
    (grid,) = tabulate(Results(grid_of_four()), BY_K, by="stationarity")
    assert (grid.rows, grid.columns) == (("1", "5"), ("ditto", "fedavg"))
    assert grid.lines() == [("1", ["8.5 ± 0.707", "2.5 ± 0.707"]), ("5", ["", "1.5 ± 0.707"])]
    chosen = grid.places["1", "fedavg"]
    assert chosen.values == {0: 2.0, 1: 3.0} and "lr=0.5" in chosen.settings
    assert "best of up to 2 settings" in grid.note


def test_a_setting_of_which_a_seed_failed_is_not_the_best():
    """At lr 0.5 seed 0 is better than all at lr 0.1, and seed 1 diverged: shown is lr 0.1, (4 + 5) / 2. Where there
    is no other, the one seed of two is shown as such."""
    lost = [falling("fedavg", 0, (10.0, 1.0), lr=0.5, own={"local_steps": k}) for k in (1, 5)] + [
        undone(spec("fedavg", 1, lr=0.5, own={"local_steps": k}), "failed", "diverged") for k in (1, 5)
    ]
    whole = [falling("fedavg", seed, (10.0, 4.0 + seed), own={"local_steps": 1}) for seed in (0, 1)]
    (grid,) = tabulate(Results([*lost, *whole]), BY_K, by="stationarity")
    assert grid.lines() == [("1", ["4.5 ± 0.707"]), ("5", ["1 (1/2 seeds)"])]
    assert "lr=0.1" in grid.places["1", "fedavg"].settings


def test_rows_are_in_the_order_of_numbers():
    runs = [falling("fedavg", 0, (1.0,), own={"local_steps": k}) for k in (10, 9, 100)]
    (grid,) = tabulate(Results(runs), BY_K, by="stationarity")
    assert grid.rows == ("9", "10", "100")


def test_what_differs_besides_makes_tables_of_its_own():
    """Two problems, two tables; without algorithm.name among the settings one for each algorithm."""
    problems = [{"kind": "random_quadratic", "heterogeneity": h} for h in (0.0, 1.0)]
    runs = [falling(a, 0, (1.0,), problem=p) for a in ("fedavg", "ditto") for p in problems]
    grids = tabulate(Results(runs), BY_K, by="stationarity")
    assert len(grids) == 2 and "heterogeneity=1.0" in grids[1].title
    grids = tabulate(
        Results(runs), Pivot("problem.heterogeneity", "algorithm.local_steps"), by="stationarity"
    )
    assert [("ditto" in g.title, "fedavg" in g.title) for g in grids] == [(True, False), (False, True)]


def test_the_kind_of_a_section_stands_for_all_of_it():
    """The Erdos-Renyi graph has settings of its own and stands beside the ring all the same; who has no topology is
    in no table by topology."""
    networks = [{"kind": "ring"}, {"kind": "erdos-renyi", "p": 0.5}, None]
    runs = [falling("fedavg", 0, (1.0,), topology=network) for network in networks]
    (grid,) = tabulate(Results(runs), Pivot("topology.kind", "algorithm.name"), by="stationarity")
    assert grid.rows == ("erdos-renyi", "none", "ring")


def test_a_topology_stands_beside_the_algorithm():
    """So that methods with and without a server are in one table."""
    parts = [("gossip", {"kind": "ring"}), ("gossip", {"kind": "star"}), ("fedavg", None)]
    runs = [falling(a, 0, (1.0,), topology=t, own={"local_steps": k}) for a, t in parts for k in (1, 5)]
    (grid,) = tabulate(Results(runs), BY_K, by="stationarity")
    assert grid.columns == ("fedavg", "gossip (ring)", "gossip (star)")


def test_one_row_tables_are_left_out_beside_larger_ones():
    """Two problems with two rows and one with one; the titles name the heterogeneity, in which they differ."""
    runs = [
        falling(
            "fedavg", 0, (1.0,), problem={"kind": "q", "heterogeneity": h, "seed": 3}, own={"local_steps": k}
        )
        for h, k in ((0, 1), (0, 5), (1, 1), (1, 5), (2, 1))
    ]
    grids = tabulate(Results(runs), BY_K, by="stationarity")
    assert [grid.title for grid in grids] == [
        "Stationarity: adult, q, problem.heterogeneity=0",
        "Stationarity: adult, q, problem.heterogeneity=1",
    ]
    assert len(tabulate(Results(runs[-1:]), BY_K, by="stationarity")) == 1


def test_budgets_that_hardly_differ_have_columns_of_their_own():
    """Those equal to four digits were one column, which showed the better of them."""
    ways = [None, private(8.0), private(8.00001), private(2.5)]
    runs = [falling("fedavg", 0, (float(number),), privacy=way) for number, way in enumerate(ways)]
    (grid,) = tabulate(Results(runs), Pivot("algorithm.name", "privacy.epsilon"), by="stationarity")
    assert grid.columns == ("no privacy", "8.00001", "8", "2.5")
    assert grid.corner == "algorithm \\ ε"


def test_noise_that_no_budget_gives_is_not_called_no_privacy():
    noise = {name: value for name, value in private(2.0).items() if name != "epsilon"}
    ways = [{**noise, "noise_multiplier": 1.0}, private(2.0)]
    runs = [falling(name, 0, (1.0,), privacy=way) for name in ("fedavg", "ditto") for way in ways]
    (grid,) = tabulate(Results(runs), Pivot("algorithm.name", "privacy.epsilon"), by="stationarity")
    assert grid.columns == ("2",) and "2 cells of ditto, fedavg" in grid.note


def test_runs_without_a_budget_are_in_the_tables_of_every_way_to_protect():
    """Two clip norms make two tables; what has no privacy is in both, in a column of its own."""
    ways = [None, *({**private(budget), "clip": clip} for clip in (0.1, 1.0) for budget in (2.0, 8.0))]
    values = {"fedavg": 1.0, "ditto": 2.0}
    runs = [falling(name, 0, (values[name],), privacy=way) for name in values for way in ways]
    by_budget = Pivot("algorithm.name", "privacy.epsilon")
    grids = tabulate(Results(runs), by_budget, by="stationarity")
    assert [grid.columns for grid in grids] == [("no privacy", "8", "2")] * 2
    by_row = tabulate(Results(runs), Pivot("privacy.epsilon", "algorithm.name"), by="stationarity")
    assert [grid.rows for grid in by_row] == [("no privacy", "8", "2")] * 2
    assert [grid.lines()[0] for grid in grids] == [("ditto", ["2", "2", "2"])] * 2
    skipped = undone(spec("fedbio"), "skipped", "not for this")
    assert all(grid.places["fedbio", "no privacy"].text == "skipped" for grid in tabulate(
        Results([*runs, skipped]), by_budget, by="stationarity"))  # fmt: skip


def test_what_is_in_no_table_is_named():
    """FedAvg has no mu, so its rows are no part of a table by it; the table of q has one row beside larger ones."""
    runs = [
        falling("fedprox", 0, (1.0,), own={"mu": mu, "local_steps": k}) for mu in (0.1, 1) for k in (1, 5)
    ]
    pivot = Pivot("algorithm.mu", "algorithm.local_steps")
    (alone,) = tabulate(Results(runs), pivot, by="stationarity")
    assert "In no table" not in alone.note
    runs += [falling("fedavg", 0, (9.0,), own={"local_steps": k}) for k in (1, 5)]
    (grid,) = tabulate(Results(runs), pivot, by="stationarity")
    assert grid.lines() == alone.lines()
    assert grid.note.endswith("In no table of these settings, or alone in one: 2 cells of fedavg.")
    runs.append(falling("fedprox", 0, (1.0,), problem={"kind": "q"}, own={"mu": 0.1, "local_steps": 1}))
    (grid,) = tabulate(Results(runs), pivot, by="stationarity")
    assert grid.note.endswith("3 cells of fedavg, fedprox.")


def test_pivots_are_latex_too():
    text = grids_latex(tabulate(Results(grid_of_four()), BY_K, by="stationarity"))
    lines = text.splitlines()
    assert lines[0].startswith("% Stationarity") and r"\begin{tabular}{lrr}" in lines
    assert r"local\_steps \textbackslash{} algorithm & ditto & fedavg \\" in lines
    assert r"1 & 8.5 $\pm$ 0.707 & 2.5 $\pm$ 0.707 \\" in lines


def test_costs_to_a_target_say_where_it_was_not_reached():
    """0.1 is reached by FedAvg with five steps only, at round 10: 5000 calls."""
    runs = [falling("fedavg", 0, (3.0, last), own={"local_steps": k}) for k, last in ((1, 0.2), (5, 0.1))]
    runs.append(undone(spec("ditto", own={"local_steps": 5}), "failed", "diverged"))
    pivot = BY_K._replace(measure="oracle_calls_to_target")
    (grid,) = tabulate(Results(runs), pivot, by="stationarity", target=NEAR)
    assert grid.lines() == [("1", ["", "not reached"]), ("5", ["failed", "5 k"])]
    with pytest.raises(UserError, match="needs a target"):
        tabulate(Results(runs), pivot, by="stationarity")


@pytest.mark.parametrize(("measure", "tables"), [("rounds_to_target", 1), ("stationarity", 2)])
def test_runs_of_different_lengths_share_a_table_of_targets(measure, tables):
    """One reaches it at round 10 of 10, one at 20 of 20: how long a run went on does not matter for that."""
    runs = [falling("fedavg", 0, (3.0, 0.1), rounds=10, own={"local_steps": 1})]
    runs.append(falling("fedavg", 0, (3.0, 2.0, 0.1), rounds=20, eval_every=5, own={"local_steps": 5}))
    grids = tabulate(Results(runs), BY_K._replace(measure=measure), by="stationarity", target=NEAR)
    assert len(grids) == tables
    assert tables == 2 or grids[0].lines() == [("1", ["10"]), ("5", ["20"])]


def test_unknown_settings_of_a_pivot_name_the_nearest():
    runs = [falling("fedavg", 0, (1.0,))]
    with pytest.raises(UserError, match=r"'algorithm.local_step'.*'algorithm.local_steps'"):
        tabulate(Results(runs), BY_K._replace(rows="algorithm.local_step"), by="stationarity")
    with pytest.raises(UserError, match=r"'stationary'.*'stationarity'"):
        tabulate(Results(runs), BY_K._replace(measure="stationary"), by="accuracy")


@pytest.mark.slow
@pytest.mark.usefixtures("blank_pictures")
def test_a_report_replaces_the_pivots_of_an_earlier_one(tmp_path):
    look = ReportSpec(by="stationarity", target=NEAR, pivots=(BY_K,))
    written = write_report(Results(grid_of_four()), tmp_path, look)
    text = written["pivot.md"].read_text()
    assert "| 1 | 8.5 ± 0.707 | 2.5 ± 0.707 |" in text and text == grids_markdown(
        tabulate(Results(grid_of_four()), BY_K, "stationarity")
    )
    with written["pivot.csv"].open(newline="") as file:
        values = {(r["row"], r["column"], r["seed"]): float(r["value"]) for r in csv.DictReader(file)}
    assert values["1", "fedavg", "1"] == 3.0 and len(values) == 6
    assert "2.5 ± 0.707" in written["index.html"].read_text()
    assert "pivot.md" not in write_report(Results(grid_of_four()), tmp_path)
    assert not (tmp_path / "pivot.md").exists() and not (tmp_path / "pivot.csv").exists()


def test_the_spectral_gap_is_a_mean_over_seeds():
    """Random graphs differ by seed: 0.25 and 0.75."""
    runs = [falling("fedavg", seed, (1.0,)) for seed in (0, 1, 2)]
    for run, gap in zip(runs, (0.25, 0.75), strict=False):
        run.final["mixing"] = {"p": gap}
    assert leaderboard(Results(runs), by="stationarity").iloc[0]["spectral_gap"] == 0.5
    alone = leaderboard(Results(runs[2:]), by="stationarity").iloc[0]["spectral_gap"]
    assert math.isnan(alone)
