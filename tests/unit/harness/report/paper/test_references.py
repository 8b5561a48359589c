"""Every algorithm has its reference, and what that says is what the header of its file says."""

import inspect
import re
import unicodedata
from pathlib import Path

import pytest

from harness.config import plugins, run  # noqa: F401  loads the algorithms
from harness.core.algorithm import ALGORITHMS
from harness.report.paper.references import bibtex, references, software

ROOT = Path(__file__).parents[5]
UNPUBLISHED = {"centralized", "local", "fedreco", "fedreco_pvr"}  # see the headers of their files
#: Works whose header lacks authors; title and authors are those of arXiv.
ELSEWHERE = {"li2024fast": "2405.04566", "wang2024computation": "2404.00466"}
ACCENTS = re.compile(r"\\[\"'v] ?\{?")


def field(reference, name):
    """Return a field of an entry without its outer braces."""
    found = re.search(rf"^  {name} = \{{(.*)\}},$", reference.text, re.MULTILINE)
    return found[1] if found else ""


def plain(text):
    """Return letters and digits only, without accents and TeX."""
    text = ACCENTS.sub("", text).replace(r"\epsilon", "eps").replace("{", "").replace("}", "")
    text = unicodedata.normalize("NFKD", text)
    return re.sub(r"[^a-z0-9]", "", text.lower())


def header(name):
    return plain(inspect.getmodule(ALGORITHMS[name]).__doc__)


OURS = [name for name in ALGORITHMS if ALGORITHMS[name].__module__.startswith("algorithms.")]


def test_every_algorithm_has_a_reference():
    assert {name for one in references() for name in one.algorithms} == set(OURS) - UNPUBLISHED


def test_references_name_registered_algorithms_and_have_their_fields():
    keys = [one.key for one in references()]
    assert len(keys) == len(set(keys)) > 50
    for one in references():
        assert one.algorithms and set(one.algorithms) <= set(OURS), one.key
        assert field(one, "author") and field(one, "title") and field(one, "year").isdigit(), one.key
        assert field(one, "journal") or field(one, "booktitle"), one.key
        assert one.text.count("{") == one.text.count("}") and "keywords" not in one.text


def test_title_authors_and_address_are_those_of_the_header():
    for one in references():
        whole = header(one.algorithms[0])
        if one.key not in ELSEWHERE:
            assert plain(field(one, "title")) in whole, one.key
            assert plain(field(one, "author").replace(" and ", "")) in whole, one.key
        address = field(one, "eprint") or field(one, "journal").partition("arXiv:")[2] or field(one, "doi")
        known = whole + "".join(map(plain, ELSEWHERE.values()))
        assert plain(address or field(one, "url")) in known, one.key


def test_the_reference_is_the_paper_that_the_registry_names():
    """One of its references has the address in the registry, and one the first author and the year."""
    for name in set(OURS) - UNPUBLISHED:
        meta, own = ALGORITHMS[name].meta, [one for one in references() if name in one.algorithms]
        if "arxiv.org" in meta.url:
            assert any(meta.url.rpartition("/")[2] in one.text for one in own), name
        if found := re.match(r"(?:after )?([A-Z][a-z]+)[^\d]* (\d{4})$", meta.paper):
            years = [field(one, "year") for one in own if found[1] in field(one, "author")]
            assert found[2] in years, name


def test_bibtex_has_what_is_asked_for_and_nothing_else():
    text = bibtex(["fedavg", "scaffold", "local", "a plugin's"])
    assert re.findall(r"^@\w+\{(\w+),", text, re.MULTILINE) == [
        "karimireddy2020scaffold",
        "mcmahan2017communication",
    ]


def test_the_software_is_cited_with_the_versions_of_the_runs_by_the_title_of_its_citation_file():
    commits = [{"fedfrontier": "1.0.0", "commit": c} for c in ("b2", "a1", "a1")]
    text = software([*commits, {}])
    assert "note = {Version 1.0.0 (commit a1); version 1.0.0 (commit b2)}" in text
    assert "note" not in software([{}]) and text.count("{") == text.count("}")
    title, author = (re.search(rf"{name} = {{{{(.*)}}}}", text)[1] for name in ("title", "author"))
    citation = (ROOT / "CITATION.cff").read_text()
    assert title in citation and author in citation


@pytest.mark.usefixtures("registries")
def test_a_plugins_algorithm_is_cited_as_it_says():
    """Whoever made it wants it in the paper; without its file nothing is known of it."""
    assert "local_momentum" not in bibtex(["local_momentum"])
    plugins.load([ROOT / "docs" / "examples" / "plugin.py"])
    assert "@misc{local_momentum,\n  title = {{local\\_momentum}},\n  note = {an example},\n}" in bibtex(
        ["fedavg", "local_momentum"]
    )
