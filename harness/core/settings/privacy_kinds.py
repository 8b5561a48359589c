"""Settings of privacy: one class for each unit and placement."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import (
    AfterValidator,
    Field,
    ValidationError,
    ValidatorFunctionWrapHandler,
    field_validator,
    model_validator,
)

from compression.secure_sum import Protocol
from harness.core.errors import UserError, unknown
from harness.core.settings.section import Section, plainly
from privacy.banded import Factorization
from privacy.discrete import MOST_BITS
from privacy.own_mechanism import MECHANISMS, Noise

Clip = float | tuple[float, ...] | Literal["adaptive"]
FixedClip = float | tuple[float, ...]
Adjacency = Literal["replace", "add-remove", "zero-out"]
Unit = Literal["client", "record", "user"]
Placement = Literal["local", "central", "distributed"]
Sampling = Literal["poisson", "without-replacement", "fixed", "full"]
PublicSampling = Literal["fixed", "full"]
USER_RECORDS = 8

BUILT_IN_MECHANISMS = ("independent", "banded")
BUDGETS = ("epsilon", "epsilon_release", "epsilon_nominal", "noise_multiplier")
LARGEST_BUDGET = 1e9  # epsilon or noise multiplier; the smallest is its inverse
SMALLEST_DELTA = 1e-30
LARGEST_CLIP = 1e15  # its square and its noise still fit into float32
#: Sampling of cohorts that each adjacency is accounted for, under central placement.
COHORTS: dict[Adjacency, tuple[Sampling, ...]] = {
    "replace": ("without-replacement", "fixed", "full"),
    "zero-out": ("poisson", "fixed", "full"),
    "add-remove": ("poisson",),
}
FOR_BANDED = "mechanism: banded, with placement central"


def _bounded(budget: float) -> float:
    if budget > LARGEST_BUDGET or 0 < budget < 1 / LARGEST_BUDGET:
        raise ValueError(f"must be between {1 / LARGEST_BUDGET:g} and {LARGEST_BUDGET:g}")
    return budget


def _not_tiny(delta: float) -> float:
    if delta < SMALLEST_DELTA:
        raise ValueError(f"must be at least {SMALLEST_DELTA:g}")
    return delta


Budget = Annotated[float, Field(gt=0), AfterValidator(_bounded)]


class PrivacySettings(Section):
    """Settings of any kind of privacy. Give exactly one budget.

    Attributes
    ----------
    unit : {"client", "record", "user"}
        Unit of protection: all of a client's data, one record, or all training records of one user inside a client.
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
    noise_multiplier : float or None
        Standard deviation of the noise over the sensitivity; 0 clips without noise.
    delta : float
        The delta of all epsilons.
    sampling : {"poisson", "without-replacement", "fixed", "full"} or None
        Sampling of the cohort. The first two are secret and need central placement; fixed is a public cohort.
        Default: full without a cohort setting, else fixed if local, poisson if central.
    adjacency : {"replace", "add-remove", "zero-out"} or None
        Relation of neighboring data sets: a unit is replaced, present or absent, or replaced by one without any
        contribution while counts of samples, or clients, stay. Default for unit client: with Poisson sampling
        zero-out, or add-remove if the cohort has a public rate; else replace; for unit record: zero-out.
    mechanism : str
        "independent" (default): every release has Gaussian noise of its own. Others are for some kinds only.
    accountant : {"pld", "prv", "rdp"}
        Accountant of secret draws; other epsilons are exact.
    strict : bool
        Whether statistics of the clients' data are private: sample counts and the constants of standardization.
        Algorithms that rely on them are refused, and averages have equal weights by default.
    draws : {"own", "shared", "paired"}
        Whether secret cohorts and secret batches are the run's own (default), or those of all runs of its seed.
        Shared ones make sweeps faster and comparisons paired, but the runs of a seed are then one joint draw, which
        does not compose as independent releases (`privacy.joint`). Public draws are always those of the seed.
        paired: shared, and the noise too is that of the seed, scaled to each run. Searches compare settings and
        budgets by such runs. Each has its epsilon alone, and two of them together have none.
    secure_rng : bool
        Whether noise, secret cohorts and secret batches come from the system's entropy instead of the run's
        seed. Such a run cannot be repeated.
    """

    shape: ClassVar[str] = "named fields such as {placement: local, epsilon: 8}"
    kind: ClassVar[tuple[str, str]]  # the setting that tells the kind, and its value
    limits: ClassVar[str] = ""  # why some of its settings are narrower than those of other kinds

    unit: Unit
    placement: Placement | None
    clip: Clip = 10.0
    epsilon: Budget | None = None
    epsilon_release: Budget | None = None
    noise_multiplier: Annotated[float, Field(ge=0), AfterValidator(_bounded)] | None = None
    delta: Annotated[float, Field(gt=0, lt=1), AfterValidator(_not_tiny)] = 1e-5
    sampling: Sampling | None = None
    adjacency: Adjacency | None = None
    mechanism: str = "independent"
    accountant: Literal["pld", "prv", "rdp"] = "pld"
    strict: bool = False
    draws: Literal["own", "shared", "paired"] = "own"
    secure_rng: bool = False

    @field_validator("placement", "clip", "sampling", "adjacency", "mechanism", mode="wrap")
    @classmethod
    def _with_reasons(cls, given: Any, read: ValidatorFunctionWrapHandler) -> Any:
        try:
            return read(given)
        except ValidationError as error:
            reasons = plainly(error.errors()[0]), cls.limits
            raise ValueError("; ".join(filter(None, reasons))) from None

    @field_validator("clip")
    @classmethod
    def _positive(cls, clip: Clip) -> Clip:
        norms = clip if isinstance(clip, tuple) else (clip,)
        if not norms or any(not isinstance(norm, str) and not norm > 0 for norm in norms):
            raise ValueError("clip norms must be above 0")
        if any(LARGEST_CLIP < norm < math.inf for norm in norms if norm != "adaptive"):
            raise ValueError(f"at most {LARGEST_CLIP:g}, above which its noise does not fit into float32")
        return clip

    @model_validator(mode="after")
    def _one_budget(self) -> Self:
        named = [name for name in BUDGETS if getattr(self, name, None) is not None]
        if len(named) != 1:
            raise UserError(
                f"privacy: give exactly one of {', '.join(BUDGETS)}; given {' and '.join(named) or 'none'}"
            )
        norms = self.clip if isinstance(self.clip, tuple) else (self.clip,)
        if self.noise_multiplier != 0 and math.inf in norms:
            raise UserError("privacy.clip: an infinite clip norm needs noise_multiplier 0")
        return self

    @model_validator(mode="after")
    def _draws_are_secret(self) -> Self:
        if self.draws != "own" and (self.strict or self.secure_rng):
            raise UserError(
                f"privacy.draws: {self.draws} draws follow from the seed, which the run file names: strict and "
                f"secure_rng need draws that nobody else knows, given {self.draws}; use own, or remove strict and "
                "secure_rng"
            )
        return self

    @property
    def budget(self) -> tuple[str, float]:
        """The budget that is given, by its name."""
        budgets = ((name, getattr(self, name, None)) for name in BUDGETS)
        return next((name, value) for name, value in budgets if value is not None)


class ClientPrivacy(PrivacySettings):
    """Privacy of all data of a client, by noise in its messages.

    Attributes
    ----------
    server_clip : float or None
        Bound on the norm of averaged messages, applied by the server.
    mechanism : str
        Except with distributed placement also a mechanism of users (`privacy.own_mechanism`), which bounds messages
        in their L1 norm and takes one clip norm.
    """

    unit: Literal["client"] = "client"
    server_clip: float | None = Field(default=None, gt=0)

    @model_validator(mode="after")
    def _registered(self) -> Self:
        if self.mechanism == "banded" and self.placement == "local":
            raise UserError("privacy.mechanism: banded is for placement central, given placement local")
        if self.mechanism in BUILT_IN_MECHANISMS:
            return self
        noise_of(self.mechanism)
        nominal = self.budget[0] == "epsilon_nominal"
        if isinstance(self.clip, tuple | str) or nominal or self.accountant != "pld":
            raise UserError(
                f"privacy.mechanism: {self.mechanism} needs one clip norm, of the L1 norm of a message, and "
                "accountant pld; epsilon_nominal is of Gaussian noise"
            )
        return self


class LocalPrivacy(ClientPrivacy):
    """Noise that each client adds to its own messages.

    Attributes
    ----------
    epsilon_nominal : float or None
        Input of the classic formula ``sqrt(2 ln(1.25 / delta)) clip / epsilon``.
    """

    kind: ClassVar = ("placement", "local")
    limits: ClassVar = (
        "local placement protects against replacing a client's data; it is not amplified by sampling, because the "
        "server knows the cohort, and adaptive clipping needs a count at the server"
    )

    placement: Literal["local"]
    clip: FixedClip = 10.0
    sampling: PublicSampling | None = None
    adjacency: Literal["replace"] | None = None
    epsilon_nominal: Budget | None = None


class CentralPrivacy(ClientPrivacy):
    """Noise that a trusted server adds to averages.

    Attributes
    ----------
    epsilon_nominal : float or None
        As of `LocalPrivacy`.
    mechanism : str
        Also "banded": the noise is correlated between rounds, so that it cancels in what the server adds up
        (DP-FTRL, `privacy.banded`); for balanced cohorts, in which nobody takes part twice within ``bands`` rounds.
    bands : int or None
        With banded noise, over how many rounds it is correlated; default: as many as lie between two rounds of a
        client.
    factorization : {"optimal", "toeplitz"}
        How banded noise is correlated: with the least error of sums, found by a search, or by a formula, for runs
        of any length.
    noise_cohort : int or None
        Add to averages the noise of a cohort of so many clients, as in a federation that is larger in proportion.
        Such an epsilon is extrapolated: it is no guarantee for the clients that are simulated.
    """

    kind: ClassVar = ("placement", "central")

    placement: Literal["central"]
    epsilon_nominal: Budget | None = None
    bands: int | None = Field(default=None, ge=2, description=FOR_BANDED)
    factorization: Factorization = Field(default="optimal", description=FOR_BANDED)
    noise_cohort: int | None = Field(default=None, ge=1)

    @model_validator(mode="after")
    def _fits(self) -> Self:
        if self.noise_cohort is not None and self.clip == "adaptive":
            raise UserError(
                "privacy.noise_cohort: is for fixed clip norms, given clip adaptive; give a number"
            )
        if self.mechanism != "banded" and (self.bands is not None or self.factorization != "optimal"):
            raise UserError("privacy: bands and factorization require mechanism: banded")
        if self.mechanism == "banded" and self.sampling not in (None, "fixed"):
            raise UserError(
                "privacy.sampling: banded noise needs balanced cohorts, which are fixed, given "
                f"{self.sampling}; give cohort.kind balanced"
            )
        if self.adjacency and self.sampling and self.sampling not in COHORTS[self.adjacency]:
            fit = " or ".join(name for name, cohorts in COHORTS.items() if self.sampling in cohorts)
            raise UserError(
                f"privacy.adjacency: {self.sampling} cohorts need adjacency {fit}, given {self.adjacency}; "
                f"{self.adjacency} is for sampling {' or '.join(COHORTS[self.adjacency])}"
            )
        return self


class DistributedPrivacy(ClientPrivacy):
    """Noise that clients add together, to integers of which the server learns only the sum.

    Attributes
    ----------
    bits : int or None
        Bits of a coordinate on the wire, 2 to 20. Default: the fewest with at most 1 % more noise than without
        rounding.
    dropouts : float or None
        Share of a cohort, in [0, 1), whose noise may be missing because they dropped out or are dishonest, rounded
        down to whole clients; the others add so much more. Default: 0.
    aggregation : {"secagg", "secagg+", "ideal"} or None
        The protocol of the sum, for its bytes (`compression.secure_sum`); ideal counts the integers only. Default:
        secagg.
    """

    kind: ClassVar = ("placement", "distributed")
    limits: ClassVar = (
        "distributed placement is not amplified by sampling, because the server knows who takes part in a sum, and "
        "its integers need independent noise and a fixed clip norm"
    )

    placement: Literal["distributed"]
    clip: FixedClip = 10.0
    sampling: PublicSampling | None = None
    adjacency: Literal["replace", "zero-out"] | None = None
    mechanism: Literal["independent"] = "independent"
    bits: int | None = Field(default=None, ge=2, le=MOST_BITS)
    dropouts: float | None = Field(default=None, ge=0, lt=1)
    aggregation: Protocol | None = None

    @field_validator("clip")
    @classmethod
    def _finite(cls, clip: FixedClip) -> FixedClip:
        if math.inf in (clip if isinstance(clip, tuple) else (clip,)):
            raise ValueError("placement distributed needs a finite clip norm, the unit of its integers")
        return clip


class GradientPrivacy(PrivacySettings):
    """Privacy by noise that clients add to every local gradient.

    Attributes
    ----------
    record_rate : float or None
        With adjacency add-remove: public probability that a record is in a batch. The divisor of a gradient is then
        the algorithm's ``batch_size``, whatever the client's number of samples.
    noise : {"shared", "per_client"}
        Whether all clients have the noise that the most exposed one needs, or each its own.
    """

    limits: ClassVar = (
        "units record and user protect every local gradient, with one clip norm, independent noise and Poisson "
        "batches; omit placement, sampling and mechanism, and give clip as a number"
    )

    placement: Literal["local"] | None = None
    clip: float = 10.0
    sampling: Literal["poisson", "full"] | None = None
    mechanism: Literal["independent"] = "independent"
    record_rate: float | None = Field(default=None, gt=0, le=1)
    noise: Literal["shared", "per_client"] = "shared"

    @model_validator(mode="after")
    def _complete(self) -> Self:
        if (self.adjacency == "add-remove") != (self.record_rate is not None):
            raise UserError(
                "privacy.record_rate: adjacency add-remove of records needs a public rate at which batches are "
                "drawn, as the clients' numbers of samples are private; give both or neither"
            )
        if self.noise == "per_client" and self.epsilon is None:
            raise UserError(
                "privacy.noise: per_client chooses each client's noise by a budget; give privacy.epsilon"
            )
        return self


class RecordPrivacy(GradientPrivacy):
    """Privacy of one record.

    Attributes
    ----------
    ghost : bool
        Whether gradients of samples are clipped without being computed one by one, which is faster for larger
        networks and rounds differently.
    """

    kind: ClassVar = ("unit", "record")

    unit: Literal["record"]
    ghost: bool = False


class UserPrivacy(GradientPrivacy):
    """Privacy of all training records of one user inside a client.

    Users are drawn as records are, ``batch_size`` of them on average, and contribute the mean gradient of their
    records.

    Attributes
    ----------
    user : str
        The column that names the user of a record. Every user is at one client.
    user_records : int or None
        How many of a user's training records are used, at most; default 8.
    """

    kind: ClassVar = ("unit", "user")

    unit: Literal["user"]
    user: str
    user_records: int | None = Field(default=None, ge=1)

    @model_validator(mode="before")
    @classmethod
    def _named(cls, given: object) -> object:
        """Refuse users without a column that names them."""
        if isinstance(given, Mapping) and given.get("user") is None:
            raise UserError(
                "privacy.user: missing; unit user protects all records of a user and needs the column that names "
                "users; name it in the data, as in csv:FILE?label=COLUMN&user=COLUMN, or as data.user"
            )
        return given


def noise_of(mechanism: str) -> Noise:
    """Return the noise of a user's mechanism.

    Raises
    ------
    UserError
        If it is not registered.
    """
    if mechanism not in MECHANISMS:
        if mechanism == "gaussian":
            raise UserError(
                "privacy.mechanism: gaussian: the noise of both independent, the default, and banded is Gaussian"
            )
        raise unknown("mechanism", mechanism, [*BUILT_IN_MECHANISMS, *MECHANISMS])
    return MECHANISMS[mechanism]
