"""Commands ``board submit``, ``board check`` and ``board build``."""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

from harness.cli.console import log, out
from harness.cli.grammar import path
from harness.cli.options import sample_options
from harness.cli.verify import bounds, report_written
from harness.config.code import NO_CODE, code_of
from harness.config.recorded import results_folder
from harness.core.errors import UserError
from harness.core.units import counted
from harness.executors.records import checked_record
from harness.executors.replay import Replay, caught, chosen, replay
from harness.report.folder import command_of
from harness.storage.store import RunRecord, Store
from studies.board.first_seen import add_seen, first_seen, read_seen
from studies.board.pages import Entry, merge_entries, write_board
from studies.board.submission import Submission, read_submission, submissions, write_submission

UNSIGNED = (
    "not signed: nothing ties it to anybody; --key FILE signs it with an Ed25519 key (ssh-keygen -t ed25519)"
)


def submit_options(to: argparse.ArgumentParser) -> None:
    """Add the options of ``submit``."""
    to.add_argument("dir", type=path, metavar="DIR")
    to.add_argument("--suite", required=True, metavar="NAME", help="the suite")
    to.add_argument("--to", required=True, type=path, metavar="FOLDER", help="the new folder")
    to.add_argument(
        "--submitter", required=True, metavar="NAME", help="name of the submitter, as the board shows it"
    )
    to.add_argument("--key", type=path, metavar="FILE", help="Ed25519 key of OpenSSH that signs the manifest")


def submit_command(args: argparse.Namespace) -> int:
    """Make a submission of one suite, if a board would take it."""
    portable, key = write_submission(
        results_folder(args.dir), args.suite, args.to, args.submitter, args.key, read_records
    )
    report_written(portable, str(args.to))
    log.print(f"signed by {key}" if key else UNSIGNED, markup=False)
    return 0


def check_options(to: argparse.ArgumentParser) -> None:
    """Add the options of ``check``."""
    to.add_argument("dir", type=path, metavar="SUBMISSIONS")
    sample_options(to, 5)


def build_options(to: argparse.ArgumentParser) -> None:
    """Add the options of ``build``."""
    to.add_argument("dir", type=path, metavar="SUBMISSIONS")
    to.add_argument("--out", required=True, type=path, metavar="FOLDER", help="folder of the pages")


Read = tuple[Submission, list[RunRecord]]


def read_all(folder: Path) -> tuple[dict[str, Read], dict[str, str]]:
    """Return the submissions of a folder with their records, and the faults of others, by their names.

    Of copies a signed one counts, of several the first that the board has seen: anybody can copy a submission into
    a folder of another name, leave out its signature, or sign it with a key of their own.
    """
    readable: dict[str, Read] = {}
    refused: dict[str, str] = {}
    seen = read_seen(folder)
    for place in submissions(folder):
        try:
            readable[place.name] = read_records(place)
        except UserError as error:
            refused[place.name] = str(error)

    def earlier(name: str) -> tuple[bool, float, str]:
        id, signer = readable[name][0].id, readable[name][0].signer
        return signer is None, seen[id, signer].place if (id, signer) in seen else math.inf, name

    originals: dict[str, str] = {}
    for name in sorted(readable, key=earlier):
        original = originals.setdefault(readable[name][0].id, name)
        if original != name:
            refused[name] = f"it is a copy of {original}"
    return {name: read for name, read in readable.items() if name not in refused}, refused


def read_records(folder: Path) -> Read:
    """Return a submission and its records; raise UserError with the first thing that is wrong with it."""
    where = ""
    try:
        submission = read_submission(folder)
        records = []
        for id in submission.ids:
            where = f"run {id}: "
            records.append(checked_record(submission.store, id))
    except UserError as error:
        raise UserError(f"{where}{error}") from None
    except Exception as error:  # others wrote it, and may have written anything
        raise UserError(f"{where}it cannot be read: {type(error).__name__}: {error}") from error
    return submission, records


def check_command(
    args: argparse.Namespace, repeat: Callable[[Store, str, float, str], Replay] = replay
) -> int:
    """Check all submissions, repeat runs on which they disagree and a sample; return 2 if something is wrong."""
    bounds(args)
    read, refused = read_all(args.dir)
    for name, why in refused.items():
        out.print(f"{name}: refused: {why}", markup=False, soft_wrap=True)
    pool: dict[str, tuple[Store, str]] = {}
    for name, (submission, records) in read.items():
        done = [str(record.id) for record in records if record.status == "done"]
        pool |= {f"{name}/runs/{id}": (submission.store, id) for id in done}
        signature = f"signed by {submission.signer}" if submission.signer else "not signed"
        text = (
            f"{name}: {submission.id}, {counted(len(records), 'run')} of {submission.submitter}, {signature}"
        )
        out.print(text, markup=False, soft_wrap=True)
        if note := _noise_note(records):
            out.print(f"{name}: {note}", markup=False, soft_wrap=True)
    wrong = len(refused)
    sample = chosen(list(pool), args.sample, args.seed)
    _, _, disputes = merge_entries(Entry(*each) for each in read.values())
    disputed = [name for name, (_, id) in pool.items() if id in disputes]
    if disputed:
        out.print(f"{counted(len(disputed), 'run')} repeated as submissions disagree", markup=False)
    for name in dict.fromkeys([*disputed, *sample]):
        store, id = pool[name]
        repetition = repeat(store, id, args.tolerance, args.device)
        wrong += repetition.state in (
            "different",
            "not compared",
        )  # or a forged run would only have to look foreign
        out.print(f"{name}: {repetition}", markup=False, soft_wrap=True)
    out.print(assurance(len(pool), len(sample), args.seed), markup=False, soft_wrap=True)
    return 2 if wrong else 0


def _noise_note(records: Sequence[RunRecord]) -> str:
    """Return which runs have noise of other code than here, in words; empty if none has.

    Who submits names the code, and a run that is repeated with it agrees, also where the name was made up.
    """
    private = [record for record in records if record.spec.get("privacy") is not None]
    others = [record.code or NO_CODE for record in private if record.code != code_of(record.spec)]
    if not others:
        return ""
    codes = f" ({len(set(others))} of them)" if len(set(others)) > 1 else ""
    return (
        f"{counted(len(others), 'private run')} with the noise of other code than here{codes}; --sample repeats it "
        "and cannot tell whether it was chosen among many for its values"
    )


def assurance(runs: int, sample: int, seed: int) -> str:
    """Return how surely a sample of all finished runs finds forged ones, in words."""
    if not sample:
        every = counted(runs, "finished run")
        return f"none of {every} drawn to be repeated: nothing else is known of their values"
    shares = sorted({1, min(2, runs), max(1, round(runs / 10)), max(1, round(runs / 2))})
    odds = ", ".join(f"{forged} with {100 * caught(runs, forged, sample):.3g} %" for forged in shares)
    return (
        f"{sample} of {counted(runs, 'finished run')} repeated (--seed {seed}). A sample like it catches "
        f"forged runs with probability 1 - C(R-F, N) / C(R, N), R = {runs}, N = {sample}; F = {odds}"
    )


def build_command(args: argparse.Namespace) -> int:
    """Write the pages of a board; return 2 if a submission is left out."""
    read, refused = read_all(args.dir)
    entries: dict[str, Entry] = {}
    for name, submission in read.items():
        entry = Entry(*submission)
        try:
            with TemporaryDirectory() as trial:
                write_board([entry], {}, Path(trial), command_of)
        except Exception as error:  # one submission must not keep all others from being shown
            refused[name] = f"no table can be made of it: {type(error).__name__}: {error}"
        else:
            entries[name] = entry
    for name, why in refused.items():
        log.print(f"{name}: left out: {why}", markup=False)
    seen = add_seen(args.dir, ((name, entry.submission) for name, entry in entries.items()))
    dated = [entry._replace(seen=first_seen(seen, entry.submission.id)) for entry in entries.values()]
    pages = write_board(dated, refused, args.out, command_of)
    log.print(
        f"wrote {counted(len(pages), 'page')} of {counted(len(entries), 'submission')}: {pages[0]}",
        markup=False,
    )
    return 2 if refused else 0
