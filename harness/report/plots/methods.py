"""The style of each method, which is the same in all figures of a report."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from harness.report.data.results import Results, grouped
from harness.report.plots.figure import COLORS, DASHES, Panel, appearance
from harness.report.plots.look import current_look
from harness.report.tables.rows import Board, board_of


def method_order(board: Board) -> tuple[str, ...]:
    """Return the algorithms of a leaderboard in the order of their first rows."""
    return tuple(dict.fromkeys(str(row["algorithm"]) for row in board.rows))


class Styles:
    """Styles of the lines of a figure: color and marker say which method it is.

    The place of a method in the report's table decides its style, also in figures that show a part of the methods.
    Lines of one method differ in dashes, and every second one has hollow markers. Where each panel shows one method
    only, and a method has several lines, color tells the lines apart instead.

    Parameters
    ----------
    results : Results
        The runs of the report. They give the order of methods where `figure_look` does not.
    panels : sequence of Panel
        What is drawn.
    lines : iterable of (str, str)
        Algorithm and label of all lines.
    """

    def __init__(self, results: Results, panels: Sequence[Panel], lines: Iterable[tuple[str, str]]) -> None:
        self._methods = current_look().methods or method_order(board_of(results))
        by_method = grouped(dict.fromkeys(lines), lambda line: line[0])
        self._labels = labels = {method: [label for _, label in own] for method, own in by_method.items()}
        alone = all(len({cell.algorithm for cell in panel.cells}) == 1 for panel in panels)
        several = any(len(of_method) > 1 for of_method in labels.values())
        every = [label for of_method in labels.values() for label in of_method]
        self._by_label = list(dict.fromkeys(every)) if alone and several else None

    def of(self, method: str, label: str) -> dict[str, Any]:
        """Return color, marker and dashes of a line."""
        if self._by_label is not None:
            return appearance(self._by_label.index(label))
        place, variant = self._methods.index(method), self._labels[method].index(label)
        look = appearance(place)
        # Beyond the palette colors come again, with other dashes.
        look["linestyle"] = DASHES[(place + place // len(COLORS) + variant) % len(DASHES)]
        hollow = {"markerfacecolor": "white", "markeredgecolor": look["color"], "markeredgewidth": 1.2}
        return look | hollow if variant % 2 else look
