"""Local-only: every site for itself, nothing shared. What a federation must beat to be worth its bytes."""

from __future__ import annotations

from fedbac_edge.methods.method import Method, Role
from fedbac_edge.settings.federation import Federation


def local(federation: Federation) -> Method:
    """A private cluster per site, for good; devices of one site still average at their gateway."""
    return Method(roles=(Role("cluster", "cluster"),), clusters=max(1, len(federation.gateways)))
