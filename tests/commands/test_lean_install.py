"""Commands where an extra is not installed: a sentence that names the package and the extra, no traceback."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

# Read by every interpreter that begins, so by workers, too.
SITECUSTOMIZE = """
import importlib.abc, importlib.util, sys
ABSENT = {absent!r}
class Absent(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in ABSENT:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)
sys.meta_path.insert(0, Absent())
whole = importlib.util.find_spec
importlib.util.find_spec = lambda name, *rest: None if name.split(".")[0] in ABSENT else whole(name, *rest)
"""
EVERYTHING = {"PIL", "cryptography", "iotcore", "matplotlib", "onnx", "onnxruntime", "ray", "scipy", "torch"}


def fedbac(absent: set[str], folder: Path, *arguments: str) -> tuple[int, str]:
    """Exit code and stderr of a command in `folder`, where these packages are not there."""
    (folder / "sitecustomize.py").write_text(SITECUSTOMIZE.format(absent=absent))
    done = subprocess.run(
        [sys.executable, "-m", "fedbac_edge", *arguments],
        capture_output=True,
        text=True,
        check=False,
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(folder)},
    )
    return done.returncode, done.stderr


def test_export(finished: Path, tmp_path: Path) -> None:
    arguments = ("export", "--state", str(finished), "--out", str(tmp_path / "models"))
    code, said = fedbac(EVERYTHING, tmp_path, *arguments)
    assert said == "Error: onnx is missing: pip install 'fedbac-edge[export]'\n"
    assert code == 1
    code, said = fedbac({"torch"}, tmp_path, *arguments, "--torchscript")
    assert said == "Error: torch is missing: pip install 'fedbac-edge[train]'\n"
    assert code == 1


@pytest.mark.parametrize("absent", [EVERYTHING, {"onnxruntime"}, {"torch", "onnx"}])
def test_the_demo_says_all_at_once_and_leaves_no_folder(absent: set[str], tmp_path: Path) -> None:
    code, said = fedbac(absent, tmp_path, "demo", "--out", str(tmp_path / "demo"))
    needed = [name for name in ("cryptography", "onnx", "onnxruntime", "torch") if name in absent]
    assert said == f"Error: the demo needs {', '.join(needed)}: pip install 'fedbac-edge[all]'\n"
    assert code == 2
    assert not (tmp_path / "demo").exists()


@pytest.mark.parametrize(
    "arguments",
    [
        ("simulate", "paper/fashion-mnist-0.1", "--rounds", "1", "--workers", "1"),
        ("semi", "hassle", "--rounds", "1", "--workers", "1"),
        ("report", "."),
        ("keys", "init", "--federation", "federation.toml"),
        ("doctor", "--broker", "mqtt://127.0.0.1:1"),
    ],
)
def test_no_other_command_ends_in_a_traceback(arguments: tuple[str, ...], tmp_path: Path) -> None:
    code, said = fedbac(EVERYTHING, tmp_path, *arguments)
    assert code in (1, 2)
    assert "Traceback" not in said
    if arguments[0] in ("simulate", "semi"):
        assert "torch is missing: pip install 'fedbac-edge[train]'" in said
