"""The attacks that a run asks for, and the measures made of them.

Each attack repeats the run, or variants of it, and looks at what arrives. Nothing of it is sent, counted or
released: the values are made from private data for the researcher.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial
from typing import Any

from harness.metrics import ATTACKED
from harness.simulation.attacks.inversion import inversion
from harness.simulation.attacks.labels import labels
from harness.simulation.attacks.membership import membership
from harness.simulation.attacks.roc import Estimate
from harness.simulation.setup import Setup
from harness.simulation.simulation import Simulation

log = logging.getLogger(__name__)


def attacked(setup: Setup, run: Simulation, number: int) -> tuple[dict[str, float], dict[str, Any]]:
    """Carry out the attacks that a run asks for.

    Parameters
    ----------
    setup : Setup
        The run, with calibrated noise.
    run, number : Simulation, int
        Where its final state is.

    Returns
    -------
    values : dict
        Measures of `harness.metrics.ATTACKED`; those that do not apply are missing.
    details : dict
        By attack: these with intervals, numbers of samples, and bounds that the run's epsilon implies.
    """
    asked = setup.spec.attacks
    if asked is None:
        return {}, {}
    attacks: dict[str, Callable[[], dict[str, Any] | None]] = {
        "membership": partial(membership, setup, run, number, asked.shadows, asked.samples),
        "inversion": partial(inversion, setup),
        "labels": partial(labels, setup),
    }
    details = {str(name): _tried(name, attacks[name]) for name in asked.kinds}
    carried_out = {name: result for name, result in details.items() if result is not None}
    values = {
        name: value.value if isinstance(value, Estimate) else value
        for result in carried_out.values()
        for name, value in result.items()
        if name in ATTACKED
    }
    return values, {
        name: {key: _plain(value) for key, value in result.items()} for name, result in carried_out.items()
    }


def _plain(value: Any) -> Any:
    return value._asdict() if isinstance(value, Estimate) else value


def _tried(name: str, attack: Callable[[], dict[str, Any] | None]) -> dict[str, Any] | None:
    """Carry out an attack; an error is recorded instead of ending a run that is finished but for it."""
    try:
        return attack()
    except Exception as error:
        log.warning("attack %s: %s: %s", name, type(error).__name__, error)
        return {"error": f"{type(error).__name__}: {' '.join(str(error).split())}"}
