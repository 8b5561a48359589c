"""Runs fit into memory before they begin: in chunks, in smaller stacks, or not at all, which is said."""

import json
import subprocess
import sys
from dataclasses import replace

import pytest
import torch

from harness.config.run import read_spec
from harness.core.errors import UserError
from harness.core.execution.memory import Room
from harness.executors import scheduler
from harness.executors.local import run_together
from harness.simulation import room
from harness.simulation.build import prepare
from harness.simulation.calibration import calibrated
from harness.simulation.room import BASELINE, fit, needed
from harness.simulation.setup import Execution
from harness.simulation.stacking import sizes
from harness.storage.store import Store
from tests.support.runs import finished, given

WIDE = {"model": {"name": "mlp", "hidden": [200, 200]}, "partition": {"kind": "iid", "clients": 10}}
SCAFFOLD = {"name": "scaffold", "local_steps": 2}


@pytest.fixture
def left(monkeypatch):
    """Set what is left of the memory."""

    def leave(bytes):
        monkeypatch.setattr(room, "room", lambda: Room(int(bytes), "limit of a test"))

    return leave


def setup_of(data, algorithm="fedavg", **fields):
    return calibrated(prepare(read_spec(given(data, algorithm, **{**WIDE, **fields}))))


def test_what_fits_runs_as_ever(data, left) -> None:
    setup = setup_of(data)
    left(2 * needed(setup).usual)
    found = fit(setup, Execution(), 5)
    assert found.setup is setup
    assert found.most == 2
    assert "more memory, and" in found.note


def test_a_cohort_that_does_not_fit_is_taken_client_by_client(data, left) -> None:
    setup = setup_of(data, precision="float64")
    left(needed(setup).usual / 2)
    found = fit(setup, Execution())
    assert found.setup.in_chunks
    assert found.most == 1
    assert "its clients are computed one after another" in found.note
    assert needed(found.setup).usual < needed(setup).usual / 2
    together, apart = finished(setup), finished(found.setup)
    torch.testing.assert_close(apart.state.x, together.state.x, rtol=0, atol=1e-10)
    assert int(apart.cost.up) == int(together.cost.up)


def test_what_cannot_be_parted_is_refused_with_ways_out(data, left) -> None:
    setup = setup_of(data, SCAFFOLD)
    left(needed(setup).least)
    assert fit(setup, Execution()).most == 1
    left(needed(setup).least - 1)
    with pytest.raises(UserError, match=r"^memory: the run takes at least \d") as error:
        fit(setup, Execution(memory=10**12))
    told = str(error.value)
    assert "left (limit of a test)" in told
    assert "cohort.size" in told
    assert "fewer --jobs" in told
    assert "\n" not in told


def test_a_run_that_has_two_copies_of_its_batch_is_not_refused(left) -> None:
    """As those of whole data have, whose batches are larger than their models."""
    whole = {"name": "scaffold", "local_steps": 1, "batch_size": None}
    setup = calibrated(prepare(read_spec(spec(whole, hidden=(), clients=10, **DIGITS))))
    clients, model, batch = sizes(setup)
    assert batch > 10 * model
    left(4 * clients * (3 * model + 2 * batch))
    assert fit(setup, Execution()).most == 1


def test_models_that_absent_clients_keep_count(left) -> None:
    """All models are evaluated, and the rows of SCAFFOLD are those of the clients that have come once."""
    few = {"hidden": (300, 300), "clients": 100, "cohort": {"size": 2}}
    setup = calibrated(prepare(read_spec(spec("ditto", **few))))
    _, model, _ = sizes(setup)
    held = 98 * 4 * model
    assert held < needed(setup).least < 1.2 * held
    assert needed(setup).usual > 2 * held
    left(held / 2)
    with pytest.raises(UserError, match=r"fewer clients \(partition\.clients\)"):
        fit(setup, Execution())
    short, long = (
        needed(calibrated(prepare(read_spec(spec("scaffold", **few, rounds=rounds))))) for rounds in (2, 100)
    )
    assert short.least < held / 8
    assert long.least - short.least == pytest.approx((1 - 0.98**100) * held, rel=0.05)


def test_activations_of_a_large_batch_count(left) -> None:
    """Of one sample the CNN keeps 2048 + 1024 outputs of ReLU, 512 + 256 of poolings, and 16 of the dense layer.

    These are floats, and for each output of a pooling it keeps a place of eight bytes.
    """
    whole = {"name": "fedavg", "local_steps": 1, "batch_size": None}
    cnn = {"name": "fedavg_cnn", "hidden": 16}
    setup = calibrated(prepare(read_spec(spec(whole, clients=1, **DIGITS, model=cnn))))
    kept = 4 * (2048 + 1024 + 512 + 256 + 16) + 8 * (512 + 256)
    samples = int(setup.federation.counts().max())
    assert samples > 1000
    left(samples * kept)
    with pytest.raises(UserError, match=r"smaller batches \(algorithm\.batch_size\)"):
        fit(setup, Execution())
    left(2 * samples * kept)
    assert fit(setup, Execution()).most == 1
    few = calibrated(prepare(read_spec(spec({**whole, "batch_size": 8}, clients=1, **DIGITS, model=cnn))))
    left(samples * kept)
    assert fit(few, Execution()).most == 1


def test_layers_that_copy_several_samples_only_are_counted(data) -> None:
    """Of one sample a transposed layer is contiguous without a copy."""

    class Transposed(torch.nn.Module):
        def forward(self, x):
            return ((x[:, :1] * torch.ones(3)).exp().T.contiguous() ** 2).T

    setup = setup_of(data)
    network = torch.nn.Sequential(setup.problem.module, Transposed())
    setup = replace(setup, problem=replace(setup.problem, module=network))
    assert needed(setup).usual > 0


def test_a_worker_has_its_share(data, left, monkeypatch) -> None:
    setup = setup_of(data, SCAFFOLD)
    left(10**12)
    monkeypatch.setattr(room, "resident", lambda: 10**8)
    with pytest.raises(UserError, match="one of several workers"):
        fit(setup, Execution(memory=10**8 + needed(setup).least - 1))
    assert fit(setup, Execution(memory=10**8 + needed(setup).least)).most == 1


def test_workers_share_what_is_left(monkeypatch) -> None:
    monkeypatch.setattr(scheduler, "room", lambda: Room(9_000, "limit of a test"))
    assert scheduler._share_of_memory(Execution(stack=2), 3) == Execution(stack=2, memory=3_000)
    monkeypatch.setattr(scheduler, "room", lambda: None)
    assert scheduler._share_of_memory(Execution(), 3) == Execution()


def test_little_memory_is_not_mentioned(data, left) -> None:
    left(10**12)
    assert fit(setup_of(data), Execution()).note == ""


def test_stacks_are_as_large_as_fits_and_write_the_same(data, left, tmp_path) -> None:
    specs = [read_spec(given(data, **WIDE, seed=seed)) for seed in range(4)]
    whole = run_together(specs, tmp_path / "whole", Execution(stack=4))
    left(2.5 * needed(calibrated(prepare(specs[0]))).usual)
    fewer = run_together(specs, tmp_path / "fewer", Execution(stack=4))
    ends = [[Store(tmp_path / name).folder(one.id).end() for one in whole] for name in ("whole", "fewer")]
    assert [one["timing"]["stacked"] for one in ends[0]] == [4] * 4
    assert [one["timing"]["stacked"] for one in ends[1]] == [2] * 4
    assert [one.id for one in fewer] == [one.id for one in whole]
    assert [one["metrics"] for one in ends[0]] == [one["metrics"] for one in ends[1]]


def test_a_refused_run_is_recorded_and_the_others_go_on(data, left, tmp_path) -> None:
    specs = [read_spec(given(data, SCAFFOLD, **WIDE)), read_spec(given(data))]
    left(needed(calibrated(prepare(specs[0]))).least - 1)
    refused, done = run_together(specs, tmp_path, Execution())
    assert (refused.status, done.status) == ("failed", "done")
    status, reason = Store(tmp_path).folder(refused.id).read()[:2]
    assert status == "failed"
    assert reason.startswith("memory: the run takes at least")


#: Runs the specs of a file together, and prints the largest resident size of the process. (That of `getrusage` is
#: at least that of the process which started it.)
RUN = r"""
import json, re, sys
from pathlib import Path
import torch
from harness.config.run import read_spec
from harness.executors.local import run_together
from harness.simulation.setup import Execution
torch.set_num_threads(Execution().threads)  # like the command: with several threads runs are not stacked
specs = [read_spec(one) for one in json.loads(sys.argv[1])]
ends = run_together(specs, Path(sys.argv[2]), Execution(stack=len(specs)))
assert all(end.status == "done" for end in ends), ends
print(int(re.search(r"VmHWM:\s+(\d+)", Path("/proc/self/status").read_text())[1]) * 1024)
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
    "activations of a large batch": [
        spec(
            {"name": "fedavg", "local_steps": 1, "batch_size": None},
            clients=1,
            **DIGITS,
            model={"name": "resnet18", "width": 0.5},
        )
    ],
    "a thousand clients": [spec(hidden=(), clients=1000, **DIGITS)],
    "rows of all clients": [spec("scaffold", clients=10)],
    "models of absent clients": [spec("ditto", hidden=(400, 400), clients=200, cohort={"size": 5}, **DIGITS)],
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
def test_a_run_takes_roughly_what_was_estimated(kind, tmp_path) -> None:
    """Hardly less than the least for which it is refused, and at most three times as much as is usual."""
    setups = [calibrated(prepare(read_spec(run))) for run in KINDS[kind]]
    done = subprocess.run(
        [sys.executable, "-c", RUN, json.dumps(KINDS[kind]), str(tmp_path)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    need, measured = needed(setups[0]), int(done.stdout)
    to_come = measured - BASELINE - need.data
    assert len(setups) * need.least <= to_come + 150e6, (need, measured)
    assert to_come <= 3 * len(setups) * need.usual + 150e6, (need, measured)
