"""Verdicts on the claims of five papers."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from harness.report.verdict import HELD, NOT_SEEN, OPEN, REFUTED
from studies.papers.claims import read_claims
from studies.papers.tables import evidence
from studies.papers.verdicts import Finding, judge
from studies.results.boards import Boards
from studies.results.pages import Page, unlinked
from studies.results.values import count

if TYPE_CHECKING:
    from matplotlib.figure import Figure

PAPERS = {
    "[FedReCo](../papers/fedreco.md)": ("fedreco",),
    "[FedBiO and FedBiOAcc](../papers/fedbio.md)": ("fedbio", "fedbio-outer", "fedbio-rate", "fedbio-rounds"),
    "[FedSGDA+ and FedSGDA-M](../papers/fedsgda.md)": (
        *("fedsgda-fair", "fedsgda-auroc"),
        *("fedsgda-theory", "fedsgda-rates"),
    ),
    "[K-GT-Minimax](../papers/k-gt-minimax.md)": ("kgt-minimax", "kgt-heterogeneity", "kgt-rates"),
    "[LVFL](../papers/lvfl.md)": ("lvfl",),
}
VERDICTS = {HELD: "#333333", NOT_SEEN: "#999999", REFUTED: "white", OPEN: "#dddddd"}
HATCHES = {HELD: "", NOT_SEEN: "", REFUTED: "////", OPEN: "...."}


def page(boards: Boards) -> Page:
    """Return what the page on papers is made from."""
    made = Page("papers", size=(7.5, 2.6))
    counts: dict[str, Counter[str]] = {}
    for link, suites in PAPERS.items():
        verdicts = (finding.decision.verdict for suite in suites for finding in findings(boards, suite))
        counts[link] = Counter(verdicts)
    whole = sum(counts.values(), Counter[str]())
    rows = {
        link: {"claims": count(tally.total()), **{verdict: count(tally[verdict]) for verdict in VERDICTS}}
        for link, tally in (*counts.items(), ("all", whole))
    }
    made.table("table", "paper", ["claims", *VERDICTS], rows)
    made.draw = lambda figure: draw(figure, counts)
    return made


def findings(boards: Boards, suite: str) -> list[Finding]:
    """Return the findings on the claims of a suite."""
    claims = read_claims(boards.reference / suite)
    observations = evidence(claims)
    return [judge(claim, observations) for claim in claims.claims]


def draw(figure: Figure, counts: dict[str, Counter[str]]) -> None:
    """Draw a bar for each paper, with a part for each verdict."""
    ax = figure.subplots()
    for place, tally in enumerate(counts.values()):
        left = 0
        for verdict, color in VERDICTS.items():
            label = verdict if place == 0 else None
            ax.barh(place, tally[verdict], left=left, color=color, hatch=HATCHES[verdict], edgecolor="black",
                    linewidth=0.7, height=0.65, label=label)  # fmt: skip
            if tally[verdict]:
                box = {"facecolor": "white", "edgecolor": "none", "pad": 1} if HATCHES[verdict] else None
                ax.text(left + tally[verdict] / 2, place, str(tally[verdict]), ha="center", va="center",
                        color="white" if verdict == HELD else "black", bbox=box)  # fmt: skip
            left += tally[verdict]
    ax.set_yticks(range(len(counts)), map(unlinked, counts))
    ax.invert_yaxis()
    ax.grid(visible=False)
    ax.set_xlabel("claims judged")
    figure.legend(loc="outside upper left", ncols=len(VERDICTS))
