"""A table that was kept is the one that was read, and no other."""

import io
import os
import re
import shutil
import subprocess
import sys
from dataclasses import fields, replace
from pathlib import Path

import numpy as np
import pytest
import torch

import datasets.kept as kept_module
from datasets import catalog, readers
from datasets.cache import Found, cache_dir, source_digest
from datasets.dataset import Dataset
from datasets.kept import kept

PACKAGE = Path(kept_module.__file__).parent


@pytest.fixture
def found(tmp_path, monkeypatch):
    monkeypatch.setenv("FEDFRONTIER_CACHE", str(tmp_path / "cache"))
    file = tmp_path / "table.csv"
    file.write_text("a,b")
    return Found(file, "a folder")


def table(**changed):
    town = np.array(["Ulm", "Bonn", "Ulm", "Köln & Bonn"])
    data = Dataset(
        name="table",
        x=torch.tensor([[0.1, 1.0], [float("inf"), -0.0], [3e-45, 2.0], [7.0, 7.0]]),
        y=torch.tensor([0, 1, 1, 0]),
        classes=("no", "yes"),
        source="table (here)",
        digest="d" * 64,
        group=torch.tensor([0, 0, 1, 1]),
        groups=("first", "second"),
        features=("a", "b"),
        origins=("a", "town"),
        continuous=torch.tensor([True, False]),
        exact=torch.tensor([[0.1], [1e300], [2.0], [7.0]], dtype=torch.float64),
        columns={
            "town": town,
            "kind": town.astype(object),
            "n": np.arange(4),
            "share": np.array([0.5, np.nan, 1.0, 2.0]),
        },
        client="town",
        reveals={"town": ("kind", "n")},
        public=("means",),
    )
    return replace(data, **changed)


def same(one, other):
    for field in fields(Dataset):
        a, b = getattr(one, field.name), getattr(other, field.name)
        if isinstance(a, torch.Tensor):
            assert a.dtype == b.dtype and a.numpy().tobytes() == b.numpy().tobytes(), field.name
        elif field.name == "columns":
            assert list(a) == list(b)
            for name in a:
                assert a[name].dtype == b[name].dtype, name
                np.testing.assert_array_equal(a[name], b[name])
                assert [type(value) for value in a[name]] == [type(value) for value in b[name]]
        else:
            assert type(a) is type(b) and a == b, field.name


class Reader:
    """Counts how often it reads."""

    def __init__(self, data=None):
        self.data, self.times = data or table(), 0

    def __call__(self):
        self.times += 1
        return self.data


def test_a_table_is_read_once(found):
    read = Reader()
    for _ in range(3):
        same(kept("table", found, {"sensitive": ("a", "b")}, read), table())
    assert read.times == 1


def test_a_table_without_the_optional_parts_is_kept(found):
    bare = Dataset("t", torch.zeros(2, 1), torch.tensor([0.5, 2.0]), (), "t", "d")
    read = Reader(bare)
    for _ in range(2):
        same(kept("table", found, {}, read), bare)
    assert read.times == 1


def test_other_bytes_options_code_or_packages_are_read_anew(found, monkeypatch):
    read = Reader()
    kept("table", found, {}, read)
    kept("table", found, {"keep_sensitive": False}, read)
    assert read.times == 2
    found.path.write_text("a,c")
    kept("table", found, {}, read)
    assert read.times == 3
    monkeypatch.setattr(kept_module, "SOURCE", "of another version")
    monkeypatch.setattr(kept_module, "source_digest", lambda folders: "of another version")
    kept("table", found, {}, read)
    assert read.times == 4
    monkeypatch.setattr(kept_module, "version", lambda package: "0")
    kept("table", found, {}, read)
    assert read.times == 5


@pytest.mark.parametrize("remains", [b"", b"PK", b"no archive", None])
def test_a_damaged_file_is_read_anew(found, remains):
    read = Reader()
    kept("table", found, {}, read)
    (file,) = cache_dir("tables").glob("*.table")
    whole = file.read_bytes()
    middle = len(whole) // 2
    file.write_bytes(whole[:middle] + bytes(64) + whole[middle + 64 :] if remains is None else remains)
    same(kept("table", found, {}, read), table())
    assert read.times == 2
    assert file.read_bytes() == whole


@pytest.mark.parametrize(
    "data", [table(columns={"mixed": np.array(["a", None, 1.0, "b"], dtype=object)}), table()]
)
def test_what_cannot_be_kept_is_read_every_time(found, monkeypatch, data):
    if "mixed" not in data.columns:
        monkeypatch.setattr(kept_module, "MOST_BYTES", 8)
    read = Reader(data)
    for _ in range(2):
        assert kept("table", found, {}, read) is data
    assert not cache_dir("tables").exists()


def test_columns_may_have_any_names(found):
    columns = {"x": np.arange(4), "x.npy": np.arange(4) + 10, "about": np.array(["a", "b", "a", "b"])}
    data = table(columns=columns)
    for _ in range(2):
        same(kept("table", found, {}, Reader(data)), data)


@pytest.mark.parametrize("texts", [["ends with\0", "a", "b", "c"], ["long" * 3000, "a", "b", "c"]])
def test_texts_that_arrays_cannot_hold_are_read_every_time(found, monkeypatch, texts):
    monkeypatch.setattr(kept_module, "MOST_BYTES", 100_000)
    data = table(columns={"text": np.array(texts, dtype=object)})
    kept("table", found, {}, Reader(data))
    assert not cache_dir("tables").exists()


def test_what_changes_while_it_is_read_is_not_kept(found, monkeypatch):
    """Neither the file, nor the code that is imported beside newer source."""

    def replaced():
        found.path.write_text("another")
        return table()

    kept("table", found, {}, replaced)
    assert not cache_dir("tables").exists()
    monkeypatch.setattr(kept_module, "SOURCE", "imported before it was edited")
    kept("table", found, {}, Reader())
    assert not cache_dir("tables").exists()


@pytest.mark.parametrize("source", [None, "some"])
def test_without_source_or_home_tables_are_read(found, monkeypatch, source):
    monkeypatch.setattr(kept_module, "SOURCE", source)
    monkeypatch.setattr(kept_module, "source_digest", lambda folders: source)
    monkeypatch.setenv("FEDFRONTIER_CACHE", "~nobody-of-this-name/cache")
    read = Reader()
    for _ in range(2):
        kept("table", found, {}, read)
    assert read.times == 2


def test_a_cache_that_cannot_be_written_changes_nothing(found, tmp_path, monkeypatch):
    monkeypatch.setenv("FEDFRONTIER_CACHE", str(found.path))
    assert kept("table", found, {}, Reader()) is not None


def test_a_data_set_of_a_plugin_is_never_kept(found, monkeypatch):
    """Its code may be anything."""
    monkeypatch.setattr(readers, "kept", None)
    assert len(catalog.load("breast-cancer")) == 569


EDITED = """
import sys
from pathlib import Path
import datasets.catalog
file = Path(datasets.__file__).with_name(sys.argv[1])
before = file.read_bytes()
file.write_bytes(before + sys.argv[2].encode())
import datasets.readers
file.write_bytes(before)
print(datasets.SOURCE is not None, datasets.kept.SOURCE == datasets.SOURCE, datasets.kept.SOURCE is None)
print(*sys.modules)
"""


def told(folder, *arguments):
    """Return what a process says that uses a copy of the package, which it edits in between."""
    shutil.copytree(PACKAGE, folder / "datasets", ignore=shutil.ignore_patterns("__pycache__"))
    command = [sys.executable, "-c", EDITED, *arguments]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=True).stdout.splitlines()


@pytest.mark.slow
@pytest.mark.parametrize("file", ["tabular.py", "natural_tables.py"])
def test_nothing_is_kept_if_readers_are_imported_after_an_edit(tmp_path, file):
    """Not even when the edit is undone: what is imported is of another state, or may be of two."""
    assert told(tmp_path, file, "EDITED = 1")[0] == "True False True"


@pytest.mark.slow
def test_no_reader_is_imported_later_than_the_others(tmp_path):
    first, printed = told(tmp_path, "tabular.py", "")
    imported = set(printed.split())
    assert first == "True True False"
    later = {
        name
        for module in PACKAGE.glob("*.py")
        if f"datasets.{module.stem}" in imported
        for name in re.findall(r"^ +from (datasets\.\w+) import", module.read_text(), re.MULTILINE)
    }
    assert "datasets.readers" in later and later <= imported


def test_a_change_of_any_source_file_is_noticed(tmp_path):
    (tmp_path / "deep").mkdir()
    (tmp_path / "deep" / "one.py").write_text("a = 1")
    digests = [source_digest([str(tmp_path)])]
    (tmp_path / "deep" / "one.py").write_text("a = 2")
    digests.append(source_digest([str(tmp_path)]))
    (tmp_path / "two.py").write_text("")
    digests.append(source_digest([str(tmp_path)]))
    assert len(set(digests)) == 3
    (tmp_path / "notes.txt").write_text("no code")
    assert source_digest([str(tmp_path)]) == digests[-1]
    (tmp_path / ".#two.py").symlink_to(tmp_path / "nowhere")  # the lock of an editor
    assert source_digest([str(tmp_path)]) is None
    assert source_digest([str(tmp_path / "package.zip")]) is None


@pytest.mark.parametrize("at", range(0, 1000, 90))
def test_zeros_anywhere_in_the_file_are_read_anew(found, at):
    """They raised TokenError, TypeError, IndexError or MemoryError, and the file stayed."""
    read = Reader()
    kept("table", found, {}, read)
    (file,) = cache_dir("tables").glob("*")
    whole = file.read_bytes()
    place = at * len(whole) // 1000
    file.write_bytes(whole[:place] + bytes(512) + whole[place + 512 :])
    same(kept("table", found, {}, read), table())
    assert read.times == 2 and file.read_bytes() == whole


def test_other_labels_in_the_file_are_not_believed(found):
    """Whoever writes the arrays anew, and not the checksum, is noticed."""
    kept("table", found, {}, Reader())
    (file,) = cache_dir("tables").glob("*")
    with np.load(io.BytesIO(file.read_bytes()[65:])) as arrays:
        changed = {**arrays, "y": 1 - arrays["y"]}
    for head in (b"", file.read_bytes()[:65]):
        forged = io.BytesIO()
        np.savez(forged, **changed)
        file.write_bytes(head + forged.getvalue())
        same(kept("table", found, {}, Reader()), table())


@pytest.mark.parametrize("mode", [0o770, 0o707, 0o777])
@pytest.mark.parametrize("which", ["tables", ""])
def test_a_cache_that_others_can_write_is_not_used(found, mode, which, caplog):
    read = Reader()
    kept("table", found, {}, read)
    (cache_dir("tables").parent / which).chmod(mode)
    for _ in range(2):
        kept("table", found, {}, read)
    assert read.times == 3
    assert len([one for one in caplog.records if "others than you can write it" in one.getMessage()]) == 1


def test_a_cache_of_somebody_else_is_not_used(found, monkeypatch):
    read = Reader()
    kept("table", found, {}, read)
    monkeypatch.setattr("os.getuid", lambda: 4711)
    monkeypatch.setattr("datasets.cache.ROOT", 4712)
    kept("table", found, {}, read)
    assert read.times == 2


def test_folders_of_the_cache_are_the_users_own(found):
    before = os.umask(0)
    try:
        kept("table", found, {}, Reader())
    finally:
        os.umask(before)
    folder = cache_dir("tables")
    assert [each.stat().st_mode & 0o777 for each in (folder, folder.parent)] == [0o700, 0o700]
