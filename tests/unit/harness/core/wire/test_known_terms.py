"""Terms of a message that follow from earlier releases: neither clipped nor noised, but sent."""

import pytest
import torch

from harness.core.public import Public
from harness.core.settings.compression import Compression
from harness.core.wire.message import Increment, Value
from harness.simulation.simulation import Simulation
from tests.support.wire import channel, clipped, largest, privacy, rows
from tests.support.worlds import close, logistic, make_algorithm, random_federation

VALUES, TERMS = rows(6, seed=1), rows(6, seed=2, scale=50.0)
MEAN = torch.linspace(-1, 1, 6, dtype=torch.float64)
UNIFORM = {"weighting": "uniform"}


def mean(values, terms):
    return (values + terms).mean(0)


def way_of(mechanism=None, terms=TERMS, scale=None, **options):
    """Return a channel for messages that would be ``terms`` without gradients."""

    def round(clients, way):
        return way.mean(Increment(clients.take(terms, mean=MEAN), scale=scale))

    return channel(mechanism, again=round, **options)


def test_without_privacy_they_change_nothing_to_the_last_bit():
    """They are not subtracted and added again, which would round messages that are smaller than they are."""
    average, sent = way_of().mean_and_sent(VALUES, **UNIFORM)
    assert torch.equal(average, channel().mean(VALUES, **UNIFORM)) and torch.equal(sent, VALUES)


def test_the_local_clip_bounds_the_rest_only():
    found, sent = way_of(privacy("local", 0.5)).mean_and_sent(VALUES + TERMS, **UNIFORM)
    assert close(sent, clipped(VALUES, 0.5) + TERMS, 1e-12)
    assert close(found, mean(clipped(VALUES, 0.5), TERMS), 1e-12)


def test_the_noise_of_a_client_is_in_what_it_has_sent():
    loud = privacy("local", 0.5, z=3.0)
    _, sent = way_of(loud).mean_and_sent(VALUES + TERMS, **UNIFORM)
    _, other = channel(loud).mean_and_sent(VALUES, **UNIFORM)
    assert close(sent - TERMS, other, 1e-10)


def test_a_central_server_adds_its_own_mean_and_never_the_rows():
    """Whoever is in the cohort: what the rows are has no effect, up to rounding."""
    central = privacy("central", 0.5)
    found, sent = way_of(central).mean_and_sent(VALUES + TERMS)
    assert close(found, clipped(VALUES, 0.5).mean(0) + MEAN, 1e-12)
    assert close(sent, VALUES + TERMS, 1e-12), "a client knows what it has sent"
    other, _ = way_of(central, -3 * TERMS).mean_and_sent(VALUES - 3 * TERMS)
    assert close(found, other, 1e-10)


def test_what_travels_is_compressed_with_them():
    """Top-k of the change, not of the value: entries that stay as they were are left out."""
    code = Compression(beta=0.5, codec="float64")
    _, sent = way_of(privacy("local", 1e9), compression=code).mean_and_sent(VALUES + TERMS, **UNIFORM)
    assert close(sent, largest(VALUES + TERMS, 3), 1e-12)


def test_scales_divide_them_too():
    steps = Public(3.0)
    way = way_of(privacy("local", 0.5), scale=steps)
    found = way.mean(Increment(VALUES + TERMS, scale=steps), **UNIFORM)
    assert close(found, mean(3 * clipped(VALUES / 3, 0.5), TERMS), 1e-10)


def test_a_value_replaces_what_was_sent_before():
    """What travels is the change; without gradients it takes everything back, so the value itself is clipped."""
    old, new = rows(6, seed=3, scale=9.0), VALUES

    def round(clients, way):
        return way.mean(Value(0 * new, of=clients.take(old, mean=MEAN)))

    way = channel(privacy("local", 0.5), again=round)
    found, kept = way.mean_and_sent(Value(new, of=old), **UNIFORM)
    assert close(kept, clipped(new, 0.5), 1e-12) and close(found, mean(clipped(new, 0.5), -old), 1e-12)
    _, kept = channel(privacy("local", 0.5)).mean_and_sent(Value(new, of=old), **UNIFORM)
    assert torch.equal(kept, new), "where changes are released, clients keep their own"


def test_rows_that_clients_keep_cannot_pass_for_known():
    way = channel(privacy("local", 0.5), again=lambda clients, way: way.mean(clients.take(TERMS)))
    with pytest.raises(ValueError, match="part 0 of a message would depend on rows that clients keep"):
        way.mean(VALUES)


def test_a_round_that_goes_another_way_without_gradients_is_refused():
    def round(clients, way):
        (batch,) = clients.batches(None, steps=1)
        gradient = clients.grad(clients.rows(MEAN), batch)
        return way.mean(gradient) if bool(gradient.any()) else way.gather(gradient)

    way = channel(privacy("local", 0.5), again=round)
    with pytest.raises(ValueError, match="calls gather where it called mean_and_sent"):
        way.mean(VALUES)


def test_a_central_server_does_not_use_what_single_clients_have_sent():
    """Messages before the noise are nobody's but their clients'; of their average only the mean is known."""

    def round(clients, way):
        nothing = clients.rows(0 * MEAN)
        _, (first, second) = way.mean_and_sent(nothing, Value(nothing, of=clients.take(TERMS, mean=MEAN)))
        return way.mean(first + 2 * second)

    way = channel(privacy("central", 0.5, z=1.0), again=round)
    (mean, change), (sent, kept) = way.mean_and_sent(VALUES, Value(VALUES, of=TERMS))
    known = way.known("mean_and_sent")
    assert close(known.rows[0], sent + 2 * kept, 1e-12)
    assert close(known.mean[0], mean + 2 * (MEAN + change), 1e-12)


@pytest.mark.parametrize("own", [{"coin": (0.5, "one")}, {"normal": ("one", 0, 6)}, {"samples": ("train",)}])
def test_what_differs_between_the_members_of_a_secret_cohort_is_not_known(own):
    ((name, arguments),) = own.items()
    more = {"each": True} if name == "coin" else {}

    def round(clients, way):
        numbers = getattr(clients, name)(*arguments, **more)
        return way.mean(clients.rows(MEAN) * (numbers.unsqueeze(-1) if name == "samples" else numbers))

    way = channel(privacy("central", 0.5), again=round)
    with pytest.raises(ValueError, match="what the server does not know"):
        way.mean(VALUES)


def test_a_result_that_is_changed_in_place_is_refused():
    way = channel(
        privacy("local", 0.5),
        again=lambda clients, way: way.mean(way.mean_and_sent(0 * VALUES)[1]),
    )
    _, sent = way.mean_and_sent(VALUES)
    sent += VALUES  # now it holds what was not released
    with pytest.raises(ValueError, match="changed in place what mean_and_sent returned"):
        way.mean(sent)


def test_a_known_mean_that_depends_on_rows_of_the_cohort_is_refused():
    way = channel(privacy("central", 0.5), again=lambda clients, way: way.mean(clients.rows(MEAN) + TERMS))
    with pytest.raises(ValueError, match="rows of the cohort"):
        way.mean(VALUES)


def test_finding_them_counts_and_books_nothing():
    """Gone through a second time: the same bytes, operations and releases as without."""
    spent = []
    for release in ("value", "change"):
        run = Simulation(
            logistic(),
            random_federation([9, 5, 7, 8]),
            make_algorithm("scaffold", lr=0.1, local_epochs=2, batch_size=4, release=release),
            privacy("local", 0.5, z=4.0),
        )
        run.step()
        spent.append((run.cost.state(), run.ledger.counts, run.ledger.last))
    assert repr(spent[0]) == repr(spent[1])


@pytest.mark.parametrize("memory", [{}, {"error_feedback": True}, {"shift": 1.0}, {"shift": 0.5}])
def test_the_servers_variate_is_the_mean_of_what_clients_have_sent(memory):
    """SCAFFOLD in partial cohorts: noise telescopes, and never adds up; with feedback up to its residuals."""
    code = Compression(beta=0.5, codec="float64", **memory)
    run = Simulation(
        logistic(),
        random_federation([9, 5, 7, 8]),
        make_algorithm("scaffold", lr=0.1, local_steps=3),
        privacy("local", 0.5, z=4.0, sampling="fixed", rate=0.5),
        code,
        (0,),
        cohort=2,
    )
    for _ in range(6):
        run.step()
        gap = run.state.ci.mean(0) - run.state.c
        if (
            code.error_feedback
        ):  # what codes have left out is still to come; messages are in units of 1 / (K lr)
            (left,) = (part for name, part in run.channel_state.items() if name.startswith("residual"))
            gap = gap - left[:, len(gap) :].mean(0) / 0.3
        assert close(gap, torch.zeros_like(gap), 1e-10)
    assert float(run.state.c.norm()) > 0


def test_gossip_leaves_them_out_of_clip_and_noise():
    uniform = torch.full((len(VALUES), len(VALUES)), 1 / len(VALUES), dtype=torch.float64)
    way = channel(privacy("local", 0.5), mixing=uniform, again=lambda clients, way: way.mix(TERMS))
    (sent,), (mixed,), *_ = way.mix(VALUES + TERMS)
    assert close(sent, clipped(VALUES, 0.5) + TERMS, 1e-12)
    assert close(mixed, mean(clipped(VALUES, 0.5), TERMS).expand_as(mixed), 1e-10)


@pytest.mark.parametrize("name", ["scaffold", "feddyn"])
@pytest.mark.parametrize("work", [{"local_steps": 4}, {"local_epochs": 2}])
def test_old_noise_takes_no_part_of_the_clip_norm(name, work):
    """Within `grad_clip` a client's gradients lead no further than lr K grad_clip, whatever corrections do.

    SCAFFOLD's message has two parts of that length at most. Counts differ, and with epochs the numbers of steps.
    """
    federation = random_federation([7, 12, 3, 12])
    options = {"lr": 0.1, "grad_clip": 0.3, "batch_size": 2}
    run = Simulation(
        logistic(),
        federation,
        make_algorithm(name, **options, **work),
        privacy("local", 0.3, z=3.0, sampling="full"),
        compression=Compression(codec="float64"),
    )
    most = 4 if "local_steps" in work else 12
    for _ in range(5):
        run.step(diagnose=True)
        assert float(run.diagnostics["update_norm_p90"]) <= 2**0.5 * 0.1 * most * 0.3


@pytest.mark.parametrize("name", ["scaffold", "feddyn"])
def test_diagnostics_without_privacy_are_of_what_a_mechanism_would_clip(name):
    """A clip norm is chosen by these norms. To find known terms changes nothing."""
    norms, states = [], []
    for claim in (None, privacy("local", float("inf"), z=0.0, sampling="full")):
        run = Simulation(
            logistic(),
            random_federation([7, 12, 3, 12]),
            make_algorithm(name, lr=0.1, local_steps=4),
            claim,
            compression=Compression(codec="float64"),
        )
        for _ in range(3):
            run.step(diagnose=True)
        norms.append({key: float(run.diagnostics[key]) for key in ("update_norm_mean", "update_norm_p90")})
        states.append(run.state.x)
    assert norms[0] == pytest.approx(norms[1], rel=1e-6)
    assert close(*states, 1e-10)


@pytest.mark.parametrize("code", [{}, {"beta": 0.6, "error_feedback": True}, {"beta": 0.6}])
@pytest.mark.parametrize("name", ["scaffold", "feddyn"])
def test_a_central_server_that_protects_nothing_does_what_one_without_privacy_does(name, code):
    states = []
    for mechanism in (None, privacy("central", float("inf"), sampling="full")):
        run = Simulation(
            logistic(),
            random_federation([8, 8, 8]),
            make_algorithm(name, lr=0.1, local_steps=3),
            mechanism,
            Compression(codec="float64", **code),
        )
        for _ in range(6):
            run.step()
        states.append(run.state)
    for one, other in zip(*states, strict=True):
        assert close(one, other, 1e-10)
