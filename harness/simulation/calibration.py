"""Calibration of noise to a privacy budget."""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import numpy as np

from datasets.errors import warn_once
from harness.core.registry import UserError
from harness.core.settings.compression import PLAIN
from harness.core.settings.privacy import LARGEST, Privacy
from harness.simulation.build import Setup
from harness.simulation.claims import large_delta, protected_units
from harness.simulation.dry_run import DryRun, dry_run
from privacy import Event, Ledger, analytic_sigma, calibrate_all, calibrate_each, classic_sigma
from privacy.accounting import calibrate as calibrate_events
from privacy.own_mechanism import MechanismError

LOUD = 1.5  # times the median rate: a client drawn so much more often is named


class Calibrated(NamedTuple):
    """A setup with its noise, and the dry run that was made for it; None if there is nothing to calibrate."""

    setup: Setup
    dry: DryRun | None


def calibrated(setup: Setup) -> Setup:
    """Return the setup with the noise that its budget requires; see `calibrate`."""
    return calibrate(setup).setup


def calibrate(setup: Setup, dry: DryRun | None = None) -> Calibrated:
    """Find the noise that a setup's budget requires.

    A dry run counts the releases and raises what gossip or compression refuse. For unit record all clients take
    part in its rounds, as they differ in their steps. Vertical problems go through all rounds, because every party
    knows who is in which batch. Where clients add the noise together another one is made with the noise that was
    found, because the bits of a sum depend on it.

    Parameters
    ----------
    setup : Setup
        A run or a stack of runs.
    dry : DryRun, optional
        That of a run that differs in its budget only.

    Raises
    ------
    Incompatible
        If parts of the run are incompatible.
    UserError
        If no noise of a user's mechanism keeps the budget.
    """
    if setup.privacy is None and setup.mixing is None and setup.compression == PLAIN:
        return Calibrated(setup, None)
    record = setup.privacy is not None and setup.privacy.by_gradient
    setup = _draft(setup)
    dry = dry or dry_run(setup, everybody=record)
    try:
        each = [
            one
            if one.privacy is None
            else replace(one, privacy=with_noise(one.privacy, dry.ledger, dry.releases, number))
            for number, one in enumerate(setup.each)
        ]
    except MechanismError as error:
        raise UserError(f"privacy.mechanism: {error}") from error
    if record:
        _name_loudest(each[0], dry.ledger)
    _name_delta(each[0])
    found = replace(setup, privacy=each[0].privacy, members=tuple(each) if setup.members else ())
    if setup.privacy is not None and _noise_decides(setup.privacy):
        dry = dry_run(found)
    return Calibrated(found, dry)


def _name_loudest(first: Setup, ledger: Ledger) -> None:
    """Warn where one client's rate, which is that of few samples, decides the noise of all clients.

    It need not be the one with the largest rate: who has fewer samples than a batch takes fewer steps in an epoch.
    """
    assert first.privacy is not None
    spec, noise = first.privacy.spec, first.privacy.noise_multiplier
    if spec.noise == "per_client" or spec.noise_multiplier is not None or noise is None:
        return
    for own in ledger.rates.values():
        rates = own.reshape(-1, own.shape[-1])[0]  # of the first run
        middle = float(np.median(rates))
        if rates.max() < LOUD * middle:
            continue
        report = ledger.report(
            spec.delta, spec.accountant, noise_multiplier=noise, run=0, noise=first.privacy.own
        )
        most = report["unit_most"]  # whom the privacy statement names
        if rates[most] >= LOUD * middle:
            names, samples = first.federation.names, int(first.federation.counts()[most])
            name = f"{names[most]}, " if names else ""
            warn_once(
                f"privacy: client {most} ({name}{samples} training samples, sampling rate {rates[most]:.3g}; the "
                f"median rate is {middle:.3g}) determines the noise for all clients. partition.at_least leaves out "
                "small clients, partition.group: other joins them; privacy.noise: per_client gives each client its "
                "own noise"
            )


def _name_delta(first: Setup) -> None:
    """Warn of a delta that would allow to publish one of the protected units as it is."""
    if first.privacy is None:
        return
    vertical, cohort = first.problem.kind == "vertical", first.spec.cohort
    units: float = protected_units(first.privacy, first.training, vertical=vertical)
    if cohort is not None and cohort.rate is not None:
        units = cohort.expected / cohort.rate  # their number is private
    if found := large_delta(first.privacy, units):
        warn_once(f"privacy: {found}")


def _draft(setup: Setup) -> Setup:
    """Return the setup without the number of releases that an earlier calibration found.

    Where the noise decides whether a run is possible, it has the least until it is known.
    """
    each = tuple(replace(one, privacy=one.privacy and _drafted(one.privacy)) for one in setup.each)
    return replace(setup, privacy=each[0].privacy, members=each if setup.members else ())


def _drafted(privacy: Privacy) -> Privacy:
    least = 1 / LARGEST if _noise_decides(privacy) else privacy.noise_multiplier
    return replace(privacy, releases=None, noise_multiplier=least)


def _noise_decides(privacy: Privacy) -> bool:
    """Whether noise that a budget has yet to decide says how many bits a sum needs."""
    return privacy.placement == "distributed" and privacy.spec.noise_multiplier is None


def with_noise(draft: Privacy, ledger: Ledger, releases: int, run: int = 0) -> Privacy:
    """Return a mechanism with the noise that its budget requires.

    The classic formula takes the clip norm as sensitivity; the ledger holds the actual guarantee of its noise.

    Parameters
    ----------
    draft : Privacy
        The mechanism before calibration.
    ledger : Ledger
        All releases of the run, relative to its noise.
    releases : int
        Largest number of releases per round.
    run : int
        Number of the run in a stack.
    """
    spec = draft.spec
    if spec.noise_multiplier is not None:
        multiplier = spec.noise_multiplier
    elif spec.epsilon_nominal is not None:
        multiplier = classic_sigma(spec.epsilon_nominal, spec.delta, 1.0) / draft.factor
    elif spec.epsilon_release is not None:
        one = Event(1.0, noise=draft.own)
        multiplier = (
            analytic_sigma(spec.epsilon_release, spec.delta, 1.0)
            if draft.own is None
            else calibrate_events(spec.epsilon_release, spec.delta, [one])
        )
    else:
        assert spec.epsilon is not None
        histories = ledger.histories(run=run, noise=draft.own)
        if spec.noise == "per_client":
            own = calibrate_each(spec.epsilon, spec.delta, histories, spec.accountant)
            multipliers = tuple(own.tolist())
            return replace(
                draft, noise_multiplier=min(multipliers), multipliers=multipliers, releases=releases
            )
        multiplier = calibrate_all(spec.epsilon, spec.delta, histories, spec.accountant)
    return replace(draft, noise_multiplier=multiplier, releases=releases)
