"""CIFAR-10 from its Python pickles."""

from __future__ import annotations

import hashlib
import pickle
import tarfile
import zlib
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from datasets.cache import LocalCopy
from datasets.dataset import Dataset
from datasets.errors import DataError
from datasets.images import Bytes, join_splits
from datasets.pickles import unpickle
from datasets.sources import CIFAR_ARCHIVE

CIFAR_MD5 = {  # of the official files; the last is the test split
    "data_batch_1": "c99cafc152244af753f735de768cd75f",
    "data_batch_2": "d4bba439e000b95fd0a9bffe97cbabec",
    "data_batch_3": "54ebc095f3ab1f0389bbae665268c751",
    "data_batch_4": "634d18415352ddfa80567beed471001a",
    "data_batch_5": "482c414d41f54cd18b22e5b47cb7c3cb",
    "test_batch": "40351d587109b95175f43aff81a1287e",
}
# Digest of decoded pixels and labels of a known copy with JPEG artifacts; pickles differ between NumPy versions.
CIFAR_JPEG = "10d6657e8791041a7a7810168305ce55903957d6c0fb7bbcb257949078c41bdf"
# What pickles of arrays are made of; the official files were written by Python 2.
ARRAYS = {
    "numpy": ("dtype", "ndarray"),
    "numpy.core.multiarray": ("_reconstruct",),
    "numpy._core.multiarray": ("_reconstruct",),
}
CIFAR_CLASSES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")


def read_cifar10(copy: LocalCopy, *, normalize: str = "standard") -> Dataset:
    """Read CIFAR-10 (Krizhevsky 2009): 50,000 + 10,000 images of 3 x 32 x 32, ten classes.

    The digest covers the decoded pixels and labels in file order, since pickles of the same arrays differ between
    NumPy versions. `Dataset.source` marks unofficial files.

    Parameters
    ----------
    copy : Found
        ``cifar-10-python.tar.gz``, the extracted ``cifar-10-batches-py``, or a folder with one of them.
    normalize : {"standard", "half", "none"}
        Mean (0.5071, 0.4867, 0.4408) and deviation (0.2675, 0.2565, 0.2761); 0.5 and 0.5; or leave in [0, 1].

    Raises
    ------
    DataError
        If files are missing or damaged, or a pickle contains anything but containers and NumPy arrays.
    """
    files = _cifar_files(copy.path)
    official, digest, batches = True, hashlib.sha256(), []
    for name, md5 in CIFAR_MD5.items():
        pixels, labels = _cifar_batch(files[name], f"{copy.path}: {name}")
        official &= hashlib.md5(files[name], usedforsecurity=False).hexdigest() == md5
        digest.update(pixels.tobytes() + labels.astype(np.uint8).tobytes())
        batches.append((pixels, labels))
    train = np.concatenate([p for p, _ in batches[:-1]]), np.concatenate([y for _, y in batches[:-1]])
    variant = "jpeg" if digest.hexdigest() == CIFAR_JPEG else "unofficial copy"
    origin = "official" if official else variant
    return join_splits("cifar10", train, batches[-1], CIFAR_CLASSES, origin, digest.hexdigest(), normalize)


def _cifar_files(path: Path) -> dict[str, bytes]:
    """Return the six batches; an archive is read in memory, never extracted."""
    inside = [path / "cifar-10-batches-py", path / CIFAR_ARCHIVE]
    path = next((p for p in inside if p.exists()), path)
    files = {}
    try:
        if path.is_dir():
            files = {name: (path / name).read_bytes() for name in CIFAR_MD5 if (path / name).exists()}
        else:
            with tarfile.open(path) as archive:
                for member in archive:
                    content = archive.extractfile(member) if member.isfile() else None
                    if content is not None and Path(member.name).name in CIFAR_MD5:
                        files[Path(member.name).name] = content.read()
    except (OSError, EOFError, tarfile.TarError, zlib.error) as error:
        raise DataError(f"{path} cannot be read as CIFAR-10: {error}") from error
    if missing := [name for name in CIFAR_MD5 if name not in files]:
        raise DataError(f"{path} is not CIFAR-10 for Python: {', '.join(missing)} missing")
    return files


def _cifar_batch(raw: bytes, where: str) -> tuple[Bytes, NDArray[np.int64]]:
    """Return images ``(n, 3, 32, 32)`` and labels ``(n,)``."""
    try:
        batch = unpickle(raw, ARRAYS, encoding="bytes")
        pixels, labels = batch[b"data"], np.asarray(batch[b"labels"], np.int64)
    except (pickle.UnpicklingError, KeyError, TypeError, ValueError, OverflowError) as error:
        raise DataError(f"{where} is not a CIFAR-10 batch: {error}") from error
    if not isinstance(pixels, np.ndarray) or pixels.dtype != np.uint8 or pixels.shape != (len(labels), 3072):
        raise DataError(f"{where} does not hold one row of 3072 bytes per label")
    return pixels.reshape(-1, 3, 32, 32), labels
