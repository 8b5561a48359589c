"""Archives: the results of a folder in one compressed file, whose first member is their manifest."""

from __future__ import annotations

import gzip
import io
import tarfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import IO

from harness.core.registry import UserError
from harness.storage.files import output
from harness.storage.manifest import (
    ARCHIVE,
    BLOCK,
    MANIFEST,
    Bounded,
    Limits,
    Portable,
    allowed,
    faults,
    manifest,
    only_results,
    portable,
    read_manifest,
)
from harness.storage.store import Store

TOP = "results/"  # folder of all members
MOST_PADDING = 1 << 20  # bytes after the last member


def write_archive(store: Store, path: Path) -> Portable:
    """Write the results of a folder to a ``.tar.gz`` file and return what is in it.

    The same results give the same bytes, whenever and wherever they are packed (with the same version of zlib).

    Raises
    ------
    UserError
        If there is nothing to pack, or a file changes meanwhile.
    """
    found = portable(store)
    listed = manifest(store.root, found.names)
    bounded = Bounded(ARCHIVE)
    with output(path) as temporary, open(temporary, "wb") as raw:
        with (
            gzip.GzipFile(filename="", mode="wb", fileobj=raw, mtime=0) as packed,
            tarfile.open(fileobj=packed, mode="w|", format=tarfile.PAX_FORMAT) as tar,
        ):
            _add(tar, MANIFEST, io.BytesIO(listed.encode()), len(listed.encode()))
            for name in found.names:
                size = (store.root / name).stat().st_size
                bounded.add(name, size)
                with open(store.root / name, "rb") as file:
                    _add(tar, name, file, size)
        raw.flush()
        with opened(temporary):  # a file that was replaced meanwhile is noticed here
            pass
    return found


def _add(tar: tarfile.TarFile, name: str, file: IO[bytes], size: int) -> None:
    member = tarfile.TarInfo(TOP + name)  # no owner, no time
    member.size, member.mode = size, 0o644
    tar.addfile(member, file)


@contextmanager
def opened(path: Path, limits: Limits = ARCHIVE) -> Iterator[Path]:
    """Yield the results folder that a path names; that of an archive is unpacked for as long.

    An archive is refused if a member leaves the folder, is no result, is a link, or is not in the manifest
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
            wrong = faults(root, listed)
        except FileNotFoundError:
            raise UserError(f"{path}: it has no {MANIFEST}, so it is no archive of results") from None
        except FileExistsError as error:
            raise UserError(f"{path}: {Path(error.filename).relative_to(root)} is in it twice") from None
        except (tarfile.TarError, EOFError, zlib.error, gzip.BadGzipFile) as error:
            raise UserError(f"{path} is no archive of results, or is damaged: {error}") from None
        except UserError as error:
            raise UserError(f"{path}: {error}") from None
        except (ValueError, OverflowError) as error:  # tarfile lets those of numbers in headers through
            raise UserError(f"{path} is no archive of results, or is damaged: {error}") from None
        if wrong:
            raise UserError(f"{path}: {'; '.join(f'{name} {fault}' for name, fault in wrong.items())}")
        yield root


def _unpack(path: Path, root: Path, bounded: Bounded) -> None:
    """Write the members of an archive below a folder."""
    root.mkdir()
    with gzip.open(path, "rb") as packed, tarfile.open(fileobj=packed, mode="r|") as tar:
        for member in tar:
            name = member.name.removeprefix(TOP)
            if name != MANIFEST:
                allowed(name)
            if not member.isreg() or member.name == name:
                raise UserError(f"{member.name!r} is no file in {TOP}")
            bounded.add(name, member.size)
            target = root / name
            target.parent.mkdir(parents=True, exist_ok=True)
            source = tar.extractfile(member)
            assert source is not None  # a regular member has content
            with source, open(target, "xb") as file:
                while block := source.read(BLOCK):
                    file.write(block)
        if len(packed.read(MOST_PADDING + 1)) > MOST_PADDING:  # also compares the checksum of the whole
            raise UserError("it goes on after its last member")
