"""The unit of accounting: draws of a cohort or a batch, and the Gaussian releases made from them."""

from __future__ import annotations

from typing import NamedTuple

SAMPLINGS = ("poisson", "without-replacement")


class Event(NamedTuple):
    """``times`` draws, alike in sampling rate and in the noise multiplier of all their releases together.

    ``sampling`` says how a draw at a rate below 1 is made. With "poisson", each unit comes in by its own coin;
    neighbors differ in the presence of one unit. With "without-replacement", a fixed number of units is drawn;
    neighbors differ in one unit replaced, and the noise multiplier is relative to that sensitivity. In both, the
    draw must be secret.
    """

    noise_multiplier: float
    rate: float = 1.0
    times: int = 1
    sampling: str = "poisson"
