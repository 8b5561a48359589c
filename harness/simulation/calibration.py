"""Noise for a privacy budget."""

from __future__ import annotations

from dataclasses import replace

from harness.core.wire.settings import PLAIN, Privacy
from harness.simulation.build import Setup
from harness.simulation.dry_run import dry_run
from privacy import Event, Ledger, analytic_sigma, calibrate, classic_sigma


def settled(setup: Setup) -> Setup:
    """Return the setup with the noise that its budget asks for.

    A dry round shows how many releases there will be at most, and what gossip or the compression refuses. For unit
    record it is one of everybody: in a cohort clients may take fewer steps, and release less. Parties all know who
    is in which batch, so all their rounds are gone through.

    Raises
    ------
    Incompatible
        If the parts of the run do not go together.
    """
    if setup.privacy is None and setup.mixing is None and setup.compression == PLAIN:
        return setup
    record = setup.privacy is not None and setup.privacy.unit == "record"
    found = dry_run(everybody(setup) if record else setup, every_stage=False)
    each = [
        one
        if one.privacy is None
        else replace(one, privacy=with_noise(one.privacy, found.ledger, found.releases))
        for one in setup.each
    ]
    return replace(setup, privacy=each[0].privacy, members=tuple(each) if setup.members else ())


def everybody(setup: Setup) -> Setup:
    """Return the setup in which all clients take part: nobody can take more local steps, and release more."""
    return replace(setup, spec=setup.spec.model_copy(update={"cohort": None}))


def with_noise(draft: Privacy, ledger: Ledger, releases: int) -> Privacy:
    """Return a mechanism with the noise that its budget asks for.

    The classic formula takes the clip norm as sensitivity; what its noise is really worth is in the ledger.

    Parameters
    ----------
    draft : Privacy
        The mechanism with any noise.
    ledger : Ledger
        What a whole run releases under it, or under one that differs in its budget only.
    releases : int
        How many releases a round makes at most.
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
