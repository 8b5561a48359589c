"""Panels, line styles, legends and files of all figures.

Every figure is written as PNG and SVG, or as `harness.report.plots.look` says. Lines differ in color, marker and
dashes, so they are readable in gray and by color-blind readers (Okabe and Ito's palette without yellow). The same
records give the same bytes.
"""

from __future__ import annotations

import math
import textwrap
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from statistics import fmean, stdev
from typing import TYPE_CHECKING, Any, NamedTuple

from harness.core.units import counted
from harness.metrics import better_is_higher
from harness.report.data.procedure import Procedures
from harness.report.data.results import Cell, Results, first_of_each, grouped
from harness.report.plots.look import FORMATS, current_look
from harness.report.tables.rows import board_of
from harness.report.tables.text import distinguishing, possible, quantity, words
from harness.storage.files import replacing

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#333333", "#882255")
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "<", ">", "p", "h")
DASHES: tuple[Any, ...] = (
    *("-", (0, (6, 2)), (0, (1.5, 1.5)), (0, (6, 2, 1.5, 2))),
    *((0, (10, 3)), (0, (3, 1)), (0, (10, 2, 1.5, 2, 1.5, 2)), (0, (1, 3))),
)
DPI = 160
MOST_LINES = 8  # per panel; more are hard to distinguish
MOST_PANELS = 9
PANELS_A_ROW = 3
QUIET: dict[str, Any] = {"fontsize": 7.5, "color": "#666666"}  # style of notes
LETTERS = 11  # per inch of a legend, approximately
TITLE = 46  # letters of a panel's title in a line; more would run into the next panel's
#: Metrics to draw if the requested one does not apply.
FALLBACK = ("accuracy", "auroc", "mae", "stationarity", "loss")
LOGARITHMIC = frozenset({"stationarity", "distance", "consensus"})
STYLE = {
    "axes.edgecolor": "#666666",
    "axes.grid": True,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "axes.titlelocation": "left",
    "axes.titlesize": 10,
    "font.family": "DejaVu Sans",
    "font.size": 9,
    "grid.color": "#e3e3e3",
    "grid.linewidth": 0.7,
    "legend.frameon": False,
    "lines.linewidth": 1.7,
    "lines.markersize": 6.5,
    "pdf.fonttype": 42,  # text stays text, as publishers want
    "svg.fonttype": "path",
    "svg.hashsalt": "fedfrontier",
}

Pictures = tuple[Path, ...]  # one for each format, the SVG last


class Panel(NamedTuple):
    """A panel of a figure: title, measure, and cells, the best first."""

    title: str
    metric: str
    cells: list[Cell]


def panels_of(
    results: Results, metric: str, fallback: tuple[str, ...] = FALLBACK, along: str | None = None
) -> list[Panel]:
    """Return the tasks with values to draw, or their parts that differ only in one setting."""
    board = board_of(results)
    cells_by_key = {cell.key: cell for cell in results.cells}
    tasks = grouped(
        (cells_by_key[row["cell"]] for row in board.rows),
        lambda cell: (cell.task, *(() if along is None else settings_beside(cell, along))),
    )
    if along is not None and any(len(cells) > 1 for cells in tasks.values()):
        tasks = {key: cells for key, cells in tasks.items() if len(cells) > 1}
    differing = distinguishing({key: (key[0], key[1:]) for key in tasks})
    panels: list[Panel] = []
    for key, cells in tasks.items():
        also = [item for item in differing[key] if not item.startswith("privacy.") or "epsilon" in item]
        choices = dict.fromkeys((metric, *fallback))
        choice = next((name for name in choices if any(cell.values(name) for cell in cells)), None)
        if choice is not None:
            means = [(fmean(v.values()), cell) for cell in cells if (v := cell.values(choice))]
            means.sort(key=lambda entry: entry[0], reverse=better_is_higher(choice))
            title = _title(board.tasks[cells[0].key], also)
            panels.append(Panel(title, choice, [cell for _, cell in means]))
    return panels[:MOST_PANELS]


def reduce_panels(panels: Sequence[Panel]) -> tuple[list[Panel], bool]:
    """Reduce all panels to the best cell per algorithm if one of them has too many cells.

    Returns
    -------
    list of Panel
        At most `MOST_LINES` cells each, the best first.
    bool
        Whether any was cut.
    """
    if all(len(panel.cells) <= MOST_LINES for panel in panels):
        return list(panels), False
    return [panel._replace(cells=list(best_of(panel).values())) for panel in panels], True


def best_of(panel: Panel) -> dict[str, Cell]:
    """Return algorithm -> its first cell, which is its best, for at most `MOST_LINES` algorithms."""
    best = first_of_each(panel.cells, lambda cell: cell.algorithm)
    return dict(list(best.items())[:MOST_LINES])


def with_budgets(best: Mapping[str, Cell]) -> dict[str, Cell]:
    """Return cells by their algorithm and, if any of them is private, by their ε too."""
    claims = {name: cell.privacy() for name, cell in best.items()}
    if not any(claims.values()):
        return dict(best)
    return {f"{name}, {_budget(claims[name])}": cell for name, cell in best.items()}


def _budget(claim: Mapping[str, Any] | None) -> str:
    if claim is None:
        return "no DP"
    epsilon = claim.get("epsilon_total")
    return f"ε {quantity(math.inf if epsilon is None else epsilon, 3)}"


def mean_and_spread(cell: Cell, measure: str) -> tuple[float, float]:
    """Return the mean of a measure over seeds and its sample standard deviation; NaN and 0 without values."""
    values = list(cell.values(measure).values())
    return (fmean(values), stdev(values) if len(values) > 1 else 0.0) if values else (math.nan, 0.0)


class Reach(NamedTuple):
    """A mean, and how far its interval reaches below and above it."""

    mean: float
    below: float
    above: float


def mean_and_reach(cell: Cell, measure: str) -> Reach:
    """Return a mean with its 95 % interval over searches and seeds, or else one standard deviation over seeds."""
    mean, spread = mean_and_spread(cell, measure)
    ends = Procedures(measure).mean(cell) or (mean - spread, mean + spread)
    low, high = (possible(end, measure) for end in ends)
    return Reach(mean, max(0.0, mean - low), max(0.0, high - mean))


def reach_note(cells: Sequence[Cell], measure: str) -> str:
    """Return what `mean_and_reach` gives of tuned cells; empty for others, whose spread is that of seeds."""
    known = {Procedures(measure).mean(cell) is not None for cell in cells if len(cell.values(measure)) > 1}
    if True not in known:
        return ""
    others = ", of other rows one standard deviation over seeds" if False in known else ""
    return f"95 % intervals over searches and seeds{others}"


def settings_beside(cell: Cell, *along: str) -> tuple[str, ...]:
    """Return the settings of a cell except the seed and some settings or sections."""
    sections = tuple(f"{name}." for name in along)
    return tuple(
        f"{name}={value}"
        for name, value in sorted(cell.given.items())
        if name not in ("seed", *along) and not name.startswith(sections)
    )


def _title(names: Mapping[str, str], also: Sequence[str] = ()) -> str:
    """Return a title of data, problem, partition, and further settings."""
    details = [item.partition(".")[2] or item for item in also]
    # One line would run into the next panel's.
    lines = [(names["dataset"], names["problem"]), (names["partition"],), details]
    texts = [" · ".join(part for part in line if part) for line in lines]
    # A file may have dollars in its name, between which matplotlib expects mathematics.
    return "\n".join(text for text in texts if text).replace("$", r"\$")


def extrapolation_note(cells: Iterable[Cell]) -> str:
    """Return a note on epsilons of larger cohorts than were simulated; empty if there are none."""
    cohorts = [(cell.spec.get("privacy") or {}).get("noise_cohort") or 0 for cell in cells]
    most = max(cohorts, default=0)
    return f"ε extrapolated: noise of cohorts of up to {counted(most, 'client')}" if most else ""


def appearance(i: int) -> dict[str, Any]:
    """Return color, marker and dashes of a line."""
    cycle = current_look().style.get("axes.prop_cycle")
    colors = COLORS if cycle is None else cycle.by_key().get("color", COLORS)
    return {
        "color": colors[i % len(colors)],
        "marker": MARKERS[i % len(MARKERS)],
        "linestyle": DASHES[i % len(DASHES)],
        "markeredgecolor": "white",
        "markeredgewidth": 0.6,
    }


def write_title(ax: Axes, text: str) -> None:
    """Write the title of a panel in lines that fit its width."""
    lines = (textwrap.fill(line, TITLE) for line in text.splitlines())
    ax.set_title("\n".join(lines), pad=8)


def label_axes(ax: Axes, panel: Panel, label: str, scale: str) -> None:
    """Write title and axes of a panel; bytes stand on a logarithmic scale."""
    write_title(ax, panel.title)
    ax.set_xlabel(label)
    ax.set_ylabel(words(panel.metric))
    ax.set_xscale(scale)
    if panel.metric in LOGARITHMIC:
        ax.set_yscale("log")
    from matplotlib.ticker import EngFormatter, LogLocator, MaxNLocator, NullFormatter

    if label == "round":
        ax.xaxis.set_major_locator(MaxNLocator("auto", integer=True, min_n_ticks=1))
    if scale == "log":
        low, high = ax.get_xlim()
        subs = (1.0,) if high / low > 1e3 else (1.0, 2.0, 5.0)
        narrow = high / low < 5  # a logarithmic scale has no round numbers there
        ax.xaxis.set_major_locator(MaxNLocator(3) if narrow else LogLocator(subs=subs))
        ax.xaxis.set_major_formatter(EngFormatter(unit="B"))
        ax.xaxis.set_minor_formatter(NullFormatter())


def write_pictures(
    panels: Sequence[Panel],
    draw: Callable[[Axes, Panel], None],
    path: Path,
    note: str | None,
    *,
    apart: bool = False,
) -> Pictures | None:
    """Draw every panel and write both formats; legends are per panel if `apart` or with many lines, else joint."""
    if not panels:
        return None
    across = 2 if len(panels) == 4 else min(PANELS_A_ROW, len(panels))
    down = math.ceil(len(panels) / across)
    width = max(7.2, 4.4 * across)
    with canvas() as figure:
        axes = panel_axes(figure, down, across, len(panels))
        for ax, panel in zip(axes, panels, strict=True):
            draw(ax, panel)
        entries = legend_entries(axes)
        if len(panels) > 1 and (apart or len(entries) > MOST_LINES + 2):
            extra = down * max(_legend(ax, int(width / across * LETTERS)) for ax in axes)
        else:
            columns = int(width * LETTERS / (max(len(text) for text in entries) + 9))
            columns = max(1, min(len(entries), columns))
            figure.legend(entries.values(), entries.keys(), loc="outside lower left", handlelength=3.2,
                          ncols=columns, title=note, title_fontproperties={"size": QUIET["fontsize"]},
                          alignment="left").get_title().set_color(QUIET["color"])  # fmt: skip
            extra, note = math.ceil(len(entries) / columns), None
        figure.set_size_inches(width, 3.3 * down + 0.2 * extra + 0.3)
        return save(figure, path, note)


def panel_axes(figure: Figure, down: int, across: int, panels: int) -> list[Axes]:
    """Return axes for some panels of a grid; the places after them stay empty."""
    axes = list(figure.subplots(down, across, squeeze=False).flat)
    for ax in axes[panels:]:
        ax.set_axis_off()
    return axes[:panels]


def legend_entries(axes: Iterable[Axes]) -> dict[str, Any]:
    """Return the lines of some panels by their labels, each label once."""
    entries: dict[str, Any] = {}
    for ax in axes:
        for handle, text in zip(*ax.get_legend_handles_labels(), strict=True):
            entries.setdefault(text, handle)
    return entries


def _legend(ax: Axes, letters: int) -> int:
    """Explain a panel's lines below it, at most `letters` wide; return the number of text lines."""
    handles, texts = ax.get_legend_handles_labels()
    if not handles:
        return 0
    texts = [textwrap.fill(text, letters - 6, subsequent_indent="  ") for text in texts]
    ax.legend(handles, texts, loc="upper left", bbox_to_anchor=(-0.02, -0.17), fontsize=8, handlelength=3.2)
    return sum(1 + text.count("\n") for text in texts)


@contextmanager
def canvas(size: tuple[float, float] | None = None, **style: Any) -> Iterator[Figure]:
    """Make a figure in the common style; draw and save it within the context."""
    import matplotlib
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    with matplotlib.rc_context(STYLE | dict(current_look().style) | style):  # type: ignore[arg-type]
        figure = Figure(figsize=size, layout="constrained")
        # Without a canvas every text that is measured makes an image of the figure's size.
        FigureCanvasAgg(figure)
        yield figure


def edge(points: Sequence[tuple[float, float]], higher: bool) -> list[int]:
    """Return the numbers of the points ``(cost, value)`` that no other of at most their cost beats, by cost."""
    sign = -1 if higher else 1
    frontier: list[int] = []
    for number in sorted(range(len(points)), key=lambda n: (points[n][0], sign * points[n][1])):
        if not frontier or sign * points[number][1] < sign * points[frontier[-1]][1]:
            frontier.append(number)
    return frontier


def save(figure: Figure, path: Path, note: str | None = None) -> Pictures:
    """Write all formats, without dates or versions; a note goes below.

    Finding the layout takes as long as drawing, so it is that of the first format.
    """
    if note is not None:
        figure.supxlabel(note, x=0.995, ha="right", **QUIET)
    files = []
    for name in (*current_look().formats, "svg"):
        files.append(path.parent / f"{path.name}.{name}")
        with replacing(files[-1]) as temporary:
            figure.savefig(temporary, format=name, dpi=DPI, metadata=FORMATS[name])
        figure.set_layout_engine("none")
    return tuple(files)
