"""Build the C kernel for one architecture on the machine that runs it, and keep it for the next start.

The compiler is $CC, else cc, gcc or clang. Libraries are kept in $CACHE_DIRECTORY (systemd), $XDG_CACHE_HOME
or ~/.cache, under names that hash everything they depend on, the level included, so that a disk moved to
another board never runs code built for the first one. Only a directory that no other can write to is used;
where there is none, or it is full, or mounted noexec, a temporary one does for this start.
`FEDBAC_KERNEL=off` turns kernels off. Whatever is missing, the caller gets NoKernel and has other paths.
"""

from __future__ import annotations

import contextlib
import ctypes
import hashlib
import os
import shutil
import stat
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from fedbac_edge.host import vector_level
from fedbac_edge.models.catalog import LeNet

SOURCE = Path(__file__).with_name("lenet_kernel.c")
FLAGS = ("-O3", "-std=gnu11", "-fno-strict-aliasing", "-shared", "-fPIC", "-Wno-psabi")
COMPILE_SECONDS = 300  # a small board takes tens of seconds


class NoKernel(RuntimeError):
    """This machine has no compiled kernel; the message says why."""


class SwitchedOff(NoKernel):
    """Nobody wants one: FEDBAC_KERNEL=off."""


def load_library(model: LeNet) -> ctypes.CDLL:
    """The kernel library for this architecture, compiled unless an earlier start left it; raises NoKernel."""
    if os.environ.get("FEDBAC_KERNEL", "").lower() == "off":
        raise SwitchedOff("switched off by FEDBAC_KERNEL=off")
    if os.name != "posix":
        raise NoKernel(f"kernels are built on POSIX systems only, this is {os.name}")
    compiler = find_compiler()
    try:
        source = SOURCE.read_bytes()
        level = vector_level.level()
    except OSError as error:
        raise NoKernel(f"the kernel's source is not installed: {error}") from error
    except vector_level.LevelError as error:
        raise NoKernel(str(error)) from error
    macros = kernel_macros(model)
    identity = "\n".join([compiler, _version(compiler), *FLAGS, *macros, built_for(level)]).encode()
    name = f"lenet-{hashlib.sha256(source + identity).hexdigest()[:24]}.so"
    faults: list[str] = []
    for place in (_cache, _for_once):
        try:
            with place() as directory, _only_one(directory / "lock"):
                return _library(directory / name, compiler, level, macros)
        except (OSError, NoKernel) as error:  # a full disk, a noexec mount, no temporary folder ...
            faults.append(str(error))
    raise NoKernel("; ".join(dict.fromkeys(faults)))


def _library(path: Path, compiler: str, level: str, macros: list[str]) -> ctypes.CDLL:
    """Loaded from `path`, after compiling it there if need be. Raises OSError and NoKernel."""
    if path.exists():
        try:
            return ctypes.CDLL(str(path))
        except OSError:
            path.unlink()  # not a whole library: a full disk, a power cut
    _compile(compiler, level, macros, path)
    try:
        return ctypes.CDLL(str(path))
    except OSError as error:
        raise NoKernel(f"the compiled kernel does not load: {error}") from error


def find_compiler() -> str:
    """Path of the C compiler; raises NoKernel."""
    for candidate in filter(None, (os.environ.get("CC"), "cc", "gcc", "clang")):
        if found := shutil.which(candidate):
            return found
    raise NoKernel("no C compiler (cc, gcc or clang) is installed")


def kernel_macros(model: LeNet) -> list[str]:
    """The macros that `lenet_kernel.c` expects."""
    names = ("CHANNELS", "HEIGHT", "WIDTH", "WIDTH1", "WIDTH2", "WIDTH3", "WIDTH4", "CLASSES")
    values = (*model.input_shape, *model.widths, model.classes)
    return [f"-D{name}={value}" for name, value in zip(names, values, strict=True)]


def built_for(level: str) -> str:
    """What the machine code depends on: the level, and where that says little, the processor."""
    flags = vector_level.compiler_flags(level)
    if flags is vector_level.ANY_PROCESSOR:
        return f"{level}\n{vector_level.processor()}"
    return "\n".join([level, *map(" ".join, flags)])


def _version(compiler: str) -> str:
    try:
        answer = subprocess.run(
            [compiler, "--version"], capture_output=True, text=True, timeout=30, check=True
        )
    except (OSError, subprocess.SubprocessError) as error:
        raise NoKernel(f"{compiler} does not run: {error}") from error
    return answer.stdout


def _compile(compiler: str, level: str, macros: list[str], path: Path) -> None:
    """Compile to a temporary name and move it into place, so that a half-written library is never seen.

    Raises NoKernel, and OSError when the directory takes no file.
    """
    handle, unfinished = tempfile.mkstemp(dir=path.parent, suffix=".part")
    os.close(handle)
    try:
        complaint = ""
        for flags in vector_level.compiler_flags(level):
            command = [compiler, *FLAGS, *flags, *macros, str(SOURCE), "-o", unfinished, "-lm"]
            try:
                result = subprocess.run(command, capture_output=True, text=True, timeout=COMPILE_SECONDS)
            except (OSError, subprocess.SubprocessError) as error:
                raise NoKernel(f"{compiler} does not run: {error}") from error
            if result.returncode == 0:
                with open(unfinished, "rb") as stream:
                    os.fsync(stream.fileno())
                os.replace(unfinished, path)
                return
            complaint = complaint or result.stderr.strip()[-500:]
        raise NoKernel(f"{compiler} did not compile {SOURCE.name}: {complaint}")
    finally:
        Path(unfinished).unlink(missing_ok=True)


@contextmanager
def _cache() -> Iterator[Path]:
    """The directory that lasts. Raises OSError when there is none that we alone can write to."""
    # systemd gives several with colons between them.
    base = os.environ.get("CACHE_DIRECTORY", "").partition(":")[0] or os.environ.get("XDG_CACHE_HOME")
    try:
        directory = (Path(base) if base else Path.home() / ".cache") / "fedbac-edge" / "kernels"
    except RuntimeError as error:
        raise OSError("this user has no home, so no cache") from error
    directory.mkdir(parents=True, exist_ok=True, mode=0o700)
    status = directory.stat()
    if status.st_uid != os.geteuid() or status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise OSError(f"others can write to {directory}")
    yield directory


@contextmanager
def _for_once() -> Iterator[Path]:
    """A directory for this one use: a loaded library outlives its file."""
    with tempfile.TemporaryDirectory(prefix="fedbac-kernel-", ignore_cleanup_errors=True) as temporary:
        yield Path(temporary)


@contextmanager
def _only_one(path: Path) -> Iterator[None]:
    """Hold a lock file: of many processes that start together one compiles, the others find its result.

    Where files have no locks (some network file systems) each compiles; the last one's library stays.
    """
    import fcntl

    with path.open("w") as stream:
        with contextlib.suppress(OSError):
            fcntl.flock(stream, fcntl.LOCK_EX)
        yield
