"""Command ``predict``."""

from __future__ import annotations

import argparse
import sys

import pandas as pd

from harness.cli.console import log
from harness.core.registry import counted
from harness.report.data.export import write_frame, write_tidy
from harness.simulation.saved_model import SavedModel, read_rows


def predict_command(given: argparse.Namespace) -> int:
    """Apply a saved model to a table, and write a row of predictions for each of its rows."""
    model = SavedModel.read(given.model)
    columns, rows = read_rows(given.data)
    found = pd.DataFrame(model.predict(columns, given.client))
    if given.csv is None:
        write_frame(found, sys.stdout)
    else:
        write_tidy(found, given.csv)
    claim = model.about["privacy"]
    budget = f"; ε {claim['epsilon_total']}" if claim else ""
    log.print(
        f"{counted(rows, 'row')} by run {model.about['run']}, trained on {model.about['source']}{budget}",
        markup=False,
    )
    return 0
