"""What `fedbac doctor` looks at on this machine: limits, clock, disk, certificates, libraries."""

from __future__ import annotations

import importlib.util
import os
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Literal

from broker import certificate_dates

Result = Literal["ok", "warning", "wrong", "unknown"]


@dataclass(frozen=True)
class Check:
    """One line: what was looked at, how it is, and what to do when it is not well."""

    name: str
    result: Result
    found: str
    remedy: str = ""


FILES_LEAST = 128
"""Descriptors that one tier's process can need: link, store, worker, libraries."""
FILES_ROOM = 100
"""Of a broker, beyond one for each client."""
DISK_WRONG = 50_000_000
DISK_WARNING = 500_000_000
"""Bytes. A store holds a few models and the updates of a round."""
DAYS_WARNING = 30.0
EARLIEST = datetime(2025, 1, 1, tzinfo=timezone.utc)
LOAD_S = 120.0
"""A small device takes its time to load torch from a memory card."""

LIBRARIES = (
    ("numpy", "numpy", ""),
    ("msgspec", "msgspec", ""),
    ("paho.mqtt.client", "paho-mqtt", ""),
    ("onnxruntime", "onnxruntime", "to answer with exported models: pip install 'fedbac-edge[infer]'"),
    ("torch", "torch", "to train here: pip install 'fedbac-edge[train]'"),
    ("iotcore", "iotcore", "for the embedded broker: pip install 'fedbac-edge[broker]'"),
)
"""(module, distribution, what it is for when it may be missing)."""


def open_files(clients: int = 0) -> Check:
    """The limit of open files of this process, against what is needed for a broker with so many clients."""
    if sys.platform == "win32":
        return Check("open files", "unknown", "this system does not tell its limit")
    import resource

    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    found = f"{limit} allowed" if limit != resource.RLIM_INFINITY else "no limit"
    needed = clients + FILES_ROOM if clients else 0
    if limit == resource.RLIM_INFINITY or limit >= max(FILES_LEAST, needed):
        return Check("open files", "ok", found)
    if limit < FILES_LEAST:
        return Check(
            "open files",
            "wrong",
            f"{found}, and {FILES_LEAST} are needed",
            f"ulimit -n {FILES_LEAST}, or LimitNOFILE={FILES_LEAST} in the systemd unit",
        )
    return Check(
        "open files",
        "warning",
        f"{found}, and a broker with {clients} clients needs {needed}",
        f"where the broker runs: ulimit -n {needed}, or LimitNOFILE={needed} in its systemd unit",
    )


def clock(now: datetime | None = None) -> Check:
    """Does the wall clock show a year that can be, and does the monotonic one go on?"""
    now = now or datetime.now(timezone.utc)
    # The clock cannot be earlier than what was installed with it.
    installed = datetime.fromtimestamp(Path(__file__).stat().st_mtime, timezone.utc)
    shown = f"{now:%Y-%m-%d %H:%M} UTC"
    remedy = "set it: timedatectl set-ntp true, or date -s; certificates depend on it"
    if now < max(EARLIEST, min(installed, datetime.now(timezone.utc))):
        return Check("clock", "wrong", f"{shown} is before this software was installed", remedy)
    if now.year >= 2100:
        return Check("clock", "wrong", f"{shown} is not to be believed", remedy)
    before = time.monotonic()
    time.sleep(0.01)
    if time.monotonic() <= before:
        return Check("clock", "wrong", "the monotonic clock stands still", "restart the machine")
    return Check("clock", "ok", shown)


def disk(state: Path) -> Check:
    """Room and the right to write where a process keeps its state."""
    place = state.absolute()
    while not place.exists():
        place = place.parent
    free = shutil.disk_usage(place).free
    found = f"{free / 1e9:.1f} GB free for {state}"
    if not place.is_dir() or not os.access(place, os.W_OK | os.X_OK):
        return Check("disk", "wrong", f"{place} may not be written to", "give another --state, or chown it")
    if free < DISK_WARNING:
        result: Result = "wrong" if free < DISK_WRONG else "warning"
        return Check("disk", result, found, "make room, or give a --state on another disk")
    return Check("disk", "ok", found)


def certificate(name: str, path: Path) -> Check:
    """The dates of a certificate file."""
    try:
        return dates(name, certificate_dates.of_file(path), f"{path}")
    except (OSError, certificate_dates.NoCertificate) as error:
        return Check(name, "wrong", str(error), "give a PEM file that begins with BEGIN CERTIFICATE")


def dates(name: str, validity: certificate_dates.Validity, what: str) -> Check:
    """Is it valid today, and for how long still?"""
    left = validity.days_left()
    found = f"{what} is valid until {validity.ends:%Y-%m-%d}, {left:.0f} days"
    if datetime.now(timezone.utc) < validity.begins:
        found = f"{what} is valid from {validity.begins:%Y-%m-%d %H:%M} UTC only"
        return Check(name, "wrong", found, "set the clock of this machine")
    if left < 0:
        found = f"{what} expired on {validity.ends:%Y-%m-%d}"
    if left < DAYS_WARNING:
        return Check(name, "wrong" if left < 0 else "warning", found, "make a new one: fedbac keys rotate")
    return Check(name, "ok", found)


def library(module: str, distribution: str, purpose: str) -> Check:
    """Import a library in a process of its own: a build for another processor kills the process."""
    name = module.partition(".")[0]
    if importlib.util.find_spec(name) is None:
        if purpose:
            return Check(name, "ok", f"not installed; {purpose}")
        return Check(name, "wrong", "not installed", f"pip install {distribution}")
    code = f"import importlib.metadata as m, {module}; print(m.version({distribution!r}))"
    remedy = f"pip install --force-reinstall {distribution}, in a version for this machine"
    try:
        child = subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, timeout=LOAD_S, check=False
        )
    except subprocess.TimeoutExpired:
        return Check(name, "wrong", f"does not load within {LOAD_S:.0f} s", remedy)
    if child.returncode < 0:
        return _killed(name, signal.Signals(-child.returncode), remedy)
    if child.returncode:
        last = (child.stderr.strip().splitlines() or ["no message"])[-1]
        return Check(name, "wrong", f"cannot be imported: {last[:200]}", remedy)
    return Check(name, "ok", child.stdout.strip())


def _killed(name: str, by: signal.Signals, reinstall: str) -> Check:
    """A library whose import ended its process by a signal."""
    if by == signal.SIGILL:
        found = "its import ends with SIGILL: a build for another processor?"
        return Check(name, "wrong", found, reinstall)
    if by == signal.SIGKILL:
        return Check(
            name,
            "wrong",
            "its import was killed from outside (SIGKILL), most likely for lack of memory",
            "end other processes, or raise the limit: MemoryMax= of a systemd unit, --memory of a container",
        )
    return Check(name, "wrong", f"its import ends with {by.name}: is its build damaged?", reinstall)


def libraries() -> list[Check]:
    """All of them, one after the other: a small device has no memory for two at once."""
    return [library(*each) for each in LIBRARIES]
