"""Telling systemd: ready, alive, stopping. One datagram each; without systemd nothing happens.

Unit file: Type=notify, NotifyAccess=main, WatchdogSec=30.
"""

from __future__ import annotations

import contextlib
import os
import socket
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence

Poke = Callable[[Callable[[], None]], None]
"""Has the given call made by a loop, when it comes round."""


def notify(*lines: str) -> None:
    """Send lines such as READY=1 to the service manager, if there is one."""
    address = os.environ.get("NOTIFY_SOCKET", "")
    if not address.startswith(("/", "@")):
        return
    with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
        sock.connect("\0" + address[1:] if address.startswith("@") else address)
        sock.send("\n".join(lines).encode())


def watchdog_interval() -> float | None:
    """Seconds between two signs of life (half of what the manager allows); None: it wants none."""
    try:
        if int(os.environ.get("WATCHDOG_PID", os.getpid())) != os.getpid():
            return None
        limit = int(os.environ["WATCHDOG_USEC"])
    except (KeyError, ValueError):
        return None
    return limit / 2e6 if limit > 0 else None


class Turns:
    """A loop without an inbox, which asks "shall I stop?" whenever it comes round: give it this to ask."""

    def __init__(self, stop: Callable[[], bool]) -> None:
        self._stop = stop
        self._waiting: deque[Callable[[], None]] = deque()

    def __call__(self) -> bool:
        """The answer; and the loop has come round."""
        while self._waiting:
            self._waiting.popleft()()
        return self._stop()

    def poke(self, answer: Callable[[], None]) -> None:
        """See Poke."""
        self._waiting.append(answer)


@contextlib.contextmanager
def watched(loops: Sequence[Poke]) -> Iterator[None]:
    """WATCHDOG=1 as long as every loop comes round; a loop that hangs lets the manager start us again."""
    interval = watchdog_interval()
    over = threading.Event()

    def run() -> None:
        assert interval is not None
        while not over.is_set():
            rounds = [threading.Event() for _ in loops]
            for poke, seen in zip(loops, rounds, strict=True):
                poke(seen.set)
            for seen in rounds:
                while not seen.wait(0.5):
                    if over.is_set():
                        return
            notify("WATCHDOG=1")
            over.wait(interval)

    thread = threading.Thread(target=run, name="watchdog", daemon=True)
    if interval is not None:
        thread.start()
    try:
        yield
    finally:
        over.set()
        if interval is not None:
            thread.join()
