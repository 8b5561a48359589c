"""The summary of a suite on a terminal: what is compared with what, and that it fits 80 columns."""

import io
import math
from dataclasses import replace

import pytest
from rich.console import Console

from harness.cli.console import short
from harness.metrics import bounds
from harness.report.data.evidence import Evidence
from harness.report.data.leaderboard import leaderboard
from harness.report.data.results import Results
from harness.report.data.tested import seed_pairs
from harness.report.html.page import write_page
from harness.report.tables.costs import costs
from harness.report.tables.protection import compare_protection, label, labels
from harness.report.tables.rated_rows import difference, estimate_text, value_of
from harness.report.tables.rows import Board, board_of
from harness.report.tables.summary import print_summary
from harness.report.tables.text import possible, possible_change, quantity, signed, spread
from harness.storage.store import RunRecord
from tests.support.records import searched

DENSE = {"alpha": 0.0, "beta": 0.0, "codec": "float32"}
CENTRAL = {"unit": "client", "placement": "central", "delta": 1e-5, "clip": 0.5}


def run(seed, accuracy, algorithm="fedavg", epsilon=None, status="done", data="adult", **compression):
    """Return a record of one run, on Adult unless said otherwise."""
    privacy = epsilon and CENTRAL | {"placement": "local", "epsilon": epsilon}
    spec = {
        "data": {"name": data},
        "partition": {"kind": "dirichlet", "clients": 100, "alpha": 0.5, "at_least": 5},
        "problem": {"kind": "classify"},
        "model": {"name": "logistic"},
        "algorithm": {"name": algorithm, "lr": 0.1},
        "privacy": privacy,
        "compression": DENSE | compression,
        "rounds": 20,
        "seed": seed,
    }
    claim = privacy and CENTRAL | {"epsilon_total": epsilon, "adjacency": "replace"}
    line = {
        "round": 20,
        "metrics": {"accuracy": accuracy, "auroc": 0.9, "eqopp": 0.1, "worst_client": 0.2},
        **{"bytes_up": 1000, "bytes_down": 1000, "flops": 10, "oracle_calls": 5},
        "privacy": claim,
    }
    name = f"{algorithm}{epsilon}{compression}{seed}"
    rounds = [line] if status == "done" else []
    reason = None if rounds else "it broke"
    return RunRecord(name, "small", "smoke", spec, status, reason, "made up", rounds, {})


def ladder(algorithm="fedavg"):
    """Return three seeds of a run without protection, at two budgets, and pruned."""
    noise = (-0.01, 0.0, 0.01)
    return [
        run(seed, value + noise[seed], algorithm, **protection)
        for seed in range(3)
        for value, protection in (
            (0.8, {}),
            (0.7, {"epsilon": 2}),
            (0.79, {"epsilon": 8}),
            (0.78, {"beta": 0.9}),
        )
    ]


def printed(records, width=80, **options):
    console = Console(file=io.StringIO(), width=width)
    given = {"by": "accuracy", "baseline": None} | options
    results = Results(records)
    board = Board(leaderboard(results, given["by"], given["baseline"]), results.cells)
    print_summary(results, board, given["by"], given["baseline"], console)
    return console.file.getvalue()


def test_protected_cells_are_compared_with_the_same_cell_without_protection_seed_by_seed():
    (found,) = compare_protection(Results(ladder()))
    assert [label(cell) for cell in found.protected] == ["ε = 8", "ε = 2", "90 % of message entries dropped"]
    assert label(found.plain) == "no privacy, nothing pruned"
    for cell, change in zip(found.protected, (-0.01, -0.1, -0.02), strict=True):
        assert [*seed_pairs(cell, found.plain, "accuracy").differences.values()] == pytest.approx(
            [change] * 3
        )


def test_noise_of_each_client_is_told_from_shared_noise():
    record = run(0, 0.8, epsilon=8.0)
    record.spec["privacy"]["noise"] = "per_client"
    (found,) = compare_protection(Results([run(0, 0.9), run(0, 0.7, epsilon=8.0), record]))
    assert sorted(label(cell) for cell in found.protected) == ["ε = 8", "ε = 8, noise per client"]


def test_ways_to_protect_are_told_apart():
    """In words where the noise is another kind, and by placement where nothing else differs."""
    banded, central = run(0, 0.8, epsilon=8.0), run(0, 0.85, epsilon=8.0)
    for record, more in ((banded, {"mechanism": "banded", "bands": 5}), (central, {"placement": "central"})):
        record.spec["privacy"] |= {name: more[name] for name in more if name != "bands"}
        record.rounds[0]["privacy"] = record.rounds[0]["privacy"] | more
    (found,) = compare_protection(Results([run(0, 0.9), run(0, 0.7, epsilon=8.0), banded, central]))
    told = ["ε = 8, banded noise", "ε = 8, central noise", "ε = 8, local noise"]
    assert sorted(labels(found.protected)) == told
    text = " ".join(printed([run(0, 0.9), run(0, 0.7, epsilon=8.0), banded]).split())
    assert "client/central/banded" in text and "noise is correlated over 5 rounds" in text


def test_factors_count_as_compression():
    (found,) = compare_protection(
        Results([run(0, 0.9), run(0, 0.8, rank=2, codec="float16"), run(0, 0.7, epsilon=8, rank=1)])
    )
    assert [label(cell) for cell in found.protected] == [
        "layers as factors of rank 2, sent as float16",
        "ε = 8, layers as factors of rank 1",
    ]


def test_the_baseline_is_compared_and_else_the_algorithm_with_most_protected_cells():
    others = [run(seed, 0.9, "ditto", **more) for seed in range(3) for more in ({}, {"alpha": 0.5})]
    assert compare_protection(Results([*ladder(), *others]))[0].plain.spec["algorithm"]["name"] == "fedavg"
    (found,) = compare_protection(Results([*ladder(), *others]), baseline="ditto")
    assert found.plain.spec["algorithm"]["name"] == "ditto"
    assert [label(cell) for cell in found.protected] == ["50 % of hidden units pruned"]


def test_where_all_is_compressed_alike_privacy_is_compared_alone():
    """A suite of pruned runs said nothing of what privacy costs, and had no statement."""
    pruned = [
        run(seed, value, epsilon=e, beta=0.9) for seed in range(2) for value, e in ((0.8, None), (0.7, 2))
    ]
    (found,) = compare_protection(Results(pruned))
    assert found.shared == "90 % of message entries dropped" and found.texts == ["ε = 2"]
    text = " ".join(printed(pruned).split())
    assert "On adult, with 90 % of message entries dropped, ε = 2 costs 10.0 points of accuracy" in text
    assert (
        "2 seeds, 90 % of message entries dropped, settings as given. Settings tuned for each budget" in text
    )
    assert costs(Results(pruned), "accuracy", None)[0].table.rows == ("no privacy", "ε = 2")
    others = [
        run(seed, value, epsilon=e, beta=0.5) for seed in range(2) for value, e in ((0.8, None), (0.6, 8))
    ]
    (found,) = compare_protection(Results([*pruned, *others]))  # one compression, not two that differ
    assert label(found.plain) in label(found.protected[0]) and len(found.protected) == 1
    (found,) = compare_protection(Results([*pruned, *ladder("ditto")]))  # rather what has no compression
    assert found.shared == ""


def test_without_an_unprotected_or_a_protected_cell_there_is_nothing_to_compare():
    assert compare_protection(Results([run(0, 0.8), run(0, 0.8, "ditto", epsilon=8)])) == []
    assert compare_protection(Results([run(0, 0.8, status="failed"), run(0, 0.7, epsilon=8)])) == []
    assert "fedavg" in printed([run(0, 0.8)])  # the table then


def test_a_long_suite_is_summarized_in_80_columns_with_setting_guarantee_and_spread():
    names = ("fedavg", "ditto", "scaffold", "fedprox", "local")
    records = [one for name in names for one in ladder(name)]
    records.append(run(3, None, "afl", status="failed"))
    text = printed(records, baseline="fedavg")
    assert all(len(line) <= 80 for line in text.splitlines())
    told = " ".join(text.split())
    assert "adult, 100 clients, dirichlet(alpha=0.5, at_least=5), model logistic, 20 rounds, 3 seeds" in told
    assert "central placement" in told and "delta 1e-05" in told and "total of the run" in told
    assert "ε = 2 0.700 ± 0.010 -10.0 [-10.0, -10.0]" in told and "± is the sample standard deviation" in told
    assert "60 of 61 runs finished; 6 algorithms, 21 rows" in told and "it broke" in told
    assert "scaffold 0.800 0.790 (-1.0) 0.700 (-10.0)" in told and "On adult, ε = 8 costs" in told


def test_a_method_of_one_s_own_is_first_of_at_most_ten():
    """Twelve methods; the plugin is the worst, then come the nine that are best without protection."""
    records = [
        run(0, value, f"m{number:02}", **more)
        for number in range(11)
        for value, more in ((0.8 - number / 100, {}), (0.7 - number / 100, {"epsilon": 8}))
    ]
    own = [run(0, 0.5, "mine"), run(0, 0.45, "mine", epsilon=8)]
    records += [replace(record, versions={"plugins": {"algorithm": {}}}) for record in own]
    lines = [line.split() for line in printed(records, baseline="m00").splitlines()]
    start = next(n for n, line in enumerate(lines) if line[:2] == ["Accuracy", "of"])
    shown = [line for line in lines[start + 1 : start + 13] if line and (line[0][0] == "m")]
    assert shown[0] == ["mine", "0.500", "0.450", "(-5.0)"]
    assert [line[0] for line in shown[1:]] == [f"m{number:02}" for number in range(9)]
    assert "2 more methods there." in " ".join(printed(records, baseline="m00").split())


def test_methods_with_different_models_are_named_with_them():
    records = [*ladder(), *ladder("fedrep")]
    same = printed(records, width=120)
    own = [
        replace(record, spec=record.spec | {"model": {"name": "mlp", "hidden": [8]}})
        if record.spec["algorithm"]["name"] == "fedrep"
        else record
        for record in records
    ]
    different = printed(own, width=120)
    assert "fedrep mlp" in different and "fedavg logistic" in different
    assert "fedavg logistic" not in same


def test_a_short_suite_and_a_wide_terminal_get_the_table_as_well():
    assert "Omitted" in printed(ladder()) and "change, points" in printed(ladder())
    many = [one for name in ("fedavg", "fedprox", "scaffold", "sagda") for one in ladder(name)]
    assert "Algorithm" not in printed(many) and "Algorithm" in printed(many, width=250)


def test_more_rows_than_a_screen_holds_are_counted():
    records = [run(0, 0.8), *(run(0, 0.7, epsilon=e, beta=b) for e in (1, 2, 4, 8, 16) for b in (0.0, 0.5))]
    records += [run(0, 0.6, name) for name in ("ditto", "scaffold")]
    told = " ".join(printed(records).split())
    assert "2 more such rows" in told and "One seed: no spread" in told


def test_a_measure_without_a_scale_is_compared_in_its_own_unit():
    text = printed(ladder(), by="oracle_calls")
    assert "change, points" not in text and "0 [0, 0]" in text


@pytest.mark.slow
def test_every_data_set_is_compared():
    """A suite of two data sets told of one alone."""
    others = [run(0, 0.8, data=name, epsilon=e) for name in ("digits", "wine", "iris") for e in (None, 8)]
    told = " ".join(printed([*ladder(), *others]).split())
    places = [place for place, word in enumerate(told.split()) if word == "Measured"]
    assert len(places) == 3 and told.split()[places[0] + 2] == "adult,"


def test_every_file_of_one_s_own_is_compared_and_named():
    """Both were csv: one was left out, and neither named."""

    def of(file, record):
        data = record.spec["data"] | {"path": f"folder/{file}"}
        spec = record.spec | {"data": data}
        return replace(record, id=f"{record.id}{file}", spec=spec, digest=file * 8)

    records = [of(file, run(0, 0.8, data="csv", epsilon=e)) for file in ("a.csv", "b.csv") for e in (None, 8)]
    told = " ".join(printed(records).split())
    assert "Measured on a.csv," in told and "Measured on b.csv," in told


HOSPITALS = {"Cleveland": (0.8, 0.7, 0.75), "Hungary": (0.7, 0.72, 0.6)}


def hospital(seed, number, algorithm="fedavg", **protection):
    """Return a run whose two clients have names; ``number`` chooses their accuracies."""
    record = run(seed, 0.75, algorithm, **protection)
    values = [each[number] + 0.01 * seed for each in HOSPITALS.values()]
    by_client = {"client": list(HOSPITALS), "n": [10, 20], "accuracy": values, "auroc": [None, 0.5]}
    return replace(record, final={"by_client": by_client})


def test_clients_with_names_are_told_what_they_gain_or_lose():
    records = [hospital(seed, 0) for seed in range(2)] + [hospital(seed, 1, epsilon=2) for seed in range(2)]
    text = printed([*records, *(hospital(seed, 2, "local") for seed in range(2))])
    lines = {line.split("  ")[0].strip(): line.split()[-2:] for line in text.splitlines()}
    assert lines["no privacy, nothing pruned"] == ["0.805", "0.705"]
    assert lines["ε = 2"] == ["-10.0", "+2.0"] and lines["each client alone"] == ["-5.0", "-10.0"]
    assert lines["test samples"] == ["10", "20"]
    assert "Not comparable with the others (one model per client): local (each client" in " ".join(
        text.split()
    )


def test_the_measure_of_clients_is_one_that_all_have():
    """A client with test samples of one class has no AUROC."""
    records = [hospital(seed, 0) for seed in range(2)] + [hospital(seed, 1, epsilon=2) for seed in range(2)]
    text = printed(records, by="auroc")
    assert "Accuracy of" in text and "Cleveland" in text


def test_rows_that_tell_nothing_of_clients_stay_empty():
    """Strict privacy tells no results of clients."""
    records = [hospital(seed, 0) for seed in range(2)]
    text = printed([*records, *(run(seed, 0.7, epsilon=2) for seed in range(2))])
    lines = [line.split() for line in text.splitlines() if "ε = 2" in line]
    assert lines[-1] == ["ε", "=", "2"]


def test_rows_whose_settings_were_chosen_by_hand_are_compared():
    """Each row has a step size of its own; without the suite's word they are not the same cell."""

    def other(record, step):
        record.spec["algorithm"]["lr"] = step
        return record

    records = [run(seed, 0.8) for seed in range(3)]
    records += [other(run(seed, 0.7, epsilon=2), 0.5) for seed in range(3)]
    assert compare_protection(Results(records)) == []
    chosen = [replace(record, chosen=("algorithm.lr",)) for record in records]
    (found,) = compare_protection(Results(chosen))
    assert [label(cell) for cell in found.protected] == ["ε = 2"]
    assert "settings chosen for each row" in " ".join(printed(chosen).split())


def test_personal_models_are_to_be_compared_inside_clients():
    """Over all samples AUROC credits them with each client's share of positives."""
    records = [run(0, 0.8), run(0, 0.7, epsilon=2), run(0, 0.9, "ditto")]
    assert "see auroc_clients" not in " ".join(printed(records).split())
    for record in records:
        record.rounds[-1]["metrics"]["auroc_clients"] = 0.8
    assert "see auroc_clients" in " ".join(printed(records).split())


def test_the_first_sentence_says_what_protection_costs():
    """Budgets 8 and 2 lose 1 and 10 points of accuracy, dropped messages 2, in each of three seeds alike."""
    text = " ".join(printed(ladder()).split())
    assert "On adult, ε = 8 costs 1.0 points of accuracy [1.0, 1.0]; ε = 2 costs 10.0 points" in text
    better = [*(run(seed, 0.5) for seed in range(2)), *(run(seed, 0.6, epsilon=8) for seed in range(2))]
    assert "ε = 8 gains 10.0 points of accuracy [10.0, 10.0]." in " ".join(printed(better).split())


def test_the_answer_comes_first_then_the_tables_then_the_notes():
    text = " ".join(printed(ladder()).split())
    order = (
        "On adult, ε = 8 costs",
        "Measured on",
        "change, points",
        "Privacy: ",
        "Algorithm",
        "all 6 private runs",
    )
    places = [text.index(words) for words in order]
    assert places[0] == 0 and places == sorted(places)


def test_intervals_of_searched_rows_are_over_searches_and_seeds():
    """Four in ten searches would have chosen a setting that is ten points worse."""
    plain = searched([run(seed, 0.8) for seed in range(10)])
    private = [run(seed, 0.7, epsilon=8) for seed in range(10)]
    lucky, text = searched(private, [(0.4, [0.6] * 10)]), []
    for rows in (searched(private), lucky):
        text.append(" ".join(printed([*plain, *rows]).split()))
    assert "ε = 8 costs 10.0 points of accuracy [10.0, 10.0]." in text[0]
    assert "ε = 8 costs 10.0 points of accuracy [10.0, 20.0]." in text[1]
    assert "-10.0 [-20.0, -10.0]" in text[1] and "over searches and seeds." in text[1]
    assert "over searches" not in " ".join(printed(ladder()).split())


def test_statements_that_differ_name_their_rows():
    """Client 2 has the largest epsilon under both budgets, with other medians."""
    runs = [run(0, 0.9), run(0, 0.8, epsilon=8.0), run(0, 0.7, epsilon=2.0)]
    for one, median in zip(runs[1:], (3.2, 0.4), strict=True):
        one.rounds[0]["privacy"] = one.rounds[0]["privacy"] | {
            "epsilon_median": median,
            "unit_most": 2,
            "units_most": 1,
        }
    text = " ".join(printed(runs).split())
    assert text.count("Privacy: ") == 1, "the kind of guarantee is that of all"
    assert (
        "ε is that of client 2, the largest (in brackets the median): fedavg 8 (3.2), fedavg 2 (0.4)." in text
    )
    runs[2].rounds[0]["privacy"] |= {"unit": "record"}
    text = " ".join(printed(runs).split())
    assert "ε = 8: Privacy: " in text and "ε = 2: Privacy: " in text


def test_one_client_s_noise_for_all_is_said_once_by_its_name(tmp_path):
    """Clients 0 to 2 have names; records of the last are drawn most often under both budgets."""
    names = {"client": ["Bern", "Köln", "Switzerland"], "n": [9, 9, 4]}
    runs = [run(0, 0.9), run(0, 0.8, epsilon=8.0), run(0, 0.7, epsilon=2.0)]
    for one in runs[1:]:
        one.rounds[0]["privacy"] |= {"unit": "record", "epsilon_median": 0.4, "unit_most": 2, "units_most": 1}
    runs = [replace(one, final={"by_client": names, "clients": 3}) for one in runs]
    text = " ".join(printed(runs).split())
    assert text.count("Switzerland sets the noise of all clients, as its records are drawn most often") == 1
    assert "ε is that of Switzerland, the largest" in text and "client 2" not in text
    results = Results(runs)
    write_page(results, board_of(results), (), tmp_path / "page.html")
    page = (tmp_path / "page.html").read_text()
    assert "0.4 (Switzerland has most)" in page and "<dd>Switzerland</dd>" in page and "client 2" not in page


def test_the_page_begins_with_what_protection_costs(tmp_path):
    results = Results(ladder())
    write_page(results, board_of(results), (), tmp_path / "page.html")
    page = (tmp_path / "page.html").read_text()
    order = ("<h2>What privacy and compression cost on adult", "ε = 8 costs 1.0 points", "<h2>Leaderboard")
    places = [page.index(text) for text in order]
    assert places == sorted(places)


def test_several_data_sets_have_one_paragraph_on_privacy():
    runs = [run(0, 0.8, data=name, epsilon=e) for name in ("digits", "wine") for e in (None, 8)]
    text = " ".join(printed(runs).split())
    assert text.count("Privacy: ") == 1 and text.count("Not covered by ε") == 1
    assert text.index("On digits") < text.index("Measured on") and text.index("On wine") < text.index(
        "Measured on"
    )


def test_a_cost_below_what_one_method_costs_under_two_names_is_no_verdict():
    """FedAvg and its namesake differ by 2 points without privacy; at ε 8 FedAvg loses 1 point, at ε 2 10."""
    named = [
        run(seed, value, name, epsilon=epsilon)
        for seed in range(3)
        for name, epsilon, value in (
            ("fedavg", None, 0.8), ("fednova", None, 0.78), ("fedavg", 8, 0.79), ("fedavg", 2, 0.7)
        )
    ]  # fmt: skip
    records = [replace(record, same=(("fedavg", "fednova"),)) for record in named]
    text = " ".join(printed(records, baseline="fedavg").split())
    assert "what ε = 8 costs cannot be told from nothing (less than 2.0 points of accuracy)" in text
    assert "ε = 2 costs 10.0 points" in text and "≈ -1.0" in text and "≈ -10.0" not in text
    assert "≈ marks a change that one method has from itself under another name" in text


def test_a_mean_that_rounds_to_zero_has_no_sign():
    assert spread([-0.00001], ".3f") == "0.000" and spread([-0.001], ".3f") == "-0.001"
    assert quantity(-0.0) == short(-0.0) == "0" and value_of("accuracy", -0.0001) == "0.000"
    assert difference("accuracy", -0.0001) == "0.0 points"


@pytest.mark.parametrize(
    ("value", "form", "text"), [(-0.04, "+.1f", "0.0"), (0.04, "+.1f", "0.0"), (-0.06, "+.1f", "-0.1")]
)
def test_a_difference_that_rounds_to_zero_has_no_sign(value, form, text):
    assert signed(value, form) == text


def test_printed_intervals_stay_within_what_is_possible():
    """Two seeds at .99 and .97: t = 12.71 gives .98 ± .127. Changes of -.4 and -.8: -.6 ± 2.54."""
    runs = [
        run(seed, value, epsilon=budget)
        for budget, values in ((None, (0.99, 0.97)), (8, (0.59, 0.17)))
        for seed, value in enumerate(values)
    ]
    frame = leaderboard(Results(runs), baseline="fedavg")
    evidence = Evidence.of_table(frame)
    (best,) = (row for row in evidence.rows if row["epsilon_total"] is None)
    estimate = evidence.estimate(best)
    assert estimate.high > 1 and estimate_text("accuracy", estimate) == "0.980 [0.853, 1.000]"
    (found,) = costs(Results(runs), "accuracy", None)
    assert "costs 60.0 points of accuracy [-100.0, 100.0]" in found.answer


@pytest.mark.parametrize(
    ("measure", "least", "most"),
    [("auroc", 0, 1), ("client_std", 0, 0.5), ("r2", -math.inf, 1), ("loss", -math.inf, math.inf),
     ("selection_accuracy", 0, 1), ("bytes", -math.inf, math.inf)],
)  # fmt: skip
def test_a_metric_tells_which_values_are_possible(measure, least, most):
    assert bounds(measure) == (least, most)
    assert possible(math.inf, measure) == most and possible_change(2.0, "accuracy") == 1.0
