"""What the system says of this machine: its processor, and how many of its cores and how much of its memory this
process may use. Slurm, Docker and Kubernetes limit both by control groups."""

import os
from collections.abc import Iterator
from contextlib import suppress
from math import inf
from pathlib import Path

GROUPS, OWN = Path("/sys/fs/cgroup"), Path("/proc/self/cgroup")


def processor() -> dict[str, str]:
    """What the system says of its first core, by name; nothing where it does not say it."""
    try:
        facts = Path("/proc/cpuinfo").read_text().split("\n\n", 1)[0]
    except OSError:
        return {}
    lines = dict(line.split(":", 1) for line in facts.splitlines() if ":" in line)
    return {key.strip(): value.strip() for key, value in lines.items()}


def is_zen_4() -> bool:
    """Whether this is AMD family 25 with AVX-512, which Zen 3 lacks."""
    known = processor()
    return known.get("vendor_id") == "AuthenticAMD" and known.get("cpu family") == "25" and "avx512f" in known["flags"]


def usable_cores() -> int:
    """How many cores this process may compute on at a time, at least 1."""
    return max(int(min(len(os.sched_getaffinity(0)), core_limit())), 1)


def core_limit() -> float:
    """How many cores' time the processes of this control group may take together, such as 1.5 after
    `docker run --cpus 1.5`; infinity where nothing limits it."""
    told = [text.split() for text in _told("", "cpu.max")]
    told += [[*both] for both in zip(_told("cpu", "cpu.cfs_quota_us"), _told("cpu", "cpu.cfs_period_us"), strict=False)]
    limits = (float(quota) / float(period) for quota, period in told if quota not in ("max", "-1"))
    return min(limits, default=inf)


def usable_memory() -> int:
    """Bytes of memory that the processes of this control group may take together: at most all that is installed."""
    told = (*_told("", "memory.max"), *_told("memory", "memory.limit_in_bytes"))
    installed = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return min([installed, *(int(limit) for limit in told if limit != "max")])


def _told(controller: str, name: str) -> Iterator[str]:
    """What the files of this name hold, of this process's control group and those that it is in. Version 2 of control
    groups has all files in one tree; version 1 has a tree for each controller."""
    with suppress(OSError):
        for line in OWN.read_text().splitlines():
            _, controllers, path = line.split(":", 2)
            if controller in controllers.split(","):
                place = GROUPS / controller / path.lstrip("/")
                for folder in (place, *place.parents):
                    with suppress(OSError):
                        yield (folder / name).read_text().strip()
