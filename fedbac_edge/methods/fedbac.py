"""Fed-BAC (arXiv 2605.11815): a shared network G plus one network K_k per cluster of sites.

Prediction at site m: h(x; G) + f(x; K_pi(m)), a plain sum. Both are trained jointly on a device; the
cluster part carries lambda * ||K||^2.
"""

from __future__ import annotations

from fedbac_edge.methods.method import Method, Role
from fedbac_edge.settings.federation import Federation


def fedbac(federation: Federation) -> Method:
    """Fed-BAC; `assignment.method` "fixed" is the ablation without LinUCB, "argmin" that with IFCA's rule."""
    return Method(
        roles=(
            Role("global", "global"),
            Role("cluster", "cluster", l2=federation.training.cluster_l2),
        ),
        clusters=federation.cluster_count,
        policy=federation.assignment.method,
        placement=federation.method.initial,
        shared_cluster_start=federation.method.cluster_start != "each",
    )
