"""Command ``predict``."""

from __future__ import annotations

import argparse
import sys

import pandas as pd

from harness.cli.arguments import one_thread
from harness.cli.console import log
from harness.core.units import counted
from harness.report.data.export import write_frame, write_tidy
from harness.simulation.saved_model import SavedModel


def predict_command(args: argparse.Namespace) -> int:
    """Apply a saved model to a table, and write a row of predictions for each of its rows."""
    one_thread()
    model = SavedModel.read(args.model)
    rows = model.rows(args.data, args.keep, args.like)
    frame = pd.DataFrame(model.predict_beside(rows, args.client, fill=args.fill))
    if args.csv is None:
        write_frame(frame, sys.stdout)
    else:
        write_tidy(frame, args.csv)
    claim = model.about.privacy
    budget = f"; ε {claim.epsilon_total:.4g}" if claim else ""
    log.print(
        f"{counted(rows.length, 'row')} by run {model.about.run}, trained on {model.about.source}{budget}",
        markup=False,
    )
    return 0
