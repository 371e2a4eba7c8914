"""What a run's results depend on beside its settings: equal hashes need it equal."""

from __future__ import annotations

import platform

import numpy as np

from fedbac_edge.models.description import Architecture


def machine(model: Architecture) -> dict[str, str]:
    """Versions, processor, and the path on which this process trains `model`."""
    import torch

    from fedbac_edge.learning.local import best_backend

    return {
        "python": platform.python_version(),
        "numpy": np.__version__,
        "torch": str(torch.__version__),
        "machine": platform.machine(),
        "training": best_backend(model),
    }
