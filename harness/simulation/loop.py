"""The one run loop: a run, or several side by side."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from compression import ratio_at
from harness.core import rng
from harness.core.channel import Channel
from harness.core.clients import Clients
from harness.core.execution import sampling
from harness.core.execution.client_chunks import round_in_parts
from harness.core.registry import Incompatible
from harness.core.wire.cost import Cost
from harness.core.wire.model_pruning import PrunedModels, prune_models, pruned_models
from harness.core.wire.settings import PLAIN, Privacy, PrivacyLog
from harness.simulation.build import Setup
from harness.simulation.calibration import Dry, settle
from harness.simulation.dry_run import Counting
from harness.simulation.recorder import Diverged, Journal, PendingCheckpoint, Point, Progress, finite
from harness.simulation.stacking import join, own_ledger, split, together
from harness.storage.store import RunFolder
from privacy import Ledger

CHECKPOINT_SECONDS = 2.0

# What a claim about records covers whose features parties hold.
FEATURES = (
    "the features that one party holds of one person, against the server and the other parties, labels being "
    "public: replaced by any others (sensitivity twice the clip norm), without amplification by sampling, as all "
    "know who is in a batch; charged is every release about the person who appears most often: the embedding in "
    "each appearance, and the share in each gradient of the party's network"
)


class Run:
    """A run between two rounds: the algorithm's and the channel's state, and what it has cost.

    Of a stack of runs all tensors have a leading axis; the ledger is the first one's, from which `own_ledger` makes
    those of the others.

    Parameters
    ----------
    setup : Setup
        What is run, alone or stacked (`harness.simulation.stacking`).
    dry : {"expected", "largest"} or None
        Compute nothing: messages have their right shape, so releases and cost are right, and nothing else is.
        Where a cost depends on chance it is the expected one, or the largest possible.
    """

    def __init__(self, setup: Setup, dry: Literal["expected", "largest"] | None = None) -> None:
        self.setup = setup
        self.runs = len(setup.each)
        self.cost = Cost((self.runs,) if setup.runs else ())
        self.round = 0
        self.memory: dict[str, Tensor] = {}
        self.privacy_log = PrivacyLog()
        self.thinned: PrunedModels | None = None
        self.errors: dict[str, Tensor] = {}
        self._ratio = 0.0
        self._dry = dry
        total = setup.training.clients
        clients = self.clients(torch.arange(total), -1)
        channel = self.channel(clients)
        self.state = setup.algorithm.init(setup.start, clients, channel)
        self._keep(clients, channel)

    def clients(
        self, ids: Tensor, round: int, participation_mask: Tensor | None = None, expected: int | None = None
    ) -> Clients:
        """Return a cohort of this run; of stacked ones `ids` are each one's, or the same for all."""
        setup = self.setup
        kind = Clients if self._dry is None else Dry
        return kind(
            setup.training,
            setup.problem,
            setup.rows,
            seeds=setup.seeds,
            round=round,
            ids=ids.expand(self.runs, -1) if setup.runs and ids.ndim == 1 else ids,
            cost=self.cost,
            participation_mask=participation_mask,
            expected=expected,
            privacy_log=self.privacy_log,
            privacy=setup.privacy,
            pruned=self.thinned,
            alpha=ratio_at(setup.compression.alpha, round) if self._parties and round >= 0 else 0.0,
        )

    @property
    def _parties(self) -> bool:
        """Whether the models that may be pruned are the clients' own: the algorithm says in a round when."""
        return self.setup.problem.kind == "vertical"

    def channel(self, clients: Clients) -> Channel:
        """Return the way out of that cohort."""
        setup = self.setup
        options: dict[str, Any] = {
            "mixing": setup.mixing,
            "privacy": setup.privacy,
            "compression": setup.compression,
            "state": self.memory,
            "multipliers": setup.multipliers,
        }
        if self._dry is None:
            return Channel(clients, **options)
        return Counting(clients, largest=self._dry == "largest", **options)

    def cohort(self) -> Clients:
        """Draw this round's cohort."""
        spec, total = self.setup.spec, self.setup.training.clients
        if spec.cohort is None or spec.cohort.size >= total:
            return self.clients(torch.arange(total), self.round)
        size = spec.cohort.size
        keys = torch.tensor([rng.key(seed, "cohort", self.round) for seed in self.setup.seeds])
        if spec.privacy is None or spec.privacy.unit == "record" or spec.privacy.sampling != "poisson":
            ids = sampling.cohort(keys, total, size)
            return self.clients(ids if self.setup.runs else ids[0], self.round)
        if self._dry is not None:
            return self.clients(
                torch.arange(size if self._dry == "expected" else total), self.round, None, size
            )
        ids, participation_mask = sampling.poisson(keys, total, size / total)
        if not self.setup.runs:
            ids, participation_mask = ids[0], participation_mask[0]
        return self.clients(ids, self.round, participation_mask, size)

    def advance(self) -> None:
        """Run one round."""
        setup, before = self.setup, self.privacy_log.ledger.releases
        self.prune()
        clients = self.cohort()
        channel = self.channel(clients)
        algorithm = setup.algorithm.at(self.round)
        if algorithm.meta.parts and setup.rows.mode == "loop" and not self._whole:
            self.state = round_in_parts(algorithm, self.state, clients, channel, setup.rows)
        else:
            self.state = algorithm.round(self.state, clients, channel)
        self._keep(clients, channel)
        if clients.pruned is not None and clients.pruned is not self.thinned:
            self._thin(clients.pruned, 0.0)
        self.errors |= clients.errors
        self.round += 1
        privacy = setup.privacy
        if privacy is not None and privacy.releases is not None:
            made = self.privacy_log.ledger.releases - before
            if made > privacy.releases:
                raise Incompatible(
                    f"round {self.round} made {made} releases, and the noise was settled for {privacy.releases} "
                    "a round: the algorithm must send alike in every round"
                )
        sound = torch.stack([part.isfinite().reshape(self.runs, -1).all(-1) for part in self.state]).all(0)
        if not bool(sound.all()):
            raise Diverged(self.round, tuple((~sound).nonzero()[:, 0].tolist()))

    def prune(self) -> None:
        """Prune the model as far as this round's ratio asks, and the algorithm's state with it.

        What goes is decided on the server's model, or on the common start where there is none.
        """
        if self._parties:
            return
        ratio = ratio_at(self.setup.compression.alpha, self.round)
        most = float(torch.as_tensor(ratio).max())
        if most <= self._ratio and (self.thinned is not None or most == 0):
            return
        model = self.setup.algorithm.model(self.state)
        start = self.setup.start["x"]
        public = model if model.ndim == 1 and not self.setup.algorithm.meta.gossip else start
        public = public[: len(start)]  # a model in two halves is evaluated end to end; x comes first
        self._thin(prune_models(self.setup.problem, public, ratio, self.thinned), most)

    def _thin(self, left: PrunedModels, ratio: float) -> None:
        self.thinned, self._ratio = left, ratio
        self.state = type(self.state)(*(left.masked(part) for part in self.state))

    @property
    def _whole(self) -> bool:
        """Whether the cohort must stay together: the channel remembers something, or batches are booked."""
        privacy = self.setup.privacy
        booked = privacy is not None and (privacy.clip == "adaptive" or privacy.unit == "record")
        return booked or self.setup.compression.error_feedback

    def _keep(self, clients: Clients, channel: Channel) -> None:
        if clients.mismatched_batches:
            raise Incompatible(
                "runs side by side have batches of unlike width; apart they would round otherwise"
            )
        self.memory = channel.state

    def checkpoint(self) -> dict[str, Any]:
        """Return all that the rest of the run depends on."""
        left = self.thinned
        return {
            "round": self.round,
            "state": self.state._asdict(),
            "channel": dict(self.memory),
            "ledger": self.privacy_log.ledger.to_json(),
            "charged": self.privacy_log.charged,
            "cost": self.cost.state(),
            "errors": dict(self.errors),
            "pruned": left and (self._ratio, torch.stack([m.mask for m in left.models]).cpu(), left.which),
        }

    def restore(self, checkpoint: dict[str, Any]) -> None:
        """Go on from a checkpoint."""
        self.round = checkpoint["round"]
        device = next(iter(self.setup.start.values())).device
        self.state = type(self.state)(**{name: part.to(device) for name, part in checkpoint["state"].items()})
        self.memory = {name: part.to(device) for name, part in checkpoint["channel"].items()}
        self.privacy_log.ledger, self.privacy_log.charged = (
            Ledger.from_json(checkpoint["ledger"]),
            checkpoint["charged"],
        )
        self.cost.restore(checkpoint["cost"])
        self.errors = dict(checkpoint["errors"])
        if checkpoint["pruned"] is not None:
            ratio, masks, which = checkpoint["pruned"]
            self._thin(pruned_models(self.setup.problem, masks.to(device), which), ratio)

    def points(self) -> list[Point]:
        """Return where each run stands, as its evaluation needs to know."""
        cost, found = self.cost.state(), []
        for number in range(self.runs):
            state = (
                type(self.state)(*(part[number] for part in self.state)) if self.setup.runs else self.state
            )
            own = {name: int(count.reshape(-1)[number]) for name, count in cost.items()}
            errors = {name: each[number] if self.setup.runs else each for name, each in self.errors.items()}
            found.append(Point(self.round, state, own, self.statement(number), errors))
        return found

    def statement(self, number: int = 0) -> dict[str, Any] | None:
        """Return what one run has claimed so far about privacy; None if nothing is."""
        own = self.setup.each[number]
        privacy, given = own.privacy, own.spec.privacy
        if privacy is None or given is None:
            return None
        found = own_ledger(self.privacy_log.ledger, self.setup, number).report(
            privacy.delta, privacy.accountant
        )
        figures = {name: finite(value) for name, value in found.items()}
        return {
            "unit": privacy.unit,
            **({"protects": FEATURES} if self._parties and privacy.unit == "record" else {}),
            "placement": privacy.placement,
            "clip": privacy.clip,
            "adjacency": privacy.adjacency,
            "sampling": privacy.sampling,
            "sampling_rate": privacy.rate,
            "strict": privacy.strict,
            "epsilon_nominal": given.epsilon_nominal,
            **figures,
        }


def settled(setup: Setup) -> Setup:
    """Return the setup with the noise that its budget asks for.

    A dry round shows how many releases there will be at most, and what gossip or the compression refuses. For unit
    record it is one of everybody: in a cohort clients may take fewer steps, and release less. Parties all know who
    is in which batch, so theirs are gone through to the end.
    """
    if setup.privacy is None and setup.mixing is None and setup.compression == PLAIN:
        return setup
    record = setup.privacy is not None and setup.privacy.unit == "record"
    dry = Run(everybody(setup) if record else setup, dry="expected")
    if record and setup.problem.kind == "vertical":
        whole, most = _all_rounds(dry)
    else:
        before, dry.privacy_log.ledger = dry.privacy_log.ledger, Ledger()
        dry.advance()
        each = dry.privacy_log.ledger
        whole, most = before.merge(each.repeat(setup.spec.rounds)), each.releases
    if setup.privacy is None:
        return setup
    every = [replace(one, privacy=_with_noise(one, whole, most)) for one in setup.each]
    return replace(setup, privacy=every[0].privacy, runs=tuple(every) if setup.runs else ())


def _all_rounds(dry: Run) -> tuple[Ledger, int]:
    """Return what a run releases until its end, and in one round at most."""
    most = 0
    while dry.round < dry.setup.spec.rounds:
        before = dry.privacy_log.ledger.releases
        dry.advance()
        most = max(most, dry.privacy_log.ledger.releases - before)
    return dry.privacy_log.ledger, most


def _with_noise(setup: Setup, whole: Ledger, most: int) -> Privacy:
    """Return a run's mechanism with its noise; the runs of a stack release alike and may ask for unlike budgets."""
    assert setup.privacy is not None and setup.spec.privacy is not None
    multiplier = settle(setup.privacy, setup.spec.privacy, whole)
    return replace(setup.privacy, noise_multiplier=multiplier, releases=most)


def everybody(setup: Setup) -> Setup:
    """Return the setup in which all clients take part: nobody can take more local steps, and release more."""
    return replace(setup, spec=setup.spec.model_copy(update={"cohort": None}))


def simulate(
    setup: Setup,
    folder: RunFolder | None = None,
    progress: Progress | None = None,
    predictions: Path | None = None,
) -> dict[str, Any]:
    """Run a single run to the end, from the folder's checkpoint if it has one.

    Parameters
    ----------
    setup : Setup
        What to run.
    folder, progress, predictions : optional
        As in `harness.simulation.recorder.Journal`.

    Returns
    -------
    dict
        Content of ``done.json``.

    Raises
    ------
    Diverged
        If the state is no longer finite.
    """
    (end,) = simulate_all([Journal(setup, folder, progress, predictions)])
    if isinstance(end, Diverged):
        raise end
    return end


def simulate_all(journals: Sequence[Journal]) -> list[dict[str, Any] | Diverged]:
    """Run runs to the end side by side; several must be of one signature and stand at one point.

    A run that diverges is taken out of the stack, and the others go on.

    Returns
    -------
    list of dict or Diverged
        Content of each one's ``done.json``, or why it has none.
    """
    run, live = Run(settled(together([journal.setup for journal in journals]))), tuple(journals)
    spec, rows = run.setup.spec, run.setup.rows
    for journal, own in zip(live, run.setup.each, strict=True):
        journal.open(own)
    if begun := [journal.checkpoint for journal in live if journal.checkpoint is not None]:
        run.restore(join(begun))
    first, saved, here = run.round, time.perf_counter(), PendingCheckpoint((), run.setup, {})
    try:
        while live:
            if run.round % spec.eval_every == 0 or run.round == spec.rounds:
                points = run.points()
                lost = [n for n, journal in enumerate(live) if not journal.evaluate(points[n])]
                run, live = _without(run, live, lost)
            for journal in live:
                journal.tell(run.round)
            if run.round == spec.rounds or not live:
                break
            here = PendingCheckpoint(live, run.setup, run.checkpoint())
            if time.perf_counter() - saved > CHECKPOINT_SECONDS:
                here.save()
                saved = time.perf_counter()
            rows.ahead = (spec.rounds - run.round) / (run.round - first) if run.round > first else 0.0
            began = time.perf_counter()
            diverged = _advance(run)
            for journal in live:
                journal.spent += (time.perf_counter() - began) / len(live)
            run, live = _without(run, live, diverged)
    except KeyboardInterrupt:
        here.save()
        raise
    finally:
        rows.ahead = 0.0
    for journal, point in zip(live, run.points() if live else (), strict=True):
        journal.finish(point, run.runs)
    return [journal.end for journal in journals]


def _advance(run: Run) -> Sequence[int]:
    """Run one round; return the runs that diverged in it."""
    try:
        run.advance()
    except Diverged as error:
        return error.runs
    return ()


def _without(run: Run, live: tuple[Journal, ...], lost: Sequence[int]) -> tuple[Run, tuple[Journal, ...]]:
    """Take diverged runs out of a stack; the others go on as if they had been taken up from a checkpoint."""
    if not lost:
        return run, live
    for number in lost:
        live[number].fail(Diverged(run.round))
    left = [number for number in range(len(live)) if number not in lost]
    if left:
        point, setup = run.checkpoint(), run.setup
        run = Run(together([setup.runs[number] for number in left]))
        run.restore(join([split(point, number, setup) for number in left]))
    return run, tuple(live[number] for number in left)
