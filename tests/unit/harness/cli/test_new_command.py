"""A new algorithm begins as a file that passes, with a test that can fail."""

import runpy

import pytest

import harness
from harness.cli.parser import main
from harness.core.algorithm import ALGORITHMS
from harness.testing.conformance import CHECKS, check

pytestmark = pytest.mark.usefixtures("registries")


@pytest.fixture
def begun(tmp_path):
    """Return the paths of a new algorithm and of its test."""
    assert main(["new", "algorithm", "fed_mine", "--out", str(tmp_path)]) == 0
    return tmp_path / "fed_mine.py", tmp_path / "test_fed_mine.py"


def test_what_is_written_keeps_rows_of_clients(begun):
    algorithm, test = begun
    text = algorithm.read_text()
    assert "class FedMine(Descent)" in text and "clients.take(" in text and "clients.put(" in text
    assert "$" not in text + test.read_text()


def test_the_next_commands_are_printed(tmp_path, capsys):
    main(["new", "algorithm", "fed_mine", "--out", str(tmp_path)])
    assert f"check fed_mine --plugin {tmp_path / 'fed_mine.py'}" in capsys.readouterr().out


@pytest.mark.slow
def test_its_test_passes_and_its_checks_too(begun):
    cases = runpy.run_path(str(begun[1]))
    for name, case in cases.items():
        if name.startswith("test_"):
            case()


def test_its_test_fails_for_another_method(begun):
    algorithm, test = begun
    algorithm.write_text(algorithm.read_text().replace("state.x + dx", "state.x + 2 * dx"))
    with pytest.raises(AssertionError):
        runpy.run_path(str(test))["test_without_pull_it_is_fedavg"]()


def test_a_row_that_is_not_put_back_is_found(begun):
    algorithm, _ = begun
    algorithm.write_text(algorithm.read_text().replace("clients.put(state.h, h + x - x_t)", "h + x - x_t"))
    harness.load_plugin(algorithm)
    (row,) = check(ALGORITHMS["fed_mine"], [one for one in CHECKS if one.__name__ == "_partial"])
    assert row["result"] == "failed"


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (["algorithm", "FedMine"], "lower case with underscores"),
        (["algorithm", "scaffold"], "'scaffold' is an algorithm already"),
        (["algorithm", "fed_mine"], "exists; remove it"),
        (["metric", "mine"], "Allowed: algorithm"),
    ],
)
def test_nothing_is_taken_or_overwritten(begun, arguments, why, capsys):
    before = begun[0].read_text()
    assert main(["new", *arguments, "--out", str(begun[0].parent)]) == 2
    assert why in " ".join(capsys.readouterr().err.split())
    assert begun[0].read_text() == before
