"""A round that the harness leaves at a message is left whatever its author catches."""

from dataclasses import dataclass
from typing import ClassVar

import pytest

import algorithms
from harness.core import ALGORITHMS, Meta
from harness.core.execution.vectorize import ClientExecutor
from harness.core.settings.privacy import Privacy
from harness.testing.small_tasks import run, same_state, small, task_of

algorithms.load()
FedAvg, Scaffold = ALGORITHMS["fedavg"], ALGORITHMS["scaffold"]


class Careful:
    """Goes on with the state as it was if anything fails."""

    def round(self, state, clients, channel):
        try:
            return super().round(state, clients, channel)
        except Exception:
            return state


@dataclass(frozen=True, kw_only=True)
class CarefulFedAvg(Careful, FedAvg):
    meta: ClassVar = Meta("careful", "test", ("erm",), "-", chunks=True)


@dataclass(frozen=True, kw_only=True)
class CarefulScaffold(Careful, Scaffold):
    meta: ClassVar = Meta("careful", "test", ("erm",), "-")


@pytest.mark.parametrize("threads", [1, 2])
def test_a_client_that_has_posted_is_done(threads):
    whole = run(small(FedAvg), task_of(FedAvg))
    chunks = run(
        small(CarefulFedAvg), task_of(FedAvg), executor=ClientExecutor("loop", threads), in_chunks=True
    )
    same_state("the state", chunks, whole)


def test_a_round_without_gradients_ends_at_its_message():
    privacy = Privacy.of(0.0, clip=1.0, placement="local", delta=1e-5)
    expected = run(small(Scaffold), task_of(Scaffold), privacy=privacy)
    same_state("the state", run(small(CarefulScaffold), task_of(Scaffold), privacy=privacy), expected)
