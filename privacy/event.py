"""The unit of accounting: draws of a cohort or a batch, and the releases made from them."""

from __future__ import annotations

from typing import NamedTuple

from privacy.own_mechanism import Noise

SAMPLINGS = ("poisson", "poisson-replace", "without-replacement")
SECRET = ("poisson", "without-replacement")  # sampling of cohorts that nobody sees


class Event(NamedTuple):
    """``times`` draws, alike in sampling rate and in the noise multiplier of all their releases together.

    ``sampling`` says how a draw at a rate below 1 is made. With "poisson", each unit comes in by its own coin;
    neighbors differ in the presence of one unit. With "poisson-replace" they differ in one unit replaced, and the
    noise multiplier is relative to that sensitivity, twice the clip norm. With "without-replacement", a fixed
    number of units is drawn; neighbors and noise multiplier are those of a replaced unit. In all, the draw must be
    secret.

    ``noise`` is that of a user's mechanism; None is Gaussian noise. The noise multiplier is then the scale of the
    noise over the L1 sensitivity.
    """

    noise_multiplier: float
    rate: float = 1.0
    times: int = 1
    sampling: str = "poisson"
    noise: Noise | None = None


def own_event(
    noise: Noise, noise_multiplier: float, releases: int, rate: float, times: int, sampling: str
) -> Event:
    """Return draws with the same number of releases each under a user's mechanism.

    Releases from one secret draw shift the noise together, at most by the sum of their shifts; see
    `privacy.own_mechanism`.
    """
    if rate < 1:
        return Event(noise_multiplier / releases, rate, times, sampling, noise)
    return Event(noise_multiplier, rate, times * releases, sampling, noise)
