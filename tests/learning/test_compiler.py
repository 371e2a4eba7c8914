"""Building the kernel with the real compiler, and living without one; each case a fresh process."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from fedbac_edge.learning.compiler import kernel_macros, processor
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


def start(cache: Path, code: str = LOAD, **environment: str) -> subprocess.Popen[str]:
    settings = {**os.environ, "XDG_CACHE_HOME": str(cache), **environment}
    settings.pop("CACHE_DIRECTORY", None)
    return subprocess.Popen([sys.executable, "-c", code], env=settings, stdout=subprocess.PIPE, text=True)


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


def test_the_library_is_named_after_model_and_processor() -> None:
    assert kernel_macros(LeNet())[:4] == ["-DCHANNELS=1", "-DHEIGHT=28", "-DWIDTH=28", "-DWIDTH1=6"]
    assert os.uname().machine in processor()
