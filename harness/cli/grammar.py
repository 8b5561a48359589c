"""A parser of arguments that refuses them like the rest of the harness."""

from __future__ import annotations

import argparse
import platform
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any, NoReturn

from harness.core.errors import UserError, unknown
from harness.core.units import read_size

#: Packages whose versions may move a result.
VERSIONED = ("torch", "numpy", "scipy", "dp-accounting", "opacus")


def path(text: str) -> Path:
    """Read a path; an empty one, as of a variable that is not set, would be the current folder."""
    if not text:
        raise argparse.ArgumentTypeError("a path is needed, given ''")
    return Path(text)


def amount_of_bytes(text: str) -> float:
    """Read a number of bytes, with or without a unit."""
    try:
        return read_size(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"bytes are needed, as 500kB or 1e6, given {text!r}") from None


class CommandLine(argparse.Namespace):
    """The parsed options of a command.

    Attributes
    ----------
    words : list[str]
        The command line as it was typed, which a next step may repeat.
    """

    def __init__(self, words: Sequence[str]) -> None:
        super().__init__()
        self.words = list(words)


class Version(argparse.Action):
    """Print the versions that results depend on, and end."""

    def __call__(self, parser: argparse.ArgumentParser, *values: Any, **options: Any) -> NoReturn:
        """Print, and end the process."""
        parts = ", ".join(f"{name} {version(name)}" for name in VERSIONED)
        print(f"fedfrontier {version('fedfrontier')} (Python {platform.python_version()}, {parts})")
        parser.exit()


def grouped_help(groups: Mapping[str, Sequence[str]]) -> type[argparse.RawDescriptionHelpFormatter]:
    """Return a formatter of help that lists the commands of a parser under headings.

    Parameters
    ----------
    groups : Mapping[str, Sequence[str]]
        Names of the commands under each heading. Every command needs a heading.
    """

    class Grouped(argparse.RawDescriptionHelpFormatter):
        def _format_action(self, action: argparse.Action) -> str:
            if not isinstance(action, argparse._SubParsersAction):
                return super()._format_action(action)
            commands = {command.dest: command for command in action._get_subactions()}
            lines = []
            for heading, names in groups.items():
                lines.append(f"{' ' * self._current_indent}{heading}:\n")
                self._indent()
                lines += [self._format_action(commands[name]) for name in names]
                self._dedent()
            return "".join(lines)

    return Grouped


class Parser(argparse.ArgumentParser):
    """A parser that refuses arguments like the rest of the harness: in one line, with the nearest valid name."""

    def error(self, message: str) -> NoReturn:
        """Raise UserError instead of printing the usage and ending the process."""
        raise UserError(f"{message}{' See' if message.endswith('?') else '; see'} {self.prog} --help")

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Parse, and refuse unknown options here, where those of the command are known."""
        parsed, unparsed = super().parse_known_args(args, namespace)
        if unparsed and unparsed[0].startswith("-"):
            raise unknown("option", unparsed[0].partition("=")[0], self._option_string_actions)
        if unparsed:
            self.error(f"unexpected argument {unparsed[0]!r}{self._hint(unparsed[0])}")
        return parsed, unparsed

    def _hint(self, word: str) -> str:
        """Return the option that a word without one is meant for, if it looks like it."""
        option = "--set" if "=" in word else "--spec" if word.endswith((".yaml", ".yml")) else ""
        return f". Did you mean '{option} {word}'?" if option in self._option_string_actions else ""

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        if action.choices is not None and value not in action.choices:
            if isinstance(action, argparse._SubParsersAction):
                if value in (whole := _below(action)):
                    self.error(f"unknown command {value!r}. Did you mean {whole[value]!r}?")
                raise unknown("command", value, action.choices)
            options = action.option_strings
            raise unknown(" ".join(["value of", *options]) if options else "argument", value, action.choices)


def _below(commands: argparse._SubParsersAction[Any]) -> dict[str, str]:
    """Return the subcommands of commands, each with the command that it belongs to: ``data describe``."""
    return {
        name: f"{command} {name}"
        for command, parser in commands.choices.items()
        for action in parser._actions
        if isinstance(action, argparse._SubParsersAction)
        for name in action.choices
    }
