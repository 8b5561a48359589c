"""The picture of what attackers find out."""

import pytest

from harness.report.data.leaderboard import leaderboard
from harness.report.data.results import Results
from harness.report.plots.attacks import attacks
from harness.report.tables.columns import narrow_columns
from harness.report.tables.rows import Board
from tests.support.records import done, evaluation, private, spec
from tests.support.written import texts_in

pytestmark = pytest.mark.usefixtures("vectors_only")


def point(accuracy, epsilon=None, compression=None, **measures):
    parts = {"privacy": None if epsilon is None else private(epsilon)}
    if compression:
        parts["compression"] = compression
    return done(spec("fedavg", **parts), evaluation(20, 1000, epsilon, accuracy=accuracy, **measures))


def test_every_attack_has_a_panel_with_the_names_of_what_protects(tmp_path):
    records = [
        point(0.9, lira_auc=0.7, inversion_error=0.0),
        point(0.8, compression={"beta": 0.9}, lira_auc=0.68, inversion_error=0.6),
        point(0.85, compression={"codec": "q4"}, lira_auc=0.69, inversion_error=0.4),
        point(0.7, epsilon=8.0, lira_auc=0.51, inversion_error=1.7),
    ]
    texts = texts_in(attacks(Results(records), tmp_path / "a", "accuracy")[1])
    assert {"none", "90 %", "q4", "ε 8"} <= set(texts)
    assert {"nothing", "dropped entries", "coarser numbers"} <= set(texts)
    assert any("LiRA" in text for text in texts) and any("reconstructed" in text for text in texts)
    assert not any("labels inferred" in text for text in texts)


def test_there_is_none_without_attacks_or_of_few_cells(tmp_path):
    assert attacks(Results([point(0.9), point(0.8, epsilon=8.0)]), tmp_path / "a", "accuracy") is None
    few = [point(0.9, lira_auc=0.7), point(0.8, epsilon=8.0, lira_auc=0.5)]
    assert attacks(Results(few), tmp_path / "a", "accuracy") is None


def test_tables_have_a_column_for_every_attack(tmp_path):

    frame = leaderboard(
        Results([point(0.9, lira_auc=0.7, inversion_error=0.0), point(0.8, epsilon=8.0, lira_auc=0.5)])
    )
    headings = [column.heading for column in narrow_columns(Board(frame))]
    assert "LiRA AUC" in headings and "Inversion error" in headings
    assert "Transcript AUC" not in headings
    plain = leaderboard(Results([point(0.9), point(0.8, epsilon=8.0)]))
    assert "LiRA AUC" not in [column.heading for column in narrow_columns(Board(plain))]
