"""Who a gateway's members are, and whether a round can start with them."""

from __future__ import annotations

from fedbac_edge.protocol.gateway.state import GatewayState, Member
from fedbac_edge.protocol.messages import DeviceStatus


def names(gateway: str, state: GatewayState) -> tuple[str, ...]:
    """The members in name order: those that the federation's file lists here, or else all that joined."""
    federation = state.federation
    if federation is None:
        return ()
    listed = federation.gateways.get(gateway, ())
    if federation.eligibility == "roster" or listed:
        return tuple(sorted(listed))
    return tuple(sorted(state.members))


def is_listed(gateway: str, state: GatewayState, device: str) -> bool:
    """True unless the federation's file lists this gateway's devices, and this one is not among them."""
    return state.federation is None or device in names(gateway, state)


def member(state: GatewayState, device: str) -> Member:
    """What a device last said; of one that was never heard, nothing is assumed."""
    return state.members.get(device, Member())


def hear(state: GatewayState, device: str, status: DeviceStatus) -> bool:
    """Take a device's status; True when it has just come up."""
    known = state.members.setdefault(device, Member())
    came = status.state != "offline"
    if not came and status.session < known.session:
        return False  # a late will of an earlier session; a birth with a lower number is a new store
    restarted = came and (not known.online or status.session != known.session)
    known.online, known.session = came, status.session
    if came:  # a will alone tells nothing: a device that died before its first word is yet to be heard
        known.seen, known.samples, known.holdout = True, status.samples, status.holdout
        known.labelled = status.labelled
    return restarted


def forget(state: GatewayState, device: str) -> bool:
    """Drop all that was learned about a device; False when it was not known.

    What has counted in the open round stays counted: the averages already stand on it.
    """
    known = device in state.members or device in state.posteriors
    for learned in (state.members, state.posteriors, state.last_update, state.refusals):
        learned.pop(device, None)
    state.unrewarded = tuple(name for name in state.unrewarded if name != device)
    return known


def is_reachable(state: GatewayState, device: str) -> bool:
    """With a roster presence changes nothing; in an open fleet only online devices are asked."""
    federation = state.federation
    return federation is not None and (federation.eligibility == "roster" or member(state, device).online)


def is_ready(gateway: str, state: GatewayState) -> bool:
    """Roster: every member was heard. Open fleet: a device with data is online."""
    federation, members = state.federation, names(gateway, state)
    if federation is None or not members:
        return False
    if federation.eligibility == "roster":
        return all(member(state, device).seen for device in members)
    return any(member(state, device).online and member(state, device).samples for device in members)
