"""The clients of a round, their data and their local computations."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, Unpack

import torch
from torch import Tensor

from datasets.federation import Batch, Federation
from harness.core.clients.batches import Batches, BatchPlan, LocalWork, Split
from harness.core.clients.cohort import Cohort, Membership
from harness.core.clients.gradients import Gradients, GradientVerbs, slots
from harness.core.clients.local_batch import LocalBatch
from harness.core.clients.local_data import LocalData
from harness.core.clients.party_models import PartyModels
from harness.core.clients.private_batches import Records
from harness.core.clients.pruning import PrunedModels, prune_models, prune_own_models, sparse_model
from harness.core.clients.work import CountedWork
from harness.core.errors import Incompatible
from harness.core.execution.exact.row_product import rounds_alike
from harness.core.execution.vectorize import ClientExecutor, Points
from harness.core.problem import Objective, PerSample, Problem, problem_loss
from harness.core.public import Public
from harness.core.settings.privacy import Privacy

ERRORS = ("omega", "psi")  # of embeddings: by compressed messages, by pruned models


class Clients(GradientVerbs, Cohort):
    """A round's cohort with its private data. Rows leave the clients only through a `Channel`.

    `Cohort` knows who takes part, `LocalData` what they hold, `Gradients` how they train, `PartyModels` what the
    parties of a vertical problem embed, and `CountedWork` how all of it is counted.

    In the shapes below ``...`` is empty for one run and ``R`` for R stacked runs.

    Parameters
    ----------
    federation : Federation
        All clients.
    problem : Problem
        What the clients optimize.
    executor : ClientExecutor
        Executor of one-client functions over the cohort.
    privacy : Privacy, optional
        With unit "record", gradients are noisy sums of clipped per-sample gradients. Embeddings of parties are
        protected by `Channel.gather`.
    alpha : float or Tensor
        Share of hidden units that `prune` removes from the parties' models in this round, one for all or
        ``(total,)``; vertical problems.
    batch_size : int, optional
        Samples that all data of a client count as, where counts of samples are private.
    **cohort : Membership
        Who takes part; see `Cohort`.

    Attributes
    ----------
    errors : dict[str, Tensor]
        Mean squared norms, ``(..., C)``, of the errors that compression makes in the parties' embeddings; for
        evaluations only. ``omega``: by sending the last ones; ``psi``: by pruning the models.
    mismatched_batches : bool
        Whether stacking has changed the width of a run's batches, and so the rounding of its results.
    """

    def __init__(
        self,
        federation: Federation,
        problem: Problem,
        executor: ClientExecutor,
        *,
        privacy: Privacy | None = None,
        alpha: float | Tensor = 0.0,
        batch_size: int | None = None,
        **cohort: Unpack[Membership],
    ) -> None:
        by_gradient = privacy is not None and privacy.by_gradient
        private = privacy is not None and privacy.counts_private
        super().__init__(federation, counts_private=private, coins=not by_gradient, **cohort)
        self.problem = problem
        self.errors: dict[str, Tensor] = {}
        self.mismatched_batches = False
        self._alpha = torch.as_tensor(alpha, dtype=torch.float64)
        self._executor = executor
        self._batch_size = batch_size
        self._privacy = privacy
        self._records: Records | None = None
        if privacy is not None and by_gradient:
            self._records = Records(privacy, problem, self.ledger)

    # These refer to the cohort and are made where they are used: a cycle would outlive its round.

    @property
    def _data(self) -> LocalData:
        """The data at home. Runs share batches where that changes no bit of a vectorized model."""
        vectorized = self._executor.mode == "vmap" and self.problem.kind != "vertical" and self.pruned is None
        shared = vectorized and rounds_alike(self.problem.module)
        secret = self._privacy is not None and self._privacy.secret_cohorts
        return LocalData(self, self._records, secret=secret, shared=shared)

    @property
    def _work(self) -> CountedWork:
        return CountedWork(self, self._records, self._batch_size)

    @property
    def _training(self) -> Gradients:
        return Gradients(self, self.problem, self._executor, self._work)

    @property
    def _parties(self) -> PartyModels:
        return PartyModels(self, self.problem, self._executor, self._work, self._embedded)

    def batches(
        self,
        work: LocalWork | None,
        *,
        steps: int | Tensor | None = None,
        epochs: int | None = None,
        batch_size: int | None = None,
        split: Split = "train",
        stream: str = "main",
        aligned: bool = False,
    ) -> Batches:
        """Draw the batches of this round.

        Parameters
        ----------
        work : LocalWork or None
            Source of the local steps or epochs and the batch size, usually the algorithm.
        steps, epochs, batch_size : int or None
            Override those of `work`. ``steps`` may be a tensor with the number of each client, ``(..., C)``.
        split : {"train", "validation"}
            Which of the clients' data to use: an outer problem trains on validation. There are no batches of the
            samples on which hyper-parameters are chosen.
        stream : str
            Name of the random stream. Equal streams give equal batches in a round, to any algorithm; different
            streams are independent.
        aligned : bool
            Whether all clients draw the same sample numbers (vertical: the same people).

        Returns
        -------
        Batches
            Iterable of `LocalBatch`, ``(..., C, B, ...)`` each. It has no length: that of a secret cohort is
            private. Clients with less data or fewer steps see padding, whose gradients are zero.
        """
        plan = BatchPlan(steps, epochs, batch_size, split, stream, aligned)
        return self._drawn(self._data.completed(plan, work))

    def _drawn(self, plan: BatchPlan) -> Batches:
        """Return the batches of a plan."""
        batches = self._data.batches(plan)
        self.mismatched_batches |= batches.mismatched
        return batches

    def data(self) -> LocalBatch:
        """Return all training data of each client as one batch, ``(..., C, N)``."""
        data = self._data
        if (held := data.held()) is not None:
            return held
        batches = self.batches(None, steps=1, batch_size=data.largest, stream="data")
        return data.sized(self._batch_size, next(iter(batches)))

    def most_steps(self, work: LocalWork) -> Public:
        """Return the largest number of local steps that any client of the federation takes in a round.

        It does not depend on who is in the cohort. `batches` may hold fewer.
        """
        return self._data.most_steps(work)

    def mean_steps(self, work: LocalWork, momentum: float = 0.0) -> Public:
        """Return the mean number of local steps of the federation's clients, weighted by their samples.

        It does not depend on who is in the cohort. With momentum it is the mean of their `reach`.
        """
        return self._data.mean_steps(work, momentum)

    def _check_objective(self, objective: Objective) -> None:
        if self._records is not None and not isinstance(objective(self.problem), PerSample):
            raise Incompatible(
                "record-level privacy clips each sample's contribution, but the algorithm's objective is not a "
                "mean over samples"
            )

    def _gradients(
        self,
        points: tuple[Tensor, ...],
        batch: LocalBatch,
        by: Points = (),
        objective: Objective = problem_loss,
    ) -> list[Tensor]:
        """Return the gradients of each client by the points numbered ``by``; by all if it is empty."""
        held = [point.shape[self.axes - 1] for point in points]
        if any(count != self.ids.shape[-1] for count in held):
            raise ValueError(
                f"a gradient needs a row for each of {self.ids.shape[-1]} cohort members, given {held}; "
                "clients.take selects their rows from those of all clients"
            )
        if self._records is None:
            return self._training.of_models(self._executor.gradient, points, batch, by, objective)
        return self._training.private(self._records, points, batch, by, objective)

    def each(self, fn: Callable[..., Any], *arguments: Any) -> Any:
        """Apply a function written for one client to every client's rows and batch.

        Parameters
        ----------
        fn : Callable
            Function of one client's vectors and batch. Pass the same object every time, because its operations
            are measured once.
        *arguments : Tensor or LocalBatch
            With leading axes ``(..., C)``.

        Returns
        -------
        Tensor or tuple of tensors
            With leading axes ``(..., C)``.
        """
        if self._records is not None:
            raise Incompatible(
                "record-level privacy protects gradients only, but the algorithm computes something else"
            )
        shown = [self._work.shown(one, self.axes) for one in arguments]
        flops = self._executor.flops(fn, self.axes, *shown)
        numbers = [number for number, one in enumerate(arguments) if isinstance(one, LocalBatch)]
        if numbers:
            wide = sum(slots(shown[number]) for number in numbers)
            times = [self._work.times(arguments[number]) for number in numbers]
            self.cost.work(flops / wide, *times, oracle=True)
        else:
            self.cost.work(flops, self.participation_mask.unsqueeze(-1))
        return self._mapped(
            fn, tuple(one.argument if isinstance(one, LocalBatch) else one for one in arguments)
        )

    def _mapped(self, fn: Callable[..., Any], arguments: tuple[Any, ...]) -> Any:
        """Return the function's results for all clients."""
        return self._executor.map(fn, self.axes, *arguments)

    def embed(self, y: Tensor, batch: LocalBatch) -> Tensor:
        """Return the parties' embeddings of their samples, ``(..., C, B, d)``, for `Channel.gather`."""
        return self._parties.embeddings(y, batch, count=True)

    def _embedded(self, embed: Callable[..., Tensor], y: Tensor, batch: Batch) -> Tensor:
        """Return the embeddings of parties with models of one size."""
        embeddings: Tensor = self._executor.map(embed, 1, y, batch)
        return embeddings

    def charge(self, batch: LocalBatch) -> None:
        """Book a release about the records of a batch with public members."""
        assert self._records is not None
        self._records.charge(batch)

    def prune(self, y: Tensor, batch: LocalBatch) -> Tensor:
        """Prune the parties' models ``(..., C, Q)`` to this round's ratio, each by its own weights.

        Only the first call of a round prunes; later computations use the smaller models. The batch serves to
        measure the effect on the embeddings.
        """
        alpha, self._alpha = self._alpha, torch.zeros((), dtype=torch.float64)
        pruned = prune_own_models(self.problem, y, alpha, self.pruned) if bool((alpha > 0).any()) else None
        if pruned is None or pruned is self.pruned:
            return y
        before, self.pruned = self._parties.embeddings(y, batch, count=False), pruned
        y = pruned.masked(y)
        self.note("psi", before - self._parties.embeddings(y, batch, count=False), batch)
        return y

    def restrict(self, kept: Tensor | None) -> None:
        """Train and send only the parameters of a public mask ``(P,)`` from here on in this round; None: all.

        The algorithm decides what is pruned, and says with `Channel.announce` what the clients cannot know.
        """
        _refuse_alpha(self.pruned)
        self.pruned = None if kept is None else sparse_model(self.problem, kept)

    def shrink(self, x: Tensor, ratio: Tensor) -> Tensor:
        """Train and send models without the units of smallest weights in a released model ``(P,)``, in this round.

        ``ratio`` is the share of units that each member lacks, ``(C,)``. The server keeps the whole model: what a
        client lacks counts as unchanged. Returns the share of the parameters that each has, ``(C,)``.
        """
        _refuse_alpha(self.pruned)
        every = torch.zeros(self.federation.clients, dtype=torch.float64).index_copy(
            0, self.ids, ratio.double().cpu()
        )
        self.pruned = replace(prune_models(self.problem, x, every, None), of_round=True, recovered=True)
        return self.pruned.shares(self.ids)

    def note(self, name: str, change: Tensor, batch: LocalBatch) -> None:
        """Record the change of a batch's embeddings, ``(..., C, B, d)``, for the next evaluation.

        Parameters
        ----------
        name : str
            One of `ERRORS`.
        change : Tensor
            The change.
        batch : LocalBatch
            The samples.
        """
        assert name in ERRORS
        total = (change.square().sum(-1) * batch.weight).sum(-1)
        self.errors[name] = total / batch.weight.sum(-1).clamp(min=1)

    def labels(self, batch: LocalBatch) -> Batch:
        """Return an aligned batch as a vertical server sees it: labels and weights, without features.

        Labels are public among the server and the parties of a vertical problem.
        """
        index = (slice(None),) * (self.axes - 1) + (0,)
        return Batch(batch.x[index][..., :0], batch.y[index], batch.group[index], batch.weight[index])

    def project(self, y: Tensor) -> Tensor:
        """Project every row onto the feasible set of y."""
        return self.problem.project(y)

    def project_x(self, x: Tensor) -> Tensor:
        """Project every row onto the feasible set of x."""
        return self.problem.project_x(x)


def _refuse_alpha(pruned: PrunedModels | None) -> None:
    if pruned is not None and not pruned.of_round:
        raise Incompatible("compression.alpha: the algorithm decides itself what is pruned; remove alpha")
