"""What the cloud asks of a site: a round of training, or an evaluation."""

from __future__ import annotations

from collections.abc import Iterable

from fedbac_edge.methods.method import Method
from fedbac_edge.protocol.cloud import generations
from fedbac_edge.protocol.cloud.state import CloudState
from fedbac_edge.protocol.collecting import share
from fedbac_edge.protocol.messages import GatewayEvaluation, GatewayTask
from fedbac_edge.settings.federation import Federation
from fedbac_edge.vocabulary.training import LocalTraining


def training(
    federation: Federation, method: Method, state: CloudState, gateway: str, limit: float
) -> GatewayTask:
    """Round `state.round` for one site, which the cloud closes after `limit` seconds."""
    cluster = state.assignment[gateway]
    stayed = state.served_by.get(gateway) == cluster
    return GatewayTask(
        instance=state.instance,
        round=state.round,
        cluster=cluster,
        parts=generations.whole(method, state.parts, cluster),
        previous=generations.whole(method, state.previous, cluster) if stayed else {},
        training=local(federation, method, state.round),
        deadline_s=share(limit),
        counted=state.last_update.get(gateway, 0),
    )


def evaluation(method: Method, state: CloudState, clusters: Iterable[int], limit: float) -> GatewayEvaluation:
    """The served models of `clusters` on a site's evaluation data."""
    return GatewayEvaluation(
        instance=state.instance,
        round=state.round,
        candidates={k: generations.served(method, state, k) for k in clusters},
        deadline_s=share(limit),
    )


def local(federation: Federation, method: Method, round: int) -> LocalTraining:
    """The optimiser's settings in this round, the same for every device."""
    training = federation.training
    return LocalTraining(
        epochs=training.epochs,
        batch_size=training.batch_size,
        learning_rate=federation.learning_rate(round),
        momentum=training.momentum,
        weight_decay=training.weight_decay,
        clip_norm=training.clip_norm,
        l2={role.name: role.l2 for role in method.roles if role.l2},
        threads=training.threads,
        turns=method.turns,
    )
