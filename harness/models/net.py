"""Networks of a feature extractor and a linear head."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from harness.core.errors import UserError
from harness.core.execution.exact.row_product import Linear
from harness.core.flat_model import Initializer, Ravel, loops_of, set_start, start_of, traits_of


def dense(module: nn.Module) -> bool:
    """Return whether a module is dense algebra, which is fast when vectorized over clients on a CPU."""
    return loops_of(module) is None and not any(
        isinstance(layer, nn.Conv2d | nn.Embedding) for layer in module.modules()
    )


class Net(nn.Module):
    """A feature extractor ``u`` and a linear head ``v``.

    Parameters
    ----------
    extractor : nn.Module
        All layers but the last: ``(B, *input_shape)`` to ``(B, embedding_size)``.
    embedding_size : int
        Length of a feature vector.
    outputs : int
        Number of classes, or 1 for a score.
    initializer : {"default", "xavier", "kaiming", "own"}
        Law of the start values: PyTorch's defaults, Xavier-normal or Kaiming weights, or those of the layers' own
        constructors. The flattened model draws them from a keyed generator (`harness.core.flat_model`).
    """

    def __init__(
        self, extractor: nn.Module, embedding_size: int, outputs: int, initializer: Initializer = "default"
    ) -> None:
        super().__init__()
        self.extractor = extractor
        self.head: nn.Linear = (Linear if dense(extractor) else nn.Linear)(embedding_size, outputs)
        traits_of(self).initializer = initializer

    @property
    def initializer(self) -> Initializer:
        """Law of the start values."""
        return traits_of(self).initializer

    @property
    def embedding_size(self) -> int:
        """Length of a feature vector."""
        return self.head.in_features

    def features(self, x: Tensor) -> Tensor:
        """Return the feature vectors, ``(B, embedding_size)``, of inputs ``(B, *input_shape)``."""
        out: Tensor = self.extractor(x)
        return out

    def forward(self, x: Tensor) -> Tensor:
        """Return the logits, ``(B, outputs)``, of inputs ``(B, *input_shape)``."""
        out: Tensor = self.head(self.features(x))
        return out


class Encoder(Net):
    """A net whose features are means and spreads of a Gaussian; the head reads a sample or the mean."""

    def forward(self, x: Tensor) -> Tensor:
        """Return the logits at the means."""
        out: Tensor = self.head(self.features(x)[..., : self.embedding_size])
        return out


def encoder(net: Net, latent: int) -> Encoder:
    """Append a linear layer for ``latent`` means and spreads to the extractor; parameters are placeholders."""
    if latent < 1:
        raise UserError(f"latent must be at least 1, given {latent}")
    with torch.random.fork_rng(devices=[]):
        layer = type(net.head)(net.embedding_size, 2 * latent)
        extended = Encoder(
            nn.Sequential(net.extractor, layer), latent, net.head.out_features, net.initializer
        )
    start = start_of(net)
    if start is not None:  # what is appended starts by rule
        length, appended = Ravel(net.extractor).size, Ravel(nn.Sequential(layer, extended.head))
        set_start(extended, lambda g: torch.cat([start(g)[:length], appended.init(g)]))
    compute_in(traits_of(net.head).computes, extended)
    return extended


def compute_in(dtype: torch.dtype | None, net: nn.Module) -> None:
    """Set the type that a net and each of its parts compute in (`Ravel`), independent of the parameters' type."""
    for part in net.modules():
        traits_of(part).computes = dtype


def computes_in(dtype: torch.dtype, net: nn.Module | None) -> bool:
    """Return whether a net computes in this type."""
    return net is not None and any(traits_of(part).computes == dtype for part in net.modules())
