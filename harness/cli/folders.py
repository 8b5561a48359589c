"""Commands ``resume``, ``retry`` and ``merge``."""

from __future__ import annotations

import argparse

from harness.cli.console import log, out
from harness.cli.run import exit_code, work_options
from harness.config.recorded import misnamed, results_folder
from harness.config.report import report_settings
from harness.core.units import counted
from harness.executors.suites import carry_on
from harness.storage.merge import merge


def resume_command(args: argparse.Namespace) -> int:
    """Finish the runs of a folder that were interrupted or never begun, and write the reports anew."""
    ends, suites = carry_on(work_options(args), args.suite)
    if not ends.keys() - {"left"}:
        what = "failed" if args.retry else "is unfinished"
        log.print(f"nothing in {args.out} {what} that can be run", markup=False)
        return exit_code(ends)
    from harness.cli.report import write_all  # slow to import

    store = results_folder(args.out)
    for name in suites:
        ends["damaged"] += write_all(store, name, report_settings(store, name))
    return exit_code(ends)


retry_command = resume_command


def merge_command(args: argparse.Namespace) -> int:
    """Copy the runs and suites of folders into one; 1 if a run could not be copied."""
    merged = merge(args.dirs, args.out, misnamed)
    for place, why in merged.left.items():
        log.print(f"{place} is not copied: {why}", markup=False)
    suites = f"; suites: {', '.join(merged.suites)}" if merged.suites else ""
    out.print(
        f"{args.out}: {counted(merged.copied, 'run')} copied, {merged.same} there already, "
        f"{len(merged.left)} left{suites}",
        markup=False,
        soft_wrap=True,
    )
    return 1 if merged.left else 0
