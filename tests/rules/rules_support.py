"""Small federations, channels and whole runs for the tests of the channel's rules."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from datasets.federation import Batch, Federation
from harness.config.run import read_spec
from harness.core.channel import Channel
from harness.core.clients import Clients
from harness.core.execution.vectorize import Rows
from harness.core.problem import Problem
from harness.core.wire.cost import Cost
from harness.core.wire.model_pruning import PrunedModels
from harness.core.wire.settings import Compression, Privacy, PrivacyLog
from harness.problems.classify import classifier
from harness.simulation.build import Setup, prepare
from harness.simulation.loop import Run, settled

COUNTS = (4, 8, 2, 6)  # samples of each client
RAW = Compression(codec="float64")


def federation(counts: Sequence[int] = COUNTS, features: int = 3) -> Federation:
    """Return clients with so many samples each, drawn once and for all."""
    generator = torch.Generator().manual_seed(7)
    total = sum(counts)
    x = torch.randn(total, features, generator=generator, dtype=torch.float64)
    y = (x.sum(-1) > 0).long()
    ends = torch.tensor(counts).cumsum(0).tolist()
    index = nn.utils.rnn.pad_sequence(
        [torch.arange(end - n, end) for end, n in zip(ends, counts, strict=True)],
        batch_first=True,
        padding_value=-1,
    )
    pool = Batch(x, y, torch.zeros_like(y), torch.ones(total, dtype=torch.float64))
    return Federation(pool, {"train": index, "test": index}, ("0", "1"), (), "made up", "made up")


def privacy(placement: Any = "local", clip: Any = 1.0, z: float = 0.0, **others: Any) -> Privacy:
    """Return a mechanism: replacement for local placement, Poisson cohorts of everybody for central."""
    central = placement == "central"
    given: dict[str, Any] = {
        "unit": "client",
        "placement": placement,
        "clip": clip,
        "noise_multiplier": z,
        "adjacency": "add-remove" if central else "replace",
        "sampling": "poisson" if central else "full",
        "rate": 1.0,
        "delta": 1e-5,
        "accountant": "rdp",
    }
    return Privacy(**(given | others))


def record(clip: float = 1.0, z: float = 0.0, rate: float = 1.0) -> Privacy:
    """Return DP-SGD."""
    return privacy("local", clip, z, unit="record", adjacency="add-remove", sampling="poisson", rate=rate)


def cohort(
    *,
    ids: Sequence[int] | None = None,
    counts: Sequence[int] = COUNTS,
    round: int = 0,
    seeds: tuple[int, ...] = (0,),
    participation_mask: Sequence[int] | None = None,
    expected: int | None = None,
    problem: Problem | None = None,
    mechanism: Privacy | None = None,
    pruned: PrunedModels | None = None,
    mode: Any = "vmap",
    data: Federation | None = None,
) -> Clients:
    """Return a cohort, by default of everybody."""
    data = data or federation(counts)
    numbers = torch.arange(len(counts)) if ids is None else torch.tensor(ids)
    if len(seeds) > 1:
        numbers = numbers.expand(len(seeds), -1)
        splits = {name: index.expand(len(seeds), *index.shape) for name, index in data.splits.items()}
        data = Federation(data.pool, splits, data.classes, data.groups, data.source, data.digest)
    return Clients(
        data,
        problem or classifier(nn.Linear(3, 2)),
        Rows(mode),
        seeds=seeds,
        round=round,
        ids=numbers,
        cost=Cost(tuple(numbers.shape[:-1])),
        participation_mask=None if participation_mask is None else torch.tensor(participation_mask),
        expected=expected,
        privacy_log=PrivacyLog(),
        privacy=mechanism,
        pruned=pruned,
    )


def channel(
    mechanism: Privacy | None = None,
    compression: Compression = RAW,
    *,
    state: dict[str, Tensor] | None = None,
    mixing: Tensor | None = None,
    **members: Any,
) -> Channel:
    """Return the way out of such a cohort."""
    clients = cohort(mechanism=mechanism, **members)
    return Channel(clients, privacy=mechanism, compression=compression, state=state, mixing=mixing)


def rows(size: int, *, clients: int = len(COUNTS), scale: float = 1.0, seed: int = 1) -> Tensor:
    """Return messages ``(clients, size)``."""
    generator = torch.Generator().manual_seed(seed)
    return scale * torch.randn(clients, size, generator=generator, dtype=torch.float64)


def clipped(messages: Tensor, norm: float) -> Tensor:
    """Clip each row, by hand."""
    return messages * (norm / messages.norm(dim=-1, keepdim=True)).clamp(max=1.0)


def largest(messages: Tensor, count: int) -> Tensor:
    """Keep the so many largest entries of each row, by hand."""
    places = messages.abs().argsort(-1, descending=True)[..., :count]
    return torch.zeros_like(messages).scatter(-1, places, messages.gather(-1, places))


def table(folder: Path, count: int = 140) -> Path:
    """Write a small data set with a label and a group."""
    generator = torch.Generator().manual_seed(3)
    x = torch.randn(count, 4, generator=generator)
    y = (x[:, 0] + x[:, 1] + 0.5 * torch.randn(count, generator=generator) > 0).long()
    group = (x[:, 2] > 0).long()
    lines = ["a,b,c,d,group,label"]
    lines += [
        ",".join(f"{value:.4f}" for value in row) + f",g{g},l{label}"
        for row, g, label in zip(x.tolist(), group.tolist(), y.tolist(), strict=True)
    ]
    path = folder / "data.csv"
    path.write_text("\n".join(lines) + "\n")
    return path


def given(data: Path, algorithm: Any = "fedavg", **fields: Any) -> dict[str, Any]:
    """Return a run file's content over that data set: 7 clients, 2 rounds of 2 local steps."""
    if not isinstance(algorithm, dict):
        algorithm = {"name": algorithm, "local_steps": 2, "batch_size": 8}
    return {
        "data": {"name": "csv", "path": str(data), "label": "label", "sensitive": "group"},
        "partition": {"kind": "iid", "clients": 7},
        "model": "logistic",
        "algorithm": algorithm,
        "rounds": 2,
        "eval_every": 2,
        **fields,
    }


def ready(data: Path, algorithm: Any = "fedavg", **fields: Any) -> Setup:
    """Return such a run, its noise settled."""
    return settled(prepare(read_spec(given(data, algorithm, **fields))))


def finished(setup: Setup, rounds: int | None = None) -> Run:
    """Return a run after its rounds."""
    run = Run(setup)
    for _ in range(setup.spec.rounds if rounds is None else rounds):
        run.advance()
    return run
