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

from harness.cli.commands import COMMANDS, data_options
from harness.cli.examples import EXAMPLES, PROGRAM, epilog, with_examples
from harness.cli.grammar import CommandLine, Parser, Version, grouped_help
from harness.cli.options import plugin_option, verbose_option
from harness.cli.visible import Screen, Visible
from harness.core.errors import Interrupted, UserError
from harness.core.registry import PLUGINS
from harness.executors import cores
from harness.executors.server import start_server
from harness.storage.names import shadowed, shared

#: Commands as ``--help`` lists them.
GROUPS = {heading: [command.name for command in group] for heading, group in COMMANDS.items()}


def refusals() -> tuple[type[Exception], ...]:
    """Return the errors whose message is enough for a user; a function, as the parts that define them are large."""
    from compression.errors import CompressionError
    from datasets.errors import DataError, FederationError
    from datasets.partition import PartitionError
    from datasets.topology import TopologyError
    from harness.simulation.snapshot import Failure

    return UserError, Failure, DataError, PartitionError, FederationError, TopologyError, CompressionError


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code."""
    return exit_code(parser(), arguments, _carry_out)


def exit_code(
    parser: argparse.ArgumentParser,
    arguments: Sequence[str] | None,
    carry_out: Callable[[CommandLine], int],
) -> int:
    """Parse arguments, carry them out, and return the exit code; errors of a user become a line each."""
    try:
        words = sys.argv[1:] if arguments is None else arguments
        given = parser.parse_args(words, CommandLine(words))
        if hidden := shadowed():
            return _refused("; ".join(hidden))
        screen = Screen()
        screen.setFormatter(Visible())
        logging.basicConfig(level=logging.INFO if given.verbose else logging.WARNING, handlers=[screen])
        for warning in shared():
            logging.getLogger(__name__).warning(warning)
        return carry_out(given)
    except UserError as error:
        _refused(error)
        return 130 if isinstance(error, Interrupted) else 2
    except BrokenPipeError:  # the reader of our output has gone; what is left for it would fail at the end
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except OSError as error:
        return _refused(": ".join(str(part) for part in (error.filename, error.strerror or error) if part))
    except KeyboardInterrupt:
        from harness.cli.console import log

        log.print("interrupted; the same command continues from here", markup=False)
        return 130
    except Exception as error:
        if not isinstance(error, refusals()):
            raise
        return _refused(error)


def _carry_out(given: CommandLine) -> int:
    """Import the command that was given, and run it."""
    module, name = given.do
    if getattr(given, "jobs", 1) != 1 and given.executor in (None, "processes") and cores() > 1:
        start_server()  # it imports beside this process
    if given.plugin or entry_points(group=PLUGINS):
        from harness.config import plugins  # with torch and all parts, which commands that read do not need

        plugins.load(given.plugin)
    code: int = getattr(import_module(f"harness.cli.{module}"), name)(given)
    sys.stdout.flush()
    return code


def _refused(reason: object) -> int:
    """Print a reason, or the mistakes that an error holds, a line each; return the exit code."""
    from harness.cli.console import log

    for one in getattr(reason, "errors", ()) or (reason,):
        log.print(f"error: {one}", style="red", markup=False)
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
    among = top.add_subparsers(dest="command", required=True, metavar="COMMAND", title="commands")
    for command in (command for group in COMMANDS.values() for command in group):
        made = among.add_parser(
            command.name,
            help=command.help,
            description=command.help,
            **with_examples(PROGRAM, EXAMPLES[command.name]),
        )
        made.set_defaults(do=(command.module, f"{command.name}_command"))
        command.options(made)
        if command.options is not data_options:  # which has subcommands
            plugin_option(made)
    return top
