"""Where users want files: regular ones are replaced whole, everything else is written into."""

import os
import stat
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from harness.core.errors import UserError
from harness.report.data.export import write_parquet, write_tidy
from harness.report.data.leaderboard import leaderboard
from harness.report.data.results import Results
from harness.report.tables.write import csv_text
from harness.storage.files import output, output_text
from tests.support.records import done, spec


def read_pipe(path, read):
    reader = threading.Thread(target=lambda: read.append(path.read_bytes()), daemon=True)
    reader.start()
    return reader


def write_csv(frame, path):
    output_text(path, csv_text(frame))


@pytest.mark.parametrize("write", [write_csv, write_tidy, write_parquet])
def test_a_pipe_gets_the_table_and_stays_a_pipe(tmp_path, write):
    pipe, file, read = tmp_path / "pipe", tmp_path / "file", []
    os.mkfifo(pipe)
    reader = read_pipe(pipe, read)
    frame = leaderboard(Results([done(spec(), accuracy=0.5)]))
    write(frame, pipe)
    write(frame, file)
    reader.join(10)
    assert read == [file.read_bytes()]
    assert stat.S_ISFIFO(pipe.stat().st_mode)
    assert sorted(one.name for one in tmp_path.iterdir()) == ["file", "pipe"]


def test_a_device_is_written_and_stays(tmp_path):
    """As root a rename would succeed, and every program would then write into a regular file."""
    before = os.stat("/dev/null")
    output_text(Path("/dev/null"), "text")
    (tmp_path / "link").symlink_to("/dev/null")
    output_text(tmp_path / "link", "text")
    assert (os.stat("/dev/null").st_ino, (tmp_path / "link").is_symlink()) == (before.st_ino, True)
    with pytest.raises(UserError, match="/dev/full cannot be written: No space left on device"):
        output_text(Path("/dev/full"), "text")


@pytest.mark.parametrize("to", ["pipe", "file"])
def test_standard_output_goes_on_where_the_table_ends(tmp_path, to):
    """A shell's ``> file`` keeps its place in the file: opened anew, what was printed would be cut off."""
    (tmp_path / "link").symlink_to("/dev/stdout")
    code = (
        "import sys; from pathlib import Path; from harness.storage.files import output_text; "
        "print('before'); [output_text(Path(name), f'{name}\\n') for name in sys.argv[1:]]; print('after')"
    )
    names = ["/dev/stdout", "/dev/fd/1", "/proc/self/fd/1", str(tmp_path / "link")]
    command = [sys.executable, "-c", code, *names]
    with open(tmp_path / "printed", "w") as file:
        done = subprocess.run(
            command, stdout=file if to == "file" else subprocess.PIPE, check=True, text=True
        )
    printed = (tmp_path / "printed").read_text() if to == "file" else done.stdout
    assert printed.splitlines() == ["before", *names, "after"]


def test_a_regular_file_is_replaced_whole_and_keeps_its_permissions(tmp_path):
    path = tmp_path / "new" / "table"
    output_text(path, "one")
    path.chmod(0o600)
    with pytest.raises(ValueError, match="broke off"), output(path) as temporary:
        temporary.write_text("half")
        raise ValueError("broke off")
    assert path.read_text() == "one"
    output_text(path, "two")
    assert (path.read_text(), stat.S_IMODE(path.stat().st_mode)) == ("two", 0o600)
    assert [one.name for one in path.parent.iterdir()] == ["table"]


def test_a_link_stays_and_its_file_is_replaced(tmp_path):
    (tmp_path / "file").write_text("one")
    (tmp_path / "link").symlink_to("file")
    output_text(tmp_path / "link", "two")
    assert ((tmp_path / "file").read_text(), (tmp_path / "link").is_symlink()) == ("two", True)
    (tmp_path / "file").unlink()
    with pytest.raises(UserError, match=r"is a link to .*, which does not exist"):
        output_text(tmp_path / "link", "three")
    (tmp_path / "file").symlink_to("link")
    with pytest.raises(UserError, match="is a link to"):
        output_text(tmp_path / "link", "in a circle")
    with pytest.raises(UserError, match="is a folder; name a file in it"):
        output_text(tmp_path, "four")
