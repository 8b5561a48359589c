"""FedAvg by Flower's simulation: ServerApp, ClientApp, Ray."""

from __future__ import annotations

import math
import os

os.environ["FLWR_TELEMETRY_ENABLED"] = "0"
os.environ["RAY_USAGE_STATS_ENABLED"] = "0"

import torch
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.clientapp.mod import LocalDpMod
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import DifferentialPrivacyServerSideFixedClipping, FedAvg
from flwr.simulation import run_simulation
from task import Rounds, Task, build, client, load, options

DELTA = 1e-5


def client_app(task: Task) -> ClientApp:
    """Return what clients do."""
    mods = []
    if task.placement == "local":  # its deviation is sensitivity * sqrt(2 log(1.25 / delta)) / epsilon
        epsilon = math.sqrt(2 * math.log(1.25 / DELTA))
        mods = [LocalDpMod(task.clip, task.noise, epsilon, DELTA)]
    app = ClientApp()

    @app.train(mods=mods)
    def train(message: Message, context: Context) -> Message:
        config = message.content["config"]
        torch.set_num_threads(config["threads"])
        folder = config["folder"]
        module = build(folder)
        module.load_state_dict(message.content["arrays"].to_torch_state_dict())
        x, y = client(folder, context.node_config["partition-id"])
        load(folder)[0].train(module, x, y)
        metrics = MetricRecord({"num-examples": len(y)})
        content = RecordDict({"arrays": ArrayRecord(module.state_dict()), "metrics": metrics})
        return Message(content=content, reply_to=message)

    return app


def server_app(folder: str, threads: int, rounds: Rounds) -> ServerApp:
    """Return what the server does."""
    app, task = ServerApp(), rounds.task
    clients = len(task.sizes)

    def after(number: int, arrays: ArrayRecord) -> None:
        def module() -> torch.nn.Module:
            model = build(folder)
            model.load_state_dict(arrays.to_torch_state_dict())
            return model

        if number == 0:
            rounds.begin()
        else:
            rounds.end(module)

    @app.main()
    def main(grid: Grid, context: Context) -> None:
        strategy = FedAvg(fraction_evaluate=0.0, min_train_nodes=clients, min_available_nodes=clients)
        if task.placement == "central":
            multiplier = task.noise / task.clip
            strategy = DifferentialPrivacyServerSideFixedClipping(strategy, multiplier, task.clip, clients)
        strategy.start(
            grid=grid,
            initial_arrays=ArrayRecord(build(folder).state_dict()),
            num_rounds=rounds.total,
            train_config=ConfigRecord({"folder": folder, "threads": threads}),
            evaluate_fn=after,
        )

    return app


def main() -> None:
    """Run the rounds."""
    args = options(("2x1", "1x2", "1x1"))
    rounds = Rounds(args.folder, args.rounds, args.wait)
    run_simulation(
        server_app(args.folder, args.threads, rounds),
        client_app(rounds.task),
        num_supernodes=len(rounds.task.sizes),
        backend_config={
            "init_args": {"num_cpus": args.workers * args.threads},
            "client_resources": {"num_cpus": args.threads, "num_gpus": 0.0},
        },
    )


if __name__ == "__main__":
    main()
