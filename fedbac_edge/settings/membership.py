"""Which devices and gateways have a place in a federation: the tiers enforce its file's lists.

Where `[gateways]` is empty any gateway may come, and where a gateway's list is empty any device may join
there. A list is the owner's to change while the federation runs, so a process without a place waits for one.
"""

from __future__ import annotations

from fedbac_edge.settings.federation import Federation

REMEDY = "add it under [gateways] in the federation.toml of its cloud, and start the cloud again"


def gateway_missing(federation: Federation, gateway: str) -> str:
    """Why there is no place for this gateway, in words; "" when there is one."""
    if not federation.gateways or gateway in federation.gateways:
        return ""
    there = ", ".join(sorted(federation.gateways))
    return f"federation {federation.name} has no gateway {gateway!r}; it has: {there}; {REMEDY}"


def device_missing(federation: Federation, gateway: str, device: str) -> str:
    """Why there is no place for this device at this gateway, in words; "" when there is one."""
    if missing := gateway_missing(federation, gateway):
        return missing
    listed = federation.gateways.get(gateway, ())
    if device in listed or not (listed or federation.eligibility == "roster"):
        return ""
    return (
        f"the devices of gateway {gateway} are listed in federation {federation.name}, and {device!r} is not "
        f"among them; join as one of them with --name ({', '.join(listed)}), or {REMEDY}"
    )
