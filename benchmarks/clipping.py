"""Print what clipping every record costs: ``python -m benchmarks.clipping``.

Gradients of some clients' batches, sums of clipped gradients of their samples, and the same by ghost clipping, in
turns and on one thread. Small networks are vectorized over clients, convolutional ones go client by client.
"""

from __future__ import annotations

import argparse
from functools import partial
from typing import Any, Literal

import torch

from benchmarks.speed import compare, time_in_turns
from datasets.federation import Batch
from harness import models
from harness.core.execution.vectorize import ClientExecutor
from harness.problems.classify import classifier

# Model, its settings, shape of a sample, clients, samples of each, and how clients are computed.
WORK: tuple[tuple[str, dict[str, Any], tuple[int, ...], int, int, Literal["vmap", "loop"]], ...] = (
    ("mlp", {"hidden": [16]}, (105,), 4, 32, "vmap"),
    ("mlp", {"hidden": [200]}, (105,), 10, 64, "vmap"),
    ("mlp", {"hidden": [300, 200]}, (784,), 4, 32, "vmap"),
    ("fedavg_cnn", {"hidden": 256}, (1, 28, 28), 2, 16, "loop"),
)


def main() -> None:
    """Read the options and measure."""
    options = argparse.ArgumentParser(prog="python -m benchmarks.clipping", description=__doc__)
    options.add_argument("--repeats", type=int, default=5, help="turns")
    options.add_argument("--rounds", type=int, default=3, help="computations in a turn")
    args = options.parse_args()
    torch.set_num_threads(1)
    for model, settings, shape, clients, samples, mode in WORK:
        net = models.build(model, shape, 10, settings)
        problem, executor = classifier(net), ClientExecutor(mode).expecting(100.0)
        count = sum(part.numel() for part in net.parameters())
        generator = torch.Generator().manual_seed(0)
        x = torch.randn((clients, samples, *shape), generator=generator)
        y = torch.randint(10, (clients, samples), generator=generator)
        batch = Batch(x, y, torch.zeros_like(y), torch.ones(clients, samples))
        points = (problem.init(generator)["x"].expand(clients, -1).clone(),)
        print(
            f"{model} of {count:,} parameters, {clients} clients, {samples} samples each, {mode}", flush=True
        )
        plain = partial(executor.gradient, problem.loss, 1, points, batch)
        each = partial(executor.clipped_sums, problem.loss, 1, points, batch, norm=1.0)
        ways: dict[str, Any] = {
            "plain gradients": plain,
            "gradients of samples": each,
            "ghost clipping": partial(each, ghost=True),
        }
        compare(time_in_turns(ways, args.repeats, args.rounds))


if __name__ == "__main__":
    main()
