"""The command line: ``python -m harness COMMAND``.

Exit codes: 0 success, 1 some run failed, 2 invalid request or damaged files, 130 interrupted (the same command
resumes).
"""

from __future__ import annotations

import argparse
import logging
import os
import sys
from collections.abc import Callable, Sequence
from importlib import import_module
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

from harness.cli.examples import EXAMPLES, epilog
from harness.cli.grammar import Parser, Version, grouped_help, path
from harness.cli.names import shadowed
from harness.cli.options import (
    computing_options,
    execution_options,
    jobs_options,
    protection_options,
    ranking_options,
    sample_options,
    spec_options,
    sweep_options,
    system_options,
    tensorboard_option,
    where_option,
)
from harness.cli.visible import Visible
from harness.core.registry import PLUGINS, Interrupted, UserError

PROGRAM = "python -m harness"
SHELLS = ("bash", "zsh", "tcsh")
LISTS = (
    "algorithms",
    "codecs",
    "data",
    "mechanisms",
    "metrics",
    "models",
    "partitions",
    "problems",
    "suites",
    "topologies",
)
#: Modules of commands that read results, list parts or fetch data, and need no part itself.
READERS = ("listing", "report", "status")
#: Commands as ``--help`` lists them.
GROUPS = {
    "run": ("run", "suite", "sweep", "plan", "status", "resume", "retry"),
    "look": ("leaderboard", "report", "recommend", "predict", "epsilon", "list"),
    "share": ("export", "archive", "merge"),
    "check": ("check", "audit", "verify"),
    "set up": ("data", "doctor", "completion"),
}


def refusals() -> tuple[type[Exception], ...]:
    """Return the errors whose message is enough for a user; a function, as the parts that define them are large."""
    from compression import CompressionError
    from datasets.errors import DataError, FederationError
    from datasets.partition import PartitionError
    from datasets.topology import TopologyError
    from harness.simulation.snapshot import Diverged

    return UserError, Diverged, DataError, PartitionError, FederationError, TopologyError, CompressionError


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code."""
    return exit_code(parser(), arguments, _carry_out)


def exit_code(
    parser: argparse.ArgumentParser,
    arguments: Sequence[str] | None,
    carry_out: Callable[[argparse.Namespace], int],
) -> int:
    """Parse arguments, carry them out, and return the exit code; errors of a user become one line."""
    try:
        given = parser.parse_args(arguments)
        if hidden := shadowed():
            return _refused("; ".join(hidden))
        screen = logging.StreamHandler()
        screen.setFormatter(Visible())
        logging.basicConfig(level=logging.INFO if given.verbose else logging.WARNING, handlers=[screen])
        return carry_out(given)
    except UserError as error:
        _refused(str(error))
        return 130 if isinstance(error, Interrupted) else 2
    except BrokenPipeError:  # the reader of our output has gone; what is left for it would fail at the end
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except OSError as error:
        return _refused(f"{error.filename or ''} {error.strerror or error}")
    except KeyboardInterrupt:
        from harness.cli.console import log

        log.print("interrupted; the same command continues from here", markup=False)
        return 130
    except Exception as error:
        if not isinstance(error, refusals()):
            raise
        return _refused(str(error))


def _carry_out(given: argparse.Namespace) -> int:
    """Import the command that was given, and run it."""
    module, name = given.do
    if module not in READERS or given.plugin or entry_points(group=PLUGINS):
        from harness.config import plugins

        plugins.load(given.plugin)
    command = getattr(import_module(f"harness.cli.{module}"), name)
    if torch := sys.modules.get("torch"):
        torch.set_num_threads(1)  # more only on request: torch threads that share a busy core are slow
    code: int = command(given)
    sys.stdout.flush()
    return code


def _refused(message: str) -> int:
    from harness.cli.console import log

    log.print(f"error: {message}", style="red", markup=False)
    return 2


def parser() -> argparse.ArgumentParser:
    """Return the argument parser."""
    top = Parser(
        prog=PROGRAM,
        description="Measure what privacy and compression cost in federated learning.",
        epilog=epilog(PROGRAM, EXAMPLES[""]),
        formatter_class=grouped_help(GROUPS),
    )
    verbose_option(top)
    top.add_argument("--version", action=Version, nargs=0, help="print versions and exit")
    commands = top.add_subparsers(dest="command", required=True, metavar="COMMAND", title="commands")

    def command(name: str, module: str, help: str, do: str = "") -> Parser:
        made: Parser = commands.add_parser(name, help=help, description=help, **_with_examples(name))
        made.set_defaults(do=(module, f"{do or name}_command"))
        return made

    run = command("run", "run", "run one benchmark")
    spec_options(run)
    execution_options(run)
    run.add_argument(
        "--save-predictions", action="store_true", help="write predictions.csv beside the results"
    )
    run.add_argument(
        "--save-model", action="store_true", help="write model.safetensors beside the results, for predict"
    )
    run.add_argument("--json", action="store_true", help="print the final evaluation as JSON")

    many = command("suite", "run", "run a suite: a name, or a YAML file")
    many.add_argument("suite", metavar="NAME|FILE")
    many.add_argument("--profile", default="smoke", help="size: smoke (minutes) or paper (default: smoke)")
    protection_options(many)
    swept = command("sweep", "run", "run a benchmark over lists of values, as a suite", "suite")
    spec_options(swept)
    for each in (many, swept):
        each.add_argument("--json", action="store_true", help="print the leaderboard as JSON")
        sweep_options(each)
        jobs_options(each)
        execution_options(each)

    planned = command("plan", "run", "estimate the cost of a run or suite")
    planned.add_argument("suite", nargs="?", metavar="NAME|FILE")
    planned.add_argument("--profile", default="smoke", help="size: smoke or paper")
    planned.add_argument("--json", action="store_true", help="print JSON")
    planned.add_argument(
        "--untimed",
        action="store_true",
        help="skip the trial rounds; missing image data sets are planned by their shape",
    )
    spec_options(planned)
    sweep_options(planned)

    status = command("status", "status", "show the progress of the runs in a results folder")
    status.add_argument("dir", type=path, metavar="DIR")
    status.add_argument("--suite", help="only this suite's runs")
    status.add_argument("--json", action="store_true", help="print JSON")

    for retried, meaning in (
        (False, "finish interrupted and missing runs"),
        (True, "repeat failed runs"),
    ):
        again = command("retry" if retried else "resume", "folders", f"{meaning} in a results folder")
        again.set_defaults(retry=retried)
        again.add_argument("out", type=path, metavar="DIR")
        again.add_argument("--suite", help="only this suite's runs")
        jobs_options(again)
        computing_options(again)
        tensorboard_option(again)
    merged = command("merge", "folders", "copy the runs and suites of several results folders into one")
    merged.add_argument("dirs", type=path, nargs="+", metavar="DIR")
    merged.add_argument("--out", type=path, required=True, metavar="DIR", help="folder that receives them")

    board = command(
        "leaderboard",
        "report",
        "print and write the comparison table of a results folder",
    )
    report = command("report", "report", "write the table, pictures and HTML page of a results folder")
    for each in (board, report):
        ranking_options(each)
    where_option(board)
    board.add_argument(
        "--columns",
        metavar="NAME,...",
        help="columns of table and files, in this order; accuracy is mean and deviation; help lists the names",
    )
    board.add_argument(
        "--bold-best",
        action="store_true",
        help="with --markdown and --latex: bold the best row of each group, and rows not significantly worse",
    )
    board.add_argument("--csv", type=path, metavar="FILE", help="write CSV, one row per cell")
    board.add_argument("--markdown", type=path, metavar="FILE", help="write a Markdown table")
    board.add_argument("--latex", type=path, metavar="FILE", help="write a LaTeX table")
    board.add_argument("--parquet", type=path, metavar="FILE", help="write Parquet, one row per cell")
    board.add_argument("--json", action="store_true", help="print JSON")
    report.add_argument(
        "--pivot",
        action="append",
        default=[],
        metavar="ROWS,COLUMNS[,MEASURE]",
        help="tabulate two settings, such as algorithm.local_steps,algorithm.alpha (repeatable)",
    )
    report.add_argument(
        "--figures", metavar="FORMAT,...", help="formats of figures besides SVG: png, pdf (default: png)"
    )
    report.add_argument(
        "--paper",
        action="store_true",
        help="also write a folder paper/: tables, figures, privacy statement, BibTeX",
    )
    report.add_argument("--style", metavar="FILE|NAME", help="matplotlib style of the figures (.mplstyle)")

    advised = command("recommend", "report", "find the settings that satisfy bounds, and how certain that is")
    advised.add_argument("dir", type=path, metavar="DIR")
    advised.add_argument("--suite", help="only this suite's runs, with the report settings of its file")
    advised.add_argument("--by", help="measure that breaks ties (default: the suite's, or accuracy)")
    where_option(advised)
    system_options(advised)
    advised.add_argument("--json", action="store_true", help="print JSON")

    export = command("export", "report", "write every evaluation of a results folder for other tools")
    export.add_argument("dir", type=path, metavar="DIR")
    export.add_argument("--suite", help="only this suite's runs")
    export.add_argument("--parquet", type=path, metavar="FILE", help="write Parquet, one row per evaluation")
    export.add_argument("--csv", type=path, metavar="FILE", help="write CSV, one row per evaluation")
    export.add_argument(
        "--clients", type=path, metavar="FILE", help="write CSV, one row per run and named client"
    )
    export.add_argument("--tensorboard", type=path, metavar="FOLDER", help="write TensorBoard events")

    predicted = command("predict", "predict", "apply the saved model of a run to a table")
    predicted.add_argument("model", type=path, metavar="RUN", help="folder of a run, or a file .safetensors")
    predicted.add_argument(
        "data", metavar="TABLE", help="CSV, Parquet or Arrow file with its columns, or csv:FILE?decimal=,"
    )
    predicted.add_argument(
        "--client", metavar="NAME", help="client whose model to apply, if every client has its own"
    )
    predicted.add_argument("--csv", type=path, metavar="FILE", help="write predictions here (default: print)")
    predicted.add_argument(
        "--keep",
        action="append",
        default=[],
        metavar="COLUMN",
        help="also write this column; may be repeated",
    )
    predicted.add_argument(
        "--fill", action="store_true", help="write the training mean where a number is missing"
    )

    diagnosed = command("doctor", "doctor", "check the installation and suggest fixes")
    diagnosed.add_argument(
        "--out", type=path, default=Path("results"), metavar="DIR", help="results folder to check"
    )
    diagnosed.add_argument("--json", action="store_true", help="print JSON")

    verified = command(
        "verify",
        "verify",
        "compare a results folder or an archive with its checksums, and repeat some of its runs; exit code 2 "
        "if they differ",
    )
    verified.add_argument(
        "dir",
        nargs="?",
        type=path,
        default=Path("results"),
        metavar="DIR|FILE.tar.gz",
        help="results folder, archive or submission (default: results)",
    )
    sample_options(verified, 0)
    verified.add_argument(
        "--results", type=path, help=argparse.SUPPRESS
    )  # earlier; the command says what now
    verified.add_argument("--json", action="store_true", help="print JSON")

    archived = command("archive", "verify", "pack the results of a folder into one portable file")
    archived.add_argument("dir", type=path, metavar="DIR")
    archived.add_argument("file", type=path, metavar="FILE.tar.gz")

    listing = command("list", "listing", "list algorithms, data sets, metrics, models, ...")
    listing.add_argument("what", choices=LISTS)
    listing.add_argument("--json", action="store_true", help="print JSON")

    data = command("data", "listing", "list and fetch data sets, draw partitions")
    what = data.add_subparsers(dest="what", required=True, metavar="list|fetch|draw")
    listed = what.add_parser(
        "list", help="list data sets and whether they can be loaded now", **_with_examples("data list")
    )
    listed.add_argument("--json", action="store_true", help="print JSON")
    fetched = what.add_parser("fetch", help="make data sets available", **_with_examples("data fetch"))
    fetched.add_argument("names", nargs="+", metavar="NAME")
    drawn = what.add_parser("draw", help="draw the classes of every client", **_with_examples("data draw"))
    drawn.set_defaults(do=("catalog", "draw_command"))
    drawn.add_argument("file", type=path, metavar="FILE.png|svg")
    spec_options(drawn)

    checked = command("check", "catalog", "run the conformance checks on algorithms")
    checked.add_argument("names", nargs="*", metavar="NAME", help="default: all")
    checked.add_argument("--json", action="store_true", help="print JSON")
    checked.add_argument("--verbose", action="store_true", default=argparse.SUPPRESS, help="list every check")

    audited = command(
        "audit",
        "catalog",
        "test a run's privacy claim: its releases, and training with canaries",
    )
    spec_options(audited)
    audited.add_argument(
        "--trials", type=int, default=20, help="rounds whose releases are tested (default: 20)"
    )
    audited.add_argument(
        "--canaries", type=int, default=100, help="planted units of the audited run (default: 100; 0: no run)"
    )
    audited.add_argument("--json", action="store_true", help="print JSON")

    completed = command("completion", "completion", "print the script that completes commands in a shell")
    completed.add_argument("shell", choices=SHELLS)

    computed = command("epsilon", "epsilon", "compute the privacy of a mechanism without a run")
    computed.later = _epsilon_options

    for one in (*commands.choices.values(), *what.choices.values()):
        if one is not data:  # which has subcommands
            plugin_option(one)
    return top


def verbose_option(to: argparse.ArgumentParser) -> None:
    """Add the option that stands before the command."""
    to.add_argument("--verbose", action="store_true", help="log what is loaded and how runs are computed")


def plugin_option(to: argparse.ArgumentParser) -> None:
    """Add the option of every command."""
    to.add_argument(
        "--plugin",
        action="append",
        default=[],
        type=path,
        metavar="FILE.py",
        help="file that registers algorithms, models, codecs, mechanisms, metrics or data (repeatable)",
    )


def with_examples(program: str, examples: Sequence[str]) -> dict[str, Any]:
    """Return the arguments that end a parser's help with examples, line by line."""
    return {"epilog": epilog(program, examples), "formatter_class": argparse.RawDescriptionHelpFormatter}


def _with_examples(command: str) -> dict[str, Any]:
    return with_examples(PROGRAM, EXAMPLES[command])


def filled() -> argparse.ArgumentParser:
    """Return the parser with the options that commands add later."""
    top = parser()
    for action in top._subparsers._group_actions if top._subparsers else ():
        for one in dict(action.choices or {}).values():
            one.fill()
    return top


def _epsilon_options(to: argparse.ArgumentParser) -> None:
    from harness.cli.epsilon import epsilon_options  # imports what privacy is computed with

    epsilon_options(to)
