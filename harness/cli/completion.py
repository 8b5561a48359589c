"""Command ``completion``."""

from __future__ import annotations

import argparse

import shtab

from harness.cli.parser import parser

PROGRAM = "fedfrontier"  # completions belong to the name of a program


def completion_command(given: argparse.Namespace) -> int:
    """Print the script that completes commands and options in a shell."""
    top = parser()
    top.prog = PROGRAM
    print(shtab.complete(top, given.shell))
    return 0
