"""How an agent ends: wrongly set up, in vain, or because it was told to leave, and then soon."""

from __future__ import annotations

import contextlib
import os
import sys
import threading
from collections.abc import Iterator

from fedbac_edge.runtime import Runtime

GOODBYE_S = 2.0
"""Seconds for the last words to the broker."""
LEAVE_S = 4.5
"""Seconds after which a device that was told to leave is gone, whatever its network does."""


class Misconfigured(ValueError):
    """This device cannot take part with these settings: exit code 2. A sentence."""


class Failed(RuntimeError):
    """The device had to leave: exit code 1. A sentence."""


class Leaving:
    """The wish to leave, what it stops, and the guarantee that it is granted."""

    def __init__(self) -> None:
        self._asked = threading.Event()
        self._runtime: Runtime | None = None
        # The store is whole at any moment and a trainer ends with us, so that leaving hard loses nothing.
        self._last_resort = threading.Timer(LEAVE_S, _leave_hard)
        self._last_resort.daemon = True

    def begin(self) -> None:
        """Called by the signal handler, perhaps more than once."""
        if not self._asked.is_set():
            self._asked.set()
            self._last_resort.start()
        if self._runtime is not None:
            self._runtime.stop()

    def begun(self) -> bool:
        """True once the device is to leave."""
        return self._asked.is_set()

    @contextlib.contextmanager
    def stops(self, runtime: Runtime) -> Iterator[None]:
        """`begin` stops this runtime, too, if it has begun already."""
        self._runtime = runtime
        try:
            if self.begun():
                runtime.stop()
            yield
        finally:
            self._runtime = None

    def end(self) -> None:
        """Left: nothing needs to be forced."""
        self._last_resort.cancel()


def _leave_hard() -> None:
    sys.stdout.flush()
    os._exit(0)
