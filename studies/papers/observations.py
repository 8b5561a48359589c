"""Observations of the claims of papers, one for each run that counts: ``claims.csv``, and whether it is stale."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from harness.config.recorded import NAMES, SPECIAL, versions
from harness.core.errors import UserError
from harness.storage.cells import as_csv, from_csv
from harness.storage.files import write_text
from studies.papers.claims import PaperClaims

FILE = "claims.csv"
BOUND = ">="
DIGITS = 10  # significant, of a value
CLOSE = 1e-6  # relative: other processors round differently


class Observation(NamedTuple):
    """The observation of one run: a row of ``claims.csv``.

    Attributes
    ----------
    claim, question : str
        Id of the claim, and the digest of what it asked for when the observation was read.
    arm : str
        ``of`` or ``than``.
    point : float or None
        Value of the setting along which a slope is fitted.
    settings : str
        Settings that were chosen for this arm and point; empty if nothing was open.
    repetition : str
        The seed, or another setting that repeats.
    value : float or None
        The measure; None if the run has none, because it failed.
    bound : bool
        Whether the target was not reached, so that the value is what the run had spent without it.
    run : str
        Id of the run.
    versions : str
        What determined the run, with versions: ``algorithm=fedavg@3 problem=classify@4 ...``.
    tried : str
        Where several numbers were tried, these: ``algorithm.lr=0.1/0.2 ...``.
    others : str
        What the search could have chosen as well, for this seed: share and value, ``0.25=0.81 0.1=0.79``.
    resolution : float or None
        What rows of one method under two names differ by there; None if the suite has none.
    """

    claim: str
    question: str
    arm: str
    point: float | None
    settings: str
    repetition: str
    value: float | None
    bound: bool
    run: str
    versions: str
    tried: str = ""
    others: str = ""
    resolution: float | None = None

    @property
    def choices(self) -> list[tuple[float, float | None]]:
        """Share and value of all that the search could have chosen, the chosen setting first."""
        parts = (part.partition("=") for part in self.others.split())
        others = [(float(share), float(value)) for share, _, value in parts]
        return [(1 - sum(share for share, _ in others), self.value), *others]

    @property
    def edges(self) -> list[str]:
        """Chosen settings that are the least or the largest number tried, as ``algorithm.lr=0.2``."""
        tried = dict(part.partition("=")[::2] for part in self.tried.split())
        ends = {
            f"{name}={end}"
            for name, text in tried.items()
            for end in (text.split("/")[0], text.split("/")[-1])
        }
        return [part for part in self.settings.split() if part in ends]


OF_SEARCHES = ("others", "resolution")  # columns of files about tuned suites only
ROWS = "rows"  # of the claim in the file, so that a lost one is noticed
COLUMNS = (*(name for name in Observation._fields if name not in OF_SEARCHES), ROWS)
TUNED_COLUMNS = (*COLUMNS[:-1], *OF_SEARCHES, ROWS)


def versions_text(names: Mapping[str, str], versions: Mapping[str, Any]) -> str:
    """Return parts and versions as ``algorithm=fedavg@3 privacy=@3``; a plugin's version follows a ``+``."""
    plugins = versions.get("plugins", {})
    sections = [section for section in versions if section != "plugins"]
    sections += [section for section in plugins if section not in versions]
    texts = []
    for section in sections:
        plugin = f"+{plugins[section]}" if section in plugins else ""
        texts.append(f"{section}={names.get(section, '')}@{versions.get(section, '')}{plugin}")
    return " ".join(texts)


def stale(claims: PaperClaims, observations: Sequence[Observation]) -> list[str]:
    """Return why observations are not evidence for the claims of today, one sentence for each reason."""
    reasons: list[str] = []
    for claim in claims.claims:
        if claim.table:  # its rows have no versions
            continue
        evidence = [observation for observation in observations if observation.claim == claim.id]
        if not evidence:
            reasons.append(f"{claim.id}: {FILE} has no observation of it")
        elif any(observation.question != claim.question for observation in evidence):
            reasons.append(f"{claim.id}: claims.yaml asks for other observations than those in {FILE}")
        for text in sorted({observation.versions for observation in evidence}):
            if not text:
                reasons.append(f"{claim.id}: versions of its runs are not known")
            elif (now := _today(text)) != text:
                was, now_is = set(text.split()) - set(now.split()), set(now.split()) - set(text.split())
                contrast = f"today {' '.join(sorted(now_is))}" if now_is else "which is not registered today"
                reasons.append(f"{claim.id}: made with {' '.join(sorted(was))}, {contrast}")
    ids = {claim.id for claim in claims.claims}
    obsolete = sorted({observation.claim for observation in observations if observation.claim not in ids})
    return reasons + [f"{id}: in {FILE}, but not in claims.yaml" for id in obsolete]


def _today(text: str) -> str:
    """Return the text of `versions_text` for the same parts with the versions of today's code."""
    names: dict[str, str] = {}
    for part in text.split():
        section, _, rest = part.partition("=")
        names[section] = rest.rpartition("@")[0]
    spec = {section: {NAMES.get(section, "name"): name} for section, name in names.items()}
    current = versions(spec)
    special = {
        name: special_part.version for name, special_part in SPECIAL.items() if name in names
    }  # the text has no settings
    return versions_text(names, {**current, **special} if current else {})


def write_observations(path: Path, observations: Sequence[Observation]) -> None:
    """Write ``claims.csv``."""
    tuned = any(each.others or each.resolution is not None for each in observations)
    lines: list[list[object]] = [list(TUNED_COLUMNS if tuned else COLUMNS)]
    rows = Counter(observation.claim for observation in observations)
    for observation in observations:
        plain = observation._replace(bound=BOUND if observation.bound else "")  # type: ignore[arg-type]
        lines.append(["" if entry is None else f"{entry:.{DIGITS}g}" if isinstance(entry, float) else entry
                      for entry in (*(plain if tuned else plain[:-2]), rows[observation.claim])])  # fmt: skip
    write_text(path, as_csv(lines))


def read_observations(path: Path) -> list[Observation]:
    """Read ``claims.csv``.

    Raises
    ------
    UserError
        If it is missing or damaged, or rows are.
    """
    try:
        rows = from_csv(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise UserError(
            f"{path} is missing; write it with: python -m studies papers {path.parent} --from RESULTS --update"
        ) from None
    if not rows or tuple(rows[0]) not in (COLUMNS, TUNED_COLUMNS):
        raise UserError(f"{path}: the columns {', '.join(COLUMNS)} are needed")
    try:
        names = rows[0][:-1]
        observations = [_observation(**dict(zip(names, row[:-1], strict=True))) for row in rows[1:]]
    except (ValueError, TypeError) as error:
        raise UserError(f"{path} cannot be read: {error}") from None
    if len(_by_key(observations)) < len(observations):
        raise UserError(f"{path}: two rows have the same claim, arm, point and repetition")
    counts = Counter(observation.claim for observation in observations)
    for observation, row in zip(observations, rows[1:], strict=True):
        if row[-1] != str(counts[observation.claim]):
            raise UserError(
                f"{path}: {observation.claim} has {counts[observation.claim]} rows, expected {row[-1]}"
            )
    return observations


def _observation(
    claim: str, question: str, arm: str, point: str, settings: str, repetition: str, value: str, bound: str,
    run: str, versions: str, tried: str, others: str = "", resolution: str = "",
) -> Observation:  # fmt: skip
    """Return the observation of a row."""
    if bound not in ("", BOUND) or arm not in ("of", "than"):
        raise ValueError(f"arm {arm!r}, bound {bound!r}")
    at, number = float(point) if point else None, float(value) if value else None
    least = float(resolution) if resolution else None
    return Observation(
        *(claim, question, arm, at, settings, repetition, number, bound == BOUND, run, versions, tried),
        *(others, least),
    )


def count_differences(before: Sequence[Observation], after: Sequence[Observation]) -> int:
    """Return the number of runs whose observations differ between two readings by more than rounding."""
    old, new = _by_key(before), _by_key(after)
    return sum(key not in old or key not in new or not _same(old[key], new[key]) for key in {*old, *new})


def _by_key(observations: Iterable[Observation]) -> dict[Any, Observation]:
    return {
        (observation.claim, observation.arm, observation.point, observation.repetition): observation
        for observation in observations
    }


def _same(a: Observation, b: Observation) -> bool:
    if a.value is None or b.value is None:
        return a == b
    numbers, others = _numbers(a), _numbers(b)
    close = len(numbers) == len(others) and np.allclose(numbers, others, rtol=CLOSE, atol=0.0)
    return close and a._replace(value=b.value, others=b.others, resolution=b.resolution) == b


def _numbers(observation: Observation) -> list[float]:
    """Return all numbers of an observation that has a value; a missing resolution is 0."""
    values = [number for choice in observation.choices for number in choice if number is not None]
    return [*values, observation.resolution or 0.0]
