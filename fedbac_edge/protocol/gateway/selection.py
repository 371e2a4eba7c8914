"""A gateway's bandit at work: which devices are asked in a round, and what the last choice earned.

Fed-BAC, client selection by Thompson sampling. In a fleet the gateway owns no data: the reward of round t is
the paired change on the hold-outs of devices that answer in round t+1, so it counts from round t+2 on.
"""

from __future__ import annotations

from typing import Any

from fedbac_edge.bandits import thompson
from fedbac_edge.protocol.events import Log
from fedbac_edge.protocol.gateway import roster
from fedbac_edge.protocol.gateway.state import GatewayState
from fedbac_edge.protocol.messages import GatewayTask
from fedbac_edge.randomness import generator
from fedbac_edge.settings.federation import Federation
from fedbac_edge.vocabulary.terms import Score


def warm_up(federation: Federation, round: int) -> bool:
    """True in the first tau_TS rounds, and always with random selection."""
    return federation.selection.method == "random" or round <= federation.selection.warm_up


def select(gateway: str, state: GatewayState, round: int) -> thompson.Selection:
    """B = max(1, floor(p * N)) of the N members that have data and can be reached."""
    federation = state.federation
    assert federation is not None
    members = roster.names(gateway, state)
    state.posteriors = {name: state.posteriors.get(name, thompson.Posterior()) for name in members}
    able = [
        name for name in members if roster.member(state, name).samples and roster.is_reachable(state, name)
    ]
    count = thompson.participants(federation.selection.participation, len(able))
    rng = generator(federation.seed, "gateway", gateway, round, "select")
    return thompson.select(state.posteriors, able, count, rng, warm_up(federation, round))


def explained(choice: thompson.Selection, state: GatewayState, round: int) -> dict[str, Any]:
    """Why these devices: every draw with its posterior, for the ledger."""
    federation = state.federation
    assert federation is not None
    return {
        "asked": list(choice.chosen),
        "draws": choice.draws,
        "posteriors": {name: [p.a, p.b] for name, p in sorted(state.posteriors.items())},
        "warm_up": warm_up(federation, round),
    }


def reward_paired(gateway: str, state: GatewayState, task: GatewayTask) -> list[Log]:
    """Reward of the last round: summed paired hold-out change, now that its model was scored.

    Forgotten when the cluster has changed since (`task.previous` is empty): another model is served.
    """
    pairs = [(a.holdout, a.previous) for a in state.answers.values() if a.previous is not None]
    chosen, round = state.unrewarded, state.unrewarded_round
    state.unrewarded = ()
    if not chosen or not pairs or not task.previous or round != task.round - 1:
        return []
    count = sum(new.count for new, _ in pairs)
    change = sum(new.correct - old.correct for new, old in pairs)
    return _reward(gateway, state, round, chosen, change / count if count else 0.0)


def reward_own(gateway: str, state: GatewayState, task: GatewayTask, score: Score) -> list[Log]:
    """The paper's rule: the edge-aggregated model's accuracy against that of the round before.

    None after a round whose model was not scored: a void one, or one whose scoring job failed.
    """
    before, last = state.reference, state.reference_round
    state.reference, state.reference_round = score.accuracy, task.round
    if before is None or last != task.round - 1 or not task.previous:
        return []
    return _reward(gateway, state, task.round, tuple(sorted(state.answers)), score.accuracy - before)


def _reward(
    gateway: str, state: GatewayState, round: int, chosen: tuple[str, ...], change: float
) -> list[Log]:
    federation = state.federation
    assert federation is not None
    known = {name: state.posteriors.get(name, thompson.Posterior()) for name in {*state.posteriors, *chosen}}
    if federation.selection.credit == "soft":
        state.posteriors = thompson.reward_softly(known, chosen, thompson.soft_credit(change))
    else:
        state.posteriors = thompson.reward(known, chosen, change > 0)
    return [Log("reward", gateway, round, {"change": change, "chosen": list(chosen)})]
