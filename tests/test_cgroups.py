"""Limits of containers: files as systems have them, and a real group where this user may make one."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from fedbac_edge.datasets import limits
from fedbac_edge.host.cgroups import available_cores, cpu_limit, memory_limit


class System:
    """A /proc/self and the folders of its groups."""

    def __init__(self, folder: Path) -> None:
        self.proc, self.mount = folder / "proc", folder / "mount"
        self.proc.mkdir()
        self.lines: list[str] = []

    def v2(self, group: str, root: str = "/", **files: str) -> None:
        """The process is in `group`; each file is "GROUP:TEXT" below the mount."""
        self._mount("0::", group, f"33 32 0:30 {root} {self.mount} rw - cgroup2 cgroup2 rw", files)

    def v1(self, controller: str, group: str, **files: str) -> None:
        line = f"33 32 0:30 / {self.mount / controller} rw - cgroup cgroup rw,{controller}"
        self._mount(f"4:{controller}:", group, line, {n: f"{controller}{text}" for n, text in files.items()})

    def _mount(self, entry: str, group: str, line: str, files: dict[str, str]) -> None:
        with (self.proc / "cgroup").open("a") as file:
            file.write(f"{entry}{group}\n")
        with (self.proc / "mountinfo").open("a") as file:
            file.write(f"22 1 0:5 / /proc rw - proc proc rw\n{line}\n")
        for name, place in files.items():
            where, _, text = place.partition(":")
            path = self.mount / where.strip("/") / name.replace("__", ".")
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(f"{text}\n")


@pytest.fixture
def system(tmp_path: Path) -> System:
    return System(tmp_path)


def test_without_limits_or_without_cgroups_the_machine_counts(system: System) -> None:
    assert (cpu_limit(system.proc), memory_limit(system.proc)) == (None, None)
    system.v2("/a", cpu__max="/a:max 100000", memory__max="/a:max")
    assert (cpu_limit(system.proc), memory_limit(system.proc)) == (None, None)
    assert available_cores(system.proc) == len(os.sched_getaffinity(0))


@pytest.mark.parametrize(("quota", "cores"), [(50_000, 1), (150_000, 1), (10**9, 10**9)])
def test_whole_processors_of_v2(system: System, quota: int, cores: int) -> None:
    system.v2("/a/b", cpu__max=f"/a/b:{quota} 100000", memory__max="/a/b:1000000")
    assert cpu_limit(system.proc) == quota / 100_000
    assert available_cores(system.proc) == min(cores, len(os.sched_getaffinity(0)))
    assert memory_limit(system.proc) == 1_000_000


def test_the_lowest_limit_on_the_way_up_counts(system: System) -> None:
    system.v2("/a/b/c", cpu__max="/a:200000 100000", memory__max="/a/b:4000")
    (system.mount / "memory.max").write_text("3000\n")
    (system.mount / "a" / "b" / "cpu.max").write_text("max 100000\n")
    (system.mount / "d").mkdir()
    (system.mount / "d" / "memory.max").write_text("1\n")  # not on the way
    assert (cpu_limit(system.proc), memory_limit(system.proc)) == (2.0, 3000)


@pytest.mark.parametrize("group", ["/docker/4711", "/../outside"])
def test_a_container_that_sees_its_group_as_the_root(system: System, group: str) -> None:
    system.v2(group, "/docker/4711" if "docker" in group else "/", cpu__max="/:100000 100000")
    assert cpu_limit(system.proc) == 1.0


def test_v1_has_numbers_for_no_limit(system: System) -> None:
    system.v1("cpu", "/a", cpu__cfs_quota_us="/a:-1", cpu__cfs_period_us="/a:100000")
    system.v1("memory", "/b", memory__limit_in_bytes="/b:9223372036854771712")
    assert (cpu_limit(system.proc), memory_limit(system.proc)) == (None, None)


def test_limits_of_v1(system: System) -> None:
    system.v1("cpu", "/a", cpu__cfs_quota_us="/a:250000", cpu__cfs_period_us="/a:100000")
    system.v1("memory", "/b", memory__limit_in_bytes="/b:5000000")
    assert (cpu_limit(system.proc), memory_limit(system.proc)) == (2.5, 5_000_000)


def test_damaged_files_are_no_limit(system: System) -> None:
    system.v2("/a", cpu__max="/a:many", memory__max="/a:")
    (system.proc / "mountinfo").open("a").write("nonsense\n - \n")
    assert (cpu_limit(system.proc), memory_limit(system.proc)) == (None, None)


@pytest.fixture
def group() -> Iterator[Path]:
    """A real group with 200 MB and, where the controller is there, half a processor; ours alone."""
    for folder in (Path("/sys/fs/cgroup/memory"), Path("/sys/fs/cgroup")):
        made = folder / f"fedbac-test-{os.getpid()}"
        limit = made / ("memory.limit_in_bytes" if folder.name == "memory" else "memory.max")
        try:
            made.mkdir()
        except OSError:
            continue
        try:
            limit.write_text("200000000")
            yield made
            return
        except OSError:
            continue
        finally:
            made.rmdir()
    pytest.skip("this user may make no group with a limit of memory")


def test_a_process_in_a_real_group_allows_half_of_its_memory(group: Path) -> None:
    code = "from fedbac_edge.datasets.limits import allowed_bytes; print(allowed_bytes())"
    enter = f'echo $$ > {group}/cgroup.procs && exec "$@"'
    child = subprocess.run(
        ["sh", "-c", enter, "sh", sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    pages = 200_000_000 // os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PAGE_SIZE")
    assert int(child.stdout) == pages // 2 < limits.MAX_BYTES
