"""Local SGD steps, with momentum, weight decay and clipped gradients."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from torch import Tensor

from harness.core import steps
from harness.core.algorithm import Algorithm
from harness.core.clients.batches import Batches
from harness.core.clients.local_batch import LocalBatch
from harness.core.declarations import below_one, not_negative, positive
from harness.core.errors import UserError
from harness.core.wire.message import plain
from privacy.clipping import scale_to_norm

Variables = TypeVar("Variables", Tensor, tuple[Tensor, ...])  # one, or several that are clipped jointly


@dataclass(frozen=True, kw_only=True)
class Descent(Algorithm):
    """An algorithm whose clients take SGD steps, all with the same settings.

    A step by a rule of the paper's own (an estimator, a closed form) is none of these and has no such settings.

    Attributes
    ----------
    momentum : float
        Momentum of the local steps. The buffers are zero at the start of a round.
    weight_decay : float
        L2 regularization of the local steps.
    grad_clip : float or None
        Bound on the L2 norm of a local step's gradient; None: no bound. It stabilizes training and gives no
        privacy guarantee.
    """

    momentum: float = below_one(0.0)
    weight_decay: float = not_negative(0.0)
    grad_clip: float | None = positive(None)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.momentum and self.meta.steps == 1:
            raise UserError(
                f"algorithm {self.meta.name}: momentum must be 0, given {self.momentum}: it restarts every round, "
                "and a round is a single step"
            )

    def reach(self, batches: Batches) -> Tensor:
        """Return how far a round's steps lead each client along a constant direction, ``(..., C, 1)``.

        In units of the step size: the number of steps, more with momentum. A client without a batch counts as one
        with one.
        """
        return steps.reach(batches.num_steps.clamp(min=1), self.momentum)

    @property
    def _changes_gradients(self) -> bool:
        """Whether steps go elsewhere than along the gradients."""
        return self.grad_clip is not None or bool(self.momentum or self.weight_decay)

    def clip(self, *gradients: Tensor) -> Any:
        """Scale every row down to `grad_clip`; several parts are clipped jointly and returned as a tuple."""
        return plain(gradients if self.grad_clip is None else scale_to_norm(gradients, self.grad_clip))

    def direction(
        self,
        x: Variables,
        gradient: Variables,
        batch: steps.Taken,
        m: Sequence[Tensor] | None = None,
        *,
        plus: Variables | None = None,
        correction: Variables | None = None,
        ascend: tuple[bool, ...] = (),
    ) -> tuple[Variables, Sequence[Tensor] | None]:
        """Return the direction of a local step and its momentum buffers; arguments as in `step`."""
        if plus is None and correction is None and not self._changes_gradients:
            return gradient, None
        directions, buffers = steps.directions(
            _several(x),
            _several(gradient),
            batch,
            m,
            plus=None if plus is None else _several(plus),
            correction=None if correction is None else _several(correction),
            ascend=ascend,
            momentum=self.momentum,
            weight_decay=self.weight_decay,
            grad_clip=self.grad_clip,
        )
        return (directions[0] if isinstance(x, Tensor) else tuple(directions)), buffers

    def step(
        self,
        x: Variables,
        gradient: Variables,
        batch: steps.Taken,
        m: Sequence[Tensor] | None = None,
        *,
        lr: Any,
        plus: Variables | None = None,
        correction: Variables | None = None,
    ) -> tuple[Variables, Sequence[Tensor] | None]:
        """Take one local SGD step. Clients without a batch left do not move.

        Parameters
        ----------
        x, gradient : Tensor or tuple of Tensor
            Rows ``(..., C, n)``; or several variables with their gradients, which are clipped jointly.
        batch : LocalBatch or Batch
            The batch of the gradient.
        m : optional
            Momentum buffers returned by the previous step; None in the first step of a round.
        lr : float or tuple of float
            Step size of each variable; a negative one ascends.
        plus : Tensor or tuple, optional
            Terms added to the gradients before clipping, like a proximal term; None for no term. They are masked
            where a client's batch is padding.
        correction : Tensor or tuple, optional
            Terms added after clipping: corrections that follow from earlier messages, which would otherwise take
            the place of gradients within `grad_clip`. Masked likewise.

        Returns
        -------
        tuple
            The new ``x``, and the buffers for the next step.
        """
        if isinstance(x, Tensor):
            direction, m = self.direction(x, gradient, batch, m, plus=plus, correction=correction)
            return steps.moved(x, lr * direction), m
        up = tuple(size < 0 for size in lr)
        directions, m = self.direction(x, gradient, batch, m, plus=plus, correction=correction, ascend=up)
        return tuple(
            steps.moved(vector, size * way) for vector, size, way in zip(x, lr, directions, strict=True)
        ), m

    def descend(
        self,
        x: Tensor,
        batches: Iterable[LocalBatch],
        gradient: Callable[[Tensor, LocalBatch], Tensor],
        *,
        lr: Any,
        correction: Tensor | None = None,
    ) -> Tensor:
        """Take local SGD steps along ``gradient(x, batch)``, one for each batch; other arguments as in `step`."""
        m = None
        for batch in batches:
            x, m = self.step(x, gradient(x, batch), batch, m, lr=lr, correction=correction)
        return x


def _several(variables: Tensor | tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    return (variables,) if isinstance(variables, Tensor) else variables
