"""Checks of parts and of claims by name: what ``check`` and ``audit`` do, in Python and on the command line."""

from __future__ import annotations

from typing import Any

from harness.core.algorithm import ALGORITHMS
from harness.core.errors import UserError, unknown
from harness.models import MODELS
from harness.simulation.setup import Setup
from harness.testing.canary_audit import audit_run
from harness.testing.conformance import check
from harness.testing.conformance_models import check_model
from harness.testing.transcript_audit import audit_transcript, of_setup
from privacy.own_mechanism import MECHANISMS


def check_named(name: str) -> list[dict[str, Any]]:
    """Return a row for each conformance check of an algorithm or a model; raise `UserError` if it is neither."""
    if name in ALGORITHMS:
        return check(ALGORITHMS[name])
    require_checked(name)
    return check_model(name)


def require_checked(name: str) -> None:
    """Raise `UserError` unless a name is that of an algorithm or a model."""
    if name in MECHANISMS:
        raise UserError(
            f"check: {name} is a mechanism; audit tests its noise in a run, as with --set privacy.mechanism={name}"
        )
    if name not in ALGORITHMS and name not in MODELS:
        raise unknown("algorithm or model", name, [*ALGORITHMS, *MODELS])


def audit_setup(setup: Setup, trials: int, canaries: int) -> list[dict[str, Any]]:
    """Return what the audits of a run found: of its releases, and of its training if there are canaries.

    Raises
    ------
    UserError
        If the run claims no privacy, or none that can be audited.
    """
    if trials < 1:
        raise UserError(f"--trials must be at least 1, given {trials}")
    if setup.privacy is None:
        raise UserError("audit: the run claims no privacy; give it a section privacy")
    if setup.privacy.noise_cohort is not None:
        raise UserError("privacy.noise_cohort: its epsilon is extrapolated, so there is nothing to audit")
    trained = [audit_run(setup, canaries)] if canaries else []  # first, as it may be refused
    return [audit_transcript(of_setup(setup), setup.privacy, trials), *trained]
