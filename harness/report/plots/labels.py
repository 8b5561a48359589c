"""Names beside points, kept off each other, off marks and off lines."""

from __future__ import annotations

import math
from itertools import pairwise, product
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from matplotlib.axes import Axes

OFFSETS = sorted(
    product((0, -20, 20, -40, 40), (9, -9, 18, -18, 27, -27, 36, -36, 45, -45)),
    key=lambda by: math.hypot(by[0] / 2, by[1]),
)  # where a name may stand beside its point, in points of type, the nearest first
MARK = 4  # pixels from the middle of a marker to its edge


def name_point(ax: Axes, name: str, point: tuple[float, float], color: str) -> None:
    """Write a name beside a point, with a line to it; `keep_apart` may move it."""
    line = {"arrowstyle": "-", "color": color, "linewidth": 0.5, "shrinkA": 0, "shrinkB": 2}
    ax.annotate(name, point, xytext=(0, 9), textcoords="offset points", fontsize=7, ha="center", va="center",
                color=color, arrowprops=line)  # fmt: skip


def keep_apart(ax: Axes) -> None:
    """Move the annotations of a panel off each other, off marks and off lines, each as little as needed.

    The figure must have been drawn. Where there is no room, the place that covers least is taken.
    """
    from matplotlib.text import Annotation, Text

    texts = [text for text in ax.texts if isinstance(text, Annotation)]
    named = [ax.transData.transform(text.xy) for text in texts if text.arrow_patch is not None]
    drawn = np.array([*named, *_drawn(ax)]).reshape(-1, 2)
    frame = np.array([ax.get_window_extent().extents])
    occupied = np.hstack([drawn - MARK, drawn + MARK])
    scale = ax.figure.dpi / 72
    for text in texts:
        text.get_window_extent()  # moves it
        # Without the line to its point.
        start: NDArray[np.float64] = np.array(Text.get_window_extent(text).extents)
        candidates = []
        area = float(np.prod(start[2:] - start[:2]))
        for place, offset in enumerate(OFFSETS):
            box = start + scale * np.tile(np.subtract(offset, text.xyann), 2)
            bad = _covered(box, occupied) + area - _covered(box, frame)
            candidates.append((bad, place, offset, box))
            if bad < 1e-6 * area:
                break
        _, _, text.xyann, box = min(candidates, key=lambda candidate: candidate[:2])
        occupied = np.vstack([occupied, box])


def _drawn(ax: Axes) -> list[NDArray[np.float64]]:
    """Return places on the lines of a panel, in pixels: their points, and between them a place every `MARK`."""
    places: list[NDArray[np.float64]] = []
    for line in ax.lines:
        ends = line.get_transform().transform(np.column_stack(line.get_data()).astype(float))
        places += list(ends)
        if line.get_linestyle() != "None":
            for start, end in pairwise(ends):
                steps = int(np.hypot(*(end - start)) // (2 * MARK))
                places += list(np.linspace(start, end, steps + 2)[1:-1])
    return places


def _covered(box: NDArray[np.float64], others: NDArray[np.float64]) -> float:
    """Return the area of a box (left, bottom, right, top) that others cover, each by itself."""
    sides = np.minimum(box[2:], others[:, 2:]) - np.maximum(box[:2], others[:, :2])
    return float(sides.clip(0).prod(-1).sum())
