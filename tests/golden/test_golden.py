"""What an algorithm computes changes only on purpose: with a new row here and a new version in its meta."""

import pytest

from harness.config.recorded import BUILT_IN
from harness.core import ALGORITHMS
from tests.golden.update import figures, moved, read, usual

KEPT = read()


def numbers(row):
    return {name: float(value) for name, _, value in (item.partition("=") for item in row["norms"].split())}


def test_there_is_a_row_for_every_algorithm_and_no_other():
    assert sorted(KEPT) == list(ALGORITHMS)


@pytest.mark.parametrize("name", sorted(KEPT))
def test_the_numbers_are_those_that_were_kept(name):
    found, kept = figures(name), KEPT[name]
    mend = (
        f"{name} computes something else than before. If that is intended, raise the version in its Meta and run "
        f"python -m tests.golden.update {name}"
    )
    assert found["version"] == kept["version"], mend
    assert numbers(found) == pytest.approx(numbers(kept), rel=1e-6, abs=1e-12), mend


def test_defaults_change_only_with_a_version():
    """Names of runs leave out what is at its default, so a changed default would give one name to two runs."""
    found = usual()
    assert moved(BUILT_IN, found) == []
    assert found == BUILT_IN, "python -m tests.golden.update --defaults writes them"


def test_a_changed_default_is_noticed():
    kept = {"algorithm": {"a": {"version": 1, "defaults": {"lr": 0.1, "mu": 0}}}}

    def found(version, lr):
        new = {"lr": lr, "mu": 0, "new": 1}
        return {
            "algorithm": {"a": {"version": version, "defaults": new}, "b": {"version": 1, "defaults": {}}}
        }

    assert moved(kept, found(1, 0.2)) == ["algorithm a: lr was 0.1, is 0.2, at version 1"]
    assert moved(kept, found(2, 0.2)) == moved(kept, found(1, 0.1)) == []


def test_a_default_without_a_version_never_changes():
    """Sections, models and topologies have none."""
    kept, found = ({"section": {"run": {"defaults": {"rounds": n}}}} for n in (100, 50))
    assert moved(kept, found) == ["section run: rounds was 100, is 50, at version None"]
