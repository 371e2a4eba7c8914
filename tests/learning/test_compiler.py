"""Building the kernel with the real compiler, and living without one; each case a fresh process."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from fedbac_edge.learning.compiler import built_for, find_compiler, kernel_macros
from fedbac_edge.models.catalog import LeNet

# Without torch: importing it would take longer than all the rest.
LOAD = """
from fedbac_edge.learning.compiler import NoKernel, load_library
from fedbac_edge.models.catalog import LeNet
try:
    load_library(LeNet(input_shape=(1, 16, 16), classes=3, widths=(2, 3, 5, 4)))
    print("kernel")
except NoKernel as reason:
    print(reason)
"""
CHOOSE = """
from fedbac_edge.learning.local import best_backend
from fedbac_edge.models.catalog import LeNet
print(best_backend(LeNet()))
"""


def start(
    cache: Path, code: str = LOAD, before: Sequence[str] = (), **environment: str
) -> subprocess.Popen[str]:
    settings = {**os.environ, "XDG_CACHE_HOME": str(cache), **environment}
    settings.pop("CACHE_DIRECTORY", None)
    command = [*before, sys.executable, "-c", code]
    return subprocess.Popen(command, env=settings, stdout=subprocess.PIPE, text=True)


def in_mounts(*commands: str) -> list[str]:
    """The beginning of a command that runs with mounts of its own; skips where that is not allowed."""
    shell = ["unshare", "--map-root-user", "--mount", "sh", "-c", " && ".join([*commands, 'exec "$@"']), "sh"]
    if shutil.which("unshare") is None or subprocess.run([*shell, "true"], capture_output=True).returncode:
        pytest.skip("this system lets nobody have mounts of their own (unshare --map-root-user --mount)")
    return shell


def answer(process: subprocess.Popen[str]) -> str:
    out, _ = process.communicate(timeout=120)
    assert process.returncode == 0
    return out.strip()


def libraries(cache: Path) -> list[Path]:
    return sorted((cache / "fedbac-edge" / "kernels").glob("*.so"))


@pytest.mark.usefixtures("kernel")
def test_starting_together_compiles_once_and_a_broken_library_is_built_again(tmp_path: Path) -> None:
    both = [start(tmp_path), start(tmp_path)]
    assert [answer(process) for process in both] == ["kernel"] * 2
    (library,) = libraries(tmp_path)
    assert [path.name for path in library.parent.iterdir() if path.suffix == ".part"] == []
    size, written = library.stat().st_size, library.stat().st_mtime_ns
    assert answer(start(tmp_path)) == "kernel"
    assert library.stat().st_mtime_ns == written

    library.unlink()
    library.write_bytes(b"\x7fELF and then the power went")
    assert answer(start(tmp_path)) == "kernel"
    assert library.stat().st_size == size


@pytest.mark.usefixtures("kernel")
def test_a_directory_that_others_can_write_to_is_not_used(tmp_path: Path) -> None:
    directory = tmp_path / "fedbac-edge" / "kernels"
    directory.mkdir(parents=True)
    directory.chmod(0o777)
    assert answer(start(tmp_path)) == "kernel"
    assert list(directory.iterdir()) == []


def test_without_a_working_compiler_the_fused_path_is_chosen_and_the_reason_given(tmp_path: Path) -> None:
    failing = tmp_path / "failing-cc"
    failing.write_text("#!/bin/sh\n[ \"$1\" = --version ] && exit 0\necho 'no such luck' >&2\nexit 1\n")
    failing.chmod(0o755)
    assert answer(start(tmp_path, CC=str(failing))).endswith("did not compile lenet_kernel.c: no such luck")
    nothing = {"CC": "", "PATH": str(tmp_path / "empty")}
    assert answer(start(tmp_path, **nothing)) == "no C compiler (cc, gcc or clang) is installed"
    assert answer(start(tmp_path, FEDBAC_KERNEL="off")) == "switched off by FEDBAC_KERNEL=off"
    assert answer(start(tmp_path, CHOOSE, **nothing)) == "fused"
    assert libraries(tmp_path) == []


@pytest.mark.usefixtures("kernel")
def test_a_file_system_without_locks_is_no_hindrance(tmp_path: Path) -> None:
    """As NFS without its lock daemon: flock answers ENOLCK."""
    source, library = tmp_path / "no_locks.c", tmp_path / "no_locks.so"
    source.write_text("#include <errno.h>\nint flock(int file, int how) { errno = ENOLCK; return -1; }")
    subprocess.run([find_compiler(), "-shared", "-fPIC", source, "-o", library], check=True)
    check = (
        "import fcntl, sys\ntry:\n    fcntl.flock(sys.stdin, fcntl.LOCK_EX)\nexcept OSError as e: print(e)"
    )
    if "locks" not in answer(start(tmp_path, check, LD_PRELOAD=str(library))):
        pytest.skip("this C library takes no other flock")
    assert answer(start(tmp_path, LD_PRELOAD=str(library))) == "kernel"
    assert len(libraries(tmp_path)) == 1


@pytest.mark.usefixtures("kernel")
def test_a_full_disk_for_the_cache_is_no_hindrance(tmp_path: Path) -> None:
    full = in_mounts(
        f"mount -t tmpfs -o size=16k none {tmp_path}",
        f"dd if=/dev/zero of={tmp_path}/all bs=4k 2>/dev/null || true",
    )
    assert answer(start(tmp_path, before=full)) == "kernel"


@pytest.mark.usefixtures("kernel")
def test_a_cache_that_runs_no_code_is_no_hindrance(tmp_path: Path) -> None:
    noexec = in_mounts(f"mount -t tmpfs -o noexec none {tmp_path}")
    assert answer(start(tmp_path, before=noexec)) == "kernel"


@pytest.mark.usefixtures("kernel")
def test_where_nothing_can_be_written_there_is_no_kernel_and_training_goes_on(tmp_path: Path) -> None:
    """A container with a read-only system: no cache, and no temporary folder."""
    read_only = in_mounts(
        "for place in /tmp /var/tmp /usr/tmp; do [ ! -d $place ] || mount -t tmpfs -o ro none $place; done",
        "cd /proc",
    )
    nowhere = {"TMPDIR": "/proc/nowhere", "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    reason = answer(start(Path("/proc/no-cache"), before=read_only, **nowhere))
    assert "/proc/no-cache" in reason
    assert "No usable temporary directory" in reason
    assert answer(start(Path("/proc/no-cache"), CHOOSE, read_only, **nowhere)) == "fused"


def test_the_reason_is_told_at_a_level_that_is_seen_unless_it_was_wanted(tmp_path: Path) -> None:
    def words(**environment: str) -> str:
        command = [sys.executable, "-c", CHOOSE]
        return subprocess.run(
            command, env={**os.environ, **environment}, capture_output=True, text=True, check=True
        ).stderr

    told = words(CC="", PATH=str(tmp_path))
    assert told.count("\n") == 1
    assert "without the compiled kernel" in told
    assert "no C compiler" in told
    assert words(FEDBAC_KERNEL="off") == ""


def test_the_library_is_named_after_model_and_level() -> None:
    assert kernel_macros(LeNet())[:4] == ["-DCHANNELS=1", "-DHEIGHT=28", "-DWIDTH=28", "-DWIDTH1=6"]
    assert "-march=x86-64-v3 -mtune=generic" in built_for("x86-64-v3")
    assert built_for("x86-64-v3") != built_for("x86-64-v4")
    assert os.uname().machine in built_for("riscv64"), "of a family without levels, the processor itself"
