"""FedAvg by fluke: one client after the other, as it runs them."""

from __future__ import annotations

import torch

# fluke imports torchvision, whose wheels are built for torch with CUDA: beside a torch for CPUs their operators do
# not load. Two have to be known by name for the rest to be imported; nothing of it is used here.
for operator in ("nms", "qnms"):
    torch.library.define(
        f"torchvision::{operator}", "(Tensor boxes, Tensor scores, float threshold) -> Tensor"
    )

from fluke import FlukeENV
from fluke.algorithms.fedavg import FedAVG
from fluke.client import Client
from fluke.config import OptimizerConfigurator
from fluke.data import FastDataLoader
from fluke.server import Server
from fluke.utils import FederationObserver
from task import Rounds, build, client, options
from torch import nn


class Turns(FederationObserver):
    """Ends the rounds."""

    def __init__(self, rounds: Rounds, server: Server) -> None:
        self.rounds, self.server = rounds, server

    def end_round(self, round: int) -> None:
        """Tell the round."""
        self.rounds.end(lambda: self.server.model)


def main() -> None:
    """Run the rounds."""
    args = options(("1x2",))
    rounds = Rounds(args.folder, args.rounds, args.wait)
    task = rounds.task
    if task.placement == "central":
        rounds.tell(none="fluke has DP-SGD inside of clients (Opacus) and no protection of their changes")
        return
    FlukeENV().set_eval_cfg(pre_fit=False, post_fit=False, locals=False, server=False)
    optimizer = OptimizerConfigurator({"name": "SGD", "lr": task.lr})

    def member(number: int) -> Client:
        batches = FastDataLoader(
            *client(args.folder, number),
            num_labels=task.classes,
            batch_size=task.batch_size,
            shuffle=True,
        )
        loss = nn.CrossEntropyLoss()
        return Client(number, batches, None, optimizer, loss, local_epochs=task.local_epochs)

    clients = [member(number) for number in range(len(task.sizes))]
    server = Server(build(args.folder), None, clients, weighted=True)
    federation = FedAVG(len(clients), None, {}, clients=clients, server=server)
    federation.set_callbacks([Turns(rounds, server)])
    rounds.begin()
    federation.run(args.rounds, 1.0)


if __name__ == "__main__":
    main()
