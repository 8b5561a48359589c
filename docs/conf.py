"""Settings of Sphinx for the pages in this folder: `make docs` builds them into ``docs/site``."""

import re

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

autodoc_member_order = "bysource"
autodoc_typehints = "none"  # the docstrings name types, shapes and units
napoleon_google_docstring = False
napoleon_use_ivar = True

OUTSIDE = re.compile(r"\[((?:[^\[\]]|\[[^\]]*\])*)\]\(((?:\.\./)+(?![./])[^)]*)\)")


def link_outside(app: Sphinx, page: str, source: list[str]) -> None:
    """Let links that leave this folder lead to the checkout, which the built pages lie in."""
    here = page.count("/")

    def link(match: re.Match[str]) -> str:
        text, target = match.groups()
        if target.count("../") <= here:
            return match[0]
        return f'<a href="../{target}">{text}</a>'

    source[0] = OUTSIDE.sub(link, source[0])


def setup(app: Sphinx) -> None:
    """Connect the step above."""
    app.connect("source-read", link_outside)
