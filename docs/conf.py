"""Settings of Sphinx for the pages in this folder: `make docs` builds them into ``docs/site``."""

from __future__ import annotations

import argparse
import re
from typing import TYPE_CHECKING

from harness.cli.parser import parser as harness_parser
from studies.__main__ import parser as studies_parser

if TYPE_CHECKING:
    from sphinx.application import Sphinx

project = "fedfrontier"
author = "The fedfrontier authors"
copyright = author
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
exclude_patterns = ["site"]

html_theme = "furo"
html_title = project
html_show_sphinx = False
html_show_search_summary = False  # summaries are fetched, which browsers refuse where there is no server
html_copy_source = False

myst_enable_extensions = ["colon_fence"]
myst_heading_anchors = 4  # links to headings are checked, by the anchors that GitHub gives them

default_role = "code"  # of `names` in docstrings
autodoc_member_order = "bysource"
autodoc_typehints = "none"  # the docstrings name types, shapes and units
napoleon_google_docstring = False
napoleon_use_ivar = True

OUTSIDE = re.compile(r"\[((?:[^\[\]]|\[[^\]]*\])*)\]\(((?:\.\./)+(?![./])[^)]*)\)")

BY_FILE = re.compile(r"\[[\w./-]+\.md\](\((?!\.\./\.\.)[\w./-]+\.md(?:#[\w-]+)?\))")
OPTIONS = re.compile(r"^<!-- options: (harness|studies) ([\w -]+) -->$", re.MULTILINE)
PARSERS = {"harness": harness_parser, "studies": studies_parser}
MARKUP = re.compile(r"([|*_<>`\[\]])")


def link_outside(app: Sphinx, page: str, source: list[str]) -> None:
    """Let links that leave this folder lead to the checkout, which the built pages lie in."""
    here = page.count("/")

    def link(match: re.Match[str]) -> str:
        text, target = match.groups()
        if target.count("../") <= here:
            return match[0]
        return f'<a href="../{target}">{text}</a>'

    source[0] = OUTSIDE.sub(link, source[0])


def title_links(app: Sphinx, page: str, source: list[str]) -> None:
    """Show the title of a page or section where the source names its file."""
    source[0] = BY_FILE.sub(r"[]\1", source[0])


def list_options(app: Sphinx, page: str, source: list[str]) -> None:
    """Put the options of a command, with their help, where a page asks for them."""
    source[0] = OPTIONS.sub(lambda match: options(match[1], match[2].split()), source[0])


def options(program: str, command: list[str]) -> str:
    """Return the options of a command as a table that unfolds."""
    parser = PARSERS[program]()
    for name in command:
        (commands,) = (each for each in parser._actions if isinstance(each, argparse._SubParsersAction))
        parser = commands.choices[name]
    formatter = parser._get_formatter()
    rows = []
    for action in parser._actions:
        if action.help is argparse.SUPPRESS or "--help" in action.option_strings:
            continue
        name = ", ".join(action.option_strings)
        value = formatter._format_args(action, formatter._get_default_metavar_for_optional(action))
        shown = f"{name} {value}".strip() if action.nargs != 0 else name
        meaning = MARKUP.sub(r"\\\1", formatter._expand_help(action)) if action.help else ""
        code = shown.replace("|", "\\|")
        rows.append(f"| `{code}` | {meaning} |")
    title = f"Options of {' '.join(command)}"
    table = "\n".join(["| option | |", "| :--- | :--- |", *rows])
    return f"<details><summary>{title}</summary>\n\n{table}\n\n</details>"


def setup(app: Sphinx) -> None:
    """Connect the steps above."""
    app.connect("source-read", link_outside)
    app.connect("source-read", title_links)
    app.connect("source-read", list_options)
