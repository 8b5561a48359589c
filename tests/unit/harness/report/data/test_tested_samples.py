"""Differences by seed are paired where the same samples were tested, and told apart where not."""

from __future__ import annotations

import io
from dataclasses import replace

import pytest
from rich.console import Console

from harness.config.recorded import versions
from harness.report.data.leaderboard import leaderboard
from harness.report.data.results import Results
from harness.report.tables.rows import Board
from harness.report.tables.summary import print_summary
from tests.support.records import done, private, spec, statement


def seen(record, digest="", samples=100):
    return replace(record, tested={"samples": samples, **({"digest": digest} if digest else {})})


def run(algorithm, seed, accuracy, epsilon=None):
    given = spec(algorithm, seed, privacy=None if epsilon is None else private(epsilon))
    record = done(given, accuracy=accuracy)
    if epsilon is not None:
        record.rounds[-1]["privacy"] = statement(epsilon) | {
            "placement": "local",
            "unit": "user",
            "clip": 10.0,
        }
    return record


def printed(records):
    console = Console(file=io.StringIO(), width=200)
    print_summary(
        Results(records), Board(leaderboard(Results(records), "accuracy")), "accuracy", None, console
    )
    return " ".join(console.file.getvalue().split())


def test_private_runs_with_other_test_samples_have_no_change():
    plain = [seen(run("fedavg", seed, 0.99), "a") for seed in range(3)]
    same = [seen(run("fedavg", seed, 0.6, 3.0), "a") for seed in range(3)]
    others = [seen(run("fedavg", seed, 0.5, 8.0), "b") for seed in range(3)]
    text = printed([*plain, *same, *others])
    assert "-39.0 [-39.0, -39.0]" in text and "-49.0" not in text
    assert "These rows were tested on other samples than the one without protection" in text
    assert "there is no change: ε = 8." in text and "data.user" in text
    assert "Other samples" not in printed([*plain, *same])


def test_without_digests_their_number_tells():
    """Records of earlier versions have numbers of test samples by client."""
    plain = [run("fedavg", seed, 0.99) for seed in range(3)]
    others = [run("fedavg", seed, 0.5, 8.0) for seed in range(3)]
    for records, n in ((plain, [6, 4]), (others, [6, 5])):
        for record in records:
            record.final["by_client"] = {"client": ["a", "b"], "n": n, "accuracy": [0.5, 0.5]}
    assert "-49.0" not in printed([*plain, *others])
    for record in others:
        record.final["by_client"]["n"] = [6, 4]
    assert "-49.0" in printed([*plain, *others])


def test_a_baseline_with_other_test_samples_is_no_pair():
    rows = [seen(run("fedavg", seed, 0.9), "a") for seed in range(3)]
    rows += [seen(run("ditto", seed, 0.8), "a" if seed else "b") for seed in range(3)]
    rows += [seen(run("scaffold", seed, 0.7), "b") for seed in range(3)]
    table = leaderboard(Results(rows), "accuracy", "fedavg").set_index("algorithm")
    assert table.loc["ditto", "compared"].startswith("2 seeds, 1 seed with other test samples")
    assert table.loc["ditto", "paired_difference"] == pytest.approx(-0.1)
    assert table.loc["scaffold", "compared"] == "not comparable: other test samples than those of fedavg"
    assert "paired_difference" in table and table["paired_difference"].isna()["scaffold"]
    assert "scaffold: not comparable: other test samples than those of fedavg" in printed_table(rows)


def printed_table(records):
    from harness.report.tables.write import reasons

    return "\n".join(reasons(leaderboard(Results(records), "accuracy", "fedavg")))


@pytest.mark.parametrize(
    "privacy", [{"sampling": "poisson"}, {"clip": "adaptive"}, {"unit": "record", "sampling": "poisson"}]
)
def test_versions_of_privacy_part_no_private_run_from_those_without(privacy):
    """Runs with secret draws or an adaptive clip have versions of their own, and the same task."""
    plain = [seen(run("fedavg", seed, 0.99), "a") for seed in range(3)]
    hidden = [seen(run("fedavg", seed, 0.6, 3.0), "a") for seed in range(3)]
    for record in hidden:
        record.spec["privacy"] |= privacy
    records = [replace(one, digest="d", versions=versions(one.spec)) for one in (*plain, *hidden)]
    assert plain[0].versions.keys() | {"privacy"} < records[-1].versions.keys()
    assert len({row["task"] for row in Board(leaderboard(Results(records))).rows}) == 1
    assert "-39.0 [-39.0, -39.0]" in printed(records)
