"""Tables, pictures and one self-contained page: a report is a pure function of run records."""

from harness.report.data.cells import cell_key
from harness.report.data.export import write_parquet, write_tensorboard, write_tidy
from harness.report.data.leaderboard import leaderboard
from harness.report.data.model_selection import Choice, read_choice
from harness.report.data.pivot import Pivot
from harness.report.data.summary import print_summary
from harness.report.data.tables import print_table, write_csv, write_latex, write_markdown
from harness.report.data.target import read_target
from harness.report.data.tidy import tidy
from harness.report.html.page import ReportSpec, write_page, write_report
from harness.report.plots.budgets import accuracy_against_epsilon
from harness.report.plots.curves import learning_curves
from harness.report.plots.frontier import accuracy_against_bytes

__all__ = [
    "Choice",
    "Pivot",
    "ReportSpec",
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
