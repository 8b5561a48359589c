"""The folder of a paper: valid LaTeX, and every fact of the privacy statement."""

import re
import shutil
import subprocess
from dataclasses import replace

import pytest

from harness.config.report import Pivot, ReportSpec
from harness.core.errors import UserError
from harness.report.data.results import Results
from harness.report.html.page import report_tables
from harness.report.paper.folder import write_paper
from harness.report.paper.privacy import privacy_statement
from tests.support.records import done, evaluation, private, spec, statement, undone

NASTY = "50% of_all & #1 {data} $x$ ~ ^ \\ <b> ε ± †"
SPEC = ReportSpec(baseline="fedavg", pivots=(Pivot("algorithm.name", "privacy.epsilon"),))
SMALL = ReportSpec()
PDF = b"%PDF-1.4 of a test"


def runs(source="adult from a made-up source", **parts):
    """FedAvg and SCAFFOLD with and without privacy, six seeds; one failed, one skipped."""
    found = []
    for name, gain in (("fedavg", 0.0), ("scaffold", 0.1)):
        for epsilon in (None, 2.0, 8.0):
            privacy = None if epsilon is None else private(epsilon)
            for seed in range(6):
                line = evaluation(20, 1000, epsilon, accuracy=0.6 + gain + seed / 100)
                found.append(done(spec(name, seed, privacy=privacy, **parts), line))
    found.append(undone(spec("ditto", **parts), "failed", "diverged"))
    found.append(undone(spec("fedbio", **parts), "skipped", "not for this"))
    for record in found:
        record.final["public"] = [source]
    return [replace(record, source=source, digest="0123456789abcdef") for record in found]


def paper(records, folder, spec=SPEC):
    """Write a paper and return its texts; one figure."""
    results, picture = Results(records), folder / "curves.pdf"
    folder.mkdir(exist_ok=True)
    picture.write_bytes(PDF)
    written = write_paper(results, folder / "paper", spec, report_tables(results, spec), [picture])
    assert sorted(path.name for path in (folder / "paper").iterdir()) == sorted(written)
    return {name: path.read_text() for name, path in written.items() if not name.endswith(".pdf")}


def said(*records):
    """Return the privacy statement of some runs."""
    return privacy_statement(Results(records).cells)


def checked(text):
    """Fail unless a fragment of LaTeX has paired environments and braces and no bare sign that LaTeX reads."""
    text = re.sub(r"(?<!\\)%.*", "", text)
    open_now = []
    for kind, name in re.findall(r"\\(begin|end)\{(\w+)\}", text):
        if kind == "begin":
            open_now.append(name)
        else:
            assert open_now.pop() == name
    assert open_now == []
    bare = re.sub(r"\\[\\{}&%$#_]", "", text)
    depth = 0
    for letter in bare:
        depth += {"{": 1, "}": -1}.get(letter, 0)
        assert depth >= 0
    assert depth == 0 and bare.count("$") % 2 == 0
    prose = re.sub(r"\$[^$]*\$", "", bare)
    prose = re.sub(r"\\(input|label|includegraphics|cite|documentclass)(\[[^\]]*\])?\{[^}]*\}", "", prose)
    for table in re.findall(r"\\begin\{tabular\}\{([lr]+)\}(.*?)\\end\{tabular\}", text, re.DOTALL):
        rows = [row for row in table[1].splitlines() if row.endswith(r"\\")]
        assert rows and {len(re.findall(r"(?<!\\)&", row)) for row in rows} == {len(table[0]) - 1}
    prose = re.sub(r"\\begin\{tabular\}.*?\\end\{tabular\}", "", prose, flags=re.DOTALL)
    assert not re.search(r"[&#_^<>|]", prose), re.search(r".{0,30}[&#_^<>|].{0,30}", prose)
    assert all(ord(letter) < 256 for letter in text)
    return text


def test_every_file_is_valid_latex_whatever_names_say(tmp_path):
    texts = paper(runs(NASTY), tmp_path)
    for name, text in texts.items():
        if name.endswith(".tex"):
            checked(text)
    assert r"50\% of\_all \& \#1 \{data\}" in texts["privacy.tex"]


def test_the_document_holds_all_files_and_cites_what_it_lists(tmp_path):
    texts = paper(runs(), tmp_path)
    named = re.findall(r"\\input\{([^}]+)\}", texts["paper.tex"])
    parts = sorted(
        name.removesuffix(".tex") for name in texts if name.endswith(".tex") and name != "paper.tex"
    )
    assert sorted(named) == parts
    assert re.findall(r"\\includegraphics\[.*\]\{(.*)\}", texts["figures.tex"]) == ["curves.pdf"]
    assert (tmp_path / "paper" / "curves.pdf").read_bytes() == PDF
    works = set(re.findall(r"^@\w+\{(\w+),", texts["references.bib"], re.MULTILINE))
    assert (
        works == {"fedfrontier", "mcmahan2017communication", "karimireddy2020scaffold"}
        and r"\nocite{*}" in texts["paper.tex"]
    )


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("pdflatex") is None, reason="no pdflatex on this machine")
def test_the_document_compiles(tmp_path):
    results = Results(runs(NASTY))
    write_paper(results, tmp_path / "paper", SPEC, report_tables(results, SPEC), [])
    command = ["pdflatex", "-interaction=nonstopmode", "-halt-on-error", "paper.tex"]
    assert subprocess.run(command, cwd=tmp_path / "paper", capture_output=True).returncode == 0


def test_tables_have_the_best_in_bold_and_tell_what_they_leave_out(tmp_path):
    """SCAFFOLD is better by 0.1 with every seed: p = 1/32 among two rivals."""
    text = paper(runs(), tmp_path)["table-leaderboard.tex"]
    assert text.count(r"\textbf{0.7250 $\pm$ 0.0187}") == 3 and text.count(r"\textbf") == 3
    assert "Rows left out without a finished run: 2." in text and "ditto" not in text
    assert r"\midrule" in text and "Bold: the best mean" in text


def test_pivots_are_tables_and_those_of_earlier_papers_leave(tmp_path):
    assert "0.7250 $\\pm$ 0.0187" in paper(runs(), tmp_path)["table-pivot-1.tex"]
    (tmp_path / "paper" / "notes.txt").write_text("mine")
    write_paper(Results(runs()), tmp_path / "paper", ReportSpec(), {}, [])
    assert (tmp_path / "paper" / "notes.txt").read_text() == "mine"
    assert not list((tmp_path / "paper").glob("table-pivot-*"))
    assert not (tmp_path / "paper" / "curves.pdf").exists()


def test_the_statement_tells_how_epsilon_is_composed_and_whose_it_is():
    claim = statement(8.0) | {
        "adjacency": "replace", "sampling": "full", "unit_most": 3, "units_most": 1, "epsilon_median": 4.0,
    }  # fmt: skip
    run = done(spec(privacy=private(8.0)), evaluation(20, 1000, 8.0, accuracy=0.5) | {"privacy": claim})
    text = said(run)
    for fact in (
        "one client with all its data (unit client)",
        "replaced (adjacency replace)",
        "each client adds the noise itself (placement local)",
        "participants of a round: everybody (sampling full).",
        "clipped to norm 10",
        "the noise multiplier is 3",
        "δ = 1e-05: 20 Gaussian releases, composed by the accountant gaussian",
        "It is 8 over the rows, and for the median client 4.",
        "Most exposed: client 3.",
        "Taken as public: client sizes.",
    ):
        assert fact in text, fact
    assert said(done(spec(), accuracy=0.5)) == ""
    run.final.update({"clients": 4, "by_client": {"client": ["Basel", "Bern", "Genf", "Zug"]}})
    assert "Most exposed: Zug." in said(run)


def test_the_epsilon_of_a_record_is_that_of_its_client():
    """The ledger of records is kept by client, that of vertical runs by person."""

    def text(**more):
        claim = statement(8.0) | {"unit": "record", "epsilon_median": 4.0, **more}
        run = done(spec(privacy=private(8.0)), evaluation(20, 1000, 8.0, accuracy=0.5) | {"privacy": claim})
        return said(run)

    assert "about a record of the most exposed client, at" in text() and "the median client 4" in text()
    assert "about a record of the most exposed person" in text(protects="the features of one person")


def test_there_is_no_paper_without_a_finished_run(tmp_path):
    with pytest.raises(UserError, match="no run has finished"):
        write_paper(Results([undone(spec(), "failed", "x")]), tmp_path / "paper", ReportSpec(), {}, [])
