"""Time and energy of finished runs on a given network and device, from what the runs recorded.

A round is synchronous: the server waits for the slowest client whose message arrives. A client's time is a round
trip, its share of the bytes down and up at its own speed, and its share of the operations at its own speed. Speeds
are lognormal between clients, drawn by the client's number, so that all runs have the same clients; who takes part
and who drops out is drawn by seed and round.
"""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from harness.config.report import Target
from harness.config.system import System
from harness.core import rng
from harness.report.data.results import Run

MOST_ROUNDS = 100  # drawn for an interval between evaluations; longer ones take their mean

Array = NDArray[np.float64]


class SystemCosts(NamedTuple):
    """Time and energy of a run.

    Attributes
    ----------
    seconds : float
        Of the whole run.
    to_target : float or None
        Seconds up to the first evaluation that reaches the target.
    joules : float
        Energy of all clients together.
    waiting : float
        Share of a round that the mean client of a cohort waits for the slowest.
    """

    seconds: float
    to_target: float | None
    joules: float
    waiting: float


def system_costs(run: Run, system: System, target: Target | None = None) -> SystemCosts | None:
    """Return what a finished run takes; None if it has not recorded its rounds, bytes or clients."""
    clients, ends = _clients(run), _points(run)
    if not clients or not ends:
        return None
    cohort = min(_cohort(run) or clients, clients)
    down_speed, up_speed, compute = _speeds(clients, system)
    network, device = system.network, system.device
    seconds = joules = waiting = rounds = 0.0
    passed: list[float] = []
    before = (0, 0.0, 0.0, 0.0)
    for number, (end, up, down, flops) in enumerate(ends):
        length = end - before[0]
        if length <= 0:
            passed.append(seconds)
            continue
        per_client = [
            (now - then) / (length * cohort) for now, then in zip((up, down, flops), before[1:], strict=True)
        ]
        arriving = per_client[0] * 8e-6 / up_speed
        # Without messages there is no round trip.
        trip = network.latency_ms / 1e3 if per_client[0] + per_client[1] else 0.0
        others = trip + per_client[1] * 8e-6 / down_speed + per_client[2] * 1e-9 / compute
        simulated = min(length, MOST_ROUNDS)
        members, arrived = _draws(clients, cohort, simulated, run.seed, number, network.dropout)
        times = (others + arriving)[members]
        slowest = np.where(arrived.any(-1), np.where(arrived, times, 0.0).max(-1), times.max(-1))
        seconds += length * float(slowest.mean())
        waiting += length * float(
            (1 - np.minimum(times.mean(-1) / np.where(slowest > 0, slowest, 1), 1)).mean()
        )
        rounds += length
        radio = (
            per_client[0] * network.joules_per_mb_up * float(arrived.mean())
            + per_client[1] * network.joules_per_mb_down
        )
        work = device.watts * per_client[2] * 1e-9 * float((1 / compute[members]).mean())
        joules += length * cohort * (radio * 1e-6 + work)
        passed.append(seconds)
        before = end, up, down, flops
    reached = None if target is None else run.at_target(target, passed)
    return SystemCosts(seconds, reached, joules, waiting / rounds if rounds else 0.0)


def _points(run: Run) -> list[tuple[int, float, float, float]]:
    """Return rounds, bytes up and down and operations so far, at every evaluation."""
    columns = [run.curve(name) for name in ("round", "bytes_up", "bytes_down", "flops")]
    return [] if any(None in column for column in columns) else list(zip(*columns, strict=True))


def _clients(run: Run) -> int | None:
    final: dict[str, Any] = run.record.final
    count = final.get("clients") or (run.record.spec.get("partition") or {}).get("clients")
    return None if count is None else int(count)


def _cohort(run: Run) -> int | None:
    cohort = run.record.spec.get("cohort")
    return None if cohort is None else round(cohort.get("divisor") or cohort["size"])


@functools.lru_cache(maxsize=32)
def _speeds(clients: int, system: System) -> tuple[Array, Array, Array]:
    """Return megabits a second down and up, and billions of operations a second, of every client."""
    random = rng.numpy_stream(0, "clients of a system")
    connection, computer = random.standard_normal((clients, 2)).T  # the first clients of more are the same
    factor = np.exp(system.network.spread * connection)
    compute = system.device.gflops * np.exp(system.device.spread * computer)
    return system.network.down_mbps * factor, system.network.up_mbps * factor, compute


@functools.lru_cache(maxsize=256)
def _draws(
    clients: int, cohort: int, rounds: int, seed: int, interval: int, dropout: float
) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """Return the members of the cohorts of some rounds, and whose messages arrive, ``(rounds, cohort)``."""
    random = rng.numpy_stream(seed, "cohorts of a system", interval)
    if cohort == clients:
        members = np.broadcast_to(np.arange(clients), (rounds, clients))
    else:
        members = random.random((rounds, clients)).argsort(-1)[:, :cohort]
    return members, random.random((rounds, cohort)) >= dropout
