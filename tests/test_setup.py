"""What `make` does before anything of ours runs: an old Python, a .venv half made, a pip that fails."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """The files that `make setup` reads before it needs the packages."""
    place = tmp_path / "clone"
    place.mkdir()
    for name in ("Makefile", "pyproject.toml", "constraints.txt"):
        shutil.copy(ROOT / name, place / name)
    shutil.copytree(ROOT / ".ci", place / ".ci")
    return place


def python_of(place: Path, version: tuple[int, int]) -> Path:
    """A Python that says that it is another version, and is this one in all else."""
    fake = place / f"python{version[0]}.{version[1]}"
    fake.write_text(
        "#!/bin/sh\n"
        f'if [ "$1" = --version ]; then echo "Python {version[0]}.{version[1]}.9"; exit; fi\n'
        'if [ "$1" = -c ]; then shift\n'
        f'exec {sys.executable} -c "import sys; sys.version_info = {version}; $1"; fi\n'
        f'exec {sys.executable} "$@"\n'
    )
    fake.chmod(0o755)
    return fake


def make(clone: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["make", *arguments], cwd=clone, capture_output=True, text=True, timeout=120, check=False
    )


def test_a_python_that_is_too_old_is_said_in_a_sentence_and_leaves_nothing(
    clone: Path, tmp_path: Path
) -> None:
    done = make(clone, "demo", f"PYTHON={python_of(tmp_path, (3, 9))}")
    assert done.returncode != 0
    assert "Python 3.9.9" in done.stderr
    assert "is too old: fedbac-edge needs Python 3." in done.stderr
    assert "make PYTHON=python3." in done.stderr
    assert "installing" not in done.stdout
    assert not (clone / ".venv").exists()


def test_a_python_that_is_not_there_is_said(clone: Path) -> None:
    done = make(clone, "setup", "PYTHON=/nowhere/python3")
    assert done.returncode != 0
    assert "there is no /nowhere/python3 here" in done.stderr
    assert not (clone / ".venv").exists()


@pytest.mark.parametrize("left", ["nothing", "no pip", "gone", "old"])
def test_a_half_made_environment_is_made_anew(clone: Path, tmp_path: Path, left: str) -> None:
    """As a kill, an upgrade of the system's Python, or an older Python leave it."""
    bin = clone / ".venv" / "bin"
    bin.mkdir(parents=True)
    (clone / ".venv" / "packages.stamp").touch()
    if left == "no pip":
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", clone / ".venv"], check=True)
    elif left == "gone":
        (bin / "python").symlink_to("/nowhere/python3")
    elif left == "old":
        (bin / "python").symlink_to(python_of(tmp_path, (3, 9)))
    done = subprocess.run(
        ["sh", ".ci/virtual-environment", sys.executable],
        cwd=clone,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "made anew" in done.stdout
    assert not (clone / ".venv" / "packages.stamp").exists()
    assert subprocess.run([bin / "python", "-c", "import pip"], check=False).returncode == 0


def test_a_failed_environment_is_not_left_behind(clone: Path, tmp_path: Path) -> None:
    python = tmp_path / "python3"
    python.write_text(
        f'#!/bin/sh\n[ "$1" != -m ] || {{ mkdir .venv; exit 1; }}\nexec {sys.executable} "$@"\n'
    )
    python.chmod(0o755)
    done = subprocess.run(
        ["sh", ".ci/virtual-environment", str(python)], cwd=clone, capture_output=True, text=True, check=False
    )
    assert done.returncode == 1
    assert "python3-venv" in done.stderr
    assert not (clone / ".venv").exists()


def install(tmp_path: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(ROOT / ".ci/install-packages"), str(tmp_path / "log"), *arguments]
    return subprocess.run(
        command, capture_output=True, text=True, check=False, env={**os.environ, "PIP_NO_INDEX": "1"}
    )


def test_packages_are_installed_in_a_line(tmp_path: Path) -> None:
    done = install(tmp_path, "numpy", "click", "msgspec")
    assert done.returncode == 0, done.stderr
    assert len(done.stdout.splitlines()) == 1
    assert "Requirement already satisfied: numpy" in (tmp_path / "log").read_text()


def test_the_errors_of_pip_are_shown(tmp_path: Path) -> None:
    done = install(tmp_path, "no-such-package-of-anybody")
    assert done.returncode == 1
    assert "No matching distribution found for no-such-package-of-anybody" in done.stderr
    assert str(tmp_path / "log") in done.stderr
