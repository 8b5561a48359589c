"""The public Python interface: ``import harness``, then ``harness.run``, ``harness.sweep`` and so on.

These names are stable; all other names in the packages may change between versions.
"""

from harness.api.checking import audit, check, epsilon, predict
from harness.api.folders import Verification, archive, export, merge, resume, retry, status, verify
from harness.api.making import Study, load_plugin, plan, prepare, run, suite, sweep, tune
from harness.api.reading import leaderboard, load_results, recommend, write_report
from harness.config.describing import describe
from harness.config.run import RunSpec
from harness.core.errors import UserError
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
    "Verification",
    "archive",
    "audit",
    "check",
    "describe",
    "epsilon",
    "export",
    "judge",
    "leaderboard",
    "load_plugin",
    "load_results",
    "merge",
    "plan",
    "predict",
    "prepare",
    "recommend",
    "resume",
    "retry",
    "run",
    "status",
    "suite",
    "sweep",
    "tune",
    "verify",
    "write_report",
]
