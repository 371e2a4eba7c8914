"""What a node asks of its driver, to be carried out in order."""

from __future__ import annotations

from dataclasses import dataclass

from fedbac_edge.protocol.events import AnyJob

CLOCK_GRAIN_S = 1e-6
"""What is due within so little is due now: times are shifted between two clocks, and rounded by that."""


@dataclass(frozen=True)
class Publish:
    """Give this to the bus; report the broker's acknowledgement with `token`."""

    topic: str
    payload: bytes
    retain: bool
    token: int


@dataclass(frozen=True)
class Subscribe:
    """Ask the bus for a topic filter."""

    filter: str


@dataclass(frozen=True)
class Unsubscribe:
    """Stop asking for a topic filter."""

    filter: str


@dataclass(frozen=True)
class StartJob:
    """Let a worker do this job; a running one is cancelled first."""

    job: AnyJob


@dataclass(frozen=True)
class StopJob:
    """Cancel the running job."""


Effect = Publish | Subscribe | Unsubscribe | StartJob | StopJob
