"""Joint privacy of several runs about one unit.

Runs with secret draws of their own compose like the rounds of one run. Runs that share their draws, those of a
seed, do not: a unit is in the cohort of a round in all of them or in none. So the releases that such runs make from
one draw compose first, as those of one run do in the ledger, and are then subsampled once.

Nothing here needs torch, so that tables can tell it.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Hashable, Iterable, Iterator, Sequence
from typing import NamedTuple

from privacy.accounting import Account, by_pld, check_event, compose
from privacy.event import Event
from privacy.gaussian import check_delta, gaussian_epsilon

#: Kinds of sampled draws that are composed as they are; of more, near ones are taken for the worst of them.
MOST_KINDS = 32
_COARSE = 0.002  # first logarithm of a ratio of what is taken for alike, which grows by half


class Released(NamedTuple):
    """Releases of one run about a unit.

    Attributes
    ----------
    events : tuple of Event
        Draws with all releases made from them, of a unit that is at least as exposed as all others.
    stream : Hashable
        What keys the secret draws that runs share, such as their seed. None: draws of its own.
    order : Hashable
        Which releases are made from which draws of the stream. Draws of two runs of a stream are compared one by
        one, in their order, so they must agree in this.
    """

    events: tuple[Event, ...]
    stream: Hashable = None
    order: Hashable = None


def joint_epsilon(runs: Sequence[Released], delta: float) -> Account:
    """Return the epsilon of all runs together: of a unit that is as exposed in each as the most exposed one.

    Parameters
    ----------
    runs : sequence of Released
        The runs.
    delta : float
        In (0, 1).

    Raises
    ------
    ValueError
        If delta or an event is out of range, runs of a stream differ in their order or draw in several ways, draws
        are by Poisson sampling in some and without replacement in others, or noise is of a user's mechanism.
    """
    check_delta(delta)
    for run in runs:
        for event in run.events:
            check_event(event)
    events = joint_events(runs)
    if any(event.noise is not None for event in events):
        raise ValueError("mechanisms of users are composed within a run only")
    if not events:
        return Account(0.0, "exact", "nothing was released")
    if any(event.noise_multiplier == 0 for event in events):
        return Account(math.inf, "exact", "a release has no noise")
    bound = gaussian_epsilon(compose(_together(event) for event in events), delta)
    sampled = [event for event in events if event.rate < 1]
    if not sampled:
        return Account(bound, "exact")
    if len({event.sampling for event in sampled}) > 1:
        raise ValueError("draws by Poisson sampling and without replacement have no common adjacency")
    unsampled = [_together(event) for event in events if event.rate == 1]
    comparable = [*_fewer(sampled), *([Event(compose(unsampled))] if unsampled else [])]
    epsilon, note = by_pld(comparable, delta, bound)
    return Account(bound, "unamplified", note) if note else Account(min(epsilon, bound), "pld")


def joint_events(runs: Iterable[Released]) -> list[Event]:
    """Return the events of all runs together; equal ones are one event with their times added up."""
    counts: Counter[Event] = Counter()
    shared: dict[Hashable, list[Released]] = {}
    for run in runs:
        if run.stream is None:
            _count(counts, run.events)
        else:
            _count(counts, [event for event in run.events if event.rate == 1])
            sampled = tuple(event for event in run.events if event.rate < 1)
            shared.setdefault(run.stream, []).append(run._replace(events=sampled))
    for same in shared.values():
        _count(counts, _of_stream([run for run in same if run.events]))
    return [event._replace(times=times) for event, times in counts.items()]


def _count(counts: Counter[Event], events: Iterable[Event]) -> None:
    for event in events:
        if event.times:
            counts[event._replace(times=1)] += event.times


def _of_stream(runs: Sequence[Released]) -> Iterator[Event]:
    """Yield the events of runs with the same draws, which end after different numbers of them.

    Where Poisson rates differ, a unit drawn at a lower rate is drawn at a higher one as well. Whether a unit that
    is drawn at the higher one is also drawn at the lower depends on no data: taking all rates for the largest
    bounds it.
    """
    if len(runs) == 1:
        yield from runs[0].events
        return
    if len({run.order for run in runs}) > 1:
        raise ValueError("runs that share draws use them in different ways")
    if any(len(run.events) > 1 for run in runs):
        raise ValueError("runs that share draws release in several ways from them")
    events = [run.events[0] for run in runs]
    if len({event.sampling for event in events}) > 1:
        raise ValueError("draws by Poisson sampling and without replacement have no common adjacency")
    if events[0].sampling != "poisson" and len({event.rate for event in events}) > 1:
        raise ValueError("runs that share draws have cohorts of different sizes")
    done = 0
    for end in sorted({event.times for event in events}):
        still = [event for event in events if event.times >= end]
        noise = compose(sorted(event.noise_multiplier for event in still))
        yield Event(noise, max(event.rate for event in still), end - done, still[0].sampling)
        done = end


def _together(event: Event) -> float:
    """Return the noise multiplier of all draws of an event, were each certain."""
    return event.noise_multiplier / math.sqrt(event.times)


def _fewer(events: Sequence[Event]) -> list[Event]:
    """Return at most `MOST_KINDS` events that are at least as telling: with less noise, and higher rates."""
    ratio, merged = _COARSE, list(events)
    while len(merged) > MOST_KINDS:
        groups: dict[tuple[int, int], list[Event]] = {}
        for event in events:
            place = (
                math.floor(math.log(event.noise_multiplier) / ratio),
                math.ceil(math.log(event.rate) / ratio),
            )
            groups.setdefault(place, []).append(event)
        merged = [
            Event(
                min(event.noise_multiplier for event in group),
                max(event.rate for event in group),
                sum(event.times for event in group),
                group[0].sampling,
            )
            for group in groups.values()
        ]
        ratio *= 1.5
    return merged
