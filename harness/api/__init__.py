"""The public Python interface: ``import harness``, then ``harness.run``, ``harness.sweep`` and so on.

These names are stable; all other names in the packages may change between versions.
"""

from harness.api.adapters import aggregator, flower_strategy, postprocessor
from harness.api.making import Study, load_plugin, plan, prepare, run, suite, sweep, tune
from harness.api.reading import leaderboard, load_results, recommend, write_report
from harness.config.run import RunSpec
from harness.core.registry import UserError
from harness.report.folder import Report
from harness.report.trackers import track
from harness.report.verdict import Hypothesis, judge
from harness.simulation.build import Execution, Setup
from harness.simulation.callbacks import Callback, StopEarly
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
    "UserError",
    "aggregator",
    "flower_strategy",
    "judge",
    "leaderboard",
    "load_plugin",
    "load_results",
    "plan",
    "postprocessor",
    "prepare",
    "recommend",
    "run",
    "suite",
    "sweep",
    "track",
    "tune",
    "write_report",
]
