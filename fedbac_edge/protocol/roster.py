"""Who a gateway's members are, and whether a round can start with them."""

from __future__ import annotations

from fedbac_edge.protocol.gateway_state import GatewayState, Member


def names(gateway: str, state: GatewayState) -> tuple[str, ...]:
    """The members in name order: those of the federation's file, or also whoever has joined."""
    federation = state.federation
    if federation is None:
        return ()
    listed = federation.gateways.get(gateway, ())
    if federation.eligibility == "roster":
        return tuple(sorted(listed))
    return tuple(sorted({*listed, *state.members}))


def member(state: GatewayState, device: str) -> Member:
    """What a device last said; of one that was never heard, nothing is assumed."""
    return state.members.get(device, Member())


def is_reachable(state: GatewayState, device: str) -> bool:
    """With a roster presence changes nothing; in an open fleet only who is online is asked."""
    federation = state.federation
    return federation is not None and (federation.eligibility == "roster" or member(state, device).online)


def is_ready(gateway: str, state: GatewayState) -> bool:
    """Roster: every member was heard. Open fleet: somebody with data is online."""
    federation, members = state.federation, names(gateway, state)
    if federation is None or not members:
        return False
    if federation.eligibility == "roster":
        return all(member(state, device).seen for device in members)
    return any(member(state, device).online and member(state, device).samples for device in members)
