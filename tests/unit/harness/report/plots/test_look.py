"""Formats and style of figures, and the measure that they show."""

import logging
import re
from contextlib import nullcontext

import pytest
from matplotlib.axes import Axes
from matplotlib.container import ErrorbarContainer
from matplotlib.figure import Figure

from harness.config.report import ReportSpec
from harness.core.errors import UserError
from harness.report.data.results import Results
from harness.report.plots.curves import draw_curves
from harness.report.plots.every import draw_all
from harness.report.plots.figure import COLORS
from harness.report.plots.look import figure_look
from harness.report.plots.methods import method_order
from harness.report.tables.rows import board_of
from tests.support.records import done, evaluation, spec


def rising(algorithm="fedavg"):
    """Return a finished run whose accuracy and AUROC are told apart by their values."""
    return done(spec(algorithm), *(evaluation(r, 1 + r, accuracy=0.2, auroc=0.8) for r in (0, 10, 20)))


@pytest.fixture
def labels(monkeypatch):
    """What the vertical axes of all figures say."""
    said = []
    monkeypatch.setattr(Axes, "set_ylabel", lambda ax, text, **options: said.append(text))
    return said


@pytest.mark.usefixtures("blank_pictures")
@pytest.mark.parametrize(
    ("by", "label"), [("accuracy", "Accuracy"), ("auroc", "AUROC"), ("bytes", "Accuracy")]
)
def test_figures_show_the_measure_that_ranks_if_it_is_a_metric(by, label, labels, tmp_path):
    drawn = draw_all(Results([rising(), rising("ditto")]), tmp_path, ReportSpec(by=by))
    assert drawn["curves"] and drawn["accuracy-bytes"] and set(labels) == {label}


def test_pdfs_are_written_where_they_are_asked_for_and_are_equal(tmp_path):
    contents = []
    for name in ("a", "b"):
        with figure_look(["pdf"]):
            files = draw_curves(Results([rising()]), tmp_path / name)
        assert [file.name for file in files] == [f"{name}.pdf", f"{name}.svg"]
        contents.append(files[0].read_bytes())
    assert contents[0] == contents[1] and contents[0].startswith(b"%PDF-")
    assert b"/Type3" not in contents[0]  # fonts that publishers refuse
    usual = draw_curves(Results([rising()]), tmp_path / "c")
    assert [file.suffix for file in usual] == [".png", ".svg"]


@pytest.mark.usefixtures("vectors_only")
def test_a_style_sets_colors_and_leaves_with_its_context(tmp_path):
    style = tmp_path / "mine.mplstyle"
    style.write_text("axes.prop_cycle: cycler('color', ['123456'])\nfont.size: 20\n")
    with figure_look(["png"], str(style)):
        styled = draw_curves(Results([rising()]), tmp_path / "a")[1].read_text()
    plain = draw_curves(Results([rising()]), tmp_path / "b")[1].read_text()
    assert "#123456" in styled and COLORS[0].lower() not in styled
    assert "#123456" not in plain and COLORS[0].lower() in plain


@pytest.mark.parametrize(
    ("formats", "style", "said"),
    [
        (["pdff"], None, r"unknown format of figures 'pdff'. Did you mean 'pdf'\?"),
        (["png"], "seaborn-v0_8-papr", "Did you mean 'seaborn-v0_8-paper'"),
        (["png"], "font.sizes: 3", r"Did you mean 'font.size'\?"),
        (["png"], "font.size: large large", "style .*mplstyle: .*font.size.*'large large'"),
    ],
)
def test_formats_and_styles_that_are_none_are_refused(formats, style, said, tmp_path, caplog):
    if style and ":" in style:
        (tmp_path / "a.mplstyle").write_text(style)
        style = str(tmp_path / "a.mplstyle")
    with pytest.raises(UserError, match=said) as refused, figure_look(formats, style):
        pass
    assert "\n" not in str(refused.value) and not re.search("matplotlibrc", str(refused.value))
    assert caplog.text == "" and logging.getLogger("matplotlib").propagate


def of_budget(algorithm, epsilon, accuracy, **more):
    """Return a finished run under a budget, of two rounds."""
    privacy = epsilon and {"placement": "local", "clip": 1.0, "epsilon": epsilon}
    rounds = (evaluation(r, 1 + r, epsilon, accuracy=accuracy, auroc=1 - accuracy) for r in (0, 20))
    return done(spec(algorithm, privacy=privacy, **more), *rounds)


@pytest.fixture
def lines(monkeypatch):
    """Lines of all figures: figure -> label -> color, marker, dashes and whether it is hollow."""
    found = []

    def note(figure, *args, **options):
        told = {}
        for ax in figure.axes:
            for handle, label in zip(*ax.get_legend_handles_labels(), strict=True):
                line = handle.lines[0] if isinstance(handle, ErrorbarContainer) else handle
                hollow = line.get_markerfacecolor() == "white"
                told[label] = line.get_color(), line.get_marker(), str(line._dash_pattern), hollow
        found.append(told)

    monkeypatch.setattr(Figure, "savefig", note)
    monkeypatch.setattr("harness.report.plots.figure.replacing", lambda path: nullcontext(path))
    return found


@pytest.mark.parametrize("by", ["accuracy", "auroc"])
def test_a_method_has_one_color_and_marker_in_all_figures(by, lines, tmp_path):
    """By name ditto is first, by accuracy fedavg, by AUROC scaffold; the last figure lacks the first of these."""
    levels = {"ditto": 0.5, "fedavg": 0.6, "scaffold": 0.4}
    runs = [of_budget(name, e, level) for name, level in levels.items() for e in (None, 8.0, 2.0)]
    results = Results(runs)
    assert draw_all(results, tmp_path, ReportSpec(by=by))["accuracy-epsilon"]
    part = Results([run for run in runs if run.spec["algorithm"]["name"] != "scaffold"])
    with figure_look(["png"], methods=method_order(board_of(results, ReportSpec(by=by)))):
        draw_curves(part, tmp_path / "part")
    for name in levels:
        looks = [look[:2] for figure in lines for label, look in figure.items() if label.startswith(name)]
        assert len(looks) > 3 and len(set(looks)) == 1
    assert len(lines[-1]) == len(set(lines[-1].values())) == 6  # two methods under three budgets


def test_lines_of_a_lone_method_differ_in_color(lines, tmp_path):
    draw_curves(Results([of_budget("fedavg", e, 0.5) for e in (None, 8.0, 2.0)]), tmp_path / "a")
    assert len({color for color, *_ in lines[-1].values()}) == len(lines[-1]) == 3
