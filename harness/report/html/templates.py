"""Templates of pages, which escape all text."""

from __future__ import annotations

import json
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from jinja2 import Template

HERE = Path(__file__).parent


def template(name: str) -> Template:
    """Return a template of this folder."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    environment = Environment(
        loader=FileSystemLoader(HERE),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["pretty"] = lambda value: json.dumps(value, indent=1, ensure_ascii=False)
    # Quotes are no markup between tags; specs and commands are full of them.
    environment.filters["between_tags"] = lambda text: escape(text, quote=False)
    return environment.get_template(name)
