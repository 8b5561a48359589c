"""`Simulation`: a federated run, one round at a time.

This is the only round loop, and the only place that assembles clients and channel.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Self

import torch
from torch import Tensor

from compression.select import ratio_at
from datasets.federation import Federation, stack
from harness.core import rng
from harness.core.algorithm import Algorithm, Release
from harness.core.clients.clients import Clients
from harness.core.clients.pruning import PrunedModels, masked_state, prune_models, pruned_models
from harness.core.clients.row_table import RowTable, of_run
from harness.core.cost import Cost
from harness.core.errors import Incompatible
from harness.core.execution.vectorize import ClientExecutor
from harness.core.per_run import for_each, side_by_side
from harness.core.problem import Problem
from harness.core.settings.compression import PLAIN, Compression
from harness.core.settings.privacy import Privacy, PrivacyTerms
from harness.core.wire.channel import Channel
from harness.core.wire.client_chunks import round_in_chunks
from harness.core.wire.diagnostics import RELEASED
from harness.core.wire.known_terms import Round
from harness.simulation.cohorts import Cohorts
from harness.simulation.divergence import distinct, finite_runs, keep_finite, touched
from harness.simulation.evaluation import EvaluatedClients, Unprotected, measure
from harness.simulation.noise_keys import default_noise_keys
from harness.simulation.one_run import OneRun
from harness.simulation.setup import Prepared, Setup, new_executor
from harness.simulation.snapshot import DIGITS, Diverged, Evaluation, Snapshot
from harness.simulation.stacking import slices
from harness.simulation.statement import protected_units, released, statement
from privacy.ledger import Ledger


class Simulation:
    """An algorithm on a problem and a federation, between two rounds.

    Runs that differ only in seed and in numbers such as noise can be stacked. All tensors then have a leading axis
    of runs.

    Parameters
    ----------
    problem : Problem
        The problem.
    federation : Federation
        The data of the clients; for several seeds a stack (`datasets.federation.stack`).
    algorithm : Algorithm or sequence of Algorithm
        The algorithm, or one per run; they may differ in numbers such as step sizes.
    privacy : Privacy, sequence of Privacy or None
        The mechanism, or one per run; they may differ in noise and clip norm only.
    compression : Compression or sequence of Compression
        Compression of messages and models, or one per run; they may differ in ratio and threshold only.
    seeds : sequence of int
        One per run.
    cohort : float or None
        Expected number of clients per round, or the public number that stands for it; None: all.
    rate : float or None
        Public probability of each client to take part; default: ``cohort`` over the number of clients.
    balanced : bool
        Whether public cohorts take turns instead of being drawn.
    noise_keys : sequence of str or None
        Key of the noise of each run; for noise from the system's entropy, a secret. Default: a
        digest of the arguments.
    mixing : Tensor or None
        Mixing matrix of a gossip algorithm, ``(..., total, total)``.
    start : Mapping[str, Tensor] or None
        Start values ``(..., P)``; drawn by the problem if None.
    executor : ClientExecutor or None
        How one-client functions are run. None: dense models vectorized, others in a loop.
    in_chunks : bool or None
        Whether to process the cohort client by client. None: if clients are run in a loop and the algorithm allows
        it.
    federations : sequence of Federation
        Federation of each run for evaluations. Default: its slice of the stacked one.
    diagnostics : bool
        Whether values of private data that no noise protects are computed for the researcher: of training samples,
        and of messages before their noise.
    clients, evaluated_clients, channel : Callable
        Replacements for tests, audits and dry runs: what makes the clients of a round, those of an evaluation, and
        the channel.

    Attributes
    ----------
    each : tuple of OneRun
        What each run has of its own.
    round : int
        Rounds done.
    cohorts : Cohorts
        Who takes part in which round.
    state : NamedTuple of tensors
        State of the algorithm; rows that clients keep may be a `harness.core.clients.row_table.RowTable`.
    cost, ledger : Cost, Ledger
        Bytes, operations and releases so far.
    channel_state : dict[str, Tensor]
        State of the channel, such as residuals.
    pruned : PrunedModels or None
        The pruned models.
    diagnostics : dict[str, Tensor]
        Diagnostics of the channel in the last diagnosed round, ``(...)`` each.

    Examples
    --------
    >>> from harness import Simulation, prepare
    >>> problem = {"kind": "quadratic_minimax", "P": [1, 2], "B": [1, 2], "Q": [1, 2], "c": [2, -2], "d": [0, 4]}
    >>> setup = prepare({"problem": problem, "algorithm": {"name": "local_sgda", "local_steps": 2}})
    >>> simulation = Simulation(setup.problem, setup.federation, setup.algorithm, seeds=(1,))
    >>> before = simulation.evaluate().metrics["stationarity"]
    >>> for _ in range(5):
    ...     simulation.step()
    >>> simulation.evaluate().metrics["stationarity"] < before
    True
    """

    def __init__(
        self,
        problem: Problem,
        federation: Federation,
        algorithm: Algorithm | Sequence[Algorithm],
        privacy: Privacy | Sequence[Privacy] | None = None,
        compression: Compression | Sequence[Compression] = PLAIN,
        seeds: Sequence[int] = (0,),
        *,
        cohort: float | None = None,
        rate: float | None = None,
        balanced: bool = False,
        noise_keys: Sequence[str] | None = None,
        mixing: Tensor | None = None,
        start: Mapping[str, Tensor] | None = None,
        executor: ClientExecutor | None = None,
        in_chunks: bool | None = None,
        federations: Sequence[Federation] = (),
        diagnostics: bool = True,
        clients: Callable[..., Clients] = Clients,
        evaluated_clients: Callable[..., Clients] = EvaluatedClients,
        channel: Callable[..., Channel] = Channel,
    ) -> None:
        count = len(seeds)
        algorithms, privacies = for_each(algorithm, count), for_each(privacy, count)
        compressions, data = for_each(compression, count), federations or slices(federation, count)
        settings = zip(seeds, algorithms, privacies, compressions, data, strict=True)
        self.each = tuple(OneRun(*own) for own in settings)
        self.algorithm, self.privacy = side_by_side(algorithms), side_by_side(privacies)
        self.compression = side_by_side(compressions)
        self.problem = problem = self.algorithm.view(problem)
        self.executor = executor or new_executor(problem, "vmap" if problem.dense else "loop")
        self.unprotected = _unprotected(self.privacy, diagnostics=diagnostics)
        if mixing is not None and count > 1 and mixing.ndim == 2:
            mixing = mixing.expand(count, -1, -1)
        unchanged = count > 1 and not self.algorithm.meta.pooled
        training = federation if unchanged else _stacked([run.training for run in self.each])
        self.start = _drawn_start(problem, seeds, training.pool.x) if start is None else dict(start)
        if noise_keys is None:
            draws = cohort if rate is None else (cohort, rate), balanced
            values = [*self.start.values(), *([] if mixing is None else [mixing])]
            noise_keys = default_noise_keys(problem, self.each, draws, values)
        keys = tuple(noise_keys)
        self.cohorts = Cohorts(training.clients, cohort, balanced, self.privacy, tuple(seeds), keys, rate)
        by_record = problem.kind == "vertical" and self.privacy is not None and self.privacy.by_gradient
        charged = int(training.counts().max()) if by_record else training.clients
        self.cost, self.ledger = Cost(self._lead), Ledger(charged, self._lead)
        self.channel_state: dict[str, Tensor] = {}
        self.diagnostics: dict[str, Tensor] = {}
        self.errors: dict[str, Tensor] = {}
        self.pruned: PrunedModels | None = None
        self.round = 0
        wanted = self.executor.mode == "loop" and divisible(self) if in_chunks is None else in_chunks
        self._in_chunks = wanted and not _banded(self.privacy)
        self._new_clients, self._evaluated_clients = partial(clients, training, problem), evaluated_clients
        self._new_channel = partial(
            channel, mixing=mixing, privacy=self.privacy, compression=self.compression
        )
        self.state = self._initialized()
        _refuse_kept_models(self)

    @classmethod
    def from_setup(cls, setup: Setup, **options: Any) -> Self:
        """Return the simulation of a run, or of a stack of them; ``options`` as for the class.

        Raises
        ------
        TypeError
            If the noise of its budget has not been found.
        """
        if not isinstance(setup, Setup):
            raise TypeError(
                "the noise of a prepared run is not known; use harness.simulation.calibration.calibrated"
            )
        arguments = {
            "problem": setup.problem,
            "federation": setup.federation,
            "algorithm": [run.algorithm for run in setup.each],
            "privacy": [run.privacy for run in setup.each] if setup.privacy is not None else None,
            "compression": [run.compression for run in setup.each],
            "seeds": setup.seeds,
            "cohort": setup.spec.cohort and setup.spec.cohort.expected,
            "rate": setup.spec.cohort and setup.spec.cohort.rate,
            "balanced": setup.spec.cohort is not None and setup.spec.cohort.kind == "balanced",
            "noise_keys": [run.noise_key for run in setup.each],
            "mixing": setup.mixing,
            "start": setup.start,
            "executor": setup.executor,
            "in_chunks": setup.in_chunks,
            "federations": [run.federation for run in setup.each],
            "diagnostics": setup.diagnostics,
        }
        return cls(**{**arguments, **options})

    @property
    def _lead(self) -> tuple[int, ...]:
        """Leading axes of tensors: that of the runs, if they are several."""
        return (len(self.each),) if len(self.each) > 1 else ()

    def _initialized(self) -> Any:
        """Return the state before the first round, to which all clients contribute."""
        self.ledger.begin()
        everybody = self.clients(torch.arange(self.cohorts.total), -1, expected=self.cohorts.everybody_counts)
        channel = self.channel(everybody)
        state = self.algorithm.init(self.start, everybody, channel)
        self._finish_round(everybody, channel)
        return keep_finite(None, state, self._lead, everybody) if self.rows_private else state

    def step(
        self, ids: Tensor | None = None, *, diagnose: bool = False, drawn: bool = False, ahead: float = 0.0
    ) -> None:
        """Run one round.

        Noise is calibrated for the rounds of a spec. Further rounds are booked and spend more than its budget; see
        `statement`.

        Parameters
        ----------
        ids : Tensor, optional
            The clients of the cohort, ``(C,)``, ascending; drawn unless given.
        diagnose : bool
            Whether the channel records diagnostics.
        drawn : bool
            Whether ``ids`` stand for a cohort that the run draws by itself, as in dry runs. Otherwise they are
            public and charged without amplification.
        ahead : float
            Expected number of future rounds per past round; see `ClientExecutor.expecting`.

        Raises
        ------
        Incompatible
            If the round releases more than its noise is calibrated for.
        Diverged
            If the state is no longer finite. Under unit client rows that clients keep do not count; a client keeps
            its old row for one that is not finite.
        """
        self._prune()
        if ids is None:
            clients = self.cohort(ahead)
        else:
            clients = self.clients(ids, self.round, expected=self.cohorts.expected, chosen=not drawn)
        self._begin_round(clients)
        algorithm, before = self.algorithm.at(self.round), self.state
        advance = partial(algorithm.round, before)
        releases_values = isinstance(algorithm, Release) and algorithm.release == "value"
        channel = self.channel(clients, diagnose, advance if releases_values else None)
        if self._in_chunks:
            self.state = round_in_chunks(advance, clients, channel.for_client, self.executor)
        else:
            self.state = advance(clients, channel)
        finite = finite_runs(self._deciding(before, clients), self._lead)
        if self.rows_private:
            self.state = keep_finite(before, self.state, self._lead, clients)
        self._finish_round(clients, channel)
        if diagnose:
            self.diagnostics = {name: value.detach().cpu() for name, value in channel.diagnostics.items()}
        pruned = clients.pruned
        if pruned is not None and pruned is not self.pruned and not pruned.of_round:
            self._apply_pruning(pruned)
        if self.unprotected == "all":
            self.errors |= clients.errors
        self.round += 1
        self._refuse_more_releases()
        if not bool(finite.all()):
            raise Diverged(self.round, tuple((~finite).nonzero()[:, 0].tolist()))

    def evaluate(self, number: int = 0, *, final: bool = False) -> Evaluation:
        """Evaluate one run on its test data; with ``final`` also on training data if there are groups."""
        metrics, predictions = measure(
            self.problem,
            self.each[number].federation,
            self.executor,
            self._state_of(number),
            self.personal(number) if self.problem.predict is not None else None,
            gossip=self.algorithm.meta.gossip,
            final=final,
            unprotected=self.unprotected,
        )
        means = {name: float(each.mean()) for name, each in sorted(self._errors_of(number).items())}
        metrics |= {name: value if math.isfinite(value) else None for name, value in means.items()}
        return Evaluation(metrics, predictions)

    def personal(self, number: int = 0) -> Any:
        """Return the models that the clients of one run use, after any local personalization."""
        run = self.each[number]
        clients = self._evaluated_clients(
            run.training,
            self.problem,
            self.executor,
            seeds=(run.seed,),
            round=self.round,
            ids=torch.arange(run.training.clients),
            cost=Cost(),
            noise_keys=self.cohorts.noise_keys[number : number + 1],
            privacy=run.privacy,
        )
        model = run.algorithm.at(self.round).personal(self._state_of(number), clients)
        return model.dense() if isinstance(model, RowTable) else model

    @property
    def rows_private(self) -> bool:
        """Whether rows that clients keep are private: they have passed no mechanism."""
        return self.privacy is not None and self.privacy.unit == "client"

    def keeps_models(self, number: int = 0) -> bool:
        """Whether predictions are made by models that clients keep, which no mechanism protects."""
        if self.privacy is None or self.algorithm.meta.gossip:
            return False
        model = self.personal(number)
        return model.ndim > 1 if isinstance(model, Tensor) else self.rows_private  # else: parties' networks

    def snapshot(self, number: int = 0) -> Snapshot:
        """Return the state of one run."""
        cost = {name: int(count.reshape(-1)[number]) for name, count in self.cost.state().items()}
        values = {
            name: float(f"{value.reshape(-1)[number]:.{DIGITS}g}")
            for name, value in self.diagnostics.items()
            if self.unprotected == "all" or name in RELEASED
        }
        finite = {name: value for name, value in values.items() if math.isfinite(value)}
        state, errors = self._state_of(number), self._errors_of(number)
        return Snapshot(self.round, state, cost, self.statement(number), errors, finite)

    def statement(self, number: int = 0) -> dict[str, Any] | None:
        """Return the privacy statement of one run so far; None without privacy."""
        run, vertical = self.each[number], self.problem.kind == "vertical"
        if run.privacy is None:
            return None
        units = self.cohorts.everybody_counts or protected_units(run.privacy, run.training, vertical=vertical)
        return statement(run.privacy, self.ledger, number, vertical=vertical, units=units)

    def released(self, number: int = 0) -> list[list[Any]] | None:
        """Return what one run has released about its most exposed unit so far, see `statement.released`."""
        privacy = self.each[number].privacy
        return None if privacy is None else released(privacy, self.ledger, number)

    def state_dict(self) -> dict[str, Any]:
        """Return everything that the remaining rounds depend on."""
        pruned, (draws, participation) = self.pruned, self.ledger.state()
        return {
            "round": self.round,
            "state": self.state._asdict(),
            "channel": dict(self.channel_state),
            "draws": draws,
            "participation": {name: torch.from_numpy(values) for name, values in participation.items()},
            "cost": self.cost.state(),
            "errors": dict(self.errors),
            "diagnostics": dict(self.diagnostics),
            "pruned": pruned
            and (pruned.ratio, torch.stack([m.mask for m in pruned.models]).cpu(), pruned.which),
        }

    def load_state_dict(self, checkpoint: Mapping[str, Any]) -> None:
        """Continue from what `state_dict` returned, for a simulation of the same run."""
        self.round = checkpoint["round"]
        device = next(iter(self.start.values())).device
        self.state = type(self.state)(**{name: each.to(device) for name, each in checkpoint["state"].items()})
        self.channel_state = {name: value.to(device) for name, value in checkpoint["channel"].items()}
        arrays = {name: counts.numpy() for name, counts in checkpoint["participation"].items()}
        self.ledger.restore(checkpoint["draws"], arrays)
        self.cost.restore(checkpoint["cost"])
        self.errors = dict(checkpoint["errors"])
        self.diagnostics = dict(checkpoint.get("diagnostics", {}))  # older checkpoints have none
        if checkpoint["pruned"] is not None:
            ratio, masks, which = checkpoint["pruned"]
            self._apply_pruning(pruned_models(self.problem, masks.to(device), which, ratio))

    def clients(
        self,
        ids: Tensor,
        round: int,
        participation_mask: Tensor | None = None,
        expected: float | None = None,
        ahead: float = 0.0,
        *,
        chosen: bool = False,
    ) -> Clients:
        """Return a cohort; for stacked runs ``ids`` are ``(R, C)``, or ``(C,)`` if equal for all runs."""
        prunes = self.problem.kind == "vertical" and round >= 0
        return self._new_clients(
            self.executor.expecting(ahead),
            seeds=self.cohorts.seeds,
            round=round,
            ids=ids.expand(*self._lead, -1) if ids.ndim == 1 else ids,
            cost=self.cost,
            participation_mask=participation_mask,
            expected=expected,
            ledger=self.ledger,
            noise_keys=self.cohorts.noise_keys,
            privacy=self.privacy,
            pruned=self.pruned,
            alpha=ratio_at(self.compression.alpha, round) if prunes else 0.0,
            batch_size=self.algorithm.batch_size,
            share=self.cohorts.public_share(round),
            chosen=chosen,
        )

    def channel(self, clients: Clients, diagnose: bool = False, again: Round | None = None) -> Channel:
        """Return the channel of a cohort; ``again`` as of `Outbox`."""
        return self._new_channel(clients, state=self.channel_state, again=again, diagnose=diagnose)

    def cohort(self, ahead: float = 0.0) -> Clients:
        """Draw this round's cohort; ``ahead`` as of `step`."""
        ids, mask = self.cohorts.draw(self.round)
        if not self._lead or self.cohorts.everybody:
            ids, mask = ids[0], None if mask is None else mask[0]
        return self.clients(ids, self.round, mask, self.cohorts.expected, ahead)

    def _deciding(self, before: Any, clients: Clients) -> list[Tensor]:
        """Return what decides after a round whether a run has diverged."""
        if not self.rows_private:
            changed = [touched(field, clients) for field in self.state]
            rows = [distinct(field) for field in before if field.ndim > len(self._lead) + 1]
            return changed if self.round else changed + rows
        vectors = [field for field in self.state if field.ndim <= len(self._lead) + 1]
        # In gossip a model is made of what its client has sent and received.
        return [*vectors, self.algorithm.model(self.state)] if self.algorithm.meta.gossip else vectors

    def _begin_round(self, clients: Clients) -> None:
        """Open the ledger's round: public members are charged, and everybody if members are secret."""
        secret = self.cohorts.secret and not clients.chosen
        if secret or self.problem.kind == "vertical" or clients.everybody:
            self.ledger.begin()
        else:
            self.ledger.begin(clients.ids.numpy(), clients.participation_mask.numpy())

    def _prune(self) -> None:
        """Prune the model to this round's ratio, and the algorithm's state with it.

        The units are chosen by the server's model, or by the common start if there is none.
        """
        ratio = ratio_at(self.compression.alpha, self.round)
        done = 0.0 if self.pruned is None else self.pruned.ratio
        if self.problem.kind == "vertical" or float(torch.as_tensor(ratio).max()) <= done:
            return
        model, start = self.algorithm.model(self.state), self.start["x"]
        public = model if model.ndim == 1 and not self.algorithm.meta.gossip else start
        public = public[: len(start)]  # a split model is the concatenation of x and y
        self._apply_pruning(prune_models(self.problem, public, ratio, self.pruned))

    def _apply_pruning(self, pruned: PrunedModels) -> None:
        self.pruned, self.state = pruned, masked_state(pruned, self.state)

    def _refuse_more_releases(self) -> None:
        """Raise Incompatible if the last round has released more than its noise is calibrated for."""
        planned = None if self.privacy is None else self.privacy.releases
        if planned is not None and self.ledger.last > planned:
            raise Incompatible(
                f"round {self.round} made {self.ledger.last} releases, but the noise is calibrated for {planned} "
                "per round: the algorithm must release equally often in every round"
            )

    def _finish_round(self, clients: Clients, channel: Channel) -> None:
        if clients.mismatched_batches:
            raise Incompatible(
                "stacked runs have batches of different width, which would change their rounding"
            )
        self.channel_state = channel.state
        self.ledger.end()

    def _state_of(self, number: int) -> Any:
        state = self.state
        return type(state)(*(of_run(field, number) for field in state)) if self._lead else state

    def _errors_of(self, number: int) -> dict[str, Tensor]:
        return {name: each[number] if self._lead else each for name, each in self.errors.items()}


def _drawn_start(problem: Problem, seeds: Sequence[int], like: Tensor) -> dict[str, Tensor]:
    """Return the start values that a problem draws, stacked for several seeds."""
    starts = [problem.init(rng.stream(seed, "start")) for seed in seeds]
    start = {name: torch.stack([values[name] for values in starts]) for name in starts[0]}
    return {name: (x if len(seeds) > 1 else x[0]).to(like) for name, x in start.items()}


def _unprotected(privacy: Privacy | None, *, diagnostics: bool) -> Unprotected:
    """Return which values of private data evaluations have, which no noise protects."""
    if privacy is not None and privacy.spec.strict:
        return "none"
    return "all" if diagnostics or privacy is None else "needed"


def _refuse_kept_models(run: Simulation) -> None:
    """Raise Incompatible if strict predictions are made by models that clients keep, which nothing protects."""
    strict = run.privacy is not None and run.privacy.spec.strict
    if strict and run.problem.predict is not None and run.keeps_models():
        raise Incompatible(
            f"privacy.strict: algorithm {run.algorithm.meta.name} is evaluated by models that clients keep to "
            "themselves; their predictions tell about training data and cohorts, and no noise protects them"
        )


def divisible(run: Simulation | Prepared) -> bool:
    """Whether the cohort of a run can be processed client by client.

    Memories of messages and of noise, factors, adaptive clipping and record-level privacy need the cohort in one
    piece.
    """
    privacy = run.privacy
    joint = privacy is not None and (privacy.clip == "adaptive" or privacy.by_gradient)
    return run.algorithm.meta.chunks and not (joint or _banded(privacy) or run.compression.joins)


def _banded(privacy: PrivacyTerms | None) -> bool:
    return privacy is not None and privacy.spec.mechanism == "banded"


def _stacked(federations: Sequence[Federation]) -> Federation:
    """Return the stack of the runs' federations, or that of a single run."""
    return stack(federations) if len(federations) > 1 else federations[0]
