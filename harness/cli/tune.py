"""Command ``tune``: a search for the settings of a run, as a suite of one cell."""

from __future__ import annotations

import argparse
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

from harness.cli.arguments import parsed
from harness.cli.console import out, print_rows
from harness.cli.run import exit_code, work_options
from harness.config import builtin
from harness.config.default_search import METRIC, searched_suite
from harness.config.recorded import results_folder
from harness.config.suite import Suite, checked_name, is_run_file
from harness.config.yaml import mapping, read_yaml
from harness.core.errors import UserError
from harness.executors.suites import run_suite
from harness.report.data.results import Results

SEEDS = "0..9"  # reported, of a run file
TUNED_ENDING = "-tuned"  # added to the name of a file without a search


def tune_command(args: argparse.Namespace) -> int:
    """Search for settings, report what was chosen, and write it as run files."""
    suite = given_search(args)
    ends = run_suite(suite, work_options(args))
    from harness.report.folder import report_folder  # reports are slow to import
    from harness.report.tables.chosen import tuned_cells, write_run_files

    store = results_folder(args.out)
    cells = tuned_cells(Results(store.some_records(suite.name)))
    rows = [cell.row() for cell in cells]
    files = write_run_files(cells, store.root / suite.name)
    if args.json:
        paths = {name: str(path) for name, path in files.items()}
        print(json.dumps([{**row, "file": paths.get(row[""])} for row in rows], indent=1))
        return exit_code(ends)
    print_rows(rows, f"What tuning chose: {suite.name}")
    for path in files.values():
        out.print(f"Run it: python -m harness run --spec {path}", markup=False)
    out.print(f"Page: {report_folder(store, suite.name, suite.report).page}", markup=False)
    return exit_code(ends)


def given_search(args: argparse.Namespace) -> Suite:
    """Return the suite of a run file or a suite file, with its own search or the default one."""
    path = Path(args.file) if Path(args.file).suffix else builtin.path_of(args.file)
    content = dict(read_yaml(path))
    if content.keys() >= {"id", "spec"}:  # the spec.json of a run
        content = dict(mapping("spec", content["spec"]))
    lists = {"privacy.epsilon": ("--epsilon", args.epsilon), "seed": ("--seeds", args.seeds)}
    over = {field: _listed(*given) for field, given in lists.items() if given[1] is not None}
    search = {"budget": args.budget, "metric": args.metric}
    search = {field: value for field, value in search.items() if value is not None}
    if is_run_file(content):
        content = {"base": content, "report": {"by": search.get("metric", METRIC)}}
        over = {"seed": [SEEDS], **over}
    name = args.name or f"{content.get('suite', path.stem)}{'' if content.get('tune') else TUNED_ENDING}"
    profile = args.profile if content.get("profiles") else ""
    return replace(searched_suite(content, profile, instead=over, search=search), name=checked_name(name))


def _listed(option: str, text: str) -> Any:
    """Return the values of an option, in which ``none`` is no value."""
    values = parsed(f"[{text}]")
    if not isinstance(values, list) or not values:
        raise UserError(f"{option}: a list such as 8,2 is needed, given {text!r}")
    return [None if value == "none" else value for value in values]
