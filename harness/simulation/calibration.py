"""Calibration of noise to a privacy budget."""

from __future__ import annotations

from dataclasses import replace

from harness.core.wire.settings import PLAIN, Privacy
from harness.simulation.build import Setup
from harness.simulation.dry_run import dry_run
from privacy import Event, Ledger, analytic_sigma, calibrate, classic_sigma


def calibrated(setup: Setup) -> Setup:
    """Return the setup with the noise that its budget requires.

    A dry round counts the largest number of releases and raises what gossip or compression refuse. For unit record
    all clients take part in it: a cohort may take fewer steps and release less. Vertical problems go through all
    rounds, because every party knows who is in which batch.

    Raises
    ------
    Incompatible
        If parts of the run are incompatible.
    """
    if setup.privacy is None and setup.mixing is None and setup.compression == PLAIN:
        return setup
    record = setup.privacy is not None and setup.privacy.unit == "record"
    dry = dry_run(full_participation(setup) if record else setup, every_stage=False)
    each = [
        one
        if one.privacy is None
        else replace(one, privacy=with_noise(one.privacy, dry.ledger, dry.releases))
        for one in setup.each
    ]
    return replace(setup, privacy=each[0].privacy, members=tuple(each) if setup.members else ())


def full_participation(setup: Setup) -> Setup:
    """Return the setup without a cohort, which has the largest number of local steps and releases."""
    return replace(setup, spec=setup.spec.model_copy(update={"cohort": None}))


def with_noise(draft: Privacy, ledger: Ledger, releases: int) -> Privacy:
    """Return a mechanism with the noise that its budget requires.

    The classic formula takes the clip norm as sensitivity; the ledger holds the actual guarantee of its noise.

    Parameters
    ----------
    draft : Privacy
        The mechanism before calibration.
    ledger : Ledger
        All releases of a run under it, or under a mechanism that differs in its budget only.
    releases : int
        Largest number of releases per round.
    """
    spec = draft.spec
    if spec.noise_multiplier is not None:
        multiplier = spec.noise_multiplier
    elif spec.epsilon_nominal is not None:
        multiplier = classic_sigma(spec.epsilon_nominal, spec.delta, 1.0) / draft.factor
    elif spec.epsilon_release is not None:
        multiplier = analytic_sigma(spec.epsilon_release, spec.delta, 1.0)
    else:
        assert spec.epsilon is not None
        events = [Event(draw.noise_multiplier, draw.rate, draw.times) for draw in ledger.all_draws]
        multiplier = draft.noise_multiplier * calibrate(spec.epsilon, spec.delta, events, spec.accountant)
    return replace(draft, noise_multiplier=multiplier, releases=releases)
