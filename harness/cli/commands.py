"""The commands: what carries each of them out, and which options it takes.

Options stand here and not beside the commands, whose modules take seconds to import.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from harness.cli.examples import EXAMPLES, PROGRAM, with_examples
from harness.cli.grammar import Parser, path
from harness.cli.options import (
    bound_options,
    computing_options,
    execution_options,
    folder_options,
    jobs_options,
    json_option,
    plugin_option,
    protection_options,
    ranking_options,
    repeatable,
    sample_options,
    shape_options,
    spec_options,
    sweep_options,
    system_options,
    tensorboard_option,
    where_option,
)

# As in `privacy.calculator`, which takes a second to import.
SAMPLINGS = ("poisson", "without-replacement", "fixed", "full")
UNITS = ("client", "record", "user")
PLACEMENTS = ("central", "local", "distributed")
SHELLS = ("bash", "zsh", "tcsh")
LISTS = (
    "algorithms",
    "codecs",
    "data",
    "encoders",
    "mechanisms",
    "metrics",
    "models",
    "partitions",
    "problems",
    "suites",
    "topologies",
)


class Command(NamedTuple):
    """A command of the command line.

    Attributes
    ----------
    name : str
        Its name; ``NAME_command`` carries it out.
    module : str
        Module of `harness.cli` with that function.
    help : str
        One line about it.
    options : Callable[[Parser], None]
        Adds its options to its parser.
    """

    name: str
    module: str
    help: str
    options: Callable[[Parser], None]


def _run(to: Parser) -> None:
    to.set_defaults(jobs=1, executor=None, address=None)
    spec_options(to)
    to.add_argument(
        "--cell",
        metavar="FILE.csv:ID",
        help="make the runs of a leaderboard's row again, by its column cell, and compare the figures; --seed N "
        "repeats one of its seeds",
    )
    execution_options(to)
    to.add_argument(
        "--save-predictions", action="store_true", help="write predictions.csv beside the results"
    )
    to.add_argument(
        "--save-model", action="store_true", help="write model.safetensors beside the results, for predict"
    )
    json_option(to, "print the final evaluation as JSON")


def _suite(to: Parser) -> None:
    to.add_argument("suite", metavar="NAME|FILE", help="a suite of `list suites`, or a YAML file")
    to.add_argument("--profile", default="smoke", help="size: smoke (minutes) or paper (default: smoke)")
    protection_options(to)
    _many(to)


def _sweep(to: Parser) -> None:
    spec_options(to)
    _many(to)


def _many(to: Parser) -> None:
    json_option(to, "print the leaderboard as JSON")
    sweep_options(to)
    jobs_options(to)
    execution_options(to)


def _tune(to: Parser) -> None:
    to.add_argument("file", metavar="FILE", help="run file, suite file, or name of a suite")
    to.add_argument("--profile", default="smoke", help="size of a suite: smoke or paper (default: smoke)")
    to.add_argument("--budget", type=int, metavar="N", help="settings to try first (default: 64)")
    to.add_argument(
        "--metric", help="figure of the selection samples that chooses (default: the suite's, or accuracy)"
    )
    to.add_argument(
        "--epsilon",
        metavar="E,...",
        help="budgets to search together, such as none,8,2 (default: the file's)",
    )
    to.add_argument(
        "--seeds", metavar="S,...", help="reported seeds (default: those of a suite; 0..9 of a run file)"
    )
    to.add_argument(
        "--name", help="name of the suite in the results folder (default: the file's, with -tuned)"
    )
    json_option(to, "print what was chosen as JSON")
    jobs_options(to)
    execution_options(to)


def _plan(to: Parser) -> None:
    to.add_argument(
        "suite", nargs="?", metavar="NAME|FILE", help="suite to plan (default: the run of the options below)"
    )
    to.add_argument("--profile", default="smoke", help="size: smoke or paper (default: smoke)")
    json_option(to)
    to.add_argument(
        "--untimed",
        action="store_true",
        help="skip the trial rounds; missing image data sets are planned by their shape, and encoders are not run",
    )
    spec_options(to)
    sweep_options(to)


def _status(to: Parser) -> None:
    folder_options(to)
    json_option(to)


def _resume(to: Parser) -> None:
    to.set_defaults(retry=False)
    to.add_argument("out", type=path, metavar="DIR", help="results folder")
    to.add_argument("--suite", metavar="NAME", help="only this suite's runs (default: all)")
    jobs_options(to)
    computing_options(to)
    tensorboard_option(to)


def _retry(to: Parser) -> None:
    _resume(to)
    to.set_defaults(retry=True)


def _leaderboard(to: Parser) -> None:
    ranking_options(to, optional=True)
    where_option(to)
    to.add_argument(
        "--columns",
        metavar="NAME,...",
        help="columns of table and files, in this order; accuracy is mean and deviation; help lists the names, "
        "without DIR those of all leaderboards",
    )
    to.add_argument(
        "--bold-best",
        action="store_true",
        help="with --markdown and --latex: bold the best row of each group, and rows not significantly worse",
    )
    to.add_argument("--csv", type=path, metavar="FILE", help="write CSV, one row per cell")
    to.add_argument("--markdown", type=path, metavar="FILE", help="write a Markdown table")
    to.add_argument("--latex", type=path, metavar="FILE", help="write a LaTeX table")
    to.add_argument("--parquet", type=path, metavar="FILE", help="write Parquet, one row per cell")
    json_option(to)


def _report(to: Parser) -> None:
    ranking_options(to)
    repeatable(
        to,
        "--pivot",
        "ROWS,COLUMNS[,MEASURE]",
        "tabulate two settings, such as algorithm.local_steps,algorithm.alpha (repeatable)",
    )
    to.add_argument(
        "--figures", metavar="FORMAT,...", help="formats of figures besides SVG: png, pdf (default: png)"
    )
    to.add_argument(
        "--paper",
        action="store_true",
        help="also write a folder paper/: tables, figures, privacy statement, BibTeX",
    )
    to.add_argument(
        "--statement",
        action="store_true",
        help="also write two pages for a data protection officer: statement.html, and statement.pdf where Chromium "
        "or Chrome is installed",
    )
    to.add_argument("--style", metavar="FILE|NAME", help="matplotlib style of the figures (.mplstyle)")


def _recommend(to: Parser) -> None:
    to.add_argument(
        "dir",
        nargs="?",
        type=path,
        metavar="DIR|FILE.csv",
        help="results folder, or a leaderboard in CSV (default: the references that come with the harness)",
    )
    to.add_argument("--suite", help="only this suite's rows, with the report settings of its file")
    to.add_argument(
        "--by",
        help="measure that ranks (default: the suite's, or accuracy; AUROC where one class is very frequent)",
    )
    bound_options(to)
    shape_options(to)
    to.add_argument(
        "--pilot",
        type=path,
        metavar="FILE.yaml",
        help="write a suite file that compares the candidates on your data",
    )
    system_options(to)
    json_option(to)


def _predict(to: Parser) -> None:
    to.add_argument("model", type=path, metavar="RUN", help="folder of a run, or a file .safetensors")
    to.add_argument(
        "data", metavar="TABLE", help="CSV, Parquet or Arrow file with its columns, or csv:FILE?decimal=,"
    )
    to.add_argument(
        "--client", metavar="NAME", help="client whose model to apply, if every client has its own"
    )
    to.add_argument(
        "--like",
        metavar="NAME",
        help="which of the run's files (data.files) TABLE is like: its signs, names of columns and codes",
    )
    to.add_argument("--csv", type=path, metavar="FILE", help="write predictions here (default: print)")
    repeatable(to, "--keep", "COLUMN", "also write this column (repeatable)")
    to.add_argument("--fill", action="store_true", help="write the training mean where a number is missing")


def _epsilon(to: Parser) -> None:
    question = to.add_mutually_exclusive_group()
    question.add_argument(
        "--noise-multiplier",
        type=float,
        metavar="Z",
        help="standard deviation of the noise on a sum of messages over their clip norm",
    )
    question.add_argument("--for-epsilon", type=float, metavar="E", help="print the noise multiplier instead")
    question.add_argument(
        "--statement",
        metavar="PATH",
        help="compute the epsilon of a run again from what its statement prints: a run's folder, its done.json, or "
        "the output of run --json",
    )
    to.add_argument("--clip", type=float, default=1.0, metavar="C", help="clip norm (default: 1)")
    to.add_argument(
        "--cohort",
        default="1",
        metavar="SIZE/TOTAL",
        help="clients in a round, such as 10/100 (default: all)",
    )
    to.add_argument(
        "--rate",
        type=float,
        metavar="Q",
        help="in place of --cohort: probability that a unit is drawn, such as a statement's sampling_rate",
    )
    to.add_argument("--rounds", type=int, default=1, metavar="N", help="number of rounds (default: 1)")
    to.add_argument(
        "--sampling",
        choices=SAMPLINGS,
        help="poisson: each by a secret coin; without-replacement: a secret cohort of fixed size; fixed: a cohort "
        "that others can see; full: everybody (default: poisson if there is a cohort, and nobody sees who is "
        "in it)",
    )
    to.add_argument("--delta", type=float, default=1e-5, help="the delta of (epsilon, delta) (default: 1e-5)")
    to.add_argument(
        "--releases-per-round", type=int, default=1, metavar="N", help="releases made in a round (default: 1)"
    )
    to.add_argument(
        "--unit",
        choices=UNITS,
        default="client",
        help="unit of privacy (default: client)",
    )
    to.add_argument(
        "--placement",
        choices=PLACEMENTS,
        default="central",
        help="party that adds the noise (default: central)",
    )
    json_option(to)


def _list(to: Parser) -> None:
    to.add_argument("what", choices=LISTS, metavar="|".join(LISTS), help="kind of parts")
    json_option(to)


def _export(to: Parser) -> None:
    folder_options(to)
    to.add_argument("--parquet", type=path, metavar="FILE", help="write Parquet, one row per evaluation")
    to.add_argument("--csv", type=path, metavar="FILE", help="write CSV, one row per evaluation")
    to.add_argument(
        "--clients", type=path, metavar="FILE", help="write CSV, one row per run and named client"
    )
    to.add_argument("--tensorboard", type=path, metavar="FOLDER", help="write TensorBoard events")


def _archive(to: Parser) -> None:
    to.add_argument("dir", type=path, metavar="DIR", help="results folder")
    to.add_argument("file", type=path, metavar="FILE.tar.gz", help="archive to write")


def _merge(to: Parser) -> None:
    to.add_argument("dirs", type=path, nargs="+", metavar="DIR", help="results folders to copy from")
    to.add_argument("--out", type=path, required=True, metavar="DIR", help="folder that receives them")


def _check(to: Parser) -> None:
    to.add_argument("names", nargs="*", metavar="NAME", help="algorithms or models; default: all algorithms")
    json_option(to)
    to.add_argument("--verbose", action="store_true", default=argparse.SUPPRESS, help="list every check")


def _audit(to: Parser) -> None:
    spec_options(to)
    to.add_argument("--trials", type=int, default=20, help="rounds whose releases are tested (default: 20)")
    to.add_argument(
        "--canaries", type=int, default=100, help="planted units of the audited run (default: 100; 0: no run)"
    )
    json_option(to)


def _verify(to: Parser) -> None:
    to.add_argument(
        "dir",
        nargs="?",
        type=path,
        default=Path("results"),
        metavar="DIR|FILE.tar.gz",
        help="results folder, archive or submission (default: results)",
    )
    sample_options(to, 0)
    json_option(to)


def data_options(to: Parser) -> None:
    """Add the subcommands of ``data``, and the option of every command to each."""
    among = to.add_subparsers(dest="what", required=True, metavar="list|describe|fetch|draw")

    def subcommand(name: str, help: str) -> Parser:
        parser: Parser = among.add_parser(name, help=help, **with_examples(PROGRAM, EXAMPLES[f"data {name}"]))
        return parser

    list_command = subcommand("list", "list data sets and whether they can be loaded now")
    json_option(list_command)
    describe = subcommand("describe", "say how a table of your own is read, and what to set")
    describe.set_defaults(do=("described", "describe_command"))
    describe.add_argument(
        "data", metavar="ADDRESS|RUN.yaml", help="csv:FILE?label=COLUMN, or a run file with a section data"
    )
    describe.add_argument(
        "--numbers", action="store_true", help="the label is a number to predict (problem: regression)"
    )
    json_option(describe)
    fetch = subcommand("fetch", "make data sets, and weights of encoders, available")
    fetch.add_argument("names", nargs="+", metavar="NAME", help="data sets or encoders")
    draw = subcommand("draw", "draw the classes of every client")
    draw.set_defaults(do=("catalog", "draw_command"))
    draw.add_argument("file", type=path, metavar="FILE.png|svg", help="picture to write")
    spec_options(draw)
    for command in (list_command, describe, fetch, draw):
        plugin_option(command)


def _doctor(to: Parser) -> None:
    to.add_argument(
        "--out",
        type=path,
        default=Path("results"),
        metavar="DIR",
        help="results folder to check (default: results)",
    )
    json_option(to)


def _new(to: Parser) -> None:
    to.add_argument("kind", choices=("algorithm",), help="what to begin")
    to.add_argument("name", metavar="NAME", help="lower case with underscores")
    to.add_argument("--out", type=path, default=Path(), metavar="DIR", help="folder (default: this one)")


def _completion(to: Parser) -> None:
    to.add_argument("shell", choices=SHELLS, help="shell whose script is printed")


#: By the headings under which ``--help`` lists them.
COMMANDS = {
    "run": (
        Command("run", "run", "run one benchmark", _run),
        Command("suite", "run", "run a suite: a name, or a YAML file", _suite),
        Command("sweep", "run", "run a benchmark over lists of values, as a suite", _sweep),
        Command("tune", "tune", "search for the settings of a run or suite", _tune),
        Command("plan", "run", "estimate the cost of a run or suite", _plan),
        Command("status", "status", "show the progress of the runs in a results folder", _status),
        Command("resume", "folders", "finish interrupted and missing runs in a results folder", _resume),
        Command("retry", "folders", "repeat failed runs in a results folder", _retry),
    ),
    "look": (
        Command(
            "leaderboard", "report", "print and write the comparison table of a results folder", _leaderboard
        ),
        Command("report", "report", "write the table, pictures and HTML page of a results folder", _report),
        Command(
            "recommend",
            "recommend",
            "say which method and settings to take within bounds, and what cannot be told apart",
            _recommend,
        ),
        Command("predict", "predict", "apply the saved model of a run to a table", _predict),
    ),
    "privacy": (
        Command("epsilon", "epsilon", "compute the privacy of a mechanism without a run", _epsilon),
        Command(
            "audit", "catalog", "test a run's privacy claim: its releases, and training with canaries", _audit
        ),
    ),
    "share": (
        Command("export", "report", "write every evaluation of a results folder for other tools", _export),
        Command("archive", "verify", "pack the results of a folder into one portable file", _archive),
        Command("merge", "folders", "copy the runs and suites of several results folders into one", _merge),
        Command(
            "verify",
            "verify",
            "compare a results folder or an archive with its checksums, and repeat some of its runs; exit code 2 "
            "if they differ",
            _verify,
        ),
    ),
    "set up": (
        Command("new", "new", "write the file of a new algorithm, with per-client state, and its test", _new),
        Command("data", "listing", "list, describe and fetch data sets, draw partitions", data_options),
        Command("list", "listing", "list algorithms, data sets, metrics, models, ...", _list),
        Command("check", "catalog", "run the conformance checks on algorithms and models", _check),
        Command("doctor", "doctor", "check the installation and suggest fixes", _doctor),
        Command(
            "completion", "completion", "print the script that completes commands in a shell", _completion
        ),
    ),
}
