"""What a run does to its messages: the settled form of a spec's privacy and compression."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from harness.core import rng
from privacy import AdaptiveClip, Ledger, joint_norm

Share = float | tuple[float, ...]  # of all clients, or of each
Ratio = Share | tuple[tuple[int, Share], ...]
Clip = float | tuple[float, ...] | Literal["adaptive"]


@dataclass(frozen=True)
class Privacy:
    """The Gaussian mechanism of a run, its noise settled.

    Attributes
    ----------
    unit : {"client", "record"}
        Whose participation is hidden.
    placement : {"local", "central"}
        Who adds the noise: each client to what it sends, or the server to the average.
    clip : float, tuple of float or "adaptive"
        Bound on the joint L2 norm of a message; a tuple bounds each part; adaptive follows a quantile.
    noise_multiplier : float
        Standard deviation of the noise over the sensitivity; 0 clips only.
    adjacency : {"replace", "add-remove"}
        What two neighboring data sets differ in: one unit replaced (sensitivity 2 clip) or present (1 clip).
    sampling : {"poisson", "fixed", "full"}
        How units come into a release.
    rate : float
        Probability that a unit takes part in a draw.
    delta : float
        Of every epsilon.
    accountant : {"rdp", "prv", "pld"}
        For sampled draws; without sampling the total is exact.
    server_clip : float or None
        Bound on the joint norm of the average, applied by the server after the noise.
    epsilon_nominal : float or None
        The input of the classic formula, if the noise came from there.
    secure : bool
        Whether the noise is drawn from the system's entropy instead of the run's seed.
    releases : int or None
        How many releases a round the noise was settled for; a round that makes more ends the run.
    strict : bool
        Whether nothing of the clients' data is public, not even how many samples they have.
    """

    unit: Literal["client", "record"]
    placement: Literal["local", "central"]
    clip: Clip
    noise_multiplier: float
    adjacency: Literal["replace", "add-remove"]
    sampling: Literal["poisson", "fixed", "full"]
    rate: float
    delta: float
    accountant: Literal["rdp", "prv", "pld"]
    server_clip: float | None = None
    epsilon_nominal: float | None = None
    secure: bool = False
    releases: int | None = None
    strict: bool = False

    def stream(self, seed: int, *purpose: str | int) -> np.random.Generator:
        """Return the generator of one draw of noise."""
        return np.random.default_rng() if self.secure else rng.numpy_stream(seed, *purpose)

    @property
    def factor(self) -> float:
        """Sensitivity of a clipped message over its clip norm."""
        return 2.0 if self.adjacency == "replace" else 1.0

    @property
    def adaptive(self) -> AdaptiveClip:
        """The rule of an adaptive clip norm; the count's noise takes a small share of the budget."""
        share = max(10.0 * self.noise_multiplier, 1e-3)  # its multiplier, ten times the round's
        return AdaptiveClip(count_std=share * (1.0 if self.factor == 2.0 else 0.5))

    def bound(self) -> float:
        """Return the joint norm that clipping guarantees, where it is fixed."""
        if isinstance(self.clip, str):
            raise ValueError("an adaptive clip norm is part of the channel's state")
        return joint_norm(self.clip) if isinstance(self.clip, tuple) else self.clip

    def deviation(self) -> float:
        """Return the standard deviation of the noise on what is clipped to a fixed norm."""
        return self.noise_multiplier * self.factor * self.bound()

    def book(self, ledger: Ledger, draw: tuple[str | int, ...], multiplier: float) -> Ledger:
        """Return the ledger with one more release from a draw."""
        if self.sampling == "poisson":
            return ledger.book(draw, multiplier, self.rate)
        return ledger.book(draw, multiplier, 1.0, self.rate if self.rate < 1 else None)


@dataclass(frozen=True)
class Compression:
    """How messages are made shorter.

    Attributes
    ----------
    alpha : float, one a client, or schedule
        Share of the hidden units that is removed from the model.
    beta : float, one a client, or schedule
        Share of a message's entries that is dropped; see `compression.ratio_at`.
    select : {"top_k", "random_k", "threshold"}
        Which are kept: the largest, a public random choice, or those of at least ``threshold``.
    threshold : float or None
        For `select` "threshold", which has no beta: how many entries are kept depends on the message.
    codec : str
        Format of the values on the wire.
    error_feedback : bool
        Whether what was not sent is added to the next message of the same kind.
    downlink : bool
        Whether the same is done to what the server sends; otherwise that is dense float32.
    """

    alpha: Ratio = 0.0
    beta: Ratio = 0.0
    select: Literal["top_k", "random_k", "threshold"] = "top_k"
    threshold: float | None = None
    codec: str = "float32"
    error_feedback: bool = False
    downlink: bool = False

    @property
    def thin(self) -> bool:
        """Whether entries of messages are left away at all."""
        return self.beta != 0.0 or self.select == "threshold"


PLAIN = Compression()


class PrivacyLog:
    """The one place where releases are booked during a round.

    Attributes
    ----------
    ledger : Ledger
        Everything released so far; where records are charged one by one, of the record released most often.
    charged : Tensor or None
        Releases about each record, ``(N,)``.
    """

    def __init__(self, ledger: Ledger | None = None) -> None:
        self.ledger = ledger or Ledger()
        self.charged: Tensor | None = None

    def charge(self, records: Tensor, total: int, privacy: Privacy) -> None:
        """Book one release about each of some of ``total`` records; everybody knows about which.

        All releases have the same noise, so what the ledger holds is as many as the most charged record has.
        """
        before = torch.zeros(total, dtype=torch.int64) if self.charged is None else self.charged
        self.charged = before.index_add(0, records.cpu(), torch.ones_like(records.cpu()))
        most = int(self.charged.max())
        if most > int(before.max()):
            self.ledger = privacy.book(self.ledger, ("record", most), privacy.noise_multiplier)
