"""What a round without gradients sends, against formulas for each algorithm.

The formulas are those of a client whose gradients are zero: K steps along its corrections, and estimates that fade.
"""

from inspect import isfunction
from typing import ClassVar

import pytest
import torch

from harness.core.algorithm import ALGORITHMS, Release
from harness.core.clients.silenced import Silenced
from harness.core.methods.descent import Descent
from harness.core.settings.compression import Compression
from harness.core.settings.privacy import Privacy
from harness.core.wire.channel import Channel
from harness.core.wire.gossip_verbs import GossipVerbs
from harness.core.wire.known_terms import SilencedChannel
from harness.testing.small_tasks import simulate, task_of
from tests.support.wire import cohort, record
from tests.support.worlds import close, make_algorithm

K, ROUNDS = 3, 3
LOCAL = {"placement": "local", "unit": "client", "delta": 1e-5, "clip": 1.0}
CENTRAL = {**LOCAL, "placement": "central", "sampling": "poisson"}
FADING = sum(0.5**k for k in range(1, K + 1))


class Listening(Channel):
    """A channel that notes known terms, with what has been delivered before."""

    heard: ClassVar[list] = []

    def known(self, method):
        terms = super().known(method)
        if terms is not None and self._clients.round == ROUNDS - 1:
            self.heard.append((terms, [one.result for one in self._delivered]))
        return terms


def scaffold(a, s, _):
    return [[-a.lr * K * (s.c - s.ci), -s.ci * (K * a.lr)]], [[0 * s.c, -s.c * (K * a.lr)]]


def feddyn(a, s, _):
    far = (1 - (1 - a.lr * a.mu) ** K) / a.mu
    return [[far * s.gi]], [[far * s.h]]


def codasca(a, s, _):
    rows = [-(s.cx - s.cxi), s.cy - s.cyi, -s.cxi, -s.cyi]
    return [rows], [[0 * s.cx, 0 * s.cy, -s.cx, -s.cy]]


def fedsgda_m(a, s, _):
    terms = [-s.u * FADING / K, s.v * FADING / K, (0.5**K - 1) * s.u, (0.5**K - 1) * s.v]
    return [terms], [terms]


def momentum_local_sgda(a, s, _):
    far = (FADING + 1 - 0.5**K) / K  # the first step follows the old direction as it is
    terms = [-s.dx * far, s.dy * far, (0.5**K - 1) * s.dx, (0.5**K - 1) * s.dy]
    return [terms], [terms]


def sagda(a, s, delivered):
    mx, my = delivered[2]
    nothing, terms = [0 * s.x, 0 * s.y], [-mx[0], my[0]]
    return [nothing, terms], [nothing, terms]


def fednest(a, s, delivered):
    b, a = delivered[3][0], delivered[7][0]
    terms = [[0 * s.y], [b], [0 * s.x], [-a]]
    return terms, terms


def k_gt(a, s, _):
    return [[-s.c]], None


def k_gt_minimax(a, s, _):
    return [[-s.cx, s.cy]], None


def fedbioacc(a, s, _):
    t = (ROUNDS - 1) * K
    xp, nu, x = s.xp, s.nu, s.x
    for step in range(t, t + K):
        xp, nu = x, max(0.0, 1 - a.c_x * a.alpha(step) ** 2) * nu
        x = x - a.lr_x * a.alpha(step + 1) * nu
    reach = K * a.lr_x * a.alpha(t + K)
    terms = [(xp - s.x) / reach, nu - s.nu, (x - s.x) / reach]
    return [terms], [terms]


FORMULAS = {
    "codasca": codasca,
    "fedbioacc": fedbioacc,
    "feddyn": feddyn,
    "fedgda_gt": sagda,
    "fednest": fednest,
    "fedsgda_m": fedsgda_m,
    "k_gt": k_gt,
    "k_gt_minimax": k_gt_minimax,
    "momentum_local_sgda": momentum_local_sgda,
    "sagda": sagda,
    "scaffold": scaffold,
}
SETTINGS = {
    "fedsgda_m": {"alpha": 0.5, "beta": 0.5},
    "codasca": {"prox": 0.0},
    "fedbioacc": {"release": "value", "lr_x": 0.3, "neumann_terms": 2},
}


def test_there_is_a_formula_for_every_algorithm_that_releases_values():
    assert sorted(FORMULAS) == sorted(name for name in ALGORITHMS if issubclass(ALGORITHMS[name], Release))


@pytest.mark.parametrize("placement", ["local", "central"])
@pytest.mark.parametrize("name", FORMULAS)
def test_a_silenced_round_sends_what_the_formula_says(name, placement):
    cls = ALGORITHMS[name]
    if placement == "central" and cls.meta.gossip:
        return
    algorithm = cls(local_steps=K, batch_size=4, **SETTINGS.get(name, {}))
    Listening.heard.clear()
    privacy = Privacy.of(0.5, **(LOCAL if placement == "local" else CENTRAL))
    before = simulate(algorithm, task_of(cls), rounds=ROUNDS - 1, privacy=privacy).state
    simulate(algorithm, task_of(cls), rounds=ROUNDS, privacy=privacy, channel=Listening)
    rows, means = FORMULAS[name](algorithm, before, Listening.heard[-1][1])
    assert len(Listening.heard) == len(rows)
    for number, (terms, _) in enumerate(Listening.heard):
        for one, expected in zip(terms.rows, rows[number], strict=True):
            assert close(one, expected.expand_as(one), 1e-10)
        assert (terms.mean is None) == (placement == "local")
        for one, expected in zip(terms.mean or (), means[number] if terms.mean else (), strict=True):
            assert close(one, expected, 1e-10)


@pytest.mark.parametrize("code", [{}, {"beta": 0.5}, {"beta": 0.5, "error_feedback": True}])
@pytest.mark.parametrize("name", FORMULAS)
def test_without_noise_what_arrives_is_equal_to_the_last_bit(name, code):
    """Known terms are not subtracted and added again, which would round; clients may keep values as received."""
    cls = ALGORITHMS[name]
    settings = SETTINGS.get(name, {}) | ({"momentum": 0.5} if issubclass(cls, Descent) else {})
    options = {"compression": Compression(codec="float64", **code)}
    value, change = (
        cls(local_steps=K, batch_size=4, **{**settings, "release": release})
        for release in ("value", "change")
    )
    before = simulate(value, task_of(cls), rounds=ROUNDS, **options).state
    for diagnose in (False, True):
        states = []
        for algorithm in (value, change):
            run = simulate(algorithm, task_of(cls), rounds=0, state=before, first=ROUNDS, **options)
            run.step(diagnose=diagnose)
            states.append(run.state)
        for field, one, other in zip(before._fields, *states, strict=True):
            assert torch.equal(one, other) or field in ("ci", "cxi", "cyi"), field


@pytest.mark.parametrize("name", ["scaffold", "feddyn"])
def test_without_noise_values_and_changes_are_one_method(name):
    """In partial cohorts, too, up to rounding."""
    states = []
    for release in ("value", "change"):
        algorithm = make_algorithm(name, lr=0.1, local_epochs=2, batch_size=4, release=release)
        run = simulate(algorithm, task_of(type(algorithm)), rounds=3, ids=(1, 3))
        states.append(run.state)
    for one, other in zip(*states, strict=True):
        assert close(one, other, 1e-12)


@pytest.mark.parametrize(
    "work", [{"local_steps": 5}, {"local_epochs": 2}, {"local_epochs": 1, "batch_size": None}, {}]
)
def test_silenced_clients_take_as_many_steps(work):
    algorithm = make_algorithm("fedavg", **{"batch_size": 3, **work})
    clients = cohort(counts=(7, 2, 5, 1))
    drawn, blank = clients.batches(algorithm), Silenced(clients).batches(algorithm)
    assert torch.equal(drawn.num_steps, blank.num_steps)
    pairs = list(zip(drawn, blank, strict=True))
    assert all(torch.equal(one.active, other.active) for one, other in pairs)
    assert not any(bool(other.x.any()) for _, other in pairs)
    average = Silenced(clients, average=True).batches(algorithm)
    assert average.num_steps.tolist() == [[float(drawn.num_steps.max())]]


@pytest.mark.parametrize(
    ("average", "members"), [(False, set()), (True, {"ids", "participation_mask", "sizes"})]
)
def test_silenced_clients_have_all_that_the_cohort_has(average, members):
    """The attribute that is added is one that `Clients` may get later."""
    clients = cohort(mechanism=record(), batch_size=4, expected=3.0)
    clients.later = object()
    silenced = vars(Silenced(clients, average=average))
    replaced = {name for name, value in vars(clients).items() if silenced[name] is not value}
    assert replaced == {"cost", "ledger", "errors", "_records"} | members
    assert silenced["_records"]._ledger is silenced["ledger"], "what it would book is not the cohort's"


def test_a_silenced_channel_has_all_that_an_algorithm_calls():
    methods = {name for name, part in {**vars(GossipVerbs), **vars(Channel)}.items() if isfunction(part)}
    public = {name for name in methods if not name.startswith("_")}
    assert public <= vars(SilencedChannel).keys()
    assert {name for name in public if not hasattr(getattr(Channel, name), "__wrapped__")} == {"mean"}
