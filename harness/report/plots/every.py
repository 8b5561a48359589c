"""All figures of a report."""

from __future__ import annotations

from pathlib import Path

from harness.config.report import ReportSpec
from harness.metrics import described
from harness.report.data.results import Results
from harness.report.plots.attacks import attacks
from harness.report.plots.budgets import accuracy_against_epsilon
from harness.report.plots.clients import named_clients
from harness.report.plots.curves import draw_curves
from harness.report.plots.fairness import fairness
from harness.report.plots.figure import Pictures
from harness.report.plots.frontier import accuracy_against_bytes
from harness.report.plots.look import figure_look
from harness.report.plots.methods import method_order
from harness.report.plots.overview import overview
from harness.report.plots.pareto import pareto
from harness.report.plots.partitions import partitions
from harness.report.plots.ranks import rank_diagram
from harness.report.plots.tuning import tuning_curves
from harness.report.tables.rows import board_of
from harness.storage.files import safe_name

#: Figures: file name without suffix -> title and note.
PICTURES = {
    "overview": ("All algorithms, budgets and pruning ratios", ""),
    "pareto": ("Pareto fronts over epsilon and bytes", ""),
    "curves": ("Learning curves", ""),
    "accuracy-bytes": ("Results by bytes", ""),
    "accuracy-epsilon": ("Results by privacy budget", ""),
    "attacks": (
        "Success of attacks",
        "Attacks on what the runs released, with knowledge that an attacker may lack. If "
        "they fail, others may succeed; an epsilon bounds every attack on what it protects.",
    ),
    "fairness": (
        "Groups and clients",
        "Of test samples, after the last round. Rates of small groups are noisy, and so are gaps between them.",
    ),
    "ranks": (
        "Ranks over federations",
        "A task is a data set with its partition, a budget and a pruning ratio; the tasks of one federation share "
        "clients and test samples and count once in the tests. A method is an algorithm with a model.",
    ),
    "tuning": ("Gain by tuning", ""),
    "clients": ("Results of each client", "On the client's own test samples, which may be few."),
    "partition": (
        "Samples of each client",
        "Numbers of samples of the simulated clients, which would be private in a real federation; "
        "the simulator, which deals the data, knows them.",
    ),
}


def draw_all(results: Results, folder: Path, spec: ReportSpec) -> dict[str, Pictures | None]:
    """Draw all figures and return their files by the names of `PICTURES`; None for those without content.

    They show the measure that ranks if it is a metric, else accuracy. A method has one style in all of them, by its
    place in the leaderboard.
    """
    metric = spec.by if described(spec.by) else "accuracy"
    methods = method_order(board_of(results, spec))
    with figure_look(spec.figures, spec.style, methods):
        pictures = {
            "overview": overview(results, folder / "overview", spec.overview) if spec.overview else None,
            "pareto": pareto(results, folder / "pareto", spec.by),
            "curves": draw_curves(results, folder / "curves", metric, along=spec.along),
            "accuracy-bytes": accuracy_against_bytes(results, folder / "accuracy-bytes", metric),
            "accuracy-epsilon": accuracy_against_epsilon(results, folder / "accuracy-epsilon", metric),
            "attacks": attacks(results, folder / "attacks", spec.by),
            "fairness": fairness(results, folder / "fairness"),
            "ranks": rank_diagram(results, folder / "ranks", spec.by),
            "tuning": tuning_curves(results, folder / "tuning"),
            "clients": named_clients(results, folder / "clients", metric),
            "partition": partitions(results, folder / "partition"),
        }
        for y, x in spec.curves:
            pictures[f"{y}-{x}"] = draw_curves(results, folder / safe_name(f"{y}-{x}"), y, x, fallback=())
    return pictures
