"""Export results to Parquet, CSV and TensorBoard; the libraries are in the extra ``export``."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Any

import pandas as pd

from harness.core.errors import UserError
from harness.core.units import counted
from harness.report.data.clients import clients_table
from harness.report.data.results import Results
from harness.report.data.specs import part_name
from harness.report.data.tidy import COUNTS, diagnostics, flat_spec, tidy
from harness.storage.cells import Quoting, inert
from harness.storage.files import output, safe_name
from harness.storage.store import RunRecord

EVENTS = "events.out.tfevents.*"


def export(
    records: Sequence[RunRecord],
    *,
    csv: Path | None = None,
    parquet: Path | None = None,
    clients: Path | None = None,
    tensorboard: Path | None = None,
) -> Iterator[str]:
    """Write records in the ways that are asked for, and yield a sentence for each.

    Parameters
    ----------
    records : sequence of RunRecord
        The runs.
    csv, parquet : Path, optional
        Files with a row for each evaluation.
    clients : Path, optional
        A CSV file with a row for each finished run and client with a name.
    tensorboard : Path, optional
        A folder of TensorBoard events.

    Raises
    ------
    UserError
        If a library is missing, or no run has clients with names.
    """
    for path, write in ((parquet, write_parquet), (csv, write_tidy)):
        if path is not None:
            write(tidy(records), path)
            yield f"wrote {path}"
    if clients is not None:
        table = clients_table(Results(records))
        if table.empty:
            raise UserError(
                "export: no finished run has clients with names; they come with the partition natural, and strict "
                "privacy tells nothing of them"
            )
        write_tidy(table, clients)
        yield f"wrote {clients}"
    if tensorboard is not None:
        yield f"wrote {counted(write_tensorboard(records, tensorboard), 'TensorBoard run')} to {tensorboard}"


def write_parquet(frame: pd.DataFrame, path: Path) -> None:
    """Write a table as typed Parquet; UserError without pyarrow."""
    try:
        import pyarrow  # noqa: F401 # the message of pandas names two libraries
    except ImportError:
        raise _missing("Parquet", "pyarrow") from None
    with output(path) as temporary:
        frame.to_parquet(temporary, engine="pyarrow", index=False)


def write_tidy(frame: pd.DataFrame, path: Path) -> None:
    """Write a tidy table as CSV, with empty fields for missing values; see `write_frame`."""
    with output(path) as temporary, temporary.open("w", newline="", encoding="utf-8") as file:
        write_frame(frame, file)


def write_frame(frame: pd.DataFrame, file: IO[str]) -> None:
    """Write a table as CSV whose texts and headings no spreadsheet executes, see `harness.storage.cells`."""
    harmless = frame.copy()
    for name in (name for name in frame if not pd.api.types.is_numeric_dtype(frame[name])):
        harmless[name] = pd.Series(map(inert, frame[name]), index=frame.index, dtype=object)
    quoting: Any = Quoting(file)
    harmless.rename(columns=inert).to_csv(quoting, index=False, lineterminator="\r\n")


def write_tensorboard(records: Iterable[RunRecord], folder: Path) -> int:
    """Write one TensorBoard run per run, ``FOLDER/suite/algorithm/seed/id``, and replace an earlier export of it.

    Every value is a scalar by round, with the run's seconds as wall time. The spec is stored as text and as
    hyper-parameters. Skipped combinations are not exported.

    Returns
    -------
    int
        Number of runs written.
    """
    try:
        from torch.utils.tensorboard import SummaryWriter
        from torch.utils.tensorboard.summary import hparams
    except ImportError:
        raise _missing("TensorBoard", "tensorboard") from None
    count = 0
    for record in records:
        if record.id is None:
            continue
        names = record.suite or "runs", part_name(record.spec["algorithm"]) or ""
        place = folder.joinpath(*map(safe_name, (*names, f"seed-{record.spec['seed']}", record.id)))
        place.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder) as temporary:
            writer = SummaryWriter(temporary)
            final: dict[str, float] = {}
            for line in record.rounds:
                final = scalars_of(line)
                seconds = line.get("timing", {}).get("seconds", 0.0)
                for name, value in final.items():
                    writer.add_scalar(name, value, line["round"], walltime=seconds)
            writer.add_text("spec", f"```\n{json.dumps(record.spec, indent=1)}\n```", walltime=0)
            writer.add_text("status", record.reason or record.status, walltime=0)
            events: Any = writer.file_writer  # add_hparams would write a separate run
            for summary in hparams(flat_spec(record.spec), final):
                events.add_summary(summary, walltime=0)
            writer.close()
            for old in place.glob(EVENTS):
                old.unlink()
            for new in Path(temporary).glob(EVENTS):
                new.replace(place / new.name)
        count += 1
    return count


def scalars_of(line: Mapping[str, Any]) -> dict[str, float]:
    """Return the numbers of an evaluation that can be drawn as curves."""
    claim = {k: v for k, v in (line.get("privacy") or {}).items() if k.startswith("epsilon_")}
    values = {name: line.get(name) for name in COUNTS if name != "round"} | claim
    values |= {k: v for k, v in diagnostics(line).items() if not isinstance(v, str)} | line.get("metrics", {})
    return {name: float(value) for name, value in values.items() if value is not None}


def _missing(what: str, library: str) -> UserError:
    return UserError(
        f"{what} needs {library}, which is not installed; it is in the extra export: "
        "pip install 'fedfrontier[export]'"
    )
