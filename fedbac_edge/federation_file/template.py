"""A federation as a commented federation.toml: every setting with what it does and its default."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any, get_args

import msgspec

from fedbac_edge.settings.federation import Federation

_BARE_KEY = re.compile(r"[A-Za-z0-9_-]+")

ABOUT: dict[str, str] = {
    "name": "Letters, digits, '.', '_' and '-'. Every topic of this federation carries it.",
    "seed": "Seeds every draw: initial weights, selection, batches. Same seed and roster, same result.",
    "rounds": "Rounds of training; a final evaluation follows the last one.",
    "eligibility": '"online": every device that is there takes part. "roster": exactly the devices under\n'
    "[gateways], present or not: results are the same bit by bit.",
    "evaluation": '"holdout": the bandits learn from samples that devices keep out of training.\n'
    '"test": from test data at the gateways, as in the paper; for the laboratory only.',
    "[model]": "The network, its input and its output. Every device must agree.",
    "model.architecture": '"lenet", "lenet-wide" with twice the weights, "resnet8" (for\n'
    'colour images and a GPU), "resnet8-slim" with a quarter of its channels, or your\n'
    'own: "module:factory".',
    "model.input": "Channels, height and width of an image.",
    "model.classes": "Class names in label order; folders of images are mapped by these names.",
    "model.mean": "Per channel, of pixels scaled to 0..1: the mean that is subtracted ...",
    "model.std": "... and the standard deviation that the rest is divided by.",
    "model.start": "Weights of an earlier federation to begin from, by their hash: `fedbac init --from`\n"
    "puts it here, and the file beside this one.",
    "[method]": "Which networks exist and how they are averaged.",
    "method.name": '"fedbac": a global network plus one per cluster. "hierfavg": one network for all.\n'
    '"ifca": one per cluster and none shared. "fed-cam": like fedbac, the two trained in turn.\n'
    '"local": every site for itself. "hassle": for fleets in which some or most devices have no labels.',
    "method.clusters": "Number of clusters; 0 means one per gateway under [gateways].",
    "method.initial": 'Where sites begin: "round-robin" over the clusters, all in a "single" one, or each\n'
    'where its loss is smallest ("argmin").',
    "method.places": "If you know the kinds of your sites: the cluster that each begins in, for example\n"
    '{ gw1 = 0, gw2 = 0, gw3 = 1 }; with assignment.method = "fixed" it stays there.',
    "method.cluster_start": 'First weights of the cluster networks: one "common" draw, one draw "each", or\n'
    '"warm": a cluster that is entered for the first time copies the network of the one left.',
    "method.cloud_weight": 'A site weighs by all its "data", or by what its "participants" trained on.',
    "[training]": "Local training on a device.",
    "training.epochs": "Passes over the device's samples in a round.",
    "training.batch_size": "Samples in an optimiser step.",
    "training.learning_rate": "In the first round.",
    "training.learning_rate_decay": "Factor from one round to the next.",
    "training.learning_rate_floor": "It never falls below this, unless it starts there.",
    "training.momentum": "Momentum of SGD; it starts at zero in every round.",
    "training.weight_decay": "Applies to all networks.",
    "training.clip_norm": "Largest length of the gradient over all networks together.",
    "training.cluster_l2": "lambda of lambda * ||K||^2, on the cluster's network only.",
    "training.threads": "CPU threads for training. Part of the result: sums depend on their order.",
    "training.backend": 'The training path: "auto" takes the fastest that a device has\n'
    '("compiled", "fused", "reference"). Equal bits need the same path everywhere.',
    "training.unlabelled": 'Samples without a label: "ignore" them, or "pseudo": the served model labels\n'
    "them and the device trains on them too. The method hassle has its own way.",
    "training.confidence": '"pseudo": devices do not train on labels less probable than this; 0: on all.',
    "[selection]": "Which devices a gateway asks in a round.",
    "selection.method": '"thompson": the ones that helped before, by Thompson sampling. "random": any.',
    "selection.participation": "Share of a gateway's devices that is asked, rounded down, at least one:\n"
    "0.8 of 5 are 4, of 2 only 1. With few devices take 1.0: all of them.",
    "selection.warm_up": "Rounds in which the choice is uniform, while experience is gathered.",
    "selection.credit": 'A round\'s change counts as won or lost ("hard"), or in proportion ("soft").',
    "[assignment]": "Which cluster a site belongs to.",
    "assignment.method": '"linucb": a contextual bandit moves sites. "argmin": to the smallest loss.\n'
    '"merge": similar clusters are merged, from initial = "round-robin" on (fedbac+).\n'
    '"fixed": they stay where they began.',
    "assignment.every": "Rounds between two sweeps over the sites.",
    "assignment.alpha": "How much the bandit explores.",
    "assignment.arms": 'One linear model per cluster ("disjoint"), or one for all ("shared").',
    "assignment.reward": 'What a cluster is rewarded with: "accuracy", or "accuracy-change".',
    "assignment.margin": '"argmin": a site moves if the best loss is below this share of its own.',
    "assignment.confidence": '"merge": another network is clearly worse above this many standard deviations',
    "assignment.tolerance": "and above this factor of the loss; it makes no difference below both.",
    "assignment.moves": '"merge": sites move to a network when their own is clearly worse.',
    "assignment.merges": '"merge": clusters become one when their networks make no difference.',
    "assignment.live_counts": "Cluster sizes follow the moves within a sweep, so that sites do not herd.",
    "[deadlines]": "When a round closes, in seconds, and what an update must pass.",
    "deadlines.min_updates": "With fewer updates a gateway's round does not count.",
    "deadlines.gather_s": "How long the first round waits for the roster.",
    "deadlines.deadline_min_s": "A round lasts twice the 90th percentile of earlier ones: at least this ...",
    "deadlines.deadline_max_s": "... and at most this. The first round takes ten times the lower bound.",
    "deadlines.evaluation_deadline_s": "For an evaluation phase.",
    "deadlines.norm_gate": "Shorten an update over 10 times as long as usual, refuse one over 30 times.",
    "[wire]": "How updates travel.",
    "wire.encoding": '"float32": all bits. "float16": half the bytes, steps are rounded.\n'
    '"int8": a quarter of the bytes; what a step loses is kept and added to the next one.',
    "[robust]": "How each tier averages when some senders may be hostile or broken.",
    "robust.edge": 'Over the devices of a gateway: "mean", "clip" (long steps are shortened),\n'
    '"trimmed-mean" and "median" (of each weight), "multi-krum" (only the updates closest to each other).',
    "robust.edge_clip_norm": 'Of "clip": the longest step; 0: the median of the round\'s.',
    "robust.edge_hostile": 'Of "trimmed-mean" and "multi-krum": share of the devices that may be hostile.',
    "robust.cloud": "Over the sites, and over those of each cluster: the same rules.",
    "robust.cloud_clip_norm": 'Of "clip", as above.',
    "robust.cloud_hostile": "Share of the sites that may be hostile.",
    "[releases]": "New models for the devices that serve (fedbac-agent serve).",
    "releases.every": "Rounds between two releases; 0: only one, at the end.",
    "releases.key": "Public half of the key that signs them; the private half stays with the cloud.\n"
    "Empty: the cloud makes a key when it first starts. Devices never trust this setting.",
    "releases.keep": "How many models stay with the broker to go back to: the newest and those before it.",
    "[hassle]": "For the method hassle alone: two dual networks and their compact residuals.",
    "hassle.gamma": "How strongly either dual network is drawn to the other one; 0: not at all.",
    "hassle.residual_weight": "Weight of labels and pseudo-labels in a residual's loss.",
    "hassle.tau_s": "Temperature at which the supervised network's residual is distilled ...",
    "hassle.tau_u": "... and the unsupervised one's.",
    "hassle.residual_steps": "Optimiser steps of a residual in a round.",
    "hassle.residual_weight_decay": "On the residuals; training.weight_decay is the dual networks'.",
    "hassle.residual_width": "Sixteenths of the dual networks' channels.",
    "hassle.teacher": 'A residual learns from the other "dual" network, or from that "with-residual".',
    "hassle.confidence": "Devices do not train on pseudo-labels less probable than this; 0: on all.",
    "hassle.align_residuals": "false: without residuals.",
    "hassle.pairing": 'Pseudo-labels are those of the networks that a device downloads ("download"), or\n'
    'of residuals trained in the round before, as in the "paper": they and the duals then take turns.',
    "[gateways]": 'Gateways and their devices, for example: gw1 = ["dev-1", "dev-2"]\n'
    "With an empty list any device may join there, else only those listed. Without gateways any may come.\n"
    "The first round waits for every gateway listed here. Both can change while the federation runs.",
}
"""Setting -> what a person should know. A test checks that each setting has one entry."""


def render(federation: Federation) -> str:
    """TOML text that `config.parse` reads back as an equal federation."""
    values: dict[str, Any] = msgspec.to_builtins(federation)
    types = {field.name: _table(field.type) for field in msgspec.structs.fields(Federation)}
    tables = [name for name, value in values.items() if isinstance(value, dict)]
    lines = ["# A federation of fedbac-edge. Devices and gateways learn all of it from the cloud.", ""]
    for name, value in values.items():
        if name not in tables and value is not None:  # None: a table that belongs to another method
            lines += _setting(name, name, value, _default(Federation, name))
    for table in tables:
        lines += ["", *_comment(ABOUT.get(f"[{table}]", "")), f"[{table}]"]
        for name, value in values[table].items():
            if table == "gateways":
                lines.append(f"{_key(name)} = {_value(value)}")
            else:
                lines += _setting(f"{table}.{name}", name, value, _default(types[table], name))
    return "\n".join(lines) + "\n"


def _table(kind: Any) -> Any:
    """The table behind `Table | None`."""
    return next((each for each in get_args(kind) if each is not type(None)), kind)


def _setting(path: str, name: str, value: Any, default: Any) -> list[str]:
    about = ABOUT.get(path, "")
    if default is not msgspec.NODEFAULT:
        about += f" Default: {_value(default)}"
    return [*_comment(about.strip()), f"{name} = {_value(value)}"]


def _comment(text: str) -> list[str]:
    return [f"# {line}" for line in text.splitlines()]


def _default(struct: Any, name: str) -> Any:
    field = next(field for field in msgspec.structs.fields(struct) if field.name == name)
    if field.default is not msgspec.NODEFAULT:
        return msgspec.to_builtins(field.default)
    return msgspec.NODEFAULT if field.default_factory is msgspec.NODEFAULT else field.default_factory()


def _key(name: str) -> str:
    return name if _BARE_KEY.fullmatch(name) else _value(name)


def _value(value: Any) -> str:
    """TOML for the kinds of values that a federation has."""
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(_value(item) for item in value) + "]"
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{_key(name)} = {_value(item)}" for name, item in value.items()) + "}"
    return repr(value)
