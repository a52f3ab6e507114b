"""How much of a machine a process may use: files that Linux shows in /sys/fs/cgroup, of both versions."""

from math import inf
from pathlib import Path

import pytest

from mpitrain import machine

GB = 1 << 30
UNLIMITED = "9223372036854771712"


@pytest.mark.parametrize(
    ("groups", "files", "cores", "memory"),
    [
        ("0::/", {}, inf, None),
        ("0::/", {"cpu.max": "150000 100000", "memory.max": str(GB)}, 1.5, GB),  # in a container, whose root it is
        ("0::/a/b", {"a/b/cpu.max": "max 100000", "a/cpu.max": "400000 100000", "a/b/memory.max": "max"}, 4, None),
        ("0::/a/b", {"a/b/memory.max": str(2 * GB), "a/memory.max": str(GB)}, inf, GB),  # of a Slurm job's step
        (
            "4:memory:/a\n1:cpu,cpuacct:/a\n0::/",
            {"cpu/a/cpu.cfs_quota_us": "200000", "cpu/a/cpu.cfs_period_us": "100000", "memory/a/x": ""},
            2,
            None,
        ),
        (
            "4:memory:/a\n1:cpu,cpuacct:/a\n0::/",
            {
                "cpu/cpu.cfs_quota_us": "-1",
                "cpu/cpu.cfs_period_us": "100000",
                "memory/a/memory.limit_in_bytes": UNLIMITED,
                "memory/memory.limit_in_bytes": str(GB),
            },
            inf,
            GB,
        ),
    ],
)
def test_control_groups_limit_cores_and_memory(
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    groups: str,
    files: dict[str, str],
    cores: float,
    memory: int | None,
) -> None:
    """The group that limits most counts."""
    installed = machine.os.sysconf("SC_PAGE_SIZE") * machine.os.sysconf("SC_PHYS_PAGES")
    (tmp_path / "own").write_text(groups + "\n")
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text + "\n")
    monkeypatch.setattr(machine, "GROUPS", tmp_path)
    monkeypatch.setattr(machine, "OWN", tmp_path / "own")
    monkeypatch.setattr(machine.os, "sched_getaffinity", lambda process: set(range(3)))
    assert machine.core_limit() == cores
    assert machine.usable_cores() == min(int(min(cores, 3)), 3)
    assert machine.usable_memory() == (installed if memory is None else memory)


def test_a_share_of_less_than_a_core_is_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "core_limit", lambda: 0.5)
    assert machine.usable_cores() == 1


def test_where_there_are_no_control_groups(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(machine, "OWN", tmp_path / "missing")
    assert machine.core_limit() == inf and machine.usable_memory() > 0
