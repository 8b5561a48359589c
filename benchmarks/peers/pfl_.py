"""FedAvg by pfl: SimulatedBackend and FederatedAveraging, in one process or in two."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Iterator

from task import Rounds, Task, build, client, load, options

ADDRESSES, RANK = "PFL_WORKER_ADDRESSES", "PFL_WORKER_RANK"


def start_workers(workers: int) -> list[subprocess.Popen[str]]:
    """Start the other workers, as pfl's guide says: the same program with another rank."""
    if workers == 1 or RANK in os.environ:
        return []
    with socket.socket() as free:
        free.bind(("localhost", 0))
        port = free.getsockname()[1]
    os.environ[ADDRESSES] = ",".join([f"localhost:{port}"] * workers)
    started = []
    for rank in range(1, workers):
        environment = os.environ | {RANK: str(rank)}
        started.append(
            subprocess.Popen([sys.executable, *sys.argv], stdin=subprocess.PIPE, text=True, env=environment)
        )
    os.environ[RANK] = "0"
    return started


given = options(("1x2", "2x1", "1x1"))
second = RANK in os.environ
workers = start_workers(given.workers)

# pfl connects its workers while it is imported.
import numpy as np
import torch
from pfl.aggregate.simulate import SimulatedBackend
from pfl.algorithm.base import NNAlgorithmParams
from pfl.algorithm.federated_averaging import FederatedAveraging
from pfl.callback.base import TrainingProcessCallback
from pfl.data.federated_dataset import FederatedDataset
from pfl.data.pytorch import PyTorchTensorDataset
from pfl.data.sampling import get_user_sampler
from pfl.hyperparam import NNEvalHyperParams, NNTrainHyperParams
from pfl.metrics import Metrics
from pfl.model.pytorch import PyTorchModel
from pfl.privacy.gaussian_mechanism import GaussianMechanism
from pfl.privacy.privacy_mechanism import CentrallyAppliedPrivacyMechanism
from torch import Tensor, nn
from torch.nn import functional


class ScoredNet(nn.Module):
    """The network with the two functions that pfl asks for."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, x: Tensor) -> Tensor:
        """Return the classes' scores."""
        return self.network(x)

    def loss(self, x: Tensor, y: Tensor) -> Tensor:
        """Return the cross-entropy."""
        return functional.cross_entropy(self(x), y)

    def metrics(self, x: Tensor, y: Tensor) -> dict[str, object]:
        """Return nothing: what is evaluated is the common model."""
        return {}


class ShuffledSamples(PyTorchTensorDataset):
    """One client's samples, in a new order in every pass; pfl goes through them in their own."""

    def __init__(self, number: int) -> None:
        self.task, self.pair = load(given.folder)[0], client(given.folder, number)
        super().__init__(self.pair, user_id=str(number))

    def iter(self, batch_size: int | None) -> Iterator[tuple[Tensor, Tensor]]:
        """Go through them once."""
        return self.task.batches(*self.pair)


class Turns(TrainingProcessCallback):
    """Begins and ends the rounds."""

    def __init__(self, rounds: Rounds) -> None:
        self.rounds = rounds

    def on_train_begin(self, *, model: PyTorchModel) -> Metrics:
        """Wait for the first round."""
        self.rounds.begin()
        return Metrics()

    def after_central_iteration(
        self, aggregate_metrics: Metrics, model: PyTorchModel, *, central_iteration: int
    ) -> tuple[bool, Metrics]:
        """Tell the round."""
        self.rounds.end(lambda: model.pytorch_model)
        return False, Metrics()


def mechanisms(task: Task) -> list[object]:
    """Return what clips and adds noise."""
    if task.placement is None:
        return []
    gaussian = GaussianMechanism(task.clip, task.noise / task.clip)
    return [CentrallyAppliedPrivacyMechanism(gaussian) if task.placement == "central" else gaussian]


def follow() -> None:
    """Start the round of the other workers."""
    for worker in workers:
        print(file=worker.stdin, flush=True)


def main() -> None:
    """Run the rounds."""
    np.random.seed(0)  # noqa: NPY002 - workers have to draw the same
    rounds = Rounds(given.folder, given.rounds, given.wait, follow if given.wait else None, quiet=second)
    task, module = rounds.task, ScoredNet(build(given.folder))
    clients = [ShuffledSamples(number) for number in range(len(task.sizes))]
    sampler = get_user_sampler("minimize_reuse", list(range(len(clients))))
    data = FederatedDataset(clients.__getitem__, sampler)
    central = torch.optim.SGD(module.parameters(), lr=1.0)
    FederatedAveraging().run(
        NNAlgorithmParams(
            central_num_iterations=given.rounds,
            evaluation_frequency=given.rounds + 1,
            train_cohort_size=len(clients),
            val_cohort_size=None,
        ),
        SimulatedBackend(training_data=data, val_data=data, postprocessors=mechanisms(task)),
        PyTorchModel(module, torch.optim.SGD, central),
        NNTrainHyperParams(
            local_num_epochs=task.local_epochs,
            local_num_steps=task.local_steps,
            local_learning_rate=task.lr,
            local_batch_size=task.batch_size,
        ),
        NNEvalHyperParams(local_batch_size=None),
        callbacks=[Turns(rounds)],
        send_metrics_to_platform=False,
    )
    for worker in workers:
        worker.wait()


if __name__ == "__main__":
    main()
