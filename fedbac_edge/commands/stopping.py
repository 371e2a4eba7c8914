"""How a command that has processes of its own is stopped."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Iterator


@contextlib.contextmanager
def terminable() -> Iterator[None]:
    """SIGTERM is as good as Ctrl-C, a KeyboardInterrupt: workers are ended, and how to go on is said."""

    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before or signal.SIG_DFL)
