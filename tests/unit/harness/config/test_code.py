"""Code that decides what is released keys its noise: our sources, plugins with all that they import, versions."""

import json
import shutil
import subprocess
import sys
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path

import pytest

from harness.config import code, imports
from harness.config.code import PROJECT, checked_code, digest_of
from harness.config.imports import PACKAGES, Source, sources_of
from harness.core.errors import UserError

OURS = [(name, place) for name in PACKAGES for place in find_spec(name).submodule_search_locations]


def written(folder, **files):
    for name, text in files.items():
        path = folder / (name.replace("__in__", "/") + ".py")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return folder


def sources(folder, name="plugin"):
    path = folder / f"{name}.py"
    return sources_of([Source(name, path.read_bytes(), folder)])


def test_imports_are_followed_wherever_they_stand(tmp_path):
    written(
        tmp_path,
        plugin="import json\nfrom helper import f\ndef late():\n    import lazy\n    from pack.sub import g\n",
        helper="import other_helper as o\ntry:\n    import not_there\nexcept ImportError:\n    pass\n",
        other_helper="",
        lazy="import importlib\nimportlib.import_module('named_by_text')\n",
        named_by_text="import numpy\n",
        unrelated="",
        pack__in____init__="from . import inner\n",
        pack__in__sub="from .deep.below import x\nfrom ..plugin import nothing\n",
        pack__in__inner="",
        pack__in__deep__in__below="from ...pack import *\n",
        pack__in__starred="",
    )
    before = set(sys.modules)
    found = sources(tmp_path)
    assert set(found.files) - {"plugin"} == {
        "helper", "other_helper", "lazy", "named_by_text", "not_there",
        "pack", "pack.sub", "pack.inner", "pack.deep.below", "pack.starred",
    }  # fmt: skip
    assert found.files["not_there"] == "absent"
    assert found.packages == {"numpy"}
    assert not {"helper", "lazy", "pack"} & (set(sys.modules) - before), "nothing is imported"


@pytest.mark.parametrize(
    "text",
    [
        "import importlib\nimportlib.import_module(name='helper')",
        "from importlib import import_module as load\nload('helper')",
    ],
)
def test_texts_that_name_modules_are_found_however_they_are_given(tmp_path, text):
    written(tmp_path, plugin=text, helper="import another", another="")
    assert {"helper", "another"} <= set(sources(tmp_path).files)


def test_a_file_that_somebody_put_among_installed_packages_has_no_version(tmp_path, monkeypatch):
    """Nothing but its content tells that it has changed."""
    place = tmp_path / "site-packages"
    written(place, put_there="x = 1")
    monkeypatch.syspath_prepend(place)
    written(tmp_path, plugin="import put_there, numpy")
    first = sources(tmp_path)
    assert first.packages == {"numpy"}
    written(place, put_there="x = 2")
    assert sources(tmp_path).files["put_there"] != first.files["put_there"]


def test_files_in_a_circle_are_read_once(tmp_path):
    written(tmp_path, plugin="import a", a="import b", b="import a\nimport plugin")
    assert set(sources(tmp_path).files) == {"plugin", "a", "b"}


def test_a_change_anywhere_changes_the_digests(tmp_path):
    folder = written(
        tmp_path, plugin="def f():\n    import pack.sub", pack__in____init__="", pack__in__sub="x = 1"
    )
    first = sources(folder)
    (folder / "pack" / "sub.py").write_text("x = 2")
    changed = sources(folder)
    differing = {name for name in first.files if first.files[name] != changed.files[name]}
    assert differing == {"pack.sub"}
    moved = tmp_path / "elsewhere"
    shutil.copytree(folder, moved, ignore=shutil.ignore_patterns("elsewhere"))
    assert sources(moved).files == changed.files, "where files lie decides nothing"


def test_what_cannot_be_read_is_refused(tmp_path, monkeypatch):
    written(tmp_path, plugin="import helper", helper="")
    monkeypatch.setattr(imports, "_spec", lambda name, places, folder: _zipped(tmp_path))
    with pytest.raises(UserError, match="module helper cannot be read"):
        sources(tmp_path)


def _zipped(folder):
    from importlib.machinery import ModuleSpec

    spec = ModuleSpec("helper", None, origin=str(folder / "code.zip" / "helper.py"))
    spec.has_location = True
    return spec


def test_our_own_code_is_known_by_its_files(tmp_path):
    """A copy elsewhere has the same digest, and one changed line in one file of any package another."""
    copies = []
    for name, place in OURS:
        shutil.copytree(place, tmp_path / name, ignore=shutil.ignore_patterns("__pycache__"))
        copies.append((name, str(tmp_path / name)))
    here = digest_of(OURS)
    assert digest_of(copies) == here
    for name, folder in copies:
        path = next(Path(folder).rglob("*.py"))
        kept = path.read_text()
        path.write_text(kept + "\n# edited\n")
        assert digest_of(copies) != here, name
        path.write_text(kept)
    (tmp_path / "algorithms" / "new.py").write_text("")
    assert digest_of(copies) != here


def test_an_installed_package_is_known_by_its_version(tmp_path, monkeypatch):
    folder = tmp_path / "site-packages" / "harness"
    written(folder, run="x = 1")
    first = digest_of([("harness", str(folder))])
    assert first == f"harness={version(PROJECT)}"
    monkeypatch.setattr(code, "version", lambda name: "99")
    assert digest_of([("harness", str(folder))]) != first


@pytest.mark.parametrize("given", ["", "abc", "g" * 32, "A" * 32, "f" * 33])
def test_a_digest_that_is_none_is_refused(given):
    with pytest.raises(UserError, match="column noise_code"):
        checked_code(given)


PLUGIN = """
from dataclasses import dataclass
from harness.core import register
from algorithms.centralized.fedavg import FedAvg
{imports}
import dataclasses

@register
@dataclass(frozen=True)
class Mine(FedAvg):
    meta = dataclasses.replace(FedAvg.meta, name="mine")

    def round(self, state, clients, channel):
        {late}
        return super().round(state, clients, channel)
"""
# A process that has imported the harness and no plugin, and forks a child for each question.
ASK = """
import json, os, sys
from harness.config import plugins
from harness.config.run import read_spec
from harness.simulation.build import prepare

sys.dont_write_bytecode = True  # a helper changes faster than the clock by which Python tells whether it has
for line in sys.stdin:
    if (child := os.fork()) == 0:
        plugin, spec = json.loads(line)
        plugins.load([plugin])
        made = [prepare(read_spec(spec | {"algorithm": name})) for name in ("mine", "fedavg")]
        print(json.dumps([[one.id, one.noise_key, one.code] for one in made]), flush=True)
        os._exit(0)
    if os.waitpid(child, 0)[1]:
        print("null", flush=True)
"""


@pytest.fixture(scope="module")
def ask():
    with subprocess.Popen(
        [sys.executable, "-c", ASK], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:

        def asked(plugin, spec):
            process.stdin.write(json.dumps([str(plugin), spec]) + "\n")
            process.stdin.flush()
            return json.loads(process.stdout.readline())

        yield asked
        process.stdin.close()


@pytest.mark.slow
@pytest.mark.parametrize("how", ["at once", "late", "in a package"])
def test_a_changed_helper_changes_noise_but_not_the_id(tmp_path, data, ask, how):
    """In processes of their own; the same code has the same noise in another process."""
    module = "pack.part" if how == "in a package" else "helper"
    early, late = ("pass", f"import {module}") if how == "late" else (f"import {module}", "pass")
    plugin = tmp_path / "plugin.py"
    plugin.write_text(
        "import sys, os\nsys.path.insert(0, os.path.dirname(__file__))\n"
        + PLUGIN.format(imports=early, late=late)
    )
    helper = tmp_path / f"{module.replace('.', '/')}.py"
    helper.parent.mkdir(exist_ok=True)
    (helper.parent / "__init__.py").touch()
    spec = {
        "data": {"name": "csv", "path": str(data), "label": "label"},
        "partition": {"kind": "iid", "clients": 4},
        "model": "logistic",
        "privacy": {"placement": "local", "noise_multiplier": 1.0},
    }
    helper.write_text("x = 1\n")
    first, plain = ask(plugin, spec)
    again = ask(plugin, spec)
    helper.write_text("x = 2\n")
    changed, other = ask(plugin, spec)
    assert again == [first, plain]
    assert changed[0] == first[0] and changed[1] != first[1] and changed[2] != first[2]
    assert other == plain, "a run that does not use the plugin"
    assert first[1] == f"{first[0]} {first[2]}"


def test_two_plugins_with_helpers_of_one_name_are_told_apart():
    first, second, third = (imports.Sources({"helper": digest}) for digest in "abc")
    assert code._digest(first, second) != code._digest(third, second)
    assert code._digest(first, second) == code._digest(second, first)
