"""An audit of the transcript of a run: tests of everything that the printed epsilon assumes."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from harness.core.settings.compression import PLAIN
from harness.core.settings.privacy import Privacy
from harness.core.settings.privacy_kinds import CentralPrivacy
from harness.simulation.setup import Setup
from harness.simulation.simulation import Simulation
from harness.simulation.snapshot import Diverged
from harness.testing.transcript import Key, Transcript
from harness.testing.wiretap import TOLERANCE, Wiretap, Witness
from privacy.accounting import account, compose
from privacy.audit import correlation_p, inclusion_p, normal_p, scale_p
from privacy.banded import coefficients
from privacy.discrete import MOST_BITS
from privacy.event import Event, own_event
from privacy.own_mechanism import Noise

ROUNDS = 20
KINDS = 64  # of releases that are tested for correlation
TABLE = 2**24  # entries of their noise that are kept, at most
GRID = 0.02  # sensitivities by which integers may be off without noise
LISTED = 12  # findings in a report

# Makes the simulation of a run with other classes of clients and channel, and another mechanism.
Make = Callable[..., Simulation]


def audit_transcript(
    make: Make, privacy: Privacy, rounds: int = ROUNDS, alarm: float = 0.01
) -> dict[str, Any]:
    """Run an algorithm under its mechanism and test every release.

    Without noise, what arrives must be what clipping alone would give. With noise, the differences must be normal
    with the standard deviation that the run states, and uncorrelated between messages, parts, gradients, rounds
    and clients. Cohorts and batches must look like Poisson samples at the stated rates. The stated epsilon must
    cover what every client must be charged for. Runs are made uncompressed: what is done to a message after its
    noise cannot make the claim wrong, and would only hide a broken one.

    Parameters
    ----------
    make : Callable
        Returns the simulation, given ``privacy``, ``clients``, ``channel``, ``compression`` and ``in_chunks`` as
        for `Simulation`.
    privacy : Privacy
        Calibrated mechanism of the run.
    rounds : int
        Number of rounds.
    alarm : float
        Bound on the probability of a false alarm.

    Returns
    -------
    dict
        ``rounds``, kinds of ``releases`` seen, number of ``tests``, smallest ``p_value`` times that number,
        ``std_claimed`` and ``std_measured`` (over the sensitivity; all releases together), ``epsilon_claimed`` and
        ``epsilon_seen``, ``findings``.
    """
    privacy = _noise_alone(privacy)
    banded, summed = privacy.spec.mechanism == "banded", privacy.placement == "distributed"
    rounds = min(rounds, privacy.rounds) if banded else rounds
    report: dict[str, Any] = {"part": "transcript", "rounds": rounds}
    if privacy.noise_multiplier == 0:
        return report | {"note": "no noise, nothing claimed", "findings": []}
    quiet, _ = _recorded(make, replace(privacy, noise_multiplier=0.0, multipliers=()), 2)
    seen, run = _recorded(make, privacy, rounds)
    if banded:
        seen.wrong += _too_close(seen, privacy.bands)
        seen.noise = {key: _encoded(each, privacy) for key, each in seen.noise.items()}
    tolerance = GRID if summed else TOLERANCE[next(iter(run.start.values())).dtype]
    if not seen.charges:
        return report | {"note": "nothing is released", "findings": _short(seen.wrong)}
    claim, spent = run.statement() or {}, _epsilon(seen)
    noise, multiplier = privacy.user_noise, claim.get("noise_multiplier")  # None if nothing was booked
    tests = list(_tests(seen, _multipliers(run), noise))
    findings = [*quiet.wrong, *seen.wrong, *_unclipped(quiet, tolerance), *_unbooked(seen, claim, spent)]
    findings += [text for p, text in tests if p < alarm / len(tests)]
    kept = [part.flatten() for key, each in seen.noise.items() for part in each.values() if key[0] != "count"]
    return report | {
        "releases": len(seen.noise),
        "tests": len(tests),
        "p_value": min(1.0, len(tests) * min((p for p, _ in tests), default=1.0)),
        "std_claimed": multiplier and multiplier * (1.0 if noise is None else noise.std),
        "std_measured": math.sqrt(float(torch.cat(kept).square().nanmean())) if kept else None,
        "epsilon_claimed": claim["epsilon_total"],
        "epsilon_seen": spent,
        "findings": _short(findings),
    }


def _noise_alone(privacy: Privacy) -> Privacy:
    """Return the mechanism without what changes its noise afterwards."""
    changed: dict[str, Any] = {}
    if privacy.server_clip is not None:  # post-processing
        changed["server_clip"] = None
    if privacy.placement == "distributed":  # a fine grid, as rounding adds to the noise
        changed |= {"bits": MOST_BITS, "dropouts": None}
    return replace(privacy, spec=privacy.spec.model_copy(update=changed))


def of_setup(setup: Setup) -> Make:
    """Return the function that makes a prepared run."""
    return partial(Simulation.from_setup, setup)


def _recorded(make: Make, privacy: Privacy, rounds: int) -> tuple[Transcript, Simulation]:
    """Return the transcript of a run, up to the round in which it diverged if it did."""
    transcript = Transcript(privacy, max(64, min(4096, TABLE // KINDS // rounds)))
    run = make(
        privacy=privacy,
        compression=PLAIN.model_copy(update={"codec": "float64"}),
        in_chunks=False,
        clients=partial(Witness, transcript=transcript),
        channel=partial(Wiretap, transcript=transcript),
    )
    try:
        for _ in range(rounds):
            run.step()
    except Diverged:
        pass  # what was released until then is audited
    return transcript, run


def _encoded(noise: dict[int, Tensor], privacy: Privacy) -> dict[int, Tensor]:
    """Return what the noise of all rounds is made from, C times it, which must be independent."""
    assert isinstance(privacy.spec, CentralPrivacy)
    rows = coefficients(privacy.rounds, privacy.bands, privacy.spec.factorization)
    newest_noise = {}
    for round, newest in noise.items():
        newest_noise[round] = newest
        if round >= 0:  # the initialization is a release of its own
            past = [noise.get(round - back) for back in range(1, min(round + 1, privacy.bands))]
            terms = [row * part for row, part in zip(rows[round, 1:], past, strict=False) if part is not None]
            newest_noise[round] = sum(terms, rows[round, 0] * newest)
    return newest_noise


def _too_close(seen: Transcript, bands: int) -> Iterator[str]:
    """Describe clients that take part twice within the rounds over which noise is correlated."""
    last: dict[int, int] = {}
    for (_, round), (who, _) in sorted(seen.charges.items(), key=lambda charge: int(charge[0][1])):
        for client in who.nonzero().flatten().tolist() if int(round) >= 0 else []:
            if int(round) - last.get(client, -bands) < bands:
                rounds = f"rounds {last[client]} and {round}"
                yield f"client {client} takes part in {rounds}, and noise is correlated over {bands} rounds"
            last[client] = int(round)


def _unclipped(quiet: Transcript, tolerance: float) -> Iterator[str]:
    """Describe releases that differ from clipped ones although there is no noise."""
    for key, each in quiet.noise.items():
        worst = max(float(part.abs().nan_to_num(0.0).max()) for part in each.values() if part.numel())
        if key[0] != "count" and not worst <= tolerance:  # an adaptive clip's count keeps a little noise
            yield f"{_name(key)}: without noise it is off the clipped one by {worst:.3g} sensitivities"


def _tests(
    seen: Transcript, multipliers: tuple[float, ...], noise_of_user: Noise | None
) -> Iterator[tuple[float, str]]:
    """Yield p-value and description of every test of noise and sampling."""
    noise = {
        key: {round: part / multipliers[-1 if key[0] == "count" else 0] for round, part in each.items()}
        for key, each in seen.noise.items()
    }
    if noise_of_user is not None:
        noise = {
            key: {
                round: torch.from_numpy(noise_of_user.normal(part.numpy())).clamp(-9, 9)
                for round, part in each.items()
            }
            for key, each in noise.items()
        }
        for key, each in noise.items():
            together = torch.cat([part.flatten() for part in each.values()])
            yield normal_p(together), f"{_name(key)}: the noise is not distributed as declared"
    for key, each in noise.items():
        yield scale_p(torch.cat([part.flatten() for part in each.values()])), _off(key, each.values())
        pairs = list(zip(list(each.values())[::2], list(each.values())[1::2], strict=False))
        changes = [(one - other).flatten() for one, other in pairs if one.shape == other.shape]
        if changes:  # equal noise of a single entry in every round shows in its changes only
            yield (
                scale_p(torch.cat(changes), math.sqrt(2)),
                f"{_name(key)}: the noise changes too little, or too much, from round to round",
            )
        if len(each) > 1:
            for round, part in each.items():
                yield scale_p(part), f"{_off(key, [part])}, round {round}"
    if noise:
        table, rounds = _table(dict(list(noise.items())[:KINDS]))  # (kinds, rounds, clients, entries)
        labels = [_name(key) for key in noise], [f"round {round}" for round in rounds]
        # Averages that a server sees are compared with those of clients' noise.
        average = table.nansum(2, keepdim=True) / (~table.isnan()).sum(2, keepdim=True).sqrt()
        for of, where in ((table, ""), (average, " in the average of clients")):
            for axis, names in enumerate(labels):
                p, (one, other) = correlation_p(of.movedim(axis, 0).flatten(1))
                yield p, f"noise is correlated between {names[one]} and {names[other]}{where}"
        p, (one, other) = correlation_p(table.movedim(2, 0).flatten(1))
        yield p, f"noise is correlated between clients {one} and {other}"
    for (kind, _, rate), sequences in seen.included.items():
        if rate == 1:
            continue
        lengths = {len(members) for members in sequences.values()}
        for length in sorted(lengths):
            alike = [torch.stack(members) for members in sequences.values() if len(members) == length]
            for p, text in inclusion_p(torch.stack(alike, 1), rate):
                yield p, f"{kind}: {text}"


def _table(noise: dict[Key, dict[int, Tensor]]) -> tuple[Tensor, list[int]]:
    """Return all noise as one tensor, nan where there is none, and the rounds."""
    rounds = sorted({round for each in noise.values() for round in each})
    shapes = [part.shape for each in noise.values() for part in each.values()]
    size = [max(shape[axis] for shape in shapes) for axis in (0, 1)]
    table = torch.full((len(noise), len(rounds), *size), torch.nan, dtype=torch.float64)
    for number, each in enumerate(noise.values()):
        for round, part in each.items():
            table[number, rounds.index(round), : part.shape[0], : part.shape[1]] = part
    return table, rounds


def _multipliers(run: Simulation) -> tuple[float, ...]:
    """Return the booked noise multipliers, ascending: with adaptive clips the count's is the last."""
    z = run.privacy.noise_multiplier if run.privacy else 0.0
    return tuple(sorted({z * noise for draw in run.ledger.counts for noise, _ in draw.releases})) or (z,)


def _epsilon(seen: Transcript) -> float:
    """Return the largest epsilon of a client, or person, by what was seen."""
    privacy = seen.privacy
    how = "without-replacement" if privacy.sampling == "without-replacement" else "poisson"
    noise = privacy.user_noise
    accounts = (
        account(
            [
                Event(compose([z] * int(count)), rate, times, how)
                if noise is None
                else own_event(noise, z, int(count), rate, times, how)
                for (count, rate), times in each
            ],
            privacy.delta,
            privacy.accountant,
        ).epsilon
        for z, each in seen.spent()
    )
    return max(accounts, default=0.0)


def _unbooked(seen: Transcript, claim: dict[str, Any], spent: float) -> Iterator[str]:
    """Describe what the stated epsilon and number of releases leave out."""
    each = 2 if seen.privacy.clip == "adaptive" else 1  # the count is a release too
    releases = {
        each * sum(int(count) * times for (count, _), times in charges) for _, charges in seen.spent()
    }
    stated, epsilon = claim["releases"], float(claim["epsilon_total"])
    if max(releases) > stated or (len(releases) == 1 and stated not in releases):
        yield f"{max(releases)} releases were made, {stated} are booked"
    if not epsilon >= spent * (1 - 1e-6):
        yield f"the releases that were made have epsilon {spent:.4g}, claimed {epsilon:.4g}"


def _off(key: Key, parts: Any) -> str:
    together = torch.cat([part.flatten() for part in parts])
    std = math.sqrt(float(together.square().nanmean()))
    return f"{_name(key)}: the noise has {std:.3g} times the booked standard deviation"


def _name(key: Key) -> str:
    if key[0] == "message":
        number = int(key[1])
        which = f"message {number}" if number >= 0 else f"message {-1 - number} before round 0"
        return f"{which}, part {key[2]}"
    if key[0] == "count":
        return f"count of message {key[1]}"
    _, stream, step, call, part = key
    return f"gradient {call} of batch {step} in stream {stream}, part {part}"


def _short(findings: list[str]) -> list[str]:
    findings = list(dict.fromkeys(findings))
    more = len(findings) - LISTED
    return findings if more <= 1 else [*findings[:LISTED], f"and {more} more of this kind"]
