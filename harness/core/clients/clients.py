"""The clients of a round, their data and their local computations."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cached_property, partial
from typing import Any

import torch
from torch import Tensor
from torch.utils.weak import WeakIdKeyDictionary

from datasets.federation import Batch, Federation
from harness.core import rng
from harness.core.clients.batches import (
    Batches,
    LocalWork,
    all_steps,
    common,
    look_up,
    mismatched_batches,
    public_size,
    shorten,
    unchanged,
    uneven_batches,
)
from harness.core.clients.cohort import Cohort
from harness.core.clients.parties import PartyBatch, embedding
from harness.core.clients.private_batches import Records
from harness.core.clients.pruning import (
    PrunedModels,
    SubModel,
    prune_models,
    prune_own_models,
    sparse_model,
)
from harness.core.clients.sampling import draw_batches
from harness.core.cost import Cost, Samples
from harness.core.execution.row_product import rounds_alike
from harness.core.execution.vectorize import Points, Rows
from harness.core.problem import Objective, Problem, problem_loss
from harness.core.public import Public
from harness.core.registry import Incompatible
from harness.core.settings.privacy import Privacy
from harness.core.steps import reach
from privacy import Ledger

ERRORS = ("omega", "psi")  # of embeddings: by compressed messages, by pruned models


class Clients(Cohort):
    """A round's cohort with its private data. Rows leave the clients only through a `Channel`.

    In the shapes below ``...`` is empty for one run and ``R`` for R stacked runs.

    Parameters
    ----------
    federation, seeds, round, ids, cost, participation_mask, expected, ledger, noise_keys, pruned
        As in `Cohort`.
    problem : Problem
        What the clients optimize.
    rows : Rows
        Executor of one-client functions over the cohort.
    privacy : Privacy, optional
        With unit "record", gradients are noisy sums of clipped per-sample gradients. Embeddings of parties are
        protected by `Channel.gather`.
    alpha : float or Tensor
        Share of hidden units that `prune` removes from the parties' models in this round, one for all or
        ``(total,)``; vertical problems.
    batch_size : int, optional
        Samples that all data of a client count as, where counts of samples are private.

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
        rows: Rows,
        *,
        seeds: tuple[int, ...],
        round: int,
        ids: Tensor,
        cost: Cost,
        participation_mask: Tensor | None = None,
        expected: float | None = None,
        ledger: Ledger | None = None,
        noise_keys: tuple[str, ...] | None = None,
        privacy: Privacy | None = None,
        pruned: PrunedModels | None = None,
        alpha: float | Tensor = 0.0,
        batch_size: int | None = None,
        share: float | None = None,
    ) -> None:
        counts_private = privacy is not None and privacy.counts_private
        super().__init__(
            *(federation, seeds, round, ids, cost, participation_mask, expected, ledger, noise_keys, pruned),
            counts_private,
            share,
        )
        self.problem = problem
        self.errors: dict[str, Tensor] = {}
        self.mismatched_batches = False
        self._alpha = torch.as_tensor(alpha, dtype=torch.float64)
        self._rows = rows
        self._batch_size = batch_size
        self._secret = privacy is not None and privacy.secret_cohorts
        self._nominal: WeakIdKeyDictionary = WeakIdKeyDictionary()  # a batch's weights -> its public size
        self._records: Records | None = None
        if privacy is not None and privacy.by_gradient:
            self._records = Records(privacy, problem, self.ledger)

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
            Source of the local steps or epochs and the batch size, usually the algorithm.
        steps, epochs, batch_size : int or None
            Override those of `work`. ``steps`` may be a tensor with the number of each client, ``(..., C)``.
        split : str
            Which of the clients' data to use.
        stream : str
            Name of the random stream. Equal streams give equal batches, to any algorithm; different streams are
            independent.
        aligned : bool
            Whether all clients draw the same sample numbers (vertical: the same people).

        Returns
        -------
        Batches
            Iterable of `Batch`, ``(..., C, B, ...)`` each.
        """
        if work is not None:
            batch_size = batch_size or work.batch_size
            if steps is None and epochs is None:
                steps, epochs = work.local_steps, work.local_epochs
                self._refuse_epochs(work)
        records = self._records
        own = records is not None and not records.public and records.privacy.own_draws
        ids, counts, held = self.ids, self._samples(split), self.federation.splits[split]
        entropy, runs = self.noise_keys if own else self.seeds, None
        alike = self._alike and not isinstance(steps, Tensor)
        if self.axes > 1 and not (alike and self.federation.repeats == len(self.seeds)):
            self.mismatched_batches |= self._mismatched(counts, split, batch_size)
        if alike:  # one draw and one look-up for the runs of a seed
            runs, first = len(entropy), slice(None, None, self.federation.repeats)
            ids, counts, entropy, held = (
                ids[first],
                counts[first],
                entropy[first],
                self.federation.distinct[split],
            )
        named = f"{split} {stream}" if records is not None and records.users else stream
        keys = torch.tensor([rng.key(one, "batch", named, self.round) for one in entropy])
        keys = keys[:, None].expand(len(entropy), ids.shape[-1]).flatten()
        who = torch.zeros_like(ids) if aligned else ids
        if records is not None and records.users:  # users are drawn, not samples
            counts = records.counts(self.federation, split)[ids]
        each = steps if isinstance(steps, Tensor) else None
        steps = int(steps.max()) if isinstance(steps, Tensor) else steps
        draw = draw_batches if records is None else records.draw
        order, num_steps = draw(
            counts.flatten(), keys, who.flatten(), steps=steps, epochs=epochs, batch_size=batch_size
        )
        if each is not None:
            order, num_steps = shorten(order, num_steps, each.flatten())
        pool = self.federation.pool
        num_steps = num_steps.view(*ids.shape, 1).to(pool.x)
        redact: Callable[[int, Batch], Batch] = unchanged
        if records is not None:
            redact = records.redaction(stream, order, num_steps, counts, self.federation, split, batch_size)
        elif self.counts_private:
            redact = partial(self._sized, batch_size)
        if records is not None and not records.public:
            order = records.places(order, self.federation, split, ids)
        positions = look_up(order, self._members(held, ids)).to(pool.x.device)
        return Batches(
            pool,
            positions,
            num_steps,
            same=order.stride(0) == 0,
            redact=redact,
            runs=runs,
            shared=self._shares,
        )

    @cached_property
    def _shares(self) -> bool:
        """Whether runs share batches in memory: where vectorized models round alike all the same."""
        vectorized = self._rows.mode == "vmap" and self.problem.kind != "vertical" and self.pruned is None
        return vectorized and rounds_alike(self.problem.module)

    @cached_property
    def _alike(self) -> bool:
        """Whether runs that share their data draw the same batches: they have one seed, and one cohort."""
        each = self.federation.repeats
        if each == 1 or self._records is not None:
            return False
        seeds = all(seed == self.seeds[number - number % each] for number, seed in enumerate(self.seeds))
        rows = (rows.unflatten(0, (-1, each)) for rows in (self.ids, self.participation_mask))
        return seeds and all(bool((own == own[:, :1]).all()) for own in rows)

    def _mismatched(self, counts: Tensor, split: str, batch_size: int | None) -> bool:
        """Whether stacking changes the shapes of batches; for a secret cohort, whether it might, for any cohort."""
        if self._secret and self.share < 1:
            return uneven_batches(self.federation.sizes(split), batch_size)
        return mismatched_batches(counts, self.participation_mask.bool(), batch_size)

    def most_steps(self, work: LocalWork) -> Public:
        """Return the largest number of local steps that any client of the federation takes in a round.

        It does not depend on who is in the cohort. `batches` may hold fewer.
        """
        if work.local_steps is not None:
            return Public(work.local_steps)
        # Nobody with fewer samples takes more steps.
        largest = self.federation.counts().amax(-1, keepdim=True)
        return common(self._all_steps(work, largest).squeeze(-1))

    def mean_steps(self, work: LocalWork, momentum: float = 0.0) -> Public:
        """Return the mean number of local steps of the federation's clients, weighted by their samples.

        It does not depend on who is in the cohort. With momentum it is the mean of their `reach`.
        """
        samples = self.federation.counts()
        counts = (torch.ones_like(samples) if self.counts_private else samples).double()
        taken = torch.as_tensor(reach(self._all_steps(work, samples).double(), momentum))
        return common((counts * taken).sum(-1) / counts.sum(-1).clamp(min=1))

    def _all_steps(self, work: LocalWork, counts: Tensor) -> Tensor:
        """Return the numbers of local steps of clients with ``counts (..., n)`` samples."""
        self._refuse_epochs(work)
        rate = None if self._records is None else self._records.privacy.record_rate
        return all_steps(work, counts, rate)

    def _refuse_epochs(self, work: LocalWork) -> None:
        """Refuse epochs where they would tell private numbers of samples."""
        if work.local_epochs is not None and self.counts_private and self._records is None:
            raise Incompatible(
                "local_epochs: numbers of samples are private, and the number of steps in an epoch depends on "
                "them; use local_steps"
            )
        if work.local_steps is None and self._records is not None and self._records.users:
            raise Incompatible(
                "algorithm.local_steps: missing; under unit user a batch is of users, and the usual length, an "
                "epoch, of samples; give a number of steps"
            )

    def coin(self, p: float, name: str, *, each: bool = False) -> Tensor:
        """Toss a public coin, as in `Cohort`."""
        if self._records is not None:
            raise Incompatible(
                "record-level privacy does not support algorithms that decide by a public coin"
            )
        return super().coin(p, name, each=each)

    def data(self, stream: str = "data") -> Batch:
        """Return all training data of each client as one batch, ``(..., C, N)``."""
        if self._records is not None and self._records.privacy.record_rate is not None:
            raise Incompatible(
                "privacy.adjacency: the algorithm uses all samples of a client at once, whose number add-remove "
                "protects; use zero-out"
            )
        alone = self.axes == 1 and self.everybody and self._records is None and not self.counts_private
        held = self.federation.held if alone else None
        if held is not None and not held.x._version:  # no network has changed its input in place
            return held
        largest = int(self.federation.counts().max())
        batch = next(iter(self.batches(None, steps=1, batch_size=largest, stream=stream)))
        return self._sized(self._batch_size, 0, batch) if self.counts_private else batch

    def _sized(self, size: int | None, step: int, batch: Batch) -> Batch:
        """Note the public number of samples that a batch counts as."""
        self._nominal[batch.weight] = public_size(size)
        return batch

    def grad(self, x: Tensor, batch: Batch) -> Tensor:
        """Return the gradient of each client's mean loss on its batch, ``(..., C, P)``."""
        return self._gradients((x,), batch)[0]

    def grads(self, x: Tensor, y: Tensor, batch: Batch) -> tuple[Tensor, Tensor]:
        """Return the gradients by both variables at one point, ``(..., C, P)`` and ``(..., C, Q)``."""
        gx, gy = self._gradients((x, y), batch)
        return gx, gy

    def grad_y(self, x: Tensor, y: Tensor, batch: Batch) -> Tensor:
        """Return the gradient by the second variable, ``(..., C, Q)``: less work than both."""
        return self._gradients((x, y), batch, by=(1,))[0]

    def grad_x(self, x: Tensor, y: Tensor, batch: Batch) -> Tensor:
        """Return the gradient by the first variable, ``(..., C, P)``."""
        return self._gradients((x, y), batch, by=(0,))[0]

    def gradient(
        self,
        objective: Objective,
        *points: Tensor,
        batch: Batch | PartyBatch,
        by: int | Points = 0,
    ) -> Any:
        """Return the gradient of an objective other than the problem's loss.

        Parameters
        ----------
        objective : Callable[[Problem], Callable]
            ``objective(problem)(*points, batch)`` is a scalar for one client. It must return the same object
            for equal problems (use `functools.lru_cache`), because its operations are measured once. A pruned
            model's problem is the smaller one.
        *points : Tensor
            The variables, ``(..., C, n)`` each.
        batch : Batch or PartyBatch
            The samples.
        by : int or tuple of int
            Numbers of the variables to differentiate by, from 0; several give a tuple of gradients.

        Raises
        ------
        Incompatible
            Under record-level privacy, if the objective is not marked as a mean over samples
            (`harness.core.problem.per_sample`).
        """
        if self._records is not None and not getattr(objective(self.problem), "per_sample", False):
            raise Incompatible(
                "record-level privacy clips each sample's contribution, but the algorithm's objective is not a "
                "mean over samples"
            )
        samples: Any = batch
        gradients = self._gradients(points, samples, (by,) if isinstance(by, int) else by, objective)
        return gradients[0] if isinstance(by, int) else tuple(gradients)

    def _gradients(
        self, points: tuple[Tensor, ...], batch: Batch, by: Points = (), objective: Objective = problem_loss
    ) -> list[Tensor]:
        """Return the gradients by the points numbered ``by``; by all if it is empty."""
        if self._records is not None:
            return self._private_gradients(self._records, points, batch, by, objective)
        return self._of_models(self._rows.gradient, points, batch, by, objective, self._times(batch))

    def _of_models(
        self,
        compute: Callable[..., Sequence[Tensor]],
        points: tuple[Tensor, ...],
        batch: Batch,
        by: Points,
        objective: Objective,
        times: Tensor | Samples,
    ) -> list[Tensor]:
        """Compute gradients, or sums of them, on the smaller models where models are pruned.

        Clients with the same model are computed together. Coordinates that a model lacks are zero. ``times`` are
        those of `_times`.
        """
        if self.pruned is None:
            loss = objective(self.problem)
            self._count_gradients(loss, self.axes, points, batch, by, times)
            return list(compute(loss, self.axes, points, batch, by))
        moving = [points[place] for place in by or range(len(points))]
        gradients = [torch.zeros_like(point.flatten(0, self.axes - 1)) for point in moving]
        for model, where in self.pruned.groups(self.ids):
            pick = lambda t, where=where: t.flatten(0, self.axes - 1)[where]  # noqa: E731
            rows, own = tuple(map(pick, points)), type(batch)(*map(pick, batch))
            loss = objective(model.problem)
            small = tuple(map(model.take, rows))
            self._count_gradients(loss, 1, small, own, by, times * self._among(where))
            for full, part in zip(gradients, compute(loss, 1, small, own, by), strict=True):
                full[where] = model.put(part, full[where])
        return [part.unflatten(0, self.ids.shape) for part in gradients]

    def _count_gradients(
        self,
        loss: Callable[..., Tensor],
        axes: int,
        points: tuple[Tensor, ...],
        batch: Batch,
        by: Points,
        times: Tensor | Samples,
    ) -> None:
        """Count the operations of gradients on the samples counted in ``times``, see `_times`."""
        shown = self._shown(batch, axes)
        flops = self._rows.flops(loss, axes, *points, shown, gradient=True, by=by)
        self.cost.work(flops / shown.weight.shape[-1], times, oracle=True)

    def _private_gradients(
        self, records: Records, points: tuple[Tensor, ...], batch: Batch, by: Points, objective: Objective
    ) -> list[Tensor]:
        """Return DP-SGD gradients: clipped per sample, summed, noised, divided by the expected batch size.

        A sample's gradients by several variables are clipped jointly.
        """
        call = records.book(batch, self.round)
        samples = batch._replace(
            **records.of(batch).batch._asdict()
        )  # keeps the server's fields of a PartyBatch
        options: Any = {"norm": records.privacy.bound(), "ghost": records.privacy.ghost}
        clipped = partial(self._rows.clipped_sums, group=records.each, **options)
        sums = self._of_models(clipped, points, samples, by, objective, self._times(batch))
        mask = None if self.pruned is None else self.pruned.mask_of(sums, self.ids)
        return records.noised(
            sums, batch, call, noise_keys=self.noise_keys, round=self.round, ids=self.ids, mask=mask
        )

    def embed(self, y: Tensor, batch: Batch) -> Tensor:
        """Return the parties' embeddings of their samples, ``(..., C, B, d)``, for `Channel.gather`."""
        return self._embeddings(y, batch, count=True)

    def charge(self, batch: Batch) -> None:
        """Book a release about the records of a batch whose members are public."""
        assert self._records is not None
        self._records.charge(batch)

    def _embeddings(self, y: Tensor, batch: Batch, *, count: bool = False) -> Tensor:
        """Compute embeddings, with the smaller models where models are pruned."""
        batch = batch if self._records is None else self._records.of(batch).batch
        times = self._times(batch) if count else None

        def flat(part: Tensor) -> Tensor:
            return part.flatten(0, self.axes - 1)

        models: list[tuple[SubModel | None, Tensor | slice]] = [(None, slice(None))]
        if self.pruned is not None:
            models = [*self.pruned.groups(self.ids)]
        embeddings: Tensor | None = None
        for model, where in models:
            rows, own = flat(y)[where], type(batch)(*(flat(part)[where] for part in batch))
            rows, problem = (rows, self.problem) if model is None else (model.take(rows), model.problem)
            embed = embedding(problem)
            if times is not None:
                flops = self._rows.flops(embed, 1, rows, own) / own.weight.shape[-1]
                self.cost.work(flops, times * self._among(where), oracle=True)
            h = self._embedded(embed, rows, own)
            if embeddings is None:
                embeddings = h.new_empty(self.ids.numel(), *h.shape[1:])
            embeddings[where] = h
        assert embeddings is not None
        shaped: Tensor = embeddings.unflatten(0, self.ids.shape)
        return shaped

    def _embedded(self, embed: Callable[..., Tensor], y: Tensor, batch: Batch) -> Tensor:
        """Return the embeddings of parties with models of one size."""
        embeddings: Tensor = self._rows.map(embed, 1, y, batch)
        return embeddings

    def prune(self, y: Tensor, batch: Batch) -> Tensor:
        """Prune the parties' models ``(..., C, Q)`` to this round's ratio, each by its own weights.

        Only the first call of a round prunes; later computations use the smaller models. The batch serves to
        measure the effect on the embeddings.
        """
        alpha, self._alpha = self._alpha, torch.zeros((), dtype=torch.float64)
        pruned = prune_own_models(self.problem, y, alpha, self.pruned) if bool((alpha > 0).any()) else None
        if pruned is None or pruned is self.pruned:
            return y
        before, self.pruned = self._embeddings(y, batch), pruned
        y = pruned.masked(y)
        self.note("psi", before - self._embeddings(y, batch), batch)
        return y

    def restrict(self, kept: Tensor | None) -> None:
        """Train and send only the parameters of a public mask ``(P,)`` from here on in this round; None: all.

        The algorithm decides what is pruned, and says with `Channel.announce` what the clients cannot know.
        """
        self._refuse_alpha()
        self.pruned = None if kept is None else sparse_model(self.problem, kept)

    def shrink(self, x: Tensor, ratio: Tensor) -> Tensor:
        """Train and send models without the units of smallest weights in a released model ``(P,)``, in this round.

        ``ratio`` is the share of units that each member lacks, ``(C,)``. The server keeps the whole model: what a
        client lacks counts as unchanged. Returns the share of the parameters that each has, ``(C,)``.
        """
        self._refuse_alpha()
        every = torch.zeros(self.federation.clients, dtype=torch.float64).index_copy(
            0, self.ids, ratio.double().cpu()
        )
        self.pruned = replace(prune_models(self.problem, x, every, None), of_round=True, recovered=True)
        return self.pruned.shares(self.ids)

    def _refuse_alpha(self) -> None:
        if self.pruned is not None and not self.pruned.of_round:
            raise Incompatible("compression.alpha: the algorithm decides itself what is pruned; remove alpha")

    def note(self, name: str, change: Tensor, batch: Batch) -> None:
        """Record the change of a batch's embeddings, ``(..., C, B, d)``, for the next evaluation.

        Parameters
        ----------
        name : str
            One of `ERRORS`.
        change : Tensor
            The change.
        batch : Batch
            The samples.
        """
        assert name in ERRORS
        total = (change.square().sum(-1) * batch.weight).sum(-1)
        self.errors[name] = total / batch.weight.sum(-1).clamp(min=1)

    @property
    def _sizes_private(self) -> bool:
        """Whether the number of samples in a batch is private."""
        return self.counts_private if self._records is None else not self._records.public

    def _times(self, batch: Batch) -> Tensor | Samples:
        """Return how often work on one sample is counted for a batch of each client.

        Numbers ``(..., C, 1)``, or the samples to count later. Every sample of a participating client counts. Where
        the sizes of batches are private, the expected or the nominal size counts for everybody who takes the step.
        """
        if not self._sizes_private:
            weight, shared = batch.weight, self.axes > 1 and batch.weight.stride(0) == 0
            # Once for all runs that share a batch.
            return Samples(weight[:1] if shared else weight, self.participation_mask)
        members = self.participation_mask.unsqueeze(-1).to(batch.weight.device)
        if self._records is None:
            return members * public_size(self._nominal.get(batch.weight, self._batch_size))
        drawn = self._records.of(batch)
        return self._records.each * drawn.divisor.long() * drawn.active.unsqueeze(-1) * members

    def _shown(self, batch: Batch, axes: int) -> Batch:
        """Return a batch to measure the operations on, one slot wide where the width is private."""
        return type(batch)(*(part.narrow(axes, 0, 1) for part in batch)) if self._sizes_private else batch

    def _among(self, where: Tensor | slice) -> Tensor:
        """Return which members of the cohort are selected by ``where``, flattened, ``(..., C, 1)``."""
        found = torch.zeros(self.ids.numel(), dtype=torch.bool, device=self.federation.pool.x.device)
        found[where] = True
        return found.view(*self.ids.shape, 1)

    def each(self, fn: Callable[..., Any], *arguments: Any) -> Any:
        """Apply a function written for one client to every client's rows and batch.

        Parameters
        ----------
        fn : Callable
            Function of one client's vectors and batch. Pass the same object every time, because its operations
            are measured once.
        *arguments : Tensor or Batch
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
        batches = [one for one in arguments if isinstance(one, Batch)]
        shown = [self._shown(one, self.axes) if isinstance(one, Batch) else one for one in arguments]
        flops = self._rows.flops(fn, self.axes, *shown)
        if batches:
            slots = sum(one.weight.shape[-1] for one in shown if isinstance(one, Batch))
            self.cost.work(flops / slots, *map(self._times, batches), oracle=True)
        else:
            self.cost.work(flops, self.participation_mask.unsqueeze(-1))
        return self._mapped(fn, arguments)

    def _mapped(self, fn: Callable[..., Any], arguments: tuple[Any, ...]) -> Any:
        """Return the function's results for all clients."""
        return self._rows.map(fn, self.axes, *arguments)

    def labels(self, batch: Batch) -> Batch:
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
