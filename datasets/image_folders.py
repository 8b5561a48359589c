"""A folder of images for each client, in which folders name the classes: ``CLIENT/CLASS/FILE``."""

from __future__ import annotations

import hashlib
from functools import cache
from pathlib import Path
from typing import NamedTuple

import numpy as np

from datasets.arrays import Arrays
from datasets.decoding import decoded
from datasets.encoding import Content, complete
from datasets.errors import DataError
from datasets.formats import Reading
from datasets.limits import check_size, content
from datasets.shards import TEST, split_folders

VERSION = 1  # in the identity of runs; raise it when the same file gives other numbers
SUFFIXES = (".bmp", ".gif", ".jpeg", ".jpg", ".pgm", ".png", ".ppm", ".tif", ".tiff", ".webp")
INPUT, LABEL, CLIENT = "image", "class", "client"
LAYOUT = "CLIENT/CLASS/FILE"


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
    try:
        check_size(path, sum(picture.path.stat().st_size for picture in pictures))
        raw = [content(picture.path) for picture in pictures]
    except OSError as error:
        raise DataError(f"{error.filename or path} cannot be read: {error.strerror or error}") from error
    hasher = hashlib.sha256()
    for picture, one in zip(pictures, raw, strict=True):
        line = f"{picture.name} {hashlib.sha256(one).hexdigest()}\n"
        hasher.update(line.encode("utf-8", "surrogateescape"))  # names of files are any bytes
    test = np.array([picture.split for picture in pictures]) == TEST

    @cache
    def images() -> Arrays:
        named = [(str(picture.path), one) for picture, one in zip(pictures, raw, strict=True)]
        return Arrays("images", decoded(named), "a folder of images")

    return Content(
        {
            CLIENT: complete([picture.client for picture in pictures]),
            LABEL: complete([picture.label for picture in pictures]),
        },
        len(pictures),
        hasher.hexdigest(),
        test if test.any() else None,
        typed=True,
        arrays={INPUT: images},
        usual={"label": LABEL, "client": CLIENT},
    )


def _pictures(path: Path) -> list[Picture]:
    """Return the files in a fixed order, those of ``train`` first."""
    if not path.is_dir():
        raise DataError(f"{path} is no folder; a folder with a folder of images for each client is needed")
    pictures = []
    for folder, split in split_folders(path):
        for client in _folders(folder, "the folder", "a client"):
            for label in _folders(client, "the client's folder", "a class"):
                for file in sorted(file for file in label.iterdir() if not file.name.startswith(".")):
                    if file.suffix.lower() not in SUFFIXES:
                        raise DataError(f"{file} is no image by its suffix; read are {', '.join(SUFFIXES)}")
                    name = file.relative_to(path).as_posix()
                    pictures.append(Picture(file, name, client.name, label.name, split))
    if not pictures:
        raise DataError(f"the folder {path} holds no images")
    return pictures


def _folders(path: Path, what: str, of: str) -> list[Path]:
    """Return the folders in a folder; raise DataError if there is none, or an image beside them."""
    every = sorted(inside for inside in path.iterdir() if not inside.name.startswith("."))
    folders = [inside for inside in every if inside.is_dir()]
    if not folders:
        raise DataError(f"{what} {path} has no folder for {of}; {LAYOUT} is needed")
    for file in every:
        if file.suffix.lower() in SUFFIXES and not file.is_dir():
            raise DataError(f"the image {file} is beside the folders for {of}; {LAYOUT} is needed")
    return folders
