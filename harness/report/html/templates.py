"""Templates of pages, which escape all text."""

from __future__ import annotations

import json
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from jinja2 import Template

HERE = Path(__file__).parent


def template(name: str, folder: Path = HERE) -> Template:
    """Return a template of a folder, which may include those of this one."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    environment = Environment(
        loader=FileSystemLoader([folder, HERE]),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["pretty"] = lambda value: json.dumps(value, indent=1, ensure_ascii=False)
    # Quotes are no markup between tags; specs and commands are full of them.
    environment.filters["between_tags"] = lambda text: escape(text, quote=False)
    return environment.get_template(name)
