"""Unstructured pruning by importance: the choice of single parameters by their importance and cost in time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from compression.errors import CompressionError
from compression.select import kept_count, top_k


class Layer(NamedTuple):
    """The prunable parameters of a layer.

    Attributes
    ----------
    start, stop : int
        Their place in the flat vector.
    time : float
        What one of them takes in a round.
    """

    start: int
    stop: int
    time: float


def largest_weights(x: Tensor, layers: Sequence[Layer], density: float) -> Tensor:
    """Keep the parameters of largest magnitude in each layer.

    Parameters
    ----------
    x : Tensor
        Flat parameter vector, ``(P,)``.
    layers : sequence of Layer
        What may be pruned; the rest is kept.
    density : float
        Share of each layer to keep, in (0, 1].

    Returns
    -------
    Tensor
        Boolean ``(P,)``.
    """
    kept = torch.ones_like(x, dtype=torch.bool)
    for start, stop, _ in layers:
        kept[start:stop] = top_k(x[start:stop], 1 - density)
    return kept


def reconfigured(
    x: Tensor,
    kept: Tensor,
    importance: Tensor,
    layers: Sequence[Layer],
    *,
    constant: float,
    removable: float,
    most: float = 1.0,
) -> Tensor:
    """Choose the parameters with the largest importance for the time of a round (Jiang et al. 2019).

    Of each layer, the kept parameters of smallest magnitude may go and all others may come back. They are added in
    the order of importance over time, as long as this raises the total importance over the time of a round.

    Parameters
    ----------
    x, kept, importance : Tensor
        The parameters, boolean which of them the model has, and their squared gradients, ``(P,)`` each.
    layers : sequence of Layer
        What may be pruned. The rest is kept and takes no time.
    constant : float
        The time of a round without any prunable parameter, above 0.
    removable : float
        Share of a layer's kept parameters that may go, in [0, 1).
    most : float
        Largest share of the prunable parameters to keep; those that may not go are kept all the same.

    Returns
    -------
    Tensor
        Boolean ``(P,)``; ``kept`` itself if all importances are zero, which say nothing.

    Raises
    ------
    CompressionError
        If the constant is not above 0, or a share is outside its range.
    """
    if not (constant > 0 and 0 < most <= 1):
        raise CompressionError(
            f"the constant time is above 0 and the largest share in (0, 1]; got {constant}, {most}"
        )
    if not bool(importance.any()):
        return kept
    time = torch.zeros_like(x, dtype=torch.float64)
    for start, stop, layer_time in layers:
        time[start:stop] = layer_time
    candidate = _candidates(x, kept, layers, removable)
    chosen, gain = ~candidate, importance.double()
    places = candidate.nonzero()[:, 0]
    places = places[(gain[places] / time[places]).argsort(descending=True, stable=True)]
    gains, times = gain[places], time[places]
    total = gain[chosen].sum() + gains.cumsum(0) - gains  # before each candidate
    worth = total / (constant + time[chosen].sum() + times.cumsum(0) - times)
    count = int((gains / times > worth).long().cumprod(0).sum())  # once one is not worth its time, none is
    prunable = sum(stop - start for start, stop, _ in layers)
    room = int(most * prunable) - int((chosen & (time > 0)).sum())
    chosen[places[: max(0, min(count, room))]] = True
    return chosen


def _candidates(x: Tensor, kept: Tensor, layers: Sequence[Layer], removable: float) -> Tensor:
    """Return which parameters may go or come back: all of the layers except the largest kept ones, ``(P,)``."""
    candidate = torch.zeros_like(kept)
    for start, stop, _ in layers:
        mask = kept[start:stop]
        stay = kept_count(int(mask.sum()), removable)
        ranked = x[start:stop].abs().masked_fill(~mask, -1).argsort(descending=True, stable=True)
        candidate[start:stop] = True
        candidate[start + ranked[:stay]] = False
    return candidate
