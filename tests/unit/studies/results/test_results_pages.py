"""The pages of docs/results say what the committed leaderboards do, and what they do not say is found."""

import re

import pandas as pd
import pytest

from harness.core.errors import UserError
from studies.results.boards import ROOT, Board, Boards, Row
from studies.results.command import documents, figures_csv, make_pages, shows, stale, write
from studies.results.pages import Page, faults, filled
from studies.results.questions.methods import BETTER, LEVEL, WORSE, decide, resolution
from studies.results.values import Value, extremes, span

LOST = Value(-0.029, -0.035, -0.023, ("natural:1",)).points()


@pytest.fixture(scope="module")
def pages():
    return make_pages(Boards())


@pytest.fixture
def page():
    made = Page("epsilon")
    made.table("table", "data", ["clients", "ε 8"], {"lending": {"clients": "38 states", "ε 8": LOST}})
    made.values["seeds"] = span([10, 20])
    return made


@pytest.mark.slow
def test_the_pages_are_those_of_the_leaderboards(pages):
    assert stale(pages, ROOT) == [], "python -m studies results makes them"


def test_every_page_has_an_answer_a_picture_and_a_short_table(pages):
    for path, page, strict in documents(pages):
        if not strict or page.name == "README":
            continue
        text = (ROOT / path).read_text()
        assert f"]({page.name}.png)" in text and "<!-- figures: table -->" in text, path
        for heading in ("## How it was measured", "## Limits", "## Repeat it"):
            assert heading in text, path
        assert not re.search(r"\de\+\d", text), path  # 1.02e+03


def test_the_index_answers_every_question(pages):
    text = (ROOT / "docs" / "results" / "README.md").read_text()
    assert set(re.findall(r"\]\((\w+)\.md\)", text)) == set(pages) - {"README"}


def test_links_of_the_pages_lead_somewhere(pages):
    for path, _, _ in documents(pages):
        for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", (ROOT / path).read_text()):
            assert (ROOT / path.parent / target).exists(), f"{path}: {target}"


@pytest.mark.parametrize(
    "sentence",
    [
        "It loses 2.9<!-- lending, ε 8 --> points.",
        "**It loses 2.9**<!-- lending, ε 8 -->.",
        "The change is −2.9 [−3.5, −2.3]<!-- lending, ε 8 -->.",
        "There are 10 to 20<!-- seeds --> seeds, at ε 8 and 2 and delta 1e-5, with 95 % intervals and `lr: 0.1`.",
    ],
)
def test_a_sentence_that_says_what_a_figure_does_is_right(page, sentence):
    assert faults(sentence, page, {}) == []


@pytest.mark.parametrize(
    ("sentence", "fault"),
    [
        ("It loses 2.8<!-- lending, ε 8 --> points.", "is −2.9"),
        ("It loses 12.9<!-- lending, ε 8 --> points.", "is −2.9"),
        ("It gains +2.9<!-- lending, ε 8 --> points.", "is −2.9"),
        ("It loses 2.9<!-- lending, ε 1 --> points.", "no value 'lending, ε 1'"),
        ("It loses 2.9 points.", "names no value"),
        ("It loses .029 of AUROC.", "names no value"),
        ("It has ε 8 and 2.9 points less.", "names no value"),
    ],
)
def test_a_sentence_that_says_something_else_is_found(page, sentence, fault):
    assert any(fault in found for found in faults(sentence, page, {}))


def test_a_figure_of_another_page_is_named_with_it(page):
    sentence = "It loses 2.9<!-- epsilon: lending, ε 8 --> points."
    assert faults(sentence, Page("README"), {"epsilon": page}) == []
    assert faults(sentence.replace("2.9", "3.9"), Page("README"), {"epsilon": page})


def test_the_front_page_may_have_other_numbers_and_comments(page):
    text = "10 lines. <!-- a comment --> It loses 2.9<!-- lending, ε 8 -->."
    assert faults(text, page, {}, strict=False) == []
    assert faults(text.replace("2.9", "3.9"), page, {}, strict=False)
    assert faults(text.replace("lending", "landing"), page, {}, strict=False)


def test_tables_stand_between_their_marks(page):
    text = "# A\n\n<!-- figures: table -->\nold\n<!-- end -->\n\nB\n"
    assert "| lending | 38 states | −2.9 [−3.5, −2.3] |\n\n<!-- end -->\n\nB" in filled(text, page)
    with pytest.raises(UserError, match=r"no table 'tables'\. Allowed: table"):
        filled(text.replace("table", "tables"), page)


def test_a_table_shows_ten_rows_and_has_the_figures_of_all(page):
    page.table("long", "data", ["ε 8"], {f"row {n}": {"ε 8": LOST} for n in range(12)})
    assert page.tables["long"].count("row ") == 10 and "row 11, ε 8" in page.values


def test_figures_are_listed_with_their_rows(page):
    assert 'epsilon,"lending, ε 8",-0.029,-0.035,-0.023,"−2.9 [−3.5, −2.3]",natural:1' in figures_csv(
        {"a": page}
    )


def test_the_interval_of_a_difference_adds_squares():
    """Half widths of 3 and 4 give one of 5, on either side."""
    difference = Value(10.0, 7.0, 13.0) - Value(2.0, -2.0, 6.0)
    assert (difference.number, difference.low, difference.high) == (8.0, 3.0, 13.0)
    assert (Value(10.0) - Value(2.0, 1.0, 3.0)).low is None


@pytest.mark.parametrize(
    ("value", "text"), [(0.912, ".912"), (0.0, ".000"), (0.9996, "1.000"), (1.0, "1.000"), (10.5, "10.500")]
)
def test_shares_have_no_zero_before_the_point(value, text):
    assert Value(value).share().text == text


def test_the_least_and_the_largest_are_written_as_one():
    assert extremes([Value(0.7, 0.6, 0.8).share(), Value(0.5).share()]).text == ".500 to .700"


def test_the_interval_of_a_procedure_goes_before_that_of_seeds():
    """Two seeds with a standard deviation of √2 have a half width of t(1) = 12.706."""
    fields = {"cell": "a", "seeds": 2, "ranked_by": "loss", "loss_mean": 20.0, "loss_std": 2**0.5}
    mean = Row("s", fields).mean("loss")
    assert (mean.low, mean.high) == (
        pytest.approx(20 - 12.706, abs=1e-3),
        pytest.approx(20 + 12.706, abs=1e-3),
    )
    mean = Row("s", fields | {"procedure_low": 19.0, "procedure_high": 22.0}).mean("loss")
    assert (mean.low, mean.high) == (19.0, 22.0)


def test_a_row_is_found_by_fields_of_which_none_is_empty(tmp_path):
    table = pd.DataFrame({"cell": ["a", "b"], "done": 1, "epsilon": [None, 8.0], "seeds": 2, "tuned": None})
    (tmp_path / "mine").mkdir()
    table.to_csv(tmp_path / "mine" / "leaderboard.csv", index=False)
    board = Board(tmp_path / "mine")
    assert (board.row(epsilon=None).id, board.row(epsilon=8.0).id) == ("mine:a", "mine:b")
    with pytest.raises(UserError, match="0 rows have"):
        board.row(epsilon=1.0)


@pytest.mark.parametrize(
    ("change", "band", "verdict"),
    [
        (Value(0.02, 0.01, 0.03), 0.01, BETTER),
        (Value(0.02, 0.01, 0.03), 0.04, LEVEL),
        (Value(0.02, -0.01, 0.03), 0.0, LEVEL),
        (Value(-0.02, -0.03, -0.01), 0.0, WORSE),
    ],
)
def test_a_difference_within_that_of_one_method_twice_is_none(change, band, verdict):
    assert decide(change, band) == verdict


def test_the_resolution_of_a_table_goes_before_one_method_twice():
    class Twins:
        def row(self, algorithm, epsilon):
            return Row("s", {"cell": algorithm, "paired_difference": -0.03})

    assert resolution(Twins(), Row("s", {"cell": "a"})) == 0.03
    assert resolution(Twins(), Row("s", {"cell": "a", "resolution": 0.05})) == 0.05


def test_a_picture_holds_a_digest_of_what_it_shows(tmp_path, page):
    def picture(value, name):
        page.draw = lambda figure: figure.subplots().plot([0, 1], [0, value], label=name)
        write({"epsilon": page}, tmp_path)
        return shows(tmp_path / "docs" / "results" / "epsilon.png")

    (tmp_path / "docs" / "results").mkdir(parents=True)
    for path in ("README.md", "docs/results/epsilon.md"):
        (tmp_path / path).write_text("Text.\n")
    first = picture(1.0, "a")
    assert first is not None and picture(1.0, "a") == first
    assert len({first, picture(1.001, "a"), picture(1.0, "b")}) == 3
    assert shows(tmp_path / "none.png") is None
    assert stale({"epsilon": page}, tmp_path) == []
    page.draw = lambda figure: figure.subplots().plot([0, 2])
    assert [fault.split()[0] for fault in stale({"epsilon": page}, tmp_path)] == ["docs/results/epsilon.png"]


def test_a_row_that_was_made_anew_takes_the_place_of_the_earlier(tmp_path):
    """FedAvg without noise comes beside FedAvg without privacy; Ditto's new row replaces the old one."""
    table = pd.DataFrame({"cell": ["old", "kept"], "algorithm": ["ditto", "fedavg"]})
    table = table.assign(dataset="a", clients=2, model="m", done=1, epsilon_asked=None, dp_unit=None)
    later = table.assign(cell=["new", "equal"], dp_unit=[None, "client"])
    for name, frame in (("mine", table), ("mine-again", later)):
        (tmp_path / name).mkdir()
        frame.to_csv(tmp_path / name / "leaderboard.csv", index=False)
    board = Board(tmp_path / "mine", [tmp_path / "mine-again"])
    assert [row.id for row in board.all] == ["mine:kept", "mine-again:new", "mine-again:equal"]
    assert board.row(algorithm="fedavg", dp_unit=None).id == "mine:kept"
