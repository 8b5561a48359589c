"""Print what the accounting of each client saves: ``python -m benchmarks.privacy [noise] [accuracy] [audit]``.

``noise``: noise multipliers at equal epsilon, charged as everybody (every client for every round, the smallest
client's rate with the largest client's steps) and as each client is. ``accuracy``: what runs reach with either.
``audit``: the broken mechanisms of the tests that the audit catches, and lower bounds on epsilon from one run.
"""

from __future__ import annotations

import argparse
import math
import statistics
import time
from collections.abc import Iterator, Mapping
from contextlib import redirect_stdout
from functools import partial
from io import StringIO
from typing import Any

import numpy as np
import pytest

from harness.config.run import read_spec
from harness.simulation.build import prepare
from harness.simulation.calibration import calibrated
from harness.simulation.dry_run import dry_run
from harness.simulation.loop import simulate
from harness.simulation.setup import Setup
from privacy.accounting import account, calibrate
from privacy.event import Event
from privacy.gaussian import analytic_sigma, gaussian_epsilon
from privacy.one_run import one_run_epsilon, one_run_gaussian_epsilon

DELTA = 1e-5
MUTANTS = "tests/unit/harness/testing/test_mutants.py"
Fields = Mapping[str, Any]

DIGITS: Fields = {
    "data": "digits",
    "partition": {"kind": "iid", "clients": 100},
    "model": "logistic",
    "algorithm": {"name": "fedavg", "lr": 0.5, "local_steps": 5},
    "rounds": 100,
    "eval_every": 100,
}
CANCER: Fields = {
    "data": "breast-cancer",
    "partition": {"kind": "dirichlet", "alpha": 0.5, "clients": 15},
    "model": "logistic",
    "algorithm": {"name": "fedavg", "lr": 0.5, "local_epochs": 1, "batch_size": 8},
    "rounds": 20,
    "eval_every": 20,
}
LOCAL = {"placement": "local", "clip": 0.5}
RANDOM, BALANCED = {"size": 10}, {"size": 10, "kind": "balanced"}


def calibrated_run(fields: Fields, seed: int = 0, **more: Any) -> Setup:
    """Return a calibrated run."""
    return calibrated(prepare(read_spec({**fields, "seed": seed, **more})))


def multiplier(setup: Setup) -> float:
    """Return the noise multiplier of a run."""
    assert setup.privacy is not None
    return setup.privacy.noise_multiplier


def rate_and_steps(setup: Setup) -> tuple[float, int]:
    """Return the smallest client's rate and the largest client's number of steps in the run."""
    counts, batch = setup.federation.counts(), setup.algorithm.batch_size
    largest, fewest = int(counts.max()), int(counts.min())
    return min(1.0, batch / fewest), setup.spec.rounds * math.ceil(largest / batch)


def noise() -> Iterator[tuple[str, str, str, str]]:
    """Yield a case, its noise multipliers or epsilons charged as everybody and as each client, and their ratio."""
    for epsilon in (30, 8, 2):
        shared = calibrate(epsilon, DELTA, [Event(1.0, 1.0, 100)])
        for name, cohort in (("random", RANDOM), ("balanced", BALANCED)):
            each = multiplier(calibrated_run(DIGITS, privacy={**LOCAL, "epsilon": epsilon}, cohort=cohort))
            yield (
                f"z, local, 10 of 100, T 100, ε {epsilon}, {name} cohorts",
                f"{shared:.3g}",
                f"{each:.3g}",
                f"{shared / each:.2f}",
            )
    for seed in range(3):
        setup = calibrated_run(CANCER, seed, privacy={"unit": "record", "clip": 0.5, "epsilon": 4})
        rate, steps = rate_and_steps(setup)
        shared, each = calibrate(4, DELTA, [Event(1.0, rate, steps)]), multiplier(setup)
        yield (
            f"z, records of 15 hospitals, ε 4, seed {seed}",
            f"{shared:.3g}",
            f"{each:.3g}",
            f"{shared / each:.2f}",
        )
        spent = account([Event(1.0, rate, steps)], DELTA).epsilon
        loud = calibrated_run(CANCER, seed, privacy={"unit": "record", "clip": 0.5, "noise_multiplier": 1.0})
        began = time.perf_counter()
        assert loud.privacy is not None
        report = dry_run(loud, everybody=True).ledger.report(DELTA, noise_multiplier=1.0)
        seconds = time.perf_counter() - began
        brute = max(_of_client(loud, int(n)) for n in loud.federation.counts())
        assert abs(report["epsilon_total"] / brute - 1) < 1e-9, "the maximum over clients, by brute force"
        exact = report["epsilon_total"]
        yield f"ε at z 1, the same ({seconds:.2f} s)", f"{spent:.4g}", f"{exact:.4g}", f"{spent / exact:.2f}"
    public, secret = (
        gaussian_epsilon(4 / 10, DELTA),
        account([Event(4.0, 0.1, 100, "without-replacement")], DELTA),
    )
    yield "ε at z 4, central, 10 of 100, T 100, secret", f"{public:.4g}", f"{secret.epsilon:.4g}", ""


def _of_client(setup: Setup, samples: int) -> float:
    batch = setup.algorithm.batch_size
    steps = setup.spec.rounds * math.ceil(samples / min(batch, samples))
    return account([Event(1.0, min(1.0, batch / samples), steps)], DELTA).epsilon


def accuracy(seeds: int) -> Iterator[tuple[str, str, str, str]]:
    """Yield a case, its accuracy with the noise of everybody and with that of each client, and the difference."""
    for epsilon in (30, 8):
        shared = calibrate(epsilon, DELTA, [Event(1.0, 1.0, 100)])
        before = [
            _accuracy(DIGITS, seed, {**LOCAL, "noise_multiplier": shared}, cohort=RANDOM)
            for seed in range(seeds)
        ]
        for name, cohort in (("random", RANDOM), ("balanced", BALANCED)):
            after = [
                _accuracy(DIGITS, seed, {**LOCAL, "epsilon": epsilon}, cohort=cohort) for seed in range(seeds)
            ]
            yield f"digits, local, ε {epsilon}, {name} cohorts", *_difference_row(before, after)
    record = {"unit": "record", "clip": 0.5}
    for name, more in (("shared noise", {}), ("noise per client", {"noise": "per_client"})):
        before, after = [], []
        for seed in range(seeds):
            setup = calibrated_run(CANCER, seed, privacy={**record, "epsilon": 4})
            shared = calibrate(4, DELTA, [Event(1.0, *rate_and_steps(setup))])
            before.append(_accuracy(CANCER, seed, {**record, "noise_multiplier": shared}))
            after.append(_accuracy(CANCER, seed, {**record, "epsilon": 4, **more}))
        yield f"breast cancer, records of 15 hospitals, ε 4, {name}", *_difference_row(before, after)


def _accuracy(fields: Fields, seed: int, privacy: Fields, **more: Any) -> float:
    setup = prepare(read_spec({**fields, "seed": seed, "privacy": dict(privacy), **more}))
    return float(simulate(setup)["metrics"]["accuracy"])


def _difference_row(before: list[float], after: list[float]) -> tuple[str, str, str]:
    pairs = [new - old for old, new in zip(before, after, strict=True)]
    spread = statistics.stdev(pairs) if len(pairs) > 1 else 0.0
    return f"{np.mean(before):.3f}", f"{np.mean(after):.3f}", f"{np.mean(pairs):+.3f} ± {spread:.3f}"


def audit(seeds: int) -> Iterator[tuple[str, str, str, str]]:
    """Yield a true epsilon and bounds from one run: ideal scores of 1000 canaries, 100 of them guessed."""
    yield from caught()
    for epsilon in (8, 4):
        mu, generator = 1 / analytic_sigma(epsilon, DELTA, 1.0), np.random.default_rng(0)
        bounds = []
        for _ in range(10 * seeds):
            inside = generator.random(1000) < 0.5
            order = np.argsort(generator.standard_normal(1000) + mu * inside)
            correct = int((~inside[order[:50]]).sum() + inside[order[-50:]].sum())
            bounds.append(
                [bound(correct, 100, 1000, DELTA) for bound in (one_run_epsilon, one_run_gaussian_epsilon)]
            )
        by_epsilon, by_curve = np.mean(bounds, axis=0)
        yield (
            f"true ε {epsilon}, bounds by (ε, δ) and by the trade-off curve",
            f"{by_epsilon:.2f}",
            f"{by_curve:.2f}",
            "",
        )


def caught() -> Iterator[tuple[str, str, str, str]]:
    """Yield every broken mechanism of the tests, and under how many algorithms the transcript audit catches it."""
    outcomes: dict[str, list[bool]] = {}

    class Count:
        def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
            if report.when == "call":
                name = report.nodeid.partition("[")[2].rpartition("-")[0]
                outcomes.setdefault(name, []).append(report.passed)

    with redirect_stdout(StringIO()):
        pytest.main([MUTANTS, "-q", "-p", "no:cacheprovider", "-p", "no:xdist"], plugins=[Count()])
    for name, each in outcomes.items():
        yield f"audit, {name.replace('_', ' ')}", "", f"{sum(each)} of {len(each)} algorithms", ""
    whole = sum(all(each) for each in outcomes.values())
    yield "audit, broken mechanisms caught under all their algorithms", "", f"{whole} of {len(outcomes)}", ""


def main() -> None:
    """Print the tables."""
    options = argparse.ArgumentParser(prog="python -m benchmarks.privacy", description=__doc__)
    options.add_argument("what", nargs="*", choices=["noise", "accuracy", "audit", []], help="default: all")
    options.add_argument("--seeds", type=int, default=3, help="of the accuracies, a tenth of the audits")
    args = options.parse_args()
    print("| case | charged as everybody | as each client | |\n| :--- | ---: | ---: | ---: |")
    tables = {
        "noise": noise,
        "accuracy": partial(accuracy, args.seeds),
        "audit": partial(audit, args.seeds),
    }
    for name, rows in tables.items():
        for row in rows() if not args.what or name in args.what else ():
            print(f"| {' | '.join(row)} |", flush=True)


if __name__ == "__main__":
    main()
