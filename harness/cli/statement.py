"""``epsilon --statement``: the epsilon of a run, computed again from what its statement prints."""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from harness.cli.console import out
from harness.core.errors import UserError
from harness.report.tables.privacy import ties_to_others
from privacy.accounting import ACCOUNTANTS, account
from privacy.attacker import attack_bound
from privacy.event import Event, own_event
from privacy.own_mechanism import MECHANISMS
from privacy.trade_off import accuracy_bound

#: Relative difference from which a printed epsilon is another one.
ROUNDED = 1e-6


def statement_command(args: argparse.Namespace) -> int:
    """Compute the epsilon of a statement again, and return 1 if another one is printed."""
    statement = read_statement(Path(args.statement))
    try:
        events, delta = events_of(statement), float(statement["delta"])
        result = account(events, delta, _accountant(statement))
        bound = attack_bound(events, delta)
    except (KeyError, TypeError, ValueError) as error:
        raise UserError(
            f"epsilon: {args.statement}: no epsilon follows from this statement: {error}"
        ) from error
    printed = float(statement.get("epsilon_total", math.nan))
    agrees = result.epsilon == printed or math.isclose(result.epsilon, printed, rel_tol=ROUNDED)
    if args.json:
        print(
            json.dumps(
                {
                    "epsilon": result.epsilon if math.isfinite(result.epsilon) else "inf",
                    "accountant": result.accountant,
                    "printed": statement.get("epsilon_total"),
                    "agrees": agrees,
                    "accuracy": bound.accuracy,
                    "accuracy_from_epsilon": accuracy_bound(result.epsilon, delta),
                }
            )
        )
    else:
        draws = sum(event["draws"] for event in statement["composition"])
        out.print(
            f"ε {result.epsilon:.6g} by {result.accountant} from {draws} draws at delta {delta:g}; the statement "
            f"prints "
            f"{printed:.6g}: {'they agree' if agrees else 'they differ'}. An attacker who guesses between two data "
            f"sets is right at most {100 * bound.accuracy:.2f} % of the time from the mechanism, "
            f"{100 * accuracy_bound(result.epsilon, delta):.2f} % from ε and delta alone."
            f"{ties_to_others(statement)}",
            markup=False,
        )
    return 0 if agrees else 1


def read_statement(path: Path) -> Mapping[str, Any]:
    """Return the privacy statement in a run's folder, its ``done.json``, or what ``run --json`` has printed.

    Raises
    ------
    UserError
        If there is none, or it does not say what its epsilon is composed of.
    """
    file = path / "done.json" if path.is_dir() else path
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        if isinstance(error, FileNotFoundError):
            raise UserError(f"epsilon: no such file: {file}; give a run, as results/runs/ID") from None
        raise UserError(f"epsilon: {file} cannot be read as a statement: {error}") from error
    statement = content.get("privacy", content) if isinstance(content, Mapping) else None
    if not isinstance(statement, Mapping) or not isinstance(statement.get("composition"), list):
        raise UserError(
            f"epsilon: {file} has no privacy statement that says which draws its epsilon is composed of; give a "
            "finished run with privacy"
        )
    return statement


def events_of(statement: Mapping[str, Any]) -> list[Event]:
    """Return the events of which a statement's epsilon is composed.

    Raises
    ------
    UserError
        If the noise is that of a plugin that is not loaded.
    """
    name = statement["mechanism"] if "mechanism_version" in statement else None
    if name is not None and name not in MECHANISMS:
        raise UserError(
            f"epsilon: the noise is that of mechanism {name}, which only its plugin defines; give --plugin FILE.py"
        )
    events = []
    for entry in statement["composition"]:
        sampling = "poisson" if entry["sampling"] == "none" else entry["sampling"]
        noise, rate, draws = float(entry["noise_multiplier"]), float(entry["rate"]), int(entry["draws"])
        if name is not None:
            events.append(own_event(MECHANISMS[name], noise, int(entry["releases"]), rate, draws, sampling))
        else:
            events.append(Event(noise, rate, draws, sampling))
    return events


def _accountant(statement: Mapping[str, Any]) -> str:
    """Return the accountant of sampled draws; where nothing is sampled any gives the exact value."""
    accountant = statement.get("accountant")
    return str(accountant) if accountant in ACCOUNTANTS else "pld"
