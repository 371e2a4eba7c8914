"""Fed-CAM: clustered additive modelling, G and K_k trained in turn on each other's residual.

Ma et al., "Structured Federated Learning through Clustered Additive Modeling", as Fed-BAC (arXiv 2605.11815)
takes it to compare with: K = 5, sites placed by their loss before the first round and moved by it every
tau_re rounds. Prediction is h(x; G) + f(x; K_k), as in Fed-BAC. How the turns share a round is our choice:
first K_k with G fixed, then G with K_k fixed, together as many epochs as the other methods have.
"""

from __future__ import annotations

from fedbac_edge.methods.method import Method, Role
from fedbac_edge.settings.federation import Federation

K = 5
"""Clusters when the federation names no number."""


def fedcam(federation: Federation) -> Method:
    """A shared network and one per cluster; use assignment.margin = 1.0 for plain argmin."""
    return Method(
        roles=(Role("global", "global"), Role("cluster", "cluster")),
        clusters=federation.method.clusters or K,
        policy="argmin",
        placement="argmin",
        shared_cluster_start=False,
        turns=(("cluster",), ("global",)),
    )
