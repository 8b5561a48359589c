"""A folder of images for each client, in which folders name the classes: ``CLIENT/CLASS/FILE``."""

from __future__ import annotations

import hashlib
import io
import logging
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from datasets.arrays import Arrays
from datasets.cache import SourceError, cache_dir, is_trusted, store_bytes
from datasets.encoding import Content, complete
from datasets.errors import DataError
from datasets.formats import Reading
from datasets.limits import check_size, check_values, content
from datasets.shards import TEST, split_folders

log = logging.getLogger(__name__)

VERSION = 1  # in the identity of runs; raise it when the same file gives other numbers
SUFFIXES = (".bmp", ".gif", ".jpeg", ".jpg", ".pgm", ".png", ".ppm", ".tif", ".tiff", ".webp")
GRAY = {"1", "L", "LA"}  # modes of Pillow with 8 bits or fewer
COLOR = {"P", "PA", "RGB", "RGBA", "RGBX", "CMYK", "YCbCr", "LAB", "HSV"}  # others have more bits
INPUT, LABEL, CLIENT = "image", "class", "client"


class Picture(NamedTuple):
    """A file, its place below the folder, and who holds it with which class."""

    path: Path
    name: str
    client: str
    label: str
    split: str


def read_folders(path: Path, _: Reading) -> Content:
    """Read a folder that has a folder for each client, or two such folders ``train`` and ``test``.

    Returns
    -------
    Content
        Columns `LABEL` and `CLIENT`, and the images as `INPUT`: of one channel if no image has color, otherwise
        three. They are decoded once and then kept in the cache.

    Raises
    ------
    DataError
        If there are no such folders, a file is no image, or images differ in size: the message names the file.
    """
    pictures = _pictures(path)
    check_size(path, sum(picture.path.stat().st_size for picture in pictures))
    hasher = hashlib.sha256()
    raw = []
    for picture in pictures:
        try:
            raw.append(content(picture.path))
        except OSError as error:
            raise DataError(f"{picture.path} cannot be read: {error.strerror or error}") from error
        hasher.update(f"{picture.name} {hashlib.sha256(raw[-1]).hexdigest()}\n".encode())
    digest = hasher.hexdigest()
    test = np.array([picture.split for picture in pictures]) == TEST

    @cache
    def decoded() -> Arrays:
        pixels = _cached(
            digest, [(str(picture.path), one) for picture, one in zip(pictures, raw, strict=True)]
        )
        return Arrays("images", pixels, "a folder of images")

    return Content(
        {
            CLIENT: complete([picture.client for picture in pictures]),
            LABEL: complete([picture.label for picture in pictures]),
        },
        len(pictures),
        digest,
        test if test.any() else None,
        typed=True,
        arrays={INPUT: decoded},
        usual={"label": LABEL, "client": CLIENT},
    )


def _pictures(path: Path) -> list[Picture]:
    """Return the files in a fixed order, those of ``train`` first."""
    if not path.is_dir():
        raise DataError(f"{path} is no folder; a folder with a folder of images for each client is needed")
    pictures = []
    for folder, split in split_folders(path):
        clients = _folders(folder)
        if not clients:
            raise DataError(f"the folder {folder} has no folder for a client; CLIENT/CLASS/FILE is needed")
        for client in clients:
            classes = _folders(client)
            if not classes:
                raise DataError(
                    f"the client's folder {client} has no folder for a class; CLIENT/CLASS/FILE is needed"
                )
            for label in classes:
                for file in sorted(file for file in label.iterdir() if not file.name.startswith(".")):
                    if file.suffix.lower() not in SUFFIXES:
                        raise DataError(f"{file} is no image by its suffix; read are {', '.join(SUFFIXES)}")
                    name = file.relative_to(path).as_posix()
                    pictures.append(Picture(file, name, client.name, label.name, split))
    if not pictures:
        raise DataError(f"the folder {path} holds no images")
    return pictures


def _folders(path: Path) -> list[Path]:
    return sorted(inside for inside in path.iterdir() if inside.is_dir() and not inside.name.startswith("."))


def _cached(digest: str, raw: Sequence[tuple[str, bytes]]) -> NDArray[np.uint8]:
    """Return decoded images from the cache, or decode and keep them."""
    folder = cache_dir("images")
    target = folder / f"{digest}-{VERSION}.npy"
    if target.exists() and is_trusted(folder):
        try:
            kept: NDArray[np.uint8] = np.load(target, allow_pickle=False)
            return kept
        except (OSError, ValueError) as error:
            log.warning("%s cannot be read (%s); the images are decoded again", target, error)
    pixels = decode(raw)
    buffer = io.BytesIO()
    np.save(buffer, pixels, allow_pickle=False)
    try:
        store_bytes(target, buffer.getvalue(), hashlib.sha256(buffer.getbuffer()).hexdigest())
    except SourceError as error:  # the images are there, and will be decoded again the next time
        log.warning("%s", error)
    return pixels


def decode(raw: Sequence[tuple[str, bytes]]) -> NDArray[np.uint8]:
    """Decode images of one size.

    Parameters
    ----------
    raw : sequence of (str, bytes)
        What each is called in messages, and its bytes.

    Returns
    -------
    ndarray
        ``(n, channels, height, width)``; one channel if no image has color.

    Raises
    ------
    DataError
        If one is no image, or has another size than the first.
    """
    from PIL import Image  # slow to import; most data sets do without it

    color = any(_opened(where, one).mode not in GRAY for where, one in raw)
    pixels: NDArray[np.uint8] | None = None
    for place, (where, one) in enumerate(raw):
        image = _opened(where, one)
        width, height = image.size
        if pixels is None:
            shape = (3 if color else 1, height, width)
            check_values("the images", len(raw) * int(np.prod(shape)))
            pixels = np.empty((len(raw), *shape), np.uint8)
        if (height, width) != pixels.shape[2:]:
            first_height, first_width = pixels.shape[2:]
            raise DataError(
                f"{where} has {width} x {height} pixels, and {raw[0][0]} has {first_width} x {first_height}; "
                "make all images of one size"
            )
        try:
            plain = np.asarray(image.convert("RGB" if color else "L"))
        except (OSError, ValueError, SyntaxError, Image.DecompressionBombError) as error:
            raise DataError(f"{where} cannot be read as an image: {error}") from error
        pixels[place] = plain.transpose(2, 0, 1) if color else plain
    assert pixels is not None
    return pixels


def _opened(where: str, raw: bytes) -> Any:
    from PIL import Image, UnidentifiedImageError  # slow to import; most data sets do without it

    try:
        image = Image.open(io.BytesIO(raw))
    except (UnidentifiedImageError, OSError, ValueError, SyntaxError, Image.DecompressionBombError) as error:
        raise DataError(f"{where} is no image that can be read: {error}") from error
    if image.mode not in GRAY | COLOR:
        raise DataError(f"{where} has more than 8 bits a channel (mode {image.mode}); save it with 8")
    return image
