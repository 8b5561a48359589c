"""Client files of TensorFlow Federated: HDF5 and SQLite, with messages that the tests write byte by byte."""

import io
import sqlite3
import struct
import sys

import numpy as np
import pytest
from PIL import Image

from datasets.catalog import describe_data, load
from datasets.errors import DataError
from datasets.examples import parse_example
from tests.support.runs import clients_of_a_run

LINE = "Thou art more lovely and more temperate than a summer's day, they say.\n"


def varint(value):
    """Seven bits a byte, least first; negative numbers have 64 bits."""
    value &= 2**64 - 1
    octets = []
    while value > 127:
        octets.append(value & 127 | 128)
        value >>= 7
    return bytes([*octets, value])


def field(number, content):
    return varint(number << 3 | 2) + varint(len(content)) + content


def example(**features):
    """Write an example: bytes, whole numbers or floats by the type of the first value."""
    entries = b""
    for name, values in features.items():
        if isinstance(values, bytes):
            kind, content = 1, field(1, values)
        elif isinstance(values[0], int):
            kind, content = 3, field(1, b"".join(map(varint, values)))
        else:
            kind, content = 2, field(1, struct.pack(f"<{len(values)}f", *values))
        entries += field(1, field(1, name.encode()) + field(2, field(kind, content)))
    return field(1, entries)


def database(path, rows):
    """Write rows of split, client and message as TFF does."""
    with sqlite3.connect(path) as file:
        file.execute(
            "CREATE TABLE examples (split_name TEXT NOT NULL, client_id TEXT NOT NULL, "
            "serialized_example_proto BLOB NOT NULL)"
        )
        file.executemany("INSERT INTO examples VALUES (?, ?, ?)", rows)
    file.close()
    return path


def writers(*splits):
    """Two writers with four images of 28 x 28 in each split, whose pixels are the sample's number."""
    return [
        (split, writer, example(pixels=[place / 4] * 784, label=[place % 2]))
        for split in splits
        for writer in ("f0001_41", "f0002_10")
        for place in range(4)
    ]


def test_examples_are_parsed_as_they_are_written():
    """A tag of field 1 with bytes is 0x0a; 300 is ac 02; -1 has ten bytes."""
    assert example(a=[300]) == b"\x0a\x0d\x0a\x0b\x0a\x01a\x12\x06\x1a\x04\x0a\x02\xac\x02"
    parsed = parse_example(example(a=[300, -1, 0], b=[0.5, -2.0], c=b"two\xff"))
    assert parsed["a"].tolist() == [300, -1, 0] and parsed["a"].dtype == np.int64
    assert parsed["b"].tolist() == [0.5, -2.0] and parsed["b"].dtype == np.float32
    assert parsed["c"] == [b"two\xff"]


def test_lists_that_are_not_packed_and_empty_ones_are_parsed():
    """Older writers repeat the field: whole numbers as varints (08), floats as four bytes (0d)."""
    whole = field(3, b"\x08" + varint(300) + b"\x08" + varint(-7))
    floats = field(2, b"\x0d" + struct.pack("<f", 1.5))
    entries = [(b"a", whole), (b"b", floats), (b"c", field(1, b"")), (b"d", b"")]
    message = field(1, b"".join(field(1, field(1, name) + field(2, content)) for name, content in entries))
    parsed = parse_example(message)
    assert {name: values.tolist() for name, values in parsed.items()} == {"a": [300, -7], "b": [1.5]}


@pytest.mark.parametrize(
    ("message", "said"),
    [
        (b"\x0a\x05abc", "ends after the message"),
        (b"\x80\x80", "a number without an end"),
        (b"\x0b", "a field of wire type 3"),
        (
            field(1, field(1, field(1, b"a") + field(2, field(3, field(1, b"\x80"))))),
            "a number without an end",
        ),
        (field(1, field(1, field(1, b"a") + field(2, field(4, b"")))), "a list of kind 4"),
    ],
)
def test_bytes_that_are_no_message_are_refused(message, said):
    with pytest.raises(ValueError, match=said):
        parse_example(message)


def test_writers_of_sqlite_are_clients_with_images(tmp_path):
    data = load(f"tff:{database(tmp_path / 'emnist.sqlite', writers('train', 'test'))}")
    assert data.x.shape == (16, 1, 28, 28) and data.x[:4, 0, 0, 0].tolist() == [0, 0.25, 0.5, 0.75]
    assert data.official_test.tolist() == [False] * 8 + [True] * 8
    assert data.client == "client" and data.columns["client"][[0, 4]].tolist() == ["f0001_41", "f0002_10"]
    assert data.classes == ("0", "1") and data.y.tolist() == [0, 1, 0, 1] * 4


def test_one_of_several_splits_is_chosen(tmp_path):
    path = database(tmp_path / "emnist.sqlite", writers("all_train", "all_test", "digits_only_train"))
    with pytest.raises(DataError, match=r"several splits; choose one, as in split=NAME: .*all"):
        load(f"tff:{path}")
    both = load(f"tff:{path}?split=all")
    assert len(both) == 16 and both.official_test.sum() == 8
    one = load(f"tff:{path}?split=digits_only_train")
    assert len(one) == 8 and one.official_test is None
    with pytest.raises(DataError, match=r"has no split 'al'; did you mean 'all'\?"):
        load(f"tff:{path}?split=al")


def test_colors_come_last_in_files(tmp_path):
    """CIFAR's images are whole numbers, channels last: the first pixel is red."""
    image = [255, 0, 51] + [0] * (32 * 32 * 3 - 3)
    rows = [("train", str(n), example(image=image, coarse_label=[n], label=[n])) for n in range(2)]
    path = database(tmp_path / "cifar.sqlite", rows)
    data = load(f"tff:{path}?label=coarse_label")
    assert data.x.shape == (2, 3, 32, 32) and np.allclose(data.x[0, :, 0, 0], [1, 0, 0.2])
    found = describe_data(f"tff:{path}")
    assert {one.name: one.role for one in found.columns} == {
        "coarse_label": "left out",
        "label": "label",
        "client": "client",
        "image": "input",
    }


def test_encoded_images_are_decoded(tmp_path):
    buffer = io.BytesIO()
    Image.fromarray(np.full((2, 3), 255, np.uint8)).save(buffer, "PNG")
    rows = [("train", str(n), example(image=buffer.getvalue(), label=[n])) for n in range(2)]
    data = load(f"tff:{database(tmp_path / 'a.sqlite', rows)}")
    assert data.x.shape == (2, 1, 2, 3) and (data.x == 1).all()


def test_texts_alone_are_cut_into_pieces(tmp_path):
    """71 signs are three pieces of 21; a model sees 20 signs and predicts the next."""
    rows = [("train", role, example(snippets=LINE.encode())) for role in ("A", "B")]
    data = load(f"tff:{database(tmp_path / 'plays.sqlite', rows)}")
    assert data.x.shape == (6, 20, 1) and len(data.classes) == 97
    assert [data.classes[y] for y in data.y.tolist()] == [
        {" ": "space"}.get(LINE[place], LINE[place]) for place in (20, 41, 62)
    ] * 2
    assert data.columns["client"].tolist() == ["A"] * 3 + ["B"] * 3


def test_the_words_of_a_chosen_text_are_counted(tmp_path):
    rows = [("train", str(n), example(tokens=b"how to sort", title=b"sort", label=[n])) for n in range(2)]
    path = database(tmp_path / "posts.sqlite", rows)
    assert load(f"tff:{path}?input=tokens").x.sum(1).tolist() == [3, 3]
    with pytest.raises(DataError, match="did you mean 'tokens'"):
        load(f"tff:{path}?input=token")


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        ([("train", "a", b"\x0a\x05abc")], "an example of the client 'a' is no tf.train.Example"),
        (
            [("train", "a", example(x=[1.0, 2.0], label=[0])), ("train", "b", example(x=[1.0, 2.0]))],
            "the client 'b' has the features x; 'a' has label, x",
        ),
        (
            [
                ("train", "a", example(x=[1.0, 2.0], label=[0])),
                ("train", "b", example(x=[1.0] * 3, label=[1])),
            ],
            r"the feature 'x' of the client 'b' has the shape \(3,\), and of 'a' \(2,\)",
        ),
        (
            [("train", "a", example(x=[1.0, 2.0], label=[0])), ("train", "b", example(x=b"a", label=[1]))],
            "the feature 'x' is text at some clients and numbers at others, as at 'b'",
        ),
        (
            [("train", "a", example(x=[1.0, 2.0], y=[0]))] * 2,
            "say which column is the label; allowed: y, client",
        ),
        (
            [
                ("train", "a", example(x=b"GIF89a\xff", label=[0])),
                ("train", "b", example(x=b"GIF89a", label=[1])),
            ],
            r"the feature 'x' holds bytes that are no text in UTF-8, and no JPEG or PNG: b'GIF89a",
        ),
        (
            [("train", b"a", example(x=[1.0], label=[0]))],
            "client_id is b'a' in a row; a client's name is text",
        ),
        ([], "has no examples"),
    ],
)
def test_examples_that_do_not_fit_are_refused(tmp_path, rows, said):
    with pytest.raises(DataError, match=said):
        load(f"tff:{database(tmp_path / 'a.sqlite', rows)}")


def test_files_of_other_kinds_are_refused(tmp_path):
    (tmp_path / "a.h5").write_text("no file")
    with pytest.raises(DataError, match=r"a\.h5 is neither an HDF5 nor a SQLite file"):
        load(f"tff:{tmp_path / 'a.h5'}")
    with sqlite3.connect(tmp_path / "b.sqlite") as file:
        file.execute("CREATE TABLE examples (client_id TEXT)")
    file.close()
    with pytest.raises(DataError, match="needs the column 'split_name'; it has client_id"):
        load(f"tff:{tmp_path / 'b.sqlite'}")
    with pytest.raises(DataError, match=r"has a\.h5, b\.sqlite; give a file of"):
        load(f"tff:{tmp_path}")


def test_hdf5_without_h5py_says_how_to_install_it(tmp_path, monkeypatch):
    (tmp_path / "a.h5").write_bytes(b"\x89HDF\r\n\x1a\n")
    monkeypatch.setitem(sys.modules, "h5py", None)
    with pytest.raises(DataError, match=r"it is in the extra tff: pip install 'fedfrontier\[tff\]'"):
        load(f"tff:{tmp_path / 'a.h5'}")


def hdf5(path, clients, group="examples"):
    """Write an HDF5 file of clients with their features."""
    h5py = pytest.importorskip("h5py")
    with h5py.File(path, "w") as file:
        for client, features in clients.items():
            for name, values in features.items():
                file.create_dataset(f"{group}/{client}/{name}", data=values)
    return path


def test_clients_of_two_hdf5_files_are_splits(tmp_path):
    """The images are bytes, the labels whole numbers."""
    clients = {name: {"image": np.full((2, 4, 4, 3), 51, np.uint8), "label": [0, 1]} for name in "ab"}
    hdf5(tmp_path / "cifar_test.h5", clients)
    hdf5(tmp_path / "cifar_train.h5", clients)
    data = load(f"tff:{tmp_path}")
    assert data.x.shape == (8, 3, 4, 4) and np.allclose(data.x, 0.2)
    assert data.official_test.tolist() == [False] * 4 + [True] * 4
    assert data.columns["client"].tolist() == ["a", "a", "b", "b"] * 2


def test_texts_of_hdf5_are_cut_into_pieces(tmp_path):
    data = load(f"tff:{hdf5(tmp_path / 'plays.h5', {'A': {'snippets': [LINE.encode()] * 2}})}")
    assert data.x.shape == (6, 20, 1) and data.columns["client"].tolist() == ["A"] * 6


@pytest.mark.parametrize(
    ("clients", "group", "said"),
    [
        (
            {"a": {"x": np.zeros((2, 3)), "label": [0]}},
            "examples",
            "the client 'a' has features of different lengths",
        ),
        (
            {"a": {"x": np.zeros((2, 3))}},
            "samples",
            "has no group 'examples', which TFF's files have; it has samples",
        ),
        ({"a": {"x": [[b"a", b"b"]]}}, "examples", "'x' holds .*; numbers, or one text a sample, are read"),
        ({"a": {"x": 1.0}}, "examples", "the client 'a': 'x' is no array with a row for each sample"),
        (
            {"a": {"x": [[1.0, np.nan], [0, 0]], "label": [0, 1]}},
            "examples",
            "the feature 'x' holds a number that is not finite, in row 1",
        ),
    ],
)
def test_hdf5_files_that_do_not_fit_are_refused(tmp_path, clients, group, said):
    path = hdf5(tmp_path / "a.h5", clients, group)
    with pytest.raises(DataError, match=said):
        load(f"tff:{path}")


@pytest.mark.parametrize("kind", ["link", "external", "virtual"])
def test_hdf5_arrays_in_other_files_are_refused(tmp_path, kind):
    """The digest of the file, by which runs name their data, does not cover another."""
    h5py = pytest.importorskip("h5py")
    other, path = str(tmp_path / "other.h5"), tmp_path / "a.h5"
    with h5py.File(other, "w") as file:
        file["x"] = np.ones((2, 3))
    with h5py.File(path, "w") as file:
        group = file.create_group("examples/a")
        group["label"] = [0, 1]
        if kind == "link":
            group["x"] = h5py.ExternalLink(other, "/x")
        elif kind == "external":
            group.create_dataset("x", (2, 3), "f8", external=[(other, 0, 48)])
        else:
            layout = h5py.VirtualLayout((2, 3), "f8")
            layout[:] = h5py.VirtualSource(other, "x", (2, 3))
            group.create_virtual_dataset("x", layout)
    with pytest.raises(DataError, match="the client 'a': 'x' lies in another file, which no digest covers"):
        load(f"tff:{path}")


def test_hdf5_arrays_are_measured_before_they_are_read(tmp_path):
    """A few bytes can declare any number of zeros; a client without texts has none to join."""
    h5py = pytest.importorskip("h5py")
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file.create_dataset("examples/a/x", (10**6, 10**6), "f8", chunks=(1000, 1000))
    with pytest.raises(DataError, match="holds 1,000,000,000,000 numbers"):
        load(f"tff:{tmp_path / 'a.h5'}")
    with pytest.raises(DataError, match="no text has 21 signs"):
        load(f"tff:{hdf5(tmp_path / 'b.h5', {'a': {'snippets': np.array([], 'S5')}})}")


def test_writers_train_as_natural_clients(tmp_path):
    path = database(tmp_path / "emnist.sqlite", writers("train"))
    assert clients_of_a_run(f"tff:{path}", "logistic", tmp_path) == ["f0001_41", "f0002_10"]
