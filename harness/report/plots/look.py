"""Formats and style of figures, as a user asks for them."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

from harness.core.errors import UserError, unknown

#: Format -> entries to leave out, so that equal records give equal files.
FORMATS: dict[str, dict[str, None]] = {
    "png": {"Software": None},
    "pdf": {"CreationDate": None, "Creator": None, "Producer": None},
    "svg": {"Date": None, "Creator": None},
}


class Look(NamedTuple):
    """Formats besides SVG, which the page shows, matplotlib settings in place of ours, and the report's methods."""

    formats: tuple[str, ...]
    style: Mapping[str, Any]
    methods: tuple[str, ...] = ()


USUAL = Look(("png",), MappingProxyType({}))
_LOOK = ContextVar("_LOOK", default=USUAL)


def current_look() -> Look:
    """Return the current formats and settings of figures."""
    return _LOOK.get()


@contextmanager
def figure_look(
    formats: Collection[str], style: str | None = None, methods: tuple[str, ...] = ()
) -> Iterator[None]:
    """Draw the figures of the context in other formats and in another style.

    Parameters
    ----------
    formats : collection of str
        Of `FORMATS`; SVG is always written.
    style : str, optional
        A file of matplotlib settings (``.mplstyle``), or the name of a style that comes with matplotlib. Its colors
        replace ours; sizes of figures follow from what they show.
    methods : tuple of str, optional
        All algorithms of the report, whose places decide their colors and markers; see `Styles`. By default every
        figure decides by its own results.

    Raises
    ------
    UserError
        If there is no such format or style, or the file is not valid.
    """
    for name in formats:
        if name not in FORMATS:
            raise unknown("format of figures", name, FORMATS)
    chosen = tuple(name for name in FORMATS if name in formats and name != "svg")
    token = _LOOK.set(Look(chosen, {} if style is None else _settings(style), methods))
    try:
        yield
    finally:
        _LOOK.reset(token)


def _settings(style: str) -> dict[str, Any]:
    """Return the settings of a style."""
    import matplotlib.style

    if style in matplotlib.style.available:
        return {str(name): value for name, value in matplotlib.style.library[style].items()}
    if not Path(style).is_file():
        raise unknown("style, and no file,", style, matplotlib.style.available)
    lines = (line.partition("#")[0].strip() for line in Path(style).read_text(encoding="utf-8").splitlines())
    for name in (line.partition(":")[0].strip() for line in lines if line):
        if name not in matplotlib.rcParams:  # matplotlib only warns of it
            raise unknown(f"setting in style {style}", name, matplotlib.rcParams)
    try:
        settings = matplotlib.rc_params_from_file(style, fail_on_error=True, use_default_template=False)
    except (ValueError, OSError) as error:
        raise UserError(f"style {style}: {error}") from None
    return {str(name): value for name, value in settings.items()}
