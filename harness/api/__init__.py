"""The public Python interface: ``import harness``, then ``harness.run``, ``harness.sweep`` and so on.

These names are stable; all other names in the packages may change between versions.
"""

from harness.api.making import Study, load_plugin, plan, prepare, run, suite, sweep, tune
from harness.api.reading import leaderboard, load_results, recommend, write_report
from harness.config.describing import describe
from harness.config.run import RunSpec
from harness.core.registry import UserError
from harness.report.folder import Report
from harness.report.tensorboard import TensorBoard
from harness.report.verdict import Hypothesis, judge
from harness.simulation.callbacks import Callback, StopEarly
from harness.simulation.setup import Execution, Setup
from harness.simulation.simulation import Simulation
from harness.storage.store import RunRecord

__all__ = [
    "Callback",
    "Execution",
    "Hypothesis",
    "Report",
    "RunRecord",
    "RunSpec",
    "Setup",
    "Simulation",
    "StopEarly",
    "Study",
    "TensorBoard",
    "UserError",
    "describe",
    "judge",
    "leaderboard",
    "load_plugin",
    "load_results",
    "plan",
    "prepare",
    "recommend",
    "run",
    "suite",
    "sweep",
    "tune",
    "write_report",
]
