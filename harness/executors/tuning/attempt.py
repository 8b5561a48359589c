"""One run of a search."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from harness.config.searches import Search, Trial


class Attempt(NamedTuple):
    """A run that a search asks for.

    Attributes
    ----------
    search, trial : Search, Trial
        The search, and the settings that it tries.
    seed : int
        The seed.
    paired : bool
        Whether the run shares its noise with others of its seed.
    """

    search: Search
    trial: Trial
    seed: int
    paired: bool = False


Carry = Callable[[Sequence[Attempt]], None]  # carries out runs, and adds their values to the trials
