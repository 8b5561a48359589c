"""Replay of finished runs: a run is computed again from its record, and the two are compared."""

from __future__ import annotations

import json
import math
import random
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import pandas as pd

from harness.config.code import NO_CODE
from harness.config.run import RunSpec
from harness.core.errors import UserError
from harness.executors import cores
from harness.executors.local import run_one, torch_threads
from harness.executors.records import Unrepeatable, repeatable
from harness.simulation.setup import Execution
from harness.simulation.snapshot import DIGITS
from harness.storage.environment import machine, versions
from harness.storage.outcomes import computed_fields
from harness.storage.run_files import PREDICTIONS
from harness.storage.run_folder import RunFolder
from harness.storage.seals import read_sealed
from harness.storage.store import Store

#: What may move the last bits of a run.
PLACES = ("torch", "numpy", "machine", "cpu", "device")
#: What earlier versions did not record.
LATER = ("done.json events", "spec.json tested")
METRICS = " metrics "  # in the place of a metric: a later version, or a plugin, may measure more
MISSING = "nothing"
ROUNDING = 10.0 ** (1 - DIGITS)  # largest difference that rounding makes of diagnostics
ROUNDED = 1e-15  # difference of diagnostics that may have been equal before


class Replay(NamedTuple):
    """Result of a replay.

    Attributes
    ----------
    id : str
        The run.
    state : str
        identical, within tolerance, different, or not compared.
    largest : float or None
        Largest `difference` of two values; None where nothing was compared.
    reason : str
        What differs most, or why nothing was compared; empty if identical.
    """

    id: str
    state: str
    largest: float | None = None
    reason: str = ""

    def as_json(self) -> dict[str, object]:
        """Return the fields for JSON, which has no infinity."""
        return {**self._asdict(), "largest": "inf" if self.largest == math.inf else self.largest}

    def __str__(self) -> str:
        size = f", largest difference {self.largest:.3g}" if self.largest else ""
        return f"{self.state}{size}{f': {self.reason}' if self.reason else ''}"


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
    except Unrepeatable as error:
        return Replay(id, "not compared", reason=str(error))
    except UserError as error:
        return Replay(id, "different", math.inf, str(error))
    execution = _execution(recorded, spec, device)
    save = [PREDICTIONS] if recorded.has(PREDICTIONS) else []
    with torch_threads(execution.threads), TemporaryDirectory() as folder:
        outcome = run_one(spec, Path(folder), execution, save=save)
        if outcome.status != "done":
            why = f"repeated, it ends as {outcome.status}: {outcome.reason}"
            return Replay(id, "different", math.inf, why)
        frame = differences(values(recorded), values(Store(Path(folder)).folder(id)))
    if frame.empty:
        return Replay(id, "identical", 0.0)
    place, then, now, largest = frame.iloc[0]
    sentence = f"{place}: {_short(then)}, repeated {_short(now)}"
    if largest <= tolerance:
        return Replay(id, "within tolerance", largest, sentence)
    elsewhere = _machine_differences(recorded.end(), device)
    return Replay(id, "different", largest, f"{sentence}{elsewhere and f' (made with {elsewhere})'}")


def _execution(recorded: RunFolder, spec: RunSpec, device: str) -> Execution:
    """Return the recorded execution of a run, as far as this machine allows it.

    Records that do not say whether they have the values of private data are of versions that always wrote them.
    """
    timing = recorded.end().get("timing", {})
    mode, threads = timing.get("vectorize"), timing.get("threads")
    execution = Execution(
        device,
        mode if mode in ("vmap", "loop") else "auto",
        threads if type(threads) is int and 1 <= threads <= cores() else 1,
        stack=1,
    )
    if spec.privacy is None:
        return execution
    diagnostics = timing.get("diagnostics", True) is True and not spec.privacy.strict
    return replace(execution, diagnostics=diagnostics, noise_code=recorded.code or NO_CODE)


def _machine_differences(final: Mapping[str, Any], device: str) -> str:
    """Return the differences of a run's machine and libraries from those here; empty without any."""
    here, timing = {**versions(), **machine(), "device": device}, final.get("timing", {})
    differing = [name for name in PLACES if name in timing and timing[name] != here.get(name)]
    return ", ".join(f"{name} {timing[name]}, here {here.get(name)}" for name in differing)


def values(folder: RunFolder) -> pd.Series[Any]:
    """Return what was computed of a finished run, by files and places in them."""
    began, _ = read_sealed(folder.path / "spec.json")
    files: dict[str, Any] = {
        "done.json": computed_fields(folder.end()),
        "spec.json": {name: began[name] for name in ("held", "tested") if name in began},
        "rounds.jsonl": [computed_fields(line) for line in folder.evaluations.all()],
    }
    if folder.has(PREDICTIONS):
        table = pd.read_csv(folder.path / PREDICTIONS, dtype=str, keep_default_na=False)
        files[PREDICTIONS] = table.map(_number).to_dict("list")
    return pd.Series(dict(_leaves(files)), dtype=object)


def _number(text: str) -> float | str:
    try:
        return float(text)
    except ValueError:
        return text


def _leaves(value: Any, place: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the places and values of what is in a JSON value; keys with a space are quoted, so no two are alike."""
    if not isinstance(value, dict | list):
        yield place, value
        return
    for key, inner in value.items() if isinstance(value, dict) else enumerate(value):
        name = str(key) if re.fullmatch(r'[^\s"]+', str(key)) else json.dumps(key)
        yield from _leaves(inner, f"{place} {name}".lstrip())


def differences(recorded: pd.Series[Any], repeated: pd.Series[Any]) -> pd.DataFrame:
    """Return the places where two runs or rows differ, with both values and their `difference`, the largest first.

    Metrics that the record has nowhere are not compared. Diagnostics are rounded when they are recorded: of their
    difference counts what rounding does not explain, and at least `ROUNDED`.
    """
    for name in LATER:
        if not recorded.index.str.startswith(name).any():
            repeated = repeated[~repeated.index.str.startswith(name)]
    measured = {name for place in recorded.index if (name := _metric(place))}
    repeated = repeated[[not (name := _metric(place)) or name in measured for place in repeated.index]]
    places = recorded.index.union(repeated.index, sort=False)
    frame = pd.DataFrame(
        {
            "place": places,
            "recorded": recorded.reindex(places, fill_value=MISSING).to_numpy(),
            "repeated": repeated.reindex(places, fill_value=MISSING).to_numpy(),
        }
    )
    sizes = pd.Series(map(difference, frame["recorded"], frame["repeated"]), dtype=float)
    rounded = frame["place"].str.contains(r"\bdiagnostics ") & (sizes > 0)
    frame["difference"] = sizes.where(~rounded, (sizes - ROUNDING).clip(lower=ROUNDED))
    return frame[frame["difference"] > 0].sort_values("difference", ascending=False, kind="stable")


def _metric(place: str) -> str:
    """Return the metric whose value is at a place; empty where it is none."""
    return place.partition(METRICS)[2]


def difference(a: Any, b: Any) -> float:
    """Return the difference of two values: |a - b| / max(1, |a|, |b|) of numbers.

    It is absolute for numbers up to one, and relative above. Whole numbers are counts: unequal ones, and all else
    that is not equal, differ by infinity.
    """
    types = {type(a), type(b)}
    if len(types) == 1 and a == b:
        return 0.0
    if types - {int, float} or float not in types:
        return math.inf
    try:
        apart = abs(a - b) / max(1.0, abs(a), abs(b))
    except OverflowError:  # a whole number that no float can be
        return math.inf
    if math.isnan(a) and math.isnan(b):
        return 0.0
    return math.inf if math.isnan(apart) else float(apart)


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 40 else f"{text[:37]}..."


def chosen(ids: Sequence[str], sample: int, seed: int) -> list[str]:
    """Return a random sample of distinct runs, sorted; all runs if there are fewer than asked for."""
    pool = sorted(ids)
    return sorted(random.Random(seed).sample(pool, min(sample, len(pool))))


def caught(runs: int, forged: int, sample: int) -> float:
    """Return the probability that a sample without repetition holds one of the forged runs.

    1 - C(R - F, N) / C(R, N) for R runs, F forged ones and a sample of N.
    """
    size = min(sample, runs)
    return 1 - math.comb(runs - forged, size) / math.comb(runs, size)
