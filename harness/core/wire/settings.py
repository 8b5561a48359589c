"""Settings of what a run does to its messages: privacy and compression, checked and completed."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Literal, Self

import numpy as np
import torch
from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator
from torch import Tensor

from compression import CODECS, ratio_at
from harness.core import rng
from harness.core.registry import UserError, unknown
from privacy import AdaptiveClip, Ledger, joint_norm

Share = float | tuple[float, ...]  # of all clients, or of each
Ratio = Share | tuple[tuple[int, Share], ...]
Clip = float | tuple[float, ...] | Literal["adaptive"]


class Section(BaseModel):
    """A part of a run file; unknown keys are refused."""

    model_config = ConfigDict(frozen=True, extra="forbid")


BUDGETS = ("epsilon", "epsilon_release", "epsilon_nominal", "noise_multiplier")
LARGEST = 1e9  # epsilon or noise multiplier; the smallest is its inverse
SMALLEST_DELTA = 1e-30


class PrivacySpec(Section):
    """The Gaussian mechanism a run uses. Exactly one of the four budgets is given.

    Attributes
    ----------
    unit : {"client", "record"}
        Whose participation is hidden: all of a client's data, or one record.
    placement : {"local", "central"}
        Who adds noise: each client to what it transmits, or the server to the average.
    clip : float, list of float or "adaptive"
        Bound on the joint L2 norm of a message; a list bounds each part of it.
    epsilon : float or None
        Budget of the whole run, over all releases.
    epsilon_release : float or None
        Exact epsilon of each single release.
    epsilon_nominal : float or None
        Input of the classic formula ``sqrt(2 ln(1.25 / delta)) clip / epsilon``.
    noise_multiplier : float or None
        Standard deviation of the noise over the sensitivity; 0 clips only.
    delta : float
        Of every epsilon.
    adjacency : {"replace", "add-remove"} or None
        Default: add-remove with Poisson sampling, else replace.
    sampling : {"poisson", "fixed", "full"} or None
        How the cohort is drawn. Default: full without a cohort; with one fixed if local, poisson if central.
    accountant : {"rdp", "prv", "pld"}
        For sampled draws.
    server_clip : float or None
        Bound on the averaged message, applied by the server. Messages that it sees one by one stay as they are.
    strict : bool
        Take nothing of the clients' data as public, neither their numbers of samples nor what standardizes
        them; what rests on such knowledge is refused, and averages are plain where the algorithm leaves it open.
    """

    unit: Literal["client", "record"] = "client"
    placement: Literal["local", "central"] = "local"
    clip: float | tuple[float, ...] | Literal["adaptive"] = 10.0
    epsilon: float | None = Field(default=None, gt=0)
    epsilon_release: float | None = Field(default=None, gt=0)
    epsilon_nominal: float | None = Field(default=None, gt=0)
    noise_multiplier: float | None = Field(default=None, ge=0)
    delta: float = Field(default=1e-5, gt=0, lt=1)
    adjacency: Literal["replace", "add-remove"] | None = None
    sampling: Literal["poisson", "fixed", "full"] | None = None
    accountant: Literal["rdp", "prv", "pld"] = "rdp"
    server_clip: float | None = Field(default=None, gt=0)
    strict: bool = False

    @model_validator(mode="after")
    def _sound(self) -> PrivacySpec:
        named = [name for name in BUDGETS if getattr(self, name) is not None]
        if len(named) != 1:
            raise UserError(
                f"privacy: give exactly one of {', '.join(BUDGETS)}; given {' and '.join(named) or 'none'}"
            )
        norms = self.clip if isinstance(self.clip, tuple) else (self.clip,)
        if not norms or any(not isinstance(norm, str) and not norm > 0 for norm in norms):
            raise UserError(f"privacy.clip: clip norms are above 0, given {self.clip}")
        if self.noise_multiplier != 0 and any(norm == math.inf for norm in norms):
            raise UserError("privacy.clip: an infinite clip norm goes with noise_multiplier 0 only")
        if self.delta < SMALLEST_DELTA:
            raise UserError(f"privacy.delta: at least {SMALLEST_DELTA:g}, given {self.delta}")
        given = getattr(self, named[0])
        if given > LARGEST or 0 < given < 1 / LARGEST:
            raise UserError(f"privacy.{named[0]}: between {1 / LARGEST:g} and {LARGEST:g}, given {given}")
        if self.unit == "record":
            if self.server_clip is not None:
                raise UserError("privacy: unit record has no server_clip, the server adds no noise")
            if self.placement == "central" or isinstance(self.clip, tuple | str) or self.sampling == "fixed":
                raise UserError(
                    "privacy: unit record protects every local gradient, with one clip norm and Poisson batches; "
                    "leave placement and sampling away and give clip as a number"
                )
            if self.epsilon_nominal is not None:
                raise UserError("privacy: unit record has no nominal epsilon")
            return self
        if self.placement == "local":
            if self.adjacency == "add-remove":
                raise UserError(
                    "privacy.adjacency: a client that protects itself replaces its data; use replace"
                )
            if self.sampling == "poisson":
                raise UserError(
                    "privacy.sampling: local placement is not amplified by sampling, the server knows who sends; "
                    "use fixed or full"
                )
            if self.clip == "adaptive":
                raise UserError(
                    "privacy.clip: an adaptive norm needs a server that counts; use placement central"
                )
        elif self.adjacency == "add-remove" and self.sampling in ("fixed", "full"):
            raise UserError(
                f"privacy.adjacency: with {self.sampling} cohorts one client is replaced by another; use replace, "
                "or sampling poisson"
            )
        elif self.adjacency == "replace" and self.sampling == "poisson":
            raise UserError("privacy.adjacency: Poisson cohorts are accounted by add-remove")
        return self


@dataclass(frozen=True)
class Privacy:
    """The Gaussian mechanism of one run: its settings, and what only the run knows.

    Attributes
    ----------
    spec : PrivacySpec
        The settings, with `sampling` and `adjacency` given.
    noise_multiplier : float
        Standard deviation of the noise over the sensitivity; 0 clips only.
    rate : float
        Probability that a unit takes part in a draw.
    secure : bool
        Whether the noise is drawn from the system's entropy instead of the run's seed.
    releases : int or None
        Number of releases a round that the noise is calibrated for. A round that makes more ends the run.

    Raises
    ------
    ValueError
        If the settings leave `sampling` or `adjacency` open.
    """

    spec: PrivacySpec
    noise_multiplier: float
    rate: float = 1.0
    secure: bool = False
    releases: int | None = None

    def __post_init__(self) -> None:
        if self.spec.sampling is None or self.spec.adjacency is None:
            raise ValueError("privacy: a mechanism needs a way of sampling and an adjacency")

    @classmethod
    def of(
        cls,
        noise_multiplier: float,
        *,
        sampling: Literal["poisson", "fixed", "full"] = "full",
        rate: float = 1.0,
        **settings: Any,
    ) -> Self:
        """Return a mechanism with a given noise multiplier.

        Parameters
        ----------
        noise_multiplier : float
            Standard deviation of the noise over the sensitivity.
        sampling : {"poisson", "fixed", "full"}
            How units are drawn; everybody takes part unless given.
        rate : float
            At which.
        **settings
            Further fields of `PrivacySpec`. The default adjacency is add-remove with Poisson sampling, else
            replace.
        """
        usual = "add-remove" if sampling == "poisson" else "replace"
        given = {"adjacency": usual, "sampling": sampling, **settings}
        return cls(PrivacySpec(noise_multiplier=noise_multiplier, **given), noise_multiplier, rate)

    @property
    def unit(self) -> Literal["client", "record"]:
        """Whose participation is hidden."""
        return self.spec.unit

    @property
    def placement(self) -> Literal["local", "central"]:
        """Who adds the noise."""
        return self.spec.placement

    @property
    def clip(self) -> Clip:
        """Bound on the joint L2 norm of a message, or on each of its parts."""
        return self.spec.clip

    @property
    def adjacency(self) -> Literal["replace", "add-remove"]:
        """What two neighboring data sets differ in."""
        return self.spec.adjacency or "replace"

    @property
    def sampling(self) -> Literal["poisson", "fixed", "full"]:
        """How units come into a release."""
        return self.spec.sampling or "full"

    @property
    def delta(self) -> float:
        """Of every epsilon."""
        return self.spec.delta

    @property
    def accountant(self) -> Literal["rdp", "prv", "pld"]:
        """For sampled draws; without sampling the total is exact."""
        return self.spec.accountant

    @property
    def server_clip(self) -> float | None:
        """Bound on the joint norm of the average, applied by the server after the noise."""
        return self.spec.server_clip

    @property
    def strict(self) -> bool:
        """Whether nothing of the clients' data is public."""
        return self.spec.strict

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


def _each(ratio: Ratio) -> bool:
    """Whether a ratio is one for each client."""
    return isinstance(ratio, tuple) and not isinstance(ratio[0], tuple)


def steps_of(ratio: Ratio) -> list[tuple[int, Share]]:
    """Return the steps of a schedule; none if it is constant."""
    return [step for step in ratio if isinstance(step, tuple)] if isinstance(ratio, tuple) else []


class Compression(Section):
    """How messages and models are made smaller.

    Attributes
    ----------
    alpha : float, list of floats, or list of [round, ratio]
        Share of the model's hidden units (neurons, filters) that is removed, in [0, 1): of every client's model,
        of each client's (which are then contained in each other), or a schedule of the first (of both in vertical
        problems); what has been removed stays removed.
    beta : float, list of floats, or list of [round, ratio]
        Share of a message's entries that is dropped, in [0, 1): of every client's, of each client's, or a
        schedule of both.
    select : {"top_k", "random_k", "threshold"}
        The largest entries are kept, or a random choice that all know from the seed, or all entries whose
        absolute value is at least ``threshold`` (beta then stays 0).
    threshold : float or None
        Above 0.
    codec : str
        Number format on the wire: float64, float32, float16, bfloat16, q1 .. q8 (stochastic), sign.
    error_feedback : bool
        Add what was not sent to the client's next message; not with random_k, whose mask is part of the rules.
    downlink : bool
        Drop and code what the server sends like what clients send; not with error feedback, as models are sent,
        and what is missing of a model is not to be added to the next one.
    """

    alpha: Ratio = 0.0
    beta: Ratio = 0.0
    select: Literal["top_k", "random_k", "threshold"] = "top_k"
    threshold: float | None = Field(default=None, gt=0)
    codec: str = "float32"
    error_feedback: bool = False
    downlink: bool = False

    @field_validator("codec")
    @classmethod
    def _codec(cls, name: str) -> str:
        if name not in CODECS:
            raise unknown("codec", name, CODECS)
        return name

    @field_validator("alpha", "beta")
    @classmethod
    def _ratios(cls, ratio: Any) -> Any:
        steps = ratio if isinstance(ratio, tuple) else (ratio,)
        if not steps or any(isinstance(step, tuple) and step[0] < 0 for step in steps):
            raise UserError(f"compression: a schedule has steps, from round 0 on; given {ratio}")
        ratio_at(ratio, 0)
        return ratio

    @model_validator(mode="after")
    def _together(self) -> Compression:
        if (self.select == "threshold") != (self.threshold is not None) or (
            self.threshold and self.beta != 0.0
        ):
            raise UserError("compression: select threshold goes with a threshold, and without beta")
        if self.error_feedback and (self.select == "random_k" or self.downlink):
            raise UserError("compression: error_feedback goes with select top_k, and without downlink")
        if self.downlink and (_each(self.beta) or any(_each(ratio) for _, ratio in steps_of(self.beta))):
            raise UserError("compression: downlink needs one beta for all clients")
        return self

    @property
    def sparsifies(self) -> bool:
        """Whether entries of messages are dropped at all."""
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
