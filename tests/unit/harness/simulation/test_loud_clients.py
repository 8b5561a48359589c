"""Where one small client decides the noise of all, it is named before the run."""

import numpy as np
import pytest

from harness import run
from harness.config.run import read_spec
from harness.simulation.build import prepare
from harness.simulation.calibration import calibrated

RECORDS = {"unit": "record", "epsilon": 4, "clip": 1}


def warnings(folder, caplog, small, privacy=RECORDS, partition=None):
    """Return what is said of a federation of four sites, of which Ulm has few samples."""
    draw, path = np.random.default_rng(0), folder / f"{small}.csv"
    sites = [*["Ulm"] * small, *(name for name in ("Aalen", "Bonn", "Kiel") for _ in range(100))]
    path.write_text("site,x,y\n" + "".join(f"{s},{draw.normal():.3f},{draw.integers(2)}\n" for s in sites))
    spec = {
        "data": {"name": "csv", "path": str(path), "label": "y", "client": "site"},
        "partition": {"kind": "natural", **(partition or {})},
        "model": "logistic",
        "algorithm": {"name": "fedavg", "local_steps": 2, "batch_size": 10},
        "privacy": privacy,
        "rounds": 2,
    }
    calibrated(prepare(read_spec(spec)))
    calibrated(prepare(read_spec(spec | {"seed": 1})))
    return [record.getMessage() for record in caplog.records if "sets the noise" in record.getMessage()]


def test_the_client_that_sets_the_noise_of_all_is_named(tmp_path, caplog):
    """20 samples, of which 14 train: a rate of 10/14. The others train on 70: 1/7. Said once for all seeds."""
    (said,) = warnings(tmp_path, caplog, 20)
    assert "Ulm has the fewest training samples, so it sets the noise of all" in said
    assert "partition.at_least" in said and "client 3" not in said


@pytest.mark.parametrize(
    ("small", "changes"),
    [
        (80, {}),
        (21, {"privacy": RECORDS | {"noise": "per_client"}}),
        (22, {"partition": {"at_least": 30}}),
        (23, {"privacy": {"unit": "record", "noise_multiplier": 1.0, "clip": 1}}),
        (24, {"privacy": {"unit": "client", "placement": "central", "epsilon": 8, "clip": 1}}),
    ],
)
def test_nobody_is_named_where_nobody_decides(tmp_path, caplog, small, changes):
    """Clients of much the same size, noise of their own, the small one left out, given noise, another unit."""
    assert warnings(tmp_path, caplog, small, **changes) == []


def test_the_client_that_is_named_is_that_of_the_privacy_statement(tmp_path, caplog):
    """Ulm trains on 3 samples, one step an epoch at rate 1; Bern on 33, two at rate 32/33, which cost more."""
    draw, path = np.random.default_rng(0), tmp_path / "visits.csv"
    counts = {"Aalen": 100, "Bern": 47, "Bonn": 100, "Kiel": 100, "Ulm": 4}
    sites = [site for site, count in counts.items() for _ in range(count)]
    path.write_text("site,x,y\n" + "".join(f"{s},{draw.normal():.3f},{draw.integers(2)}\n" for s in sites))
    spec = {
        "data": {"name": "csv", "path": str(path), "label": "y", "client": "site"},
        "partition": {"kind": "natural"},
        "model": "logistic",
        "algorithm": {"name": "fedavg", "local_epochs": 2, "batch_size": 32},
        "privacy": RECORDS,
        "rounds": 2,
    }
    record = run(spec, tmp_path / "out")
    (said,) = [one.getMessage() for one in caplog.records if "sets the noise" in one.getMessage()]
    assert record.final["privacy"]["unit_most"] == 1
    assert "Bern has records that are drawn most often, so it sets the noise of all" in said
