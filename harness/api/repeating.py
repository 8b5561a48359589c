"""Repetition of a published row of a leaderboard: its runs are made again, and its figures compared."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pandas as pd

from datasets.errors import DataError
from datasets.opening import FORMATS
from harness.config.code import NO_CODE
from harness.config.recorded import results_folder
from harness.config.run import RunSpec, read_spec
from harness.core.errors import UserError, unknown
from harness.executors.records import Unrepeatable, other_data, refuse_other_weights, refuse_unrepeatable
from harness.executors.replay import differences
from harness.executors.work import Work
from harness.report.data.columns import TABLES
from harness.report.data.leaderboard import leaderboard
from harness.report.data.published import PublishedRow, figures, read_fields
from harness.report.data.results import Results
from harness.report.tables.write import csv_text
from harness.simulation.build import data_digest, identify

TOLERANCE = 1e-6  # largest difference of figures that count as equal, as of golden rows
#: What only runs with ``--diagnostics`` record under privacy.
UNPROTECTED = ("train_", "update_norm_")


@dataclass(frozen=True)
class Repetition:
    """The figures of a published row beside those of its runs, made again.

    Attributes
    ----------
    row : PublishedRow
        The row.
    runs : dict
        Seed -> id of the runs that were made.
    earlier : int
        How many of them were finished in the results folder before, and were read.
    failed : dict
        Seed -> status and reason of runs that did not end well.
    figures : pd.DataFrame
        ``published``, ``repeated`` and ``difference`` by figure. With some of the seeds only, the mean that they
        have, and how far it is from what the published mean and deviation allow.
    """

    row: PublishedRow
    runs: dict[int, str]
    earlier: int
    failed: dict[int, str]
    figures: pd.DataFrame

    @property
    def whole(self) -> bool:
        """Whether all seeds of the row were repeated."""
        return len(self.runs) == len(self.row.seeds)

    @property
    def largest(self) -> float:
        """The largest difference; 0 if the figures are the same to the last digit."""
        return float(self.figures["difference"].max()) if len(self.figures) else 0.0

    @property
    def state(self) -> str:
        """Identical, within tolerance or different, as of replays; not compared without a figure."""
        if self.figures.empty:
            return "not compared"
        if self.largest == 0:
            return "identical"
        return "within tolerance" if self.largest <= TOLERANCE else "different"


def repeat_row(
    row: PublishedRow, work: Work, seed: int | None = None, data_path: str | None = None
) -> Repetition:
    """Make the runs of a published row again, with their noise, and compare its figures with theirs.

    Parameters
    ----------
    row : PublishedRow
        The row.
    work : Work
        Where runs are written and how they are computed.
    seed : int, optional
        The only seed to repeat; all by default.
    data_path : str, optional
        Where the user's file is that the row was computed on.

    Raises
    ------
    Unrepeatable
        If the code, the data or the noise of the row are not here; then nothing has been run.
    UserError
        If it has no such seed.
    """
    if seed is not None and seed not in row.seeds:
        raise unknown("seed of the row", str(seed), map(str, row.seeds))
    specs = {one: _spec(row, one, data_path) for one in (row.seeds if seed is None else (seed,))}
    runs = {one: identify(spec) for one, spec in specs.items()}
    store = results_folder(work.root).open()
    earlier = sum(store.folder(id).status == "done" for id in runs.values())
    codes = {one: row.codes.get(one, NO_CODE) if spec.privacy else None for one, spec in specs.items()}
    for code in dict.fromkeys(codes.values()):
        execution = replace(work.execution, noise_code=code, diagnostics=_unprotected(row))
        same = {runs[one]: specs[one] for one in specs if codes[one] == code}
        replace(work, execution=execution).carry_out(f"cell {row.fields['cell']}", same)
    records = [store.record(runs[one], specs[one].model_dump(mode="json")) for one in specs]
    failed = {
        one: f"{record.status}: {record.reason or 'in another process'}"
        for one, record in zip(specs, records, strict=True)
        if record.status != "done"
    }
    (fields,) = read_fields(csv_text(leaderboard(Results(records))))
    return Repetition(row, runs, earlier, failed, _compared(row, figures(fields), len(specs)))


def _spec(row: PublishedRow, seed: int, data_path: str | None) -> RunSpec:
    """Return the spec of a run of a row, if it can be computed here."""
    content: dict[str, Any] = {**row.settings, "seed": seed}
    data = content.get("data")
    if isinstance(data, Mapping) and data_path is not None:
        content["data"] = {**data, "path": data_path}
    elif isinstance(data, Mapping) and data.get("name") in FORMATS:
        raise Unrepeatable(
            f"its data are a user's file with SHA-256 {row.fields['data_digest']}; if you have it, give "
            "--set data.path=FILE"
        )
    refuse_unrepeatable(content, row.versions)
    try:
        spec = read_spec(content)
        digest = data_digest(spec)
    except (UserError, DataError, OSError) as error:
        raise Unrepeatable(f"it cannot be prepared here: {error}") from None
    if digest != row.fields["data_digest"]:
        raise other_data(spec)
    refuse_other_weights(spec, row.versions)
    return spec


def _unprotected(row: PublishedRow) -> bool:
    """Return whether the runs of a row recorded figures of private data that no noise protects."""
    return any(name.startswith(UNPROTECTED) for name in row.figures)


def _compared(row: PublishedRow, repeated: Mapping[str, Any], runs: int) -> pd.DataFrame:
    """Return the figures of a row, what its runs have now, and the differences.

    Of figures that only the repeated row has nothing is said: a later version may record more. With fewer runs
    than the row has, a mean counts as far as it lies outside of what the row allows, see `_reach`.
    """
    published = row.figures
    whole = runs == len(row.seeds)
    names = [name for name in published if whole or _deviation(name) in published]
    nearest = {name: repeated[name] for name in names if name in repeated}
    if not whole:
        nearest = {
            name: _toward(published[name], value, _reach(published, name, runs))
            for name, value in nearest.items()
        }
    apart = differences(*(_places(found, names) for found in (published, nearest)))
    sizes = dict(zip(apart["place"], apart["difference"], strict=True))
    frame = pd.DataFrame(
        {
            "published": [published[name] for name in names],
            "repeated": [repeated.get(name) for name in names],
            "difference": [sizes.get(_place(name), 0.0) for name in names],
        },
        index=pd.Index(names, name="figure"),
        dtype=object,
    )
    return frame.astype({"difference": float})


def _deviation(name: str) -> str:
    """Return the column of the standard deviation that belongs to a mean; empty for other columns."""
    return f"{name.removesuffix('_mean')}_std" if name.endswith("_mean") else ""


def _reach(published: Mapping[str, Any], name: str, runs: int) -> float:
    """Return how far the mean of some runs can be from that of all.

    Of n values with mean m and sample standard deviation s, the mean of any k is at most
    s ((n - 1) (n - k) / (n k))^(1/2) away from m (Samuelson's inequality for k = 1).
    """
    total = int(published["done"])
    left = max(0, total - runs)
    return float(published[_deviation(name)]) * math.sqrt((total - 1) * left / (total * runs))


def _toward(published: Any, value: Any, reach: float) -> Any:
    """Return a value moved toward the published one, by `reach` at most."""
    return published if abs(value - published) <= reach else value + math.copysign(reach, published - value)


def _places(found: Mapping[str, Any], names: Sequence[str]) -> pd.Series[Any]:
    return pd.Series({_place(name): found[name] for name in names if name in found}, dtype=object)


def _place(name: str) -> str:
    """Return how `differences` knows a figure: diagnostics are rounded when they are recorded."""
    return f"diagnostics {name}" if name in TABLES["diagnostic"] else name
