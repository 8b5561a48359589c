"""Pictures of partitions: the samples of every class and sensitive group at each client."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from datasets.client_statistics import ClientCounts, Counts
from datasets.errors import FederationError

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure, SubFigure

    from datasets.federation import Federation

FORMATS = (".png", ".svg")
COLORS = ("#0072b2", "#e69f00", "#009e73", "#cc79a7")  # of splits
MOST_NUMBERS = 16  # clients or classes up to which cells show their number
MOST_TICKS = 25
MOST_NAMES = 60  # clients up to which all are named
MOST_LINES = 100  # clients up to which white lines separate their sizes


def draw(federation: Federation, path: Path | str) -> Path:
    """Draw the partition of a federation; see `picture`.

    Parameters
    ----------
    federation : Federation
        A single run.
    path : Path or str
        File to write, ``.png`` or ``.svg``; its folder is created if missing.

    Returns
    -------
    Path
        The file written.

    Raises
    ------
    FederationError
        If runs are stacked or the format is unknown.
    """
    from matplotlib import rc_context  # slow to import, not needed for training

    from datasets.counting import count  # likewise for pictures of what was recorded

    path = Path(path)
    check_format(path)
    figure = picture([count(federation)])
    path.parent.mkdir(parents=True, exist_ok=True)
    # Reproducible bytes: no date, and fixed ids.
    with rc_context({"svg.hashsalt": "fedfrontier", "svg.fonttype": "none"}):
        figure.savefig(path, dpi=150, metadata={"Date": None} if path.suffix == ".svg" else None)
    return path


def check_format(path: Path) -> None:
    """Raise FederationError if a file's name has no suffix of `FORMATS`."""
    if path.suffix not in FORMATS:
        raise FederationError(f"pictures are written as {' or '.join(FORMATS)}, not {path.name!r}")


def picture(several: Sequence[ClientCounts], tallest: float = 9.0) -> Figure:
    """Draw heat maps of clients by class (and by group), with the size of every client beside them.

    Maps count training and test samples together. The color scale (cividis) suits color-blind readers and gray.

    Parameters
    ----------
    several : Sequence[ClientCounts]
        At least one; each is a row of the figure.
    tallest : float
        Largest height of a map, in inches.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    heights = [min(max(tally.clients * 0.16, 2.4), tallest) + 1.4 for tally in several]
    widths = [_widths(tally) for tally in several]
    size = max(sum(map_widths) + 1.4 * (len(map_widths) - 1) for map_widths in widths), sum(heights)
    figure = Figure(figsize=size, layout="constrained")
    FigureCanvasAgg(figure)  # measures text; without one every measurement sets up a picture
    rows = figure.subfigures(len(several), 1, height_ratios=heights, squeeze=False)[:, 0]
    for row, tally, map_widths in zip(rows, several, widths, strict=True):
        *map_axes, size_axes = row.subplots(1, len(map_widths), width_ratios=map_widths, squeeze=False)[0]
        for axes, (what, counts) in zip(map_axes, _maps(tally), strict=True):
            _heat_map(row, axes, what, list(counts), np.array(list(counts.values())).T)
            _client_ticks(axes, tally, first=axes is map_axes[0])
        map_axes[0].set_ylabel("client")
        _sizes(size_axes, tally)
        row.suptitle(tally.title, fontsize="medium")
    return figure


def _maps(tally: ClientCounts) -> list[tuple[str, Counts]]:
    return [("class", tally.classes), *([("sensitive group", tally.groups)] if tally.groups else [])]


def _widths(tally: ClientCounts) -> list[float]:
    """Return the widths of the maps and of the sizes beside them, in inches."""
    return [min(max(len(counts) * 0.6, 2.0), 9.0) for _, counts in _maps(tally)] + [1.8]


def _heat_map(
    figure: SubFigure, axes: Axes, what: str, names: Sequence[str], table: NDArray[np.int64]
) -> None:
    top = max(int(table.max()), 1)
    image = axes.imshow(table, aspect="auto", cmap="cividis", vmin=0, vmax=top, interpolation="nearest")
    scale = figure.colorbar(image, cax=axes.inset_axes((1.02, 0, 0.03, 1)))  # as high as the map
    scale.set_label("samples", fontsize="small")
    every = -(-len(names) // MOST_TICKS)
    ticks = range(0, len(names), every)
    slanted = max(len(name) for name in names) > 3
    axes.set_xticks(
        ticks,
        [names[i] for i in ticks],
        rotation=45 if slanted else 0,
        ha="right" if slanted else "center",
        rotation_mode="anchor",
    )
    axes.set_xlabel(what)
    if max(table.shape) <= MOST_NUMBERS:
        for (client, column), count in np.ndenumerate(table):
            color = "black" if count > 0.55 * top else "white"
            axes.text(column, client, str(count), ha="center", va="center", color=color, fontsize="small")


def _sizes(axes: Axes, tally: ClientCounts) -> None:
    """Draw the number of samples per split and client as bars aligned with the rows of the maps."""
    edges = np.arange(tally.clients + 1) - 0.5
    start = np.zeros(tally.clients)
    for color, (name, counts) in zip(COLORS, tally.splits.items(), strict=False):
        # One outline per split instead of one bar per client, which is fast for 10,000 clients.
        end = start + np.array(counts)
        axes.stairs(
            end, edges, baseline=start, orientation="horizontal", fill=True, color=color, label=name, lw=0
        )
        start = end
    if tally.clients <= MOST_LINES:
        axes.hlines(edges, 0, start.max(), color="white", lw=1)
    axes.set_ylim(tally.clients - 0.5, -0.5)
    axes.set_xlabel("samples")
    axes.locator_params(axis="x", nbins=3)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(fontsize="small", frameon=False, loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=2)
    _client_ticks(axes, tally)


def _client_ticks(axes: Axes, tally: ClientCounts, first: bool = False) -> None:
    """Write the numbers of clients, or their names at the first map, whose rows the others share."""
    if tally.names and tally.clients <= MOST_NAMES:
        axes.set_yticks(
            range(tally.clients), tally.names if first else [""] * tally.clients, fontsize="x-small"
        )
        return
    steps = (step * 10**power for power in range(9) for step in (1, 2, 5))
    every = next(step for step in steps if tally.clients <= MOST_TICKS * step)
    axes.set_yticks(range(0, tally.clients, every))
