"""Pages on papers: sentences that name a finding, and tables that are filled in."""

import pytest

from harness.core.errors import UserError
from studies.papers import pages
from studies.papers.claims import read_claims
from studies.papers.observations import read_observations
from studies.papers.pages import Judged, filled, misstated, values
from studies.papers.verdicts import judge
from tests.unit.studies.papers.test_command import write


@pytest.fixture
def judged(tmp_path):
    """One claim of suite `lvfl`, held at 0.1, of a paper that the pages count."""
    folder = write(tmp_path / "lvfl")
    observations = read_observations(folder / "claims.csv")
    (claim,) = read_claims(folder).claims
    return {"lvfl": Judged([judge(claim, observations)], observations)}


def test_findings_counts_and_columns_can_be_named(judged):
    named = values(judged)
    assert named["lvfl/one"].forms[1] == "0.1"
    assert (named["LVFL, claims"].text, named["LVFL, held"].text, named["LVFL, refuted"].text) == (
        "1",
        "1",
        "0",
    )
    assert named["lvfl: rounds"].text == "12, 24"  # of the committed leaderboard


@pytest.mark.parametrize(
    "sentence, told",
    [
        ("It gains 0.1<!-- lvfl/one -->, 1<!-- LVFL, held --> held of 2.", None),
        ("It gains 0.2<!-- lvfl/one -->.", "lvfl/one is 0.1"),
        ("It gains 0.1<!-- lvfl/two -->.", "there is no value 'lvfl/two'"),
    ],
)
def test_a_sentence_that_names_a_figure_says_it(judged, tmp_path, monkeypatch, sentence, told):
    page = tmp_path / "page.md"
    page.write_text(sentence)
    monkeypatch.setattr(pages, "ROOT", tmp_path)
    monkeypatch.setattr(pages, "documents", lambda: [page])
    monkeypatch.setattr(pages, "pictures", lambda: iter(()))
    wrong = misstated(judged)
    assert wrong == [] if told is None else told in wrong[0]


def test_tables_are_filled_in(judged):
    text = filled("A.\n\n<!-- papers lvfl --markdown -->\nstale\n<!-- end -->\n", judged)
    assert "stale" not in text and "| lvfl/one | A helps |" in text and "<details>" in text
    assert filled(text, judged) == text
    with pytest.raises(UserError, match="no claims of suite 'other'"):
        filled("<!-- papers other --markdown -->\n<!-- end -->\n", judged)
