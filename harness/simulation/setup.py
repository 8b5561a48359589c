"""Runs that are ready: how they are executed, and what is prepared of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from functools import lru_cache
from typing import Literal

import torch
from torch import Tensor

from datasets.federation import Federation
from harness.config.code import checked_code
from harness.config.run import RunSpec
from harness.core.algorithm import Algorithm
from harness.core.errors import Incompatible, UserError
from harness.core.execution.vectorize import ClientExecutor
from harness.core.flat_model import loops_of
from harness.core.problem import Problem
from harness.core.settings.compression import Compression
from harness.core.settings.privacy import Privacy, PrivacyTerms
from harness.simulation.totals import DryRun

CACHED_PROBLEMS = 4  # problems of earlier runs that later runs can reuse


@dataclass(frozen=True)
class Execution:
    """Execution options; never part of a run's identity.

    Attributes
    ----------
    device : str
        A torch device.
    vectorize : {"auto", "vmap", "loop"}
        How clients are run. auto: dense models vectorized, convolutions on a CPU in a loop.
    threads : int
        Worker threads of the loop.
    stack : int or None
        Largest number of stacked runs, which differ in seed and numbers such as noise; 1: no stacking. None: as
        many as is faster.
    diagnostics : bool
        Whether runs with privacy also write values of private data that no noise protects: of training samples,
        and of messages before their noise.
    noise_code : str or None
        Repeat the noise that a run has had under other code, to verify it: the digest in its record or in the
        column ``noise_code`` of a leaderboard, or ``none`` for a record without one. None: noise of its own for the
        code that is imported.
    memory : int or None
        Bytes that this process may take in all, as one of several workers; None: what is left when a run begins.
    """

    device: str = "cpu"
    vectorize: Literal["auto", "vmap", "loop"] = "auto"
    threads: int = 1
    stack: int | None = None
    diagnostics: bool = False
    noise_code: str | None = None
    memory: int | None = None

    def __post_init__(self) -> None:
        try:
            kind = torch.device(self.device).type
        except RuntimeError:
            raise UserError(f"device: invalid device {self.device!r}; expected cpu or cuda[:N]") from None
        if kind == "cuda" and not torch.cuda.is_available():
            raise UserError("device: torch finds no CUDA device on this machine; use cpu")
        if self.noise_code is not None:
            checked_code(self.noise_code)

    def executor(self, problem: Problem) -> ClientExecutor:
        """Return the executor of one-client functions of a problem.

        Raises
        ------
        Incompatible
            If clients are to be vectorized, and torch cannot do that with the problem's model.
        """
        if self.vectorize == "vmap" and loops_of(problem.module) in ("clients", "samples"):
            raise Incompatible(
                "vectorize: torch.func.vmap cannot compute the model's gradients for several clients at once, or "
                "computes others than a loop does; use auto or loop"
            )
        dense = problem.dense or (
            torch.device(self.device).type == "cuda" and loops_of(problem.module) in (None, "faster")
        )
        mode = self.vectorize if self.vectorize != "auto" else "vmap" if dense else "loop"
        make = new_executor if problem.constants is None else _shared_executor
        return make(problem, mode, self.threads)


@dataclass(frozen=True)
class Prepared:
    """A prepared run, or a stack of runs, before the noise of its budget is known.

    Attributes
    ----------
    spec : RunSpec
        The run.
    id, noise_key : str
        Identity of the run, and the key of its noise and of its own draws: made of the id and ``code``, or a secret
        from the system's entropy.
    privacy, compression : PrivacyTerms or None, Compression
        Treatment of messages; `harness.simulation.calibration.calibrated` finds the noise.
    algorithm, problem, federation : Algorithm, Problem, Federation
        What the spec names.
    start : dict[str, Tensor]
        Start values.
    mixing : Tensor or None
        Mixing matrix of a gossip algorithm.
    executor : ClientExecutor
        How clients are run.
    diagnostics : bool
        As of `Execution`.
    code : str
        Digest of the code whose noise the run has (`harness.config.code`); empty without noise to be repeated.
    in_chunks : bool or None
        Whether the cohort is processed client by client, as of `harness.simulation.simulation.Simulation`.
    members : tuple of Prepared
        The single runs of a stack (`harness.simulation.stacking`), for which `federation`, `start` and `mixing`
        have a leading axis. Empty for a single run.
    """

    spec: RunSpec
    id: str
    noise_key: str
    privacy: PrivacyTerms | None
    compression: Compression
    algorithm: Algorithm
    problem: Problem
    federation: Federation
    start: dict[str, Tensor]
    mixing: Tensor | None
    executor: ClientExecutor
    diagnostics: bool = False
    code: str = ""
    in_chunks: bool | None = None
    members: tuple[Prepared, ...] = ()

    @property
    def each(self) -> tuple[Prepared, ...]:
        """Single runs: the members of a stack, or this run."""
        return self.members or (self,)

    @property
    def seeds(self) -> tuple[int, ...]:
        """Seed of every single run."""
        return tuple(run.spec.seed for run in self.each)

    @property
    def training(self) -> Federation:
        """Training federation of a single run; for the centralized reference, one client with all data."""
        return self.federation.merged() if self.algorithm.meta.pooled else self.federation

    def with_noise(self, noise: Callable[[PrivacyTerms, int], Privacy], dry: DryRun | None = None) -> Setup:
        """Return the run with the noise that a function gives each single run, by its number."""
        each = [
            Setup(**{**vars(run), "privacy": run.privacy and noise(run.privacy, number)})
            for number, run in enumerate(self.each)
        ]
        if not self.members:
            return replace(each[0], dry=dry)
        whole = {**vars(self), "privacy": each[0].privacy, "members": tuple(each), "dry": dry}
        return Setup(**whole)


@dataclass(frozen=True)
class Setup(Prepared):
    """A prepared run, or a stack of runs, that can be carried out.

    Attributes
    ----------
    privacy : Privacy or None
        The mechanism, with its noise.
    members : tuple of Setup
        The single runs of a stack.
    dry : DryRun or None
        That by which the noise was found.
    """

    privacy: Privacy | None
    members: tuple[Setup, ...] = ()
    dry: DryRun | None = None

    @property
    def each(self) -> tuple[Setup, ...]:
        """Single runs: the members of a stack, or this run."""
        return self.members or (self,)

    def uncalibrated(self) -> Prepared:
        """Return the run without its noise, so that it can be calibrated again after a change."""
        shared = {field.name: getattr(self, field.name) for field in fields(Prepared)}
        return Prepared(**{**shared, "members": tuple(run.uncalibrated() for run in self.members)})


def new_executor(problem: Problem, mode: Literal["vmap", "loop"], threads: int = 1) -> ClientExecutor:
    """Return an executor of one-client functions of a problem, sample by sample where its model needs that."""
    return ClientExecutor(mode, threads, singly=loops_of(problem.module) == "samples")


_shared_executor = lru_cache(maxsize=CACHED_PROBLEMS)(new_executor)
