"""The private side: this round's cohort, its data and what it computes at home."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from datasets.federation import Batch, Federation
from harness.core import rng
from harness.core.execution import sampling
from harness.core.execution.batches import Batches, mismatched_batches
from harness.core.execution.vectorize import Points, Rows
from harness.core.methods.derivatives import PartyBatch, embedding
from harness.core.problem import Objective, Problem, its_loss
from harness.core.registry import Incompatible
from harness.core.wire.cost import Cost
from harness.core.wire.dp_record import Records
from harness.core.wire.model_pruning import Smaller, Thinned, thin_own
from harness.core.wire.settings import Privacy, PrivacyLog

if TYPE_CHECKING:
    from harness.core.algorithm import Algorithm


class Clients:
    """A round's cohort. What it holds and returns stays at home; rows leave through a `Channel` only.

    Leading axes are free: ``...`` below is nothing for one run and ``R`` for R stacked ones.

    Parameters
    ----------
    federation : Federation
        Whose clients.
    problem : Problem
        What they optimize.
    rows : Rows
        How one-client functions are run over the cohort.
    seeds : tuple[int, ...]
        One per run.
    round : int
        Number of the round, from 0; -1 for what happens before the first.
    ids : Tensor
        Client numbers of the cohort, ``(..., C)``, ascending.
    cost : Cost
        Where the work done is counted.
    participation_mask : Tensor, optional
        1 for a cohort member, 0 for a row that only fills up, ``(..., C)``: Poisson cohorts differ in size
        from round to round and between stacked runs.
    expected : int, optional
        Expected size of such a cohort.
    privacy_log : Books, optional
        Where releases are booked.
    privacy : Privacy, optional
        With unit "record" data leave `grad` and `grads` as noisy sums of clipped per-sample gradients only; a
        party's also as embeddings, which `Channel.gather` protects.
    thinned : Thinned, optional
        The pruned model: gradients are computed on the smaller one and are zero elsewhere.
    alpha : float or Tensor
        Share of hidden units that this round removes from the parties' own models, one for all or ``(total,)``,
        when the algorithm says `prune`; vertical problems.

    Attributes
    ----------
    n, total : int
        Clients in the cohort (expected number) and in the federation.
    sizes : Tensor
        Training samples of each cohort member, ``(..., C)``.
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
        thinned: Thinned | None = None,
        alpha: float | Tensor = 0.0,
    ) -> None:
        self.federation = federation
        self.problem = problem
        self.seeds = seeds
        self.round = round
        self.ids = ids
        self.n = expected or ids.shape[-1]
        self.participation_mask = (
            torch.ones_like(ids) if participation_mask is None else participation_mask.to(ids)
        )
        self.total = federation.clients
        self.axes = ids.ndim
        self.cost = cost
        self.privacy_log = privacy_log or PrivacyLog()
        self.thinned = thinned
        self.errors: dict[str, Tensor] = {}
        self.mismatched_batches = False
        self._alpha = torch.as_tensor(alpha, dtype=torch.float64)
        self._rows = rows
        self._strict = privacy is not None and privacy.strict
        self._records: Records | None = None
        if privacy is not None and privacy.unit == "record":
            self._records = Records(privacy, problem, self.privacy_log)
        self.sizes = self._samples("train")

    def part(self, number: int) -> Clients:
        """Return one client of the cohort alone, still as a cohort of (..., 1)."""
        one = object.__new__(Clients)
        one.__dict__.update(self.__dict__)
        one.ids = self.ids[..., number : number + 1]
        one.sizes = self.sizes[..., number : number + 1]
        one.privacy_log = PrivacyLog(self.privacy_log.ledger)
        one.participation_mask = self.participation_mask[..., number : number + 1]
        return one

    @property
    def everybody(self) -> bool:
        """Whether the cohort is the whole federation."""
        return self.ids.shape[-1] == self.total

    @property
    def groups(self) -> int:
        """How many sensitive groups there are, which everybody knows."""
        return len(self.federation.groups)

    @property
    def shares(self) -> Tensor:
        """What part of the cohort's samples each member has, ``(..., C, 1)``; equal ones under strict privacy.

        A share depends on the others' numbers of samples, which are not public then.
        """
        sizes = (torch.ones_like(self.sizes) if self._strict else self.sizes).double()
        return (
            (sizes / sizes.sum(-1, keepdim=True).clamp(min=1)).unsqueeze(-1).to(self.federation.pool.x.device)
        )

    def rows(self, x: Tensor) -> Tensor:
        """Start every client of the cohort from the same vector: ``(..., P)`` to ``(..., C, P)``."""
        return x.unsqueeze(-2).expand(*x.shape[:-1], self.ids.shape[-1], x.shape[-1])

    def take(self, full: Tensor) -> Tensor:
        """Return the cohort's rows of what every client keeps: ``(..., total, P)`` to ``(..., C, P)``."""
        if self.everybody:
            return full
        rows: Tensor = full.flatten(0, -2)[self._flat(full)].unflatten(0, self.ids.shape)
        return rows

    def put(self, full: Tensor, rows: Tensor) -> Tensor:
        """Return ``full`` with the cohort's rows replaced; the others keep theirs."""
        if self.everybody and bool(self.participation_mask.all()):
            return rows
        flat, here = full.flatten(0, -2).clone(), self.participation_mask.flatten().bool().to(full.device)
        flat[self._flat(full)[here]] = rows.flatten(0, -2)[here]
        changed: Tensor = flat.unflatten(0, full.shape[:-1])
        return changed

    def _samples(self, split: str) -> Tensor:
        """Return how many samples each member of the cohort has, ``(..., C)``."""
        return self.take(self.federation.counts(split).unsqueeze(-1)).squeeze(-1)

    def _flat(self, full: Tensor) -> Tensor:
        """Return positions of the cohort in rows of all runs laid end to end."""
        ids = self.ids.to(full.device)
        if self.axes > 1:
            ids = ids + torch.arange(len(ids), device=full.device)[:, None] * full.shape[-2]
        return ids.flatten()

    def batches(
        self,
        work: Algorithm | None,
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
        work : Algorithm or None
            Its local steps or epochs and its batch size, unless given here.
        steps, epochs, batch_size : int or None
            Override the algorithm's. A tensor of steps, ``(..., C)``, is the number of each client.
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
        held = self.take(self.federation.splits[split])  # (..., C, N)
        keys = torch.tensor([rng.key(seed, "batch", stream, self.round) for seed in self.seeds])
        keys = keys[:, None].expand(len(self.seeds), self.ids.shape[-1]).flatten()
        ids = torch.zeros_like(self.ids) if aligned else self.ids
        each = steps if isinstance(steps, Tensor) else None
        steps = int(steps.max()) if isinstance(steps, Tensor) else steps
        deal = sampling.draw_batches if self._records is None else self._records.deal
        counts = self._samples(split).flatten()
        if self.axes > 1:
            self.mismatched_batches |= mismatched_batches(
                counts.view(self.ids.shape), self.participation_mask.bool(), batch_size
            )
        order, num_steps = deal(
            counts, keys, ids.flatten(), steps=steps, epochs=epochs, batch_size=batch_size
        )
        if each is not None:
            num_steps = num_steps.minimum(each.flatten())
            order = torch.where(torch.arange(len(order))[:, None, None] < num_steps[:, None], order, -1)
        flat = held.flatten(0, -2)
        found = flat.gather(1, order.clamp(min=0).transpose(0, 1).flatten(1)).unflatten(1, order.shape[::2])
        positions = torch.where(order >= 0, found.transpose(0, 1), -1)
        device, dtype = self.federation.pool.x.device, self.federation.pool.x.dtype
        num_steps = num_steps.view(*self.ids.shape, 1).to(device, dtype)
        shown: Callable[[int, Batch], Batch] = _as_it_is
        if self._records is not None:
            own, fewest = counts.view_as(self.ids), int(self.federation.counts(split).min())
            shown = self._records.hiding(stream, order, num_steps, own, fewest, batch_size)
        positions = positions.unflatten(1, self.ids.shape).to(device)
        return Batches(self.federation.pool, positions, num_steps, same=order.stride(0) == 0, shown=shown)

    def data(self, stream: str = "data") -> Batch:
        """Return all training data of each client as one batch, ``(..., C, N)``."""
        largest = int(self.federation.counts().max())
        return next(iter(self.batches(None, steps=1, batch_size=largest, stream=stream)))

    def coin(self, p: float, name: str, *, each: bool = False) -> Tensor:
        """Toss a coin that shows 1 with probability ``p`` and else 0, ``(..., 1)``.

        Everybody knows how it falls: it is a function of seed, round, name and client, and of no data.

        Parameters
        ----------
        p : float
            Probability of 1.
        name : str
            Two tosses of one name in a round fall alike.
        each : bool
            One coin for every client, ``(..., C, 1)``, whoever else is in the cohort.
        """
        if self._records is not None:
            raise Incompatible("record-level privacy: what is released must not depend on a coin")
        kind = "each" if each else "common"
        keys = torch.tensor([rng.key(seed, "coin", kind, name, self.round) for seed in self.seeds])
        drawn = rng.uniform(keys[:, None], *([self.ids.view(len(keys), -1)] if each else []))
        shape = (*self.ids.shape, 1) if each else (*self.ids.shape[:-1], 1)
        return (drawn < p).view(shape).to(self.federation.pool.x)

    def normal(self, name: str, step: int, *shape: int) -> Tensor:
        """Draw standard normal numbers for every client's own use, ``(..., C, *shape)``.

        Parameters
        ----------
        name, step : str, int
            Two draws of one name and step in a round are alike.
        *shape : int
            Of what each client gets.
        """
        keys = torch.tensor([rng.key(seed, "normal", name, self.round, step) for seed in self.seeds])
        drawn = rng.normal(keys[:, None], self.ids.view(len(keys), -1), shape)
        return drawn.view(*self.ids.shape, *shape).to(self.federation.pool.x)

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
        batch : Batch or Told
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
        if self.thinned is None:
            loss = objective(self.problem)
            self._count_gradients(loss, self.axes, points, batch, by, busy)
            return list(compute(loss, self.axes, points, batch, by))
        moving = [points[place] for place in by or range(len(points))]
        found = [torch.zeros_like(point.flatten(0, self.axes - 1)) for point in moving]
        for model, where in self.thinned.groups(self.ids):
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
        samples = batch._replace(**records.of(batch).batch._asdict())  # what a party was told stays
        clipped = partial(self._rows.clipped_sums, norm=records.privacy.bound())
        sums = self._of_models(clipped, points, samples, by, objective)
        mask = None if self.thinned is None else self.thinned.mask_of(sums, self.ids)
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

        models: list[tuple[Smaller | None, Tensor | slice]] = [(None, slice(None))]
        if self.thinned is not None:
            models = [*self.thinned.groups(self.ids)]
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
        left = thin_own(self.problem, y, asked, self.thinned) if bool((asked > 0).any()) else None
        if left is None or left is self.thinned:
            return y
        before, self.thinned = self._embeddings(y, batch), left
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


def _as_it_is(step: int, batch: Batch) -> Batch:
    return batch
