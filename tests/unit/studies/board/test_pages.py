"""The pages of a board: addresses that stay, commands that repeat, names that cannot do harm."""

import re
import shlex
from dataclasses import replace

import pytest

from harness.cli.arguments import spec_from
from harness.cli.parser import parser
from harness.config.recorded import identity, run_id, versions
from harness.config.run import read_spec
from harness.report.folder import command_of
from harness.storage.store import RunRecord
from studies.board.first_seen import Seen
from studies.board.pages import Entry, task_id, task_title, write_board
from studies.board.submission import Submission
from tests.support.submitted import SPEC

ATTACK = "<script>alert('hello')</script>"


def record(accuracy=0.8, reason=None, **fields):
    """Return a run of `SPEC` with other fields, finished with an accuracy or failed with a reason."""
    spec = read_spec({**SPEC, **fields}).model_dump(mode="json")
    made = versions(spec)
    line = {
        "round": 2,
        "metrics": {"accuracy": accuracy},
        "bytes_up": 10,
        "bytes_down": 10,
        "timing": {"seconds": 1.0},
    }
    ended = {"rounds": [line], "final": {**line, "clients": 4}} if reason is None else {"rounds": []}
    status = "done" if reason is None else "failed"
    id = run_id(spec, "0" * 64, made)
    return RunRecord(id, "", "", spec, status, reason, "here", digest="0" * 64, versions=made, **ended)


def entry(*records, id="a" * 12, submitter="Ada", signer=None):
    return Entry(Submission(None, id, submitter, signer, [one.id for one in records], {}), list(records))


@pytest.fixture
def site(tmp_path):
    """Return a function that builds a board and returns its pages by their addresses."""

    def build(*entries, refused=None):
        pages = write_board(entries, refused or {}, tmp_path / "site", command_of)
        assert pages[0].name == "index.html" and all(page.exists() for page in pages)
        root = tmp_path / "site"
        return {str(path.relative_to(root)): path.read_text() for path in root.rglob("*.html")}

    return build


def test_every_task_method_and_submission_has_a_page(site):
    scaffold = {"name": "scaffold", "lr": 0.1}
    first = entry(record(), record(seed=1), record(algorithm=scaffold))
    second = entry(record(model={"name": "mlp", "hidden": [8]}), id="b" * 12, submitter="Bob")
    pages = site(first, second)
    assert {name.partition("/")[0] for name in pages} == {"index.html", "tasks", "methods", "submissions"}
    assert sorted(name for name in pages if not name.startswith("tasks")) == [
        *("index.html", "methods/fedavg.html", "methods/scaffold.html"),
        *(f"submissions/{'a' * 12}.html", f"submissions/{'b' * 12}.html"),
    ]
    links = re.findall(r'href="([^"#]+)"', pages["index.html"])
    assert sorted(links) == sorted(name for name in pages if name != "index.html")
    for name, page in pages.items():
        if name != "index.html":
            assert 'href="../index.html"' in page and "Submitted by" in page


def test_addresses_stay_when_more_is_submitted(site):
    before = site(entry(record()))
    anchors = re.findall(r'id="(cell-\w+)"', before["methods/fedavg.html"])
    after = site(
        entry(record()), entry(record(0.9, seed=3), record(0.9, rounds=3), id="b" * 12, submitter="Bob")
    )
    assert before.keys() <= after.keys()
    for page in ("methods/fedavg.html", f"tasks/{task_id(record())}.html"):
        assert anchors and set(anchors) <= set(re.findall(r'id="(cell-\w+)"', after[page]))


def test_a_task_is_data_partition_problem_and_model():
    same = [record(), record(seed=4), record(rounds=9), record(algorithm="scaffold")]
    assert len({task_id(one) for one in same}) == 1
    others = [
        record(data="digits"),
        record(partition={"kind": "iid", "clients": 5}),
        record(problem="auroc", algorithm="coda_plus"),
        record(model={"name": "mlp"}),
    ]
    assert len({task_id(one) for one in (same[0], *others)}) == 5
    assert task_title(same[0]) == "breast-cancer · iid · 4 clients · classify · logistic"


def test_pages_of_what_is_gone_are_removed(site):
    site(entry(record()), entry(record(algorithm="scaffold"), id="b" * 12))
    assert {name for name in site(entry(record())) if "scaffold" in name or "b" * 12 in name} == set()


def test_ranks_are_those_of_the_task(site):
    """The method's own page shows its row second, as the other method is better, and not first among its own."""
    better = record(0.9, algorithm={"name": "scaffold", "lr": 0.1})
    pages = site(entry(record(0.8), better))
    ranks = {
        name: re.search(r'data-order="([^"]*)">[12]</td>', pages[f"methods/{name}.html"])[1]
        for name in ("fedavg", "scaffold")
    }
    assert ranks == {"fedavg": "2", "scaffold": "1"}


def test_a_run_of_two_submitters_is_one_run(site):
    key = "SHA256:abc"
    pages = site(entry(record()), entry(record(), id="b" * 12, submitter="Bob", signer=key))
    page = pages[f"tasks/{task_id(record())}.html"]
    assert "Bob, SHA256:abc; Ada, unsigned" in page and page.count("<details id=") == 1
    assert "disagree" not in pages["index.html"]


def test_submissions_that_disagree_are_named(site):
    pages = site(
        entry(record(0.931)), entry(record(0.713), id="b" * 12, submitter="Bob", signer="SHA256:abc")
    )
    assert "Runs that submissions disagree about" in pages["index.html"]
    told = "seed 0: accuracy 0.713 by Bob, SHA256:abc; seed 0: accuracy 0.931 by Ada, unsigned"
    for name in ("index.html", f"tasks/{task_id(record())}.html", "methods/fedavg.html"):
        assert told in pages[name]
    page = pages[f"tasks/{task_id(record())}.html"]
    assert (
        ">0.7130<" in page and ">0.9310<" not in page
    )  # the row's figures are those of the signed submission


def test_of_submissions_that_disagree_the_first_seen_counts(site):
    """Who comes later must not gain by what can be chosen, as the digits of a manifest or a key of one's own."""
    first = entry(record(0.713), id="f" * 12, signer="SHA256:ada")._replace(seen=Seen(0, "2026-01-01"))
    later = entry(record(0.931), id="0" * 12, submitter="Bob", signer="SHA256:bob")
    for second in (later, later._replace(seen=Seen(1, "2026-01-02"))):
        page = site(second, first)[f"tasks/{task_id(record())}.html"]
        assert ">0.7130<" in page and ">0.9310<" not in page and "0.931 by Bob" in page
    nobody = entry(record(0.5), id="1" * 12)._replace(seen=Seen(0, "2025-01-01"))
    page = site(nobody, first._replace(seen=Seen(1, "2026-01-01")))[f"tasks/{task_id(record())}.html"]
    assert ">0.5000<" in page and "0.713 by Ada, SHA256:ada" in page


def test_a_page_without_disputes_has_no_such_column(site):
    assert "Disputed" not in site(entry(record()))[f"tasks/{task_id(record())}.html"]


def test_records_that_say_more_of_the_same_figures_are_no_dispute(site):
    """Later versions write more into a record, and so do runs with diagnostics."""
    more = record()
    more.final.update({"not_covered": ["figures of test samples"], "events": [[1, 2]]})
    more.rounds[-1]["metrics"] |= {"train_accuracy": 0.5}
    pages = site(entry(record()), entry(more, id="b" * 12, submitter="Bob"))
    assert "disagree" not in pages["index.html"]


def test_a_dispute_names_the_code_whose_noise_each_has(site):
    mine, other = (replace(record(accuracy), code=digit * 32) for accuracy, digit in ((0.9, "0"), (0.8, "1")))
    page = site(entry(mine), entry(other, id="b" * 12, submitter="Bob"))["index.html"]
    assert f"by Ada, unsigned, noise of code {'0' * 32}" in page and f"noise of code {'1' * 32}" in page


def test_hostile_names_and_reasons_are_text(site):
    pages = site(
        entry(record(), record(seed=1, reason=ATTACK), submitter=ATTACK), refused={ATTACK: f"why {ATTACK}"}
    )
    for page in pages.values():
        assert ATTACK not in page and "default-src 'none'" in page
        scripts = re.findall(r"<script\b", page)
        assert len(scripts) <= 1  # our own
    assert "&lt;script&gt;alert" in pages["index.html"]
    assert "<script" not in pages["index.html"]
    assert any("&lt;script&gt;alert" in page for name, page in pages.items() if name.startswith("tasks"))


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"cohort": 2, "compression": {"beta": 0.5}, "precision": "float64", "seed": 3},
        {"privacy": {"placement": "central", "epsilon": 8, "clip": 1}, "attacks": ["membership"]},
        {"topology": "ring", "algorithm": "d_sgd"},
    ],
)
def test_the_command_of_a_run_repeats_that_run(fields):
    """Attacks were missing in it, so that it made another run."""
    one = record(**fields)
    again = spec_from(parser().parse_args(shlex.split(command_of(one))[3:]))
    assert identity(again, "0" * 64) == one.id


def test_a_board_without_a_readable_submission_says_why(tmp_path):
    (index,) = write_board([], {"me": "no submission"}, tmp_path / "new" / "site", lambda record: "")
    assert "no submission" in index.read_text()
