"""Devices and pipes are no data, and what is too large is refused before it is read."""

import os

import numpy as np
import pytest

from datasets import limits
from datasets.catalog import load
from datasets.errors import DataError

pa = pytest.importorskip("pyarrow")
parquet = pytest.importorskip("pyarrow.parquet")


@pytest.mark.parametrize("name", ["csv", "parquet", "arrow", "adult", "heart"])
def test_devices_and_pipes_are_refused(tmp_path, name):
    """A pipe waits for a writer, and /dev/zero has no end."""
    os.mkfifo(tmp_path / "pipe")
    options = {} if name in ("adult", "heart") else {"label": "y"}
    for path in (tmp_path / "pipe", "/dev/zero"):
        with pytest.raises(DataError, match="is a device, a pipe or a socket"):
            load(name, path=path, **options)


def test_a_pipe_among_shards_is_refused(tmp_path):
    parquet.write_table(pa.table({"x": [1, 2], "y": [0, 1]}), tmp_path / "a.parquet")
    os.mkfifo(tmp_path / "b.parquet")
    with pytest.raises(DataError, match=r"b\.parquet is a device"):
        load("parquet", path=tmp_path, label="y")


def test_a_file_or_a_line_that_is_too_long_is_refused(tmp_path, monkeypatch):
    path = tmp_path / "long.csv"
    path.write_bytes(b"x,y\n1,a\n" + b"2" * (limits.MOST_LINE + 2**20) + b",b\n")
    with pytest.raises(DataError, match="has a line of more than 32 MiB"):
        load("csv", path=path, label="y")
    monkeypatch.setattr(limits, "MOST_BYTES", 2**20)
    with pytest.raises(DataError, match=r"has 0\.0 GB \(at most"):
        load("csv", path=path, label="y")


def test_more_columns_than_the_limit_are_refused_before_reading(tmp_path, monkeypatch):
    path = tmp_path / "wide.csv"
    path.write_text(",".join(f"c{n}" for n in range(200_001)) + "\n")
    monkeypatch.setattr("datasets.csv._cut", None)
    with pytest.raises(DataError, match=r"has 200,001 columns \(at most 200,000\)"):
        load("csv", path=path, label="y")


@pytest.mark.parametrize("suffix", ["parquet", "arrow"])
def test_rows_that_were_packed_are_counted_before_they_are_read(tmp_path, monkeypatch, suffix):
    """120 million rows fit into a file of less than 1 MB."""
    table = pa.table({"x": np.zeros(10_000, np.int8), "y": np.zeros(10_000, np.int8)})
    path = tmp_path / f"packed.{suffix}"
    if suffix == "parquet":
        parquet.write_table(table, path)
        monkeypatch.setattr(parquet.ParquetFile, "read", None)
    else:
        with pa.ipc.new_file(path, table.schema) as file:
            for _ in range(10):
                file.write_table(table)
    monkeypatch.setattr(limits, "MOST_ROWS", 9_999)
    with pytest.raises(DataError, match=r"has 10,000 rows \(at most 9,999\)"):
        load(suffix, path=path, label="y")


def test_features_of_text_are_counted_before_they_are_made(tmp_path, monkeypatch):
    path = tmp_path / "text.csv"
    path.write_text("city,y\n" + "".join(f"c{n},{n % 2}\n" for n in range(100)))
    monkeypatch.setattr(limits, "MOST_CELLS", 5_000)
    with pytest.raises(DataError, match=r"100 rows of 100 features, 10,000 cells \(at most 5,000\)"):
        load("csv", path=path, label="y")
