"""Child processes that never outlive us: started with a log each, watched, ended in order.

Each child has a session of its own: Ctrl-C reaches us alone, and we end the children in an order in which
each can still say goodbye. On Linux the kernel kills the children when we end in any other way.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from fedbac_edge.host.signals import Stop

_PR_SET_PDEATHSIG = 1


class ChildDied(RuntimeError):
    """A child ended by itself; the message holds its code and the last lines of its log."""


@dataclass(frozen=True)
class Child:
    """One process and its log."""

    name: str
    process: subprocess.Popen[bytes]
    log: Path

    def last_lines(self, count: int = 8) -> str:
        """The end of its log."""
        text = self.log.read_text(encoding="utf-8", errors="replace") if self.log.exists() else ""
        return "\n".join(f"    {line}" for line in text.splitlines()[-count:]) or "    (its log is empty)"


class Children:
    """The processes of a demonstration. Made and used by the main thread alone."""

    def __init__(self, logs: Path, environment: Mapping[str, str], stop: Stop) -> None:
        self._stop = stop
        self._logs, self._environment = logs, dict(environment)
        self._children: list[Child] = []
        # Loaded before any fork: between fork and exec as little as possible should happen.
        self._libc = ctypes.CDLL(None) if sys.platform == "linux" else None

    def start(self, name: str, arguments: Sequence[str]) -> Child:
        """Start `python -m arguments...` with its output in logs/<name>.log."""
        log = self._logs / f"{name}.log"
        with log.open("ab") as output:
            process = subprocess.Popen(
                [sys.executable, "-m", *arguments],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env=self._environment,
                start_new_session=True,
                preexec_fn=self._die_with_parent(os.getpid()) if self._libc is not None else None,
            )
        self._children.append(Child(name, process, log))
        return self._children[-1]

    def check(self) -> None:
        """Raise ChildDied when one has ended that should not have, and Interrupted when a signal came."""
        self._stop.check()
        for child in self._children:
            code = child.process.poll()
            if code is not None:
                raise ChildDied(
                    f"{child.name} ended with code {code}; the end of {child.log}:\n{child.last_lines()}"
                )

    def expect_end(self, child: Child) -> None:
        """This one may end from now on."""
        self._children.remove(child)

    def names(self) -> list[str]:
        """Of the children that are watched."""
        return [child.name for child in self._children]

    def stop(self, patience: float = 6.0) -> None:
        """End all, the last started first, the first started (the broker) last; SIGKILL after `patience`."""
        end = time.monotonic() + patience
        later = [child for child in reversed(self._children) if child is not self._children[0]]
        for wave in (later, self._children[:1]):
            for child in wave:
                with contextlib.suppress(ProcessLookupError):
                    child.process.send_signal(signal.SIGTERM)
            for child in wave:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    child.process.wait(max(0.05, end - time.monotonic()))
        for child in self._children:
            with contextlib.suppress(ProcessLookupError):  # what is left of its session: workers of its own
                os.killpg(child.process.pid, signal.SIGKILL)
            child.process.wait()
        self._children.clear()

    def _die_with_parent(self, parent: int) -> Callable[[], None]:
        libc = self._libc

        def tie() -> None:
            assert libc is not None
            libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
            if os.getppid() != parent:  # it died before we could ask
                os._exit(1)

        return tie
