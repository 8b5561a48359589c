"""``check`` prints a line for every algorithm; details of what failed, and of the rest on request."""

import json

import pytest

from harness.cli.parser import main
from harness.testing import checks


@pytest.fixture(autouse=True)
def _checks(monkeypatch):
    """Replace the checks: of fedavg all pass, of the others one fails."""

    def checked(algorithm):
        name = algorithm.meta.name
        right = {"algorithm": name, "check": "Be constructible", "result": "passed", "why": None}
        wrong = right | {"check": "Stand still", "result": "failed", "why": "[x] moved"}
        return [right, right | {"check": "Stand still"} if name == "fedavg" else wrong]

    monkeypatch.setattr(checks, "check", checked)


def test_an_algorithm_that_passes_takes_one_line(capsys):
    assert main(["check", "fedavg"]) == 0
    assert capsys.readouterr().out == "fedavg: 2 of 2 checks passed\n"


def test_failed_checks_are_listed_with_their_reasons(capsys):
    assert main(["check", "fedavg", "scaffold"]) == 1
    assert capsys.readouterr().out.splitlines() == [
        "fedavg: 2 of 2 checks passed",
        "scaffold: 1 of 2 checks passed",
        "  failed: Stand still ([x] moved)",
    ]


def test_a_reason_of_several_checks_is_printed_once(monkeypatch, capsys):
    wrong = {"algorithm": "fedavg", "check": "Learn", "result": "failed", "why": "shapes differ"}
    monkeypatch.setattr(checks, "check", lambda _: [wrong, wrong])
    assert main(["check", "fedavg"]) == 1
    assert capsys.readouterr().out.splitlines()[1:] == [
        "  failed: Learn (shapes differ)",
        "  failed: Learn (as above)",
    ]


def test_verbose_lists_every_check(capsys):
    assert main(["check", "scaffold", "--verbose"]) == 1
    assert capsys.readouterr().out.splitlines()[1:] == [
        "  passed: Be constructible",
        "  failed: Stand still ([x] moved)",
    ]


def test_json_holds_every_check(capsys):
    assert main(["check", "fedavg", "scaffold", "--json"]) == 1
    rows = json.loads(capsys.readouterr().out)
    assert [(row["algorithm"], row["result"]) for row in rows] == [
        ("fedavg", "passed"),
        ("fedavg", "passed"),
        ("scaffold", "passed"),
        ("scaffold", "failed"),
    ]
