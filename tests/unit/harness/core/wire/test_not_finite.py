"""Messages that are not finite stay so, whatever is selected, coded and remembered: divergence must show."""

import math
from contextlib import suppress
from itertools import product

import pytest
import torch
from torch import nn

import harness
from harness.core.settings.compression import Compression
from harness.problems.classify import classifier
from tests.support.runs import given, table
from tests.support.wire import channel, rows

PROBLEM = classifier(nn.Linear(8, 6))
SIZE = 54
CODECS = ["float64", "float32", "float16", "bfloat16", "sign", "q1", "q3", "q8"]  # of every kind
SELECTIONS = {
    "whole": {},
    "top_k": {"beta": 0.5},
    "random_k": {"beta": 0.5, "select": "random_k"},
    "threshold": {"select": "threshold", "threshold": 0.5},
    "rank": {"rank": 1},
}
MEMORIES = {
    "nothing": {},
    "residuals": {"error_feedback": True},
    "shifts": {"shift": 0.5},
    "downlink": {"downlink": True},
}
RING = torch.full((4, 4), 0.25, dtype=torch.float64)


def settings(codec):
    """Return all settings of a codec that go together."""
    for selection, memory in product(SELECTIONS, MEMORIES):
        with suppress(ValueError):  # they are not for each other
            yield Compression(codec=codec, **SELECTIONS[selection], **MEMORIES[memory])


@pytest.mark.parametrize("codec", CODECS)
def test_a_message_that_is_not_finite_arrives_as_none(codec):
    """One entry, which a selection may leave out, a number format may not have, and a sign would hide."""
    together = [*settings(codec)]
    assert len(together) >= 10
    for compression, broken in product(together, (math.nan, math.inf, -math.inf)):
        case = f"{broken} with {compression}"
        sent = rows(SIZE, scale=0.1)
        sent[1, 3] = broken
        assert not channel(None, compression, problem=PROBLEM).mean(sent).isfinite().all(), case
        if compression.rank is None:
            arrived = channel(None, compression, problem=PROBLEM).gather(sent)
            assert arrived.isfinite().all(-1).tolist() == [True, False, True, True], case
        if compression.downlink:
            assert not channel(None, compression, problem=PROBLEM).down(sent[1]).isfinite().all(), case
        elif not compression.remembers:
            _, mixed, *_ = channel(None, compression, problem=PROBLEM, mixing=RING).mix(sent)
            assert not torch.cat(mixed).isfinite().all(), case


def test_messages_of_numbers_arrive_as_before():
    """The largest numbers of the run's type, and none at all."""
    sent = torch.tensor([[3.0e38, -3.0e38, 0.0]]).expand(4, -1).double()
    for codec in ("float16", "bfloat16", "sign"):
        assert channel(None, Compression(codec=codec)).gather(sent).isfinite().all()


@pytest.mark.parametrize(
    ("algorithm", "name"),
    [
        *product(["fedavg", "choco_sgd"], ["top_k", "threshold", "random_k", "rank"]),
        *product(["fedsam", "q_fedavg", "prunefl", "k_gt", "d_sgd"], ["threshold"]),
    ],
)
def test_a_run_whose_steps_overflow_has_diverged(algorithm, name, tmp_path):
    """With a threshold, NaN was left out, and the run ended with the accuracy of its start.

    Selections go through all messages alike, which are means and what neighbors hear.
    """
    graph = {"topology": "ring"} if algorithm in ("d_sgd", "choco_sgd", "k_gt") else {}
    settings = {"name": algorithm, "lr": 1e15, "local_steps": 20}
    run = given(table(tmp_path), settings, model="mlp", compression=SELECTIONS[name], rounds=3, **graph)
    record = harness.run(run, tmp_path / "out")
    assert record.status == "failed" and "diverged" in record.reason
