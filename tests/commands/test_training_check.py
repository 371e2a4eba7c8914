"""What the doctor says of training, with the real compiler, without one, and where nothing can be kept."""

from __future__ import annotations

from pathlib import Path

import pytest

from fedbac_edge.commands.training_check import training
from fedbac_edge.host import vector_level
from fedbac_edge.learning.compiler import NoKernel, find_compiler

UNITS = Path(__file__).parents[2] / "deploy"


@pytest.fixture(autouse=True)
def plain(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("FEDBAC_KERNEL", raising=False)
    monkeypatch.delenv("CACHE_DIRECTORY", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))


def test_the_compiled_kernel_and_its_level(tmp_path: Path) -> None:
    try:
        find_compiler()
    except NoKernel as reason:
        pytest.skip(str(reason))
    found = training()
    assert (found.result, found.found) == ("ok", f"by the compiled kernel, at level {vector_level.level()}")
    assert list((tmp_path / "fedbac-edge" / "kernels").glob("*.so")), "the next start finds it"


def test_no_compiler_is_told_with_the_package_to_install(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("CC", "")
    monkeypatch.setenv("PATH", str(tmp_path))
    found = training()
    assert found.result == "warning"
    assert "no C compiler" in found.found
    assert "apt install gcc" in found.remedy


def test_who_wants_no_kernel_is_not_warned(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FEDBAC_KERNEL", "off")
    found = training()
    assert found.result == "ok"
    assert "switched off" in found.found


def test_the_unit_that_trains_keeps_its_kernel() -> None:
    """Its user has no home, and the system is read-only to it."""
    for unit in UNITS.glob("*.service"):
        text = unit.read_text()
        trains = "fedbac-agent join" in text
        assert ("\nCacheDirectory=" in text) == trains, unit.name
