"""The command line: ``python -m harness COMMAND``.

Exit codes: 0 success, 1 some run failed, 2 invalid request or damaged files, 130 interrupted (the same command
resumes).
"""

from __future__ import annotations

import argparse
import logging
import sys
from collections.abc import Callable, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any, NoReturn

from harness.core.registry import UserError, unknown
from harness.executors import EXECUTORS

SECTIONS = ("algorithm", "data", "partition", "problem", "model", "topology", "cohort")
NUMBERS = ("rounds", "eval-every", "seed")
PRECISIONS = ("float32", "float64", "bfloat16")
EXAMPLES = {
    "algorithm": "{name: fedavg, lr: 0.1}",
    "data": "{name: adult, sensitive: race}",
    "partition": "{kind: dirichlet, alpha: 0.3}",
    "problem": "{kind: fair_classification}",
    "model": "{name: mlp, hidden: [32]}",
    "topology": "{kind: ring}",
    "cohort": "{size: 10}",
}
LISTS = ("algorithms", "data", "metrics", "models", "partitions", "problems", "suites", "topologies")
VERBOSE = "report what is loaded; with check: list every check"


class Parser(argparse.ArgumentParser):
    """A parser that refuses arguments like the rest of the harness: in one line, with the nearest valid name.

    `later` adds its options when they are needed: those of one command may take imports that no other needs.
    """

    later: Callable[[argparse.ArgumentParser], None] | None = None

    def fill(self) -> None:
        """Add the options that were left for later."""
        later, self.later = self.later, None
        if later is not None:
            later(self)

    def error(self, message: str) -> NoReturn:
        """Raise UserError instead of printing the usage and ending the process."""
        raise UserError(f"{message}; see {self.prog} --help")

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Parse, and refuse unknown options here, where those of the command are known."""
        self.fill()
        given, left = super().parse_known_args(args, namespace)
        if left and left[0].startswith("-"):
            raise unknown("option", left[0].partition("=")[0], self._option_string_actions)
        if left:
            self.error(f"unexpected argument {left[0]!r}")
        return given, left

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        if action.choices is not None and value not in action.choices:
            kind = "command" if isinstance(action, argparse._SubParsersAction) else "argument"
            raise unknown(" ".join(["value of", *action.option_strings]) if action.option_strings else kind,
                          value, action.choices)  # fmt: skip


def refusals() -> tuple[type[Exception], ...]:
    """Return the errors whose message is enough for a user; a function, as the parts that define them are large."""
    from compression import CompressionError
    from datasets.dataset import DataError
    from datasets.federation import FederationError
    from datasets.partition import PartitionError
    from datasets.topology import TopologyError
    from harness.simulation.snapshot import Diverged

    return UserError, Diverged, DataError, PartitionError, FederationError, TopologyError, CompressionError


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code."""
    try:
        given = parser().parse_args(arguments)
        logging.basicConfig(level=logging.INFO if given.verbose else logging.WARNING, format="%(message)s")
        return _carry_out(given)
    except UserError as error:
        return _refused(str(error))
    except BrokenPipeError:
        sys.stderr.close()  # the reader of our output has gone
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
    if given.command != "list" or given.what != "suites" or given.plugin:
        from harness.config import plugins

        plugins.load(given.plugin)
    module, name = given.do
    command = getattr(import_module(f"harness.cli.{module}"), name)
    if torch := sys.modules.get("torch"):
        torch.set_num_threads(1)  # more only on request: torch threads that share a busy core are slow
    code: int = command(given)
    return code


def _refused(message: str) -> int:
    from harness.cli.console import log

    log.print(f"error: {message}", style="red", markup=False)
    return 2


def parser() -> argparse.ArgumentParser:
    """Return the argument parser."""
    top = Parser(
        prog="python -m harness",
        description="Measure what privacy and compression cost in federated learning.",
    )
    top.add_argument("--verbose", action="store_true", help=VERBOSE)
    commands = top.add_subparsers(dest="command", required=True, metavar="COMMAND")

    def command(name: str, module: str, help: str, do: str = "") -> Parser:
        made: Parser = commands.add_parser(name, help=help, description=help)
        made.set_defaults(do=(module, f"{do or name}_command"))
        return made

    run = command("run", "run", "run one benchmark")
    _spec_options(run)
    _execution_options(run)
    run.add_argument(
        "--save-predictions", action="store_true", help="write predictions.csv beside the results"
    )
    run.add_argument("--json", action="store_true", help="print the final evaluation as JSON")

    many = command("suite", "run", "run a suite: a name, or a YAML file")
    many.add_argument("suite", metavar="NAME|FILE")
    many.add_argument("--profile", default="smoke", help="size: smoke (minutes) or paper (default: smoke)")
    _protection_options(many)
    swept = command("sweep", "run", "run a benchmark over lists of values, as a suite", "suite")
    _spec_options(swept)
    for each in (many, swept):
        _sweep_options(each)
        _jobs_options(each)
        _execution_options(each)

    planned = command("plan", "run", "estimate the cost of a run or suite")
    planned.add_argument("suite", nargs="?", metavar="NAME|FILE")
    planned.add_argument("--profile", default="smoke", help="size: smoke or paper")
    planned.add_argument("--json", action="store_true", help="print JSON")
    _spec_options(planned)
    _sweep_options(planned)

    status = command("status", "run", "show the progress of the runs of a results folder")
    status.add_argument("dir", type=Path, metavar="DIR")
    status.add_argument("--suite", help="only this suite's runs")
    status.add_argument("--json", action="store_true", help="print JSON")

    board = command(
        "leaderboard",
        "report",
        "print and write the comparison table of a results folder",
    )
    report = command("report", "report", "write table, pictures and HTML page of a results folder")
    for each in (board, report):
        _ranking_options(each)
    _where_option(board)
    board.add_argument(
        "--columns", metavar="NAME,...", help="only these columns, in this order, in files too"
    )
    board.add_argument("--csv", type=Path, metavar="FILE", help="write CSV, one row per cell")
    board.add_argument("--markdown", type=Path, metavar="FILE", help="write a Markdown table")
    board.add_argument("--latex", type=Path, metavar="FILE", help="write a LaTeX table")
    board.add_argument("--parquet", type=Path, metavar="FILE", help="write Parquet, one row per cell")
    board.add_argument("--json", action="store_true", help="print JSON")
    report.add_argument(
        "--pivot",
        action="append",
        default=[],
        metavar="ROWS,COLUMNS[,MEASURE]",
        help="tabulate two settings, such as algorithm.local_steps,algorithm.alpha (repeatable)",
    )

    advised = command("recommend", "report", "find what satisfies bounds, and how surely")
    advised.add_argument("dir", type=Path, metavar="DIR")
    advised.add_argument("--suite", help="only this suite's runs, with the report settings of its file")
    advised.add_argument(
        "--by", help="measure that ranks what is equally sure (default: the suite's, or accuracy)"
    )
    _where_option(advised)
    _system_options(advised)
    advised.add_argument("--json", action="store_true", help="print JSON")

    export = command("export", "report", "write every evaluation of a results folder for other tools")
    export.add_argument("dir", type=Path, metavar="DIR")
    export.add_argument("--suite", help="only this suite's runs")
    export.add_argument("--parquet", type=Path, metavar="FILE", help="write Parquet, one row per evaluation")
    export.add_argument("--csv", type=Path, metavar="FILE", help="write CSV, one row per evaluation")
    export.add_argument(
        "--clients", type=Path, metavar="FILE", help="write CSV, one row per run and client that has a name"
    )
    export.add_argument("--tensorboard", type=Path, metavar="FOLDER", help="write TensorBoard events")

    verified = command(
        "verify",
        "verify",
        "compare the files of a results folder with their checksums; 2 if damaged",
    )
    verified.add_argument(
        "--results",
        type=Path,
        default=Path("results"),
        metavar="DIR",
        help="results folder (default: results)",
    )
    verified.add_argument("--json", action="store_true", help="print JSON")

    listing = command("list", "listing", "list algorithms, data sets, metrics, models, ...")
    listing.add_argument("what", choices=LISTS)
    listing.add_argument("--json", action="store_true", help="print JSON")

    data = command("data", "catalog", "list and fetch data sets, draw partitions")
    what = data.add_subparsers(dest="what", required=True, metavar="list|fetch|draw")
    listed = what.add_parser("list", help="list data sets and whether they can be loaded now")
    listed.add_argument("--json", action="store_true", help="print JSON")
    fetched = what.add_parser("fetch", help="make data sets available")
    fetched.add_argument("names", nargs="+", metavar="NAME")
    drawn = what.add_parser("draw", help="draw the classes of every client")
    drawn.add_argument("file", type=Path, metavar="FILE.png|svg")
    _spec_options(drawn)

    checked = command("check", "catalog", "run the conformance checks on algorithms")
    checked.add_argument("names", nargs="*", metavar="NAME", help="default: all")
    checked.add_argument("--json", action="store_true", help="print JSON")

    audited = command(
        "audit",
        "catalog",
        "test a run's privacy claim: its releases, and a training with canaries",
    )
    _spec_options(audited)
    audited.add_argument(
        "--trials", type=int, default=20, help="rounds whose releases are tested (default: 20)"
    )
    audited.add_argument(
        "--canaries", type=int, default=100, help="planted units of the audited run (default: 100; 0: no run)"
    )
    audited.add_argument("--json", action="store_true", help="print JSON")

    computed = command("epsilon", "epsilon", "privacy of a mechanism without a run, and of others' claims")
    computed.later = _epsilon_options

    for one in (*commands.choices.values(), *what.choices.values()):
        if one is not data:  # it has subcommands
            one.add_argument(
                "--plugin",
                action="append",
                default=[],
                type=Path,
                metavar="FILE.py",
                help="file that registers algorithms, metrics, data sets or partitions (repeatable)",
            )
            one.add_argument("--verbose", action="store_true", default=argparse.SUPPRESS, help=VERBOSE)
    return top


def _epsilon_options(to: argparse.ArgumentParser) -> None:
    from harness.cli.epsilon import epsilon_options  # imports what privacy is computed with

    epsilon_options(to)


def _stack(text: str) -> int | None:
    """Read the largest number of stacked runs; None leaves it to the harness."""
    if text in ("auto", "off"):
        return None if text == "auto" else 1
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"auto, off or a number of runs of at least 1, given {text!r}")
    return int(text)


def _spec_options(to: argparse.ArgumentParser) -> None:
    to.add_argument("--spec", type=Path, metavar="FILE", help="YAML run file; the options below override it")
    for name in SECTIONS:
        to.add_argument(f"--{name}", metavar="NAME|YAML", help=f"a name, or YAML such as '{EXAMPLES[name]}'")
    _protection_options(to)
    to.add_argument(
        "--clients",
        type=int,
        metavar="N",
        help="number of clients (default: 10, if the partition leaves it open)",
    )
    for name in NUMBERS:
        to.add_argument(f"--{name}", type=int, metavar="N")
    to.add_argument(
        "--precision", choices=PRECISIONS, help="number format; bfloat16 applies to networks only"
    )
    to.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="set any field by its dotted path (repeatable)",
    )


def _ranking_options(to: argparse.ArgumentParser) -> None:
    to.add_argument("dir", type=Path, metavar="DIR")
    to.add_argument("--suite", help="only this suite's runs, with the report settings of its file")
    to.add_argument("--by", help="rank by a metric, bytes, flops, seconds or epsilon")
    to.add_argument("--baseline", help="algorithm to compare with, paired by seed")
    to.add_argument(
        "--target", metavar="MEASURE=VALUE", help="show rounds, bytes and oracle calls to this target"
    )
    _system_options(to)


def _system_options(to: argparse.ArgumentParser) -> None:
    to.add_argument(
        "--network",
        metavar="NAME|FILE",
        help="price rounds on a network: lte, wifi, datacenter or a YAML file",
    )
    to.add_argument(
        "--device", metavar="NAME|FILE", help="and on a device: phone, edge, server or a YAML file"
    )


def _where_option(to: argparse.ArgumentParser) -> None:
    to.add_argument(
        "--where",
        action="append",
        default=[],
        metavar="'NAME <= VALUE'",
        help="bound on a measure or a column, such as 'epsilon_total <= 2' (repeatable; all must hold)",
    )


def _sweep_options(to: argparse.ArgumentParser) -> None:
    to.add_argument("--name", help="name of the suite in the results folder (default: its own, or sweep)")
    to.add_argument(
        "--sweep",
        action="append",
        default=[],
        metavar="KEY=VALUE,...",
        help="values of a field, replacing those in the file; 0..9 is a range; several options give the product",
    )
    to.add_argument(
        "--random",
        action="append",
        default=[],
        metavar="KEY={KIND: [LOW, HIGH]}",
        help="draw a field: uniform, log_uniform or integer between bounds, or choice from a list (repeatable)",
    )
    to.add_argument("--draws", type=int, metavar="N", help="number of draws (default: 10)")
    to.add_argument(
        "--limit-hours", type=float, metavar="H", help="refuse to start if the estimate is longer"
    )
    to.add_argument("--trim", action="store_true", help="leave out seeds until the rest fits --limit-hours")


def _jobs_options(to: argparse.ArgumentParser) -> None:
    to.add_argument(
        "--jobs",
        type=int,
        help="number of workers (default: one per core; with ray one per CPU of the cluster)",
    )
    to.add_argument(
        "--executor",
        choices=EXECUTORS,
        help="compute in this process, in worker processes, or on a Ray cluster whose nodes share the results "
        "folder with its file locks (default: processes if there are several jobs)",
    )
    to.add_argument(
        "--address",
        metavar="HOST:PORT",
        help="address of a running Ray cluster (default: start Ray on this machine)",
    )
    to.add_argument(
        "--stack",
        default="auto",
        type=_stack,
        metavar="auto|off|N",
        help="compute runs that differ in seeds or numbers together: as many as is faster, none, or at most N",
    )


def _protection_options(to: argparse.ArgumentParser) -> None:
    to.add_argument(
        "--strict",
        action="store_true",
        help="treat nothing about the data as public; refuse runs that need it (privacy.strict)",
    )
    to.add_argument(
        "--secure-rng",
        action="store_true",
        help="draw noise, secret cohorts and secret batches from the system's entropy (privacy.secure_rng); "
        "such a run cannot be repeated",
    )


def _execution_options(to: argparse.ArgumentParser) -> None:
    to.add_argument("--out", type=Path, default=Path("results"), metavar="DIR", help="results folder")
    to.add_argument("--device", default="cpu", help="torch device (default: cpu)")
    to.add_argument(
        "--vectorize",
        default="auto",
        choices=("auto", "vmap", "loop"),
        help="run clients together (vmap) or one after another (loop)",
    )
    to.add_argument("--threads", type=int, default=1, help="torch threads per run (default: 1)")
    to.add_argument("--retry", action="store_true", help="repeat failed runs")
