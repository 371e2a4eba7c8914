"""A million inputs per decoder: nothing but refusals, and memory that does not grow."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from fedbac_edge.lab.trials import strangers

pytestmark = [
    pytest.mark.soak,
    pytest.mark.skipif(
        importlib.util.find_spec("atheris") is None, reason="atheris is missing: pip install -e '.[soak]'"
    ),
]

INPUTS = int(os.environ.get("FEDBAC_SOAK_INPUTS", "1000000"))
GROWTH_MB = 25.0
"""Of it atheris's own corpus takes the most."""


@pytest.mark.parametrize("name", sorted(strangers.decoders()))
def test_a_decoder(name: str, tmp_path: Path, seconds: float, record: Callable[[str], None]) -> None:
    corpus = tmp_path / "corpus"
    corpus.mkdir()
    script = str(Path(__file__).with_name("fuzz.py"))
    ran = subprocess.run(
        [sys.executable, script, name, str(INPUTS), str(int(seconds)), str(corpus)],
        capture_output=True,
        text=True,
        cwd=tmp_path,
    )
    assert ran.returncode == 0, ran.stderr[-4000:]
    lines = [json.loads(line) for line in ran.stdout.splitlines() if line.startswith("{")]
    assert len(lines) >= 2, ran.stderr[-2000:]
    early, late = lines[0], lines[-1]
    record(
        f"fuzz {name}: {late['inputs']:,} inputs in {late['seconds']:.0f} s, {late['read']:,} readable, "
        f"{early['mb']} MB early, {late['mb']} MB late"
    )
    assert late["mb"] - early["mb"] < GROWTH_MB
