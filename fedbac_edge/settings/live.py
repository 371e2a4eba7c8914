"""Which settings make a federation what it is, and which may change while it lives.

The cloud's store holds the settings that its federation goes by. When the cloud starts with a changed file,
live settings count from the next round on, and each has a ledger line; a setting of the other kind is
refused, named with both values. Live is what one tier decides by itself or what travels in each task: so no
two tiers ever disagree within a round, however late one of them hears of a change.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

import msgspec

from fedbac_edge.settings.federation import Federation, HassleTable, Table

Taker = Literal["cloud", "gateways", "tasks", "trainers"]
"""Who takes a live setting up: the cloud itself; gateways, from the specification; devices, from their next
task; or devices, from the specification, with a training process that starts anew between two rounds."""

LIVE: dict[str, Taker] = {
    "rounds": "cloud",
    "method.places": "cloud",
    "method.cloud_weight": "cloud",
    "training.epochs": "tasks",
    "training.batch_size": "tasks",
    "training.learning_rate": "tasks",
    "training.learning_rate_decay": "tasks",
    "training.learning_rate_floor": "tasks",
    "training.momentum": "tasks",
    "training.weight_decay": "tasks",
    "training.clip_norm": "tasks",
    "training.cluster_l2": "tasks",
    "training.threads": "trainers",
    "training.backend": "trainers",
    "training.confidence": "trainers",
    "selection.method": "gateways",
    "selection.participation": "gateways",
    "selection.warm_up": "gateways",
    "selection.credit": "gateways",
    "assignment.every": "cloud",
    "assignment.alpha": "cloud",
    "assignment.live_counts": "cloud",
    "assignment.margin": "cloud",
    "assignment.confidence": "cloud",
    "assignment.tolerance": "cloud",
    "assignment.moves": "cloud",
    "assignment.merges": "cloud",
    "deadlines.min_updates": "gateways",
    "deadlines.gather_s": "cloud",
    "deadlines.deadline_min_s": "cloud",
    "deadlines.deadline_max_s": "cloud",
    "deadlines.evaluation_deadline_s": "cloud",
    "deadlines.norm_gate": "gateways",
    "robust.edge": "gateways",
    "robust.edge_clip_norm": "gateways",
    "robust.edge_hostile": "gateways",
    "robust.cloud": "cloud",
    "robust.cloud_clip_norm": "cloud",
    "robust.cloud_hostile": "cloud",
    "releases.every": "cloud",
    "releases.key": "cloud",
    "releases.keep": "cloud",
    "hassle.gamma": "trainers",
    "hassle.residual_weight": "trainers",
    "hassle.tau_s": "trainers",
    "hassle.tau_u": "trainers",
    "hassle.residual_steps": "trainers",
    "hassle.residual_weight_decay": "trainers",
    "hassle.teacher": "trainers",
    "hassle.confidence": "trainers",
    "gateways": "gateways",
}
"""Setting -> the role that takes it up. `gateways` is the whole list; its changes are told by gateway."""

IDENTITY: dict[str, str] = {
    "name": "every topic and every store carries it",
    "seed": "every draw so far came from it",
    "eligibility": "a list with fixed members promises equal bits, and an open fleet does not",
    "evaluation": "what was learned about devices and clusters so far was measured so",
    "model.architecture": "the weights are those of this network",
    "model.input": "the weights are those of a network for such images",
    "model.classes": "the last layer has a row of weights for each of them, in this order",
    "model.mean": "the weights were trained on images normalised so",
    "model.std": "the weights were trained on images normalised so",
    "model.start": "the first weights were these",
    "method.name": "the networks that there are follow from it",
    "method.clusters": "each cluster has its network",
    "method.initial": "sites have begun so",
    "method.cluster_start": "the networks have begun so",
    "training.unlabelled": "it decides what counts as a device's samples, on three tiers at once",
    "assignment.method": "what was learned about clusters belongs to it",
    "assignment.arms": "what the bandit has learned is laid out so",
    "assignment.reward": "what the bandit has learned was rewarded so",
    "wire.encoding": "both ends of a link have to agree on it within a round",
    "hassle.residual_width": "the residuals have this width",
    "hassle.align_residuals": "the networks that there are follow from it",
    "hassle.pairing": "the rounds that train a network follow from it",
}
"""Setting -> why it cannot change in mid-life."""


@dataclass(frozen=True)
class Change:
    """One setting, with both values as a person writes them; None for a gateway that is not listed."""

    setting: str
    before: Any
    after: Any

    def __str__(self) -> str:
        return f"{self.setting}: {_shown(self.before)} -> {_shown(self.after)}"

    @property
    def is_live(self) -> bool:
        """True when a federation may go on with it."""
        return self.setting in LIVE or self.setting.startswith("gateways.")

    @property
    def why_not(self) -> str:
        """Why it cannot change in mid-life; "" for a live one."""
        return "" if self.is_live else IDENTITY.get(self.setting, "it belongs to the federation")


def settings_of(federation: Federation) -> dict[str, Any]:
    """Setting -> value, one entry for each setting; a table that is left out has its defaults."""
    return dict(_settings(federation))


def changes(before: Federation, after: Federation) -> tuple[Change, ...]:
    """What differs, in the file's order; gateways one by one."""
    was, now = settings_of(before), settings_of(after)
    differing = [Change(each, was[each], now[each]) for each in was if was[each] != now[each]]
    listed = [
        Change(f"gateways.{name}", _listed(before, name), _listed(after, name))
        for name in sorted({*before.gateways, *after.gateways})
        if before.gateways.get(name) != after.gateways.get(name)
    ]
    return (*(each for each in differing if each.setting != "gateways"), *listed)


def refused(before: Federation, after: Federation) -> tuple[Change, ...]:
    """What keeps a federation that went by `before` from going on by `after`."""
    return tuple(change for change in changes(before, after) if not change.is_live)


def carried_on(before: Federation, after: Federation) -> Federation:
    """`after` with the clusters that there are, where the file leaves their number to the list of gateways.

    A gateway that is added joins one of them, since none has been trained for it alone.
    """
    if after.method.clusters or (before.method.clusters == 0 and _clusters(before) == _clusters(after)):
        return after
    return msgspec.structs.replace(
        after, method=msgspec.structs.replace(after.method, clusters=before.cluster_count)
    )


def restarts_trainers(before: Federation, after: Federation) -> bool:
    """True when a device has to start its training process anew to go by `after`."""
    return any(LIVE.get(change.setting) == "trainers" for change in changes(before, after))


def _clusters(federation: Federation) -> int:
    """How many there are, however the file says it."""
    if federation.method.name == "local":  # every site has its own, whatever else is said
        return max(1, len(federation.gateways))
    return federation.cluster_count


def _settings(federation: Federation) -> Iterator[tuple[str, Any]]:
    for field in msgspec.structs.fields(Federation):
        value = getattr(federation, field.name)
        if field.name == "hassle" and value is None:
            value = HassleTable()
        if not isinstance(value, Table):
            yield field.name, value
            continue
        for inner in msgspec.structs.fields(type(value)):
            path = f"{field.name}.{inner.name}"
            yield path, _clusters(federation) if path == "method.clusters" else getattr(value, inner.name)


def _listed(federation: Federation, gateway: str) -> tuple[str, ...] | None:
    return federation.gateways.get(gateway)


def _shown(value: Any) -> str:
    return "not listed" if value is None else msgspec.json.encode(value).decode()
