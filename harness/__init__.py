"""The benchmark harness: ``python -m harness --help``, or the names of `harness.api` in Python.

Names are imported on first use, so that importing one module does not import the whole package.
"""

import os
from importlib import import_module
from typing import TYPE_CHECKING, Any

from harness.storage.names import shadowed

# torch reads this at its first allocation: blocks of megabytes go to huge pages, where the system has them. With
# small ones, fresh memory was 40 % of the time of FedReCo among 50 clients with 1.2 million parameters each.
os.environ.setdefault("THP_MEM_ALLOC_ENABLE", "1")

if TYPE_CHECKING:
    from harness.api import (
        Callback,
        Execution,
        Hypothesis,
        Report,
        RunRecord,
        RunSpec,
        Setup,
        Simulation,
        StopEarly,
        Study,
        TensorBoard,
        UserError,
        Verification,
        archive,
        audit,
        check,
        describe,
        epsilon,
        export,
        judge,
        leaderboard,
        load_plugin,
        load_results,
        merge,
        plan,
        predict,
        prepare,
        recommend,
        resume,
        retry,
        run,
        status,
        suite,
        sweep,
        tune,
        verify,
        write_report,
    )

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


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    if hidden := shadowed():
        raise ImportError("; ".join(hidden))
    return getattr(import_module("harness.api"), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
