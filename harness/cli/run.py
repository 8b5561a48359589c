"""Commands ``run``, ``suite`` and ``plan``."""

from __future__ import annotations

import argparse
import json
import shlex
import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from harness.cli.arguments import execution_from, one_thread, spec_from, suite_from
from harness.cli.console import amount, figures, log, out, print_rows, progress_bar, short
from harness.cli.described import say_tables
from harness.cli.grammar import CommandLine
from harness.cli.progress import SuiteProgress
from harness.config.recorded import results_folder
from harness.config.run import RunSpec
from harness.config.sweep import Combination
from harness.config.tuned_runs import Further, estimate
from harness.core.errors import Incompatible
from harness.core.units import count, counted, duration, size, work
from harness.executors.scheduler import check_locks, run_one
from harness.executors.suites import run_suite, within_limit
from harness.executors.work import Work
from harness.simulation.build import prepare
from harness.simulation.calibration import calibrated
from harness.simulation.callbacks import Callback
from harness.simulation.plan import plan
from harness.simulation.room import fit
from harness.simulation.saved_model import check_savable
from harness.storage.run_files import EXTRAS
from harness.storage.store import RunFolder, Store

CELL = (
    *(
        "data",
        "model",
        "algorithm",
        "alpha",
        "beta",
        "unit",
        "placement",
        "mechanism",
        "adjacency",
        "sampling",
        "sampling_rate",
    ),
    *(
        "noise_multiplier",
        "noise_to_signal",
        "epsilon_total",
        "noise_cohort",
        "epsilon_median",
        "clients",
        "rounds",
        "reason",
    ),
)
#: How a plan writes costs, and calls epsilons: as tables of results do. Its JSON keeps numbers and names.
UNITS = {
    "memory": size,
    "bytes_up": size,
    "bytes_down": size,
    "flops": work,
    "oracle_calls": count,
    "seconds": duration,
}
NAMES = {"epsilon_total": "ε total", "epsilon_median": "ε median", "flops": "work", "seconds": "time"}
MEANS = ("memory", "bytes_up", "bytes_down", "flops", "oracle_calls", "seconds")
STACKED = "seconds_stacked"  # in the title alone
MANY = 1000  # runs, of which a plan says that it has begun
UNTIMED = ("--untimed",)  # options that only a plan has
# Columns of a plan that a narrow terminal may lack, the most dispensable first.
EXPENDABLE = (
    *(
        "oracle_calls",
        "adjacency",
        "sampling",
        "ε median",
        "work",
        "noise_to_signal",
        "bytes_down",
        "unit",
    ),
    *("clients", "noise_multiplier", "mechanism", "placement", "runs", "reason", "model", "rounds"),
)


def run_command(args: argparse.Namespace) -> int:
    """Run one benchmark, or the runs of a published row."""
    if args.cell is not None:
        from harness.cli.repeated import repeat  # reports are slow to import

        return repeat(args, work_options(args))
    spec, execution, trackers = spec_from(args), execution_from(args), tracker_callbacks(args)
    setup = calibrated(prepare(spec, execution))  # refuse incompatible parts before anything is written
    say_tables([spec])
    fitted = fit(setup, execution)
    if fitted.note and not fitted.setup.in_chunks:  # the worker says so of those in chunks
        log.print(fitted.note, markup=False)
    if args.save_model:
        check_savable(setup)
    store = Store(args.out).open()
    check_locks(store.root, alone=True)
    requested = dict(zip(EXTRAS, (args.save_predictions, args.save_model), strict=True))
    with progress_bar() as bar:
        task = bar.add_task(spec.algorithm["name"], total=spec.rounds, status="")

        def progress(_: RunSpec, round: int, line: dict[str, Any]) -> None:
            bar.update(task, completed=round, status=figures(line))

        outcome = run_one(
            spec,
            args.out,
            execution,
            retry=args.retry,
            progress=progress,
            save=[name for name in requested if requested[name]],
            setup=setup,
        )
    for tracker in trackers:
        tracker.on_run_end(store.record(setup.id, spec.model_dump(mode="json")))
    if outcome.status != "done":
        log.print(f"{setup.id} {outcome.status}: {outcome.why or 'in another process'}", markup=False)
        return 2 if outcome.status == "damaged" else 1
    _print_end(store.folder(setup.id), as_json=args.json)
    log.print(
        f"Next: python -m harness report {shlex.quote(str(args.out))} compares it with the other runs there.",
        markup=False,
    )
    return 0


def _print_end(folder: RunFolder, *, as_json: bool) -> None:
    """Print the last evaluation of a run, and its privacy statement in words."""
    final = folder.end()
    if as_json:
        print(json.dumps({"id": folder.path.name, **final}))
        return
    out.print(f"{folder.path}: {figures(final)}", markup=False)
    if (claim := final.get("privacy")) is None:
        return
    from harness.report.data.clients import client_names  # reports are slow to import
    from harness.report.tables.privacy import in_words, uncovered_sentence

    noise, epsilon, clip = claim["noise_multiplier"], claim["epsilon_total"], claim.get("clip")
    clips = clip if isinstance(clip, list) else [clip]
    signal = final.get("diagnostics", {}).get("noise_to_signal")
    facts = [
        f"ε total {amount(epsilon)} ({claim['accountant']})",
        f"noise multiplier {'none' if noise is None else format(noise, '.4g')}",
        *([] if clip is None else [f"clip norm {', '.join(map(str, clips))}"]),
        *([] if signal is None else [f"noise-to-signal {signal:.3g}"]),
    ]
    out.print(f"{uncovered_sentence(final.get('not_covered', ()))}", markup=False)
    out.print(f"{', '.join(facts)}. {in_words(claim, client_names(final))}", markup=False)


def suite_command(args: argparse.Namespace) -> int:
    """Run a suite, or a sweep over one run, and write its report."""
    suite = suite_from(args)
    say_tables(cell.spec for cell in suite.combinations if cell.spec is not None)
    ends = run_suite(
        suite,
        work_options(args),
        limit_hours=args.limit_hours,
        trim=args.trim,
    )
    from harness.cli.report import write_all  # slow to import

    ends["damaged"] += write_all(results_folder(args.out), suite.name, suite.report, as_json=args.json)
    return exit_code(ends)


sweep_command = suite_command


def work_options(args: argparse.Namespace) -> Work:
    """Return where runs are written and how they are computed."""
    return Work(
        args.out,
        follow=SuiteProgress,
        say=lambda text: log.print(text, markup=False),
        busy=log.status,
        jobs=args.jobs,
        executor=args.executor,
        address=args.address,
        execution=execution_from(args),
        callbacks=tracker_callbacks(args),
        retry=getattr(args, "retry", False),
    )


def tracker_callbacks(args: argparse.Namespace) -> tuple[Callback, ...]:
    """Return the callback that writes runs to TensorBoard, if a folder is given."""
    if args.tensorboard is None:
        return ()
    from harness.report.tensorboard import TensorBoard  # slow to import

    return (TensorBoard(args.tensorboard),)


def exit_code(ends: Counter[str]) -> int:
    """Return 0 if all runs are done."""
    return int(any(ends[name] for name in ("failed", "damaged", "running", "left")))


def plan_command(args: CommandLine) -> int:
    """Print the estimated costs of runs."""
    one_thread()
    with log.status("reading the settings of all runs"):
        chosen = suite_from(args)
    combinations = within_limit(chosen.combinations, chosen.tune, args.limit_hours, args.trim)
    reported, searched, further = estimate(combinations, chosen.tune)
    combinations = [*reported, *searched]
    if len(combinations) >= MANY:
        log.print(
            f"planning {counted(len(combinations), 'run')}; those that differ only in their seed share a plan"
        )
    with progress_bar() as bar:
        task = bar.add_task("planning", total=len(combinations), status="")
        rows = plan(
            combinations,
            timed=not args.untimed,
            done=lambda count: bar.update(task, completed=count),
            identified=args.json,
        )
    refused = {row["reason"] for row in rows} if args.limit_hours is None else set()
    if len(refused) == 1 and all(row["status"] == "skipped" for row in rows):
        raise Incompatible(str(refused.pop()))  # there is nothing to plan
    if args.json:
        print(json.dumps(rows, indent=1))
    else:
        entries, title = _condense(rows)
        of_search = f". {_of_search(further, combinations, rows)}" if chosen.tune else ""
        print_rows(entries, title + of_search, EXPENDABLE)
        squeezed = dict.fromkeys(row["squeezed"] for row in rows if row.get("squeezed"))
        for text in squeezed:
            log.print(f"Here: {text}", markup=False)
        if not squeezed:
            log.print(_step_after_plan(args), markup=False)
    return 0


def _step_after_plan(args: CommandLine) -> str:
    """Return the command that makes the runs of a plan."""
    command = "suite" if args.suite else "sweep" if args.sweep or args.random else "run"
    words = [word for word in args.words[args.words.index("plan") + 1 :] if word not in UNTIMED]
    called = "this run" if command == "run" else "these runs"
    return f"Next: python -m harness {shlex.join([command, *words])} makes {called}."


def _of_search(
    further: Sequence[Further], combinations: Sequence[Combination], rows: Sequence[Mapping[str, Any]]
) -> str:
    """Return what a plan knows of the runs of a search, and how many more they may become."""
    means = "Settings that are tuned are planned at the mean of their ranges"
    if not further:
        return means
    times = {cell: _seconds(row) for cell, row in zip(combinations, rows, strict=True)}
    counts: Counter[str] = Counter()
    seconds: dict[str, float] = {}
    for why, cell, most in further:
        counts[why] += most
        seconds[why] = seconds.get(why, 0.0) + most * (times[cell] or 0.0)
    by_reason = (
        f"{number:,} {why}" + (f" (about {duration(seconds[why])})" if seconds[why] else "")
        for why, number in counts.items()
    )
    return (
        f"{means}, and searches with the runs that they make at least. More runs, at most: "
        f"{', '.join(by_reason)}"
    )


def _seconds(row: Mapping[str, Any]) -> float | None:
    """Return the planned seconds of a run, as one of a stack where it would be."""
    seconds: float | None = row.get(STACKED) or row.get("seconds")
    return seconds


def _condense(rows: Sequence[dict[str, Any]]) -> tuple[list[dict[str, Any]], str]:
    """Return a plan with seeds averaged and shared values in the title; --json prints all values."""
    cells: dict[str, list[dict[str, Any]]] = {}
    for row in rows:
        cells.setdefault(str([row.get(name) for name in CELL]), []).append(row)
    means: list[dict[str, Any]] = []
    for runs in cells.values():
        values_by_name = {name: [run.get(name, 0) for run in runs] for name in MEANS}
        mean = {
            name: None if None in some else statistics.mean(some) for name, some in values_by_name.items()
        }
        means.append({**{name: runs[0].get(name) for name in CELL}, **mean, "runs": len(runs)})
    timed = [row["seconds"] for row in rows if row.get("seconds") is not None]
    about = [f"about {duration(sum(timed))} one after the other"] if timed else []
    if len(rows) > 1 and any(row.get(STACKED) for row in rows):
        about += [f"{duration(sum(_seconds(row) or 0.0 for row in rows))} by one worker that stacks runs"]
    attacks = sorted({row["attacks"] for row in rows if row.get("attacks")})
    about += [f"without the time of attacks ({'; '.join(attacks)}), which is not counted"] if attacks else []
    absent = sorted({row["data"] for row in rows if row["status"] == "planned" and row["id"] is None})
    about += [f"not here and planned by declared size: {', '.join(absent)}"] if absent else []
    means = [
        {NAMES.get(key, key): UNITS.get(key, short)(value) or None for key, value in cell.items()}
        for cell in means
    ]
    values = {key: {cell[key] for cell in means} for key in means[0]}
    constant = [key for key in values if len(values[key]) == 1 and len(means) > 1]
    shared = [f"{key} {values[key].pop()}" for key in constant if means[0][key] is not None]
    empty = [key for key in values if all(cell[key] is None for cell in means)]
    entries = [{k: v for k, v in cell.items() if k not in [*constant, *empty]} for cell in means]
    if len(entries) == 1:
        entries = [{"": name.replace("_", " "), "planned": value} for name, value in entries[0].items()]
    return entries, ", ".join([counted(len(rows), "run"), *about, *shared])
