"""Time and energy after the fact: by hand for equal clients, and in distribution for unequal ones."""

import csv

import numpy as np
import pytest
import yaml

from harness.cli.parser import main
from harness.config.report import Target
from harness.config.system import FILE, Device, Network, System, read_system
from harness.config.yaml import read_yaml
from harness.core.errors import UserError
from harness.report.data.leaderboard import leaderboard
from harness.report.data.results import Results
from harness.report.data.system_costs import _draws, system_costs
from tests.support.records import done, evaluation, spec

PLAIN = System("n", Network(8.0, 4.0, latency_ms=100), "d", Device(2.0, watts=3.0))


def run(*rounds, clients=20, **parts):
    record = done(spec(**parts), *rounds)
    record.final["clients"] = clients
    return Results([record]).runs[0]


def line(round, up, down, flops, **metrics):
    return evaluation(round, **metrics) | {"bytes_up": up, "bytes_down": down, "flops": flops}


def test_equal_clients_by_hand():
    """20 clients, 10 rounds, a megabyte up and two down a client and round, 4 billion operations:
    0.1 + 2 + 2 + 2 = 6.1 s a round; 3 W for 2 s; nothing waits. The target is reached after 5 rounds."""
    whole = 20 * 10
    lines = [line(r, 1e6 * 20 * r, 2e6 * 20 * r, 4e9 * 20 * r, accuracy=r / 10) for r in (0, 5, 10)]
    found = system_costs(run(*lines), PLAIN, Target("accuracy", 0.5))
    assert found.seconds == pytest.approx(61.0)
    assert found.to_target == pytest.approx(30.5)
    assert found.joules == pytest.approx(whole * 6)
    assert found.waiting == pytest.approx(0.0)
    assert system_costs(run(*lines), PLAIN, Target("accuracy", 1.5)).to_target is None


def test_radios_cost_by_the_megabyte():
    network = Network(8.0, 4.0, joules_per_mb_down=1.0, joules_per_mb_up=5.0)
    found = system_costs(run(line(10, 2e8, 4e8, 0)), System("n", network, "d", Device(1.0)))
    assert found.joules == pytest.approx(200 * 5 + 400 * 1)


def test_a_cohort_shares_the_bytes_of_its_round():
    """Five of 20 clients: each sends four times as much as if all took part."""
    all_of_them, five = (run(line(10, 1e8, 0, 0), cohort=cohort) for cohort in (None, {"size": 5}))
    slow = System("n", Network(8.0, 8.0), "d", Device(1e9))
    assert system_costs(five, slow).seconds == pytest.approx(4 * system_costs(all_of_them, slow).seconds)


def test_without_messages_there_is_no_round_trip():
    assert system_costs(run(line(10, 0, 0, 0)), PLAIN).seconds == 0
    assert system_costs(run(line(10, 1, 0, 0)), PLAIN).seconds == pytest.approx(1.0, abs=1e-3)


def test_a_round_waits_for_the_slowest_whose_message_arrives():
    """Lognormal speeds: the mean of the largest of 20 times, and of their mean, by simulation."""
    clients = 4000
    network = Network(8.0, 8.0, spread=0.5)
    record = run(line(1000, 1e6 * 20 * 1000, 0, 0), clients=clients, cohort={"size": 20})
    found = system_costs(record, System("n", network, "d", Device(1e9)))
    times = np.exp(0.5 * np.random.default_rng(0).standard_normal((20_000, 20)))
    assert found.seconds / 1000 == pytest.approx(times.max(1).mean(), rel=0.08)
    assert found.waiting == pytest.approx((1 - times.mean(1) / times.max(1)).mean(), abs=0.03)
    lossy = Network(8.0, 8.0, spread=0.5, dropout=0.5)
    fewer = system_costs(record, System("n", lossy, "d", Device(1e9)))
    assert fewer.seconds / 1000 == pytest.approx(times[:, :10].max(1).mean(), rel=0.08)


def test_all_runs_have_the_same_clients():
    """Twice the bytes are twice the time, whatever the seed of the run and the algorithm."""
    system = System("n", Network(8.0, 8.0, spread=0.5), "d", Device(1e9))
    one, other = (
        system_costs(run(line(10, size, 0, 0), algorithm=name, seed=seed), system)
        for name, seed, size in (("fedavg", 0, 1e6), ("ditto", 7, 2e6))
    )
    assert other.seconds == pytest.approx(2 * one.seconds)


def test_what_lacks_its_rounds_has_no_time():
    record = run(line(10, 1, 1, None))
    assert system_costs(record, PLAIN) is None
    frame = leaderboard(Results([done(spec(), accuracy=0.5)]), system=PLAIN)
    assert frame["system"].tolist() == ["n, d"]


@pytest.mark.parametrize(
    ("network", "device", "said"),
    [
        ("ltee", None, "unknown network 'ltee'. Did you mean 'lte'"),
        (None, "phon", "unknown device 'phon'. Did you mean 'phone'"),
    ],
)
def test_unknown_names_are_refused(network, device, said):
    with pytest.raises(UserError) as refused:
        read_system(network, device)
    assert said in str(refused.value)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ({"down_mbps": 5}, "mine.yaml.up_mbps: missing"),
        ({"down_mbps": 0, "up_mbps": 1}, "down_mbps: input should be greater than 0, given 0"),
        ({"down_mbps": 1, "up_mbps": 1, "dropout": 1}, "dropout: input should be less than 1, given 1"),
        (
            {"down_mbps": 1, "up_mbps": 1, "latency_ms": -1},
            "input should be greater than or equal to 0, given -1",
        ),
        ({"down_mbps": 1, "up_mbs": 1}, "Did you mean 'up_mbps'"),
        ({"down_mbps": 1, "up_mbps": 1, "spreadd": 1}, "spread"),
    ],
)
def test_files_that_are_no_profile_are_refused(tmp_path, content, said):
    (tmp_path / "mine.yaml").write_text(yaml.safe_dump(content))
    with pytest.raises(UserError) as refused:
        read_system(str(tmp_path / "mine.yaml"), None)
    assert said in str(refused.value)


def test_every_profile_that_comes_along_has_a_source():
    profiles = read_yaml(FILE)
    for kind in ("network", "device"):
        for name in profiles[f"{kind}s"]:
            system = read_system(*((name, None) if kind == "network" else (None, name)))
            profile = system.network if kind == "network" else system.device
            assert len(profile.source) > 20
    assert read_system(None, None) is None


def test_clients_are_drawn_once_for_all_settings():
    """Of three seeds, between three evaluations, under five settings: thousands of runs take seconds."""
    records = []
    for seed in range(3):
        for lr in range(5):
            lines = (line(r, r, r, r, accuracy=0.5) for r in (0, 10, 20))
            records.append(done(spec(seed=seed, lr=float(lr + 1)), *lines))
            records[-1].final["clients"] = 100
    _draws.cache_clear()
    for one in Results(records).runs:
        system_costs(one, read_system("lte", "phone"))
    assert _draws.cache_info().misses == 3 * 2


def test_commands(tmp_path, capsys):
    out = str(tmp_path / "out")
    short = ["--data", "breast-cancer", "--clients", "3", "--rounds", "2", "--algorithm", "fedavg"]
    assert main(["run", *short, "--out", out]) == 0
    (tmp_path / "mine.yaml").write_text(yaml.safe_dump({"down_mbps": 1, "up_mbps": 1, "latency_ms": 500}))
    table = tmp_path / "t.csv"
    system = ["--network", str(tmp_path / "mine.yaml"), "--device", "edge"]
    assert main(["leaderboard", out, *system, "--csv", str(table)]) == 0
    (row,) = csv.DictReader(table.read_text().splitlines())
    assert 1.0 < float(row["system_seconds"]) < 1.1
    assert "not measured" in " ".join(capsys.readouterr().out.split())
