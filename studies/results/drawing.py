"""Lines with bands, their places on the x axis and their legend, as results pages draw them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from harness.report.plots.figure import appearance, legend_entries
from studies.results.values import Value

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


APART = 0.1  # between bars side by side, in places of the x axis


def budget(epsilon: float | None) -> str:
    """Return the label of a budget."""
    return "none" if epsilon is None else f"ε {epsilon:g}"


def line(
    ax: Axes,
    points: Mapping[int, Value],
    number: int,
    label: str,
    *,
    scale: float = 1.0,
    side_by_side: int | None = None,
) -> None:
    """Draw values by their place on the x axis, with their intervals as a band.

    Parameters
    ----------
    ax : Axes
        Where.
    points : Mapping
        Place on the x axis -> value.
    number : int
        Which line of the panel it is.
    label : str
        What the legend calls it.
    scale : float
        What values are multiplied by.
    side_by_side : int, optional
        Number of lines of the panel, if their intervals overlap: bars beside each other then, in place of bands.
    """
    if not points:
        return
    style = appearance(number)
    means, lows, highs = (
        [
            scale * (point.number if end is None else end)
            for point, end in zip(points.values(), ends, strict=True)
        ]
        for ends in zip(*((point.number, point.low, point.high) for point in points.values()), strict=True)
    )
    shift = 0.0 if side_by_side is None else APART * (number - (side_by_side - 1) / 2)
    at = [place + shift for place in points]
    ax.plot(at, means, label=label, **style)
    if side_by_side is None:
        ax.fill_between(at, lows, highs, color=style["color"], alpha=0.15, linewidth=0)
    else:
        ax.vlines(at, lows, highs, color=style["color"], linewidth=1.2)


def places(ax: Axes, labels: Sequence[str]) -> None:
    """Write the labels of the places on the x axis, which is no scale."""
    ax.set_xticks(range(len(labels)), labels)
    ax.set_xlim(-0.3, len(labels) - 0.7)
    ax.grid(axis="x", visible=False)


def legend(figure: Figure, axes: Sequence[Axes], panels: int) -> None:
    """Explain the lines of all panels below them, and hide the places after the last panel."""
    entries = legend_entries(axes)
    for ax in axes[panels:]:
        ax.set_axis_off()
    figure.legend(
        list(entries.values()), list(entries), loc="outside lower left", ncols=2, handlelength=3, fontsize=8.5
    )
