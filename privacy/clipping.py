"""Clipping: bound the contribution of each row to a release.

Rows are ``(..., P)``: every leading index (run, client, record) is one row, and a message may have several
parts of different lengths. Rows that are not finite, or longer than `LONGEST`, are replaced by zeros, so that the
bound holds for them too.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from privacy.gaussian import Normals, check_multiplier, gaussian_noise

#: Rows of a larger norm count as not finite: in float32 the factor that shortens them would lose its digits.
LONGEST = 1e30

#: Standard deviation of the noise on an adaptive clip's share of rows (Andrew et al. 2021: cohort size / 20).
SHARE_STD = 0.05
#: Noise of an update beside the count of an adaptive clip, at most, over its noise without.
MOST_NOISE = 1.1
#: Range of adaptive clip norms: of shorter and longer rows `clip` would lose digits.
NORMS = (1e-7, 1e15)


class Clipped(NamedTuple):
    """Result of clipping.

    Attributes
    ----------
    parts : tuple of Tensor
        The clipped parts, shapes as given.
    norms : Tensor
        Norms before clipping, float64: ``(...)`` for a joint clip, ``(..., parts)`` for a clip of each part.
    exceeded : Tensor
        Whether a row, or a part of it, exceeded its bound or was not finite, ``(...)`` boolean. Like the norms it
        depends on private data and must not be released.
    """

    parts: tuple[Tensor, ...]
    norms: Tensor
    exceeded: Tensor


def clip(parts: Sequence[Tensor], norm: float | Tensor, order: float = 2) -> Clipped:
    """Scale each row so that the joint norm over all parts of the message is at most ``norm``.

    Parameters
    ----------
    parts : sequence of Tensor
        One message: each ``(..., P_j)`` with the same leading axes.
    norm : float or Tensor
        Clip norm; a tensor broadcasts against the leading axes. With infinity the same tensors are returned.
    order : float
        1 for the L1 norm; default: the L2 norm.

    Returns
    -------
    Clipped
        Norms after clipping are at most ``norm * (1 + 1e-6)``, in float32 for clip norms of at least 1e-7. Below,
        the factor of a row of norm ``LONGEST`` is less than the smallest normal number, and rounds more coarsely.

    Raises
    ------
    ValueError
        If there are no parts, their leading axes differ, or ``norm`` is not positive.
    """
    norms = _joint_norms(parts, order)
    bound = _bound(norm, norms)
    finite = norms <= LONGEST
    exceeded = ~(norms <= bound) | ~finite
    if not isinstance(norm, Tensor) and math.isinf(norm):
        return Clipped(tuple(parts), norms, torch.zeros_like(exceeded))
    factor = torch.where(exceeded, torch.where(finite, bound / norms, 0.0), 1.0)
    scaled = tuple(part * factor.to(part.dtype).unsqueeze(-1) for part in parts)
    if not finite.is_meta and not bool(finite.all()):  # tensors without values have none that are not
        # A second pass, only in this rare case: 0 * nan is nan, so the rows must be overwritten.
        scaled = tuple(torch.where(finite.unsqueeze(-1), part, 0.0) for part in scaled)
    return Clipped(scaled, norms, exceeded)


def clip_each(parts: Sequence[Tensor], norms: Sequence[float | Tensor]) -> Clipped:
    """Clip every part of a message to its own norm, so that the message has the bound `joint_norm`.

    Parameters
    ----------
    parts : sequence of Tensor
        One message: each ``(..., P_j)`` with the same leading axes.
    norms : sequence of float or Tensor
        One clip norm per part.

    Returns
    -------
    Clipped
        ``norms`` is ``(..., parts)``; ``exceeded`` is true if any part exceeded its norm.

    Raises
    ------
    ValueError
        If the numbers of parts and norms differ, leading axes differ, or a norm is not positive.
    """
    if len(parts) != len(norms):
        raise ValueError(f"need one clip norm per part, got {len(norms)} for {len(parts)} parts")
    _check_parts(parts)
    clipped = [clip((part,), norm) for part, norm in zip(parts, norms, strict=True)]
    return Clipped(
        tuple(item.parts[0] for item in clipped),
        torch.stack([item.norms for item in clipped], dim=-1),
        torch.stack([item.exceeded for item in clipped]).any(dim=0),
    )


def clipped_sum(parts: Sequence[Tensor], norm: float, present: Tensor) -> tuple[Tensor, ...]:
    """Clip each row to a joint norm and sum the rows, as DP-SGD does with per-sample gradients.

    Norms are computed in the dtype of the rows. No branch depends on values, so the function can be vectorized.

    Parameters
    ----------
    parts : sequence of Tensor
        The rows, ``(B, P_j)`` each, with the same B.
    norm : float
        Bound on the joint L2 norm of a row over all parts.
    present : Tensor
        Boolean ``(B,)``: the rows that count. Rows that are not finite, or longer than `LONGEST`, count as zeros.

    Returns
    -------
    tuple of Tensor
        The sums, ``(P_j,)`` each.
    """
    norms = torch.stack([torch.linalg.vector_norm(part, dim=-1) for part in parts])
    factor = clip_factors(torch.linalg.vector_norm(norms, dim=0), norm) * present
    return tuple(factor @ part.nan_to_num(0.0, 0.0, 0.0) for part in parts)  # 0 * nan is nan


def clip_factors(norms: Tensor, norm: float) -> Tensor:
    """Return the factors of rows by their norms; 0 for rows that are not finite, or longer than `LONGEST`."""
    return torch.where(norms <= LONGEST, (norm / norms.clamp(min=1e-30)).clamp(max=1.0), 0.0)


def scale_to_norm(parts: Sequence[Tensor], norm: float) -> list[Tensor]:
    """Scale each row down to a joint L2 norm: gradient clipping without a guarantee for privacy.

    Cheaper than `clip`: norms are computed in the dtype of the rows, so rounding may leave a row slightly too long,
    and rows that are not finite stay so.

    Parameters
    ----------
    parts : sequence of Tensor
        Rows ``(..., P_j)`` with the same leading axes.
    norm : float
        Bound on the joint norm.

    Returns
    -------
    list of Tensor
        The parts; the same tensors if no row is too long.
    """
    each = [torch.linalg.vector_norm(part, dim=-1, keepdim=True) for part in parts]
    norms = each[0] if len(each) == 1 else torch.cat(each, -1).norm(dim=-1, keepdim=True)
    if not norms.is_meta and not bool((norms > norm).any()):
        return list(parts)  # the usual case, in which nothing is copied
    factor = (norm / norms).clamp(max=1.0)
    return [factor * part for part in parts]


def joint_norm(norms: Sequence[float]) -> float:
    """Return the L2 bound of a message with parts that are clipped separately: ``sqrt(sum_j C_j^2)``."""
    return math.hypot(*norms)


@dataclass(frozen=True)
class AdaptiveClip:
    """A clip norm that follows a quantile of the norms, learned from a noisy count.

    Andrew, Thakkar, McMahan and Ramaswamy, *Differentially private learning with adaptive clipping*, NeurIPS
    2021, Algorithm 1: ``C <- C exp(-lr (b - quantile))`` where ``b`` is the noisy share of rows with norm at
    most C.

    The count is released with its own noise; `update_multiplier` gives the rest of the budget to the update, so
    that both releases together have the noise multiplier of the round.

    Deviations: the denominator is the *expected* cohort size, as in the central mean, so that the count's
    sensitivity does not depend on the sample. The noisy share is clamped to [0, 1].

    Attributes
    ----------
    quantile : float
        Target share of unclipped rows, in [0, 1].
    lr : float
        Learning rate of the geometric update.
    count_std : float
        Standard deviation of the noise on the count; the paper proposes expected cohort size / 20.
    """

    quantile: float = 0.5
    lr: float = 0.2
    count_std: float = 1.0

    def __post_init__(self) -> None:
        if not 0 <= self.quantile <= 1:
            raise ValueError(f"the quantile must lie in [0, 1], got {self.quantile}")
        if not (self.lr > 0 and math.isfinite(self.lr)):
            raise ValueError(f"the learning rate of the clip norm must be positive and finite, got {self.lr}")
        if not (self.count_std >= 0 and math.isfinite(self.count_std)):
            raise ValueError(f"count_std must be finite and not negative, got {self.count_std}")

    def count_multiplier(self, *, replaced: bool = False) -> float:
        """Return the noise multiplier of the count.

        Counting ``b_i - 1/2`` gives it sensitivity 1/2 when a row is added or removed, 1 when one is
        replaced.
        """
        return self.count_std / (1.0 if replaced else 0.5)

    def update_multiplier(self, noise_multiplier: float, *, replaced: bool = False) -> float:
        """Return the noise multiplier left for the update: ``(z^-2 - z_count^-2)^(-1/2)`` (Theorem 1).

        Raises
        ------
        ValueError
            If the count alone already spends more than ``noise_multiplier`` allows.
        """
        check_multiplier(noise_multiplier)
        if noise_multiplier == 0:
            return 0.0
        count = self.count_multiplier(replaced=replaced)
        if count <= noise_multiplier:
            raise ValueError(
                f"the count's noise multiplier {count} must exceed the round's, {noise_multiplier}: "
                "raise count_std"
            )
        return noise_multiplier / math.sqrt(1 - (noise_multiplier / count) ** 2)

    @classmethod
    def for_cohort(cls, expected: float, noise_multiplier: float, *, replaced: bool = False) -> AdaptiveClip:
        """Return the rule with a noisy share as exact as in the paper, if the budget allows it.

        The noise of the share has a standard deviation of `SHARE_STD`, or more in cohorts so small that the update
        would then have more than `MOST_NOISE` times the noise of the round. Runs without noise have none here.
        """
        unit = 1.0 if replaced else 0.5
        least = noise_multiplier / math.sqrt(1 - MOST_NOISE**-2)  # of the count
        return cls(count_std=max(SHARE_STD * expected, least * unit) if noise_multiplier else 0.0)

    def share(
        self,
        norm: Tensor,
        norms: Tensor,
        expected: float,
        generators: Sequence[Normals],
        present: Tensor | None = None,
    ) -> Tensor:
        """Return the noisy share of rows with at most a norm, which is released.

        Parameters
        ----------
        norm : Tensor
            Current clip norm, ``(...)``: one per stacked run, or a scalar.
        norms : Tensor
            Norms of the cohort's messages before clipping, ``(..., C)``; norms that are not finite count as
            above.
        expected : float
            Expected cohort size (public).
        generators : sequence of numpy.random.Generator, or as for `gaussian_noise`
            One per element of ``norm``.
        present : Tensor, optional
            ``(..., C)``, 0 for padding rows of a Poisson cohort; default: all present.

        Raises
        ------
        ValueError
            If ``expected`` is not positive or the number of generators is wrong.
        """
        if not expected > 0:
            raise ValueError(f"the expected cohort size must be positive, got {expected}")
        centered = (norms <= norm.unsqueeze(-1)).to(norm.dtype) - 0.5
        if present is not None:
            centered = centered * present.to(norm.dtype)
        noise = gaussian_noise(norm.unsqueeze(-1), self.count_std, generators).squeeze(-1)
        return 0.5 + (centered.sum(dim=-1) + noise) / expected

    def update(self, norm: Tensor, share: Tensor) -> Tensor:
        """Return the next clip norm, by a noisy share of the rows with at most the current one.

        A share lies between 0 and 1, so a noisy one is taken as no less and no more: this costs no privacy
        and bounds each step. The norm stays in `NORMS`.
        """
        moved = norm * torch.exp(-self.lr * (share.clamp(0, 1) - self.quantile))
        return moved.clamp(*NORMS)


def _joint_norms(parts: Sequence[Tensor], order: float = 2) -> Tensor:
    """Return the joint norm of each row, in float64, as rounded float32 sums could break the bound."""
    _check_parts(parts)
    norms = [torch.linalg.vector_norm(part, order, dim=-1, dtype=torch.float64) for part in parts]
    joint: Tensor = torch.linalg.vector_norm(torch.stack(norms), order, dim=0)
    return joint


def _check_parts(parts: Sequence[Tensor]) -> None:
    leading = {tuple(part.shape[:-1]) for part in parts}
    if len(leading) != 1:
        raise ValueError(f"the parts of a message must share their leading axes, got {sorted(leading)}")


def _bound(norm: float | Tensor, norms: Tensor) -> Tensor:
    bound = torch.as_tensor(norm, dtype=norms.dtype)  # checked where it is: norms may have no values
    if not bool((bound > 0).all()):
        raise ValueError(f"the clip norm must be positive, got {norm}")
    return bound.to(norms.device)
