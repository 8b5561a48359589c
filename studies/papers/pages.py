"""Pages of docs/papers: their tables and pictures, and the values that sentences name.

A table stands between ``<!-- papers SUITE --markdown -->`` and ``<!-- end -->``. In a sentence ``2.52<!--
kgt-minimax/heterogeneity-5 -->`` is what was found for a claim; ``kgt-minimax: rounds`` is a column of the
committed leaderboard, and ``FedReCo, held`` a number of verdicts. Numbers without a name are not compared.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from harness.core.errors import UserError
from harness.report.data.published import read_fields
from harness.report.data.statistics import paired_statistics
from harness.report.plots.figure import DPI, appearance, canvas
from harness.storage.files import write_text
from studies.papers import table
from studies.papers.curves import FILE as CURVES
from studies.papers.curves import Point, read_curves
from studies.papers.observations import Observation
from studies.papers.verdicts import Finding
from studies.results.command import drawn, shows
from studies.results.drawing import legend, line
from studies.results.pages import Page, faults, unlinked
from studies.results.questions.papers import PAPERS, VERDICTS
from studies.results.values import MINUS, Value, count

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "docs" / "papers"
REFERENCE = ROOT / "results" / "reference"
BLOCK = re.compile(r"^<!-- papers ([\w-]+) --markdown -->\n(.*?)^<!-- end -->$", re.MULTILINE | re.DOTALL)
SPANS = ("clients", "rounds", "seeds")  # columns of leaderboards that pages state
ROUNDS = (20, 100, 400)  # at which the outer loss was written down
#: Panel of the outer loss -> its rows of weights.csv, and the step sizes with the least mean at 100 rounds.
OUTER_LOSS = {
    "Adult, five races, IID": (("adult", "race", "iid"), {"fedbio": "0.1", "fedbioacc": "1.0"}),
    "Adult, five races, 2:2:6": (("adult", "race", "sensitive"), {"fedbio": "0.1", "fedbioacc": "1.0"}),
    "Credit, IID": (("german", "sex", "iid"), {"fedbio": "0.01", "fedbioacc": "0.1"}),
    "Credit, 2:2:6": (("german", "sex", "sensitive"), {"fedbio": "0.01", "fedbioacc": "0.1"}),
}
OUTER_KEY = ("data", "sensitive", "partition", "algorithm", "step_size")
NAMES = {"fedbio": "FedBiO", "fedbioacc": "FedBiOAcc (delta 0.1, c 1)"}
#: Slopes of a norm whose square falls as one over what was spent, or the norm itself: text, slope, dashes.
GUIDES = ((f"{MINUS}1/2", -0.5, ":"), (f"{MINUS}1", -1.0, "--"))
NORMS = (0.02, 8.0)  # drawn; DREAM, whose batches are large, ends below


class Judged(NamedTuple):
    """The findings of a suite, and the observations that they rest on."""

    findings: Sequence[Finding]
    observations: Sequence[Observation]


def documents() -> list[Path]:
    """Return the pages on papers."""
    return [FOLDER.with_suffix(".md"), *sorted(FOLDER.glob("*.md"))]


def write(judged: Mapping[str, Judged]) -> None:
    """Write tables and pictures; sentences stay."""
    for path in documents():
        write_text(path, filled(path.read_text(encoding="utf-8"), judged))
    for path, figure in pictures():
        figure.savefig(path, dpi=DPI, metadata={"Software": None, "Comment": drawn(figure)})


def filled(text: str, judged: Mapping[str, Judged]) -> str:
    """Return the text of a page with its tables as they are now."""

    def block(match: re.Match[str]) -> str:
        suite = match[1]
        if suite not in judged:
            raise UserError(f"no claims of suite {suite!r}. Allowed: {', '.join(judged)}.")
        return f"<!-- papers {suite} --markdown -->\n\n{table.markdown(*judged[suite])}\n\n<!-- end -->"

    return BLOCK.sub(block, text)


def misstated(judged: Mapping[str, Judged]) -> list[str]:
    """Return the sentences that name a value and say another number, and the pictures that show others."""
    page = Page("papers", values=values(judged))
    wrong = [
        f"{path.relative_to(ROOT)}: {fault}"
        for path in documents()
        for fault in faults(path.read_text(encoding="utf-8"), page, {}, strict=False)
    ]
    return wrong + [
        f"{path.relative_to(ROOT)} shows something else: python -m studies papers --pages writes it"
        for path, figure in pictures()
        if shows(path) != drawn(figure)
    ]


def values(judged: Mapping[str, Judged]) -> dict[str, Value]:
    """Return what sentences may name: findings, numbers of verdicts, and columns of leaderboards."""
    named: dict[str, Value] = {}
    for paper, suites in PAPERS.items():
        verdicts = [
            each.decision.verdict for suite in suites if suite in judged for each in judged[suite].findings
        ]
        named[f"{unlinked(paper)}, claims"] = count(len(verdicts))
        named |= {f"{unlinked(paper)}, {verdict}": count(verdicts.count(verdict)) for verdict in VERDICTS}
    for suite, (findings, _) in judged.items():
        named |= {finding.claim.id: _found(finding) for finding in findings}
        named |= {f"{suite}: {column}": value for column, value in _columns(REFERENCE / suite)}
    return named


def _found(finding: Finding) -> Value:
    """Return what was found, as the table writes it."""
    row = {name: _signed(text) for name, text in table.row(finding).items()}
    interval = f" [{row['95 % interval'].replace(' to ', ', ')}]" if row["95 % interval"] else ""
    return Value(finding.decision.mean or 0.0, text=f"{row['found']}{interval}")


def _signed(text: str) -> str:
    return re.sub(r"(?<![\w.])-(?=\d)", MINUS, text)


def _columns(folder: Path) -> Iterator[tuple[str, Value]]:
    """Yield the different numbers in columns of a committed leaderboard, as ``50, 200, 800``."""
    path = folder / "leaderboard.csv"
    rows = read_fields(path.read_text(encoding="utf-8")) if path.exists() else []
    for column in SPANS if rows else ():
        numbers = sorted({int(row[column]) for row in rows if row[column]})
        yield column, Value(0.0, text=", ".join(f"{number:,d}" for number in numbers))


def pictures() -> Iterator[tuple[Path, Figure]]:
    """Yield the pictures, drawn and not yet written."""
    with canvas((7.5, 5.4)) as figure:
        outer_loss(figure, REFERENCE / "fedbio" / "weights.csv")
        yield FOLDER / "fedbio.png", figure
    with canvas((7.5, 3.4)) as figure:
        constants(figure, read_curves(REFERENCE / "fedbio-outer" / CURVES))
        yield FOLDER / "fedbio-constants.png", figure
    with canvas((7.5, 5.8)) as figure:
        stationarity(figure, read_curves(REFERENCE / "kgt-heterogeneity" / CURVES))
        yield FOLDER / "k-gt-minimax.png", figure


def outer_loss(figure: Figure, path: Path) -> None:
    """Draw the outer loss after some rounds: mean over seeds, with its interval."""
    rows = read_fields(path.read_text(encoding="utf-8"))
    axes = list(figure.subplots(2, 2).flat)
    for ax, (title, (data, steps)) in zip(axes, OUTER_LOSS.items(), strict=True):
        for number, (algorithm, step) in enumerate(steps.items()):
            key = dict(zip(OUTER_KEY, (*data, algorithm, step), strict=True))
            chosen = [row for row in rows if key.items() <= row.items()]
            points = {n: _mean([float(row[f"outer_loss_{n}"]) for row in chosen]) for n in ROUNDS}
            line(ax, points, number, NAMES[algorithm])
        ax.set_xscale("log")
        ax.set_xticks(ROUNDS, map(str, ROUNDS))
        ax.minorticks_off()
        ax.set_title(title, loc="left")
        ax.set_xlabel("rounds")
        ax.set_ylabel("outer loss")
    legend(figure, axes, len(axes))


def constants(figure: Figure, points: Iterable[Point]) -> None:
    """Draw the outer loss by rounds for several constants of a method, with intervals."""
    lines: dict[str, dict[int, Value]] = {}
    for point in points:
        lines.setdefault(point.line, {})[point.round] = Value(point.value, point.low, point.high)
    ax = figure.subplots()
    for number, (name, of_line) in enumerate(lines.items()):
        line(ax, of_line, number, name)
    ax.set_xlabel("rounds")
    ax.set_ylabel("outer loss")
    legend(figure, [ax], 1)


def _mean(values: Sequence[float]) -> Value:
    (sample,) = paired_statistics([values])
    half = sample.half or 0.0
    return Value(sample.mean, sample.mean - half, sample.mean + half)


def stationarity(figure: Figure, points: Iterable[Point]) -> None:
    """Draw the gradient norm by rounds and by oracle calls, on logarithmic scales, with guides."""
    panels: dict[str, dict[str, list[Point]]] = {}
    for point in points:
        panels.setdefault(point.panel, {}).setdefault(point.line, []).append(point)
    grid = figure.subplots(len(panels), 2, sharey=True, squeeze=False)
    for axes, (panel, lines) in zip(grid, panels.items(), strict=True):
        for ax, against in zip(axes, ("round", "oracle_calls"), strict=True):
            spent = {name: [float(getattr(point, against)) for point in of] for name, of in lines.items()}
            for number, (name, of_line) in enumerate(lines.items()):
                means = [point.value for point in of_line]
                ax.plot(spent[name], means, label=name, markevery=8, **appearance(number))
            first = next(iter(lines))
            _guides(ax, spent[first][0], max(each[-1] for each in spent.values()), lines[first][0].value)
            ax.set_xscale("log")
            ax.set_yscale("log")
            ax.set_ylim(*NORMS)
            ax.set_title(panel, loc="left")
            ax.set_xlabel({"round": "rounds", "oracle_calls": "oracle calls of all clients"}[against])
        axes[0].set_ylabel("gradient norm of Phi")
    legend(figure, list(grid.flat), grid.size)


def _guides(ax: Axes, start: float, end: float, top: float) -> None:
    """Draw a line of every guide's slope, from the first point of the first line."""
    for text, slope, dots in GUIDES:
        heights = [top, top * (end / start) ** slope]
        ax.plot([start, end], heights, color="#999999", linewidth=0.9, linestyle=dots, label=f"slope {text}")
