"""The private side: this round's cohort, its data and what it computes at home."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from datasets.federation import Batch, Federation
from harness.core import rng
from harness.core.cohort import Cohort
from harness.core.execution.batches import Batches, LocalWork, look_up, mismatched_batches, shorten, unchanged
from harness.core.execution.sampling import draw_batches
from harness.core.execution.vectorize import Points, Rows
from harness.core.methods.derivatives import PartyBatch, embedding
from harness.core.problem import Objective, Problem, its_loss
from harness.core.registry import Incompatible
from harness.core.wire.cost import Cost
from harness.core.wire.dp_record import Records
from harness.core.wire.model_pruning import PrunedModels, SubModel, prune_own_models
from harness.core.wire.settings import Privacy, PrivacyLog


class Clients(Cohort):
    """A round's cohort with its data. What it holds and returns stays at home; rows leave through a `Channel` only.

    Leading axes are free: ``...`` below is nothing for one run and ``R`` for R stacked ones.

    Parameters
    ----------
    federation, seeds, round, ids, cost, participation_mask, expected, privacy_log, pruned
        As in `Cohort`.
    problem : Problem
        What the clients optimize.
    rows : Rows
        How one-client functions are run over the cohort.
    privacy : Privacy, optional
        With unit "record" data leave `grad` and `grads` as noisy sums of clipped per-sample gradients only; a
        party's also as embeddings, which `Channel.gather` protects.
    alpha : float or Tensor
        Share of hidden units that this round removes from the parties' own models, one for all or ``(total,)``,
        when the algorithm says `prune`; vertical problems.

    Attributes
    ----------
    errors : dict[str, Tensor]
        Mean squared norms, ``(..., C)``, of what compression has changed of the parties' embeddings; for
        evaluations only. ``omega``: of those sent last, on the way; ``psi``: of a batch, when models were pruned.
    mismatched_batches : bool
        Whether stacked runs have been given batches that one of them alone would have in another width: what they
        compute is the same but for rounding.
    """

    def __init__(
        self,
        federation: Federation,
        problem: Problem,
        rows: Rows,
        *,
        seeds: tuple[int, ...],
        round: int,
        ids: Tensor,
        cost: Cost,
        participation_mask: Tensor | None = None,
        expected: int | None = None,
        privacy_log: PrivacyLog | None = None,
        privacy: Privacy | None = None,
        pruned: PrunedModels | None = None,
        alpha: float | Tensor = 0.0,
    ) -> None:
        strict = privacy is not None and privacy.strict
        super().__init__(
            federation, seeds, round, ids, cost, participation_mask, expected, privacy_log, pruned, strict
        )
        self.problem = problem
        self.errors: dict[str, Tensor] = {}
        self.mismatched_batches = False
        self._alpha = torch.as_tensor(alpha, dtype=torch.float64)
        self._rows = rows
        self._records: Records | None = None
        if privacy is not None and privacy.unit == "record":
            self._records = Records(privacy, problem, self.privacy_log)

    def batches(
        self,
        work: LocalWork | None,
        *,
        steps: int | Tensor | None = None,
        epochs: int | None = None,
        batch_size: int | None = None,
        split: str = "train",
        stream: str = "main",
        aligned: bool = False,
    ) -> Batches:
        """Draw the batches of this round.

        Parameters
        ----------
        work : LocalWork or None
            An algorithm: its local steps or epochs and its batch size, unless given here.
        steps, epochs, batch_size : int or None
            Override those of `work`. A tensor of steps, ``(..., C)``, is the number of each client.
        split : str
            Which of the clients' data.
        stream : str
            The same stream gives the same batches again, also to another algorithm; draws of different streams
            are independent.
        aligned : bool
            All clients draw the same sample numbers (vertical: the same people).

        Returns
        -------
        Batches
            Iterable of `Batch`, ``(..., C, B, ...)`` each.
        """
        if work is not None:
            batch_size = batch_size or work.batch_size
            if steps is None and epochs is None:
                steps, epochs = work.local_steps, work.local_epochs
        keys = torch.tensor([rng.key(seed, "batch", stream, self.round) for seed in self.seeds])
        keys = keys[:, None].expand(len(self.seeds), self.ids.shape[-1]).flatten()
        ids = torch.zeros_like(self.ids) if aligned else self.ids
        each = steps if isinstance(steps, Tensor) else None
        steps = int(steps.max()) if isinstance(steps, Tensor) else steps
        counts = self._samples(split)
        if self.axes > 1:
            self.mismatched_batches |= mismatched_batches(counts, self.participation_mask.bool(), batch_size)
        draw = draw_batches if self._records is None else self._records.draw
        order, num_steps = draw(
            counts.flatten(), keys, ids.flatten(), steps=steps, epochs=epochs, batch_size=batch_size
        )
        if each is not None:
            order, num_steps = shorten(order, num_steps, each.flatten())
        pool = self.federation.pool
        num_steps = num_steps.view(*self.ids.shape, 1).to(pool.x)
        redact: Callable[[int, Batch], Batch] = unchanged
        if self._records is not None:
            fewest = int(self.federation.counts(split).min())
            redact = self._records.redaction(stream, order, num_steps, counts, fewest, batch_size)
        positions = look_up(order, self.take(self.federation.splits[split])).to(pool.x.device)
        return Batches(pool, positions, num_steps, same=order.stride(0) == 0, redact=redact)

    def coin(self, p: float, name: str, *, each: bool = False) -> Tensor:
        """Toss a public coin, as in `Cohort`."""
        if self._records is not None:
            raise Incompatible("record-level privacy: what is released must not depend on a coin")
        return super().coin(p, name, each=each)

    def data(self, stream: str = "data") -> Batch:
        """Return all training data of each client as one batch, ``(..., C, N)``."""
        largest = int(self.federation.counts().max())
        return next(iter(self.batches(None, steps=1, batch_size=largest, stream=stream)))

    def grad(self, x: Tensor, batch: Batch) -> Tensor:
        """Return the gradient of each client's mean loss on its batch, ``(..., C, P)``."""
        return self._gradients((x,), batch)[0]

    def grads(self, x: Tensor, y: Tensor, batch: Batch) -> tuple[Tensor, Tensor]:
        """Return the gradients by both variables at one point, ``(..., C, P)`` and ``(..., C, Q)``."""
        gx, gy = self._gradients((x, y), batch)
        return gx, gy

    def grad_y(self, x: Tensor, y: Tensor, batch: Batch) -> Tensor:
        """Return the gradient by the second variable alone, ``(..., C, Q)``: less work than both."""
        return self._gradients((x, y), batch, by=(1,))[0]

    def grad_x(self, x: Tensor, y: Tensor, batch: Batch) -> Tensor:
        """Return the gradient by the first variable alone, ``(..., C, P)``."""
        return self._gradients((x, y), batch, by=(0,))[0]

    def gradient(
        self,
        objective: Objective,
        *points: Tensor,
        batch: Batch | PartyBatch,
        by: int | Points = 0,
    ) -> Any:
        """Return the gradient of another objective than the problem's loss.

        Parameters
        ----------
        objective : Callable[[Problem], Callable]
            Gives ``objective(problem)(*points, batch)``, a scalar for one client; the same object every time for
            one problem (`functools.lru_cache`), as its work is measured once. The problem is the really smaller
            one where the model is pruned. Record-level privacy refuses one that is not marked as a mean over
            samples (`harness.core.problem.per_sample`).
        *points : Tensor
            The variables, ``(..., C, n)`` each.
        batch : Batch or PartyBatch
            Which samples.
        by : int or tuple of int
            By which of the variables, from 0; several give a tuple of gradients.
        """
        if self._records is not None and not getattr(objective(self.problem), "per_sample", False):
            raise Incompatible(
                "record-level privacy clips what each sample contributes, and the algorithm's objective is no mean "
                "over samples"
            )
        samples: Any = batch
        found = self._gradients(points, samples, (by,) if isinstance(by, int) else by, objective)
        return found[0] if isinstance(by, int) else tuple(found)

    def _gradients(
        self, points: tuple[Tensor, ...], batch: Batch, by: Points = (), objective: Objective = its_loss
    ) -> list[Tensor]:
        """Return the gradients by the points numbered ``by``; none: by all."""
        if self._records is not None:
            return self._private_gradients(self._records, points, batch, by, objective)
        return self._of_models(self._rows.gradient, points, batch, by, objective)

    def _of_models(
        self,
        compute: Callable[..., Sequence[Tensor]],
        points: tuple[Tensor, ...],
        batch: Batch,
        by: Points,
        objective: Objective,
    ) -> list[Tensor]:
        """Compute something of the clients' gradients, of pruned models on the really smaller ones.

        Clients that train the same model are computed together; zero is what others have of a coordinate.
        """
        busy = self._real(batch)
        if self.pruned is None:
            loss = objective(self.problem)
            self._count_gradients(loss, self.axes, points, batch, by, busy)
            return list(compute(loss, self.axes, points, batch, by))
        moving = [points[place] for place in by or range(len(points))]
        found = [torch.zeros_like(point.flatten(0, self.axes - 1)) for point in moving]
        for model, where in self.pruned.groups(self.ids):
            pick = lambda t, where=where: t.flatten(0, self.axes - 1)[where]  # noqa: E731
            rows, own = tuple(map(pick, points)), type(batch)(*map(pick, batch))
            loss = objective(model.problem)
            small = tuple(map(model.take, rows))
            these = torch.zeros_like(busy.flatten(0, self.axes - 1))
            these[where] = True
            self._count_gradients(loss, 1, small, own, by, busy & these.view_as(busy))
            for full, part in zip(found, compute(loss, 1, small, own, by), strict=True):
                full[where] = model.put(part, full[where])
        return [part.unflatten(0, self.ids.shape) for part in found]

    def _count_gradients(
        self,
        loss: Callable[..., Tensor],
        axes: int,
        points: tuple[Tensor, ...],
        batch: Batch,
        by: Points,
        times: Tensor,
    ) -> None:
        """Count the operations of gradients by the samples, ``(..., C, B)``, that are true in ``times``."""
        flops = self._rows.flops(loss, axes, *points, batch, gradient=True, by=by)
        self.cost.work(flops / batch.weight.shape[-1], times, oracle=True)

    def _private_gradients(
        self, records: Records, points: tuple[Tensor, ...], batch: Batch, by: Points, objective: Objective
    ) -> list[Tensor]:
        """Return DP-SGD gradients: clipped per sample, summed, noised, over the expected batch size.

        A sample's gradients by both variables are clipped together.
        """
        call = self._book(records, batch)
        samples = batch._replace(**records.of(batch).batch._asdict())  # what the server sent to a party stays
        clipped = partial(self._rows.clipped_sums, norm=records.privacy.bound())
        sums = self._of_models(clipped, points, samples, by, objective)
        mask = None if self.pruned is None else self.pruned.mask_of(sums, self.ids)
        return records.noised(sums, batch, call, seeds=self.seeds, round=self.round, ids=self.ids, mask=mask)

    def _book(self, records: Records, batch: Batch) -> int:
        """Book one more release from a batch; returns how many it had before."""
        return records.book(batch, self.round, int(self.sizes.max()))

    def embed(self, y: Tensor, batch: Batch) -> Tensor:
        """Return the parties' embeddings of their samples, ``(..., C, B, d)``; they leave by `Channel.gather`."""
        return self._embeddings(y, batch, count=True)

    def charge(self, batch: Batch) -> None:
        """Book a release about the records of a batch that everybody knows."""
        assert self._records is not None
        self._records.charge(batch, int(self.sizes.max()))

    def _embeddings(self, y: Tensor, batch: Batch, *, count: bool = False) -> Tensor:
        """Compute embeddings, of pruned models with the really smaller ones."""
        batch = batch if self._records is None else self._records.of(batch).batch
        busy = self._real(batch)

        def flat(part: Tensor) -> Tensor:
            return part.flatten(0, self.axes - 1)

        models: list[tuple[SubModel | None, Tensor | slice]] = [(None, slice(None))]
        if self.pruned is not None:
            models = [*self.pruned.groups(self.ids)]
        found: Tensor | None = None
        for model, where in models:
            rows, own = flat(y)[where], type(batch)(*(flat(part)[where] for part in batch))
            rows, problem = (rows, self.problem) if model is None else (model.take(rows), model.problem)
            embed = embedding(problem)
            if count:
                these = torch.zeros_like(flat(busy))
                these[where] = True
                flops = self._rows.flops(embed, 1, rows, own) / own.weight.shape[-1]
                self.cost.work(flops, busy & these.view_as(busy), oracle=True)
            h = self._embedded(embed, rows, own)
            found = h.new_empty(busy[..., 0].numel(), *h.shape[1:]) if found is None else found
            found[where] = h
        assert found is not None
        whole: Tensor = found.unflatten(0, self.ids.shape)
        return whole

    def _embedded(self, embed: Callable[..., Tensor], y: Tensor, batch: Batch) -> Tensor:
        """Return the embeddings of parties with models of one size."""
        found: Tensor = self._rows.map(embed, 1, y, batch)
        return found

    def prune(self, y: Tensor, batch: Batch) -> Tensor:
        """Return the parties' models ``(..., C, Q)`` pruned as far as this round asks, each by its own weights.

        A vertical algorithm says when; only the first call of a round prunes. From then on the smaller models are
        what is computed with. On the batch is measured what pruning does to the embeddings.
        """
        asked, self._alpha = self._alpha, torch.zeros((), dtype=torch.float64)
        left = prune_own_models(self.problem, y, asked, self.pruned) if bool((asked > 0).any()) else None
        if left is None or left is self.pruned:
            return y
        before, self.pruned = self._embeddings(y, batch), left
        y = left.masked(y)
        self.note("psi", before - self._embeddings(y, batch), batch)
        return y

    def note(self, name: str, change: Tensor, batch: Batch) -> None:
        """Note for the next evaluation how much of the embeddings ``(..., C, B, d)`` of a batch has changed."""
        total = (change.square().sum(-1) * batch.weight).sum(-1)
        self.errors[name] = total / batch.weight.sum(-1).clamp(min=1)

    def _real(self, batch: Batch) -> Tensor:
        """Return which slots of a batch hold a sample of a client that is there, ``(..., C, B)``."""
        return (batch.weight > 0.5) & self.participation_mask.bool().unsqueeze(-1).to(batch.weight.device)

    def each(self, fn: Callable[..., Any], *arguments: Any) -> Any:
        """Apply a function written for one client to every client's rows and batch.

        Parameters
        ----------
        fn : Callable
            Of one client's vectors and batch; the same object every time, as its work is measured once.
        *arguments : Tensor or Batch
            With leading axes ``(..., C)``.

        Returns
        -------
        Tensor or tuple of tensors
            With leading axes ``(..., C)``.
        """
        if self._records is not None:
            raise Incompatible(
                "record-level privacy covers gradients only; the algorithm computes something else"
            )
        flops = self._rows.flops(fn, self.axes, *arguments)
        samples = [self._real(argument) for argument in arguments if isinstance(argument, Batch)]
        if samples:
            times = torch.cat(samples, -1)
            self.cost.work(flops / times.shape[-1], times, oracle=True)
        else:
            self.cost.work(flops, self.participation_mask.unsqueeze(-1))
        return self._rows.map(fn, self.axes, *arguments)

    def labels(self, batch: Batch) -> Batch:
        """Return an aligned batch as a vertical server knows it: labels and weights, one party's for all.

        In the vertical family labels are public among server and parties.
        """
        index = (slice(None),) * (self.axes - 1) + (0,)
        return Batch(batch.x[index][..., :0], batch.y[index], batch.group[index], batch.weight[index])

    def project(self, y: Tensor) -> Tensor:
        """Project every row onto the feasible set of y."""
        return self.problem.project(y)

    def project_x(self, x: Tensor) -> Tensor:
        """Project every row onto the feasible set of x; the bilevel methods are the ones that do."""
        return self.problem.project_x(x)
