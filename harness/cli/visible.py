"""Text of others on a terminal."""

from __future__ import annotations

import logging
import re
import sys

#: Characters that move the cursor, change colors, or turn the direction of text; line ends and tabs are none.
CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069]")


def visible(text: str) -> str:
    """Return a text in which control characters are written out as escapes."""
    return CONTROL.sub(lambda found: found[0].encode("unicode_escape").decode("ascii"), text)


class Screen(logging.Handler):
    """Standard error as it is at the time, so that messages stand above a progress display."""

    def emit(self, record: logging.LogRecord) -> None:
        """Print a message."""
        print(self.format(record), file=sys.stderr)


class Visible(logging.Formatter):
    """Log messages without control characters."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the message."""
        return visible(super().format(record))
