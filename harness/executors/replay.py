"""Replay of finished runs: a run is computed again from its record, and what comes out is compared with it."""

from __future__ import annotations

import csv
import math
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import torch

from datasets.errors import DataError
from harness.config.code import NONE
from harness.config.recorded import named_parts, own_version, run_id
from harness.config.recorded import versions as versions_of
from harness.config.run import RunSpec, read_spec
from harness.core.registry import UserError
from harness.executors import cores
from harness.executors.local import run_one
from harness.simulation.build import Execution, identify
from harness.simulation.snapshot import DIGITS
from harness.storage.environment import machine, versions
from harness.storage.files import Damaged
from harness.storage.outcomes import computed
from harness.storage.run_files import ENDS, PREDICTIONS
from harness.storage.run_folder import RunFolder
from harness.storage.seals import read_sealed
from harness.storage.store import RunRecord, Store

#: What may move the last bits of a run.
PLACES = ("torch", "numpy", "machine", "cpu", "device")
#: Sections of a spec that a record holds as objects.
SECTIONS = ("algorithm", "data", "partition", "problem", "model", "privacy", "compression")
#: Difference of diagnostics that may have been equal before they were rounded.
ROUNDED = 1e-15


class Replay(NamedTuple):
    """What came of one replay.

    Attributes
    ----------
    id : str
        The run.
    state : str
        identical, within tolerance, different, or not compared.
    largest : float or None
        Largest difference of two numbers (`difference`); None where nothing was compared.
    reason : str
        What differs most, or why nothing was compared; empty if identical.
    """

    id: str
    state: str
    largest: float | None = None
    reason: str = ""

    def as_json(self) -> dict[str, object]:
        """Return the fields for JSON, which has no infinity."""
        finite = self.largest is None or math.isfinite(self.largest)
        return {**self._asdict(), "largest": self.largest if finite else "inf"}

    def __str__(self) -> str:
        told = (
            ""
            if self.largest is None or self.state == "identical"
            else f", largest difference {self.largest:.3g}"
        )
        return f"{self.state}{told}{f': {self.reason}' if self.reason else ''}"


class Unrepeatable(UserError):
    """A run that cannot be computed again here, which says nothing about its figures."""


def replay(store: Store, id: str, tolerance: float = 0.0, device: str = "cpu") -> Replay:
    """Compute a finished run again in a temporary folder and compare it with its record.

    Threads and the way to go through the clients are those on record. Times, versions of libraries and names of
    processors are not compared.

    Parameters
    ----------
    store, id : Store, str
        The finished run.
    tolerance : float
        Largest `difference` that counts as agreement; 0 asks for the same bits.
    device : str
        A torch device.

    Raises
    ------
    Damaged
        If the files of the run cannot be read.
    """
    recorded = store.folder(id)
    try:
        spec = repeatable(recorded)
    except Unrepeatable as why:
        return Replay(id, "not compared", reason=str(why))
    except UserError as error:
        return Replay(id, "different", math.inf, str(error))
    execution = _execution(recorded.end(), spec, device)
    if spec.privacy is not None:
        execution = replace(execution, noise_code=recorded.code or NONE)
    threads = torch.get_num_threads()
    torch.set_num_threads(execution.threads)
    try:
        with TemporaryDirectory() as folder:
            ended = run_one(
                spec, Path(folder), execution, save=[PREDICTIONS] if recorded.has(PREDICTIONS) else []
            )
            if ended.status != "done":
                return Replay(
                    id, "different", math.inf, f"repeated, it ends as {ended.status}: {ended.reason}"
                )
            largest, place = _compared(recorded, Store(Path(folder)).folder(id))
    finally:
        torch.set_num_threads(threads)
    state = "identical" if largest == 0 else "within tolerance" if largest <= tolerance else "different"
    if state == "different" and (elsewhere := _elsewhere(recorded.end(), device)):
        place = f"{place} (made with {elsewhere})"
    return Replay(id, state, largest, place)


def _elsewhere(final: Mapping[str, Any], device: str) -> str:
    """Return in what the machine and libraries of a run differ from those here; empty if in nothing."""
    here, timing = {**versions(), **machine(), "device": device}, final.get("timing", {})
    differing = [name for name in PLACES if name in timing and timing[name] != here.get(name)]
    return ", ".join(f"{name} {timing[name]}, here {here.get(name)}" for name in differing)


def repeatable(recorded: RunFolder) -> RunSpec:
    """Return the spec of a finished run if it can be computed again here.

    Raises
    ------
    Unrepeatable
        If its noise, its code or its data are not here.
    UserError
        If the record contradicts itself.
    """
    spec, made = described(recorded)
    if (spec.get("privacy") or {}).get("secure_rng"):
        raise Unrepeatable(
            "its noise came from the system's entropy (privacy.secure_rng) and cannot be drawn again"
        )
    if not (here := versions_of(spec)):
        raise Unrepeatable(
            "it uses a part that is not registered here; load its plugin with --plugin FILE.py"
        )
    if made != here:
        names = sorted(name for name in {*made, *here} if made.get(name) != here.get(name))
        shown = (f"{name} {made.get(name, 'none')}, here {here.get(name, 'none')}" for name in names)
        raise Unrepeatable(f"it was made by other versions: {'; '.join(shown)}")
    try:
        checked = read_spec(spec)
        now = identify(checked)
    except (UserError, DataError, OSError) as error:
        raise Unrepeatable(f"it cannot be prepared here: {error}") from None
    if now != recorded.path.name:
        secret = (
            " or, as it is strict, another user computed it"
            if (spec.get("privacy") or {}).get("strict")
            else ""
        )
        raise Unrepeatable(f"the data that are here are not those that it was computed on{secret}")
    return checked


def described(recorded: RunFolder) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return spec and versions of a run.

    Raises
    ------
    Damaged
        If its ``spec.json`` does not hold them.
    UserError
        If its id does not follow from spec, data and versions.
    Unrepeatable
        If that cannot be told without a plugin.
    """
    started, _ = read_sealed(recorded.path / "spec.json", "spec", "digest")
    spec, digest = started["spec"], started["digest"]
    sections = [spec.get(name) for name in SECTIONS] if isinstance(spec, dict) else [spec]
    if not all(section is None or isinstance(section, dict) for section in sections) or None is spec:
        raise Damaged(recorded.path / "spec.json")
    made = started.get("versions", versions_of(spec))  # records of earlier versions have none
    if isinstance(made, dict) and (parts := _not_loaded(spec, made)):
        raise Unrepeatable(f"{parts} of a plugin is not loaded; give --plugin FILE.py")
    if not isinstance(made, dict) or run_id(spec, str(digest), made) != recorded.path.name:
        raise UserError("its id does not follow from its spec, data and versions")
    return spec, made


def _not_loaded(spec: Mapping[str, Any], made: Mapping[str, Any]) -> str:
    """Return the parts of plugins that a run used and that are not here; empty if none."""
    names, plugins = named_parts(spec), made.get("plugins", {})
    sections = plugins if isinstance(plugins, dict) else ()
    return ", ".join(
        f"{section} {names.get(section, '')}"
        for section in sections
        if own_version(section, names.get(section, "")) is None
    )


def checked_record(store: Store, id: str) -> RunRecord:
    """Return the record of a run that somebody else made, if tables can be made of it.

    Whether its figures are true is for `replay` to say.

    Raises
    ------
    UserError
        If it contradicts itself, is no record of a run, or is of a run that nobody else can repeat.
    """
    spec, made = described(store.folder(id))
    checked = read_spec(spec).model_dump(mode="json")
    started, _ = read_sealed(store.folder(id).path / "spec.json")
    if run_id(checked, str(started["digest"]), made) != id:
        raise UserError("its spec is not written as this version writes it")
    if (checked.get("data") or {}).get("path") is not None:
        raise UserError("its data come from a file of the submitter, so nobody else can repeat it")
    if (checked.get("privacy") or {}).get("secure_rng"):
        raise UserError("under privacy.secure_rng nobody can repeat it")
    if (checked.get("privacy") or {}).get("strict"):
        raise UserError(
            "under privacy.strict its data are named by a secret of the user, so nobody else can repeat it"
        )
    record = store.record(id, checked)
    rounds = [line.get("round") for line in record.rounds]
    if record.status not in ENDS.values():
        why = f": {record.reason}" if record.reason else ""
        raise UserError(f"it is {record.status}{why}; only runs that ended count")
    if record.status == "done" and (not rounds or rounds[-1] != checked["rounds"]):
        raise UserError(f"it is said to be finished, and its last evaluation is of round {rounds[-1:]}")
    return record


def _execution(final: Mapping[str, Any], spec: RunSpec, device: str) -> Execution:
    """Return how a run was computed, as far as its record says something that is possible here.

    Records that do not say whether they have the figures of private data are of versions that always wrote them.
    """
    timing = final.get("timing")
    timing = timing if isinstance(timing, Mapping) else {}
    mode, threads = timing.get("vectorize"), timing.get("threads", 1)
    possible = threads if type(threads) is int and 1 <= threads <= cores() else 1
    written = timing.get("diagnostics", True) is True and not (
        spec.privacy is not None and spec.privacy.strict
    )
    return Execution(
        device,
        mode if mode in ("vmap", "loop") else "auto",
        possible,
        stack=1,
        diagnostics=written and spec.privacy is not None,
    )


def _compared(recorded: RunFolder, repeated: RunFolder) -> tuple[float, str]:
    """Return the largest difference between two runs and where it is."""
    then, now = (computed(run.end()) for run in (recorded, repeated))
    if "events" not in then:  # earlier versions did not record them
        now.pop("events", None)
    found = [difference(then, now, "done.json")]
    began, again = (read_sealed(run.path / "spec.json")[0] for run in (recorded, repeated))
    found.append(difference(began.get("held"), again.get("held"), "spec.json held"))
    if "tested" in began:  # nor these
        found.append(difference(began["tested"], again.get("tested"), "spec.json tested"))
    lines, repetition = ([computed(line) for line in run.rounds()] for run in (recorded, repeated))
    found.append(difference(lines, repetition, "rounds.jsonl"))
    if recorded.has(PREDICTIONS):
        found.append(difference(_predictions(recorded), _predictions(repeated), "predictions.csv"))
    return max(found, key=lambda one: one[0])


def _predictions(folder: RunFolder) -> list[list[Any]]:
    with open(folder.path / PREDICTIONS, newline="", encoding="utf-8") as file:
        return [[_number(text) for text in row] for row in csv.reader(file)]


def _number(text: str) -> float | str:
    try:
        return float(text)
    except ValueError:
        return text


def difference(a: Any, b: Any, place: str = "", digits: int | None = None) -> tuple[float, str]:
    """Return the largest difference of two numbers at the same place of two JSON values, and that place.

    The difference of a and b is |a - b| / max(1, |a|, |b|): absolute for figures up to one, relative above. Whole
    numbers are counts: unequal ones, and all else that is not equal, differ by infinity. Of numbers that are
    rounded to ``digits``, as diagnostics are, it is the least difference that they can have had before, and at
    least `ROUNDED`.
    """
    if isinstance(a, dict) and isinstance(b, dict):
        pairs: Iterator[tuple[Any, Any, Any]] = ((key, a.get(key), b.get(key)) for key in sorted({*a, *b}))
    elif isinstance(a, list) and isinstance(b, list):
        if len(a) != len(b):
            return math.inf, f"{place}: {len(a)} entries, repeated {len(b)}"
        pairs = ((number, one, other) for number, (one, other) in enumerate(zip(a, b, strict=True)))
    else:
        size = _apart(a, b)
        if digits and 0 < size < math.inf:
            size = _before_rounding(size, max(abs(a), abs(b)), digits)
        return size, f"{place}: {_short(a)}, repeated {_short(b)}" if size else ""
    found = (
        difference(one, other, f"{place} {key}", DIGITS if key == "diagnostics" else digits)
        for key, one, other in pairs
    )
    return max(found, key=lambda one: one[0], default=(0.0, ""))


def _before_rounding(size: float, largest: float, digits: int) -> float:
    """Return the least difference of two numbers that were rounded and differ by ``size`` now."""
    unit = 10.0 ** (math.floor(math.log10(largest)) + 1 - digits) / max(1.0, largest)
    return max(min(size, ROUNDED), size - 1.001 * unit)  # the numbers themselves are rounded in binary


def _apart(a: Any, b: Any) -> float:
    if type(a) is type(b) and a == b:
        return 0.0
    numbers = {type(a), type(b)}
    if numbers - {int, float} or float not in numbers:
        return math.inf
    try:
        one, other = float(a), float(b)
    except OverflowError:  # a whole number that no figure can be
        return math.inf
    if one == other or (math.isnan(one) and math.isnan(other)):
        return 0.0
    apart = abs(one - other) / max(1.0, abs(one), abs(other))
    return math.inf if math.isnan(apart) else apart


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 40 else f"{text[:37]}..."


def chosen(ids: Sequence[str], sample: int, seed: int) -> list[str]:
    """Return a random sample of runs without repetition, all of them if there are no more; sorted."""
    pool = sorted(ids)
    return sorted(random.Random(seed).sample(pool, min(sample, len(pool))))


def caught(runs: int, forged: int, sample: int) -> float:
    """Return the probability that a sample without repetition holds one of the forged runs.

    1 - C(R - F, N) / C(R, N) for R runs, F forged ones and a sample of N.
    """
    drawn = min(sample, runs)
    return 1 - math.comb(runs - forged, drawn) / math.comb(runs, drawn)
