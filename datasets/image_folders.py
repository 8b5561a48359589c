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
