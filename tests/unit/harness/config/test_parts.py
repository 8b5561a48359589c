"""What is known of parts without importing them is what their registries say."""

import json
import os
import subprocess
import sys

import pytest

from harness.config.parts import Recalled, parts
from harness.config.recorded import fields_of_run
from harness.config.registered import REGISTERED, ROWS, written_down
from harness.config.run import RunSpec
from harness.core.algorithm import ALGORITHMS
from harness.problems import PROBLEMS

SECTIONS = ("run", "data", "partition", "privacy", "compression", "cohort", "algorithm", "nothing")
NAMES = {
    "algorithm": list(ALGORITHMS),
    "problem": list(PROBLEMS),
    "model": ["logistic", "mlp"],
    "partition": ["iid", "dirichlet", "columns"],
    "topology": ["ring", "complete"],
    "data": ["csv", "adult"],
    "privacy": ["independent"],
}


@pytest.fixture
def recalled():
    return Recalled(json.loads(json.dumps(written_down())))


def test_what_is_recalled_is_what_is_registered(recalled):
    for section in SECTIONS:
        assert recalled.fields(section) == REGISTERED.fields(section)
    for section, names in NAMES.items():
        for name in (*names, "", "unheard_of"):
            assert recalled.defaults(section, name) == REGISTERED.defaults(section, name), (section, name)
            if section in ("algorithm", "problem", "partition", "data"):
                assert recalled.version(section, name) == REGISTERED.version(section, name), (section, name)
    for name in (*ALGORITHMS, "unheard_of"):
        assert recalled.meta(name) == REGISTERED.meta(name)
    for kind in ROWS:
        assert recalled.rows(kind) == REGISTERED.rows(kind)


def test_where_torch_is_imported_the_registries_are_asked():
    assert parts() is REGISTERED


def test_the_fields_of_a_run_are_those_of_its_class():
    assert set(fields_of_run()) == set(RunSpec.model_fields)


@pytest.mark.slow
def test_where_a_data_set_is_registered_the_registries_are_asked():
    """Whoever registers one need not have imported torch."""
    script = (
        "import sys\n"
        "from datasets.catalog import data_set\n"
        "from harness.config.parts import parts\n"
        "data_set('mine', '1 x 1')(lambda: None)\n"
        "print('torch' in sys.modules, type(parts()).__name__)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout == "False Registered\n"


SCRIPT = """
import json, sys
from harness.config.parts import parts
from harness.config.recorded import run_id, versions
spec = {"data": {"name": "adult"}, "algorithm": {"name": "scaffold", "lr": 0.5}, "rounds": 3}
print(run_id(spec, "d", versions(spec)), json.dumps(parts().defaults("algorithm", "ditto")), "torch" in sys.modules)
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    "remains", [None, "", "{", "[]", '{"source": 1}', '{"source": "of another version"}']
)
def test_a_cache_that_says_nothing_is_written_anew(tmp_path, monkeypatch, remains):
    monkeypatch.setenv("FEDFRONTIER_CACHE", str(tmp_path))

    def said():
        done = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, check=True)
        return done.stdout.rsplit(None, 1)

    first = said()
    (file,) = (tmp_path / "parts").iterdir()
    if remains is not None:
        written = file.read_text()
        file.write_text(remains)
        assert said() == first
        assert file.read_text() == written
    assert first[1] == "True"
    assert said() == [first[0], "False"]


def said_by(cache, prepare=""):
    """Return what a process says with a cache, after some preparation."""
    done = subprocess.run(
        [sys.executable, "-c", prepare + SCRIPT],
        capture_output=True,
        text=True,
        check=True,
        env=os.environ | {"FEDFRONTIER_CACHE": str(cache)},
    )
    return done.stdout


FULL = "import resource\nresource.setrlimit(resource.RLIMIT_FSIZE, (100, 100))\n"


@pytest.mark.slow
@pytest.mark.parametrize("cache", ["file", "full", "~nobody-of-this-name/cache"])
def test_a_cache_that_cannot_be_written_changes_nothing(tmp_path, cache):
    """Because it is no folder, the disk is full, or there is no home."""
    (tmp_path / "file").touch()
    (tmp_path / "full" / "parts").mkdir(parents=True)
    place = cache if cache.startswith("~") else tmp_path / cache
    assert said_by(place, FULL if cache == "full" else "") == said_by(tmp_path / "other")
    assert list((tmp_path / "full" / "parts").iterdir()) == []


@pytest.mark.slow
def test_without_source_nothing_is_kept(tmp_path):
    """As in a zip file, or while a file cannot be read."""
    none = "import datasets.cache\ndatasets.cache.source_digest = lambda folders: None\n"
    assert said_by(tmp_path, none).endswith("True\n")
    assert not (tmp_path / "parts").exists()


READ_AGAIN = """
import sys
from pathlib import Path
from harness.config import parts
known = parts.parts()
print(type(known).__name__, known.version("algorithm", "fedavg"))
"""


def told(cache):
    """Return what another process says of the parts, with a cache of its own."""
    environment = {**os.environ, "FEDFRONTIER_CACHE": str(cache)}
    command = [sys.executable, "-c", READ_AGAIN]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout.split()


@pytest.mark.slow
def test_parts_that_were_changed_in_the_cache_are_not_believed(tmp_path):
    first, again = told(tmp_path / "cache"), told(tmp_path / "cache")
    assert again == ["Recalled", first[1]]
    (file,) = (tmp_path / "cache" / "parts").glob("*.json")
    content = json.loads(file.read_text())
    content["parts"]["versions"]["algorithm"]["fedavg"] = 4711
    file.write_text(json.dumps(content))
    assert told(tmp_path / "cache")[1] == first[1]
    assert told(tmp_path / "cache")[0] == "Recalled"
    (tmp_path / "cache").chmod(0o777)
    assert told(tmp_path / "cache")[0] != "Recalled"
