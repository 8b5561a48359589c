"""The command line of the studies, from a checkout: ``python -m studies papers|results|systems|references|board``.

Exit codes are those of ``python -m harness``; 1 says that a verdict is not the written one.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from typing import Any

import torch

from harness.cli.examples import with_examples
from harness.cli.grammar import Parser
from harness.cli.options import plugin_option, verbose_option
from harness.cli.parser import exit_code
from harness.config import plugins
from studies.board.command import (
    build_command,
    build_options,
    check_command,
    check_options,
    submit_command,
    submit_options,
)
from studies.papers.command import papers_command, papers_options
from studies.references import references_command, references_options
from studies.results.command import results_command, results_options
from studies.systems.command import systems_command, systems_options

PROGRAM = "python -m studies"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code."""
    return exit_code(parser(), arguments, _carry_out)


def parser() -> Parser:
    """Return the argument parser."""
    top = Parser(
        prog=PROGRAM,
        description="Judge papers, other systems and submissions; write the pages of results, and the references "
        "that are installed.",
    )
    verbose_option(top)
    commands = top.add_subparsers(
        dest="command", required=True, metavar="papers|results|systems|references|board"
    )
    papers = _add(
        commands,
        "papers",
        "check paper claims against recorded runs; exit code 1 if a verdict differs",
        papers_command,
        "papers",
        "papers my_claims --from results --update",
    )
    papers_options(papers)
    results = _add(
        commands,
        "results",
        "make the pages of docs/results from committed leaderboards; exit code 1 if a sentence differs",
        results_command,
        "results",
        "results --check",
    )
    results_options(results)
    systems = _add(
        commands,
        "systems",
        "evaluate the privacy settings of other systems",
        systems_command,
        "systems",
        "systems opacus:noise_multiplier=1,epochs=10 --json",
    )
    systems_options(systems)
    references = _add(
        commands,
        "references",
        "write the table of references that comes with the harness, for recommend",
        references_command,
        "references",
    )
    references_options(references)
    _add_board(commands)
    return top


def _add_board(commands: Any) -> None:
    """Add the commands of boards."""
    board_help = "make submissions, check them, and make static pages of them"
    board = commands.add_parser("board", help=board_help, description=board_help)
    steps = board.add_subparsers(dest="step", required=True, metavar="submit|check|build")
    submit = _add(
        steps,
        "submit",
        "make a folder of a suite's results for a board, with a signed manifest",
        submit_command,
        "board submit results --suite mine --to submissions/ada --submitter 'Ada L.' --key key",
    )
    submit_options(submit)
    check = _add(
        steps,
        "check",
        "check manifests and signatures, and repeat a sample of the runs",
        check_command,
        "board check submissions --sample 20 --tolerance 1e-6",
    )
    check_options(check)
    build = _add(
        steps,
        "build",
        "write a page for every task, method and submission",
        build_command,
        "board build submissions --out site",
    )
    build_options(build)


def _add(
    among: Any, name: str, help: str, command: Callable[[argparse.Namespace], int], *examples: str
) -> Parser:
    """Add a command to a group of commands, and return its parser."""
    parser: Parser = among.add_parser(name, help=help, description=help, **with_examples(PROGRAM, examples))
    parser.set_defaults(do=command)
    plugin_option(parser)
    return parser


def _carry_out(args: argparse.Namespace) -> int:
    plugins.load(args.plugin)
    torch.set_num_threads(1)  # repeated runs must round as they did
    code: int = args.do(args)
    return code


if __name__ == "__main__":
    sys.exit(main())
