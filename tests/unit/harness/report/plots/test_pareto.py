"""The picture of all algorithms: what is named, and where points stand; and that of ranks."""

from itertools import combinations

import pytest
from matplotlib.text import Text

from harness.report.data.leaderboard import model_for
from harness.report.data.results import Results
from harness.report.plots.figure import canvas, edge
from harness.report.plots.labels import keep_apart, name_point
from harness.report.plots.pareto import pareto
from harness.report.plots.ranks import _cliques, rank_diagram
from harness.report.tables.certainty import rank_sentences
from tests.support.records import done, evaluation, private, spec
from tests.support.written import texts_in

pytestmark = pytest.mark.usefixtures("vectors_only")


def point(name, accuracy, size=1000, epsilon=None, **parts):
    parts |= {"privacy": None if epsilon is None else private(epsilon)}
    return done(spec(name, **parts), evaluation(20, size, epsilon, accuracy=accuracy))


def test_only_what_no_other_beats_with_less_is_an_edge():
    points = [(1.0, 0.5), (2.0, 0.4), (2.0, 0.7), (3.0, 0.7), (4.0, 0.9)]
    assert edge(points, True) == [0, 2, 4]
    assert edge(points, False) == [0, 1]
    assert edge([], True) == []


def test_names_stand_at_undominated_cells_only(tmp_path):
    """Fedavg among models for everybody, ditto among those for each client; afl is beaten; local sends nothing."""
    records = [
        point("fedavg", 0.9),
        point("fedavg", 0.6, epsilon=2.0),
        point("ditto", 0.8, epsilon=2.0),
        point("afl", 0.5, size=3000),
        point("afl", 0.4, size=3000, epsilon=2.0),
        point("local", 0.3, size=0),
    ]
    texts = texts_in(pareto(Results(records), tmp_path / "a", "accuracy")[1])
    assert {"fedavg", "ditto", "local: nothing sent", "no privacy", "none"} <= set(texts)
    assert "afl" not in texts
    assert texts.count("ditto") == 2  # the only personal one: on both sides
    assert texts.count("fedavg") == 4  # at both budgets, on both sides


def test_cells_of_one_budget_are_compared_though_their_epsilon_is_not_used_up_alike(tmp_path):
    records = [
        point("fedavg", 0.9, epsilon=1.0),
        point("afl", 0.5, size=3000, epsilon=0.9999),
        point("q_fedavg", 0.4, size=3000),
    ]
    texts = texts_in(pareto(Results(records), tmp_path / "a", "accuracy")[1])
    assert "afl" not in texts


def test_names_at_one_place_are_moved_apart():
    with canvas((4, 3)) as figure:
        ax = figure.subplots()
        line = {"arrowstyle": "-"}
        for name in ("fedavg", "fedprox", "scaffold", "ditto"):
            ax.plot([0.5], [0.5], marker="o")
            ax.annotate(name, (0.5, 0.5), xytext=(0, 9), textcoords="offset points", ha="center",
                        va="center", arrowprops=line)  # fmt: skip
        figure.draw_without_rendering()
        keep_apart(ax)
        boxes = []
        for text in ax.texts:
            text.get_window_extent()
            boxes.append(Text.get_window_extent(text))
    assert not any(one.overlaps(other) for one, other in combinations(boxes, 2))
    assert all(ax.get_window_extent().containsx(box.x0) for box in boxes)
    assert tuple(ax.texts[0].xyann) == (0, 9), "the first keeps its place"


def test_a_name_stands_off_lines_and_marks():
    """A line goes up through the point, so its name goes beside it; a level line is under the point."""
    with canvas((4, 3)) as figure:
        ax = figure.subplots()
        ax.plot([0.4, 0.5, 0.5], [0.5, 0.5, 1.0])
        ax.axhline(0.45)
        name_point(ax, "fedavg", (0.5, 0.5), "#333333")
        figure.draw_without_rendering()
        keep_apart(ax)
        ax.texts[0].get_window_extent()
        box = Text.get_window_extent(ax.texts[0])
        lines = [line.get_transform().transform_path(line.get_path()) for line in ax.lines]
    assert not any(path.intersects_bbox(box, filled=False) for path in lines)


def test_of_points_that_send_hardly_more_the_last_is_named(tmp_path):
    """scaffold sends 5 % more than fedavg and is better; afl sends twice as much."""
    sizes = {"fedavg": (1000, 0.5), "scaffold": (1050, 0.6), "afl": (2000, 0.7)}
    records = [point(name, value, size=size) for name, (size, value) in sizes.items()]
    records.append(point("fedavg", 0.4, epsilon=2.0))
    texts = texts_in(pareto(Results(records), tmp_path / "a", "accuracy")[1])
    assert texts.count("scaffold") == 1 and texts.count("afl") == 2  # of these afl on the left too
    assert texts.count("fedavg") == 2  # at budget 2 only, on both sides


def test_there_is_none_of_few_algorithms_or_one_budget(tmp_path):
    few = [point("fedavg", 0.9), point("ditto", 0.8), point("ditto", 0.7, epsilon=2.0)]
    assert pareto(Results(few), tmp_path / "a", "accuracy") is None
    assert pareto(Results([point(name, 0.5) for name in ("a", "b", "c")]), tmp_path / "a", "accuracy") is None


def test_ranks_are_drawn_with_stretches_that_do_not_differ(tmp_path):
    assert _cliques((1.0, 1.5, 2.8, 3.0), 1.0) == [(0, 1), (2, 3)]
    assert _cliques((1.0, 1.5, 2.2, 3.9), 1.0) == [(0, 1), (1, 2)]
    assert _cliques((1.0, 3.0), 1.0) == []
    records = [
        point(name, value, seed=seed, data={"name": data})
        for data in ("adult", "credit")
        for name, value in (("fedavg", 0.9), ("fedprox", 0.8), ("afl", 0.7))
        for seed in range(5)
    ]
    texts = texts_in(rank_diagram(Results(records), tmp_path / "a", "accuracy")[1])
    label = "mean rank by Accuracy over 2 tasks of 2 federations; 1 is best"
    assert {"fedavg", "fedprox", "afl", label} <= set(texts)
    note = "critical difference 0.00, the largest of: other searches and seeds 0.00"
    assert {"A model for everybody", note, "intervals that overlap, and bars: not told apart"} <= set(texts)
    assert rank_diagram(Results(records[:15]), tmp_path / "b", "accuracy") is None, "one federation"


def test_ranks_that_cannot_be_told_apart_are_not_drawn_but_said(tmp_path):
    jitter = (0.1, -0.1, 0.05, -0.05, 0.0)
    records = [
        point(name, 0.5 + value * sign, seed=seed, data={"name": data})
        for data in ("adult", "credit")
        for name, sign in (("fedavg", 1), ("fedprox", -1), ("afl", 0.5))
        for seed, value in enumerate(jitter)
    ]
    assert rank_diagram(Results(records), tmp_path / "a", "accuracy") is None
    (said,) = rank_sentences(Results(records).cells, "accuracy")
    start = "No ranks of methods that train a model for everybody: none of 3 is told from another over 2 "
    assert said.startswith(start) and "other searches and seeds" in said
    (said,) = rank_sentences(Results([r for r in records if r.spec["seed"] < 2]).cells, "accuracy")
    assert said.endswith("(too few seeds and federations for a test).")


def test_models_for_each_client_are_ranked_among_themselves(tmp_path):
    """With the bilevel methods that train no common model."""
    names = ("fedavg", "fedprox", "afl", "ditto", "apfl", "fedbio")
    records = [
        point(name, 0.5 + place / 100, seed=seed, data={"name": data})
        for data in ("adult", "credit")
        for place, name in enumerate(names)
        for seed in range(5)
    ]
    assert [model_for(cell) for cell in Results(records[15:30]).cells] == ["each client"] * 3
    common = point("fedbio", 0.5, own={"outer_rounds": 5})
    assert model_for(Results([common]).cells[0]) == "everybody"
    texts = texts_in(rank_diagram(Results(records), tmp_path / "a", "accuracy")[1])
    assert {"A model for everybody", "A model for each client", *names} <= set(texts)
