"""The vector level of this machine, and of this run: the instruction sets that sums of floats depend on.

A vector of 16 floats is summed in another order than one of 8, and a fused multiply-add rounds once where
two instructions round twice. So bits are equal on equal levels only. Names are those of compilers:
x86-64-v2 (SSE4.2), x86-64-v3 (AVX2 and FMA), x86-64-v4 (AVX-512); armv8-a, armv8-a+sve. On another processor
the level is its family ("riscv64"), and has nothing below it.

`FEDBAC_LEVEL` caps it. Our kernel is compiled for the level; `start_capped`, called first in each command,
starts the process anew with what torch, oneDNN, numpy, OpenBLAS, MKL and the C library read. onnxruntime
reads no such variable: it always takes what the processor has.

    python -m fedbac_edge.host.vector_level                       the levels of this machine
    python -m fedbac_edge.host.vector_level x86-64-v3 COMMAND ... run a command at a lower one
"""

from __future__ import annotations

import os
import platform
import shutil
import sys
from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path

VARIABLE = "FEDBAC_LEVEL"

LADDERS: dict[str, tuple[tuple[str, frozenset[str]], ...]] = {
    "x86_64": (
        ("x86-64", frozenset()),
        ("x86-64-v2", frozenset(["cx16", "lahf_lm", "popcnt", "pni", "sse4_1", "sse4_2", "ssse3"])),
        ("x86-64-v3", frozenset(["abm", "avx", "avx2", "bmi1", "bmi2", "f16c", "fma", "movbe", "xsave"])),
        ("x86-64-v4", frozenset(["avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl"])),
    ),
    "aarch64": (("armv8-a", frozenset()), ("armv8-a+sve", frozenset(["sve"]))),
}
"""Processor family -> (level, what /proc/cpuinfo must show beside what the level below needs)."""

_V3 = ["-mavx2", "-mfma", "-mf16c", "-mbmi", "-mbmi2", "-mlzcnt", "-mmovbe"]
_V2 = ["-mcx16", "-msahf", "-mpopcnt", "-msse4.2"]
_V4 = ["-mavx512f", "-mavx512bw", "-mavx512cd", "-mavx512dq", "-mavx512vl"]
# The first that the compiler accepts. Always the generic tuning: that of a processor may leave multiply-adds
# unfused, which changes the bits. Compilers before GCC 11 and clang 12 know no levels, but their parts.
COMPILER_FLAGS: dict[str, tuple[tuple[str, ...], ...]] = {
    "x86-64": (("-march=x86-64", "-mtune=generic"),),
    "x86-64-v2": (("-march=x86-64-v2", "-mtune=generic"), ("-mtune=generic", *_V2)),
    "x86-64-v3": (("-march=x86-64-v3", "-mtune=generic"), ("-mtune=generic", *_V2, *_V3)),
    "x86-64-v4": (("-march=x86-64-v4", "-mtune=generic"), ("-mtune=generic", *_V2, *_V3, *_V4)),
    # Our vectors are of a fixed length: SVE would not change them.
    "armv8-a": (("-march=armv8-a", "-mtune=generic"), ("-march=armv8-a",)),
    "armv8-a+sve": (("-march=armv8-a", "-mtune=generic"), ("-march=armv8-a",)),
}
ANY_PROCESSOR = (("-march=native",), ("-mcpu=native",), ())

_NUMPY_V4 = "X86_V4 AVX512F AVX512CD AVX512_SKX AVX512_CLX AVX512_CNL AVX512_ICL AVX512_SPR"
_GLIBC_V4 = "-AVX512F,-AVX512VL,-AVX512BW,-AVX512DQ,-AVX512CD"
_V2_VARIABLES = {
    "ATEN_CPU_CAPABILITY": "default",
    "ONEDNN_MAX_CPU_ISA": "SSE41",
    "MKL_ENABLE_INSTRUCTIONS": "SSE4_2",
    "OPENBLAS_CORETYPE": "Nehalem",
    "NPY_DISABLE_CPU_FEATURES": f"X86_V3 AVX2 FMA3 {_NUMPY_V4}",
    "GLIBC_TUNABLES": f"glibc.cpu.hwcaps={_GLIBC_V4},-AVX2,-FMA,-FMA4",
}
VARIABLES: dict[str, dict[str, str]] = {
    "x86-64": _V2_VARIABLES,  # the wheels of numpy and torch go no lower
    "x86-64-v2": _V2_VARIABLES,
    "x86-64-v3": {
        "ATEN_CPU_CAPABILITY": "avx2",
        "ONEDNN_MAX_CPU_ISA": "AVX2",
        "MKL_ENABLE_INSTRUCTIONS": "AVX2",
        "OPENBLAS_CORETYPE": "Haswell",
        "NPY_DISABLE_CPU_FEATURES": _NUMPY_V4,
        "GLIBC_TUNABLES": f"glibc.cpu.hwcaps={_GLIBC_V4}",
    },
    "armv8-a": {
        "ATEN_CPU_CAPABILITY": "default",
        "OPENBLAS_CORETYPE": "ARMV8",
        "NPY_DISABLE_CPU_FEATURES": "SVE",
    },
}
"""What the libraries read, for each level that can be a cap."""


class LevelError(ValueError):
    """FEDBAC_LEVEL names what this machine does not have; the message says what it has."""


@lru_cache(maxsize=1)
def levels() -> tuple[str, ...]:
    """All levels that this machine has, the lowest first."""
    return levels_of(platform.machine(), _features())


def levels_of(machine: str, features: frozenset[str]) -> tuple[str, ...]:
    """Those of a processor family with these flags in /proc/cpuinfo."""
    family = {"amd64": "x86_64", "arm64": "aarch64"}.get(machine.lower(), machine.lower())
    found: list[str] = []
    for level, needed in LADDERS.get(family, ((family or "unknown", frozenset()),)):
        if not needed <= features:
            break
        found.append(level)
    return tuple(found)


def level() -> str:
    """The level of this run: the machine's highest, or the cap. Raises LevelError."""
    wanted = os.environ.get(VARIABLE, "")
    if not wanted:
        return levels()[-1]
    if wanted not in levels():
        raise LevelError(f"{VARIABLE}={wanted}: this machine has {', '.join(levels())}")
    return wanted


def compiler_flags(level: str) -> tuple[tuple[str, ...], ...]:
    """Flags for a C compiler, in the order to try them."""
    return COMPILER_FLAGS.get(level, ANY_PROCESSOR)


def variables(level: str) -> dict[str, str]:
    """What caps the libraries at `level`; nothing when this machine has no more."""
    return {} if level == levels()[-1] else {VARIABLE: level, **VARIABLES[level]}


def processor() -> str:
    """The model of this processor, as far as its system tells; where it has flags of their own, those too."""
    wanted = ("flags", "features", "model name", "cpu part", "cpu implementer")
    found = sorted({line for line in _cpuinfo() if line.lower().startswith(wanted)})
    return "\n".join([platform.machine(), platform.processor(), *found])


def model_name() -> str:
    """The processor in one line: its name on x86, maker and part on ARM, which has no names here."""
    return model_of(_cpuinfo()) or platform.processor() or platform.machine()


def model_of(cpuinfo: Sequence[str]) -> str:
    """The same of the lines of a /proc/cpuinfo; "" where they do not tell."""
    for wanted in (("model name",), ("cpu implementer", "cpu part"), ("uarch",)):
        found = {line for line in cpuinfo if line.lower().startswith(wanted)}
        if found:
            return ", ".join(" ".join(line.replace(":", " ").split()) for line in sorted(found))
    return ""


def start_capped() -> None:
    """Where FEDBAC_LEVEL is set and the libraries do not know it yet, start this process anew.

    Ends the process with exit code 2 when this machine does not have the level.
    """
    try:
        wanted = variables(level())
    except LevelError as error:
        print(f"Error: {error}", file=sys.stderr)
        raise SystemExit(2) from None
    if any(os.environ.get(name) != value for name, value in wanted.items()):
        _replace([sys.executable, *sys.orig_argv[1:]], wanted)


def _replace(command: Sequence[str], wanted: Mapping[str, str]) -> None:
    sys.stdout.flush()
    os.execve(command[0], list(command), {**os.environ, **wanted})


def _cpuinfo() -> list[str]:
    try:
        return Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return []


def _features() -> frozenset[str]:
    """The flags that every processor of this machine has; none where the system does not tell."""
    shown = [
        frozenset(line.partition(":")[2].split())
        for line in _cpuinfo()
        if line.lower().startswith(("flags", "features"))
    ]
    return frozenset.intersection(*shown) if shown else frozenset()


def _main(arguments: Sequence[str]) -> None:
    if not arguments:
        print("\n".join(levels()))
        return
    os.environ[VARIABLE] = arguments[0]
    try:
        wanted = variables(level())
    except LevelError as error:
        raise SystemExit(f"Error: {error}") from None
    program = shutil.which(arguments[1]) if len(arguments) > 1 else None
    if program is None:
        raise SystemExit("Error: give a level and a command that is installed")
    _replace([program, *arguments[2:]], wanted)


if __name__ == "__main__":
    _main(sys.argv[1:])
