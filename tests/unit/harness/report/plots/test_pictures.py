"""Pictures of groups, clients and partitions: what they show, and where there are none."""

import json
from itertools import combinations
from types import SimpleNamespace

import numpy as np
import pytest

from datasets.client_statistics import ClientCounts, unpack
from harness.cli.parser import main
from harness.report.data.results import Results
from harness.report.plots import figure
from harness.report.plots.curves import draw_curves
from harness.report.plots.fairness import fairness
from harness.report.plots.partitions import partitions
from harness.report.plots.tuning import _title as tuning_title
from harness.storage.store import Store
from tests.support.records import done, evaluation, partition, spec, undone
from tests.support.written import texts_in

HELD = {
    "splits": {"train": "7 3", "test": "3 1"},
    "classes": {"no": "10 0", "yes": "0 4"},
    "groups": {"f": "5 2", "m": "5 2"},
}


def grouped(record, **rates):
    """Give a run's last round rates of groups: accuracy, and a true positive rate half as high."""
    record.final["groups"] = [
        {"group": name, "n": 50, "positives": 20, "accuracy": rate, "tpr": rate and rate / 2}
        for name, rate in rates.items()
    ]
    return record


def run(algorithm="fedavg", seed=0, **parts):
    figures = {"accuracy": 0.7, "client_accuracy": 0.7, "worst_client": 0.4, "client_std": 0.1 + seed / 10}
    return done(spec(algorithm, seed, **parts), evaluation(20, **figures))


@pytest.mark.slow
@pytest.mark.usefixtures("vectors_only")
def test_bars_name_the_groups_and_state_the_gap_over_seeds(tmp_path):
    """Gaps of accuracy 0.2 and 0.4: 0.300 ± 0.141; of true positive rates half of that; spreads 0.1 and 0.2."""
    runs = [grouped(run(seed=0), f=0.5, m=0.7), grouped(run(seed=1), f=0.5, m=0.9)]
    texts = texts_in(fairness(Results(runs), tmp_path / "a")[1])
    assert {"gap 0.300 ± 0.141", "gap 0.150 ± 0.071", "spread 0.150 ± 0.071"} <= set(texts)
    assert {"f", "m", "fedavg", "mean of clients", "worst client"} <= set(texts)


def test_the_picture_of_a_search_names_a_file_as_others_do():
    """It was "csv"."""
    own = run(data={"name": "csv", "path": "folder/hosp.csv", "label": "ill"})
    search = SimpleNamespace(cells=Results([own]).cells)
    assert tuning_title(search) == "hosp.csv · no privacy"


@pytest.mark.usefixtures("vectors_only")
def test_of_each_algorithm_the_most_accurate_setting_is_shown(tmp_path):
    worse = grouped(done(spec("fedavg", lr=0.9), accuracy=0.1), f=0.1, m=0.9)
    texts = texts_in(fairness(Results([grouped(run(), f=0.6, m=0.7), worse]), tmp_path / "a")[1])
    assert "gap 0.100" in texts and "gap 0.800" not in texts


@pytest.mark.usefixtures("vectors_only")
def test_the_best_setting_is_named_with_its_budget(tmp_path):
    private = spec("fedper", privacy={"placement": "local", "clip": 1.0, "epsilon": 8.0})
    guarded = grouped(done(private, evaluation(20, 1000, 8.0, accuracy=0.6)), f=0.6, m=0.7)
    assert {"fedavg, no DP", "fedper, ε 8"} <= set(
        texts_in(fairness(Results([grouped(run(), f=0.5, m=0.7), guarded]), tmp_path / "a")[1])
    )


@pytest.mark.slow
@pytest.mark.usefixtures("vectors_only")
def test_groups_without_positives_have_no_rate(tmp_path):
    lone = grouped(run(), f=0.5, m=0.7, x=None)
    assert {"gap 0.200", "gap 0.100"} <= set(texts_in(fairness(Results([lone]), tmp_path / "a")[1]))
    for none in ([run()], [grouped(run(), f=0.5)], [undone(spec(), "failed", "no luck")], []):
        assert fairness(Results(none), tmp_path / "b") is None


@pytest.mark.usefixtures("vectors_only")
def test_with_many_classes_groups_are_compared_in_accuracy(tmp_path):
    record = grouped(run(), f=0.5, m=0.7)
    for row in record.final["groups"]:
        row["tpr"] = None
    texts = texts_in(fairness(Results([record]), tmp_path / "a")[1])
    assert "gap 0.200" in texts and "does not apply" in texts


@pytest.mark.slow
@pytest.mark.usefixtures("vectors_only")
def test_each_partition_is_drawn_once_for_its_least_seed(tmp_path):
    """Two algorithms and three seeds deal alike; another alpha deals otherwise; an old run wrote nothing down."""
    runs = [run(name, seed) for name in ("fedavg", "ditto") for seed in (2, 1)]
    runs += [run(partition=partition(5.0, 2)), run(seed=0, partition=partition(9.0))]
    for record in runs[:-1]:
        record.held.update(HELD)
    texts = texts_in(partitions(Results(runs), tmp_path / "a")[1])
    titles = [text for text in texts if "seed" in text]
    assert titles == [
        "adult · dirichlet(alpha=0.3) · 20 clients, seed 1",
        "adult · dirichlet(alpha=5.0) · 2 clients, seed 0",
    ]
    assert {"no", "yes", "f", "m", "train", "test", "sensitive group"} <= set(texts)
    assert partitions(Results(runs[-1:]), tmp_path / "b") is None


@pytest.mark.slow
@pytest.mark.parametrize("draw", [fairness, partitions])
def test_equal_records_give_equal_pictures(tmp_path, draw):
    record = grouped(run(), f=0.5, m=0.7)
    record.held.update(HELD)
    first, second = (draw(Results([record]), tmp_path / name) for name in "ab")
    for one, other in zip(first, second, strict=True):
        assert one.read_bytes() == other.read_bytes()


def test_what_clients_hold_is_packed_without_loss():
    held = ClientCounts("t", {"train": (7, 3)}, {"no": (7, 0), "yes": (0, 3)}, {})
    assert unpack("t", json.loads(json.dumps(held.packed()))) == held
    assert (held.clients, held.numbers) == (2, 6)


COMMAND = ["run", "--algorithm", "fedavg", "--data", "digits", "--rounds", "1", "--clients", "4"]


def test_a_run_records_its_partition_and_its_machine(tmp_path):
    """All 1,797 digits are held by somebody; no name of a host or folder is among the versions."""
    assert main([*COMMAND, "--out", str(tmp_path)]) == 0
    (record,) = Store(tmp_path).records()
    held = unpack("digits", record.held)
    assert held.clients == 4 and list(held.classes) == list("0123456789") and held.groups == {}
    for counts in (held.splits, held.classes):
        assert sum(map(np.sum, counts.values())) == 1797
    assert len(record.digest) == 64
    timing = record.final["timing"]
    assert {"python", "torch", "numpy", "fedfrontier", "machine", "cores", "memory_gib", "device"} <= set(
        timing
    )
    assert not [value for value in timing.values() if "/" in str(value) and value != timing.get("cpu")]


def test_vertical_and_very_large_partitions_are_not_recorded(tmp_path, monkeypatch):
    """Parties hold columns of the same people, so nobody has a number of samples."""
    command = ["run", "--algorithm", "splitnn", "--data", "breast-cancer", "--rounds", "1"]
    command += ["--problem", "{kind: vertical, embedding: 2}", "--model", "{name: mlp, hidden: [4]}"]
    command += ["--partition", "{kind: columns, clients: 3}"]
    assert main([*command, "--out", str(tmp_path / "parties")]) == 0
    monkeypatch.setattr("harness.simulation.recorder.MAX_COUNTS", 4 * 12 - 1)  # two splits and ten classes
    assert main([*COMMAND, "--out", str(tmp_path / "many")]) == 0
    for folder in ("parties", "many"):
        assert [record.held for record in Store(tmp_path / folder).records()] == [{}]


@pytest.mark.slow
def test_long_titles_do_not_run_into_each_other(monkeypatch, tmp_path):
    """Three panels side by side, whose partitions have settings enough for twice the width of a panel."""
    drawn = []
    monkeypatch.setattr(figure, "save", lambda made, path, note=None: drawn.append(made))
    long = {
        "kind": "dirichlet",
        "clients": 20,
        "balance_of_the_classes": 0.25,
        "least_samples_of_a_client": 10,
    }
    runs = [
        done(
            spec(partition={**long, "alpha": alpha}),
            evaluation(10, accuracy=0.5),
            evaluation(20, accuracy=0.6),
        )
        for alpha in (0.1, 0.3, 0.5)
    ]
    draw_curves(Results(runs), tmp_path / "a")
    (made,) = drawn
    made.draw_without_rendering()
    titles = [ax._left_title.get_window_extent() for ax in made.axes if ax.get_title(loc="left")]
    assert len(titles) == 3
    assert not any(a.overlaps(b) for a, b in combinations(titles, 2))
