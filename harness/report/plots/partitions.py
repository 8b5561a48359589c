"""Samples per client, class and sensitive group, for every partition."""

from __future__ import annotations

from pathlib import Path

from datasets.client_statistics import unpack
from datasets.picture import picture
from harness.core.units import counted
from harness.report.data.results import Results, grouped
from harness.report.data.specs import clients, data_name, digest, partition_text
from harness.report.plots.figure import STYLE, Pictures, save
from harness.storage.store import RunRecord

PARTS = ("data", "partition")  # sections of a spec that determine what clients hold
MOST = 6  # partitions
TALLEST = 4.5  # inches


def partitions(results: Results, path: Path) -> Pictures | None:
    """Draw how many samples of every class and sensitive group each client holds, for the least seed.

    Parameters
    ----------
    results : Results
        Runs; what older ones and those without data did not write down is not drawn.
    path : Path
        Where to write, without suffix.

    Returns
    -------
    tuple[Path, Path] or None
        The PNG and the SVG; None when there is nothing to draw.
    """
    held = (record for record in results.records if record.held)
    alike = grouped(held, lambda record: digest([record.spec[name] for name in PARTS] + [record.digest]))
    representatives = [
        min(same, key=lambda record: (record.spec["seed"], digest(record.spec))) for same in alike.values()
    ]
    if not representatives:
        return None
    from matplotlib import rc_context

    drawn_records = sorted(representatives, key=_title)[:MOST]
    font = {name: value for name, value in STYLE.items() if name.startswith(("font", "svg"))}
    with rc_context(font):  # type: ignore[arg-type]
        figure = picture([unpack(_title(record), record.held) for record in drawn_records], TALLEST)
        return save(
            figure,
            path,
            f"{MOST} of {len(representatives)} partitions" if len(representatives) > MOST else None,
        )


def _title(record: RunRecord) -> str:
    spec = record.spec
    count = record.final.get("clients") or clients(spec)  # the partition may decide it
    number = "" if count is None else f" · {counted(count, 'client')}"
    text = f"{data_name(spec['data'])} · {partition_text(spec['partition'])}{number}"
    return f"{text}, seed {spec['seed']}"
