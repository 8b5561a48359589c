"""Settings of privacy."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, model_validator

from compression.secure_sum import Protocol
from harness.core.registry import UserError, unknown
from harness.core.settings.section import Section
from privacy import AdaptiveClip, Factorization, Ledger, joint_norm
from privacy.discrete import MOST_BITS
from privacy.own_mechanism import MECHANISMS, Noise

Clip = float | tuple[float, ...] | Literal["adaptive"]
Adjacency = Literal["replace", "add-remove", "zero-out"]
Unit = Literal["client", "record", "user"]
Placement = Literal["local", "central", "distributed"]
Sampling = Literal["poisson", "without-replacement", "fixed", "full"]
USER_RECORDS = 8
DISTRIBUTED = ("bits", "dropouts", "aggregation")  # settings of that placement
SECRET: tuple[str, ...] = ("poisson", "without-replacement")  # sampling of cohorts that nobody sees


OURS = ("independent", "banded")  # mechanisms
BUDGETS = ("epsilon", "epsilon_release", "epsilon_nominal", "noise_multiplier")
LARGEST = 1e9  # epsilon or noise multiplier; the smallest is its inverse
SMALLEST_DELTA = 1e-30
LARGEST_CLIP = 1e15  # its square and its noise still fit into float32


class PrivacySpec(Section):
    """Settings of the mechanism. Give exactly one of the four budgets.

    Attributes
    ----------
    unit : {"client", "record", "user"}
        Unit of protection: all of a client's data, one record, or all training records of one user inside a client.
    user : str or None
        With unit user, the column that names the user of a record. Every user is at one client. Users are drawn as
        records are, ``batch_size`` of them on average, and contribute the mean gradient of their records.
    user_records : int or None
        With unit user, how many of a user's training records are used, at most; default 8.
    placement : {"local", "central", "distributed"}
        Who adds noise: each client to its messages; the server to the average; or the clients together, each a
        share of it, to a sum of integers that is all the server learns (secure aggregation). Has no default,
        because the same epsilon means far more noise for local placement. With unit record clients add it.
    clip : float, list of float or "adaptive"
        Bound on the joint L2 norm of a message (L1 with a user's mechanism); a list bounds each part separately.
    epsilon : float or None
        Budget of the whole run, over all releases.
    epsilon_release : float or None
        Exact epsilon of each single release.
    epsilon_nominal : float or None
        Input of the classic formula ``sqrt(2 ln(1.25 / delta)) clip / epsilon``.
    noise_multiplier : float or None
        Standard deviation of the noise over the sensitivity; 0 clips without noise.
    delta : float
        The delta of all epsilons.
    adjacency : {"replace", "add-remove", "zero-out"} or None
        Relation of neighboring data sets: a unit is replaced, present or absent, or replaced by one without any
        contribution while counts of samples, or clients, stay. Default for unit client: with Poisson sampling
        zero-out, or add-remove if the cohort has a public rate; else replace; for unit record: zero-out.
    sampling : {"poisson", "without-replacement", "fixed", "full"} or None
        Sampling of the cohort. The first two are secret and need central placement; fixed is a public cohort.
        Default: full without a cohort setting, else fixed if local, poisson if central.
    record_rate : float or None
        For unit record with adjacency add-remove: public probability that a record is in a batch. The divisor of a
        gradient is then the algorithm's ``batch_size``, whatever the client's number of samples.
    mechanism : str
        "independent" (default): every release has Gaussian noise of its own. "banded": the noise is correlated
        between rounds, so that it cancels in what the server adds up (DP-FTRL, `privacy.banded`); for unit client,
        central placement and balanced cohorts, in which nobody takes part twice within ``bands`` rounds. Others are
        mechanisms of users (`privacy.own_mechanism`), which bound messages in their L1 norm; for unit client, local
        or central placement, and one clip norm.
    bands : int or None
        With banded noise, over how many rounds it is correlated; default: as many as lie between two rounds of a
        client.
    factorization : {"optimal", "toeplitz"}
        How banded noise is correlated: with the least error of sums, found by a search, or by a formula, for runs
        of any length.
    noise : {"shared", "per_client"}
        For unit record: whether all clients have the noise that the most exposed one needs, or each its own.
    ghost : bool
        For unit record: whether gradients of samples are clipped without being computed one by one, which is faster
        for larger networks and rounds differently.
    bits : int or None
        With distributed placement, bits of a coordinate on the wire, 2 to 20. Default: the fewest with at most 1 %
        more noise than without rounding.
    dropouts : float or None
        With distributed placement, share of a cohort, in [0, 1), whose noise may be missing because they dropped
        out or are dishonest, rounded down to whole clients; the others add so much more. Default: 0.
    aggregation : {"secagg", "secagg+", "ideal"} or None
        With distributed placement, the protocol of the sum, for its bytes (`compression.secure_sum`); ideal counts
        the integers only. Default: secagg.
    accountant : {"pld", "prv", "rdp"}
        Accountant of secret draws; other epsilons are exact.
    noise_cohort : int or None
        Add to averages the noise of a cohort of so many clients, as in a federation that is larger in proportion
        (central placement). Such an epsilon is extrapolated: it is no guarantee for the clients that are simulated.
    server_clip : float or None
        Bound on the norm of averaged messages, applied by the server.
    strict : bool
        Whether statistics of the clients' data are private: sample counts and the constants of standardization.
        Algorithms that rely on them are refused, and averages have equal weights by default.
    draws : {"own", "shared"}
        Whether secret cohorts and secret batches are the run's own (default), or those of all runs of its seed.
        Shared ones make sweeps faster and comparisons paired, but the runs of a seed are then one joint draw, which
        does not compose as independent releases (`privacy.joint`). Public draws are always those of the seed.
    secure_rng : bool
        Whether noise, secret cohorts and secret batches come from the system's entropy instead of the run's
        seed. Such a run cannot be repeated.
    """

    shape: ClassVar[str] = "named fields such as {placement: local, epsilon: 8}"

    unit: Unit = "client"
    user: str | None = None
    user_records: int | None = Field(default=None, ge=1)
    placement: Placement | None = None
    clip: float | tuple[float, ...] | Literal["adaptive"] = 10.0
    epsilon: float | None = Field(default=None, gt=0)
    epsilon_release: float | None = Field(default=None, gt=0)
    epsilon_nominal: float | None = Field(default=None, gt=0)
    noise_multiplier: float | None = Field(default=None, ge=0)
    delta: float = Field(default=1e-5, gt=0, lt=1)
    adjacency: Adjacency | None = None
    sampling: Sampling | None = None
    record_rate: float | None = Field(default=None, gt=0, le=1)
    mechanism: str = "independent"
    bands: int | None = Field(default=None, ge=2)
    factorization: Factorization = "optimal"
    noise: Literal["shared", "per_client"] = "shared"
    ghost: bool = False
    bits: int | None = Field(default=None, ge=2, le=MOST_BITS)
    dropouts: float | None = Field(default=None, ge=0, lt=1)
    aggregation: Protocol | None = None
    accountant: Literal["pld", "prv", "rdp"] = "pld"
    noise_cohort: int | None = Field(default=None, ge=1)
    server_clip: float | None = Field(default=None, gt=0)
    strict: bool = False
    draws: Literal["own", "shared"] = "own"
    secure_rng: bool = False

    @model_validator(mode="after")
    def _check(self) -> PrivacySpec:
        named = [name for name in BUDGETS if getattr(self, name) is not None]
        if len(named) != 1:
            raise UserError(
                f"privacy: give exactly one of {', '.join(BUDGETS)}; given {' and '.join(named) or 'none'}"
            )
        norms = self.clip if isinstance(self.clip, tuple) else (self.clip,)
        if not norms or any(not isinstance(norm, str) and not norm > 0 for norm in norms):
            raise UserError(f"privacy.clip: clip norms must be above 0, given {self.clip}")
        if any(LARGEST_CLIP < norm < math.inf for norm in norms if norm != "adaptive"):
            raise UserError(
                f"privacy.clip: at most {LARGEST_CLIP:g}, above which its noise does not fit into float32; "
                f"given {self.clip}"
            )
        if self.noise_multiplier != 0 and any(norm == math.inf for norm in norms):
            raise UserError("privacy.clip: an infinite clip norm needs noise_multiplier 0")
        if self.delta < SMALLEST_DELTA:
            raise UserError(f"privacy.delta: must be at least {SMALLEST_DELTA:g}, given {self.delta}")
        given = getattr(self, named[0])
        if given > LARGEST or 0 < given < 1 / LARGEST:
            raise UserError(
                f"privacy.{named[0]}: must be between {1 / LARGEST:g} and {LARGEST:g}, given {given}"
            )
        if (self.unit == "user") != (self.user is not None) or (self.user_records and self.unit != "user"):
            raise UserError(
                "privacy.user: unit user needs the column that names the user of a record, privacy.user; other "
                "units take neither user nor user_records"
            )
        if self.draws == "shared" and self.secure_rng:
            raise UserError(
                "privacy.draws: with secure_rng draws come from the system's entropy, and no two runs share them, "
                "given shared; use own, or remove secure_rng"
            )
        if self.draws == "shared" and self.strict:
            raise UserError(
                "privacy.draws: shared draws follow from the seed, which the run file names, so with strict anyone "
                "would know who was drawn, given shared; use own, or remove strict"
            )
        if self.unit != "client":
            self._check_record()
        else:
            self._check_client()
        if self.placement == "distributed":
            self._check_distributed()
        else:
            for name in DISTRIBUTED:
                if getattr(self, name) is not None:
                    raise UserError(f"privacy.{name}: is for placement distributed; give it or remove {name}")
        if self.mechanism == "banded":
            self._check_banded()
        elif self.mechanism not in OURS:
            self._check_own()
        if self.mechanism != "banded" and (self.bands is not None or self.factorization != "optimal"):
            raise UserError("privacy: bands and factorization require mechanism: banded")
        return self

    def _check_own(self) -> None:
        _registered(self.mechanism)
        if self.unit != "client" or self.placement not in ("local", "central"):
            raise UserError(
                f"privacy.mechanism: {self.mechanism} is for messages of clients: unit client, placement local or "
                "central"
            )
        if isinstance(self.clip, tuple | str) or self.epsilon_nominal is not None or self.accountant != "pld":
            raise UserError(
                f"privacy.mechanism: {self.mechanism} needs one clip norm, of the L1 norm of a message, and "
                "accountant pld; epsilon_nominal is of Gaussian noise"
            )

    def _check_distributed(self) -> None:
        if self.sampling in SECRET:
            raise UserError(
                "privacy.sampling: distributed placement is not amplified by sampling, because the server knows "
                "who takes part in a sum; use fixed or full"
            )
        if self.clip == "adaptive" or self.mechanism != "independent" or self.epsilon_nominal is not None:
            raise UserError(
                "privacy: placement distributed supports neither adaptive clip norms, banded or own noise nor "
                "epsilon_nominal"
            )
        if math.inf in (self.clip if isinstance(self.clip, tuple) else (self.clip,)):
            raise UserError(
                "privacy.clip: placement distributed needs a finite clip norm, the unit of its integers"
            )

    def _check_banded(self) -> None:
        if self.unit != "client" or self.placement != "central":
            raise UserError(
                "privacy.mechanism: banded noise is the server's, for averages of clients; it needs unit client "
                "and placement central"
            )
        if self.sampling not in (None, "fixed"):
            raise UserError(
                "privacy.sampling: banded noise needs balanced cohorts, which are fixed, given "
                f"{self.sampling}; give cohort.kind balanced"
            )

    def _check_record(self) -> None:
        for name in ("server_clip", "noise_cohort"):
            if getattr(self, name) is not None:
                raise UserError(f"privacy: unit {self.unit} does not support {name}")
        if (
            self.placement in ("central", "distributed")
            or isinstance(self.clip, tuple | str)
            or self.sampling in ("without-replacement", "fixed")
        ):
            raise UserError(
                f"privacy: unit {self.unit} protects every local gradient, with one clip norm and Poisson batches; "
                "omit placement and sampling and give clip as a number"
            )
        if self.epsilon_nominal is not None:
            raise UserError(f"privacy: unit {self.unit} does not support epsilon_nominal")
        if self.ghost and self.unit == "user":
            raise UserError("privacy.ghost: is for unit record; a user's gradient is a mean over records")
        if (self.adjacency == "add-remove") != (self.record_rate is not None):
            raise UserError(
                "privacy.record_rate: adjacency add-remove of records needs a public rate at which batches are "
                "drawn, as the clients' numbers of samples are private; give both or neither"
            )
        if self.noise == "per_client" and self.epsilon is None:
            raise UserError(
                "privacy.noise: per_client chooses each client's noise by a budget; give privacy.epsilon"
            )

    def _check_client(self) -> None:
        if self.placement is None:
            raise UserError(
                "privacy.placement: missing; the same epsilon means different things. local: each client adds "
                "noise to its own messages, so that nobody needs to be trusted. central: a trusted server adds "
                "noise to the average, far less of it. Give local or central"
            )
        if self.noise_cohort is not None and (self.placement != "central" or self.clip == "adaptive"):
            raise UserError(
                "privacy.noise_cohort: is for the server's noise with fixed clip norms; it needs placement central "
                "and a clip norm"
            )
        for name, usual in (("record_rate", None), ("noise", "shared"), ("ghost", False)):
            if getattr(self, name) != usual:
                raise UserError(f"privacy.{name}: is for unit record; remove it or give unit: record")
        if self.adjacency == "zero-out" and (
            self.placement == "local" or self.sampling == "without-replacement"
        ):
            raise UserError(
                "privacy.adjacency: zero-out is for unit record, and for averages of Poisson or public cohorts "
                f"(sampling poisson, fixed or full), given {self.placement} and {self.sampling}; use replace"
            )
        if self.placement == "local":
            if self.adjacency == "add-remove":
                raise UserError(
                    "privacy.adjacency: local placement protects against replacing a client's data; use replace"
                )
            if self.sampling in SECRET:
                raise UserError(
                    "privacy.sampling: local placement is not amplified by sampling, because the server knows the "
                    "cohort; use fixed or full"
                )
            if self.clip == "adaptive":
                raise UserError(
                    "privacy.clip: adaptive clipping needs a count at the server; use placement central"
                )
        elif self.adjacency == "add-remove" and self.sampling not in ("poisson", None):
            raise UserError(
                f"privacy.adjacency: {self.sampling} cohorts need adjacency replace; use replace or "
                "sampling poisson"
            )
        elif self.adjacency == "replace" and self.sampling == "poisson":
            raise UserError(
                "privacy.adjacency: Poisson cohorts need adjacency zero-out, or add-remove with cohort.rate"
            )


def _registered(mechanism: str) -> Noise:
    if mechanism not in MECHANISMS:
        raise unknown("mechanism", mechanism, [*OURS, *MECHANISMS])
    return MECHANISMS[mechanism]


@dataclass(frozen=True)
class Privacy:
    """The calibrated mechanism of a run.

    Attributes
    ----------
    spec : PrivacySpec
        The settings, with `sampling` and `adjacency` given.
    noise_multiplier : float
        Standard deviation of the noise over the sensitivity, or scale of a user's noise over the L1 sensitivity; 0
        clips without noise. If clients have their own, the smallest.
    rate : float
        Probability that a client takes part in a secret cohort; else 1.
    releases : int or None
        Releases per round for which the noise is calibrated. A round with more ends the run.
    multipliers : tuple of float
        Noise multiplier of each client, where they have their own.
    rounds, bands : int
        Of banded noise: for how many rounds it is factorized, and over how many it is correlated.

    Raises
    ------
    ValueError
        If the settings lack `sampling` or `adjacency`.
    """

    spec: PrivacySpec
    noise_multiplier: float
    rate: float = 1.0
    releases: int | None = None
    multipliers: tuple[float, ...] = ()
    rounds: int = 0
    bands: int = 1

    def __post_init__(self) -> None:
        if self.spec.sampling is None or self.spec.adjacency is None:
            raise ValueError("privacy: a calibrated mechanism needs sampling and adjacency")

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
            As in `Privacy` and `PrivacySpec`.
        **settings
            Further fields of `PrivacySpec`.
        """
        record = settings.get("unit", "client") != "client"
        usual = "replace" if sampling != "poisson" else "zero-out"
        placement = {} if record else {"placement": "central" if sampling in SECRET else "local"}
        given = {"adjacency": usual, "sampling": sampling, **placement, **settings}
        return cls(PrivacySpec(noise_multiplier=noise_multiplier, **given), noise_multiplier, rate)

    @property
    def own(self) -> Noise | None:
        """The noise of a user's mechanism; None: Gaussian noise.

        Raises
        ------
        UserError
            If the mechanism is not registered, as in a process without its plugin.
        """
        return None if self.spec.mechanism in OURS else _registered(self.spec.mechanism)

    @property
    def order(self) -> int:
        """Which norm of a message is bounded: 2, or 1 for a user's mechanism."""
        return 2 if self.own is None else 1

    @property
    def unit(self) -> Unit:
        """Unit of protection."""
        return self.spec.unit

    @property
    def by_gradient(self) -> bool:
        """Whether every local gradient is protected (units record and user) instead of messages."""
        return self.unit != "client"

    @property
    def user_records(self) -> int | None:
        """Largest number of records of a user; None where records are protected one by one."""
        return (self.spec.user_records or USER_RECORDS) if self.unit == "user" else None

    @property
    def placement(self) -> Placement:
        """Who adds the noise."""
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
        return self.strict or self.spec.record_rate is not None or self.clients_private

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
        """Whether secret draws are keyed by the run's name, as noise is, instead of by its seed."""
        return self.sampling in SECRET and self.spec.draws == "own"

    @property
    def costs_expected(self) -> bool:
        """Whether bytes and operations are recorded as expected values.

        Under central placement a client's message is encoded before it is clipped and noised, so the length of its
        code would tell more than its release. Secret cohorts are central.
        """
        return self.unit == "client" and self.placement == "central"

    @property
    def delta(self) -> float:
        """The delta of all epsilons."""
        return self.spec.delta

    @property
    def accountant(self) -> Literal["pld", "prv", "rdp"]:
        """Accountant of secret draws; without them the total is exact."""
        return self.spec.accountant

    @property
    def server_clip(self) -> float | None:
        """Bound on the joint norm of the average, applied after the noise."""
        return self.spec.server_clip

    @property
    def strict(self) -> bool:
        """Whether statistics of the clients' data are private."""
        return self.spec.strict

    @property
    def factor(self) -> float:
        """Sensitivity of a clipped message over its clip norm."""
        return 2.0 if self.adjacency == "replace" else 1.0

    def adaptive(self, expected: float) -> AdaptiveClip:
        """Return the rule of adaptive clipping in a cohort of an expected size; its count takes some budget."""
        return AdaptiveClip.for_cohort(expected, self.noise_multiplier, replaced=self.count_replaced)

    @property
    def count_replaced(self) -> bool:
        """Whether a unit moves the centered count of short messages by 1: a message of zeros is a short one.

        Who has no effect in a secret Poisson cohort is counted as little as who is not drawn.
        """
        return self.adjacency == "replace" or self.sampling != "poisson"

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

    def deviation(self, noise_multiplier: Any) -> Any:
        """Return the standard deviation of noise for a fixed clip norm; a number, or one per client."""
        return noise_multiplier * self.factor * self.bound()

    @property
    def noise(self) -> float | NDArray[np.float64]:
        """Noise multiplier of all clients, or of each, ``(total,)``."""
        return np.array(self.multipliers) if self.multipliers else self.noise_multiplier

    def book(self, ledger: Ledger, draw: tuple[str | int, ...], multiplier: float = 1.0) -> None:
        """Book a release of the cohort, with a noise multiplier relative to the mechanism's."""
        if self.sampling in SECRET and self.rate < 1:
            sampling: Any = self.sampling
            ledger.book(draw, multiplier, sampling=sampling, rate=self.rate)
        else:
            ledger.book(draw, multiplier)
