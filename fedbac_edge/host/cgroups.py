"""What a container leaves of its machine: processors and memory, by the limits of cgroups v2 and v1.

Limits of a group bind all groups below it, so the lowest on the way up counts. Files that are not there, or
not readable, or say "max", are no limit.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

PROC = Path("/proc/self")
UNLIMITED_V1 = 1 << 60
"""v1 has no word for "no limit": it shows the largest number of whole pages."""


def available_cores(proc: Path = PROC) -> int:
    """Processors that this process may use: its affinity, and no more than the container's whole ones."""
    here = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    quota = cpu_limit(proc)
    return here if quota is None else max(1, min(here, int(quota)))


def cpu_limit(proc: Path = PROC) -> float | None:
    """Processors' worth of time that the container gives, 1.5 for one and a half; None without a limit."""
    found = [_share(_words(group / "cpu.max")) for group in _groups(proc, "")]
    for group in _groups(proc, "cpu"):
        times = [_words(group / f"cpu.cfs_{name}_us") for name in ("quota", "period")]
        found.append(_share([*times[0], *times[1]]))
    return min((share for share in found if share is not None), default=None)


def memory_limit(proc: Path = PROC) -> int | None:
    """Bytes that the container may use; None without a limit."""
    found = [_number(_words(group / "memory.max")) for group in _groups(proc, "")]
    found += [_number(_words(group / "memory.limit_in_bytes")) for group in _groups(proc, "memory")]
    return min((limit for limit in found if limit is not None and limit < UNLIMITED_V1), default=None)


def _groups(proc: Path, controller: str) -> Iterator[Path]:
    """Folders of this process's group and those above it, as far as they are mounted here. "": of v2."""
    place = _place(proc, controller)
    if place is None:
        return
    for root, mount in _mounts(proc, controller):
        # A container often sees its own group as the root of the mount, under the path that the host knows.
        below = place.relative_to(root) if place.is_relative_to(root) else PurePosixPath()
        if ".." in below.parts:  # the group is outside of what this namespace sees
            below = PurePosixPath()
        for part in (below, *below.parents):
            yield mount / part


def _place(proc: Path, controller: str) -> PurePosixPath | None:
    for line in _text(proc / "cgroup").splitlines():
        _, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if controller in controllers.split(","):
            return PurePosixPath(path)
    return None


def _mounts(proc: Path, controller: str) -> Iterator[tuple[PurePosixPath, Path]]:
    """(the group that is the root of the mount, where it is mounted)."""
    for line in _text(proc / "mountinfo").splitlines():
        before, _, after = line.partition(" - ")
        here, there = before.split(), after.split()
        if len(here) < 5 or len(there) < 3:
            continue
        kind = "cgroup" if controller else "cgroup2"
        if there[0] == kind and (not controller or controller in there[2].split(",")):
            yield PurePosixPath(here[3]), Path(here[4].replace("\\040", " "))


def _share(words: list[str]) -> float | None:
    """Of a quota and a period in microseconds."""
    quota, period = (_number(words[:1]), _number(words[1:2]))
    return quota / period if quota and period and quota > 0 else None


def _number(words: list[str]) -> int | None:
    try:
        return int(words[0])
    except (ValueError, IndexError):
        return None


def _words(path: Path) -> list[str]:
    return _text(path).split()


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
