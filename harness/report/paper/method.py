"""The paragraphs of a method section: what was run, on what, with which spread, tuning and privacy.

Everything is read from records. Citations are written ``[@key]``, as Pandoc reads them.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain, zip_longest
from typing import Any

import pandas as pd

from harness.config.report import ReportSpec
from harness.core.registry import counted
from harness.report.data.leaderboard import most_exposed, person_or_client
from harness.report.data.provenance import provenance
from harness.report.data.results import Cell, Results
from harness.report.data.specs import part_name, partition_text
from harness.report.paper.references import keys_of
from harness.report.tables.privacy import (
    CHANGES,
    PLACEMENTS,
    SAMPLINGS,
    UNITS,
    of_user,
    told_apart,
    uncovered,
    uncovered_by,
)
from harness.report.tables.sheet import in_latex, in_markdown
from harness.report.tables.text import quantity, words

DIGITS = 12  # of a digest
LONGEST = 1500  # characters of one assumption; only lists of columns are longer
VERSIONS = ("fedfrontier", "git commit", "python", "torch", "numpy", "device")
CITED = re.compile(r"\[@([^\]]+)\]")


def method(results: Results, frame: pd.DataFrame, spec: ReportSpec) -> dict[str, str]:
    """Return title -> paragraph.

    Parameters
    ----------
    results : Results
        The runs.
    frame : pd.DataFrame
        Their leaderboard.
    spec : ReportSpec
        Settings of the report.
    """
    cells = [cell for cell in results.cells if cell.done] or results.cells
    paragraphs = {
        "Data": _data(cells),
        "Methods": _methods(cells),
        "Seeds": _seeds(results, frame, spec),
        "Tuning": _tuning(cells, frame),
        "Privacy": _privacy(cells),
        "Compression": _compression(cells),
        "Software": _software(results),
    }
    return {title: text for title, text in paragraphs.items() if text}


def in_markdown_text(paragraphs: Mapping[str, str]) -> str:
    """Return the paragraphs in Markdown, with citations as Pandoc reads them."""
    return "\n\n".join(f"**{title}.** {in_markdown(text)}" for title, text in paragraphs.items()) + "\n"


def in_latex_text(paragraphs: Mapping[str, str]) -> str:
    """Return the paragraphs in LaTeX."""
    return "\n\n".join(rf"\paragraph{{{title}.}} {_cited(text)}" for title, text in paragraphs.items()) + "\n"


def _cited(text: str) -> str:
    parts = CITED.split(text)
    cited = (rf"~\cite{{{part.replace('; @', ',')}}}" for part in parts[1::2])
    plain = [in_latex(part).rstrip() for part in parts[:-1:2]] + [in_latex(parts[-1])]
    return "".join(chain.from_iterable(zip_longest(plain, cited, fillvalue="")))


def _data(cells: Sequence[Cell]) -> str:
    """Return what was learned from, who held it, and what was held out."""
    told: dict[str, None] = {}
    for cell in cells:
        record, partition = cell.records[0], cell.spec.get("partition")
        if record.spec.get("data") is None or partition is None:
            told.setdefault(f"Problem {part_name(cell.spec.get('problem'))} has data of its own.")
            continue
        source = next((run.source for run in cell.records if run.source), part_name(cell.spec["data"]))
        digest = f", SHA-256 {record.digest[:DIGITS]}" if record.digest else ""
        clients = next((run.final["clients"] for run in cell.records if "clients" in run.final), None)
        number = clients or partition.get("clients")
        verb, whom = ("holds", "it") if number == 1 else ("hold", "them")
        told.setdefault(
            f"{source}{digest}: {counted(number, 'client')} {verb} what the partition "
            f"{partition_text(partition)} deals {whom}. {_held_out(partition, cell.spec['data'])}{_positive(cell)}"
        )
    return " ".join(told)


def _positive(cell: Cell) -> str:
    """Say which of two classes true positive rates, gaps and sensitivities are about."""
    name = next((run.tested["positive"] for run in cell.records if "positive" in run.tested), None)
    return "" if name is None else f" Of its two classes {name} is the positive one."


def _held_out(partition: Mapping[str, Any], data: Mapping[str, Any]) -> str:
    test: Any = partition.get("test")
    of = "users" if data.get("user") else "samples"
    alike = (
        f", with the proportions of {' and '.join(partition['stratify'])}"
        if partition.get("stratify")
        else ""
    )
    text = (
        "Test samples are those of the source."
        if test == "official"
        else f"Of each client's {of} {100 * test:g} % are held out for testing{alike}."
    )
    if share := partition.get("selection"):
        text += (
            f" {100 * share:g} % of the others are held out to choose settings."
            if partition.get("selection_seed") is None
            else f" Before, {100 * share:g} % of all {of} are set aside to choose settings, the same under "
            "every seed; no run trains or tests on them."
        )
    return text + (
        " Continuous columns are standardized over the training samples of all clients."
        if partition.get("standardize")
        else ""
    )


def _methods(cells: Sequence[Cell]) -> str:
    """Return the algorithms with their references, models, rounds and cohorts."""
    names = list(dict.fromkeys(cell.algorithm for cell in cells))
    listed = [f"{name} [@{'; @'.join(keys)}]" if (keys := keys_of(name)) else name for name in sorted(names)]
    facts = [f"Algorithms: {', '.join(listed)}."]
    for title, values in (
        ("Models", (part_name(cell.spec.get("model")) for cell in cells)),
        ("Problems", (part_name(cell.spec.get("problem")) for cell in cells)),
        ("Communication rounds", (cell.spec.get("rounds") for cell in cells)),
        ("Clients per round", (_per_round(cell.spec.get("cohort")) for cell in cells)),
        ("Number format", (cell.spec.get("precision") for cell in cells)),
    ):
        if found := _distinct(values):
            facts.append(f"{title}: {found}.")
    return " ".join(facts)


def _per_round(cohort: Mapping[str, Any] | None) -> Any:
    """Return how many clients take part in a round, or how likely each does."""
    if not cohort:
        return "all"
    return cohort["size"] if cohort.get("rate") is None else f"each with probability {cohort['rate']:g}"


def _seeds(results: Results, frame: pd.DataFrame, spec: ReportSpec) -> str:
    """Return what a figure is: of which evaluation, over which seeds, with which spread and tests."""
    seeds, done = sorted({run.seed for run in results.runs if run.done}), frame[frame["done"] > 0]
    many = _distinct(done["seeds"]).replace(", ", " or ")
    text = (
        f"Rows have {counted(many, 'seed')} (of {_ranges(seeds)}), which split the data, start the models and draw "
        "cohorts, batches and noise. Figures are those after the last round, means over seeds ± the sample "
        f"standard deviation; rows are ranked by {words(spec.by)}."
    )
    counts = {name: int(frame[name].sum()) for name in ("done", "failed", "skipped", "missing", "damaged")}
    undone = [f"{count} {name}" for name, count in counts.items() if count and name != "done"]
    if undone:
        text += (
            f" Of {counted(sum(counts.values()), 'run')} {counts['done']} are finished ({', '.join(undone)})."
        )
    if frame["baseline"].notna().any():
        text += (
            f" Differences are to {spec.baseline}, paired by seed, with 95 % BCa bootstrap intervals (from five "
            "seeds; of t below); p values are of a sign-flip permutation test, adjusted by Holm over the "
            "comparisons of a setting."
        )
    return text


def _tuning(cells: Sequence[Cell], frame: pd.DataFrame) -> str:
    """Return how settings were chosen, and at which cost."""
    searches = [cell.records[0].search for cell in cells if cell.records[0].search]
    if not searches:
        chosen = sorted({path for cell in cells for path in cell.records[0].chosen})
        given = f" Settings {', '.join(chosen)} were chosen for each row by itself." if chosen else ""
        return f"No settings were searched within these runs: they are those of the suite.{given}"
    tune = searches[0]["tune"]
    ranges = ", ".join(
        f"{path} ({_range(kind, bounds)})"
        for path, over in tune["settings"].items()
        for kind, bounds in over.items()
        if kind != "algorithms"
    )
    sampler = (
        "points of one Latin hypercube" if tune["sampler"] == "latin" else f"proposals of {tune['sampler']}"
    )
    text = (
        f"Every combination of algorithm, budget and compression searched {counted(tune['budget'], 'setting')}, "
        f"{sampler}, of {ranges}; the best {tune['metric']} on the selection samples was chosen, with seeds "
        f"{_ranges(tune['seeds'])}, other than those reported."
    )
    if tune["once_for"]:
        text += f" Values of {', '.join(tune['once_for'])} shared one search."
    costs = frame["epsilon_with_search"].dropna()
    if len(costs):
        text += (
            " The search is not counted in ε. Were it private, with a random number of settings and public "
            f"figures, run and search together would have ε of up to {quantity(float(costs.max()), 3)}."
        )
    return text


def _range(kind: str, bounds: Sequence[Any]) -> str:
    if kind == "choice":
        return f"one of {', '.join(map(str, bounds))}"
    return f"{kind.replace('_', '-')} from {bounds[0]} to {bounds[1]}"


def _privacy(cells: Sequence[Cell]) -> str:
    """Return a statement for every kind of protection: of what, by whom, how it is composed, whose ε it is."""
    kinds: dict[tuple[str, ...], list[tuple[Cell, dict[str, Any]]]] = {}
    for cell in cells:
        if (claim := cell.privacy()) is not None:
            key = tuple(
                str(claim.get(name))
                for name in ("unit", "placement", "adjacency", "sampling", "delta", "mechanism")
            )
            kinds.setdefault(key, []).append((cell, claim))
    if not kinds:
        return ""
    protected = [cell for own in kinds.values() for cell, _ in own]
    public = {
        fact for cell in protected for fact in told_apart(cell.done[0].record.final.get("public", ()))[0]
    }
    text = f"{uncovered(map(_short, uncovered_by(protected)))} {' '.join(map(_statement, kinds.values()))}"
    if public:
        text += f" Taken as public: {'; '.join(sorted(map(_short, public)))}."
    return text + " Rows without ε have no privacy."


def _statement(own: Sequence[tuple[Cell, Mapping[str, Any]]]) -> str:
    claims = [claim for _, claim in own]
    one = claims[0]
    unit, placement = str(one.get("unit")), str(one.get("placement"))
    change, sampling = str(one.get("adjacency")), str(one.get("sampling"))
    who = person_or_client(one)
    about = f"the most exposed {who}" if unit in ("client", who) else f"a {unit} of the most exposed {who}"
    drawn = {"record": "records of a batch", "user": "users of a batch"}.get(unit, "participants of a round")
    whose = _distinct(_most_exposed(cell, claim) for cell, claim in own)

    def all_of(name: str) -> list[Any]:
        return [claim[name] for claim in claims if claim.get(name) is not None]

    users = _distinct(of_user(claim).removesuffix("; ") or None for claim in claims)
    facts = [
        f"Differential privacy of {UNITS.get(unit, unit)} (unit {unit}), neighbors being data in which it is "
        f"{CHANGES.get(change, change)} (adjacency {change}); {PLACEMENTS.get(placement, placement)} (placement "
        f"{placement}); {drawn}: {SAMPLINGS.get(sampling, sampling)} (sampling {sampling}).",
        f"Messages are clipped to norm {_distinct(all_of('clip'))}; the noise multiplier is "
        f"{_span(all_of('noise_multiplier'))}.",
        f"ε is that of all protected messages of a run about {about}, at δ = {one.get('delta')}: "
        f"{_span(all_of('releases'))} {'' if users else 'Gaussian '}releases, composed by the accountant "
        f"{_distinct(all_of('accountant'))}.",
        f"It is {_span(all_of('epsilon_total'))} over the rows, and for the median {who} "
        f"{_span(all_of('epsilon_median')) or 'not recorded'}.",
        f"Most exposed: {whose}." if whose else "",
        f"Noise: {users}." if users else "",
        "Noise is correlated between rounds (banded)." if any("bands" in claim for claim in claims) else "",
        f"Generator: {_distinct(all_of('generator'))}." if all_of("generator") else "",
        f"Arithmetic: {_distinct(all_of('arithmetic'))}." if all_of("arithmetic") else "",
        *(f"Warning: {warning}." for warning in dict.fromkeys(all_of("warning"))),
        "ε is extrapolated where the noise is that of larger cohorts than were simulated."
        if any("noise_cohort" in claim for claim in claims)
        else "",
    ]
    return " ".join(filter(None, facts))


def _most_exposed(cell: Cell, claim: Mapping[str, Any]) -> str | None:
    """Return whose ε the largest is, by the client's name where clients have names."""
    final = cell.records[0].final
    whose, names = most_exposed(claim, final.get("clients")), (final.get("by_client") or {}).get("client", ())
    number = claim.get("unit_most")
    named = person_or_client(claim) == "client" and len(names) == final.get("clients") and number is not None
    return whose.replace(f"client {number}", str(names[number]), 1) if whose and named else whose


def _compression(cells: Sequence[Cell]) -> str:
    """Return the settings of messages that are not those of plain messages."""
    found = [cell.spec.get("compression") or {} for cell in cells]
    facts = []
    for name, title in (
        ("alpha", "Share of filters or neurons pruned"),
        ("beta", "Share of message entries dropped"),
        ("rank", "Rank of factored messages"),
        ("codec", "Number format of messages"),
    ):
        values = [one.get(name) for one in found]
        if any(value not in (None, 0, 0.0, "float32") for value in values):
            facts.append(f"{title}: {_distinct('none' if value is None else value for value in values)}.")
    facts.append("Bytes are those of all clients together, as encoded.")
    return " ".join(facts)


def _software(results: Results) -> str:
    """Return the versions that made the runs."""
    known = provenance(results.records)
    versions = [f"{name} {known[name]}" for name in VERSIONS if name in known]
    return f"Runs were made with {', '.join(versions)}." if versions else ""


def _distinct(values: Iterable[Any]) -> str:
    """Return the different values, numbers in order."""
    found = {value for value in map(_hashable, values) if value is not None}
    return ", ".join(map(_text, sorted(found, key=lambda v: (isinstance(v, str), v))))


def _hashable(value: Any) -> Any:
    return str(value) if isinstance(value, list | tuple | dict) else value


def _text(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _span(values: Iterable[Any]) -> str:
    """Return the least and the largest of numbers."""
    found = [float(value) for value in values if value is not None]
    low, high = (quantity(end(found), 3) if found else "" for end in (min, max))
    return low if low == high else f"{low} to {high}"


def _ranges(numbers: Sequence[int]) -> str:
    """Return ``0 to 4`` for consecutive numbers, else all of them."""
    if len(numbers) > 2 and list(numbers) == list(range(numbers[0], numbers[-1] + 1)):
        return f"{numbers[0]} to {numbers[-1]}"
    return ", ".join(map(str, numbers))


def _short(fact: str) -> str:
    return textwrap.shorten(fact, LONGEST, placeholder=" and more")
