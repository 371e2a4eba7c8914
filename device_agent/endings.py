"""How an agent ends when it was not told to leave: wrongly set up, or in vain."""

from __future__ import annotations

GOODBYE_S = 2.0
"""Seconds for the last words to the broker."""


class Misconfigured(ValueError):
    """This device cannot take part with these settings: exit code 2. A sentence."""


class Failed(RuntimeError):
    """The device had to leave: exit code 1. A sentence."""
