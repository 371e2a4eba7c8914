"""What all tests share: no test has a time limit of its own, since machines differ and are shared."""

from __future__ import annotations

from hypothesis import settings

settings.register_profile("untimed", deadline=None)
settings.load_profile("untimed")
