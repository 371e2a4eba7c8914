"""IFCA at server level: K isolated networks, each site on the one with the smallest loss.

Ghosh et al., "An Efficient Framework for Clustered Federated Learning", as Fed-BAC (arXiv 2605.11815) takes
it to compare with: K = 5 networks from 5 random initialisations, averaged inside a cluster; sites are placed
by their loss before the first round, and every tau_re rounds one moves only if the best loss is below 0.95
times its current one.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import isfinite

from fedbac_edge.methods.method import Method, Role
from fedbac_edge.settings.federation import Federation

K = 5
"""Clusters when the federation names no number."""


def ifca(federation: Federation) -> Method:
    """One network per cluster and none that is shared; use participation = 1.0 for the paper's baseline."""
    return Method(
        roles=(Role("cluster", "cluster"),),
        clusters=federation.method.clusters or K,
        policy="argmin",
        placement="argmin",
        shared_cluster_start=False,
    )


def closest(losses: Sequence[float], current: int, margin: float) -> int:
    """argmin_k losses[k] if that is below `margin` times the current cluster's loss, else `current`.

    The first of equal losses wins; one that is not finite is larger than any other.
    """
    finite = [loss if isfinite(loss) else float("inf") for loss in losses]
    best = min(range(len(finite)), key=lambda k: (finite[k], k != current, k))
    return best if finite[best] < margin * finite[current] else current
