"""Reports as pure functions of run records: tables, figures and a self-contained page."""

from harness.config.report import Choice, Pivot, ReportSpec, Target, read_choice, read_target
from harness.report.data.export import write_parquet, write_tensorboard, write_tidy
from harness.report.data.identity import cell_key
from harness.report.data.leaderboard import leaderboard
from harness.report.data.results import Results
from harness.report.data.tidy import tidy
from harness.report.html.page import write_page, write_report
from harness.report.plots.budgets import accuracy_against_epsilon
from harness.report.plots.curves import learning_curves
from harness.report.plots.frontier import accuracy_against_bytes
from harness.report.tables.summary import print_summary
from harness.report.tables.write import print_table, write_csv, write_latex, write_markdown

__all__ = [
    "Choice",
    "Pivot",
    "ReportSpec",
    "Results",
    "Target",
    "accuracy_against_bytes",
    "accuracy_against_epsilon",
    "cell_key",
    "leaderboard",
    "learning_curves",
    "print_summary",
    "print_table",
    "read_choice",
    "read_target",
    "tidy",
    "write_csv",
    "write_latex",
    "write_markdown",
    "write_page",
    "write_parquet",
    "write_report",
    "write_tensorboard",
    "write_tidy",
]
