"""What the pages on papers show is what the command `papers` prints from the committed evidence.

A page holds the output of a command between ``<!-- papers SUITE --markdown -->`` and ``<!-- end -->``.
"""

import re
import shlex
from pathlib import Path

import pytest

from studies.__main__ import main
from studies.papers.claims import read_claims
from tests.unit.studies.papers.test_command import write

ROOT = Path(__file__).parents[2]
REFERENCE = ROOT / "results" / "reference"
PAGES = [
    ROOT / "results" / "README.md",
    ROOT / "docs" / "papers.md",
    *sorted((ROOT / "docs" / "papers").glob("*.md")),
]
BLOCK = re.compile(r"^<!-- (papers .*?--markdown) -->\n(.*?)^<!-- end -->$", re.MULTILINE | re.DOTALL)


def outdated(page, capsys):
    """Return the commands of a page whose blocks show something else than they print."""
    text = page.read_text()
    found = BLOCK.findall(text)
    assert len(found) == text.count("<!-- papers "), f"{page.name}: a block has no end, or no --markdown"
    wrong = []
    for command, shown in found:
        code = main(shlex.split(command))
        if code != 0 or capsys.readouterr().out.strip() != shown.strip():
            wrong.append(command)
    return wrong


@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.name)
def test_a_page_shows_what_the_evidence_says(page, capsys):
    assert outdated(page, capsys) == []


def test_a_page_that_shows_something_else_is_found(tmp_path, capsys):
    folder, page = write(tmp_path / "mine"), tmp_path / "page.md"
    command = f"papers {folder} --markdown"
    assert main(shlex.split(command)) == 0
    printed = capsys.readouterr().out
    page.write_text(f"# A\n\n<!-- {command} -->\n\n{printed}\n<!-- end -->\n\nText.\n")
    assert outdated(page, capsys) == []
    page.write_text(page.read_text().replace("0.1 |", "0.2 |", 1))
    assert outdated(page, capsys) == [command]
    page.write_text(page.read_text().replace("<!-- end -->", ""))
    with pytest.raises(AssertionError, match="a block has no end"):
        outdated(page, capsys)


def test_the_claims_that_the_docs_show_are_valid(tmp_path):
    page = (ROOT / "docs" / "claims.md").read_text()
    (shown,) = re.findall(r"```yaml\n(# mine/claims\.yaml\n.*?)```", page, re.DOTALL)
    (tmp_path / "claims.yaml").write_text(shown)
    (claim,) = read_claims(tmp_path).claims
    assert claim.id == "tuned/better" and "its id is tuned/better" in shown
    assert claim.compared == "auroc: fedavg minus local, at privacy=none beta=0"


def test_claims_come_with_their_evidence():
    folders = {path.parent for path in REFERENCE.glob("*/claims.yaml")}
    assert folders == {path.parent for path in REFERENCE.glob("*/claims.csv")}


def test_the_verdicts_of_the_repository_are_as_written(capsys):
    assert main(["papers"]) == 0, capsys.readouterr().err
