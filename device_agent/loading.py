"""Loading torch in the training process: how long it may take, and when the machine is given up.

A build for another processor ends its process by a signal, one with a broken driver never comes to an end.
Both happen before any sample is looked at and happen again at each try, so after a few the device says so and
asks for no more work. Lack of memory passes, and is not counted.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field

LOAD_S = 300.0
"""Seconds after which loading torch hangs. A slow card reader takes one minute."""
TRIES = 3


@dataclass
class Loading:
    """Is torch there, and how often has it failed to come, one time after another? Of the worker's thread."""

    limit_s: float = LOAD_S
    until: float | None = None
    """While torch is being loaded: when that has hung."""
    failures: list[str] = field(default_factory=list)

    def begin_process(self) -> None:
        """A new process has loaded nothing."""
        self.until = None

    def begin(self) -> None:
        """The process loads torch from now on."""
        self.until = time.monotonic() + self.limit_s

    def has_loaded(self) -> None:
        """Torch is there, so whatever failed before has passed."""
        self.until = None
        self.failures.clear()

    def has_hung(self, now: float) -> bool:
        """True once the time is over."""
        return self.until is not None and now >= self.until

    def failed(self, reason: str) -> None:
        """Torch could not be loaded this time."""
        if self.until is not None:
            self.until = None
            self.failures.append(reason)

    @property
    def verdict(self) -> str:
        """Why this machine cannot train, once that is clear; "" before."""
        if len(self.failures) < TRIES:
            return ""
        return (
            f"torch could not be loaded {TRIES} times in a row, and this device cannot train without it: "
            f"{self.failures[-1]}; `fedbac doctor` tells more"
        )
