"""The vector level: what a machine has, how it is capped, and that the cap reaches those it is meant for."""

from __future__ import annotations

import os
import platform
import subprocess
import sys

import pytest

from fedbac_edge.host import vector_level
from fedbac_edge.host.vector_level import VARIABLE, levels_of, model_of

V2 = "cx16 lahf_lm popcnt pni sse4_1 sse4_2 ssse3"
V3 = f"{V2} abm avx avx2 bmi1 bmi2 f16c fma movbe xsave"
V4 = f"{V3} avx512f avx512bw avx512cd avx512dq avx512vl"
# The names of the libraries' own levels, as they say them themselves.
TORCH = {"x86-64-v2": "DEFAULT", "x86-64-v3": "AVX2", "x86-64-v4": "AVX512"}
OTHERWISE = {"FEDBAC_KERNEL", *(name for level in vector_level.VARIABLES.values() for name in level)}
"""These tests run at a level of their own, also where all tests run at another."""
ASK = """
import os, sys, torch
from fedbac_edge.learning.compiled import kernel_for
from fedbac_edge.models.catalog import LeNet
from fedbac_edge.host.vector_level import level
try:
    lanes = kernel_for(LeNet()).lanes
except RuntimeError:
    lanes = 0
print(level(), torch.backends.cpu.get_cpu_capability(), lanes)
"""


@pytest.mark.parametrize(
    ("machine", "flags", "found"),
    [
        ("x86_64", "", ["x86-64"]),
        ("x86_64", V2, ["x86-64", "x86-64-v2"]),
        # AVX without AVX2 (2011), and AVX2 without FMA: their sums are those of v2.
        ("x86_64", f"{V2} avx xsave", ["x86-64", "x86-64-v2"]),
        ("x86_64", V3.replace(" fma", ""), ["x86-64", "x86-64-v2"]),
        ("AMD64", V3, ["x86-64", "x86-64-v2", "x86-64-v3"]),
        ("x86_64", f"{V3} avx512f", ["x86-64", "x86-64-v2", "x86-64-v3"]),
        ("x86_64", V4, ["x86-64", "x86-64-v2", "x86-64-v3", "x86-64-v4"]),
        ("aarch64", "fp asimd crc32", ["armv8-a"]),
        ("arm64", "", ["armv8-a"]),
        ("aarch64", "fp asimd sve", ["armv8-a", "armv8-a+sve"]),
        ("riscv64", "", ["riscv64"]),
    ],
)
def test_the_levels_of_a_machine(machine: str, flags: str, found: list[str]) -> None:
    assert list(levels_of(machine, frozenset(flags.split()))) == found


PI_4 = """processor\t: 0
BogoMIPS\t: 108.00
Features\t: fp asimd evtstrm crc32 cpuid
CPU implementer\t: 0x41
CPU architecture: 8
CPU part\t: 0xd08
"""


def test_processors_have_a_name_also_on_arm() -> None:
    """Machines of a Ray cluster are compared by it."""
    pi_5 = PI_4.replace("0xd08", "0xd0b")
    assert model_of(PI_4.splitlines()) == "CPU implementer 0x41, CPU part 0xd08"
    assert model_of(pi_5.splitlines()) != model_of(PI_4.splitlines())
    assert model_of(["model name\t: AMD EPYC 9B14", "cpu MHz : 2,000"]) == "model name AMD EPYC 9B14"
    assert model_of([]) == ""
    assert vector_level.model_name()


def test_a_cap_that_this_machine_does_not_have_ends_each_command() -> None:
    for module, command in (("fedbac_edge", "status"), ("device_agent", "infer")):
        child = subprocess.run(
            [sys.executable, "-m", module, command],
            env={**os.environ, VARIABLE: "x86-64-v9"},
            capture_output=True,
            text=True,
        )
        assert child.returncode == 2, child.stderr
        assert f"{VARIABLE}=x86-64-v9: this machine has {vector_level.levels()[0]}" in child.stderr
        assert "Traceback" not in child.stderr


@pytest.mark.parametrize("level", [name for name in TORCH if name in vector_level.levels()])
def test_one_setting_caps_our_kernel_and_torch(level: str) -> None:
    """Also what is set for one process alone reaches the libraries: the process starts itself anew."""
    anew = f"from fedbac_edge.host import vector_level; vector_level.start_capped()\n{ASK}"
    commands = [
        [sys.executable, "-m", "fedbac_edge.host.vector_level", level, sys.executable, "-c", ASK],
        [sys.executable, "-c", anew],
    ]
    lanes = {"x86-64-v2": 4, "x86-64-v3": 8, "x86-64-v4": 16}[level]
    for command in commands:
        environment = {name: value for name, value in os.environ.items() if name not in OTHERWISE}
        found = subprocess.run(
            command, env={**environment, VARIABLE: level}, capture_output=True, text=True, check=True
        ).stdout.split()
        assert found[:2] == [level, TORCH[level]]
        assert found[2] in (str(lanes), "0"), "0: no compiler is here"


@pytest.mark.skipif(platform.machine() != "x86_64", reason="names of x86")
def test_a_command_line_that_cannot_work_is_said() -> None:
    for arguments, words in ((["x86-64-v9", "true"], "this machine has"), (["x86-64"], "give a level and")):
        child = subprocess.run(
            [sys.executable, "-m", "fedbac_edge.host.vector_level", *arguments],
            capture_output=True,
            text=True,
        )
        assert child.returncode == 1
        assert words in child.stderr
