"""The Gaussian mechanism with noise that is correlated between rounds."""

from __future__ import annotations

import torch
from torch import Tensor

from harness.core.errors import Incompatible
from harness.core.settings.privacy_kinds import CentralPrivacy
from harness.core.wire.dp_client import Mechanism
from privacy.banded import Factorization, coefficients, deviations
from privacy.gaussian import gaussian_noise


class BandedMechanism(Mechanism):
    """The mechanism of `privacy.banded` for averages: noise that partly cancels in the sum over rounds.

    The memory of a slot is the noise of the last rounds, of standard deviation 1, ``(..., bands - 1, n)``, and the
    round of the newest. Where rounds are left out, or the length of the message changes, correlation begins anew,
    which drops rows of the factorization and protects as much.
    """

    def noise(
        self,
        like: Tensor,
        slot: int,
        sensitivity: float | Tensor,
        sender: str,
        shared: Tensor | None = None,
    ) -> Tensor:
        """Draw the noise of an average, on the entries of the mask ``shared``."""
        privacy, round = self.privacy, self._clients.round
        if not self.noisy or round < 0:  # everybody takes part in the initialization, which is apart
            return super().noise(like, slot, sensitivity, sender, shared)
        if self._clients.chosen:
            raise Incompatible(
                "privacy.mechanism: banded noise needs balanced cohorts, and the clients of this round were chosen"
            )
        if round >= privacy.rounds:
            raise Incompatible(
                f"privacy.mechanism: the banded noise of this run is for {privacy.rounds} rounds; give more rounds"
            )
        first, *others = coefficients(privacy.rounds, privacy.bands, self._factorization)[round].tolist()
        noise: Tensor = gaussian_noise(like, 1.0, self._streams("noise", slot, like, sender))
        past = self._past(like, slot, round)
        for number, other in enumerate(others):
            noise = noise - other * past[..., number, :]
        noise = noise / first
        if others:
            self._memory[f"noise {slot}"] = torch.cat([noise.unsqueeze(-2), past[..., :-1, :]], -2)
            self._memory[f"noise round {slot}"] = torch.full(like.shape[:-1], round)
        std = self.deviation(sensitivity)
        noise = noise * torch.as_tensor(std).to(noise).unsqueeze(-1)
        return noise if shared is None else noise * shared

    @property
    def spread(self) -> float:
        """Standard deviation of this round's noise over that of independent noise."""
        privacy, round = self.privacy, self._clients.round
        if round < 0:
            return 1.0
        return float(deviations(privacy.rounds, privacy.bands, self._factorization)[round])

    @property
    def _factorization(self) -> Factorization:
        assert isinstance(self.privacy.spec, CentralPrivacy)
        return self.privacy.spec.factorization

    def _past(self, like: Tensor, slot: int, round: int) -> Tensor:
        """Return the noise of the last rounds, newest first; zeros before the first round."""
        shape = (*like.shape[:-1], self.privacy.bands - 1, like.shape[-1])
        past, newest = self._memory.get(f"noise {slot}"), self._memory.get(f"noise round {slot}")
        if past is None or newest is None or past.shape != shape or bool((newest != round - 1).any()):
            past = like.new_zeros(shape)
        return past
