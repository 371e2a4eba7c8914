"""Looks whether a device's data have changed while it runs, and has them read again when they have.

Looking costs a glance at names, sizes and times. Only what has settled is read: a change must look the same
twice. The training process reads, between two jobs; what it finds reaches the gateway as new counts.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator
from pathlib import Path

from device_agent.voice import Voice
from device_agent.worker import TrainingWorker, WorkerError
from fedbac_edge.datasets.picture_files import fingerprint
from fedbac_edge.datasets.samples import DataError

LOOK_S = 3.0
"""Seconds between two looks."""
SHARE = 50
"""A look that takes long is followed by a pause of so many times its length."""


class Rescan:
    """What the data looked like when they were last read."""

    def __init__(self, place: Path) -> None:
        self._place = place
        self._read = self._before = fingerprint(place)

    def settled_change(self) -> bool:
        """True when the data look unlike those that were read, and as they did a look ago."""
        now = fingerprint(self._place)
        settled = now != self._read and now == self._before
        self._before = now
        if settled:
            self._read = now
        return settled


@contextlib.contextmanager
def rescanning(rescan: Rescan, worker: TrainingWorker, voice: Voice) -> Iterator[None]:
    """A thread that looks until the block is left."""
    over = threading.Event()

    def run() -> None:
        pause = LOOK_S
        while not over.wait(pause):
            began = time.monotonic()
            changed = rescan.settled_change()
            pause = max(LOOK_S, SHARE * (time.monotonic() - began))
            if changed:
                _read_again(worker, voice, over)

    thread = threading.Thread(target=run, name="rescan", daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def _read_again(worker: TrainingWorker, voice: Voice, over: threading.Event) -> None:
    try:
        opened = worker.open(over.is_set, again=True)
    except (DataError, WorkerError) as error:
        voice.say("data", f"the data have changed, and cannot be used as they are: {error}", samples=0)
        return
    if opened is not None:
        voice.say(
            "data",
            f"the data have changed: {opened.summary}",
            samples=opened.samples,
            labelled=opened.labelled,
            holdout=opened.holdout,
        )
