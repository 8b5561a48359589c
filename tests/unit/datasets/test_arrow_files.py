"""Parquet, Arrow and Feather files: the same data set as a CSV file of the table; types; folders; refusals."""

import dataclasses
import datetime
import decimal
import hashlib
import io
import json
import re
import sys

import numpy as np
import pytest
import torch
from PIL import Image

from datasets.catalog import describe_data, load
from datasets.errors import DataError
from datasets.federation import federate
from datasets.partition import Iid, Natural
from datasets.splitting import Splitting
from datasets.texts import WORDS
from harness.config.fields import DataSpec
from harness.simulation.federations import load_once
from tests.support.runs import clients_of_a_run

pa = pytest.importorskip("pyarrow")
feather = pytest.importorskip("pyarrow.feather")
parquet = pytest.importorskip("pyarrow.parquet")


def columns(rows=60):
    """Return a table of all that both kinds of file hold, with missing cells."""
    draw = np.random.default_rng(0)
    return {
        "age": pa.array([None if n == 4 else n * 7 % 60 for n in range(rows)], pa.int16()),
        "seen": pa.array(1_700_000_000 + draw.normal(size=rows)),
        "income": pa.array(draw.normal(size=rows).round(3).tolist(), mask=np.arange(rows) == 7),
        "city": pa.array(["Ulm", "Köln", None, "Bonn"] * (rows // 4)).dictionary_encode(),
        "job": pa.array(["a", " b", "c"] * (rows // 3)),
        "member": pa.array([n % 5 < 2 for n in range(rows)]),
        "site": pa.array([n % 3 for n in range(rows)], pa.uint8()),
        "person": pa.array([1000 + n // 2 for n in range(rows)]),
        "y": pa.array(["high", "low", None, "low", "high"] * (rows // 5), pa.large_string()),
    }


def written(folder, table, suffix):
    """Write a table as CSV, Parquet, Feather or a stream, and return the path."""
    path = folder / f"people.{suffix}"
    if suffix == "csv":
        rows = zip(*(column.to_pylist() for column in table.columns), strict=True)
        lines = [table.column_names, *(["" if cell is None else str(cell) for cell in row] for row in rows)]
        path.write_text("".join(",".join(line) + "\n" for line in lines))
    elif suffix == "parquet":
        parquet.write_table(table, path, row_group_size=17)
    elif suffix == "feather":
        feather.write_feather(table, path, chunksize=17)
    else:
        with pa.OSFile(str(path), "wb") as file, pa.ipc.new_stream(file, table.schema) as stream:
            stream.write_table(table, max_chunksize=17)
    return path


def same(one, other):
    """Whether two data sets agree in all but name, source and digest."""
    for field in dataclasses.fields(one):
        a, b = getattr(one, field.name), getattr(other, field.name)
        if field.name in ("name", "source", "digest"):
            continue
        if field.name == "columns":
            assert list(a) == list(b) and all(np.array_equal(a[name], b[name]) for name in a)
        elif isinstance(a, torch.Tensor):
            assert a.dtype == b.dtype and torch.equal(a, b), field.name
        else:
            assert a == b, field.name
    return True


@pytest.mark.parametrize("suffix", ["parquet", "feather", "arrow"])
@pytest.mark.parametrize(
    "options",
    [
        {"missing": "drop", "sensitive": ("member", "site"), "keep_sensitive": False, "client": "site"},
        {"missing": {"*": "fill", "income": "drop"}, "user": "person", "rare": 18, "sensitive": "city"},
        {"missing": "fill", "drop": "seen", "text": ("age", "site"), "client": "site"},
        {"missing": {"y": "drop", "*": "fill"}, "label": "income", "task": "regression", "drop": "y"},
    ],
)
def test_a_table_is_the_same_data_set_in_any_format(tmp_path, suffix, options):
    table = pa.table(columns())
    options = {"label": "y"} | options
    if options["label"] == "income":
        options["missing"] = "drop"
    plain = load("csv", path=written(tmp_path, table, "csv"), **options)
    path = written(tmp_path, table, suffix)
    found = load("parquet" if suffix == "parquet" else "arrow", path=path, **options)
    assert len(found) < 60 and same(plain, found)
    assert found.digest == hashlib.sha256(path.read_bytes()).hexdigest()
    deal = Natural() if "client" in options else Iid()
    clients = None if "client" in options else 3
    pools = [federate(one, deal, clients, np.random.default_rng(1)).pool for one in (plain, found)]
    assert all(torch.equal(a, b) for a, b in zip(*pools, strict=True))


def test_a_suffix_tells_the_format(tmp_path):
    for suffix, name in (("csv", "csv"), ("parquet", "parquet"), ("feather", "arrow"), ("arrow", "arrow")):
        path = written(tmp_path, pa.table(columns()), suffix)
        data = load(f"{path}?label=y&missing=drop")
        assert data.name == f"{name}:people.{suffix}" and data.source.startswith(f"{name} (people.{suffix}, ")


def test_types_in_the_file_decide(tmp_path):
    """Text of digits is a category, 2020-01-01 is day 18,262 and 6:00 a quarter of a day."""
    table = pa.table({
        "code": pa.array(["10", "9", "10", "9"]),
        "level": pa.array([3, 1, 3, 1], pa.int8()).dictionary_encode(),
        "price": pa.array([decimal.Decimal("1.25"), decimal.Decimal("2.50")] * 2),
        "half": pa.array(np.array([0.5, 2, np.nan, 1], np.float16)),
        "day": pa.array([datetime.date(2020, 1, 1)] * 4),
        "time": pa.array([datetime.datetime(2020, 1, 1, 6)] * 4, pa.timestamp("ns", "UTC")),
        "flag": pa.array([True, False, True, None]),
        "y": pa.array([True, False, False, True]),
    })  # fmt: skip
    path = written(tmp_path, table, "arrow")
    data = load("arrow", path=path, label="y", missing="fill", sensitive="flag")
    assert data.features == (
        *("code=10", "code=9", "level=1", "level=3", "price", "half", "day", "time"),
        *("flag=(missing)", "flag=False", "flag=True"),
    )
    price, half, day, time = data.x[:, 4:8].T.tolist()
    assert price == [1.25, 2.5, 1.25, 2.5] and half == pytest.approx([0.5, 2, 3.5 / 3, 1])
    assert day == [18262.0] * 4 and time == [18262.25] * 4
    assert data.classes == ("False", "True") and data.groups == ("(missing)", "False", "True")
    spelled = load("arrow", path=path, label="y", missing="fill", text=["day", "price"])
    assert {"day=2020-01-01", "price=1.25"} <= set(spelled.features)


def test_parquet_keeps_dictionaries_of_text_only(tmp_path):
    """Numbers in a dictionary come back as plain numbers, so text= is for them."""
    table = pa.table({"level": pa.array([3, 1, 3]).dictionary_encode(), "y": ["a", "b", "a"]})
    path = written(tmp_path, table, "parquet")
    assert load("parquet", path=path, label="y").features == ("level",)
    assert load("parquet", path=path, label="y", text="level").features == ("level=1", "level=3")


def test_integers_of_19_digits_are_exact_as_text(tmp_path):
    codes = pa.array([2**60, 2**60 + 1] * 2)
    path = written(tmp_path, pa.table({"x": [1, 2, 3, 5], "code": codes}), "parquet")
    with pytest.raises(DataError, match="text=code"):
        load("parquet", path=path, label="code")
    assert load("parquet", path=path, label="code", text="code").classes == (str(2**60), str(2**60 + 1))


def hugging(folder, name, rows, names=("neg", "pos")):
    """Write a file as Hugging Face's `datasets` does: a stream with the names of labels in its schema."""
    features = {"x": {"dtype": "float64", "_type": "Value"}, "label": {"names": names, "_type": "ClassLabel"}}
    schema = pa.schema([("x", pa.float64()), ("label", pa.int64())])
    schema = schema.with_metadata({"huggingface": json.dumps({"info": {"features": features}})})
    table = pa.table({"x": [float(x) for x, _ in rows], "label": [y for _, y in rows]}, schema=schema)
    folder.mkdir(exist_ok=True, parents=True)
    with pa.OSFile(str(folder / name), "wb") as file, pa.ipc.new_stream(file, schema) as stream:
        stream.write_table(table)
    return table


def test_a_saved_hugging_face_dataset_is_read_by_its_folder(tmp_path):
    """state.json names the files in their order; the cache of a map is none of them. -1 is no label."""
    folder = tmp_path / "reviews"
    hugging(folder, "data-00001-of-00002.arrow", [(1, 0), (2, 1)])
    hugging(folder, "data-00000-of-00002.arrow", [(3, 1), (4, -1)])
    hugging(folder, "cache-1a2b.arrow", [(9, 0)])
    files = ["data-00001-of-00002.arrow", "data-00000-of-00002.arrow"]
    (folder / "state.json").write_text(json.dumps({"_data_files": [{"filename": name} for name in files]}))
    data = load(f"arrow:{folder}?label=label&missing=drop")
    assert data.x[:, 0].tolist() == [1, 2, 3] and data.classes == ("neg", "pos")
    assert data.y.tolist() == [0, 1, 1] and data.official_test is None
    (folder / "state.json").unlink()
    assert load(f"arrow:{folder}?label=label&missing=drop").x[:, 0].tolist() == [3, 1, 2], "by name"


def test_splits_of_a_folder_give_the_official_test_samples(tmp_path):
    folder = tmp_path / "both"
    hugging(folder / "train", "data-00000-of-00001.arrow", [(1, 0), (2, 1), (3, -1), (4, 1)])
    hugging(folder / "test", "data-00000-of-00001.arrow", [(5, 0), (6, 1)])
    for part in ("train", "test"):
        state = {"_data_files": [{"filename": "data-00000-of-00001.arrow"}]}
        (folder / part / "state.json").write_text(json.dumps(state))
    with pytest.raises(DataError, match=r"give one of: .*both/test, .*both/train"):
        load(f"arrow:{folder}?label=label")
    (folder / "dataset_dict.json").write_text(json.dumps({"splits": ["train", "test"]}))
    data = load(f"arrow:{folder}?label=label&missing=drop")
    assert data.x[:, 0].tolist() == [5, 6, 1, 2, 4]
    assert data.official_test.tolist() == [True, True, False, False, False]
    made = federate(data, Iid(), 1, np.random.default_rng(0), Splitting(test="official"))
    assert sorted(made.splits["test"][0].tolist()) == [0, 1]


def test_parquet_shards_are_one_table(tmp_path):
    rows = hugging(tmp_path / "spare", "all.arrow", [(n, n % 2) for n in range(6)])
    folder = tmp_path / "shards"
    folder.mkdir()
    parquet.write_table(rows.slice(4), folder / "test-00000-of-00001.parquet")
    parquet.write_table(rows.slice(0, 2), folder / "train-00000-of-00002.parquet")
    parquet.write_table(rows.slice(2, 2), folder / "train-00001-of-00002.parquet")
    data = load(f"parquet:{folder}?label=label")
    assert (
        data.x[:, 0].tolist() == [4, 5, 0, 1, 2, 3]
        and data.official_test.tolist() == [True] * 2 + [False] * 4
    )
    before = data.digest
    (folder / "test-00000-of-00001.parquet").rename(folder / "extra.parquet")
    moved = load(f"parquet:{folder}?label=label")
    assert moved.official_test is None and moved.digest != before


def test_a_file_alone_in_a_folder_is_the_same_data(tmp_path):
    folder = tmp_path / "one"
    folder.mkdir()
    path = written(folder, pa.table(columns()), "parquet")
    digests = {load(f"parquet:{place}?label=y&missing=drop").digest for place in (folder, path)}
    assert digests == {hashlib.sha256(path.read_bytes()).hexdigest()}


@pytest.mark.parametrize(
    ("column", "reason"),
    [
        (
            pa.array([["a"], ["b"], ["c"]]),
            r"holds list<.*>, neither cells, images nor .*; leave it out with drop=x",
        ),
        (
            pa.array([[1], [2, 3], [3]]),
            r"holds lists of different lengths \(1, 2\); leave it out with drop=x",
        ),
        (pa.array([[1.0], [np.inf], [3]]), "holds a number that is not finite, in row 2"),
        (pa.array([[1], None, [3]]), "has nothing in 1 rows; take them out of the file, or leave it out"),
        (pa.array([b"a", b"b", b"c"]), "holds binary: row 1 is no image .*leave it out with drop=x"),
        (pa.array([{"a": 1}] * 3), "holds struct"),
        (pa.array([datetime.timedelta(1)] * 3), "holds duration"),
        (pa.nulls(3), "'x' is empty; leave it out with drop"),
        (pa.array([1.0, np.inf, 2.0]), "infinite"),
        (pa.array([1.0, 1e39, 2.0]), r"above 3\.4e\+38"),
    ],
)
def test_columns_that_are_no_features_name_the_mend(tmp_path, column, reason):
    table = pa.table({"x": column, "z": [1, 2, 4], "y": ["a", "b", "a"]})
    path = written(tmp_path, table, "parquet")
    with pytest.raises(DataError, match=reason):
        load("parquet", path=path, label="y")
    assert load("parquet", path=path, label="y", drop="x").features == ("z",)


def test_damaged_and_foreign_files_are_refused(tmp_path):
    path = written(tmp_path, pa.table(columns()), "parquet")
    whole = path.read_bytes()
    for content in (b"", b"PAR1", whole[:200], whole[:-9], whole[:50] + b"\0" * 400 + whole[450:]):
        path.write_bytes(content)
        for kind in ("parquet", "arrow"):
            with pytest.raises(DataError, match=r"people\.parquet"):
                load(kind, path=path, label="y", missing="drop")
    feather_file = written(tmp_path, pa.table(columns()), "feather")
    with pytest.raises(DataError, match="cannot be read as parquet"):
        load("parquet", path=feather_file, label="y")
    with pytest.raises(DataError, match=r"has no \*\.arrow or \*\.feather"):
        (tmp_path / "empty").mkdir()
        load("arrow", path=tmp_path / "empty", label="y")


def test_shards_that_do_not_go_together_are_refused(tmp_path):
    parquet.write_table(pa.table({"x": [1, 2], "y": [0, 1]}), tmp_path / "a.parquet")
    parquet.write_table(pa.table({"z": ["u", "v"], "y": [0, 1]}), tmp_path / "b.parquet")
    with pytest.raises(DataError, match=r"b\.parquet lacks the column 'x', which a\.parquet has"):
        load("parquet", path=tmp_path, label="y")


def test_a_changed_file_of_a_folder_is_read_again(tmp_path):
    """Nothing of the folder itself changes when a file in it is written over."""
    for name in ("a", "b"):
        parquet.write_table(pa.table({"x": [1, 2], "y": [0, 1]}), tmp_path / f"{name}.parquet")
    spec = DataSpec.model_validate(f"parquet:{tmp_path}?label=y")
    first = load_once(spec)
    assert load_once(spec) is first
    with (tmp_path / "b.parquet").open("wb") as file:
        parquet.write_table(pa.table({"x": [3, 4], "y": [0, 1]}), file)
    assert load_once(spec).x[:, 0].tolist() == [1, 2, 3, 4] and load_once(spec).digest != first.digest


@pytest.mark.parametrize("name", ["state.json", "dataset_dict.json"])
def test_a_folder_with_a_broken_index_is_refused(tmp_path, name):
    hugging(tmp_path, "a.arrow", [(1, 0), (2, 1)])
    for content in ("{", "[]", "{}", '{"_data_files": [3], "splits": 3}'):
        (tmp_path / name).write_text(content)
        with pytest.raises(DataError, match="cannot be read"):
            load("arrow", path=tmp_path, label="label")


def test_an_index_cannot_name_files_elsewhere(tmp_path):
    hugging(tmp_path / "in", "a.arrow", [(1, 0), (2, 1)])
    hugging(tmp_path, "b.arrow", [(3, 0), (4, 1)])
    (tmp_path / "in" / "state.json").write_text(json.dumps({"_data_files": [{"filename": "../b.arrow"}]}))
    with pytest.raises(DataError, match="No such file"):
        load("arrow", path=tmp_path / "in", label="label")


@pytest.mark.parametrize("name", ["..", ".", "missing"])
def test_a_split_is_a_folder_of_its_own(tmp_path, name):
    hugging(tmp_path / "in", "a.arrow", [(1, 0), (2, 1)])
    (tmp_path / "in" / "dataset_dict.json").write_text(json.dumps({"splits": [name]}))
    with pytest.raises(DataError, match=rf"names the split '{re.escape(name)}', which is no folder there"):
        load("arrow", path=tmp_path / "in", label="label")


@pytest.mark.parametrize("key", ["_indices_files", "_indices_data_files"])
def test_a_choice_of_rows_beside_the_data_is_not_ignored(tmp_path, key):
    hugging(tmp_path, "a.arrow", [(1, 0), (2, 1)])
    state = {"_data_files": [{"filename": "a.arrow"}], key: [{"filename": "indices.arrow"}]}
    (tmp_path / "state.json").write_text(json.dumps(state))
    with pytest.raises(DataError, match="keeps a choice of rows apart from the data"):
        load("arrow", path=tmp_path, label="label")


def test_a_stream_without_its_end_is_refused(tmp_path):
    """Cut off between two batches, it reads like a shorter table."""
    schema = pa.schema([("x", pa.float64()), ("label", pa.int64())])
    path, batch = tmp_path / "a.arrow", pa.record_batch([[1.0, 2.0], [0, 1]], schema)
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, schema) as stream:
        stream.write_batch(batch)
        stream.write_batch(batch)
    whole = sink.getvalue().to_pybytes()
    path.write_bytes(whole)
    assert len(load("arrow", path=path, label="label")) == 4
    path.write_bytes(whole[:-8])
    with pytest.raises(DataError, match=r"a\.arrow has no end: it was cut off"):
        load("arrow", path=path, label="label")


def test_a_class_without_a_name_is_refused(tmp_path):
    hugging(tmp_path, "a.arrow", [(1, 0), (2, 1), (3, 2)])
    with pytest.raises(DataError, match="'label' holds the number 2, and the file names 2 classes"):
        load("arrow", path=tmp_path, label="label", missing="drop")


def test_without_pyarrow_the_message_names_the_extra(tmp_path, monkeypatch):
    path = written(tmp_path, pa.table(columns()), "parquet")
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    for kind in ("parquet", "arrow"):
        with pytest.raises(DataError, match=r"need pyarrow, .*pip install 'fedfrontier\[export\]'"):
            load(kind, path=path, label="y")


@pytest.mark.parametrize(
    "name", ["train-{:05}-of-00003.parquet", "{}-of-3.parquet", "t-{:05}-of-00003-ab{}.parquet"]
)
def test_missing_shards_are_named(tmp_path, name):
    for number in (0, 2):
        table = pa.table({"x": [1, 2], "y": [0, 1]})
        parquet.write_table(table, tmp_path / name.format(number, number))
    with pytest.raises(DataError, match=r"lacks .*0*1-of-0*3 .*its names say 3 files"):
        load("parquet", path=tmp_path, label="y")
    parquet.write_table(table, tmp_path / name.format(1, 1))
    assert len(load("parquet", path=tmp_path, label="y")) == 6


def test_shards_of_other_types_name_file_and_column(tmp_path):
    parquet.write_table(pa.table({"x": [1, 2], "y": [0, 1]}), tmp_path / "a.parquet")
    for other, said in (
        ({"x": ["1", "2"], "y": [0, 1]}, "'x' holds string in b.parquet and int64 in a.parquet"),
        ({"x": [1, 2], "y": [0, 1], "z": [0, 1]}, "b.parquet has a column 'z', which a.parquet lacks"),
        ({"y": [0, 1], "x": [1, 2]}, "another order than a.parquet"),
    ):
        parquet.write_table(pa.table(other), tmp_path / "b.parquet")
        with pytest.raises(DataError, match=said):
            load("parquet", path=tmp_path, label="y")


def encoded(color):
    """Return a PNG of 3 x 2 pixels."""
    buffer = io.BytesIO()
    Image.fromarray(np.full((2, 3), color, np.uint8)).save(buffer, "PNG")
    return buffer.getvalue()


def streamed(path, table):
    with pa.OSFile(str(path), "wb") as file, pa.ipc.new_stream(file, table.schema) as stream:
        stream.write_table(table, max_chunksize=3)


def pictures(folder, **columns):
    """Write eight images as `datasets` does, of two writers, with class labels in the schema."""
    images = [{"bytes": encoded(51 * (row % 2)), "path": None} for row in range(8)]
    writer = [f"w{row // 4}" for row in range(8)]
    table = pa.table({"image": images, "character": [0, 1] * 4, "writer_id": writer, **columns})
    features = {"character": {"names": ["a", "b"], "_type": "ClassLabel"}, "image": {"_type": "Image"}}
    table = table.replace_schema_metadata({"huggingface": json.dumps({"info": {"features": features}})})
    folder.mkdir(exist_ok=True)
    streamed(folder / "data-00000-of-00001.arrow", table)
    (folder / "state.json").write_text(
        json.dumps({"_data_files": [{"filename": "data-00000-of-00001.arrow"}]})
    )
    return f"arrow:{folder}?label=character&client=writer_id"


def test_saved_images_are_the_input(tmp_path, cache):
    data = load(pictures(tmp_path / "saved", hsf=pa.array([1] * 8)))
    assert data.x.shape == (8, 1, 2, 3) and np.allclose(data.x[:2, 0, 0, 0], [0, 0.2])
    assert data.classes == ("a", "b") and data.columns["writer_id"].tolist() == ["w0"] * 4 + ["w1"] * 4
    found = describe_data(pictures(tmp_path / "saved", hsf=pa.array([1] * 8)))
    assert found.warnings[0] == "beside the input 'image', 'hsf' are no features"
    assert {one.name: one.role for one in found.columns} == {
        "character": "label",
        "writer_id": "client",
        "hsf": "left out",
        "image": "input",
    }


def test_a_column_of_clients_that_is_not_there_is_refused(tmp_path, cache):
    address = pictures(tmp_path / "saved")
    with pytest.raises(DataError, match=r"has no column 'writer'; did you mean 'writer_id'\?"):
        load(address.replace("writer_id", "writer"))


def test_rows_without_an_image_are_counted(tmp_path, cache):
    rows = pa.array([{"bytes": encoded(0)}, None, {"bytes": encoded(9)}])
    streamed(tmp_path / "a.arrow", pa.table({"image": rows, "label": ["a", "b", "a"]}))
    with pytest.raises(DataError, match="the column 'image' has nothing in 1 rows"):
        load(f"arrow:{tmp_path / 'a.arrow'}?label=label")


def test_images_of_other_sizes_are_refused_by_row(tmp_path, cache):
    address = pictures(tmp_path / "saved")
    table = pa.ipc.open_stream(tmp_path / "saved" / "data-00000-of-00001.arrow").read_all()
    buffer = io.BytesIO()
    Image.fromarray(np.zeros((4, 4), np.uint8)).save(buffer, "PNG")
    rows = table.column("image").to_pylist()
    rows[5]["bytes"] = buffer.getvalue()
    table = table.set_column(0, "image", pa.array(rows))
    streamed(tmp_path / "saved" / "data-00000-of-00001.arrow", table)
    with pytest.raises(DataError, match="row 6 has 4 x 4 pixels, and row 1 has 3 x 2"):
        load(address)


def test_lists_of_numbers_are_vectors_or_images(tmp_path):
    """Nested lists are images of one channel; of two columns of lists one is chosen."""
    vectors = pa.array([[1.5, 2], [3, 4], [5, 6]])
    nested = pa.array([[[0, 255], [0, 0], [0, 0]]] * 3, pa.list_(pa.list_(pa.uint8())))
    path = written(tmp_path, pa.table({"v": vectors, "i": nested, "y": ["a", "b", "a"]}), "parquet")
    with pytest.raises(DataError, match="several columns of arrays: v, i; choose one, as in input=v"):
        load(f"{path}?label=y")
    data = load(f"{path}?label=y&input=v")
    assert data.x.tolist() == [[1.5, 2], [3, 4], [5, 6]] and data.features == ("v 0", "v 1")
    images = load(f"{path}?label=y&drop=v")
    assert images.x.shape == (3, 1, 3, 2) and images.x[0, 0, 0].tolist() == [0, 1]


def test_the_words_of_a_chosen_column_are_counted(tmp_path):
    texts = [f"row {row} of many" for row in range(300)]  # more values than a category may have
    path = written(tmp_path, pa.table({"t": texts, "z": [1.0] * 300, "y": ["a", "b"] * 150}), "parquet")
    data = load(f"{path}?label=y&input=t")
    assert data.x.shape == (300, WORDS) and data.x.sum(1).tolist() == [4] * 300
    assert data.columns["t"][7] == texts[7] and "z" not in data.columns


def test_writers_of_saved_images_train_as_clients(tmp_path, cache):
    assert clients_of_a_run(pictures(tmp_path / "saved"), "mlp", tmp_path) == ["w0", "w1"]
