"""Image files in the formats of their sources: IDX, the pickles of CIFAR-10, the tree of Tiny-ImageNet."""

import gzip
import hashlib
import io
import os
import pickle
import struct
import tarfile
import zipfile

import numpy as np
import pooch
import pytest
from hypothesis import given, settings
from hypothesis.extra import numpy as hnp
from PIL import Image

from datasets import cifar, images, sources
from datasets.catalog import fetch, load
from datasets.errors import DataError

# Fashion-MNIST ------------------------------------------------------------------------------------


def idx(array):
    """Write an IDX file of unsigned bytes, gzipped without a time stamp."""
    header = b"\0\0\x08" + bytes([array.ndim]) + struct.pack(f">{array.ndim}I", *array.shape)
    return gzip.compress(header + array.tobytes(), mtime=0)


@pytest.fixture
def fashion(tmp_path):
    """Three training and two test images of 2 x 2 pixels; the first is black with one white pixel."""
    folder = tmp_path / "fashion"
    folder.mkdir()
    pixels = np.arange(20, dtype=np.uint8).reshape(5, 2, 2)
    pixels[0] = [[0, 255], [0, 0]]
    labels = np.array([0, 9, 1, 2, 9], np.uint8)
    arrays = (pixels[:3], labels[:3], pixels[3:], labels[3:])
    for name, array in zip(sources.FASHION_FILES, arrays, strict=True):
        (folder / name).write_bytes(idx(array))
    return folder


@settings(max_examples=20, deadline=None)
@given(hnp.arrays(np.uint8, hnp.array_shapes(max_dims=3, max_side=5)))
def test_reading_idx_inverts_writing_it(tmp_path_factory, array):
    path = tmp_path_factory.mktemp("idx") / "a.gz"
    path.write_bytes(idx(array))
    np.testing.assert_array_equal(images.read_idx(path), array)


def test_fashion_mnist_joins_its_splits_and_normalizes(cache, fashion):
    """Standard: black is (0 - 0.2860) / 0.3529 = -0.8104, white (1 - 0.2860) / 0.3529 = 2.0232."""
    data = load("fashion-mnist", path=fashion)
    assert data.x.shape == (5, 1, 2, 2)
    assert data.official_test.tolist() == [False, False, False, True, True]
    assert data.y.tolist() == [0, 9, 1, 2, 9]
    np.testing.assert_allclose(data.x[0, 0], [[-0.8104, 2.0232], [-0.8104, -0.8104]], atol=1e-4)
    half = load("fashion-mnist", path=fashion, normalize="half")
    assert half.x[0, 0].tolist() == [[-1.0, 1.0], [-1.0, -1.0]]
    plain = load("fashion-mnist", path=fashion, normalize="none")
    assert plain.x[0, 0].tolist() == [[0.0, 1.0], [0.0, 0.0]]
    assert data.source == "fashion-mnist (unofficial copy)"


def test_fashion_mnist_prefers_the_cache_then_the_system_folder(offline, fashion, monkeypatch):
    known = {
        name: hashlib.sha256((fashion / name).read_bytes()).hexdigest() for name in sources.FASHION_FILES
    }
    monkeypatch.setattr(sources, "FASHION_FILES", known)
    monkeypatch.setattr(sources, "FASHION_SYSTEM", fashion)
    assert fetch("fashion-mnist").startswith("the system folder")
    (offline / "fashion-mnist").mkdir(parents=True)
    for name in known:
        (offline / "fashion-mnist" / name).write_bytes((fashion / name).read_bytes())
    assert fetch("fashion-mnist").startswith("the cache")
    assert load("fashion-mnist").source == "fashion-mnist (official)"


def test_fashion_mnist_is_downloaded_file_by_file(offline, fashion, monkeypatch):
    known = {
        name: hashlib.sha256((fashion / name).read_bytes()).hexdigest() for name in sources.FASHION_FILES
    }
    monkeypatch.setattr(sources, "FASHION_FILES", known)
    cut = "t10k-images-idx3-ubyte.gz"

    def retrieve(url, known_hash, fname, path):
        content = (fashion / fname).read_bytes()
        (path / fname).write_bytes(content[:10] if fname == cut else content)

    monkeypatch.setattr(pooch, "retrieve", retrieve)
    with pytest.raises(DataError, match=r"the official download: .*SHA-256"):
        fetch("fashion-mnist")
    kept = {path.name for path in offline.rglob("*") if path.is_file()}
    assert kept == {"train-images-idx3-ubyte.gz", "train-labels-idx1-ubyte.gz"}, "whole files only"
    cut = ""
    assert fetch("fashion-mnist") == "the official download"


@pytest.mark.parametrize("name", ["fashion-mnist", "cifar10", "tiny-imagenet"])
def test_offline_and_absent_says_what_to_do(offline, name):
    with pytest.raises(DataError, match="name resolution failed") as error:
        load(name)
    assert f"$FEDFRONTIER_DATA/{name}" in str(error.value) and "data fetch" in str(error.value)
    assert not [path for path in offline.rglob("*") if path.is_file()]


@pytest.mark.parametrize(
    ("file", "change", "reason"),
    [
        ("train-images-idx3-ubyte.gz", lambda raw: raw[:-12], "cannot be read"),
        ("train-images-idx3-ubyte.gz", lambda raw: gzip.compress(gzip.decompress(raw)[:-1]), "truncated"),
        ("train-labels-idx1-ubyte.gz", lambda raw: gzip.compress(b"labels"), "not an IDX file"),
        ("train-labels-idx1-ubyte.gz", lambda raw: idx(np.zeros(2, np.uint8)), "3 train images but 2 labels"),
        ("t10k-labels-idx1-ubyte.gz", lambda raw: idx(np.array([3, 10], np.uint8)), "labels reach 10"),
        (
            "t10k-labels-idx1-ubyte.gz",
            lambda raw: idx(np.zeros((2, 1), np.uint8)),
            "must hold images, labels",
        ),
    ],
)
def test_damaged_fashion_files_are_refused(cache, fashion, file, change, reason):
    path = fashion / file
    path.write_bytes(change(path.read_bytes()))
    with pytest.raises(DataError, match=reason):
        load("fashion-mnist", path=fashion)


# CIFAR-10 -----------------------------------------------------------------------------------------


def python2_batch(pixels, labels):
    """Write a batch as Python 2 and the NumPy of 2009 did: protocol 2, byte strings, ``numpy.core``."""
    u1 = b"cnumpy\ndtype\nU\x02u1K\x00K\x01\x87R(K\x03U\x01|NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb"
    shape = b"".join(b"J" + struct.pack("<i", length) for length in pixels.shape) + b"\x86"
    raw = b"T" + struct.pack("<i", pixels.nbytes) + pixels.tobytes()
    empty = b"cnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\nK\x00\x85U\x01b\x87R"
    array = empty + b"(K\x01" + shape + u1 + b"\x89" + raw + b"tb"
    numbers = b"](" + b"".join(b"K" + bytes([label]) for label in labels) + b"e"
    return b"\x80\x02}(U\x04data" + array + b"U\x06labels" + numbers + b"u."


def modern_batch(pixels, labels):
    return pickle.dumps({b"data": pixels, b"labels": list(map(int, labels))}, protocol=4)


def cifar_folder(folder, write):
    """Write six batches of two images; image i has every pixel i."""
    folder.mkdir(parents=True)
    for i, name in enumerate(cifar.CIFAR_MD5):
        pixels = np.repeat(np.array([[2 * i], [2 * i + 1]], np.uint8), 3072, axis=1)
        pixels[0, 1024:2048] = 255  # green
        (folder / name).write_bytes(write(pixels, [i, 9 - i]))
    return folder


@pytest.fixture
def cifar10(tmp_path):
    return cifar_folder(tmp_path / "cifar" / "cifar-10-batches-py", modern_batch)


def test_cifar_reads_the_pickles_of_python_2_and_of_today(cache, cifar10, tmp_path):
    old = cifar_folder(tmp_path / "old", python2_batch)
    today, then = load("cifar10", path=cifar10), load("cifar10", path=old)
    assert today.x.shape == (12, 3, 32, 32)
    assert today.x.equal(then.x) and today.y.equal(then.y)
    assert today.digest == then.digest, "the digest is of what is in the pickle, not of the pickle"
    assert today.y.tolist() == [0, 9, 1, 8, 2, 7, 3, 6, 4, 5, 5, 4]
    assert today.official_test.nonzero().flatten().tolist() == [10, 11]
    plain = load("cifar10", path=cifar10, normalize="none").x
    assert plain[2, :, 0, 0].tolist() == pytest.approx([2 / 255, 1.0, 2 / 255])


def test_cifar_reads_the_archive_and_the_folder_above(cache, cifar10, tmp_path):
    archive = tmp_path / "cifar-10-python.tar.gz"
    with tarfile.open(archive, "w:gz") as tar:
        tar.add(cifar10, arcname="cifar-10-batches-py")
    assert load("cifar10", path=archive).digest == load("cifar10", path=cifar10.parent).digest
    archive.write_bytes(archive.read_bytes()[:-200])
    with pytest.raises(DataError, match="cannot be read as CIFAR-10"):
        load("cifar10", path=archive)


def test_only_the_official_files_are_called_official(cache, cifar10, monkeypatch):
    data = load("cifar10", path=cifar10)
    assert data.source == "cifar10 (unofficial copy)"
    monkeypatch.setattr(cifar, "CIFAR_JPEG", data.digest)
    assert load("cifar10", path=cifar10).source == "cifar10 (jpeg)"
    md5 = {name: hashlib.md5((cifar10 / name).read_bytes()).hexdigest() for name in cifar.CIFAR_MD5}
    monkeypatch.setattr(cifar, "CIFAR_MD5", md5)
    assert load("cifar10", path=cifar10).source == "cifar10 (official)"
    monkeypatch.setattr(cifar, "CIFAR_MD5", md5 | {"test_batch": "0" * 32})
    assert load("cifar10", path=cifar10).source == "cifar10 (jpeg)"


class Runs:
    """Unpickles into a call."""

    def __init__(self, function, *arguments):
        self.call = function, arguments

    def __reduce__(self):
        return self.call


@pytest.mark.parametrize(
    "attack",
    [
        lambda mark: pickle.dumps(Runs(os.mkdir, mark)),
        lambda mark: pickle.dumps(Runs(eval, f"__import__('os').mkdir({mark!r})")),
        lambda mark: pickle.dumps({b"data": Runs(os.mkdir, mark), b"labels": [0]}, protocol=4),
        lambda mark: b"cnumpy\nfromfile\n(S'" + mark.encode() + b"'\ntR.",
        lambda mark: b"\x80\x04\x8c\x05numpy\x8c\x0endarray.tofile\x93.",
        lambda mark: pickle.dumps({b"data": Runs(np.ndarray, (1,), np.dtype("O"), b"A" * 8), b"labels": [0]}),
    ],
    ids=["mkdir", "eval", "inside a batch", "numpy function", "method of an allowed class", "pointers"],
)
def test_a_malicious_pickle_is_refused_before_it_runs(cache, cifar10, tmp_path, attack):
    mark = tmp_path / "was-here"
    (cifar10 / "data_batch_1").write_bytes(attack(str(mark)))
    with pytest.raises(DataError, match="refused"):
        load("cifar10", path=cifar10)
    assert not mark.exists()


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "is not a CIFAR-10 batch"),
        (modern_batch(np.zeros((2, 3072), np.uint8), [0, 1])[:-100], "is not a CIFAR-10 batch"),
        (pickle.dumps([1, 2]), "is not a CIFAR-10 batch"),
        (modern_batch(np.zeros((2, 3072), np.uint8), [0]), "one row of 3072 bytes per label"),
        (modern_batch(np.zeros((1, 3072), np.float32), [0]), "one row of 3072 bytes per label"),
        (modern_batch(np.zeros((1, 3072), np.uint8), [10]), "labels reach 10"),
    ],
)
def test_a_damaged_batch_is_refused(cache, cifar10, content, reason):
    (cifar10 / "data_batch_2").write_bytes(content)
    with pytest.raises(DataError, match=reason):
        load("cifar10", path=cifar10)


def test_a_missing_batch_is_named(cache, cifar10):
    (cifar10 / "data_batch_4").unlink()
    with pytest.raises(DataError, match="data_batch_4 missing"):
        load("cifar10", path=cifar10)


# Tiny-ImageNet ------------------------------------------------------------------------------------


def jpeg(gray, size=8, mode="RGB"):
    buffer = io.BytesIO()
    Image.new(mode, (size, size), gray if mode == "L" else (gray,) * 3).save(buffer, "JPEG")
    return buffer.getvalue()


@pytest.fixture
def tiny(tmp_path):
    """Two classes (listed in falling order), two training images each, two validation images."""
    root = tmp_path / "tiny" / "tiny-imagenet-200"
    files = {
        "wnids.txt": b"n02\nn01\n",
        "train/n01/images/n01_0.JPEG": jpeg(10),
        "train/n01/images/n01_1.JPEG": jpeg(20, mode="L"),
        "train/n01/n01_boxes.txt": b"",
        "train/n02/images/n02_0.JPEG": jpeg(30),
        "train/n02/images/n02_1.JPEG": jpeg(40),
        "val/images/val_0.JPEG": jpeg(50),
        "val/images/val_1.JPEG": jpeg(60),
        "val/val_annotations.txt": b"val_0.JPEG\tn01\t0\t0\t7\t7\nval_1.JPEG\tn02\t0\t0\t7\t7\n",
        "test/images/test_0.JPEG": jpeg(70),
    }
    for name, content in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(content)
    return root


def test_tiny_imagenet_takes_its_validation_split_as_test_split(cache, tiny):
    """Uniform gray survives JPEG exactly. Class numbers follow wnids.txt: n02 is 0, n01 is 1."""
    data = load("tiny-imagenet", path=tiny, normalize="none")
    assert data.x.shape == (6, 3, 8, 8)
    assert (data.x[:, :, 3, 3] * 255).round().tolist() == [[g] * 3 for g in (10, 20, 30, 40, 50, 60)]
    assert data.y.tolist() == [1, 1, 0, 0, 1, 0] and data.classes == ("n02", "n01")
    assert data.official_test.tolist() == [False] * 4 + [True] * 2


def test_tiny_imagenet_is_the_same_from_its_zip(cache, tiny, tmp_path):
    archive = tmp_path / "tiny-imagenet-200.zip"
    with zipfile.ZipFile(archive, "w") as packed:
        for path in sorted(tiny.rglob("*")):
            packed.write(path, path.relative_to(tiny.parent))
    folder, packed = load("tiny-imagenet", path=tiny.parent), load("tiny-imagenet", path=archive)
    assert folder.x.equal(packed.x) and folder.digest == packed.digest
    assert packed.source == "tiny-imagenet (unofficial copy)"
    archive.write_bytes(archive.read_bytes()[:-50])
    with pytest.raises(DataError, match="standard layout"):
        load("tiny-imagenet", path=archive)


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("wnids.txt", b"n02\n"),
        ("train/n01/images/n01_0.JPEG", b"no image"),
        ("train/n01/images/n01_0.JPEG", jpeg(10, size=4)),
        ("val/val_annotations.txt", b"val_0.JPEG\n"),
        ("val/val_annotations.txt", b"val_9.JPEG\tn01\n"),
        ("val/val_annotations.txt", b""),
    ],
)
def test_another_layout_is_refused(cache, tiny, name, content):
    (tiny / name).write_bytes(content)
    with pytest.raises(DataError, match="standard layout"):
        load("tiny-imagenet", path=tiny)
