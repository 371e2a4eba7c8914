"""Bits at every vector level that this machine has, and on an emulated processor without AVX-512."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys

import pytest

from fedbac_edge.host import vector_level

THREE_STEPS = """
import hashlib
import numpy as np
from fedbac_edge.learning.local import train_jointly
from fedbac_edge.vocabulary.training import LocalTraining, Normalisation
from fedbac_edge.models.catalog import LeNet
from fedbac_edge.parts.part import pack

rng = np.random.default_rng(1)
model = LeNet()
parts = {role: model.init(rng) for role in ("global", "cluster")}
x, y = rng.integers(0, 256, (40, 28, 28, 1)).astype(np.uint8), rng.integers(0, 10, 40)
settings = LocalTraining(
    epochs=1, batch_size=16, learning_rate=0.05, momentum=0.9, weight_decay=5e-4, clip_norm=1.0, l2={}
)
normalisation = Normalisation(mean=(0.3,), std=(0.35,))
done = train_jointly(model, parts, x, y, settings, normalisation, [7], backend="compiled")
print(hashlib.sha256(b"".join(pack(part) for part in done.parts.values())).hexdigest())
"""
LEVELS = [level for level in vector_level.levels() if level != "x86-64"]
HASWELL = "x86-64-v3"


def bits(command: list[str]) -> str:
    otherwise = {"FEDBAC_KERNEL", *(name for level in vector_level.VARIABLES.values() for name in level)}
    environment = {name: value for name, value in os.environ.items() if name not in otherwise}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=230)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def at(level: str) -> str:
    python = [sys.executable, "-c", THREE_STEPS]
    return bits([sys.executable, "-m", "fedbac_edge.host.vector_level", level, *python])


@pytest.mark.usefixtures("kernel")
def test_each_level_repeats_its_bits_and_has_its_own() -> None:
    found = {level: {at(level), at(level)} for level in LEVELS}
    assert all(len(hashes) == 1 for hashes in found.values()), found
    if "x86-64-v2" in LEVELS:
        assert len(set.union(*found.values())) == len(LEVELS), "which is why a run's level is recorded"


@pytest.mark.usefixtures("kernel")
@pytest.mark.skipif(HASWELL not in LEVELS, reason="this machine has no AVX2")
def test_a_cap_gives_the_bits_of_a_processor_that_has_no_more() -> None:
    """An emulated Haswell: AVX2 and FMA, no AVX-512. It is told its level: the emulator shows our /proc."""
    if shutil.which("qemu-x86_64") is None:
        pytest.skip("qemu-x86_64 is not installed (Debian package qemu-user)")
    capped = f"{vector_level.VARIABLE}={HASWELL}"
    haswell = ["env", capped, "qemu-x86_64", "-cpu", "Haswell", sys.executable, "-c", THREE_STEPS]
    assert bits(haswell) == at(HASWELL)
