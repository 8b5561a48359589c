"""Groups of options that several commands share."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from harness.cli.grammar import amount_of_bytes, path
from harness.executors import EXECUTORS

SECTIONS = ("algorithm", "data", "partition", "problem", "model", "topology", "cohort")
NUMBERS = {
    "rounds": "communication rounds (default: 100)",
    "eval-every": "rounds between two evaluations (default: 10)",
    "seed": "seed of partition, start, batches and public cohorts (default: 0)",
}
SHAPE = ("clients", "samples", "skew", "data")  # of data that nothing was run on
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


def verbose_option(to: argparse.ArgumentParser) -> None:
    """Add the option that stands before the command."""
    to.add_argument("--verbose", action="store_true", help="log what is loaded and how runs are computed")


def plugin_option(to: argparse.ArgumentParser) -> None:
    """Add the option of every command."""
    repeatable(
        to,
        "--plugin",
        "FILE.py",
        "file that registers algorithms, models, codecs, mechanisms, metrics or data (repeatable)",
        type=path,
    )


def repeatable(to: argparse.ArgumentParser, name: str, metavar: str, help: str, **options: Any) -> None:
    """Add an option that may be given several times, and holds a list."""
    to.add_argument(name, action="append", default=[], metavar=metavar, help=help, **options)


def json_option(to: argparse.ArgumentParser, help: str = "print JSON") -> None:
    """Add the option of output for other programs."""
    to.add_argument("--json", action="store_true", help=help)


def folder_options(
    to: argparse.ArgumentParser, suite: str = "only this suite's runs", *, optional: bool = False
) -> None:
    """Add a results folder and one of its suites."""
    to.add_argument("dir", type=path, nargs="?" if optional else None, metavar="DIR", help="results folder")
    to.add_argument("--suite", metavar="NAME", help=f"{suite} (default: all)")


def spec_options(to: argparse.ArgumentParser) -> None:
    """Add the options that describe a run."""
    to.add_argument(
        "--spec",
        type=path,
        metavar="FILE",
        help="YAML run file, or FILE.csv:ID, the settings of a published row; the options below override it",
    )
    for name in SECTIONS:
        to.add_argument(f"--{name}", metavar="NAME|YAML", help=f"a name, or YAML such as '{EXAMPLES[name]}'")
    protection_options(to)
    to.add_argument(
        "--clients",
        type=int,
        metavar="N",
        help="number of clients (default: 10, if the partition leaves it open)",
    )
    for name, meaning in NUMBERS.items():
        to.add_argument(f"--{name}", type=int, metavar="N", help=meaning)
    to.add_argument(
        "--precision",
        choices=PRECISIONS,
        help="number format; bfloat16 applies to networks only (default: float32)",
    )
    repeatable(to, "--set", "KEY=VALUE", "set any field by its dotted path (repeatable)")


def ranking_options(to: argparse.ArgumentParser, *, optional: bool = False) -> None:
    """Add the options of tables; the results folder may be left out if it is optional."""
    folder_options(to, "only this suite's runs, with the report settings of its file", optional=optional)
    to.add_argument(
        "--by",
        metavar="MEASURE",
        help=(
            "rank by a metric, bytes, flops, seconds or epsilon (default: the suite's, or accuracy; AUROC where "
            "one class is very frequent)"
        ),
    )
    to.add_argument(
        "--baseline", metavar="NAME", help="algorithm to compare with, paired by seed (default: the suite's)"
    )
    to.add_argument(
        "--target", metavar="MEASURE=VALUE", help="show rounds, bytes and oracle calls to this target"
    )
    system_options(to)


def system_options(to: argparse.ArgumentParser) -> None:
    """Add the network and the device on which time and energy are estimated."""
    to.add_argument(
        "--network",
        metavar="NAME|FILE",
        help="estimate time and energy on a network: lte, wifi, datacenter or a YAML file",
    )
    to.add_argument(
        "--device",
        metavar="NAME|FILE",
        help="estimate time and energy on a device: phone, edge, server or a YAML file",
    )


def where_option(to: argparse.ArgumentParser) -> None:
    """Add bounds on rows."""
    repeatable(
        to,
        "--where",
        "'NAME <= VALUE'",
        "bound on a measure or a column, such as 'epsilon_total <= 2' (repeatable; all must hold)",
    )


def bound_options(to: argparse.ArgumentParser) -> None:
    """Add the bounds that people ask for."""
    to.add_argument("--epsilon", type=float, metavar="E", help="at most this epsilon in total")
    for name, what in (("bytes", "both ways"), ("bytes-up", "sent"), ("bytes-down", "received")):
        to.add_argument(
            f"--{name}",
            type=amount_of_bytes,
            metavar="SIZE",
            help=f"at most so many bytes {what}, by all clients over the run, such as 1MB",
        )
    to.add_argument(
        "--worst-client", type=float, metavar="A", help="at least this accuracy for the worst client"
    )
    where_option(to)


def shape_options(to: argparse.ArgumentParser) -> None:
    """Add what may be said of data that nothing was run on."""
    to.add_argument("--clients", type=int, metavar="N", help="number of your clients, if you have no runs")
    to.add_argument("--samples", type=float, metavar="N", help="mean number of samples of a client of yours")
    to.add_argument(
        "--skew",
        type=float,
        metavar="S",
        help="by how much shares of labels differ: the mean over samples of half the sum of |share at the client - "
        "share of all|, 0 to 1; of two classes by how much the share of positives is off",
    )
    to.add_argument(
        "--data",
        metavar="NAME|YAML",
        help="count samples and skew in your data, such as 'csv:mine.csv?label=y&client=site'; with --clients "
        "they are dealt at random",
    )


def sweep_options(to: argparse.ArgumentParser) -> None:
    """Add the options that make many runs of one."""
    to.add_argument("--name", help="name of the suite in the results folder (default: its own, or sweep)")
    repeatable(
        to,
        "--sweep",
        "KEY=VALUE,...",
        "values of a field, replacing those in the file; 0..9 is a range; several options give the product",
    )
    repeatable(
        to,
        "--random",
        "KEY={KIND: [LOW, HIGH]}",
        "draw a field: uniform, log_uniform or integer between bounds, or choice from a list (repeatable)",
    )
    to.add_argument("--draws", type=int, metavar="N", help="number of draws (default: 10)")
    to.add_argument(
        "--limit-hours", type=float, metavar="H", help="refuse to start if the estimate is longer"
    )
    to.add_argument("--trim", action="store_true", help="drop seeds until the rest fits --limit-hours")


def jobs_options(to: argparse.ArgumentParser) -> None:
    """Add the options of executors and workers."""
    to.add_argument(
        "--jobs",
        "--workers",
        type=int,
        metavar="N",
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
        help="address of the Ray cluster, for --executor ray: that of its head, or auto",
    )
    to.add_argument(
        "--stack",
        default="auto",
        type=stack,
        metavar="auto|off|N",
        help="compute runs that differ only in seeds or numbers together: as many as is faster, none, or at most N "
        "(default: auto)",
    )


def protection_options(to: argparse.ArgumentParser) -> None:
    """Add the options that tighten the privacy of all runs."""
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


def tensorboard_option(to: argparse.ArgumentParser) -> None:
    """Add the option for the folder of TensorBoard events."""
    to.add_argument(
        "--tensorboard", type=path, metavar="FOLDER", help="write TensorBoard events of every run that ends"
    )


def execution_options(to: argparse.ArgumentParser) -> None:
    """Add where runs are written and how they are computed."""
    to.add_argument(
        "--out", type=path, default=Path("results"), metavar="DIR", help="results folder (default: results)"
    )
    computing_options(to)
    tensorboard_option(to)
    to.add_argument(
        "--noise-code",
        metavar="DIGEST",
        help="draw the noise of a published row, by its column noise_code, to verify the row with other code",
    )
    to.add_argument("--retry", action="store_true", help="repeat failed runs")


def computing_options(to: argparse.ArgumentParser) -> None:
    """Add the options that change how a run is computed, not which run it is."""
    to.add_argument("--device", default="cpu", help="torch device (default: cpu)")
    to.add_argument(
        "--vectorize",
        default="auto",
        choices=("auto", "vmap", "loop"),
        help="run clients together (vmap) or one after another (loop) (default: auto, which is faster)",
    )
    to.add_argument("--threads", type=int, default=1, help="torch threads per run (default: 1)")
    to.add_argument(
        "--diagnostics",
        action="store_true",
        help="under privacy, also write figures of private data that no noise protects: train_* metrics and norms "
        "of messages",
    )


def stack(text: str) -> int | None:
    """Read the largest number of stacked runs; None leaves it to the harness."""
    if text in ("auto", "off"):
        return None if text == "auto" else 1
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"auto, off or a number of runs of at least 1, given {text!r}")
    return int(text)


def sample_options(to: argparse.ArgumentParser, sample: int) -> None:
    """Add the options of commands that repeat a sample of runs."""
    to.add_argument(
        "--sample",
        type=int,
        default=sample,
        metavar="N",
        help=f"repeat N randomly chosen finished runs and compare (default: {sample})",
    )
    to.add_argument(
        "--seed", type=int, metavar="S", help="seed of the choice of runs (default: random; printed)"
    )
    to.add_argument(
        "--tolerance",
        type=float,
        default=0.0,
        metavar="T",
        help="largest difference accepted, |a - b| / max(1, |a|, |b|) (default: 0, the same bits)",
    )
    to.add_argument("--device", default="cpu", help="torch device of the repeated runs (default: cpu)")
