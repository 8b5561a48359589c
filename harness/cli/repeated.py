"""The option ``run --cell``: a published row, and its runs made again."""

from __future__ import annotations

import argparse
import json
import math
from pathlib import Path
from typing import Any

from harness.api.repeating import TOLERANCE, Repetition, repeat_row
from harness.cli.arguments import describing, pairs
from harness.cli.console import log, out, print_rows
from harness.core.errors import UserError
from harness.core.units import counted
from harness.executors.work import Work
from harness.report.data.published import PublishedRow, read_row

DATA_PATH = "data.path"
#: Options of ``run`` that a repeated row cannot have.
EXCLUDED = ("strict", "secure_rng", "noise_code", "save_predictions", "save_model")
#: Figures that are shown; beside them, those that differ.
SHOWN = (
    *("accuracy_mean", "auroc_mean", "worst_client_mean", "eqopp_mean", "mae_mean", "loss_mean"),
    *("stationarity_mean", "epsilon_total", "bytes_up", "bytes_down"),
)
MOST_DIFFERENCES = 20  # that are shown


def repeat(args: argparse.Namespace, work: Work) -> int:
    """Repeat the row of ``--cell`` and print its figures beside those published; return 1 if they differ."""
    row, data_path = row_from(args)
    repetition = repeat_row(row, work, args.seed, data_path)
    for seed, why in repetition.failed.items():
        log.print(f"seed {seed}: {repetition.runs[seed]} {why}", markup=False)
    if args.json:
        print(json.dumps(_as_json(repetition), indent=1))
    else:
        print_rows(_shown(repetition), _title(repetition))
        out.print(_sentence(repetition), markup=False)
        if repetition.earlier:
            there = f"{counted(repetition.earlier, 'finished run')} in {work.root}"
            out.print(f"Read, not made again: {there}. Another --out makes them again.", markup=False)
    return int(repetition.state not in ("identical", "within tolerance"))


def row_from(args: argparse.Namespace) -> tuple[PublishedRow, str | None]:
    """Return the row of ``--cell``, and where the file is that it was computed on, if that is given."""
    path, _, cell = args.cell.rpartition(":")
    if not path or not cell:
        raise UserError(
            f"--cell: FILE.csv:ID, a leaderboard and the column cell of a row, given {args.cell!r}"
        )
    changes = pairs("--set", args.set)
    extra = [f"--{name}" for name in describing(args) if name not in ("seed", "set")]
    extra += [f"--set {name}" for name in changes if name != DATA_PATH]
    extra += [f"--{name.replace('_', '-')}" for name in EXCLUDED if getattr(args, name)]
    if extra:
        raise UserError(
            f"{extra[0]}: --cell repeats a row as it is; to change it, take it as --spec {args.cell}"
        )
    data_path = changes.get(DATA_PATH)
    return read_row(Path(path).expanduser(), cell), None if data_path is None else str(data_path)


def _title(repetition: Repetition) -> str:
    fields = repetition.row.fields
    return f"{fields.get('algorithm', '')} on {fields.get('dataset', '')}, cell {fields['cell']}"


def _shown(repetition: Repetition) -> list[dict[str, Any]]:
    """Return the lines of the table: the usual figures, then those that differ most."""
    figures = repetition.figures
    ranked = f"{repetition.row.fields.get('ranked_by', '')}_mean"
    apart = figures.sort_values("difference", ascending=False, kind="stable")
    differing = apart.index[apart["difference"] > TOLERANCE][:MOST_DIFFERENCES]
    names = dict.fromkeys(name for name in (ranked, *SHOWN, *differing) if name in figures.index)
    return [
        {
            "figure": name,
            "published": _published(repetition, name),
            "repeated": _text(figures.at[name, "repeated"]),
            "difference": _text(figures.at[name, "difference"]),
        }
        for name in names
    ]


def _published(repetition: Repetition, name: str) -> str:
    """Return a published figure, beside a part of its seeds with the deviation over all."""
    text = _text(repetition.figures.at[name, "published"])
    spread = repetition.row.figures.get(f"{name.removesuffix('_mean')}_std")
    return text if repetition.whole else f"{text} ± {_text(spread)}"


def _text(value: Any) -> str:
    return f"{value:.6g}" if isinstance(value, float) else "none" if value is None else str(value)


def _sentence(repetition: Repetition) -> str:
    """Return how the figures compare, in words."""
    count, seeds = counted(len(repetition.figures), "figure"), counted(len(repetition.runs), "seed")
    apart = repetition.figures["difference"] > TOLERANCE
    if repetition.state == "not compared":
        return "Nothing is compared: the row has no mean with a deviation, so single seeds can be anything."
    if not repetition.whole:
        what = f"{seeds} of {len(repetition.row.seeds)}, {count}"
        if apart.any():
            return f"{what}: {apart.sum()} cannot belong to the published means and deviations. Different."
        return f"{what}: all are possible under the published means and deviations."
    if repetition.state == "different":
        size = "" if math.isinf(repetition.largest) else f", by up to {repetition.largest:.3g}"
        return f"{count} over {seeds}: {apart.sum()} differ{size}. Different."
    last = "to the last digit" if repetition.state == "identical" else f"within {TOLERANCE:g}"
    return f"{count} over {seeds}: equal {last}."


def _as_json(repetition: Repetition) -> dict[str, Any]:
    """Return a repetition for JSON, which has no infinity."""
    figures = {
        name: {key: "inf" if value == math.inf else value for key, value in line.items()}
        for name, line in repetition.figures.to_dict("index").items()
    }
    return {
        "cell": repetition.row.fields["cell"],
        "runs": {str(seed): id for seed, id in repetition.runs.items()},
        "earlier": repetition.earlier,
        "seeds": len(repetition.row.seeds),
        "state": repetition.state,
        "figures": figures,
    }
