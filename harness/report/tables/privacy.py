"""Privacy statements in words."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

#: Explanations of noise placement, privacy unit, neighbors and sampling; see docs/privacy.md.
PLACEMENTS = {
    "central": "a trusted server adds the noise, to averages of clipped messages",
    "local": "each client adds the noise itself",
}
UNITS = {"client": "one client with all its data", "record": "one record of a client"}
CHANGES = {
    "replace": "replaced",
    "add-remove": "added or removed",
    "zero-out": "replaced by one without effect, with public numbers of samples",
}
SAMPLINGS = {
    "poisson": "drawn in secret (Poisson)",
    "without-replacement": "drawn in secret (fixed size)",
    "fixed": "public, each client charged for its rounds",
    "full": "everybody",
}
UNEVEN = 0.8  # a median below this share of the largest epsilon is worth a sentence


def in_words(claim: Mapping[str, Any]) -> str:
    """Describe a privacy statement in a sentence or two."""
    placement, unit = str(claim.get("placement")), str(claim.get("unit"))
    change, sampling = str(claim.get("adjacency")), str(claim.get("sampling"))
    who = "records of a batch" if unit == "record" else "participants"
    text = (
        f"Privacy: {placement} placement ({PLACEMENTS.get(placement, placement)}); the unit is "
        f"{UNITS.get(unit, unit)}, {CHANGES.get(change, change)}; {who}: {SAMPLINGS.get(sampling, sampling)}; "
        f"ε is the total of the run at delta {claim.get('delta')}."
    )
    return text + _exposed(claim)


def _exposed(claim: Mapping[str, Any]) -> str:
    """Return whose the largest epsilon is, where clients differ much."""
    largest, middle = claim.get("epsilon_total"), claim.get("epsilon_median")
    if not isinstance(largest, float) or not isinstance(middle, float) or not middle < UNEVEN * largest:
        return ""
    vertical = "protects" in claim
    whose, number = "person" if vertical else "client", claim.get("unit_most")
    text = f" It is that of {whose} {number}; the median {whose} has {middle:.3g}."
    if claim.get("unit") == "record" and not vertical:
        text += (
            f" Client {number} sets the noise of all; privacy.noise: per_client gives each client its own."
        )
    return text
