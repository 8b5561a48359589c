"""Every registered algorithm passes every check, and algorithms that are wrong on purpose are caught."""

from dataclasses import dataclass
from typing import ClassVar

import pytest
import torch

import algorithms
from algorithms.bilevel.fedbio import FedBiO
from algorithms.bilevel.fedbioacc import FedBiOAcc
from algorithms.centralized.fedavg import FedAvg
from algorithms.centralized.fedprox import FedProx
from algorithms.fairness.fedreg import FedReg
from algorithms.personalized.ditto import Ditto
from algorithms.personalized.local import Local
from harness.core import ALGORITHMS, Increment, Meta
from harness.testing.conformance import CHECKS, _partial, _replaced, _written, check
from harness.testing.conformance_printed import PRINTED_CHECKS
from harness.testing.conformance_privacy import CHANNEL_CHECKS, _audited, _pruned, audits
from harness.testing.conformance_releases import RELEASE_CHECKS, _noise_fades

algorithms.load()


@dataclass(frozen=True, kw_only=True)
class ShortFedBiO(FedBiO):
    """The Neumann series takes most of its time; ten terms are the rule."""

    neumann_terms: int | None = 2


@dataclass(frozen=True, kw_only=True)
class ShortFedBiOAcc(FedBiOAcc):
    """As above."""

    neumann_terms: int | None = 2


EVERY = [*CHECKS, *PRINTED_CHECKS]
# Audits have a test of their own below, and how noise adds up has one in `test_releases.py`, for each algorithm.
# Pruning under all mechanisms takes seconds: one algorithm of each kind that has a model to prune.
PROTECTED = [
    protected
    for protected in (*CHANNEL_CHECKS, *RELEASE_CHECKS)
    if protected not in (_audited, _noise_fades, _pruned)
]
CHECKED = {name: ALGORITHMS[name] for name in ALGORITHMS} | {
    "fedbio": ShortFedBiO,
    "fedbioacc": ShortFedBiOAcc,
}
PRUNED = ("fedavg", "scaffold", "ditto", "dm_hsgd", "fedsgda_m", "splitnn")


@pytest.mark.slow
@pytest.mark.parametrize("checks", [EVERY, PROTECTED], ids=["plain", "protected"])
@pytest.mark.parametrize("name", CHECKED)
def test_conforms(name, checks):
    """Protected: checks of the channel and of releases."""
    rows = check(CHECKED[name], checks)
    assert [row for row in rows if row["result"] != "passed"] == []


@pytest.mark.slow
@pytest.mark.parametrize("name", PRUNED)
def test_pruned_parts_stay_zero(name):
    _pruned(ALGORITHMS[name])


@pytest.mark.parametrize("name", CHECKED)
def test_releases_what_it_claims(name):
    """Under every mechanism; which errors would be found is in `tests/unit/harness/testing/test_mutants.py`."""
    accused = {mechanism: audit["findings"] for mechanism, audit in audits(CHECKED[name])}
    assert not any(accused.values()), accused


def meta(**changes):
    return Meta("wrong", "test", ("erm",), "-", **changes)


@dataclass(frozen=True, kw_only=True)
class LeaksToServer(FedAvg):
    meta: ClassVar = meta()

    def round(self, state, clients, channel):
        (batch,) = clients.batches(self, steps=1)
        stolen = clients.grad(clients.rows(state.x), batch).mean(-2)
        done = super().round(state, clients, channel)
        return self.State(done.x - 0.01 * stolen)


@dataclass(frozen=True, kw_only=True)
class ScalesByPrivateNorms(FedAvg):
    """The server divides its step by the mean norm of the clients' gradients, which no message brings."""

    meta: ClassVar = meta()

    def round(self, state, clients, channel):
        (batch,) = clients.batches(self, steps=1, stream="norms")
        size = 1 + clients.grad(clients.rows(state.x), batch).norm(dim=-1, keepdim=True).mean(-2)
        done = super().round(state, clients, channel)
        return self.State(state.x + (done.x - state.x) / size)


@dataclass(frozen=True, kw_only=True)
class LeaksToOthers(Local):
    meta: ClassVar = meta()

    def round(self, state, clients, channel):
        x = super().round(state, clients, channel).x
        return self.State(0.9 * x + 0.1 * x.mean(-2, keepdim=True))


@dataclass(frozen=True, kw_only=True)
class ShowsAMeanOfWhatStaysAtHome(Local):
    meta: ClassVar = meta()

    def model(self, state):
        return state.x.mean(-2)


@dataclass(frozen=True, kw_only=True)
class ChangesItsArgument(FedAvg):
    meta: ClassVar = meta()

    def round(self, state, clients, channel):
        done = super().round(state, clients, channel)
        state.x.copy_(done.x)
        return done


@dataclass(frozen=True, kw_only=True)
class CountsClientsInFront(Local):
    meta: ClassVar = meta()

    def round(self, state, clients, channel):
        x = super().round(state, clients, channel).x
        return self.State(
            x * (1 + 0.01 * torch.arange(x.shape[0], dtype=x.dtype).view(-1, *[1] * (x.ndim - 1)))
        )


@dataclass(frozen=True, kw_only=True)
class DrawsFromAGlobalGenerator(FedAvg):
    meta: ClassVar = meta()

    def round(self, state, clients, channel):
        done = super().round(state, clients, channel)
        return self.State(done.x + 0.01 * torch.rand_like(done.x))


@dataclass(frozen=True, kw_only=True)
class MovesWhileIdle(FedProx):
    meta: ClassVar = meta()

    def round(self, state, clients, channel):
        x = x_t = channel.down(state.x)
        for batch in clients.batches(self):
            x = x - self.lr * (clients.grad(x, batch) + 0.1 * x)
        return self.State(state.x + channel.mean(Increment(x, of=x_t)))


@dataclass(frozen=True, kw_only=True)
class IgnoresTheData(FedAvg):
    meta: ClassVar = meta()

    def round(self, state, clients, channel):
        return self.State(0.9 * state.x)


@dataclass(frozen=True, kw_only=True)
class DrawsOneStreamTwice(FedAvg):
    meta: ClassVar = meta()

    def round(self, state, clients, channel):
        (first,) = clients.batches(self, steps=1)
        clients.grad(channel.down(state.x), first)
        return super().round(state, clients, channel)


@dataclass(frozen=True, kw_only=True)
class ComparesGroupsUndeclared(FedReg):
    meta: ClassVar = meta(classes=True, apart=("penalty", "slope"))


@dataclass(frozen=True, kw_only=True)
class ForgetsTake(Ditto):
    meta: ClassVar = meta()

    def round(self, state, clients, channel):
        x_t, p = channel.down(state.x), state.pi
        for batch in clients.batches(self):
            p = p - self.lr * clients.grad(p, batch)
        return state._replace(x=state.x + channel.mean(p - x_t), pi=clients.put(state.pi, p))


@dataclass(frozen=True, kw_only=True)
class ForgetsPut(Ditto):
    meta: ClassVar = meta()

    def round(self, state, clients, channel):
        return super().round(state, clients, channel)._replace(pi=clients.take(state.pi))


@dataclass(frozen=True, kw_only=True)
class NeverWrites(Ditto):
    meta: ClassVar = meta()

    def round(self, state, clients, channel):
        return super().round(state, clients, channel)._replace(pi=state.pi)


@dataclass(frozen=True, kw_only=True)
class KeepsANumberPerClient(Ditto):
    """The personal models are not used, and are numbers."""

    meta: ClassVar = meta()

    def init(self, start, clients, channel):
        return super().init(start, clients, channel)._replace(pi=start["x"].new_zeros(clients.total))

    def round(self, state, clients, channel):
        x, pi = channel.down(state.x), clients.take(state.pi)
        (batch,) = clients.batches(self, steps=1)
        mean = channel.mean(clients.grad(x, batch))
        return state._replace(x=state.x - self.lr * mean, pi=clients.put(state.pi, pi + clients.sizes))


@dataclass(frozen=True, kw_only=True)
class AddsInPlace(Local):
    meta: ClassVar = meta()

    def round(self, state, clients, channel):
        x = clients.take(state.x)
        for batch in clients.batches(self):
            x -= self.lr * clients.grad(x, batch)
        return self.State(clients.put(state.x, x))


@dataclass(frozen=True, kw_only=True)
class HasMoreThanChunks(Ditto):
    meta: ClassVar = meta(chunks=True)


@pytest.mark.parametrize(
    ("wrong", "caught"),
    [
        (LeaksToServer, "Show nothing of client data where other numbers take the place of every message"),
        (
            ScalesByPrivateNorms,
            "Show nothing of client data where other numbers take the place of every message",
        ),
        (LeaksToOthers, "Show nothing of client data where other numbers take the place of every message"),
        (
            ShowsAMeanOfWhatStaysAtHome,
            "Show nothing of client data where other numbers take the place of every message",
        ),
        (ChangesItsArgument, "Change nothing that a round is given, and give the same state twice"),
        (
            CountsClientsInFront,
            "Get in a stack of runs that differ in numbers and seed the bits of the runs alone",
        ),
        (DrawsFromAGlobalGenerator, "Change nothing that a round is given, and give the same state twice"),
        (MovesWhileIdle, "Stand still at a client that has no batches left"),
        (IgnoresTheData, "Send what depends on client data through an open channel"),
        (DrawsOneStreamTwice, "Draw the batches of a round from streams of their own"),
        (ComparesGroupsUndeclared, "Depend on sensitive groups only as declared"),
        (ForgetsTake, "Leave what clients keep alone while they are not in the cohort"),
        (ForgetsPut, "Leave what clients keep alone while they are not in the cohort"),
        (NeverWrites, "Write what clients keep and read"),
        (KeepsANumberPerClient, "Leave what clients keep alone while they are not in the cohort"),
        (AddsInPlace, "Change nothing that a round is given, and give the same state twice"),
        (HasMoreThanChunks, "Give the same vectorized, looped, threaded and, where allowed, in chunks"),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_a_wrong_algorithm_is_caught(wrong, caught):
    (row,) = check(wrong, [one for one in CHECKS if one.__doc__.startswith(caught)])
    assert row["result"] == "failed" and row["why"]


@pytest.mark.parametrize(
    ("wrong", "guard", "words"),
    [
        (NeverWrites, _written, "state was read and never written: rounds take rows of pi"),
        (ForgetsPut, _partial, "return pi=clients.put(state.pi, rows)"),
    ],
)
def test_forgotten_state_is_told_in_words(wrong, guard, words):
    (row,) = check(wrong, [guard])
    assert words in row["why"]


@pytest.mark.parametrize("wrong", [LeaksToServer, ScalesByPrivateNorms, LeaksToOthers])
def test_a_leak_is_called_one(wrong):
    """Its size, as in "x is off by 0.0043", would not tell what to mend."""
    (row,) = check(wrong, [_replaced])
    assert "possible leak: x depends on the data of client" in row["why"]
    assert "from a method of the channel" in row["why"]
