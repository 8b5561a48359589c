"""FedAvg by BlazeFL: threads, processes, or one client after the other."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import torch
from blazefl.contrib.fedavg import (
    FedAvgBaseClientTrainer,
    FedAvgBaseServerHandler,
    FedAvgProcessPoolClientTrainer,
    FedAvgThreadPoolClientTrainer,
)
from blazefl.core import IPCMode
from task import Rounds, build, client, load, options
from torch import Tensor, nn


class Selector:
    """Returns the model by the name that is a folder."""

    def select_model(self, model_name: str) -> nn.Module:
        """Return it with the start values."""
        return build(model_name)


class Loader:
    """One client's batches; in the place of a DataLoader, which would fetch samples one by one."""

    dataset = None

    def __init__(self, folder: str, number: int, generator: torch.Generator | None) -> None:
        self.task, self.pair, self.generator = load(folder)[0], client(folder, number), generator

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        for step, batch in enumerate(self.task.batches(*self.pair, self.generator)):
            if step == self.task.local_steps:
                return
            yield batch


class Partitions:
    """All clients' data, by the folder, so that processes need not send them to each other."""

    def __init__(self, folder: str) -> None:
        self.folder = folder

    def get_dataset(self, type_: str, cid: int | None) -> None:
        """Return nothing: trainers ask for loaders."""

    def set_dataset(self, type_: str, cid: int | None, dataset: None) -> None:
        """Keep nothing."""

    def get_dataloader(
        self, type_: str, cid: int, batch_size: int | None = None, generator: torch.Generator | None = None
    ) -> Loader:
        """Return a client's batches."""
        return Loader(self.folder, cid, generator)


def main() -> None:
    """Run the rounds."""
    args = options(("threads-2x1", "processes-2x1", "1x2", "threads-1x1"))
    rounds = Rounds(args.folder, args.rounds, args.wait)
    task, clients = rounds.task, len(rounds.task.sizes)
    if task.placement == "central":
        rounds.tell(none="BlazeFL has no differential privacy")
        return
    common = {"dataset": Partitions(args.folder), "device": "cpu", "num_clients": clients, "seed": 0}
    model = {"model_selector": Selector(), "model_name": args.folder, "batch_size": task.batch_size}
    server = FedAvgBaseServerHandler(**common, **model, global_round=args.rounds, sample_ratio=1.0)
    work = common | model | {"epochs": task.local_epochs or 1, "lr": task.lr}
    with tempfile.TemporaryDirectory() as scratch:
        if args.workers == 1:
            trainer = FedAvgBaseClientTrainer(**work)
        elif args.layout.startswith("threads"):
            trainer = FedAvgThreadPoolClientTrainer(**work, num_parallels=args.workers)
        else:
            trainer = FedAvgProcessPoolClientTrainer(
                **work,
                share_dir=Path(scratch) / "share",
                state_dir=Path(scratch) / "state",
                num_parallels=args.workers,
                ipc_mode=IPCMode.SHARED_MEMORY,
            )
        rounds.begin()
        while not server.if_stop():
            cohort = server.sample_clients()
            trainer.local_process(server.downlink_package(), cohort)
            for package in trainer.uplink_package():
                server.load(package)
            rounds.end(lambda: server.model)


if __name__ == "__main__":
    main()
