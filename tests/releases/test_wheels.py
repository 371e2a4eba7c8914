"""Every wheel that a device needs exists for 64-bit ARM: nothing is compiled on a Raspberry Pi."""

from __future__ import annotations

import importlib.metadata
import json
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement

PROJECT = Path(__file__).parents[2] / "pyproject.toml"
PLATFORMS = [f"manylinux_2_{minor}_aarch64" for minor in range(17, 37)] + ["manylinux2014_aarch64"]
ARM = {"platform_machine": "aarch64", "platform_system": "Linux", "sys_platform": "linux", "extra": ""}


def requirements(extra: str) -> list[Requirement]:
    """What `pip install fedbac-edge[extra]` needs."""
    project: dict[str, Any] = tomllib.loads(PROJECT.read_text("utf-8"))["project"]
    named = [*project["dependencies"], *project["optional-dependencies"][extra]]
    return [Requirement(each) for each in named]


def pip(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [
        sys.executable,
        "-m",
        "pip",
        "--disable-pip-version-check",
        "--retries",
        "1",
        "--timeout",
        "10",
    ]
    return subprocess.run([*command, *arguments], capture_output=True, text=True, timeout=200)


def on_arm(python: str) -> list[str]:
    """Options: wheels for that Python on 64-bit ARM only."""
    words = [word for platform in PLATFORMS for word in ("--platform", platform)]
    return [*words, "--python-version", python, "--implementation", "cp", "--only-binary", ":all:"]


@pytest.fixture(scope="module")
def registry() -> None:
    """Skips when pip has none that answers."""
    answer = pip("index", "versions", "click")
    if answer.returncode:
        pytest.skip(f"no package registry answers: {answer.stderr.strip()[-200:]}")


def resolved(wanted: list[Requirement], python: str, directory: Path) -> set[str]:
    """Names of all distributions, what they need included; fails unless each is a wheel that fits."""
    report = directory / "report.json"
    answer = pip(
        *("install", "--dry-run", "--ignore-installed", "--quiet", "--report", str(report)),
        *("--target", str(directory / "none"), *on_arm(python), *map(str, wanted)),
    )
    assert answer.returncode == 0, answer.stderr[-2000:]
    installed = json.loads(report.read_text("utf-8"))["install"]
    files = {each["metadata"]["name"].lower(): each["download_info"]["url"] for each in installed}
    assert all(file.endswith(("aarch64.whl", "-any.whl")) for file in files.values()), files
    return set(files)


@pytest.mark.usefixtures("registry")
def test_a_device_that_only_answers(tmp_path: Path) -> None:
    """Debian 12's Python."""
    found = resolved(requirements("infer"), "3.11", tmp_path)
    assert {"onnxruntime", "cryptography", "numpy", "msgspec"} <= found
    assert not {"torch", "onnx"} & found


@pytest.mark.usefixtures("registry")
def test_a_device_that_trains(tmp_path: Path) -> None:
    """Debian 13's Python. Torch is looked for by itself, since resolving it downloads it; what it needs is
    what the installed one says."""
    wanted = requirements("train")
    torch = next(each for each in wanted if each.name == "torch")
    answer = pip("index", "versions", *on_arm("3.13"), "torch")
    assert answer.returncode == 0, answer.stderr[-2000:]
    newest = answer.stdout.splitlines()[0].split("(")[1].rstrip(")")
    assert torch.specifier.contains(newest)
    needs = [Requirement(each) for each in importlib.metadata.requires("torch") or []]
    needs = [each for each in needs if each.marker is None or each.marker.evaluate(ARM)]
    for each in needs:
        each.marker = None
    wanted = [each for each in wanted if each.name != "torch"]
    found = resolved([*wanted, *needs], "3.13", tmp_path)
    assert {"numpy", "pillow", "safetensors", "sympy"} <= found
