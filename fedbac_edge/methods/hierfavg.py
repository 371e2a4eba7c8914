"""HierFAVG: one network, averaged at the gateways by samples and at the cloud by the sites' data."""

from __future__ import annotations

from fedbac_edge.methods.method import Method, Role
from fedbac_edge.settings.federation import Federation


def hierfavg(federation: Federation) -> Method:
    """One global role, no clusters; use participation = 1.0 for the paper's baseline."""
    return Method(roles=(Role("global", "global"),))
