"""Readers of Fashion-MNIST, Tiny-ImageNet and scikit-learn's digits, and helpers for all image data sets.

Pixels are scaled to [0, 1], then normalized per channel with published constants, which cost no privacy.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import zipfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from datasets import packaged, sources
from datasets.cache import LocalCopy, sha256
from datasets.dataset import Dataset
from datasets.errors import DataError, nearest

Bytes = NDArray[np.uint8]

# (mean, standard deviation) per channel. Published CIFAR-10 code often uses these constants of CIFAR-100; those of
# CIFAR-10 are (0.4914, 0.4822, 0.4465) and (0.2470, 0.2435, 0.2616).
STANDARD = {
    "fashion-mnist": ((0.2860,), (0.3529,)),
    "cifar10": ((0.5071, 0.4867, 0.4408), (0.2675, 0.2565, 0.2761)),
    "tiny-imagenet": ((0.4802, 0.4481, 0.3975), (0.2770, 0.2691, 0.2821)),
}
NORMALIZE = ("none", "half", "standard")

FASHION_CLASSES = (
    "T-shirt/top", "Trouser", "Pullover", "Dress", "Coat", "Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot",
)  # fmt: skip


def pixel_pool(name: str, pixels: Bytes, normalize: str, levels: int = 255) -> Tensor:
    """Return pixels ``(n, ch, h, w)`` scaled to [0, 1] and normalized, float32; in place to save memory."""
    if normalize not in NORMALIZE or (normalize == "standard" and name not in STANDARD):
        allowed = NORMALIZE if name in STANDARD else NORMALIZE[:2]
        raise DataError(f"{name} has no normalize={normalize!r}; {nearest(normalize, allowed)}")
    x = torch.from_numpy(pixels).float().div_(levels)
    if normalize == "none":
        return x
    half = (0.5,) * x.shape[1]
    constants = STANDARD[name] if normalize == "standard" else (half, half)
    mean, std = (torch.tensor(values).view(-1, 1, 1) for values in constants)
    return x.sub_(mean).div_(std)


def join_splits(
    name: str,
    train: tuple[Bytes, NDArray[np.int64]],
    test: tuple[Bytes, NDArray[np.int64]],
    classes: tuple[str, ...],
    origin: str,
    digest: str,
    normalize: str,
) -> Dataset:
    """Join the source's training and test split; images are ``(n, ch, h, w)``."""
    for part, (pixels, labels) in (("train", train), ("test", test)):
        if len(pixels) != len(labels) or not len(labels):
            raise DataError(f"{name}: {len(pixels)} {part} images but {len(labels)} labels")
        if labels.min() < 0 or labels.max() >= len(classes):
            raise DataError(f"{name}: {part} labels reach {labels.max()}, there are {len(classes)} classes")
    if train[0].shape[1:] != test[0].shape[1:]:
        raise DataError(f"{name}: train images are {train[0].shape[1:]}, test images {test[0].shape[1:]}")
    return Dataset(
        name=name,
        x=pixel_pool(name, np.concatenate([train[0], test[0]]), normalize),
        y=torch.from_numpy(np.concatenate([train[1], test[1]])),
        classes=classes,
        source=f"{name} ({origin})",
        digest=digest,
        official_test=torch.arange(len(train[1]) + len(test[1])) >= len(train[1]),
    )


def read_fashion_mnist(copy: LocalCopy, *, normalize: str = "standard") -> Dataset:
    """Read Fashion-MNIST (Xiao, Rasul, Vollgraf 2017): 60,000 + 10,000 images of 1 x 28 x 28, ten classes.

    Parameters
    ----------
    copy : Found
        Folder of the four IDX ``.gz`` files.
    normalize : {"standard", "half", "none"}
        Mean 0.2860 and deviation 0.3529; 0.5 and 0.5; or leave in [0, 1].

    Raises
    ------
    DataError
        If a file is missing, truncated or not an IDX file.
    """
    paths = [copy.path / name for name in sources.FASHION_FILES]
    arrays = [read_idx(path) for path in paths]
    if [a.ndim for a in arrays] != [3, 1, 3, 1]:
        raise DataError(f"{copy.path}: the IDX files must hold images, labels, images, labels")
    digests = [sha256(path) for path in paths]
    official = digests == list(sources.FASHION_FILES.values())
    return join_splits(
        "fashion-mnist",
        (arrays[0][:, None], arrays[1].astype(np.int64)),
        (arrays[2][:, None], arrays[3].astype(np.int64)),
        FASHION_CLASSES,
        "official" if official else "unofficial copy",
        hashlib.sha256("".join(digests).encode()).hexdigest(),
        normalize,
    )


def read_idx(path: Path) -> Bytes:
    """Read a gzipped IDX file of unsigned bytes.

    The header has two zero bytes, the type code 8, the number of axes, and a big-endian 32-bit length per axis.
    """
    try:
        with gzip.open(path) as file:
            raw = file.read()
    except (OSError, EOFError, zlib.error) as error:
        raise DataError(f"{path} cannot be read: {error}") from error
    if len(raw) < 4 or raw[:3] != b"\0\0\x08":
        raise DataError(f"{path} is not an IDX file of unsigned bytes")
    start = 4 + 4 * raw[3]
    shape = np.frombuffer(raw[4:start], ">u4").tolist() if len(raw) >= start else []
    if len(shape) != raw[3] or len(raw) - start != int(np.prod(shape)):
        raise DataError(f"{path} is truncated or damaged: header {shape}, {len(raw) - start} bytes of data")
    return np.frombuffer(raw, np.uint8, offset=start).reshape(shape)


def read_tiny_imagenet(copy: LocalCopy, *, normalize: str = "standard") -> Dataset:
    """Read Tiny-ImageNet-200 (Stanford CS231n): 100,000 + 10,000 images of 3 x 64 x 64, 200 classes.

    The validation split serves as test split, as the original test labels were never published. The data set takes
    5.4 GB as float32.

    Parameters
    ----------
    copy : Found
        ``tiny-imagenet-200.zip``, the extracted ``tiny-imagenet-200``, or a folder with one of them.
    normalize : {"standard", "half", "none"}
        Mean (0.4802, 0.4481, 0.3975) and deviation (0.2770, 0.2691, 0.2821); 0.5 and 0.5; or leave in [0, 1].

    Raises
    ------
    DataError
        If the layout is not standard or an image cannot be decoded.
    """
    inside = [copy.path / "tiny-imagenet-200", copy.path / sources.TINY_ARCHIVE]
    path = next((p for p in inside if p.exists()), copy.path)
    digest = hashlib.sha256()
    try:
        with _tree(path) as (names, read):
            wnids = read("wnids.txt").decode().split()
            images = (name for name in sorted(names) if name.startswith("train/") and "/images/" in name)
            train = [(name, name.split("/")[1]) for name in images]
            lines = [line.split("\t") for line in read("val/val_annotations.txt").decode().splitlines()]
            test = [(f"val/images/{line[0]}", line[1]) for line in lines]
            train_split = _decode(train, wnids, read, digest)
            test_split = _decode(test, wnids, read, digest)
    except (OSError, KeyError, IndexError, ValueError, zipfile.BadZipFile, zlib.error) as error:
        raise DataError(f"{path} is not Tiny-ImageNet in its standard layout: {error}") from error
    official = path.is_file() and sha256(path) == sources.TINY_SHA256
    origin = "official" if official else "unofficial copy"
    classes = tuple(wnids)
    return join_splits(
        "tiny-imagenet", train_split, test_split, classes, origin, digest.hexdigest(), normalize
    )


@contextmanager
def _tree(path: Path) -> Iterator[tuple[list[str], Callable[[str], bytes]]]:
    """Yield the file names below ``tiny-imagenet-200/`` and a reader, for a folder or a zip."""
    if path.is_dir():
        names = [p.relative_to(path).as_posix() for p in path.rglob("*.*")]
        yield names, lambda name: (path / name).read_bytes()
        return
    root = "tiny-imagenet-200/"
    with zipfile.ZipFile(path) as archive:
        names = [name.removeprefix(root) for name in archive.namelist() if not name.endswith("/")]
        yield names, lambda name: archive.read(root + name)


def _decode(
    files: list[tuple[str, str]], wnids: list[str], read: Callable[[str], bytes], digest: Any
) -> tuple[Bytes, NDArray[np.int64]]:
    """Decode images ``(n, 3, h, w)`` and labels ``(n,)``, and update the digest."""
    from PIL import Image  # only needed by Tiny-ImageNet (installed with matplotlib)

    number = {wnid: i for i, wnid in enumerate(wnids)}
    labels = np.array([number[wnid] for _, wnid in files], np.int64)
    pixels: Bytes | None = None
    for i, (name, _) in enumerate(files):
        raw = read(name)
        digest.update(raw)
        image = np.asarray(Image.open(io.BytesIO(raw)).convert("RGB")).transpose(2, 0, 1)
        if pixels is None:
            pixels = np.empty((len(files), *image.shape), np.uint8)
        if image.shape != pixels.shape[1:]:
            raise ValueError(f"{name} has shape {image.shape}, expected {pixels.shape[1:]}")
        pixels[i] = image
    if pixels is None:
        raise ValueError("a split without images")
    digest.update(labels.tobytes())
    return pixels, labels


def read_digits(*, normalize: str = "none") -> Dataset:
    """Read scikit-learn's digits: 1,797 images of 1 x 8 x 8, 17 gray levels, ten classes, no test split."""
    pixels, y = packaged.digits()
    return Dataset(
        name="digits",
        x=pixel_pool("digits", pixels[:, None], normalize, levels=16),
        y=torch.from_numpy(y),
        classes=tuple(str(digit) for digit in range(10)),
        source="digits (scikit-learn)",
        digest=hashlib.sha256(pixels.tobytes() + y.tobytes()).hexdigest(),
    )
