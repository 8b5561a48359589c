"""Atomic and durable file writes, and one-line errors for files that cannot be read or written.

A durable write survives a power cut once it has returned: the content is on the disk before the name is, and the
name before the function returns.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import re
import secrets
import shutil
import stat
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any

from harness.core.errors import UserError

MOST_BYTES = 1 << 28  # of a JSON file: it takes several times as much memory
MOST_OPENED = 1 << 23  # lists and objects in a JSON file; an empty list takes about 25 times its text
MOST_LEVELS = 64  # of nested lists and objects
ZEROS = bytes.maketrans(b"123456789", b"000000000")
LONG_NUMBER = b"0" * 300  # more digits than the largest floating-point number
UNSAFE = re.compile(r"[^\w.+-]")
MOST_LETTERS = 100  # of a file's name
MOST_LINKS = 40  # that are followed one after the other, as by Linux


class Unwritable(UserError):
    """A folder that cannot be written. No run is marked as failed, and all can continue later."""


class Damaged(UserError):
    """A file that was changed since it was written, or that no reader accepts.

    Parameters
    ----------
    path : Path
        The file.
    why : str, optional
        What is wrong with it, if more is known.
    """

    def __init__(self, path: Path, why: str = "") -> None:
        self.why = why or "is damaged"
        super().__init__(
            f"{path} {why}"
            if why
            else f"{path} is damaged; remove it, or the folder of the run that it belongs to, and repeat the "
            "command that wrote it"
        )


def open_file(path: Path, most: int | None = None) -> IO[bytes]:
    """Open a file to read it, without a buffer.

    Folders may come from others. Opening a pipe would wait, and a link leads to what is not in the folder.

    Raises
    ------
    Damaged
        If it is no regular file, is a link, or has more than ``most`` bytes.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.ENXIO):  # a link; a socket
            raise Damaged(path, "is a link or a device; only files are read") from None
        raise
    status = os.fstat(descriptor)
    if not stat.S_ISREG(status.st_mode):
        os.close(descriptor)
        raise Damaged(path, "is not a file")
    if most is not None and status.st_size > most:
        os.close(descriptor)
        raise Damaged(path, f"has {status.st_size:,} bytes; at most {most:,} are read")
    return open(descriptor, "rb", buffering=0)


def read_bytes(path: Path, most: int = MOST_BYTES) -> bytes:
    """Return the content of a file, see `open_file`."""
    with open_file(path, most) as file:
        return file.read()


def read_json(path: Path, *needed: str) -> dict[str, Any]:
    """Read a JSON file that holds an object with the needed fields; raise `Damaged` otherwise."""
    return parse_json(path, read_bytes(path), *needed)


def parse_json(path: Path, raw: bytes, *needed: str) -> dict[str, Any]:
    """Return the object in a JSON file that has been read; see `read_json`."""
    try:
        content = json_value(raw)
    except ValueError:
        content = None
    if not isinstance(content, dict) or any(name not in content for name in needed):
        raise Damaged(path)
    return content


def json_value(raw: bytes, opened: int | None = None) -> Any:
    """Return what a JSON text holds, of lists and objects nested at most ``opened`` deep, if that is known.

    Raises
    ------
    ValueError
        If it is no JSON, or holds what no record has and other code would stumble over: whole numbers larger than
        any other number, more than `MOST_LEVELS` levels or `MOST_OPENED` lists and objects, or halves of
        characters.
    """
    try:
        if LONG_NUMBER in raw.translate(ZEROS):
            raise ValueError("a number is too large")
        opened = raw.count(b"{") + raw.count(b"[") if opened is None else opened
        if opened > MOST_OPENED:
            raise ValueError("too many lists and objects")
        value = json.loads(raw.decode("utf-8"))
        if opened > MOST_LEVELS and not _shallow(value):
            raise ValueError("too many levels")
        if b"\\ud" in raw or b"\\uD" in raw:
            json.dumps(value, ensure_ascii=False).encode("utf-8")
    except RecursionError:
        raise ValueError("too many levels") from None
    return value


def _shallow(value: Any, levels: int = MOST_LEVELS) -> bool:
    """Return whether lists and objects are in each other on no more than some levels."""
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return levels > 0 and all(
        _shallow(item, levels - 1) for item in inner if isinstance(item, dict | list) and item
    )


def write_json(path: Path, content: Mapping[str, Any], *, durable: bool = False) -> None:
    """Write a JSON file atomically."""
    write_text(path, json.dumps(content, indent=1) + "\n", durable=durable)


def json_lines(content: Mapping[str, Any], level: int = 1) -> str:
    """Return an object as JSON that a person can read, with one line for each object of a list.

    Python's encoder of indented JSON takes ten times as long, seconds for a suite of ten thousand runs.
    """
    fields, indent = [], " " * level
    for name, value in content.items():
        if _is_table(value):
            lines = (json.dumps(part, separators=(",", ":")) for part in value)
            text = f"[\n{indent} " + f",\n{indent} ".join(lines) + f"\n{indent}]"
        elif isinstance(value, dict) and any(map(_is_table, value.values())):
            text = json_lines(value, level + 1)
        else:
            text = json.dumps(value, indent=1).replace("\n", f"\n{indent}")
        fields.append(f"{indent}{json.dumps(name)}: {text}")
    return "{\n" + ",\n".join(fields) + f"\n{indent[1:]}}}"


def _is_table(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(isinstance(part, dict) for part in value)


def write_text(path: Path, content: str, *, durable: bool = False) -> None:
    """Write a text file atomically."""
    with replacing(path, durable=durable) as temporary:
        temporary.write_text(content, encoding="utf-8")


@contextmanager
def replacing(path: Path, *, durable: bool = False) -> Iterator[Path]:
    """Yield a temporary path that replaces ``path`` on success."""
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    try:
        with writing(path):
            yield temporary
            if durable:
                sync(temporary)
            rename(temporary, path)
            if durable:
                sync_folder(path.parent)
    finally:
        with suppress(OSError):  # otherwise the next holder of the claim removes it
            temporary.unlink(missing_ok=True)


def output_text(path: Path, content: str) -> None:
    """Write a text where a user said, see `output`."""
    with output(path) as temporary:
        temporary.write_text(content, encoding="utf-8")


@contextmanager
def output(path: Path) -> Iterator[Path]:
    """Yield a temporary path, whose content goes to the place that a user named once it is whole.

    A regular file is replaced by rename and keeps its permissions; it is made if it is missing, with its folder. A
    link stays, and the file that it leads to is replaced. Devices, pipes and open files of this process, such as
    ``/dev/stdout``, are opened and written, never replaced.

    Raises
    ------
    UserError
        If the path is a folder, a link that leads nowhere, or cannot be written.
    """
    try:
        descriptor, target = _descriptor(path), Path(os.path.realpath(path))
        if target.is_dir():
            raise UserError(f"{path} is a folder; name a file in it")
        special = descriptor is not None or (target.exists() and not target.is_file())
        if path.is_symlink() and not special and not target.exists():
            raise UserError(
                f"{path} is a link to {target}, which does not exist; remove it, or name that file"
            )
        if special:
            folder = Path(tempfile.mkdtemp())
        else:
            folder = target.parent
            folder.mkdir(parents=True, exist_ok=True)
        temporary = folder / f".{secrets.token_hex(4)}.{target.name}"
        try:
            yield temporary
            if special:
                _pour(temporary, target if descriptor is None else os.dup(descriptor))
            else:
                if target.exists():
                    shutil.copymode(target, temporary)
                temporary.replace(target)
        finally:
            temporary.unlink(missing_ok=True)
            if special:
                folder.rmdir()
    except BrokenPipeError:  # the reader has what it wanted
        raise
    except OSError as error:
        raise UserError(f"{path} cannot be written: {error.strerror or error}") from None


def _pour(source: Path, sink: Path | int) -> None:
    """Write the content of a file into what is not to be replaced, after what was printed before."""
    sys.stdout.flush()
    with open(source, "rb") as content, open(sink, "wb") as file:
        shutil.copyfileobj(content, file)


def _descriptor(path: Path) -> int | None:
    """Return the open file of this process that a path like ``/dev/stdout`` stands for.

    It may be a regular file, which a shell has opened and goes on writing; opened anew it would be cut off.
    """
    folders = ("/dev/fd", os.path.realpath("/proc/self/fd"))
    for _ in range(MOST_LINKS):
        if path.name.isdecimal() and os.path.realpath(path.parent) in folders:
            return int(path.name)
        if not path.is_symlink():
            break
        path = path.parent / os.readlink(path)
    return None


@contextmanager
def exclusive(path: Path) -> Iterator[None]:
    """Hold the lock of a file, which is made if it is missing, and wait for others that hold it."""
    flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
    with writing(path):
        descriptor = os.open(path, flags, 0o666)
    try:
        with writing(path):
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def has_locks(folder: Path) -> bool:
    """Return whether file locks work in this folder; some network and virtual file systems have none."""
    path = folder / f".locked.{secrets.token_hex(4)}"
    with writing(path), open(path, "x") as first, open(path, "w") as second:
        try:
            fcntl.flock(first, fcntl.LOCK_EX | fcntl.LOCK_NB)
            fcntl.flock(second, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        except OSError:  # it refuses locks
            return False
        finally:
            path.unlink(missing_ok=True)
    return False


def append(path: Path, content: bytes) -> None:
    """Add to the end of a file; durable only after `sync`."""
    with writing(path), open(path, "ab") as file:
        file.write(content)


def copy(path: Path, target: Path) -> None:
    """Copy a file with its time of change; see `open_file` for what is refused."""
    with open_file(path) as source, open(target, "wb") as file:
        shutil.copyfileobj(source, file)
        changed = os.fstat(source.fileno())
        os.utime(file.fileno(), ns=(changed.st_atime_ns, changed.st_mtime_ns))


def rename(path: Path, target: Path) -> None:
    """Rename a file; durable only after `sync_folder`."""
    path.replace(target)


def remove(path: Path) -> None:
    """Remove a file if it exists; durable only after `sync_folder`."""
    path.unlink(missing_ok=True)


def make_folder(path: Path) -> None:
    """Make a folder and those above it durably, where they are missing."""
    if path.is_dir():
        return
    if not path.parent.exists():
        make_folder(path.parent)
    path.mkdir(exist_ok=True)
    sync_folder(path.parent)


def is_name(name: object) -> bool:
    """Return whether this is the name of a file or folder, and no path to somewhere else."""
    return isinstance(name, str) and name not in ("", ".", "..") and not {"/", "\\", "\0"} & set(name)


def safe_name(text: str) -> str:
    """Return a safe file name for a name in a record, which may be a path or anything else."""
    return UNSAFE.sub("_", text)[:MOST_LETTERS].lstrip(".") or "_"


def make_own_folder(root: Path, name: str) -> Path:
    """Make a folder within another and return it.

    Raises
    ------
    UserError
        If it is a link or no name of one folder, which would lead what is written and deleted there elsewhere.
    """
    if not is_name(name):
        raise UserError(f"{root}: a folder in it is needed, given {name!r}")
    path = root / name
    if path.is_symlink():
        raise UserError(f"{path} is a link; results are written to folders of their own. Remove it")
    make_folder(path)
    return path


def sync(path: Path) -> None:
    """Wait until the content of a file is on the disk."""
    _sync(path)


def sync_folder(path: Path) -> None:
    """Wait until the names in a folder are on the disk; without effect where a file system refuses it."""
    try:
        _sync(path)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP, errno.EACCES):
            raise


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def writing(path: Path) -> Iterator[Path]:
    """Turn write errors, as on a full disk, into `Unwritable`."""
    try:
        yield path
    except (OSError, RuntimeError) as error:
        cause = (
            error if isinstance(error, OSError) else error.__context__
        )  # torch wraps the error of its file
        if not isinstance(cause, OSError):
            raise
        raise Unwritable(
            f"{path} cannot be written: {cause.strerror or cause}. Results so far are kept; when the folder can "
            "be written again, the same command continues from there"
        ) from None
