"""Which sites a federation has, as the cloud sees them, and whether a round can start."""

from __future__ import annotations

from fedbac_edge.protocol.cloud.state import CloudState, Site
from fedbac_edge.protocol.messages import GatewayStatus
from fedbac_edge.settings.federation import Federation


def names(federation: Federation, state: CloudState) -> tuple[str, ...]:
    """Sites in name order: those of the federation's list, or without one all that were ever heard."""
    if federation.eligibility == "roster" or federation.gateways:
        return tuple(sorted(federation.gateways))
    return tuple(sorted(state.sites))


def site(state: CloudState, gateway: str) -> Site:
    """What a gateway last said; of one that was never heard, nothing is assumed."""
    return state.sites.get(gateway, Site())


def to_train(federation: Federation, state: CloudState) -> tuple[str, ...]:
    """The sites that a round asks: with a roster all, in an open fleet those that are ready."""
    members = names(federation, state)
    if federation.eligibility == "roster":
        return members
    return tuple(gateway for gateway in members if site(state, gateway).ready)


def to_evaluate(federation: Federation, state: CloudState) -> tuple[str, ...]:
    """Whom an evaluation asks: the same, of those that have a cluster."""
    return tuple(gateway for gateway in to_train(federation, state) if gateway in state.assignment)


def are_complete(federation: Federation, state: CloudState) -> bool:
    """Every site on the roster is ready; without a roster, one site is."""
    ready = {gateway for gateway in names(federation, state) if site(state, gateway).ready}
    needed = names(federation, state) if federation.gateways else ()
    return bool(ready) and ready >= set(needed)


def not_ready(federation: Federation, state: CloudState) -> list[str]:
    """The sites that a round would start without."""
    return [gateway for gateway in names(federation, state) if not site(state, gateway).ready]


def anybody(federation: Federation, state: CloudState) -> bool:
    """A site is there with which a round could start after a long wait."""
    roster = federation.eligibility == "roster"
    members = [site(state, gateway) for gateway in names(federation, state)]
    return any(member.online if roster else member.ready for member in members)


def hear(state: CloudState, gateway: str, status: GatewayStatus) -> tuple[bool, bool]:
    """Take a gateway's status: (it has just come up, it has just become ready)."""
    member = state.sites.setdefault(gateway, Site())
    came = status.state != "offline"
    if not came and status.session < member.session:
        return False, False  # a late will of an earlier session; a birth with a lower number is a new store
    restarted = came and (not member.online or status.session != member.session)
    was_ready, member.ready = member.ready, came and status.ready
    member.online, member.session = came, status.session
    return restarted, member.ready and not was_ready
