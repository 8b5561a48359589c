"""Tables, pictures and one self-contained page: a report is a pure function of run records."""

from harness.report.budgets import accuracy_against_epsilon
from harness.report.cells import cell_key
from harness.report.chosen import Choice, read_choice
from harness.report.curves import learning_curves
from harness.report.export import write_parquet, write_tensorboard, write_tidy
from harness.report.frontier import accuracy_against_bytes
from harness.report.leaderboard import leaderboard
from harness.report.page import Look, write_page, write_report
from harness.report.pivot import Pivot
from harness.report.tables import print_table, write_csv, write_latex, write_markdown
from harness.report.target import read_target
from harness.report.tidy import tidy

__all__ = [
    "Choice",
    "Look",
    "Pivot",
    "accuracy_against_bytes",
    "accuracy_against_epsilon",
    "cell_key",
    "leaderboard",
    "learning_curves",
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
