"""A row of a leaderboard holds all that is needed to repeat it."""

import json

import pandas as pd
import pytest

import harness
from harness.cli.parser import main

SUITE = """
suite: small
base:
  data: {name: breast-cancer}
  partition: {kind: dirichlet, alpha: 0.7, clients: 6, at_least: 8, selection: 0.2, selection_seed: 3, limit: 300}
  model: logistic
  algorithm: {name: fedavg, lr: 0.07, local_steps: 3, batch_size: 9}
  cohort: {size: 3}
  rounds: 3
  eval_every: 2
sweep:
  privacy: [null, {placement: central, epsilon: 9, clip: 0.7}, {unit: record, noise_multiplier: 0.8, clip: 0.4}]
  compression: [{beta: 0.5}, {beta: [[0, 0.2], [2, 0.8]], codec: q8}]
  seed: [4, 7]
"""


def test_rows_are_repeated_from_the_csv_alone(tmp_path):
    """Every figure of every cell comes out again, of runs under the same ids."""
    (tmp_path / "small.yaml").write_text(SUITE)
    out, table = tmp_path / "out", tmp_path / "table.csv"
    assert main(["suite", str(tmp_path / "small.yaml"), "--jobs", "1", "--out", str(out)]) == 0
    assert main(["leaderboard", str(out), "--suite", "small", "--csv", str(table)]) == 0
    frame = pd.read_csv(table)
    assert len(frame) == 6
    for row in frame.to_dict("records"):
        runs = [
            harness.run(json.loads(row["spec"]) | {"seed": int(seed)}, tmp_path / "again")
            for seed in row["seed_list"].split()
        ]
        assert {one.digest for one in runs} == {row["data_digest"]}
        assert all(one.versions == json.loads(row["versions"]) for one in runs)
        for name in ("accuracy", "auroc", "loss"):
            found = sum(one.rounds[-1]["metrics"][name] for one in runs) / len(runs)
            assert found == pytest.approx(row[f"{name}_mean"], rel=1e-12)
    ids = [{path.name for path in (folder / "runs").iterdir()} for folder in (out, tmp_path / "again")]
    assert ids[0] == ids[1] and len(ids[0]) == 12
