"""Conformance of settings side by side: runs that differ in numbers get in a stack the bits that they get alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields

from datasets.federation import stack
from harness.core.algorithm import Algorithm
from harness.core.errors import UserError
from harness.core.per_run import Mixed
from harness.testing.small_tasks import Failed, same_state, simulate, small, task_of

ROUNDS = 2
SEEDS = (0, 1)  # of which each has a run of every setting: runs of a seed share their batches


def numbers(cls: type[Algorithm]) -> list[str]:
    """Return the settings in which stacked runs of an algorithm may differ."""
    return [
        field.name
        for field in fields(cls)
        if field.type in ("float", "float | None", float) and field.name not in cls.meta.apart
    ]


def settings_side_by_side(cls: type[Algorithm]) -> None:
    """Get in a stack of runs that differ in numbers and seed the bits of the runs alone.

    First the numbers that are not zero by default differ, then all others, which are set.

    Raises
    ------
    Failed
        If a stack differs from its runs in one bit, or cannot be computed: then the number belongs in `Meta.apart`.
    """
    if not cls.meta.stackable:
        return
    usual = small(cls)
    values = {name: getattr(usual, name) for name in numbers(cls)}
    set_by_default = {name: value for name, value in values.items() if value}
    for chosen in (set_by_default, set_by_default | {n: 0.3 for n, value in values.items() if not value}):
        base = _made(cls, chosen)
        if base is None:  # some settings exclude each other: one by one
            for name in chosen.keys() - set_by_default.keys():
                alone = set_by_default | {name: 0.3}
                if (algorithm := _made(cls, alone)) is not None:
                    _compare(cls, [algorithm], {name: alone})
        else:
            _compare(cls, [base], {name: chosen for name in chosen})


def _compare(cls: type[Algorithm], base: list[Algorithm], changes: dict[str, dict[str, float]]) -> None:
    """Compare a stack of runs that each differ from the first in one number with the runs alone."""
    other = [(name, _made(cls, values | {name: 0.75 * values[name]})) for name, values in changes.items()]
    changed = {name: algorithm for name, algorithm in other if algorithm is not None}
    _check(cls, [*base, *changed.values()], ["", *changed])


def _check(cls: type[Algorithm], algorithms: Sequence[Algorithm], names: Sequence[str]) -> None:
    problem, count = task_of(cls)[0], len(algorithms)
    federations = [task_of(cls, seed)[1] for seed in SEEDS]
    together = stack([federation for federation in federations for _ in algorithms])
    seeds = [seed for seed in SEEDS for _ in algorithms]
    try:
        runs = simulate([*algorithms] * len(SEEDS), (problem, together), rounds=ROUNDS, seeds=seeds)
    except (Mixed, TypeError) as error:
        if len(algorithms) > 2:  # find the number
            for algorithm, name in zip(algorithms[1:], names[1:], strict=True):
                _check(cls, [algorithms[0], algorithm], ["", name])
        raise Failed(f"stacked runs cannot differ in {names[-1]}; name it in Meta.apart ({error})") from error
    for number, seed in enumerate(seeds):
        algorithm, name, federation = (
            algorithms[number % count],
            names[number % count],
            federations[number // count],
        )
        alone = simulate(algorithm, (problem, federation), rounds=ROUNDS, seeds=[seed])
        mine = type(runs.state)(*(part[number] for part in runs.state))
        same_state(f"{name or 'the usual settings'} in a stack", mine, alone.state, exactly=True)


def _made(cls: type[Algorithm], settings: dict[str, float]) -> Algorithm | None:
    """Return the algorithm with these settings; None if they are not allowed."""
    try:
        return small(cls, **settings)
    except UserError:
        return None
