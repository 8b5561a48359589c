"""What is left of the memory is the least of what machine, control groups and process leave."""

import subprocess
import sys

from harness.core.execution import memory
from harness.core.execution.memory import Room, room


def test_groups_of_version_2_count_from_the_process_up_to_the_root(tmp_path) -> None:
    """800 of 1,000 bytes are used, 300 of them by idle pages of files: 500 are left; above, 700."""
    inner = tmp_path / "outer" / "inner"
    inner.mkdir(parents=True)
    for group, most, used in ((inner, "1000", 800), (inner.parent, "2000", 1300)):
        (group / "memory.max").write_text(f"{most}\n")
        (group / "memory.current").write_text(f"{used}\n")
    (inner / "memory.stat").write_text("anon 500\ninactive_file 300\n")
    own = tmp_path / "cgroup"
    own.write_text("0::/outer/inner\n")
    assert sorted(one.bytes for one in memory._of_groups(own, tmp_path)) == [500, 700]


def test_groups_of_version_1_count_and_no_limit_is_none(tmp_path) -> None:
    group = tmp_path / "memory" / "job"
    group.mkdir(parents=True)
    (group / "memory.limit_in_bytes").write_text("1000\n")
    (group / "memory.usage_in_bytes").write_text("400\n")
    (tmp_path / "memory.max").write_text("max\n")
    (tmp_path / "memory.current").write_text("5\n")
    own = tmp_path / "cgroup"
    own.write_text("4:memory:/job\n3:cpuset:/\n0::/\n")
    assert [one.bytes for one in memory._of_groups(own, tmp_path)] == [600]


def test_a_container_reads_its_group_at_the_root(tmp_path) -> None:
    """The path that the kernel names is one of the host."""
    (tmp_path / "memory.max").write_text("900\n")
    (tmp_path / "memory.current").write_text("100\n")
    own = tmp_path / "cgroup"
    own.write_text("0::/docker/abc\n")
    assert [one.bytes for one in memory._of_groups(own, tmp_path)] == [800]


def test_the_least_decides(monkeypatch) -> None:
    monkeypatch.setattr(memory, "_of_machine", lambda: [Room(7, "machine")])
    monkeypatch.setattr(memory, "_of_groups", lambda *paths: [Room(5, "group")])
    monkeypatch.setattr(memory, "_of_process", list)
    assert room() == Room(5, "group")
    monkeypatch.setattr(memory, "_of_machine", list)
    monkeypatch.setattr(memory, "_of_groups", lambda *paths: [])
    assert room() is None


def test_a_limit_of_the_address_space_counts() -> None:
    code = (
        "import resource; resource.setrlimit(resource.RLIMIT_AS, (10**9, 10**9));"
        "from harness.core.execution.memory import room; print(room().bytes, room().limit)"
    )
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    left, _, limit = told.partition(" ")
    assert 0 < int(left) < 10**9
    assert "ulimit" in limit
