"""`Simulation`: a federated run, one round at a time.

This is the only round loop, and the only place that assembles clients and channel.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Self

import torch
from torch import Tensor

from compression import ratio_at
from datasets.federation import Federation, stack
from harness.core import rng
from harness.core.algorithm import Algorithm
from harness.core.channel import Channel
from harness.core.clients import Clients
from harness.core.execution import sampling
from harness.core.execution.client_chunks import round_in_chunks
from harness.core.execution.vectorize import Rows
from harness.core.problem import Problem
from harness.core.registry import Incompatible
from harness.core.wire.cost import Cost
from harness.core.wire.model_pruning import PrunedModels, prune_models, pruned_models
from harness.core.wire.settings import PLAIN, Compression, Privacy, PrivacyLog
from harness.simulation.build import Setup
from harness.simulation.claims import statement
from harness.simulation.evaluation import EvaluatedClients, measure
from harness.simulation.snapshot import Diverged, Evaluation, Snapshot
from harness.simulation.stacking import run_ledger, slices
from privacy import Ledger


class Simulation:
    """An algorithm on a problem and a federation, between two rounds.

    Runs that differ only in seed or noise can be stacked. All tensors then have a leading axis of runs, and
    ``privacy_log`` holds the ledger of the first.

    Parameters
    ----------
    problem : Problem
        The problem.
    federation : Federation
        The data of the clients; for several seeds a stack (`datasets.federation.stack`).
    algorithm : Algorithm
        The algorithm.
    privacy : Privacy, sequence of Privacy or None
        The mechanism, or one per run; they may differ in their noise only.
    compression : Compression
        Compression of messages and models.
    seeds : sequence of int
        One per run.
    cohort : int or None
        Expected number of clients per round; None: all.
    mixing : Tensor or None
        Mixing matrix of a gossip algorithm, ``(..., total, total)``.
    start : Mapping[str, Tensor] or None
        Start values ``(..., P)``; drawn by the problem if None.
    rows : Rows or None
        How one-client functions are run. None: dense models vectorized, others in a loop.
    in_parts : bool or None
        Whether to process the cohort client by client. None: if clients are run in a loop and the algorithm allows
        it.
    federations : sequence of Federation
        Federation of each run for evaluations. Default: its slice of the stacked one.
    clients, channel, poisson : Callable
        Replacements for tests, audits and dry runs: the classes of clients and channel, and the draw of a Poisson
        cohort (`harness.core.execution.sampling.draw_poisson_cohort`).

    Attributes
    ----------
    num_runs, round : int
        Number of stacked runs, and rounds done.
    state : NamedTuple of tensors
        State of the algorithm.
    cost, privacy_log : Cost, PrivacyLog
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
        algorithm: Algorithm,
        privacy: Privacy | Sequence[Privacy] | None = None,
        compression: Compression = PLAIN,
        seeds: Sequence[int] = (0,),
        *,
        cohort: int | None = None,
        mixing: Tensor | None = None,
        start: Mapping[str, Tensor] | None = None,
        rows: Rows | None = None,
        in_parts: bool | None = None,
        federations: Sequence[Federation] = (),
        clients: type[Clients] = Clients,
        channel: Callable[..., Channel] = Channel,
        poisson: Callable[[Tensor, int, float], tuple[Tensor, Tensor]] = sampling.draw_poisson_cohort,
    ) -> None:
        self.algorithm, self.compression = algorithm, compression
        self.problem = problem = algorithm.view(problem)
        self.seeds, self.num_runs, self.stacked = tuple(seeds), len(seeds), len(seeds) > 1
        self.rows = rows or Rows("vmap" if problem.dense else "loop")
        self.privacies = [privacy] if isinstance(privacy, Privacy) else list(privacy or ())
        self.privacy = self.privacies[0] if self.privacies else None
        self.cost = Cost((self.num_runs,) if self.stacked else ())
        self.privacy_log = PrivacyLog()
        self.channel_state: dict[str, Tensor] = {}
        self.diagnostics: dict[str, Tensor] = {}
        self.errors: dict[str, Tensor] = {}
        self.pruned: PrunedModels | None = None
        self.round = 0
        self._pruned_ratio = 0.0
        self._cohort_size, self._mixing, self._in_parts = cohort, mixing, in_parts
        self._clients, self._channel, self._poisson = clients, channel, poisson
        self.federations = list(federations) or slices(federation, self.num_runs)
        pooled = algorithm.meta.pooled
        self._each_training = [one.merged() for one in self.federations] if pooled else self.federations
        self._training = federation
        if pooled or not self.stacked:
            self._training = stack(self._each_training) if self.stacked else self._each_training[0]
        multipliers = [one.noise_multiplier for one in self.privacies]
        differ = len(set(multipliers)) > 1
        self._multipliers = torch.tensor(multipliers, dtype=torch.float64) if differ else None
        self.start = self._draw_start() if start is None else dict(start)
        everybody = self.clients(torch.arange(self.total), -1)
        channel_out = self.channel(everybody)
        self.state = algorithm.init(self.start, everybody, channel_out)
        self._finish_round(everybody, channel_out)

    @classmethod
    def from_setup(cls, setup: Setup, **options: Any) -> Self:
        """Return the simulation of a prepared run, or of a stack of them; ``options`` as for the class."""
        given = {
            "problem": setup.problem,
            "federation": setup.federation,
            "algorithm": setup.algorithm,
            "privacy": [one.privacy for one in setup.each] if setup.privacy is not None else None,
            "compression": setup.compression,
            "seeds": setup.seeds,
            "cohort": setup.spec.cohort and setup.spec.cohort.size,
            "mixing": setup.mixing,
            "start": setup.start,
            "rows": setup.rows,
            "federations": [one.federation for one in setup.each],
        }
        return cls(**{**given, **options})

    @property
    def total(self) -> int:
        """Number of clients."""
        return self._training.clients

    def step(self, ids: Tensor | None = None, *, diagnose: bool = False) -> None:
        """Run one round.

        Noise is calibrated for the rounds of a spec. Further rounds are booked and spend more than its budget; see
        `statement`.

        Parameters
        ----------
        ids : Tensor, optional
            The clients of the cohort, ``(C,)``, ascending; drawn unless given.
        diagnose : bool
            Whether the channel records diagnostics.

        Raises
        ------
        Incompatible
            If the round releases more than its noise is calibrated for.
        Diverged
            If the state is no longer finite.
        """
        before = self.privacy_log.ledger.releases
        self._prune()
        clients = self.cohort() if ids is None else self.clients(ids, self.round)
        channel = self.channel(clients, diagnose)
        algorithm = self.algorithm.at(self.round)
        if self._chunked:
            self.state = round_in_chunks(algorithm, self.state, clients, channel, self.rows)
        else:
            self.state = algorithm.round(self.state, clients, channel)
        self._finish_round(clients, channel)
        if diagnose:
            self.diagnostics = {name: value.detach().cpu() for name, value in channel.diagnostics.items()}
        if clients.pruned is not None and clients.pruned is not self.pruned:
            self._apply_pruning(clients.pruned, 0.0)
        self.errors |= clients.errors
        self.round += 1
        if self.privacy is not None and self.privacy.releases is not None:
            made = self.privacy_log.ledger.releases - before
            if made > self.privacy.releases:
                raise Incompatible(
                    f"round {self.round} made {made} releases, but the noise is calibrated for "
                    f"{self.privacy.releases} per round: the algorithm must release equally often in every round"
                )
        finite = torch.stack([part.isfinite().reshape(self.num_runs, -1).all(-1) for part in self.state]).all(
            0
        )
        if not bool(finite.all()):
            raise Diverged(self.round, tuple((~finite).nonzero()[:, 0].tolist()))

    def evaluate(self, number: int = 0, *, final: bool = False) -> Evaluation:
        """Evaluate one run on its test data; with ``final`` also on training data if there are groups."""
        state = self._state_of(number)
        model = self.personal(number) if self.problem.predict is not None else None
        metrics, predictions = measure(
            self.problem,
            self.federations[number],
            self.rows,
            state,
            model,
            gossip=self.algorithm.meta.gossip,
            final=final,
        )
        metrics |= {name: float(each.mean()) for name, each in sorted(self._errors_of(number).items())}
        return Evaluation(metrics, predictions)

    def personal(self, number: int = 0) -> Any:
        """Return the models that the clients of one run use, after any local personalization."""
        training = self._each_training[number]
        clients = EvaluatedClients(
            training,
            self.problem,
            self.rows,
            seeds=self.seeds[number : number + 1],
            round=self.round,
            ids=torch.arange(training.clients),
            cost=Cost(),
            privacy=self.privacy,
        )
        return self.algorithm.at(self.round).personal(self._state_of(number), clients)

    def snapshot(self, number: int = 0) -> Snapshot:
        """Return the state of one run."""
        cost = {name: int(count.reshape(-1)[number]) for name, count in self.cost.state().items()}
        # Six digits: the last bits of the norm of an average may differ between a stack and a run alone.
        values = {name: float(f"{value.reshape(-1)[number]:.6g}") for name, value in self.diagnostics.items()}
        finite = {name: value for name, value in values.items() if math.isfinite(value)}
        state, errors = self._state_of(number), self._errors_of(number)
        return Snapshot(self.round, state, cost, self.statement(number), errors, finite)

    def statement(self, number: int = 0) -> dict[str, Any] | None:
        """Return the privacy claim of one run so far; None without privacy."""
        if self.privacy is None:
            return None
        ledger = run_ledger(self.privacy_log.ledger, self.privacies, number)
        return statement(self.privacies[number], ledger, vertical=self._vertical)

    def state_dict(self) -> dict[str, Any]:
        """Return everything that the remaining rounds depend on."""
        pruned = self.pruned
        return {
            "round": self.round,
            "state": self.state._asdict(),
            "channel": dict(self.channel_state),
            "ledger": self.privacy_log.ledger.to_json(),
            "charged": self.privacy_log.charged,
            "cost": self.cost.state(),
            "errors": dict(self.errors),
            "diagnostics": dict(self.diagnostics),
            "pruned": pruned
            and (self._pruned_ratio, torch.stack([m.mask for m in pruned.models]).cpu(), pruned.which),
        }

    def load_state_dict(self, checkpoint: Mapping[str, Any]) -> None:
        """Continue from what `state_dict` returned, for a simulation of the same run."""
        self.round = checkpoint["round"]
        device = next(iter(self.start.values())).device
        self.state = type(self.state)(**{name: part.to(device) for name, part in checkpoint["state"].items()})
        self.channel_state = {name: part.to(device) for name, part in checkpoint["channel"].items()}
        self.privacy_log.ledger = Ledger.from_json(checkpoint["ledger"])
        self.privacy_log.charged = checkpoint["charged"]
        self.cost.restore(checkpoint["cost"])
        self.errors = dict(checkpoint["errors"])
        self.diagnostics = dict(checkpoint.get("diagnostics", {}))  # older checkpoints have none
        if checkpoint["pruned"] is not None:
            ratio, masks, which = checkpoint["pruned"]
            self._apply_pruning(pruned_models(self.problem, masks.to(device), which), ratio)

    def clients(
        self,
        ids: Tensor,
        round: int,
        participation_mask: Tensor | None = None,
        expected: int | None = None,
    ) -> Clients:
        """Return a cohort; for stacked runs ``ids`` are ``(R, C)``, or ``(C,)`` if equal for all runs."""
        return self._clients(
            self._training,
            self.problem,
            self.rows,
            seeds=self.seeds,
            round=round,
            ids=ids.expand(self.num_runs, -1) if self.stacked and ids.ndim == 1 else ids,
            cost=self.cost,
            participation_mask=participation_mask,
            expected=expected,
            privacy_log=self.privacy_log,
            privacy=self.privacy,
            pruned=self.pruned,
            alpha=ratio_at(self.compression.alpha, round) if self._vertical and round >= 0 else 0.0,
        )

    def channel(self, clients: Clients, diagnose: bool = False) -> Channel:
        """Return the channel of a cohort."""
        return self._channel(
            clients,
            mixing=self._mixing,
            privacy=self.privacy,
            compression=self.compression,
            state=self.channel_state,
            multipliers=self._multipliers,
            diagnose=diagnose,
        )

    def cohort(self) -> Clients:
        """Draw this round's cohort."""
        size, total = self._cohort_size, self.total
        if size is None or size >= total:
            return self.clients(torch.arange(total), self.round)
        keys = torch.tensor([rng.key(seed, "cohort", self.round) for seed in self.seeds])
        secret = (
            self.privacy is not None and self.privacy.unit == "client" and self.privacy.sampling == "poisson"
        )
        if not secret:
            ids = sampling.draw_fixed_cohort(keys, total, size)
            return self.clients(ids if self.stacked else ids[0], self.round)
        ids, participation_mask = self._poisson(keys, total, size / total)
        if not self.stacked:
            ids, participation_mask = ids[0], participation_mask[0]
        return self.clients(ids, self.round, participation_mask, size)

    @property
    def _vertical(self) -> bool:
        """Whether clients are parties, whose own models the algorithm prunes within a round."""
        return self.problem.kind == "vertical"

    @property
    def _chunked(self) -> bool:
        """Whether the cohort is processed client by client.

        Error feedback, adaptive clipping and record-level privacy need the cohort in one piece.
        """
        if self._in_parts is not None:
            return self._in_parts
        privacy = self.privacy
        joint = privacy is not None and (privacy.clip == "adaptive" or privacy.unit == "record")
        joint = joint or self.compression.error_feedback
        return self.algorithm.meta.parts and self.rows.mode == "loop" and not joint

    def _prune(self) -> None:
        """Prune the model to this round's ratio, and the algorithm's state with it.

        The units are chosen by the server's model, or by the common start if there is none.
        """
        if self._vertical:
            return
        ratio = ratio_at(self.compression.alpha, self.round)
        most = float(torch.as_tensor(ratio).max())
        if most <= self._pruned_ratio and (self.pruned is not None or most == 0):
            return
        model, start = self.algorithm.model(self.state), self.start["x"]
        public = model if model.ndim == 1 and not self.algorithm.meta.gossip else start
        public = public[: len(start)]  # a split model is the concatenation of x and y
        self._apply_pruning(prune_models(self.problem, public, ratio, self.pruned), most)

    def _apply_pruning(self, pruned: PrunedModels, ratio: float) -> None:
        self.pruned, self._pruned_ratio = pruned, ratio
        self.state = type(self.state)(*(pruned.masked(part) for part in self.state))

    def _finish_round(self, clients: Clients, channel: Channel) -> None:
        if clients.mismatched_batches:
            raise Incompatible(
                "stacked runs have batches of different width, which would change their rounding"
            )
        self.channel_state = channel.state

    def _draw_start(self) -> dict[str, Tensor]:
        """Return the start values that the problem draws."""
        starts = [self.problem.init(rng.stream(seed, "start")) for seed in self.seeds]
        start = {name: torch.stack([one[name] for one in starts]) for name in starts[0]}
        return {n: (x if self.stacked else x[0]).to(self._training.pool.x) for n, x in start.items()}

    def _state_of(self, number: int) -> Any:
        return type(self.state)(*(part[number] for part in self.state)) if self.stacked else self.state

    def _errors_of(self, number: int) -> dict[str, Tensor]:
        return {name: each[number] if self.stacked else each for name, each in self.errors.items()}
