"""What `fedbac doctor` says of training: on which path this machine trains, and why on no faster one."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys

from fedbac_edge.commands.checks import Check

NAME = "training"
CHILD_S = 600.0
"""A small board loads torch from a memory card, and compiles for tens of seconds."""
# In a process of its own, as `checks.library`: code for another processor kills the process that runs it.
_CHILD = """
import json, logging
logging.disable()
from fedbac_edge.learning.compiled import kernel_for
from fedbac_edge.learning.compiler import NoKernel
from fedbac_edge.models.catalog import LeNet
from fedbac_edge.host.vector_level import level
try:
    kernel_for(LeNet())
    reason = ""
except NoKernel as error:
    reason = str(error)
print(json.dumps([level(), reason]))
"""


def training() -> Check:
    """The path of LeNets. What is not compiled yet is compiled, so a device's first round starts at once."""
    if importlib.util.find_spec("torch") is None:
        return Check(NAME, "ok", "this machine does not train: torch is not installed")
    try:
        child = subprocess.run(
            [sys.executable, "-c", _CHILD], capture_output=True, text=True, timeout=CHILD_S, check=False
        )
        level, reason = json.loads(child.stdout)
    except subprocess.TimeoutExpired:
        return Check(NAME, "wrong", f"nothing was ready within {CHILD_S:.0f} s", "FEDBAC_KERNEL=off may help")
    except ValueError:
        said = (child.stderr.strip().splitlines() or [f"exit code {child.returncode}"])[-1]
        return Check(NAME, "wrong", f"the process ended: {said[:200]}", "FEDBAC_KERNEL=off may help")
    if not reason:
        return Check(NAME, "ok", f"by the compiled kernel, at level {level}")
    found = f"by torch alone, which is slower: {reason}"
    if "FEDBAC_KERNEL=off" in reason:
        return Check(NAME, "ok", found)
    return Check(NAME, "warning", found, _remedy(reason))


def _remedy(reason: str) -> str:
    if "C compiler" in reason:
        return "install one (Debian: apt install gcc libc6-dev)"
    if "did not compile" in reason:
        return "install another C compiler, or its headers (Debian: libc6-dev), and name it in CC"
    return "set CACHE_DIRECTORY to a folder of this user alone, on a disk with room and without noexec"
