"""What the report writes: CSV, Markdown, LaTeX, terminal, pictures and the page."""

import base64
import csv
import gzip
import io
import re
import xml.etree.ElementTree
from dataclasses import replace
from html.parser import HTMLParser

import numpy as np
import pandas as pd
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from matplotlib.backends.backend_agg import RendererAgg
from rich.console import Console

from harness.config.report import Target
from harness.core.units import size
from harness.report.data.identity import cell_key
from harness.report.data.leaderboard import leaderboard
from harness.report.data.results import Results
from harness.report.data.specs import LONGEST_VALUE
from harness.report.html.page import write_page, write_report
from harness.report.plots.budgets import _all_lines, accuracy_against_epsilon
from harness.report.plots.curves import draw_curves
from harness.report.plots.figure import panels_of
from harness.report.plots.frontier import accuracy_against_bytes
from harness.report.plots.overview import overview
from harness.report.tables.columns import narrow_columns
from harness.report.tables.rows import Board, board_of
from harness.report.tables.write import DESCRIPTIONS, csv_text, latex_text, markdown_text, print_table
from harness.storage.files import output_text
from tests.support.records import (
    SOURCE,
    diagnosed,
    done,
    evaluation,
    partition,
    private,
    pruned,
    spec,
    undone,
)
from tests.support.written import texts_in

ATTACK = "<script>alert('hello')</script>"


def curve(algorithm, seed=0, epsilon=None, scale=1.0, **parts):
    """Return a finished run whose accuracy climbs, with three evaluations."""
    parts |= {"privacy": None if epsilon is None else private(epsilon)}
    rounds = [
        evaluation(
            r, int(r * 1000 * scale), epsilon and epsilon * (r + 1) / 21, accuracy=0.5 + r / 50 + seed / 100
        )
        for r in (0, 10, 20)
    ]
    return done(spec(algorithm, seed, **parts), *rounds)


@pytest.fixture
def records():
    """Two algorithms with two seeds, one of them also under DP and pruning; a failure, a skip, a hole."""
    found = [curve(name, seed) for name in ("fedavg", "ditto") for seed in (0, 1)]
    found += [curve("ditto", seed, 8.0, 0.1, compression=pruned(0.9)) for seed in (0, 1)]
    found.append(undone(spec("fedavg", 2), "failed", f"loss is NaN {ATTACK}"))
    found.append(undone(spec("fedbio", privacy=private(8.0)), "skipped", "needs groups | and pipes"))
    found.append(undone(spec("scaffold"), "missing"))
    return found


def read(path):
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


# --- tables ----------------------------------------------------------------------------------------------


def test_the_csv_reads_back_as_the_same_table(records, tmp_path):
    frame = leaderboard(Results(records), baseline="fedavg")
    output_text(tmp_path / "a.csv", csv_text(frame))
    back = read(tmp_path / "a.csv")
    assert list(back[0]) == list(frame.columns)
    for here, there in zip(frame.to_dict("records"), back, strict=True):
        for name, value in here.items():
            if pd.isna(value):
                assert there[name] == "", name
            elif isinstance(value, (str, bool)):
                assert there[name] == str(value), name
            else:
                assert float(there[name]) == value, name


def test_whole_numbers_in_the_csv_have_no_decimal_point(records, tmp_path):
    """Of bytes 1000 and 1001 the mean is a fraction in one row; the other row stays whole beside it."""
    records = [done(spec(seed=s), evaluation(20, 1000 + s, accuracy=0.5)) for s in (0, 1)]
    records.append(done(spec("ditto"), evaluation(20, 7, accuracy=0.4)))
    output_text(tmp_path / "a.csv", csv_text(leaderboard(Results(records))))
    rows = read(tmp_path / "a.csv")
    assert [row["bytes_up"] for row in rows] == ["1000.5", "7"]
    assert [(row["rank"], row["seeds"], row["eqopp_mean"]) for row in rows] == [
        ("1", "2", ""),
        ("2", "1", ""),
    ]


def test_markdown_states_source_profile_seeds_and_spread(records, tmp_path):
    output_text(tmp_path / "a.md", markdown_text(Board(leaderboard(Results(records)))))
    text = (tmp_path / "a.md").read_text()
    head = text.splitlines()[0]
    for part in (
        SOURCE,
        "smoke profile",
        "1 to 3 seeds",
        "sample standard deviation",
        "dirichlet(alpha=0.3)",
    ):
        assert part in head
    table = [line for line in text.splitlines() if line.startswith("|")]
    assert len({len(re.findall(r"(?<!\\)\|", line)) for line in table}) == 1
    assert len(table) == 2 + 5 and "<script>" not in text
    assert "fedavg: loss is NaN" in text and "2/3, 1 failed" in text


def test_latex_escapes_what_latex_would_read(tmp_path):
    results = Results([curve("k_gt_minimax"), curve("fedavg", scale=2)])
    output_text(tmp_path / "a.tex", latex_text(board_of(results)))
    text = (tmp_path / "a.tex").read_text()
    assert r"k\_gt\_minimax" in text and text.count(r"\\") == 3
    assert all(
        line.count(" & ") == text.splitlines()[3].count(" & ") for line in text.splitlines() if "&" in line
    )


@pytest.mark.parametrize("width", [60, 80, 200])
def test_the_terminal_table_fits_and_tells_what_it_leaves_out(records, width):
    console = Console(file=io.StringIO(), width=width)
    print_table(Board(leaderboard(Results(records))), console)
    text = console.file.getvalue()
    assert all(len(line) <= width for line in text.splitlines())
    assert "fedavg" in text and "0.9050" in text and "loss is NaN" in text
    assert ("Omitted" in text) == (width < 200)


@pytest.mark.parametrize(
    ("by", "heading"),
    [
        ("accuracy", "Accuracy"),
        ("worst_client", "Worst"),
        ("auroc", "AUROC"),
        ("eqopp", "EqOpp gap"),
        ("bytes", "Down"),
        ("flops", "Work"),
        ("oracle_calls", "Calls"),
        ("seconds", "Seconds"),
        ("epsilon", "ε total"),
    ],
)
def test_a_narrow_table_keeps_what_ranks_and_what_protects(by, heading):
    """Two data sets, so that settings take the room."""
    every = {"accuracy": 0.9, "worst_client": 0.8, "eqopp": 0.1, "auroc": 0.7}
    records = [
        done(spec(name, privacy=private(budget), data={"name": data}), epsilon=budget, **every)
        for name in ("decentralized_local_sgda", "fedavg")
        for budget in (2.0, 8.0)
        for data in ("adult", "german")
    ]
    console = Console(file=io.StringIO(), width=70)
    print_table(Board(leaderboard(Results(records), by)), console)
    text = console.file.getvalue()
    table, said = text.split("Omitted for lack of width")
    assert all(name in table for name in (heading, "ε total", "DP", "client/local"))
    assert "Pareto" in said


def test_a_narrow_table_keeps_the_difference_to_the_baseline():
    """It is what was asked for; other measures make room for it."""
    records = [
        done(spec(name, seed=seed), accuracy=0.8 + seed / 100, worst_client=0.7, auroc=0.9 + seed / 100)
        for name in ("fedavg", "scaffold")
        for seed in range(3)
    ]
    console = Console(file=io.StringIO(), width=80)
    print_table(Board(leaderboard(Results(records), "auroc", baseline="fedavg")), console)
    table, said = console.file.getvalue().split("Omitted for lack of width")
    assert "Δ" in table and "Worst" in said


TELLING = {
    "Noise": lambda n: {"noise_multiplier": 1.0 + n},
    "Neighbors": lambda n: {"sampling": ("none", "poisson", "fixed")[n]},
    "ε total": lambda n: {"epsilon_total": 1.0 + n},
}


@pytest.mark.parametrize("heading", [*TELLING, "Rounds", "Model", "Dataset", "Variant"])
@pytest.mark.parametrize("width", [40, 80])
def test_a_narrow_table_keeps_what_tells_rows_from_each_other(heading, width):
    """Without such a column they would look like repetitions of each other; figures do not say which is which."""
    records = []
    for n in range(3):
        parts = {
            "Rounds": {"rounds": 20 + n},
            "Model": {"model": {"name": f"mlp{n}"}},
            "Dataset": {"data": {"name": f"d{n}"}},
            "Variant": {"own": {"lr": 0.1 + n}},
        }.get(heading, {})
        line = evaluation(20, epsilon=2.0, accuracy=0.8 + n / 100, worst_client=0.5, auroc=0.9)
        line["privacy"] |= TELLING.get(heading, lambda n: {})(n)
        asked = {"privacy": private(2.0) | ({"noise_multiplier": n} if heading in TELLING else {})}
        records.append(done(spec("decentralized_local_sgda", **asked, **parts), line))
    frame = leaderboard(Results(records))
    console = Console(file=io.StringIO(), width=width)
    print_table(Board(frame), console)
    table, _, said = console.file.getvalue().partition("Omitted for lack of width: ")
    omitted = " ".join(said.split()).split(".")[0].split(", ")
    kept = [
        one
        for one in narrow_columns(Board(frame))
        if one.heading in DESCRIPTIONS and one.heading not in omitted
    ]
    assert len({tuple(one.text(row) for one in kept) for row in Board(frame).rows}) == 3
    assert all(len(line) <= width for line in table.splitlines() if "│" in line)


def test_a_narrow_table_keeps_differences_without_their_intervals():
    """The column was left out at 80 characters, and the sentence below it explained its marks."""
    records = [
        done(spec(name, seed, privacy=private(2.0)), epsilon=2.0, accuracy=0.7 + gain + seed**2 / 99)
        for name, gain in (("fedavg", 0.0), ("scaffold", 0.05))
        for seed in range(5)
    ]
    frame = leaderboard(Results(records), "accuracy", baseline="fedavg")
    wide, narrow = (Console(file=io.StringIO(), width=width) for width in (300, 76))
    for console in (wide, narrow):
        print_table(Board(frame), console)
    assert "+0.0500 [+0.0500" in wide.file.getvalue()
    table, _, omitted = narrow.file.getvalue().partition("Omitted for lack of width: ")
    assert "Δ accuracy" in table and "+0.0500" in table and "[" not in table.partition("└")[0]
    assert "intervals of Δ accuracy" in " ".join(omitted.split())


def test_a_narrow_table_with_a_target_breaks_no_cell():
    """The costs up to a target took the room: at 80 characters means and names were folded."""
    records = [
        done(spec(name, seed, privacy=budget), epsilon=8.0, accuracy=0.9, auroc=0.7)
        for name in ("scaffold", "fedavg")
        for budget in (None, private(8.0))
        for seed in range(3)
    ]
    frame = leaderboard(Results(records), "accuracy", target=Target("accuracy", 0.5))
    console = Console(file=io.StringIO(), width=80)
    print_table(Board(frame), console)
    text = console.file.getvalue()
    assert all(word in text for word in ("Reached", "Accuracy", "fedavg", "0.9000 ± 0.0000"))
    width = int(text.partition("COLUMNS=")[2].split()[0])
    console = Console(file=io.StringIO(), width=width)
    print_table(Board(frame), console)
    assert "Omitted" not in console.file.getvalue() and "Calls to" in console.file.getvalue()


def test_columns_in_which_all_rows_agree_are_left_out_first():
    frame = leaderboard(
        Results(
            [
                done(spec(name, data={"name": data}), accuracy=accuracy, auroc=0.9, eqopp=gap)
                for name, accuracy, gap in (("fedavg", 0.9, 0.1), ("fedprox", 0.8, 0.2))
                for data in ("adult", "german")
            ]
        )
    )
    console = Console(file=io.StringIO(), width=66)
    print_table(Board(frame), console)
    table, _, said = console.file.getvalue().partition("Omitted for lack of width")
    assert "EqOpp gap" in table and "AUROC" in said


def test_a_terminal_gets_the_best_rows_of_every_task(monkeypatch):
    monkeypatch.setattr("harness.report.tables.write.MOST_ROWS", 4)
    tasks = {"adult": 3, "german": 2}
    frame = leaderboard(
        Results(
            [
                done(spec("fedavg", own={"lr": 0.1 * n}, data=data), accuracy=0.1 * n)
                for data, most in tasks.items()
                for n in range(1, most + 1)
            ]
        )
    )
    console = Console(file=io.StringIO(), width=300)
    print_table(Board(frame), console)
    text = console.file.getvalue()
    shown = [line for line in text.splitlines() if "lr=" in line]
    assert len(shown) == 4 and "Rows left out: 1." in text
    assert "lr=0.1" in text.split("german")[1] and "lr=0.1" not in text.split("german")[0]


def test_variants_say_just_what_tells_rows_apart():
    """Fedsgda_m's own alpha must not be taken for the pruning ratio of the same name."""
    frame = leaderboard(
        Results(
            [
                done(spec("fedavg"), accuracy=0.5),
                done(spec("fedavg", privacy=private(8.0)), evaluation(20, epsilon=7.96, accuracy=0.4)),
                undone(spec("fedavg", privacy=private(1.0)), "missing"),
                done(spec("fedsgda_m", own={"alpha": 0.1}), accuracy=0.5),
                done(spec("fedsgda_m", own={"alpha": 0.9}), accuracy=0.4),
                done(spec("ditto"), accuracy=0.3),
            ]
        )
    )
    names = Board(frame).variants()
    texts = {(row["algorithm"], names[row["cell"]]) for _, row in frame.iterrows()}
    assert texts == {
        ("fedavg", "no DP"),
        ("fedavg", "ε=7.96"),
        ("fedavg", "ε=(1)"),
        ("fedsgda_m", "alpha=0.1"),
        ("fedsgda_m", "alpha=0.9"),
        ("ditto", ""),
    }


@pytest.mark.parametrize(
    ("count", "text"), [(0, "0 B"), (999, "999 B"), (1000, "1 kB"), (4_912_345, "4.91 MB")]
)
def test_sizes_have_units(count, text):
    assert size(count) == text


# --- pictures --------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_equal_records_give_equal_pictures(records, tmp_path):
    first, second = (draw_curves(Results(records), tmp_path / name) for name in "ab")
    for one, other in zip(first, second, strict=True):
        assert one.read_bytes() == other.read_bytes()
    assert first[0].read_bytes().startswith(b"\x89PNG")
    xml.etree.ElementTree.fromstring(first[1].read_text())


@pytest.mark.usefixtures("vectors_only")
def test_curves_name_every_line_and_the_measure(records, tmp_path):
    texts = texts_in(draw_curves(Results(records), tmp_path / "a")[1])
    assert {"Accuracy", "round", "fedavg", "ditto no DP dropped=0", "ditto ε=8 dropped=0.9"} <= set(texts)


@pytest.mark.usefixtures("vectors_only")
def test_a_file_with_dollars_in_its_name_is_no_formula(tmp_path):
    r"""Between dollars matplotlib reads mathematics: \frac{ without its end would end the report."""
    files = [{"name": "csv", "path": f"in/{name}$.csv", "label": "y"} for name in (r"a$\frac{", "b")]
    runs = [curve(name, data=data) for data in files for name in ("fedavg", "ditto")]
    titles = [panel.title for panel in panels_of(Results(runs), "accuracy")]
    assert len(titles) == 2 and any(r"\$\frac{\$.csv" in title for title in titles)
    assert r"a$\frac{$.csv · classify" in " ".join(
        texts_in(draw_curves(Results(runs), tmp_path / "curves")[1])
    )


@pytest.mark.usefixtures("vectors_only")
def test_runs_that_differ_in_one_section_alone_share_a_panel(tmp_path):
    """Two lengths, two ratios each: two panels that say how long; the fifth run differs from none in that alone."""
    rising = {"alpha": [[0, 0.2], [10, [0.4, 0.6]]], "beta": 0.0, "codec": "float32"}
    runs = [
        curve("lvfl", rounds=rounds, compression=compression)
        for rounds in (20, 30)
        for compression in (rising, pruned(0.5))
    ]
    runs.append(curve("splitnn", rounds=40, compression=pruned(0.0)))
    texts = texts_in(draw_curves(Results(runs), tmp_path / "a", along="compression")[1])
    assert {"lvfl pruned=0.2@0,0.4/0.6@10 dropped=0.0", "lvfl pruned=0.0 dropped=0.5"} <= set(texts)
    assert {"rounds=20", "rounds=30"} <= {word for text in texts for word in text.split()}
    assert not any("splitnn" in text or "rounds=40" in text for text in texts)
    assert texts.count("Accuracy") == 2
    assert texts_in(draw_curves(Results(runs), tmp_path / "b")[1]).count("Accuracy") == 1


@pytest.mark.usefixtures("vectors_only")
def test_costs_show_a_line_per_epsilon_where_budgets_differ(records, tmp_path):
    texts = texts_in(accuracy_against_bytes(Results(records), tmp_path / "a")[1])
    assert {"fedavg, no DP", "ditto, no DP", "ditto, ε = 8", "bytes of the run, both ways"} <= set(texts)


@pytest.mark.usefixtures("vectors_only")
def test_every_algorithm_has_a_cost_panel_with_the_same_lines(tmp_path):
    """Three algorithms at three budgets are nine lines: too many for one panel, three panels of three."""
    runs = [
        curve(name, epsilon=epsilon, scale=scale, compression=pruned(scale))
        for name in ("fedavg", "ditto", "scaffold")
        for epsilon in (None, 8.0, 2.0)
        for scale in (0.1, 0.9)
    ]
    texts = texts_in(accuracy_against_bytes(Results(runs), tmp_path / "a")[1])
    assert {"fedavg: adult · classify", "ditto: adult · classify", "scaffold: adult · classify"} <= set(texts)
    assert [text for text in texts if text in ("no DP", "ε = 8", "ε = 2")] == ["no DP", "ε = 8", "ε = 2"]


@pytest.mark.usefixtures("vectors_only")
def test_an_algorithm_looks_the_same_in_every_panel(tmp_path):
    """Nine settings of one task cut all panels; in the second, where ditto is first, fedavg keeps its blue."""
    runs = [done(spec(lr=lr / 10), evaluation(10, accuracy=lr / 10)) for lr in range(1, 10)]
    runs += [
        done(spec(name, partition=partition(5.0)), evaluation(10, accuracy=value))
        for name, value in (("ditto", 0.8), ("fedavg", 0.7))
    ]
    svg = draw_curves(Results(runs), tmp_path / "a")[1].read_text()
    assert texts_in(tmp_path / "a.svg").count("fedavg") == 1  # and "fedavg lr=0.9" below the other panel
    marks = re.findall(r'<use [^>]*style="fill: (#\w+); stroke: #ffffff', svg)
    assert marks.count("#0072b2") == 2 * marks.count("#d55e00") > 0


def test_variants_leave_out_what_says_no_more_than_the_rest(tmp_path):
    """Error feedback goes with dropping here, so it tells nothing that the ratio does not."""
    feedback = [pruned(beta) | {"error_feedback": beta > 0} for beta in (0.0, 0.9)]
    frame = leaderboard(Results([done(spec(compression=part), accuracy=0.5) for part in feedback]))
    assert set(Board(frame).variants().values()) == {"dropped=0", "dropped=0.9"}
    assert set(Board(frame).variants(beside=("beta",)).values()) == {""}


@pytest.mark.usefixtures("vectors_only")
def test_costs_are_draw_curves_where_budgets_agree(tmp_path):
    """A run that never communicates has no place on a logarithmic axis: it is a level line in the legend."""
    runs = [curve("fedavg"), curve("local", scale=0)]
    texts = texts_in(accuracy_against_bytes(Results(runs), tmp_path / "a")[1])
    assert {"bytes sent so far, both ways", "fedavg", "local"} <= set(texts)


@pytest.mark.usefixtures("vectors_only")
def test_stationarity_or_loss_is_drawn_if_there_is_no_accuracy(tmp_path):
    quadratic = {"data": None, "partition": None, "model": None, "problem": {"kind": "quadratic_minimax"}}
    both = done(spec("sagda", **quadratic), evaluation(10, stationarity=0.1, loss=3.0))
    assert "Stationarity" in texts_in(draw_curves(Results([both]), tmp_path / "a")[1])
    loss = done(spec("sagda", **quadratic), evaluation(10, loss=3.0))
    assert "Loss" in texts_in(draw_curves(Results([loss]), tmp_path / "b")[1])


def asked(algorithm, epsilon, accuracy, seed=0, **parts):
    """One run that asked for a nominal epsilon; none: for no privacy."""
    privacy = None if epsilon is None else {**private(1.0), "epsilon": None, "epsilon_nominal": epsilon}
    return done(spec(algorithm, seed, privacy=privacy, **parts), accuracy=accuracy)


@pytest.mark.usefixtures("vectors_only")
def test_the_cost_of_privacy_is_a_line_over_the_asked_budgets(tmp_path):
    """A run without a budget is the right end; one that has no other budget is a level line."""
    runs = [asked("fedavg", e, 0.5 + 0.1 * i, s) for i, e in enumerate((1, 10, 1000)) for s in (0, 1)]
    runs += [asked("fedavg", None, 0.9), asked("local", None, 0.8)]
    texts = texts_in(accuracy_against_epsilon(Results(runs), tmp_path / "a")[1])
    assert {"fedavg", "local", "1", "10", "1000", "none"} <= set(texts)
    assert "ε asked for (nominal); what it amounts to is in the table" in texts


@pytest.mark.usefixtures("vectors_only")
def test_ways_to_protect_are_lines_of_their_own_which_end_without_privacy(tmp_path):
    runs = [asked("fedavg", None, 0.9)]
    for epsilon, accuracy in ((1, 0.5), (8, 0.7)):
        runs += [asked("fedavg", epsilon, accuracy), asked("fedavg", epsilon, accuracy + 0.1)]
        runs[-1].spec["privacy"] |= {"mechanism": "banded"}
    (panel,) = panels_of(Results(runs), "accuracy")
    lines = _all_lines(panel)
    assert [len(cells) for cells in lines.values()] == [3, 3]
    assert set.intersection(*({cell.key for cell in cells} for cells in lines.values()))
    texts = texts_in(accuracy_against_epsilon(Results(runs), tmp_path / "a")[1])
    assert {"fedavg", "fedavg mechanism=banded"} <= set(texts)


@pytest.mark.usefixtures("vectors_only")
def test_labels_name_the_settings_that_differ_unless_too_many(tmp_path):
    few = [asked("fedavg", e, 0.5, compression=pruned(b)) for e in (1, 10, None) for b in (0.0, 0.9)]
    texts = texts_in(accuracy_against_epsilon(Results(few), tmp_path / "a")[1])
    assert {"fedavg beta=0.0", "fedavg beta=0.9"} <= set(texts)
    betas = np.linspace(0, 0.9, 15).round(2)
    many = [asked("fedavg", e, 0.5 + b / 9, compression=pruned(float(b))) for e in (1, 10) for b in betas]
    texts = texts_in(accuracy_against_epsilon(Results(many), tmp_path / "b")[1])
    assert {"fedavg", "the best setting of each algorithm"} <= set(texts)


@pytest.mark.usefixtures("vectors_only")
def test_settings_with_budgets_are_drawn_before_others(tmp_path):
    """Twelve better settings of the same algorithm were never private: they say nothing of what privacy costs."""
    runs = [asked("lvfl", None, 0.9, own={"lr": 0.1 + n / 10}) for n in range(12)]
    runs += [asked("lvfl", e, 0.5, own={"lr": 2.0}) for e in (1, 10, None)]
    texts = texts_in(accuracy_against_epsilon(Results(runs), tmp_path / "a")[1])
    assert {"lvfl", "1", "10", "none"} <= set(texts)
    assert "the best setting of each algorithm" not in texts


@pytest.mark.usefixtures("vectors_only")
def test_of_many_algorithms_the_best_are_drawn(tmp_path):
    """Ten algorithms and a level line, which is the best of all: it and seven more."""
    names = [f"method{n}" for n in range(10)]
    runs = [asked(name, e, 0.05 * n + 0.01 * e) for n, name in enumerate(names) for e in (1, 10)]
    texts = texts_in(accuracy_against_epsilon(Results([*runs, asked("local", None, 0.8)]), tmp_path / "a")[1])
    assert {"local", *names[3:]} <= set(texts) and not {*names[:3]} & set(texts)


@pytest.mark.slow
@pytest.mark.usefixtures("vectors_only")
def test_the_overview_shows_all_budgets_and_ratios(tmp_path):
    """Two methods, two budgets, two ratios; one cell was refused, and local has no budget at all."""
    runs = [
        done(
            spec(name, seed, privacy=private(e) if e else None, compression=pruned(b)),
            accuracy=value,
            auroc=1,
        )
        for name, value in (("fedavg", 0.71), ("scaffold", 0.62))
        for e in (None, 8.0)
        for b in (0.0, 0.9)
        for seed in (0, 1)
        if (name, e, b) != ("scaffold", 8.0, 0.9)
    ]
    refused = spec("scaffold", privacy=private(8.0), compression=pruned(0.9))
    runs += [undone(refused, "skipped", "does not go together"), done(spec("local"), accuracy=0.83)]
    texts = texts_in(overview(Results(runs), tmp_path / "a", ("accuracy", "auroc", "eqopp"))[1])
    assert [text for text in texts if text in ("local", "fedavg", "scaffold")] == [
        "local",
        "fedavg",
        "scaffold",
    ], "the best without privacy comes first"
    assert (texts.count(".71"), texts.count(".62"), texts.count(".83")) == (4, 3, 1)
    assert {"Accuracy", "AUROC", "beta 0", "beta 0.9", "none", "8"} <= set(texts)
    assert "EqOpp gap" not in texts, "nobody has it"
    crossed = (tmp_path / "a.svg").read_text().count("stroke: #999999")
    assert crossed == 4, "two strokes in each of two maps"


def test_an_overview_needs_something_to_compare(tmp_path):
    assert overview(Results([done(spec(), accuracy=0.5)]), tmp_path / "a", ("accuracy",)) is None
    assert overview(Results([]), tmp_path / "a", ("accuracy",)) is None


def test_texts_are_measured_without_an_image_each(tmp_path, monkeypatch):
    """Hundreds of images of the figure's size took 8 GB for a suite of 8,000 runs."""
    made, honest = [], RendererAgg.__init__

    def counted(renderer, *size):
        made.append(size)
        honest(renderer, *size)

    monkeypatch.setattr(RendererAgg, "__init__", counted)
    runs = [
        done(spec(name, privacy=private(budget) if budget else None), accuracy=0.5)
        for name in (f"method {number}" for number in range(12))
        for budget in (None, 8.0, 1.0)
    ]
    assert overview(Results(runs), tmp_path / "a", ("accuracy",)) is not None
    assert 0 < len(made) < 10


def test_a_single_budget_is_no_picture_of_what_privacy_costs(tmp_path):
    assert (
        accuracy_against_epsilon(
            Results([asked("fedavg", 1, 0.5), asked("fedavg", None, 0.9)]), tmp_path / "a"
        )
        is None
    )


def test_nothing_to_draw_is_no_picture(tmp_path):
    for nothing in ([], [undone(spec(), "failed", "no luck")], [done(spec())]):
        assert draw_curves(Results(nothing), tmp_path / "a") is None
        assert accuracy_against_bytes(Results(nothing), tmp_path / "a") is None
    assert list(tmp_path.iterdir()) == []


@pytest.mark.usefixtures("vectors_only")
def test_many_settings_are_cut_to_the_best_of_each_algorithm(tmp_path):
    runs = [
        done(spec("fedavg", lr=lr), evaluation(10, accuracy=lr)) for lr in np.linspace(0.1, 0.9, 9).round(1)
    ]
    texts = texts_in(draw_curves(Results(runs), tmp_path / "a")[1])
    assert "fedavg lr=0.9" in texts and "fedavg lr=0.1" not in texts
    assert "the best setting of each algorithm" in texts


# --- page ------------------------------------------------------------------------------------------------


class Page(HTMLParser):
    """Collect tags with their attributes, and the text."""

    def __init__(self, text):
        super().__init__()
        self.tags, self.text = [], ""
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data):
        self.text += data


def page_of(records, folder, **options):
    """Return the page without pictures, which take seconds to draw."""
    results = Results(records)
    write_page(results, board_of(results), (), folder / "page.html", **options)
    return Page((folder / "page.html").read_text())


@pytest.mark.slow
def test_a_report_has_every_file_and_leaves_nothing_else(records, tmp_path):
    written = write_report(Results(records), tmp_path / "out")
    tables = {"leaderboard.csv", "leaderboard.md", "index.html"}
    pictures = {"curves.png", "curves.svg", "accuracy-bytes.png", "accuracy-bytes.svg"}
    assert set(written) == tables | pictures == {path.name for path in (tmp_path / "out").iterdir()}
    write_report(Results([undone(spec(), "missing")]), tmp_path / "out")
    assert {path.name for path in (tmp_path / "out").iterdir()} == tables


def test_a_report_of_nothing_is_a_page(tmp_path):
    page = Page(write_report(Results([]), tmp_path)["index.html"].read_text())
    assert "No runs yet." in page.text


@pytest.mark.slow
def test_the_page_loads_nothing_from_elsewhere(records, tmp_path):
    page = Page(write_report(Results(records), tmp_path)["index.html"].read_text())
    for tag, attributes in page.tags:
        assert tag not in {"link", "iframe", "object", "embed"}
        assert attributes.get("src", "data:").startswith("data:")
        assert attributes.get("href", "#").startswith("#")
    packed = [a["data-packed"] for tag, a in page.tags if tag == "img"]
    pictures = [gzip.decompress(base64.b64decode(text)) for text in packed]
    assert pictures == [(tmp_path / name).read_bytes() for name in ("curves.svg", "accuracy-bytes.svg")]
    assert len("".join(packed)) < sum(map(len, pictures)) / 2


def test_the_page_escapes_reasons_column_names_and_commands(tmp_path):
    """The label of a CSV file is the user's text and stands in the spec; reasons and commands hold it too."""
    data = {"name": "csv", "path": "a.csv", "label": ATTACK, "sensitive": None, "options": {}}
    finished = replace(done(spec(data=data), accuracy=0.5), source=ATTACK)
    runs = [finished, undone(spec("ditto", data=data), "failed", ATTACK)]
    commands = {cell_key(run): f"python -m harness run --data 'csv:a.csv?label={ATTACK}'" for run in runs}
    page = page_of(runs, tmp_path, commands=commands)
    assert [tag for tag, _ in page.tags].count("script") == 1  # the page's own
    assert page.text.count(ATTACK) >= 6
    assert "&lt;script&gt;" in (tmp_path / "page.html").read_text()


def test_the_page_shows_statuses_reasons_specs_and_commands(records, tmp_path):
    commands = {cell_key(records[0]): "python -m harness run --algorithm fedavg"}
    page = page_of(records, tmp_path, commands=commands)
    for part in (
        "needs groups | and pipes",
        "1 run missing",
        "python -m harness run --algorithm fedavg",
        SOURCE,
    ):
        assert part in " ".join(page.text.split())
    for status in ("some failed", "skipped", "missing"):  # beside the name, where no column has scrolled away
        assert status in page.text.partition("Why values are missing")[0]
    assert '"alpha": 0.3' in page.text and "client sizes" in page.text and "2.13.0" in page.text
    links = {a["href"][1:] for tag, a in page.tags if tag == "a"}
    cells = {link for link in links if link.startswith("cell-")}
    assert cells == {a["id"] for tag, a in page.tags if tag == "details" and "id" in a} and len(cells) == 5
    assert links <= {a["id"] for _, a in page.tags if "id" in a}, "a link to a part leads there"


TEXT = st.text(st.characters(blacklist_categories=("Cs", "Cc")), min_size=1, max_size=12).filter(str.strip)
NASTY = st.lists(
    st.sampled_from(["<", ">", "&", "'", '"', "</script>", "<!--", "]]>", "&lt;", "\\", "{{", "`"]),
    min_size=1,
)


def shown(path, reason, setting, label):
    """Return the page of a run and a failed one with these strings."""
    data = {"name": "csv", "path": "a.csv", "label": label, "sensitive": None, "options": {}}
    runs = [replace(done(spec(data=data, own={"note": setting}), accuracy=0.5), source=reason)]
    runs.append(undone(spec("ditto", data=data, own={"note": setting}), "failed", reason))
    results, commands = Results(runs), {cell_key(run): f"--label {label}" for run in runs}
    write_page(results, board_of(results), (), path, commands=commands)
    return Page(path.read_text())


def shape(page):
    return [(tag, sorted(attributes)) for tag, attributes in page.tags]


@pytest.fixture
def plain_shape(tmp_path):
    return shape(shown(tmp_path / "plain.html", "r", "s", "l"))


@pytest.mark.slow
@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    reason=TEXT | NASTY.map("".join),
    setting=TEXT | NASTY.map("".join).filter(lambda text: len(text) <= LONGEST_VALUE),  # others are digests
    label=TEXT | NASTY.map("".join),
)
def test_whatever_stands_in_a_record_is_text_on_the_page(reason, setting, label, plain_shape, tmp_path):
    """A page has the same elements and attributes whatever its strings say, and says each of them."""
    found = shown(tmp_path / "a.html", reason, setting, label)
    assert shape(found) == plain_shape
    assert reason in found.text and setting in found.text and label in found.text
    (told,) = {attributes["title"] for tag, attributes in found.tags if tag == "tr" and "title" in attributes}
    assert told == " ".join(reason.split())


@pytest.mark.slow
def test_the_page_says_that_diagnostics_were_not_released(records, tmp_path):
    assert "released" not in page_of(records, tmp_path).text
    line = diagnosed(
        evaluation(20, accuracy=0.5), clipped_share=0.25, noise_to_signal=1.5, update_norm_p50=3.0
    )
    page = page_of([*records, done(spec("fedprox"), line)], tmp_path)
    text = " ".join(page.text.split())
    assert "Clipped and Noise/signal are the simulator's knowledge" in text and "it was not released" in text
    assert " 0.25 " in text and " 1.5 " in text


def test_one_command_on_the_page_repeats_all_runs_of_a_cell(tmp_path):
    """The store names seeds in order; the command is that of the first, in a loop."""
    runs = [done(spec(seed=seed), accuracy=0.5) for seed in (1, 0)]
    commands = {cell_key(runs[0]): "python -m harness run --seed 0 --rounds 20"}
    page = page_of(runs, tmp_path, commands=commands)
    assert "for seed in 0 1; do python -m harness run --seed $seed --rounds 20; done" in page.text
    assert page.text.count("--rounds 20") == 1, "a command for every seed was half of a large page"


def test_points_of_equal_bytes_stand_at_the_same_place(tmp_path):
    """Two lines with the same two byte counts: four marks on two places."""
    runs = [
        done(spec(name, compression=pruned(beta)), evaluation(20, size, accuracy=base + 0.1 * (size > 1000)))
        for name, base in (("fedavg", 0.5), ("ditto", 0.7))
        for beta, size in ((0.9, 1000), (0.0, 5000))
    ]
    svg = accuracy_against_bytes(Results(runs), tmp_path / "a")[1].read_text()
    axes = svg.partition('id="legend')[0]
    marks = re.findall(r'<use [^>]*?x="([\d.]+)"[^>]*style="fill: #\w+; stroke: #ffffff', axes)
    assert len(marks) == 4 and len(set(marks)) == 2


@pytest.mark.usefixtures("blank_pictures")
def test_a_run_whose_times_are_private_is_reported_without_them(tmp_path):
    """Strict runs with secret cohorts write no seconds."""
    timed, silent = curve("scaffold"), curve("fedavg", epsilon=4.0)
    for line in silent.rounds:
        line["timing"] = {}
    del silent.final["timing"]["seconds"]
    write_report(Results([timed, silent]), tmp_path)
    with open(tmp_path / "leaderboard.csv", encoding="utf-8") as file:
        seconds = {row["algorithm"]: row["seconds"] for row in csv.DictReader(file)}
    assert seconds == {"scaffold": "2.0", "fedavg": ""}
    page = (tmp_path / "index.html").read_text(encoding="utf-8")
    assert "2 s in 1 finished run" in page and not re.search(r">\s*(nan|None)\b", page)
