"""What a run takes at its peak is what was predicted, and the prediction itself takes next to nothing."""

import json
import subprocess
import sys

import pytest
import torch

from harness.config.run import read_spec
from harness.simulation import hollow
from harness.simulation.build import prepare
from harness.simulation.calibration import calibrated
from harness.simulation.dry_run import dry_run
from harness.simulation.footprint import BASELINE, footprint
from harness.simulation.hollow import Hollow, Valued
from harness.simulation.stacking import stack_setups
from tests.support.runs import ready

#: Runs the specs of a file together, and prints the largest resident size of the process. (That of `getrusage` is
#: at least that of the process which started it.)
RUN = r"""
import json, re, sys
from pathlib import Path
import torch
from harness.config.run import read_spec
from harness.executors.local import run_together
from harness.simulation.build import Execution
torch.set_num_threads(Execution().threads)  # like the command: with several threads runs are not stacked
specs = [read_spec(one) for one in json.loads(sys.argv[1])]
ends = run_together(specs, Path(sys.argv[2]), Execution(stack=len(specs)))
assert all(end.status == "done" for end in ends), ends
print(int(re.search(r"VmHWM:\s+(\d+)", Path("/proc/self/status").read_text())[1]) * 1024)
"""
PLAN = r"""
import json, re, sys
from pathlib import Path
from harness.config.run import read_spec
from harness.config.sweep import Combination
from harness.simulation.plan import plan
(row,) = plan([Combination({}, read_spec(json.loads(sys.argv[1])))], timed=False)
print(row["memory"], int(re.search(r"VmHWM:\s+(\d+)", Path("/proc/self/status").read_text())[1]) * 1024)
"""
RECORD = {"unit": "record", "placement": "local", "epsilon": 8, "clip": 1}
STEPS = {"local_steps": 2, "batch_size": 8}


def spec(algorithm="fedavg", hidden=(1000, 1000), clients=20, **fields):
    model = {"name": "mlp", "hidden": list(hidden)} if hidden else {"name": "logistic"}
    return {
        "data": {"name": "breast-cancer"},
        "partition": {"kind": "iid", "clients": clients},
        "model": model,
        "algorithm": algorithm if isinstance(algorithm, dict) else {"name": algorithm, **STEPS},
        "rounds": 2,
        "eval_every": 2,
        **fields,
    }


DIGITS = {"data": {"name": "digits"}}
KINDS = {
    "convolutions in a loop": [
        spec("scaffold", clients=8, **DIGITS, model={"name": "fedavg_cnn", "hidden": 4096})
    ],
    "a thousand clients": [spec(hidden=(), clients=1000, **DIGITS)],
    "rows of all clients": [spec("scaffold", clients=10)],
    "rows of a cohort": [spec("ditto", cohort={"size": 5})],
    "gradients of samples": [spec(hidden=(400, 400), privacy=RECORD)],
    "ghost clipping": [spec(hidden=(800, 800), privacy={**RECORD, "ghost": True})],
    "noise of clients": [spec(privacy={"placement": "local", "epsilon": 8, "clip": 1})],
    "gossip": [spec("d_sgd", clients=12, topology={"kind": "ring"})],
    "a stack of seeds": [spec(clients=4, seed=seed) for seed in range(4)],
    "parties": [
        spec("splitnn", hidden=(1500, 1500), problem="vertical", partition={"kind": "columns", "clients": 3})
    ],
    "bfloat16": [spec(precision="bfloat16")],
}


def output_of(script, *arguments):
    texts = [one if isinstance(one, str) else json.dumps(one) for one in arguments]
    done = subprocess.run([sys.executable, "-c", script, *texts], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    return [int(number) for number in done.stdout.split()]


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_a_run_takes_what_was_predicted(kind, tmp_path) -> None:
    """Within 30 % where that is more than 150 MB."""
    setups = [calibrated(prepare(read_spec(one))) for one in KINDS[kind]]
    predicted = footprint(stack_setups(setups)).total
    (measured,) = output_of(RUN, KINDS[kind], str(tmp_path))
    assert abs(predicted - measured) <= max(0.3 * measured, 150e6), (predicted / 1e6, measured / 1e6)


@pytest.mark.slow
def test_a_plan_of_large_models_takes_no_such_memory() -> None:
    """Models of 9 million parameters for 100 clients: 3.6 GB for one copy, which a run has several of."""
    predicted, taken = output_of(PLAN, spec({"name": "scaffold"}, hidden=(2990, 2990), clients=100))
    assert predicted > 10e9
    assert taken < 800e6


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"privacy": {"placement": "local", "epsilon": 8, "clip": 1}},
        {"privacy": {"placement": "central", "epsilon": 8, "clip": "adaptive"}, "cohort": {"size": 3}},
        {"privacy": RECORD},
        {"privacy": {**RECORD, "ghost": True}, "model": {"name": "mlp", "hidden": [9]}},
        {"compression": {"beta": 0.5, "codec": "q4", "error_feedback": True}},
        {"model": {"name": "mlp", "hidden": [40]}, "compression": {"rank": 2}},
    ],
)
@pytest.mark.parametrize("algorithm", ["fedavg", {"name": "scaffold", **STEPS}])
def test_hollow_models_cost_what_real_ones_do(data, monkeypatch, algorithm, fields) -> None:
    setup = ready(data, algorithm, **fields)
    real = dry_run(setup)
    monkeypatch.setattr(hollow, "LARGE", 0)
    found = dry_run(setup)
    assert found.cost == real.cost
    assert found.releases == real.releases
    assert found.ledger.state()[0] == real.ledger.state()[0]


def test_a_tiny_run_takes_little_but_python_and_torch(data) -> None:
    assert BASELINE < footprint(ready(data)).total < BASELINE + 50e6


def test_a_stack_takes_data_and_torch_once(data) -> None:
    one = footprint(ready(data))
    assert one.times(5).total == one.data + one.baseline + 5 * (one.to_come)


def test_hollow_tensors_have_shapes_types_and_no_values() -> None:
    with Hollow() as mode:
        a = torch.zeros(1000, 100, device="meta")
        b = torch.where(torch.ones(1000, 1, dtype=torch.bool), a.double() * 2, torch.ones(100))
        assert (b.shape, b.dtype, b.is_meta) == (torch.Size([1000, 100]), torch.float64, True)
        assert a[torch.arange(1000) < 3].shape == (3, 100)
        assert torch.arange(3, device=a.device).tolist() == [0, 1, 2]
        assert torch.cat([a, torch.zeros(5, 100)]).shape == (1005, 100)
        assert a.mean(-1).shape == (1000,)
        assert (a > 0).all(-1, keepdim=True).shape == (1000, 1)
        assert mode.live == 400_000 + 800_000
        with pytest.raises(Valued):
            float(a.sum())
        del b
        assert mode.live == 400_000
        assert mode.peak >= 1_600_000
