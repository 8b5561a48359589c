"""Diagnostics of a round's uplink: norms before clipping, share of clipped messages, noise-to-signal ratio.

They depend on private data and are not released.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

RELEASED = ("clip_norm", "noise_std", "bits")  # values that depend on settings and on releases alone
QUANTILES = (0.1, 0.5, 0.9)


class Diagnostics:
    """Values of the first message that clients send in a round (`mean`, `gather` or `mix`).

    The stages record intermediate results, and `values` summarizes them for each stacked run. The channels of a
    cohort that is processed in chunks share one object and may record in any order. Padding rows do not count.
    """

    def __init__(self) -> None:
        self._slot: int | None = None
        self._messages: list[tuple[Tensor, ...]] = []
        self._noise: list[tuple[Tensor, ...]] = []
        self._average: tuple[Tensor, Tensor] | None = None
        self._fixed: dict[str, Tensor] = {}

    def covers(self, slot: int) -> bool:
        """Whether a message is the one described: the first for which this is called."""
        self._slot = slot if self._slot is None else self._slot
        return slot == self._slot

    def messages(
        self,
        norms: Tensor,
        present: Tensor,
        exceeded: Tensor | None = None,
        limits: float | Sequence[float] | Tensor | None = None,
    ) -> None:
        """Record the norms of messages.

        Parameters
        ----------
        norms : Tensor
            Norms before clipping, ``(..., C)``, or ``(..., C, parts)`` if each part has its own clip norm.
        present : Tensor
            Boolean ``(..., C)``: the messages that count.
        exceeded : Tensor, optional
            Boolean ``(..., C)``: whether the message was clipped.
        limits : float, sequence of float or Tensor, optional
            Clip norm: one, one per part, or one per stacked run ``(...)``.
        """
        if exceeded is None or limits is None:
            self._messages.append((norms, present))
            return
        limit = torch.as_tensor(limits, dtype=norms.dtype, device=norms.device)
        clipped = norms.minimum(limit.unsqueeze(-1) if isinstance(limits, Tensor) else limit)
        if isinstance(limits, Sequence):
            norms, clipped, limit = norms.norm(dim=-1), clipped.norm(dim=-1), limit.norm()
        self._messages.append((norms, present, exceeded, torch.where(norms.isfinite(), clipped, 0.0)))
        self._fixed["clip_norm"] = limit.expand(norms.shape[:-1])

    def noise(self, std: float | Tensor, sizes: Tensor, present: Tensor) -> None:
        """Record noise of standard deviation ``std (...)`` on ``sizes (..., C)`` coordinates of each message."""
        norms = self._deviation(std, sizes.sum(-1)).unsqueeze(-1) * sizes.sqrt()
        self._noise.append((norms, present.expand(norms.shape)))

    def noise_of_average(self, std: float | Tensor, sizes: Tensor, average: Tensor) -> None:
        """Record noise on ``sizes (...)`` coordinates of the average ``(..., n)``."""
        signal = torch.linalg.vector_norm(average, dim=-1, dtype=torch.float64)
        self._average = self._deviation(std, sizes) * sizes.sqrt(), signal

    def integers(self, bits: Tensor) -> None:
        """Record the bits of a coordinate of a sum, ``(...)``."""
        self._fixed["bits"] = bits.double()

    def _deviation(self, std: float | Tensor, like: Tensor) -> Tensor:
        deviation = torch.as_tensor(std, dtype=torch.float64, device=like.device).expand(like.shape)
        self._fixed["noise_std"] = deviation
        return deviation

    def values(self) -> dict[str, Tensor]:
        """Summarize the records.

        Returns
        -------
        dict[str, Tensor]
            Float64 of the shape of the leading axes, NaN for an empty cohort. Always: ``update_norm_mean`` and the
            quantiles ``update_norm_p10``, ``_p50`` and ``_p90`` of the joint norms before clipping (after decoding
            under central placement), without known terms, also of runs without privacy. With clipping:
            ``clipped_share``, the share of messages that were too long or not finite, and ``clip_norm``. With
            noise: ``noise_std``, the standard deviation on one coordinate, and ``noise_to_signal``, the expected
            norm of the noise, ``noise_std * sqrt(coordinates with noise)``, over the norm of the signal. Under
            local placement both norms are means over the cohort, and the signal is the clipped message; otherwise
            the signal is the average before the noise. Under distributed placement also ``bits``, of a coordinate
            on the wire.
        """
        if not self._messages:
            return {}
        norms, present, *clipping = _joined(self._messages)
        lead = norms.shape[:-1]
        values = {"update_norm_mean": _means(norms, present)}
        columns = zip(*(_quantiles(run) for run in _by_run(norms, present)), strict=True)
        for level, column in zip(QUANTILES, map(np.concatenate, columns), strict=True):
            values[f"update_norm_p{round(100 * level)}"] = column
        if clipping:
            values["clipped_share"] = _means(clipping[0].double(), present)
        if clipping and self._noise:
            values["noise_to_signal"] = _ratio(_means(*_joined(self._noise)), _means(clipping[1], present))
        if self._average is not None:
            noise, signal = (part.cpu().reshape(-1).numpy() for part in self._average)
            values["noise_to_signal"] = _ratio(noise, signal)
        found = {name: torch.from_numpy(value).view(lead) for name, value in values.items()}
        return found | {name: value.cpu().clone().view(lead) for name, value in self._fixed.items()}


def _joined(notes: Sequence[tuple[Tensor, ...]]) -> list[Tensor]:
    """Concatenate the records of the chunks of a cohort, column by column."""
    return [torch.cat(column, -1).cpu() for column in zip(*notes, strict=True)]


def _by_run(values: Tensor, present: Tensor) -> list[np.ndarray]:
    """Return the runs' values in ascending order, so that sums do not depend on the order of clients.

    One array ``(R, C)`` if everybody is present, else one ``(1, n)`` for each run.
    """
    rows, marks = (part.reshape(-1, part.shape[-1]) for part in (values.double(), present))
    if bool(marks.all()):
        return [np.sort(rows.numpy())]
    return [np.sort(norms[mask].numpy())[None] for norms, mask in zip(rows, marks, strict=True)]


def _means(values: Tensor, present: Tensor) -> np.ndarray:
    runs = _by_run(values, present)
    return np.concatenate([run.mean(-1) if run.size else np.full(len(run), np.nan) for run in runs])


def _quantiles(values: np.ndarray) -> np.ndarray:
    """Return the quantiles of each row, ``(QUANTILES, rows)``."""
    if not values.size:
        return np.full((len(QUANTILES), len(values)), np.nan)
    with np.errstate(invalid="ignore"):  # between two infinite norms
        return np.asarray(np.quantile(values, QUANTILES, axis=-1))


def _ratio(noise: np.ndarray, signal: np.ndarray) -> np.ndarray:
    with np.errstate(divide="ignore", invalid="ignore"):  # infinite for a zero signal
        ratio: np.ndarray = noise / signal
    return ratio
