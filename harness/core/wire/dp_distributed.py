"""Noise that clients add together, to integers of which the server learns only the sum."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import pad

from compression.secure_sum import SumBytes, sum_bytes
from harness.core import rng
from harness.core.errors import Incompatible
from harness.core.per_run import PerRun
from harness.core.settings.privacy_kinds import DistributedPrivacy
from harness.core.wire.dp_client import Mechanism
from privacy.discrete import Grid, discrete_gaussian, grid, padded_length, rotate, rotate_back, rounded


class DistributedMechanism(Mechanism):
    """The mechanism of `privacy.discrete`: messages become integers with noise, which are summed."""

    def grids(self, length: int) -> list[Grid]:
        """Return the grid of each run for messages of a length.

        Raises
        ------
        Incompatible
            If ``privacy.bits`` cannot hold a sum.
        """
        spec, padded = self._spec, padded_length(length)
        try:
            return [
                grid(z, self.privacy.factor, self._clients.n, padded, spec.bits, spec.dropouts or 0.0)
                for z in self._each(self.privacy.noise_multiplier)
            ]
        except ValueError as error:
            raise Incompatible(f"privacy.bits: {error}") from error

    @property
    def _spec(self) -> DistributedPrivacy:
        assert isinstance(self.privacy.spec, DistributedPrivacy)
        return self.privacy.spec

    def sizes(self, length: int) -> list[SumBytes]:
        """Return the bytes of one client for a message of a length, in each run."""
        protocol = self._spec.aggregation or "secagg"
        padded = padded_length(length)
        return [
            sum_bytes(round(self._clients.n), padded, grid_of_run.bits, protocol)
            for grid_of_run in self.grids(length)
        ]

    def integers(self, rows: Tensor, slot: int) -> Tensor:
        """Rotate and round clipped rows ``(..., C, n)``, and add noise to those of clients that take part.

        Returns
        -------
        Tensor
            ``(..., C, N)``, int64 from 0 to ``2^bits - 1``, N being the next power of two.
        """
        length, runs = rows.shape[-1], len(self._clients.noise_keys)
        turned = rotate(
            pad(rows.double().cpu(), (0, padded_length(length) - length)), self._signs(rows, slot)
        )
        streams = iter(self._streams("noise", slot, turned, "client"))
        present = self._clients.participation_mask.bool().cpu().reshape(runs, -1).tolist()
        flat = turned.reshape(runs, -1, turned.shape[-1]).numpy()
        codes = np.zeros(flat.shape, np.int64)
        for run, (grid_of_run, clip) in enumerate(
            zip(self.grids(length), self._each(self.privacy.bound()), strict=True)
        ):
            for member, takes_part in enumerate(present[run]):
                draw = next(streams).generator().random
                if takes_part:
                    whole = rounded(
                        flat[run, member] / (grid_of_run.step * clip), grid_of_run.longest, draw
                    ).astype(np.int64)
                    if grid_of_run.sigma > 0:
                        whole += discrete_gaussian(grid_of_run.sigma, draw(len(whole)))
                    codes[run, member] = whole % 2**grid_of_run.bits
        return torch.from_numpy(codes).view(turned.shape)

    def average(self, sums: Tensor, like: Tensor, slot: int) -> Tensor:
        """Turn sums of integers ``(..., N)`` into averages with the length, type and place of ``like (..., n)``."""
        length, runs = like.shape[-1], len(self._clients.noise_keys)
        flat, grids = sums.view(runs, -1), self.grids(length)
        size = torch.tensor([[2**grid_of_run.bits] for grid_of_run in grids])
        scale = [
            grid_of_run.step * clip
            for grid_of_run, clip in zip(grids, self._each(self.privacy.bound()), strict=True)
        ]
        centered = (flat + size // 2) % size - size // 2
        turned = (centered * torch.tensor(scale, dtype=torch.float64).unsqueeze(-1)).view(sums.shape)
        whole = rotate_back(turned, self._signs(like, slot).view(*sums.shape[:-1], -1))
        return (whole[..., :length] / self._clients.n).to(like)

    def bits(self, length: int) -> Tensor:
        """Return the bits of a coordinate, ``()``, or ``(R,)`` when stacked."""
        each = torch.tensor([grid_of_run.bits for grid_of_run in self.grids(length)])
        return each if self._clients.axes > 1 else each[0]

    def deviation_of_average(self, length: int) -> Tensor:
        """Return the standard deviation of the noise in an average, ``()``, or ``(R,)`` when stacked."""
        pairs = zip(self.grids(length), self._each(self.privacy.bound()), strict=True)
        each = torch.tensor(
            [grid_of_run.noise * clip / self._clients.n for grid_of_run, clip in pairs], dtype=torch.float64
        )
        return each if self._clients.axes > 1 else each[0]

    def _each(self, setting: Any) -> list[float]:
        """Return a setting of each run."""
        if isinstance(setting, PerRun):
            return list(setting.values)
        return [float(setting)] * len(self._clients.noise_keys)

    def _signs(self, rows: Tensor, slot: int) -> Tensor:
        """Return the public signs of the rotation of messages, ``(N,)``, or ``(R, 1, N)`` when stacked."""
        size, round = padded_length(rows.shape[-1]), self._clients.round
        streams = [rng.numpy_stream(seed, "rotation", round, slot) for seed in self._clients.seeds]
        signs = torch.from_numpy(np.stack([2.0 * stream.integers(0, 2, size) - 1.0 for stream in streams]))
        return signs.unsqueeze(-2) if self._clients.axes > 1 else signs[0]
