"""Where Fashion-MNIST lies on this machine."""

from __future__ import annotations

from pathlib import Path

from fedbac_edge.datasets import official

NAME = official.FASHION


def folder() -> Path:
    """The folder of the four IDX files; raises DataError that says how to get them."""
    return official.locate(NAME)
