"""Callbacks that write runs to experiment trackers: MLflow, Weights & Biases, Aim. Copy the one that you need.

::

    harness.sweep(spec, {"seed": range(5)}, "results", callbacks=[MLflow("sqlite:///runs.db")])

A run is written when it has ended, so that every executor works and a resumed run is written once.
"""

import harness


def figures(line):
    """Return the figures of an evaluation: metrics, costs and epsilon."""
    costs = {name: line[name] for name in ("bytes_up", "bytes_down", "flops", "oracle_calls")}
    epsilons = {
        name: value for name, value in (line.get("privacy") or {}).items() if name.startswith("epsilon_")
    }
    found = {**line["metrics"], **costs, **epsilons}
    return {name: float(value) for name, value in found.items() if value is not None}


def settings(spec, prefix=""):
    """Return the settings of a run by dotted name, as text."""
    found = {}
    for name, value in spec.items():
        nested = isinstance(value, dict)
        found |= settings(value, f"{prefix}{name}.") if nested else {f"{prefix}{name}": str(value)[:250]}
    return found


def title(record):
    """Return a name for people."""
    return f"{record.spec['algorithm']['name']} seed {record.spec['seed']}"


class MLflow(harness.Callback):
    """A tracking server or a local store; the experiment has the name of the suite. Needs ``mlflow``."""

    def __init__(self, uri):
        from mlflow import MlflowClient

        self.client = MlflowClient(tracking_uri=uri)

    def on_run_end(self, record):
        """Write the run, and delete an earlier one of its id."""
        from mlflow.entities import Metric, Param, RunTag

        client, suite = self.client, record.suite or "fedfrontier"
        known = client.get_experiment_by_name(suite)
        experiment = client.create_experiment(suite) if known is None else known.experiment_id
        for old in client.search_runs([experiment], f"tags.`fedfrontier.id` = '{record.id}'"):
            client.delete_run(old.info.run_id)
        run = client.create_run(experiment, run_name=title(record)).info.run_id
        metrics = [
            Metric(name, value, round(1000 * line["timing"]["seconds"]), line["round"])
            for line in record.rounds
            for name, value in figures(line).items()
        ]
        params = [Param(name, value) for name, value in settings(record.spec).items()]
        client.log_batch(run, tags=[RunTag("fedfrontier.id", record.id)])
        for first in range(0, len(params), 100):  # the most that a server takes at once
            client.log_batch(run, params=params[first : first + 100])
        for first in range(0, len(metrics), 1000):
            client.log_batch(run, metrics=metrics[first : first + 1000])
        client.set_terminated(run, "FINISHED" if record.status == "done" else "FAILED")


class WeightsAndBiases(harness.Callback):
    """A project; the group has the name of the suite. Needs ``wandb``."""

    def __init__(self, project):
        self.project = project

    def on_run_end(self, record):
        """Write the run under its id, which replaces an earlier one."""
        import wandb

        config = settings(record.spec)
        run = wandb.init(
            project=self.project, group=record.suite, name=title(record), id=record.id, config=config
        )
        for line in record.rounds:
            run.log(figures(line), step=line["round"])
        run.finish(exit_code=0 if record.status == "done" else 1)


class Aim(harness.Callback):
    """A repository; the experiment has the name of the suite. Needs ``aim``."""

    def __init__(self, repository):
        self.repository = repository

    def on_run_end(self, record):
        """Write the run."""
        import aim

        run = aim.Run(repo=self.repository, experiment=record.suite or "fedfrontier")
        run.name, run["settings"], run["fedfrontier.id"] = title(record), settings(record.spec), record.id
        for line in record.rounds:
            for name, value in figures(line).items():
                run.track(value, name=name, step=line["round"])
        run.close()
