"""Settings of compression."""

from __future__ import annotations

from typing import Any, ClassVar, Literal

from pydantic import Field, ValidationError, ValidatorFunctionWrapHandler, field_validator, model_validator

from compression.codec import CODECS
from compression.select import ratio_at
from harness.core.errors import Incompatible, UserError, unknown
from harness.core.settings.section import Section

Share = float | tuple[float, ...]  # for all clients, or for each
Ratio = Share | tuple[tuple[int, Share], ...]


def _each(ratio: Ratio) -> bool:
    """Whether a ratio has one value per client."""
    return isinstance(ratio, tuple) and not isinstance(ratio[0], tuple)


def steps_of(ratio: Ratio) -> list[tuple[int, Share]]:
    """Return the steps of a schedule; empty for a constant ratio."""
    return [step for step in ratio if isinstance(step, tuple)] if isinstance(ratio, tuple) else []


class Compression(Section):
    """Settings of compression of messages and models.

    Attributes
    ----------
    alpha : float, list of floats, or list of [round, ratio]
        Share of the model's hidden units (neurons, filters) to remove, in [0, 1): one for all clients, one per
        client (nested models), or a schedule of the former (of both in vertical problems). Removed units stay
        removed.
    beta : float, list of floats, or list of [round, ratio]
        Share of a message's entries to drop, in [0, 1): one for all clients, one per client, or a schedule of
        either.
    select : {"top_k", "random_k", "threshold"}
        Which entries to keep: the largest, a random choice from the public seed, or those of magnitude at least
        ``threshold`` (with beta 0).
    threshold : float or None
        Smallest magnitude, above 0.
    rank : int or None
        Send the matrices of a model as two factors of this many columns each (PowerSGD: Vogels et al. 2019), at
        least 1. Clients whose messages are averaged find them together, others each by itself; neighbors in gossip
        find those of the differences between them (PowerGossip: Vogels et al. 2020). Biases, and matrices that
        factors would not shorten, travel whole. Not with beta, select or downlink.
    codec : str
        Number format on the wire: float64, float32, float16, bfloat16, q1 .. q8 (stochastic), sign.
    error_feedback : bool
        Whether to add the residual of a message to the client's next one; not with random_k, whose mask does not
        depend on magnitudes.
    shift : float or None
        Code the difference between a message and a vector that client and server remember, which moves along what
        was decoded by this step, in (0, 1]. 1 is EF21, for codes that drop or round. A code by chance (q1 .. q8)
        may need smaller steps, at most 1 / (1 + its variance): DIANA, and with local privacy SoteriaFL. Differences
        fade as a run converges, and with them what the code loses. Not with error feedback or random_k.
    downlink : bool
        Whether to compress the server's messages like the clients'; not with error feedback, since the residual
        of a model must not be added to the next one.
    """

    shape: ClassVar[str] = "named fields such as {codec: q8}"

    alpha: Ratio = 0.0
    beta: Ratio = 0.0
    select: Literal["top_k", "random_k", "threshold"] = "top_k"
    threshold: float | None = Field(default=None, gt=0)
    rank: int | None = Field(default=None, ge=1)
    codec: str = "float32"
    error_feedback: bool = False
    shift: float | None = Field(default=None, gt=0, le=1)
    downlink: bool = False

    @field_validator("codec")
    @classmethod
    def _codec(cls, name: str) -> str:
        if name not in CODECS:
            raise unknown("codec", name, CODECS)
        return name

    @field_validator("alpha", "beta", mode="wrap")
    @classmethod
    def _ratios(cls, given: Any, read: ValidatorFunctionWrapHandler) -> Any:
        try:
            ratio = read(given)
        except ValidationError:
            raise ValueError(
                "a number is needed, or one for each client, or a schedule such as [[0, 0.2], [20, 0.5]]"
            ) from None
        steps = ratio if isinstance(ratio, tuple) else (ratio,)
        if not steps or any(isinstance(step, tuple) and step[0] < 0 for step in steps):
            raise UserError(
                f"compression: a schedule needs at least one step, from round 0 on; given {ratio}"
            )
        ratio_at(ratio, 0)
        return ratio

    @model_validator(mode="after")
    def _check(self) -> Compression:
        if (self.select == "threshold") != (self.threshold is not None) or (
            self.threshold and self.beta != 0.0
        ):
            raise UserError(
                "compression: select threshold needs a threshold and beta 0; others need no threshold"
            )
        if self.error_feedback and (self.select == "random_k" or self.downlink):
            raise UserError("compression: error_feedback supports neither select random_k nor downlink")
        if self.shift is not None and (self.select == "random_k" or self.error_feedback):
            raise UserError("compression: shift supports neither select random_k nor error_feedback")
        if self.rank is not None and (self.beta != 0.0 or self.select != "top_k"):
            raise UserError(
                "compression: rank supports neither beta nor select: a matrix without some of its entries is not "
                "of low rank any more; give one of them"
            )
        if self.rank is not None and self.downlink:
            raise UserError(
                "compression: rank supports no downlink: the server sends models, which, unlike changes, are not "
                "close to a low rank"
            )
        if self.downlink and (_each(self.beta) or any(_each(ratio) for _, ratio in steps_of(self.beta))):
            raise UserError("compression: downlink needs one beta for all clients")
        return self

    def check_clients(self, total: int, *, hidden: bool) -> None:
        """Refuse ratios per client that are not one for each, or that tell a hidden number of clients.

        Raises
        ------
        Incompatible
            If there are such.
        """
        for name, ratio in (("alpha", self.alpha), ("beta", self.beta)):
            shares: list[Any] = [share for _, share in steps_of(ratio)] or [ratio]
            for share in shares:
                if isinstance(share, tuple) and hidden:
                    raise Incompatible(
                        f"compression.{name}: a ratio for each client tells how many there are, which cohort.rate "
                        "hides; give one for all"
                    )
                if isinstance(share, tuple) and len(share) != total:
                    raise Incompatible(
                        f"compression.{name}: {len(share)} ratios for {total} clients; give one each"
                    )

    @property
    def sparsifies(self) -> bool:
        """Whether a message is reduced to some of its entries, or to factors of its matrices."""
        return self.beta != 0.0 or self.select == "threshold" or self.rank is not None

    @property
    def remembers(self) -> bool:
        """Whether clients keep a residual or a shift for each of their messages."""
        return self.error_feedback or self.shift is not None

    @property
    def joins(self) -> bool:
        """Whether a message's code needs the whole cohort: what clients keep, or factors that they share."""
        return self.remembers or self.rank is not None


PLAIN = Compression()
