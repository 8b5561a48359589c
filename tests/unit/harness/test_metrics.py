"""Metrics against hand-computed figures, against scikit-learn and fairlearn, and by their own laws."""

from __future__ import annotations

import csv
from dataclasses import replace
from pathlib import Path
from typing import Any

import fairlearn.metrics as fair
import numpy as np
import pytest
import sklearn.metrics as sk
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from harness.metrics import (
    METRICS,
    Predictions,
    by_group,
    consensus_distance,
    evaluate,
    metric,
    read_predictions,
    registry,
    write_predictions,
)
from harness.storage.files import Unwritable

GROUP_METRICS = {"worst_group", "eqopp", "eqodds", "dp_gap"}
LARGE_METRICS = {"worst_client_10", "worst_auroc"}


def binary(
    y_true: list[int],
    y_pred: list[int] | None = None,
    *,
    client: list[int] | None = None,
    score: Any = None,
    group: list[int] | None = None,
    groups: tuple[str, ...] = (),
    loss: list[float] | None = None,
) -> Predictions:
    """Build predictions of a two-class task from lists; the score defaults to the predicted label."""
    y_pred = y_true if y_pred is None else y_pred
    return Predictions(
        client=np.array(client if client is not None else [0] * len(y_true), np.int64),
        y_true=np.array(y_true, np.int64),
        score=np.array(y_pred if score is None else score, np.float64),
        y_pred=np.array(y_pred, np.int64),
        classes=("no", "yes"),
        groups=groups or (() if group is None else tuple("abcdefgh"[: max(group) + 1])),
        group=None if group is None else np.array(group, np.int64),
        loss=None if loss is None else np.array(loss, np.float64),
    )


def drawn(seed: int, classes: int, n: int = 400, clients: int = 7, groups: int = 3) -> Predictions:
    """Draw predictions that are better than chance, with rounded scores so that ties occur."""
    rng = np.random.default_rng(seed)
    y_true = rng.integers(0, classes, n)
    logits = np.round(rng.normal(size=(n, classes)) + 1.2 * np.eye(classes)[y_true], 1)
    score = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
    return Predictions(
        client=rng.integers(0, clients, n),
        y_true=y_true,
        score=score,
        y_pred=score.argmax(1),
        classes=tuple(f"class {k}" for k in range(classes)),
        groups=tuple(f"group {g}" for g in range(groups)),
        group=rng.integers(0, groups, n),
        loss=-np.log(score[np.arange(n), y_true]),
    )


def value(name: str, predictions: Predictions) -> float | None:
    """Evaluate everything and pick one figure."""
    return evaluate(predictions, int(predictions.client.max()) + 1)[name]


# --- hand-computed ---


def test_client_accuracy_weighs_clients_equally() -> None:
    """Client 0 has 3 of 4 right, client 2 has 0 of 1; client 1 and client 3 have no test sample.

    Pooled 3/5. Mean of (3/4, 0) = 3/8, lowest 0, deviations +-3/8 from the mean: population deviation 3/8.
    """
    p = binary([1, 1, 0, 0, 1], [1, 1, 0, 1, 0], client=[0, 0, 0, 0, 2])
    figures = evaluate(p, total_clients=4)
    assert figures["accuracy"] == 3 / 5
    assert figures["client_accuracy"] == 3 / 8
    assert figures["worst_client"] == 0
    assert figures["client_std"] == 3 / 8


def test_recall_metrics_leave_out_classes_that_do_not_occur() -> None:
    """Class 0: 1 of 2 right; class 2: 3 of 4; class 1 is predicted but never occurs: mean (1/2 + 3/4)/2."""
    y_true, y_pred = np.array([0, 0, 2, 2, 2, 2]), np.array([0, 1, 2, 2, 2, 1])
    p = Predictions(np.zeros(6, np.int64), y_true, np.eye(3)[y_pred], y_pred, ("a", "b", "c"))
    assert value("balanced_accuracy", p) == 5 / 8
    assert value("worst_class", p) == 1 / 2


def test_equal_opportunity_ignores_a_group_without_positives() -> None:
    """True positive rates 2/2, 1/2, 3/4; group d has only negatives, all predicted positive: gap 1 - 1/2."""
    group = [0, 0, 1, 1, 2, 2, 2, 2, 3, 3]
    y_true = [1, 1, 1, 1, 1, 1, 1, 1, 0, 0]
    y_pred = [1, 1, 1, 0, 1, 1, 1, 0, 1, 1]
    assert value("eqopp", binary(y_true, y_pred, group=group)) == 0.5


def test_group_gaps_of_two_groups_by_hand() -> None:
    """Group a: TPR 2/2, FPR 0/2, predicted positive 2/4, accuracy 4/4.

    Group b: TPR 1/2, FPR 3/4, predicted positive 4/6, accuracy 2/6. Gaps 1/2 and 3/4, so equalized odds 3/4;
    positive rates differ by 4/6 - 2/4 = 1/6.
    """
    p = binary(
        [1, 1, 0, 0, 1, 1, 0, 0, 0, 0],
        [1, 1, 0, 0, 1, 0, 1, 1, 1, 0],
        group=[0, 0, 0, 0, 1, 1, 1, 1, 1, 1],
    )
    assert value("eqopp", p) == 1 / 2
    assert value("eqodds", p) == 3 / 4
    assert value("dp_gap", p) == pytest.approx(1 / 6, abs=1e-15)
    assert value("worst_group", p) == 2 / 6


def test_the_group_table_leaves_undefined_rates_empty() -> None:
    """Group a: 2 samples, 1 positive found, 1 false alarm; b: 1 negative, kept out; c: nobody."""
    p = binary([1, 0, 0], [1, 1, 0], group=[0, 0, 1], groups=("a", "b", "c"))
    assert by_group(p) == [
        dict(group="a", n=2, positives=1, accuracy=0.5, tpr=1.0, fpr=1.0, positive_rate=1.0),
        dict(group="b", n=1, positives=0, accuracy=1.0, tpr=None, fpr=0.0, positive_rate=0.0),
        dict(group="c", n=0, positives=0, accuracy=None, tpr=None, fpr=None, positive_rate=None),
    ]


def test_group_table_has_no_positive_class_beyond_two_classes() -> None:
    """With three classes only sizes and accuracies remain; without a sensitive attribute nothing does."""
    p = drawn(0, classes=3)
    for g, row in enumerate(by_group(p)):
        assert row["n"] == np.sum(p.group == g)
        assert row["accuracy"] == pytest.approx(
            sk.accuracy_score(p.y_true[p.group == g], p.y_pred[p.group == g]), abs=1e-12
        )
        assert [row[name] for name in ("positives", "tpr", "fpr", "positive_rate")] == [None] * 4
    assert by_group(binary([0, 1])) == []


def test_auroc_counts_a_tie_as_half() -> None:
    """Positives 3, 2; negatives 2, 1: the pairs 3>2, 3>1, 2=2, 2>1 give (1 + 1 + 1/2 + 1) / 4."""
    assert value("auroc", binary([1, 1, 0, 0], score=[3, 2, 2, 1])) == 3.5 / 4


def test_client_auroc_averages_clients_with_both_classes() -> None:
    """Client 0 is perfect (1), client 2 has its only pair the wrong way (0), client 1 has positives only.

    So 1/2 over 2 clients, while pooled: positives 5, 9, 1; negatives 4, 2 win 2 + 2 + 0 of 6 pairs.
    """
    p = binary([1, 0, 1, 1, 0], score=[5, 4, 9, 1, 2], client=[0, 0, 1, 2, 2])
    assert value("auroc_clients", p) == 1 / 2
    assert value("auroc_clients_n", p) == 2
    assert value("auroc", p) == pytest.approx(4 / 6, abs=1e-15)


def test_two_columns_of_scores_rank_by_the_second() -> None:
    """Column 0 ranks the wrong way round, column 1 perfectly; NaN in column 0 does not matter either."""
    score = [[0.9, 0.8], [0.1, 0.3], [np.nan, 0.1]]
    assert value("auroc", binary([1, 0, 0], score=score)) == 1


def test_small_clients_are_not_the_worst() -> None:
    """Client 0 has 10 samples and 6 hits, client 1 has 9 and none; AUROC needs 5 of both classes."""
    p = binary([1] * 5 + [0] * 5 + [1] * 9, [1] * 6 + [0] * 3 + [1] + [0] * 9, client=[0] * 10 + [1] * 9)
    assert value("worst_client", p) == 0 and value("worst_client_10", p) == 0.8
    assert value("worst_auroc", p) == pytest.approx((5 * 3 + 2 * 5 / 2) / 25)
    assert value("worst_client_10", binary([1, 0])) is None and value("worst_auroc", binary([1, 0])) is None


def test_sensitivity_at_a_specificity_of_95_percent_by_hand() -> None:
    """Of 20 negatives 1 .. 20 one may be above: the threshold is 19, and two of the positives are above it.

    Of 19 negatives none may be above.
    """
    positives = [19.0, 19.5, 21.0]
    p = binary([0] * 20 + [1] * 3, score=[*range(1, 21), *positives])
    assert value("sensitivity_95", p) == pytest.approx(2 / 3)
    assert value(
        "sensitivity_95", binary([0] * 19 + [1] * 3, score=[*range(2, 21), *positives])
    ) == pytest.approx(1 / 3)
    assert value("sensitivity_95", binary([1, 1], score=[0, 1])) is None


def test_calibration_by_hand() -> None:
    """Confidence .9 twice with one hit: .4 apart; 1 - .3 = .7 once, a hit: .3. Mean (.8 + .3) / 3."""
    p = binary([1, 0, 0], [1, 1, 0], score=[0.9, 0.9, 0.3])
    assert value("ece", p) == pytest.approx(1.1 / 3)
    assert value("ece", replace(p, score=np.array([[0.1, 0.9], [0.1, 0.9], [0.7, 0.3]]))) == pytest.approx(
        1.1 / 3
    )
    assert value("ece", replace(p, score=np.array([2.0, -1.0, 0.5]))) is None
    assert value("ece", replace(p, score=np.array([np.nan, 0.5, 0.5]))) is None


def test_a_calibrated_model_has_a_small_error() -> None:
    draw = np.random.default_rng(0)
    score = draw.random(100_000)
    y = (draw.random(100_000) < score).astype(int)
    assert value("ece", binary(y.tolist(), (score > 0.5).astype(int).tolist(), score=score)) < 0.01


@pytest.mark.parametrize("seed", range(5))
def test_sensitivity_agrees_with_the_curve_of_scikit_learn(seed: int) -> None:
    p = drawn(seed, classes=2)
    fpr, tpr, _ = sk.roc_curve(p.y_true, p.positive_score, drop_intermediate=False)
    assert value("sensitivity_95", p) == pytest.approx(tpr[fpr <= 0.05 + 1e-12].max(), abs=1e-12)


def test_loss_is_the_mean_per_sample() -> None:
    """Losses 1, 2, 6 over two clients: 3, however they are spread."""
    assert value("loss", binary([0, 1, 1], loss=[1, 2, 6], client=[0, 1, 1])) == 3


def test_consensus_distance_by_hand() -> None:
    """Rows (0, 0) and (2, 4) have the mean (1, 2): each is 1 + 4 away. Equal rows have none."""
    assert consensus_distance(torch.tensor([[0.0, 0.0], [2.0, 4.0]])) == 5
    assert consensus_distance(torch.full((4, 3), 7.5)) == 0
    with pytest.raises(ValueError, match=r"rows \(C, P\)"):
        consensus_distance(torch.zeros(3))


# --- what does not apply is None ---


def test_without_groups_only_the_group_metrics_are_none() -> None:
    """Two clients with both classes and losses: nothing else may be missing."""
    p = binary([0, 1, 0, 1], client=[0, 0, 1, 1], loss=[1, 1, 1, 1])
    assert {name for name, v in evaluate(p, 2).items() if v is None} == GROUP_METRICS | LARGE_METRICS


def test_beyond_two_classes_exactly_the_binary_metrics_are_none() -> None:
    """The lowest accuracy of a group still applies."""
    figures = evaluate(drawn(0, classes=4), 7)
    assert {name for name, v in figures.items() if v is None} == {
        "eqopp", "eqodds", "dp_gap", "auroc_clients", "auroc_clients_n", "worst_auroc", "sensitivity_95",
    }  # fmt: skip


def test_only_the_metrics_asked_for_are_computed(monkeypatch: pytest.MonkeyPatch) -> None:
    p = drawn(0, classes=2)
    full = evaluate(p, 7)
    assert evaluate(p, 7, ["accuracy", "loss"]) == {name: full[name] for name in ("accuracy", "loss")}
    monkeypatch.setitem(
        METRICS, "auroc", replace(METRICS["auroc"], fn=lambda _: pytest.fail("computed unasked"))
    )
    assert list(evaluate(p, 7, {"accuracy"})) == ["accuracy"]


def test_one_group_leaves_nothing_to_compare() -> None:
    """All samples in group b of three: no gap, no worst."""
    p = binary([0, 1], client=[0, 1], group=[1, 1], groups=("a", "b", "c"))
    assert {evaluate(p, 2)[name] for name in GROUP_METRICS} == {None}


def test_one_class_alone_has_no_ranking_and_no_gap() -> None:
    """Positives only: TPRs exist (1 and 0), FPRs do not: equalized odds is unknown, not the TPR gap."""
    p = binary([1, 1], [1, 0], group=[0, 1])
    figures = evaluate(p, 1)
    assert figures["eqopp"] == 1
    assert figures["eqodds"] is None
    assert figures["auroc"] is None
    assert figures["auroc_clients"] is None
    assert figures["auroc_clients_n"] == 0


def test_equal_opportunity_needs_positives_in_two_groups() -> None:
    """Only group a has a positive."""
    assert value("eqopp", binary([1, 0, 0], [1, 1, 0], group=[0, 0, 1])) is None


def test_a_single_client_has_no_spread() -> None:
    """But it has an accuracy, which is mean and minimum."""
    figures = evaluate(binary([0, 1], [0, 0]), 1)
    assert figures["client_std"] is None
    assert figures["client_accuracy"] == figures["worst_client"] == 0.5
    assert figures["loss"] is None


def test_a_diverged_model_gives_none_and_never_nan() -> None:
    """NaN scores have no rank and an infinite loss is no JSON number; the accuracy of the labels remains."""
    p = binary([0, 1, 1], [0, 0, 1], score=[np.nan, 0.2, 0.3], loss=[np.inf, 1, 1])
    figures = evaluate(p, 1)
    assert figures["auroc"] is figures["auroc_clients"] is figures["loss"] is None
    assert figures["accuracy"] == 2 / 3


# --- oracles ---


@pytest.mark.parametrize("classes", [2, 3, 10])
def test_accuracy_recall_and_auroc_agree_with_scikit_learn(classes: int) -> None:
    """Ties occur, as scores are rounded; beyond two classes AUROC is the mean of one against the rest."""
    p = drawn(classes, classes)
    recalls = sk.recall_score(p.y_true, p.y_pred, average=None)
    score = p.score[:, 1] if classes == 2 else p.score
    auroc = sk.roc_auc_score(p.y_true, score, multi_class="ovr", average="macro")
    assert value("accuracy", p) == pytest.approx(sk.accuracy_score(p.y_true, p.y_pred), abs=1e-12)
    assert value("balanced_accuracy", p) == pytest.approx(recalls.mean(), abs=1e-12)
    assert value("worst_class", p) == pytest.approx(recalls.min(), abs=1e-12)
    assert value("auroc", p) == pytest.approx(auroc, abs=1e-12)


def test_auroc_of_many_classes_skips_absent_ones() -> None:
    """Class 2 of 4 is taken out of the labels: the mean is over the three one-against-rest curves left."""
    p = drawn(1, classes=4)
    keep = p.y_true != 2
    rest = Predictions(p.client[keep], p.y_true[keep], p.score[keep], p.y_pred[keep], p.classes)
    curves = [sk.roc_auc_score(rest.y_true == k, rest.score[:, k]) for k in (0, 1, 3)]
    assert value("auroc", rest) == pytest.approx(np.mean(curves), abs=1e-12)


def test_client_aurocs_agree_with_scikit_learn_client_by_client() -> None:
    """30 samples on 12 clients, so that some clients have one class only."""
    p = drawn(4, classes=2, n=30, clients=12)
    mine = [p.client == c for c in range(12) if len(set(p.y_true[p.client == c])) == 2]
    assert 0 < len(mine) < 12
    expected = np.mean([sk.roc_auc_score(p.y_true[m], p.score[m, 1]) for m in mine])
    assert value("auroc_clients", p) == pytest.approx(expected, abs=1e-12)
    assert value("auroc_clients_n", p) == len(mine)


def test_client_accuracies_agree_with_a_loop_over_clients() -> None:
    """The plain definition, one client at a time."""
    p = drawn(5, classes=3)
    each = [sk.accuracy_score(p.y_true[p.client == c], p.y_pred[p.client == c]) for c in range(7)]
    assert value("client_accuracy", p) == pytest.approx(np.mean(each), abs=1e-12)
    assert value("client_std", p) == pytest.approx(np.std(each), abs=1e-12)
    assert value("worst_client", p) == pytest.approx(min(each), abs=1e-12)


@pytest.mark.parametrize("seed", range(5))
def test_group_metrics_and_table_agree_with_fairlearn(seed: int) -> None:
    """Every group has positives and negatives here; fairlearn calls a missing rate 0, we leave it out."""
    p = drawn(seed, classes=2, n=120, groups=4)
    oracle = {"sensitive_features": p.group}
    frame = fair.MetricFrame(
        metrics={
            "accuracy": sk.accuracy_score,
            "tpr": fair.true_positive_rate,
            "fpr": fair.false_positive_rate,
            "positive_rate": fair.selection_rate,
        },
        y_true=p.y_true,
        y_pred=p.y_pred,
        **oracle,
    )
    assert value("worst_group", p) == pytest.approx(frame.group_min()["accuracy"], abs=1e-12)
    assert value("eqopp", p) == pytest.approx(frame.difference()["tpr"], abs=1e-12)
    odds = fair.equalized_odds_difference(p.y_true, p.y_pred, **oracle)
    assert value("eqodds", p) == pytest.approx(odds, abs=1e-12)
    parity = fair.demographic_parity_difference(p.y_true, p.y_pred, **oracle)
    assert value("dp_gap", p) == pytest.approx(parity, abs=1e-12)
    for g, row in enumerate(by_group(p)):
        for rate, expected in frame.by_group.loc[g].items():
            assert row[rate] == pytest.approx(expected, abs=1e-12)


def test_auroc_of_many_samples_needs_no_pairwise_table() -> None:
    """300,000 samples have 2 * 10^10 pairs: only a method that sorts gets through, and still exactly."""
    p = drawn(6, classes=2, n=300_000, clients=50)
    assert value("auroc", p) == pytest.approx(sk.roc_auc_score(p.y_true, p.score[:, 1]), abs=1e-12)


# --- laws ---

RANKED = st.lists(st.tuples(st.booleans(), st.integers(-8, 8), st.integers(0, 3)), min_size=2, max_size=40)


@settings(max_examples=60, deadline=None)
@given(RANKED)
def test_auroc_is_the_share_of_pairs_won(samples: list[tuple[bool, int, int]]) -> None:
    """The definition by pairs, ties half; few score values, so that ties are common."""
    positives = [s for y, s, _ in samples if y]
    negatives = [s for y, s, _ in samples if not y]
    assume(positives and negatives)
    won = np.mean([(a > b) + (a == b) / 2 for a in positives for b in negatives])
    p = binary([int(y) for y, _, _ in samples], score=[s for _, s, _ in samples], y_pred=[0] * len(samples))
    assert value("auroc", p) == pytest.approx(won, abs=1e-12)


@settings(max_examples=60, deadline=None)
@given(RANKED)
def test_auroc_depends_only_on_the_order_of_scores(
    samples: list[tuple[bool, int, int]],
) -> None:
    """Negated scores give 1 - AUROC; any increasing function of the scores gives the very same number."""
    labels = [int(y) for y, _, _ in samples]
    scores, clients = np.array([s for _, s, _ in samples], float), [c for _, _, c in samples]

    def figures(score: np.ndarray) -> list[float | None]:
        p = binary(labels, [0] * len(labels), score=score, client=clients)
        return [value("auroc", p), value("auroc_clients", p)]

    plain = figures(scores)
    turned = [None if v is None else pytest.approx(1 - v, abs=1e-12) for v in plain]
    assert figures(-scores) == turned
    assert figures(scores**3 + 2) == figures(np.exp(scores)) == figures(1 / (1 + np.exp(-scores))) == plain


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 2**32 - 1), classes=st.integers(1, 4), n=st.integers(1, 30))
def test_metrics_ignore_the_order_of_samples_and_names(seed: int, classes: int, n: int) -> None:
    """Shuffle the samples, renumber clients and groups: every figure stays; shares stay within 0 and 1."""
    p = drawn(seed, classes, n)
    assert p.group is not None and p.loss is not None
    rng = np.random.default_rng(seed)
    order, clients, groups = rng.permutation(n), rng.permutation(7), rng.permutation(3)
    q = Predictions(
        clients[p.client[order]],
        p.y_true[order],
        p.score[order],
        p.y_pred[order],
        p.classes,
        p.groups,
        groups[p.group[order]],
        p.loss[order],
    )
    before, after = evaluate(p, 7), evaluate(q, 7)
    assert after == {name: None if v is None else pytest.approx(v, abs=1e-12) for name, v in before.items()}
    shares = [v for name, v in before.items() if v is not None and name not in ("loss", "auroc_clients_n")]
    assert all(0 <= v <= 1 for v in shares)


# --- the registry ---


def test_a_metric_is_added_by_one_function(monkeypatch: pytest.MonkeyPatch) -> None:
    """It appears last in every evaluation, described by its docstring; NaN becomes None; names are unique."""
    monkeypatch.setattr(registry, "METRICS", dict(METRICS))

    @metric("min", ".2f", "samples")
    def wrong(p: Predictions) -> float | None:
        """How many samples are wrong.

        More text that no table shows.
        """
        return float((~p.hit).sum())

    @metric("max", ".2f", "share")
    def careless(p: Predictions) -> float | None:
        """Forgets the case without samples."""
        return float("nan")

    assert list(evaluate(binary([0, 1], [1, 0]), 1).items())[-2:] == [("wrong", 2.0), ("careless", None)]
    assert registry.METRICS["wrong"].description == "How many samples are wrong [samples]"
    with pytest.raises(ValueError, match="'wrong' is registered twice"):
        metric("max", "", "")(wrong)


def test_every_metric_is_described_for_reports() -> None:
    """A direction, a format that prints a number, a unit in brackets; gaps, spread and loss are to shrink."""
    assert {name for name, m in METRICS.items() if m.direction == "min"} == {
        "client_std", "eqopp", "eqodds", "dp_gap", "ece", "loss", "mae", "rmse", "worst_mae", "mae_gap",
    }  # fmt: skip
    for name, m in METRICS.items():
        assert m.name == name
        assert float(format(0.5, m.format)) in (0, 0.5)
        assert m.description.endswith("]")


# --- refusals ---


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"y_true": np.array([0, 2])}, "y_true: allowed values are 0 to 1, got 0 to 2"),
        ({"y_pred": np.array([-1, 0])}, "y_pred: allowed values are 0 to 1, got -1 to 0"),
        ({"client": np.array([-1, 0])}, "client: allowed values are 0 and above, got -1 to 0"),
        ({"y_true": np.array([0.0, 1.0])}, "y_true: expected int64 (2,), got float64 (2,)"),
        ({"score": np.zeros((2, 3))}, "score: expected float64 (2, 2) or (2,), got float64 (2, 3)"),
        ({"score": np.zeros(2, np.float32)}, "got float32 (2,)"),
        ({"loss": np.zeros(1)}, "loss: expected float64 (2,), got float64 (1,)"),
        ({"group": np.array([0, 0])}, "group and groups go together"),
        ({"groups": ("a",)}, "group and groups go together"),
        ({"groups": ("a",), "group": np.array([0, 1])}, "group: allowed values are 0 to 0, got 0 to 1"),
        ({"client": np.zeros(0, np.int64)}, "at least one test sample"),
    ],
)
def test_wrong_arrays_are_refused_with_what_is_allowed(change: dict[str, Any], message: str) -> None:
    """Each would otherwise give a wrong figure silently."""
    good: dict[str, Any] = {
        "client": np.array([0, 1]),
        "y_true": np.array([0, 1]),
        "score": np.array([0.1, 0.9]),
        "y_pred": np.array([0, 1]),
        "classes": ("no", "yes"),
    }
    Predictions(**good)
    with pytest.raises(ValueError) as error:
        Predictions(**{**good, **change})
    assert message in str(error.value)


def test_a_client_that_the_federation_does_not_have_is_refused() -> None:
    """Ids 0 and 3 in a federation of three."""
    with pytest.raises(ValueError, match="allowed values are 0 to 2, got 0 to 3"):
        evaluate(binary([0, 1], client=[0, 3]), total_clients=3)


# --- on disk ---


CASES = {
    "two columns": drawn(0, classes=2),
    "one score": binary([0, 1, 1], [0, 0, 1], score=[1 / 3, 1e-300, 2**0.5], client=[0, 4, 4]),
    "ten classes": drawn(2, classes=10),
    "one class": drawn(3, classes=1),
    "diverged": binary([0, 1, 1], score=[np.nan, np.inf, -np.inf], group=[0, 1, 1], loss=[np.nan, 1, 2]),
}


@pytest.mark.parametrize("case", CASES)
def test_every_figure_can_be_computed_again_from_the_file(case: str, tmp_path: Path) -> None:
    """Not approximately: floats are written with all their digits."""
    p = CASES[case]
    write_predictions(p, tmp_path / "predictions.csv")
    again = read_predictions(tmp_path / "predictions.csv", classes=p.classes, groups=p.groups)
    assert evaluate(again, 10) == evaluate(p, 10)
    assert by_group(again) == by_group(p)
    assert [file.name for file in tmp_path.iterdir()] == ["predictions.csv"]


def test_names_are_numbers_when_the_reader_is_not_told(tmp_path: Path) -> None:
    """The file has none; figures are the same."""
    p = drawn(7, classes=3)
    write_predictions(p, tmp_path / "p.csv")
    again = read_predictions(tmp_path / "p.csv")
    assert (again.classes, again.groups) == (("0", "1", "2"), ("0", "1", "2"))
    assert evaluate(again, 7) == evaluate(p, 7)


def test_the_file_is_plain_csv_with_the_stated_columns(tmp_path: Path) -> None:
    """One line a sample; the group is empty without a sensitive attribute, the loss a column if known."""
    write_predictions(
        binary([0, 1], [0, 0], score=[[0.9, 0.1], [0.75, 0.25]], client=[3, 5]), tmp_path / "a.csv"
    )
    assert (tmp_path / "a.csv").read_text() == (
        "client,y_true,y_score,y_pred,group\n3,0,0.1,0,\n5,1,0.25,0,\n"  # y_score is that of class 1
    )
    write_predictions(drawn(0, classes=3), tmp_path / "b.csv")
    with (tmp_path / "b.csv").open() as file:
        header = next(csv.reader(file))
    scores = ["y_score_0", "y_score_1", "y_score_2"]
    assert header == ["client", "y_true", *scores, "y_pred", "group", "loss"]


def test_a_write_that_fails_leaves_the_old_file_and_no_rest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The disk is full when the new file takes the old one's place."""
    path = tmp_path / "predictions.csv"
    write_predictions(binary([0, 1]), path)
    before = path.read_text()

    def full(temporary: Path, target: Path) -> None:
        raise OSError("no space left")

    monkeypatch.setattr(Path, "replace", full)
    with pytest.raises(Unwritable, match="no space left"):
        write_predictions(binary([1, 1, 1]), path)
    assert path.read_text() == before
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("loss", [None, [0.5, 0.25, 1.0]])
def test_names_of_clients_are_written_last_and_change_nothing(
    tmp_path: Path, loss: list[float] | None
) -> None:
    """Names may hold commas and quotes; what is read back are the predictions."""
    given = replace(
        binary([0, 1, 1]), client=np.array([1, 0, 1]), loss=None if loss is None else np.array(loss)
    )
    write_predictions(given, tmp_path / "named.csv", ['Long Beach, "VA"', "Cleveland"])
    write_predictions(given, tmp_path / "plain.csv")
    with (tmp_path / "named.csv").open(newline="") as file:
        header, *lines = csv.reader(file)
    assert header[-1] == "name"
    assert [line[-1] for line in lines] == ["Cleveland", 'Long Beach, "VA"', "Cleveland"]
    named, plain = (read_predictions(tmp_path / f"{name}.csv") for name in ("named", "plain"))
    assert evaluate(named, 2) == evaluate(plain, 2)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "expected columns client,y_true,y_score,y_pred,group[,loss][,name], got "),
        ("client,y_true,y_pred,group\n0,1,1,\n", "got client,y_true,y_pred,group"),
        (
            "client,y_true,y_score_0,y_pred,group,note\n",
            "expected columns client,y_true,y_score_0,y_pred,group",
        ),
        ("client,y_true,y_score,y_pred,group\n0,1,0.5,1,\n0,1\n", "line 3: expected 5 fields, got 2"),
        ("client,y_true,y_score,y_pred,group\n0,1,high,1,\n", "column y_score: could not convert"),
        ("client,y_true,y_score,y_pred,group\n0,1,0.5,1,\n0,1,0.5,1,2\n", "column group: invalid literal"),
    ],
)
def test_a_file_that_is_not_ours_is_refused_with_the_place(text: str, message: str, tmp_path: Path) -> None:
    """Columns, line or column are named."""
    path = tmp_path / "p.csv"
    path.write_text(text)
    with pytest.raises(ValueError) as error:
        read_predictions(path)
    assert message in str(error.value)
    assert "p.csv" in str(error.value)


def test_scores_that_only_rank_have_an_auroc_and_no_accuracy(tmp_path: Path) -> None:
    """Of scores (3, -1, 2) with labels (1, 0, 0) the positive beats both negatives: AUROC 1, decided is nothing."""
    p = replace(binary([1, 0, 0], score=[3.0, -1.0, 2.0], group=[0, 1, 1]), y_pred=None)
    values = evaluate(p, 1)
    assert {name for name, v in values.items() if v is not None} == {
        "auroc",
        "auroc_clients",
        "auroc_clients_n",
        "sensitivity_95",
    }
    assert values["auroc"] == 1.0 and by_group(p) == []
    write_predictions(p, tmp_path / "p.csv")
    again = read_predictions(tmp_path / "p.csv")
    assert again.y_pred is None and evaluate(again, 1) == values
