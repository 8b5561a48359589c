"""The privacy of a run: its mechanism without the noise of its budget, and with it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal, Self

import numpy as np
from numpy.typing import NDArray

from harness.core.settings.privacy_kinds import (
    BUILT_IN_MECHANISMS,
    USER_RECORDS,
    Adjacency,
    CentralPrivacy,
    ClientPrivacy,
    Clip,
    GradientPrivacy,
    Placement,
    RecordPrivacy,
    Sampling,
    Unit,
    UserPrivacy,
    noise_of,
)
from harness.core.settings.privacy_section import PrivacySpec, read_privacy
from privacy.clipping import AdaptiveClip, joint_norm
from privacy.event import SECRET
from privacy.own_mechanism import Noise


@dataclass(frozen=True)
class PrivacyTerms:
    """The mechanism of a run, without the noise that its budget requires.

    `harness.simulation.calibration` finds it.

    Attributes
    ----------
    spec : PrivacySpec
        The settings, with `sampling` and `adjacency` given.
    rate : float
        Probability that a client takes part in a secret cohort; else 1.
    rounds, bands : int
        Of banded noise: for how many rounds it is factorized, and over how many it is correlated.

    Raises
    ------
    ValueError
        If the settings lack `sampling` or `adjacency`.
    """

    spec: PrivacySpec
    rate: float = 1.0
    rounds: int = 0
    bands: int = 1

    def __post_init__(self) -> None:
        if self.spec.sampling is None or self.spec.adjacency is None:
            raise ValueError("privacy: the mechanism of a run needs sampling and adjacency")

    @property
    def user_noise(self) -> Noise | None:
        """The noise of a user's mechanism; None: Gaussian noise.

        Raises
        ------
        UserError
            If the mechanism is not registered, as in a process without its plugin.
        """
        return None if self.spec.mechanism in BUILT_IN_MECHANISMS else noise_of(self.spec.mechanism)

    @property
    def order(self) -> int:
        """Order of the norm in which a message is bounded: 2, or 1 for a user's mechanism."""
        return 2 if self.user_noise is None else 1

    @property
    def unit(self) -> Unit:
        """Unit of protection."""
        return self.spec.unit

    @property
    def by_gradient(self) -> bool:
        """Whether every local gradient is protected (units record and user) instead of messages."""
        return isinstance(self.spec, GradientPrivacy)

    @property
    def user_records(self) -> int | None:
        """Largest number of records of a user; None where records are protected one by one."""
        return (self.spec.user_records or USER_RECORDS) if isinstance(self.spec, UserPrivacy) else None

    @property
    def record_rate(self) -> float | None:
        """Public probability that a record is in a batch; None where it follows from counts."""
        return self.spec.record_rate if isinstance(self.spec, GradientPrivacy) else None

    @property
    def ghost(self) -> bool:
        """Whether gradients of samples are clipped without being computed one by one."""
        return isinstance(self.spec, RecordPrivacy) and self.spec.ghost

    @property
    def noise_cohort(self) -> int | None:
        """Size of the cohort for which the noise of averages is made, if it is not that of the run."""
        return self.spec.noise_cohort if isinstance(self.spec, CentralPrivacy) else None

    @property
    def server_clip(self) -> float | None:
        """Bound on the joint norm of the average, applied after the noise."""
        return self.spec.server_clip if isinstance(self.spec, ClientPrivacy) else None

    @property
    def placement(self) -> Placement:
        """Place where noise is added: local, central or distributed."""
        return self.spec.placement or "local"

    @property
    def clip(self) -> Clip:
        """Bound on the joint norm of a message, or on the norm of each part."""
        return self.spec.clip

    @property
    def adjacency(self) -> Adjacency:
        """Relation of neighboring data sets."""
        return self.spec.adjacency or "replace"

    @property
    def sampling(self) -> Sampling:
        """Sampling of the units of a release."""
        return self.spec.sampling or "full"

    @property
    def counts_private(self) -> bool:
        """Whether the clients' numbers of samples are private."""
        return self.spec.strict or self.record_rate is not None or self.clients_private

    @property
    def clients_private(self) -> bool:
        """Whether it is private how many clients there are."""
        return self.unit == "client" and self.adjacency == "add-remove"

    @property
    def secret_cohorts(self) -> bool:
        """Whether nobody may learn who takes part in a round."""
        return self.unit == "client" and self.sampling in SECRET

    @property
    def own_draws(self) -> bool:
        """Whether secret draws are keyed by the run's noise key instead of by its seed."""
        return self.sampling in SECRET and self.spec.draws == "own"

    @property
    def costs_expected(self) -> bool:
        """Whether bytes and operations are recorded as expected values.

        Under central placement a client's message is encoded before it is clipped and noised, so the length of its
        code would tell more than its release. Secret cohorts are central.
        """
        return isinstance(self.spec, CentralPrivacy)

    @property
    def delta(self) -> float:
        """The delta of all epsilons."""
        return self.spec.delta

    @property
    def accountant(self) -> Literal["pld", "prv", "rdp"]:
        """Accountant of secret draws; without them the total is exact."""
        return self.spec.accountant

    @property
    def factor(self) -> float:
        """Sensitivity of a clipped message over its clip norm."""
        return 2.0 if self.adjacency == "replace" else 1.0

    def bound(self) -> float:
        """Return the joint norm guaranteed by clipping to fixed norms.

        Raises
        ------
        ValueError
            If the clip norm is adaptive.
        """
        if isinstance(self.clip, str):
            raise ValueError("an adaptive clip norm has no fixed bound; it is part of the channel's state")
        return joint_norm(self.clip) if isinstance(self.clip, tuple) else self.clip

    @property
    def sensitivity(self) -> float:
        """Largest change that a unit makes to a sum of clipped messages or gradients."""
        return self.factor * self.bound()

    def with_noise(
        self, noise_multiplier: float, releases: int | None = None, multipliers: tuple[float, ...] = ()
    ) -> Privacy:
        """Return the mechanism with an amount of noise, whatever it had before."""
        terms = (self.spec, self.rate, self.rounds, self.bands)
        return Privacy(*terms, noise_multiplier=noise_multiplier, releases=releases, multipliers=multipliers)


@dataclass(frozen=True)
class Privacy(PrivacyTerms):
    """The mechanism of a run, with its noise.

    Attributes
    ----------
    noise_multiplier : float
        Standard deviation of the noise over the sensitivity, or scale of a user's noise over the L1 sensitivity; 0
        clips without noise. If clients have their own, the smallest.
    releases : int or None
        Releases per round for which the noise is calibrated. A round with more ends the run.
    multipliers : tuple of float
        Noise multiplier of each client, where they have their own.
    """

    noise_multiplier: float = field(kw_only=True)
    releases: int | None = field(default=None, kw_only=True)
    multipliers: tuple[float, ...] = field(default=(), kw_only=True)

    @classmethod
    def of(
        cls,
        noise_multiplier: float,
        *,
        sampling: Sampling = "full",
        rate: float = 1.0,
        **settings: Any,
    ) -> Self:
        """Return a mechanism with a given noise multiplier.

        Parameters
        ----------
        noise_multiplier, sampling, rate
            As in `Privacy` and `PrivacySettings`.
        **settings
            Further settings.
        """
        record = settings.get("unit", "client") != "client"
        usual = "replace" if sampling != "poisson" else "zero-out"
        placement = {} if record else {"placement": "central" if sampling in SECRET else "local"}
        completed = {"adjacency": usual, "sampling": sampling, **placement, **settings}
        spec: Any = read_privacy({"noise_multiplier": noise_multiplier, **completed})
        return cls(spec, rate, noise_multiplier=noise_multiplier)

    def adaptive(self, expected: float) -> AdaptiveClip:
        """Return the rule of adaptive clipping in a cohort of an expected size; its count takes some budget."""
        return AdaptiveClip.for_cohort(expected, self.noise_multiplier, replaced=self.count_replaced)

    @property
    def count_replaced(self) -> bool:
        """Whether a unit moves the centered count of short messages by 1: a message of zeros is a short one.

        Who has no effect in a secret Poisson cohort is counted as little as who is not drawn.
        """
        return self.adjacency == "replace" or self.sampling != "poisson"

    @property
    def noise_multipliers(self) -> float | NDArray[np.float64]:
        """Noise multiplier of all clients, or of each, ``(total,)``."""
        return np.array(self.multipliers) if self.multipliers else self.noise_multiplier
