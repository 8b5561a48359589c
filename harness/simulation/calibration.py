"""Calibration of noise to a privacy budget."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from datasets.errors import warn_once
from harness.core.errors import UserError
from harness.core.settings.compression import PLAIN
from harness.core.settings.privacy import Privacy, PrivacyTerms
from harness.core.settings.privacy_kinds import (
    CentralPrivacy,
    DistributedPrivacy,
    GradientPrivacy,
    LocalPrivacy,
)
from harness.simulation.dry_run import dry_run
from harness.simulation.setup import Prepared, Setup
from harness.simulation.statement import large_delta, protected_units
from harness.simulation.totals import DryRun
from privacy.accounting import calibrate as calibrate_events
from privacy.event import Event
from privacy.gaussian import analytic_sigma, classic_sigma
from privacy.individual import calibrate_all, calibrate_each
from privacy.ledger import Ledger
from privacy.own_mechanism import MechanismError

LOUD = 1.5  # times the median rate: a client drawn so much more often is named


def calibrated(setup: Prepared, dry: DryRun | None = None) -> Setup:
    """Return a run with the noise that its budget requires; one that has its noise is unchanged.

    A dry run counts the releases and raises what gossip or compression refuse. For unit record all clients take
    part in its rounds, as they differ in their steps. Vertical problems go through all rounds, because every party
    knows who is in which batch. Where clients add the noise together another one is made with the noise that was
    found, because the bits of a sum depend on it.

    Parameters
    ----------
    setup : Prepared
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
    if isinstance(setup, Setup):
        return setup
    by_gradient = setup.privacy is not None and setup.privacy.by_gradient
    plain = setup.privacy is None and setup.mixing is None and setup.compression == PLAIN
    totals = None if plain else dry or dry_run(setup, everybody=by_gradient)

    def noise(privacy: PrivacyTerms, run: int) -> Privacy:
        assert totals is not None
        return with_noise(privacy, totals.ledger, totals.releases, run)

    try:
        setup_with_noise = setup.with_noise(noise, totals)
    except MechanismError as error:
        raise UserError(f"privacy.mechanism: {error}") from error
    if totals is not None and by_gradient:
        _name_loudest(setup_with_noise.each[0], totals.ledger)
    _name_delta(setup_with_noise.each[0])
    if isinstance(setup.spec.privacy, DistributedPrivacy) and setup.spec.privacy.noise_multiplier is None:
        return replace(setup_with_noise, dry=dry_run(setup_with_noise))
    return setup_with_noise


def recalibrated(setup: Setup) -> Setup:
    """Return a changed run with the noise that its budget requires now."""
    return calibrated(setup.uncalibrated())


def _name_loudest(first: Setup, ledger: Ledger) -> None:
    """Warn where one client's rate, which is that of few samples, decides the noise of all clients.

    It need not be the one with the largest rate: who has fewer samples than a batch takes fewer steps in an epoch.
    """
    assert first.privacy is not None
    spec, noise = first.privacy.spec, first.privacy.noise_multiplier
    if first.privacy.multipliers or spec.noise_multiplier is not None:
        return
    for of_draw in ledger.rates.values():
        rates = of_draw.reshape(-1, of_draw.shape[-1])[0]  # of the first run
        middle = float(np.median(rates))
        if rates.max() < LOUD * middle:
            continue
        report = ledger.report(
            spec.delta, spec.accountant, noise_multiplier=noise, run=0, noise=first.privacy.user_noise
        )
        most = report["unit_most"]  # whom the privacy statement names
        if rates[most] >= LOUD * middle:
            names, counts = first.federation.names, first.federation.counts()
            who, unit = names[most] if names else f"client {most}", first.privacy.unit
            why = (
                "has the fewest training samples"
                if counts[most] == counts.min()
                else f"has {unit}s that are drawn most often"
            )
            warn_once(  # without numbers, which may differ between seeds
                f"privacy: {who} {why}, so it sets the noise of all clients. partition.at_least leaves out small "
                "clients, partition.group: other joins them; privacy.noise: per_client gives each client its own "
                "noise"
            )


def _name_delta(first: Setup) -> None:
    """Warn of a delta that would allow to publish one of the protected units as it is."""
    if first.privacy is None:
        return
    vertical, cohort = first.problem.kind == "vertical", first.spec.cohort
    units: float = protected_units(first.privacy, first.training, vertical=vertical)
    if cohort is not None and cohort.rate is not None:
        units = cohort.expected / cohort.rate  # their number is private
    if warning := large_delta(first.privacy, units):
        warn_once(f"privacy: {warning}")


def with_noise(privacy: PrivacyTerms, ledger: Ledger, releases: int, run: int = 0) -> Privacy:
    """Return a mechanism with the noise that its budget requires.

    The classic formula takes the clip norm as sensitivity; the ledger holds the actual guarantee of its noise.

    Parameters
    ----------
    privacy : PrivacyTerms
        The mechanism.
    ledger : Ledger
        All releases of the run, relative to its noise.
    releases : int
        Largest number of releases per round.
    run : int
        Number of the run in a stack.
    """
    spec = privacy.spec
    if spec.noise_multiplier is not None:
        multiplier = spec.noise_multiplier
    elif isinstance(spec, LocalPrivacy | CentralPrivacy) and spec.epsilon_nominal is not None:
        multiplier = classic_sigma(spec.epsilon_nominal, spec.delta, 1.0) / privacy.factor
    elif spec.epsilon_release is not None:
        release = Event(1.0, noise=privacy.user_noise)
        multiplier = (
            analytic_sigma(spec.epsilon_release, spec.delta, 1.0)
            if privacy.user_noise is None
            else calibrate_events(spec.epsilon_release, spec.delta, [release])
        )
    else:
        assert spec.epsilon is not None
        histories = ledger.histories(run=run, noise=privacy.user_noise)
        if isinstance(spec, GradientPrivacy) and spec.noise == "per_client":
            each = calibrate_each(spec.epsilon, spec.delta, histories, spec.accountant)
            multipliers = tuple(each.tolist())
            return privacy.with_noise(min(multipliers), releases, multipliers)
        multiplier = calibrate_all(spec.epsilon, spec.delta, histories, spec.accountant)
    return privacy.with_noise(multiplier, releases)
