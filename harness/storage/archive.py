"""Archives: the results of a folder in one compressed file, whose first member is their manifest."""

from __future__ import annotations

import gzip
import io
import re
import tarfile
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import IO, cast

from harness.core.errors import UserError
from harness.storage.files import open_file, output
from harness.storage.manifest import (
    ARCHIVE,
    MANIFEST,
    Bounded,
    Limits,
    Portable,
    allowed,
    manifest,
    only_results,
    portable,
    read_manifest,
)
from harness.storage.seals import BLOCK, sha256
from harness.storage.store import Store

TOP = "results/"  # folder of all members
MOST_PADDING = 1 << 20  # bytes after the last member
MOST_HEADER = 4096  # bytes of a header that holds a long name
LONG_NAME = re.compile(rb"[0-9]{1,4} path=([\x20-\x7e]+)\n")
MOST_RATIO = 250  # of bytes unpacked to bytes packed; results are text with digits
LEAST_UNPACKED = 1 << 28  # bytes that any archive may unpack to


def write_archive(store: Store, path: Path) -> Portable:
    """Write the results of a folder to a ``.tar.gz`` file and return what is in it.

    The same results give the same bytes, whenever and wherever they are packed (with the same version of zlib).

    Raises
    ------
    UserError
        If the file has another ending, there is nothing to pack, or a file changes meanwhile.
    """
    if not path.name.endswith((".tar.gz", ".tgz")):
        raise UserError(f"archive: the file's name ends in .tar.gz, given {path.name}")
    path.parent.mkdir(parents=True, exist_ok=True)
    portable_files = portable(store)
    manifest_text = manifest(store.root, portable_files.names)
    bounded = Bounded(ARCHIVE)
    with output(path) as temporary, open(temporary, "wb") as raw:
        with (
            gzip.GzipFile(filename="", mode="wb", fileobj=raw, mtime=0) as packed,
            tarfile.open(fileobj=packed, mode="w|", format=tarfile.PAX_FORMAT) as tar,
        ):
            _add(tar, MANIFEST, io.BytesIO(manifest_text.encode()), len(manifest_text.encode()))
            for name in portable_files.names:
                size = (store.root / name).stat().st_size
                bounded.add(name, size)
                with open_file(store.root / name) as file:
                    _add(tar, name, file, size)
        raw.flush()
        with open_results(temporary):  # a file that was replaced meanwhile is noticed here
            pass
    return portable_files


def _add(tar: tarfile.TarFile, name: str, file: IO[bytes], size: int) -> None:
    member = tarfile.TarInfo(TOP + name)  # no owner, no time
    member.size, member.mode = size, 0o644
    tar.addfile(member, file)


@contextmanager
def open_results(path: Path, limits: Limits = ARCHIVE) -> Iterator[Path]:
    """Yield the results folder that a path names; that of an archive is unpacked for as long.

    An archive is refused if a member leaves the folder, is not a result, is a link, or is not in the manifest
    or not what it says.

    Raises
    ------
    UserError
        If there is no such folder or archive, or it is refused.
    """
    if path.is_dir():
        yield path
        return
    if not path.exists():
        raise UserError(f"no results folder or archive {path}")
    with TemporaryDirectory() as folder:
        root = Path(folder) / "results"
        try:
            _unpack(path, root, Bounded(limits))
            listed = read_manifest(root)
            only_results(root, listed, limits)
            missing = [name for name in listed if not (root / name).exists()]
        except FileNotFoundError:
            raise UserError(f"{path}: it has no {MANIFEST}, so it is not an archive of results") from None
        except FileExistsError as error:
            raise UserError(f"{path}: {Path(error.filename).relative_to(root)} is in it twice") from None
        except UserError as error:
            raise UserError(f"{path}: {error}") from None
        # tarfile lets errors of numbers in headers through
        except (tarfile.TarError, EOFError, zlib.error, gzip.BadGzipFile, ValueError, OverflowError) as error:
            raise UserError(f"{path} is not an archive of results, or is damaged: {error}") from None
        if missing:
            raise UserError(f"{path}: {'; '.join(f'{name} is missing' for name in missing)}")
        yield root


def _unpack(path: Path, root: Path, bounded: Bounded) -> None:
    """Write the members of an archive below a folder, after checking each against the manifest, the first."""
    root.mkdir()
    checksums: Mapping[str, str] | None = None
    most = LEAST_UNPACKED + MOST_RATIO * path.stat().st_size
    with open_file(path.resolve()) as raw, gzip.open(raw, "rb") as file:
        packed = cast(IO[bytes], file)
        for name, size in _members(packed):
            if checksums is None and name != MANIFEST:
                raise FileNotFoundError  # it begins with its manifest
            if checksums is not None and name not in checksums:
                raise UserError(f"{name!r} is not in {MANIFEST}")
            bounded.add(name, size)
            if bounded.whole > most:
                raise UserError(
                    f"it unpacks to more than {most:,} bytes, {MOST_RATIO} times its own, which results never do"
                )
            target = root / name
            target.parent.mkdir(parents=True, exist_ok=True)
            with open(target, "xb") as file_out:
                _copy(packed, file_out, size)
            if checksums is None:
                checksums = read_manifest(root)
            elif sha256(target) != checksums[name]:
                raise UserError(f"{name} is not what the manifest says")
        if len(packed.read(MOST_PADDING + 1)) > MOST_PADDING:  # also compares the checksum of the whole
            raise UserError("it goes on after its last member")


def _members(packed: IO[bytes]) -> Iterator[tuple[str, int]]:
    """Yield name and size of every member; read a member's content before asking for the next.

    Headers are read one by one here, as tarfile reads what an extended header says of its own length.
    """
    long = ""
    while (block := packed.read(tarfile.BLOCKSIZE)) and any(block):
        try:
            member = tarfile.TarInfo.frombuf(block, "utf-8", "strict")
        except UnicodeDecodeError:
            raise tarfile.ReadError("a name that is no text") from None
        if member.type == tarfile.XHDTYPE and member.size <= MOST_HEADER and not long:
            content = packed.read(member.size)
            packed.read(-member.size % tarfile.BLOCKSIZE)
            match = LONG_NAME.fullmatch(content)
            long = match[1].decode() if match else ""
            if not long:
                raise tarfile.ReadError("a header that results do not need")
            continue
        full, long = long or member.name, ""
        name = full.removeprefix(TOP)
        if name != MANIFEST:
            allowed(name)
        if member.type not in (tarfile.REGTYPE, tarfile.AREGTYPE) or full == name or member.size < 0:
            raise UserError(f"{full!r} is not a file in {TOP}")
        yield name, member.size
    if long:
        raise EOFError("it ends in the middle of a member")


def _copy(packed: IO[bytes], target: IO[bytes], size: int) -> None:
    """Write the content of a member, and read what fills its last block."""
    remaining = size
    while remaining:
        block = packed.read(min(BLOCK, remaining))
        if not block:
            raise EOFError("it ends in the middle of a member")
        target.write(block)
        remaining -= len(block)
    packed.read(-size % tarfile.BLOCKSIZE)
