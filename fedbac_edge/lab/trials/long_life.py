"""A gateway's life with devices that come and go, drift, and attack: which are refused, and which count.

The gateway is the machine of the field. Its devices train a softmax regression on few samples of their own,
which they can fit, so steps shrink as the model learns and the rate decays. A device that was away, or whose
data changed, takes long steps again. An attacker sends a step of a length that it chooses.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
import numpy.typing as npt

from fedbac_edge.federation_file.reading import parse
from fedbac_edge.parts.part import Part, digest, pack, unpack
from fedbac_edge.protocol.events import Action, Channel, Event, Keep, Log, Received, Send, Started, TimerFired
from fedbac_edge.protocol.gateway import gate
from fedbac_edge.protocol.gateway.machine import Gateway
from fedbac_edge.protocol.messages import (
    DeviceStatus,
    DeviceUpdate,
    GatewayTask,
    GatewayUpdate,
    Receipt,
    Spec,
    TrainTask,
)
from fedbac_edge.vocabulary.terms import NO_SCORE, PartRef
from fedbac_edge.vocabulary.training import LocalTraining

Floats = npt.NDArray[np.float64]
Attack = Literal["scaled", "noise", "reversed"]

INSTANCE = "0badcafe"
FEATURES, CLASSES, SAMPLES = 60, 4, 24
EPOCHS = 5
MOST_AWAY = 0.4
"""Of the honest devices: the others stay, or attackers would be the majority."""


@dataclass(frozen=True)
class Life:
    """What happens in `rounds` rounds to `honest` devices, beside `attackers`."""

    rounds: int = 1000
    honest: int = 10
    attackers: tuple[tuple[Attack, float], ...] = (("reversed", 100.0), ("noise", 1000.0))
    """Kind, and the length of what is sent in honest steps of the same device ("noise": in units)."""
    attacks_from: int = 20
    """Until then attackers are not there: the gate judges from the 20th length on."""
    leaves: float = 1 / 300
    """Chance per round that an honest device goes away, for 20 to 300 rounds."""
    away: tuple[int, int] = (300, 590)
    """The first device is away between these rounds, whatever chance says."""
    drifts: float = 1 / 400
    """Chance per round and device that all of its data change."""
    rate: float = 0.2
    decay: float = 0.995
    norm_gate: bool = True
    seed: int = 1


@dataclass
class Outcome:
    """Counts over a life: by device, of updates sent, refused, and counted but shortened."""

    sent: Counter[str] = field(default_factory=Counter)
    refused: Counter[str] = field(default_factory=Counter)
    shortened: Counter[str] = field(default_factory=Counter)
    in_a_row: Counter[str] = field(default_factory=Counter)
    """The most refusals in a row."""
    void: int = 0
    accuracy: float = 0.0
    """Of the last model, on fresh samples of what the honest devices have."""

    def rate(self, which: Counter[str], devices: tuple[str, ...]) -> float:
        """Share of the updates of `devices`."""
        return sum(which[name] for name in devices) / max(1, sum(self.sent[name] for name in devices))


def honest(life: Life) -> tuple[str, ...]:
    """Names of the honest devices."""
    return tuple(f"h{number}" for number in range(life.honest))


def attackers(life: Life) -> tuple[str, ...]:
    """Names of the others."""
    return tuple(f"x{number}" for number in range(len(life.attackers)))


def live(life: Life) -> Outcome:
    """All rounds of a life, one after the other."""
    rng = np.random.default_rng(life.seed)
    good, bad = honest(life), attackers(life)
    site = _Site((*good, *bad), life)
    truth = rng.normal(size=(FEATURES, CLASSES))
    data = {name: _draw(rng, truth) for name in (*good, *bad)}
    weights, outcome = np.zeros((FEATURES, CLASSES)), Outcome()
    until = dict.fromkeys(good, 0)
    row: Counter[str] = Counter()
    for t in range(1, life.rounds + 1):
        for name in good:
            gone = sum(until[other] >= t for other in good)
            if until[name] < t and rng.random() < life.leaves and gone < MOST_AWAY * len(good):
                until[name] = t + int(rng.integers(20, 300))
            if rng.random() < life.drifts:
                data[name] = _draw(rng, truth)
        if life.away[0] < t <= life.away[1]:
            until[good[0]] = max(until[good[0]], life.away[1])
        elif life.away[1] < t <= life.away[1] + 20:
            until[good[0]] = 0
        present = [name for name in good if until[name] < t]
        present += bad if t >= life.attacks_from else ()
        updates: dict[str, Floats] = {}
        for name in present:
            step = _train(weights, *data[name], max(1e-3, life.rate * life.decay ** (t - 1)))
            if name in bad:
                step = _attack(*life.attackers[bad.index(name)], step, rng)
            updates[name] = weights + step
        fresh, lines = site.round(t, weights, updates)
        if fresh is None:
            outcome.void += 1
        else:
            weights = fresh
        for name in present:
            outcome.sent[name] += 1
        for line in lines:
            if line.kind == "refused":
                outcome.refused[line.subject] += 1
                row[line.subject] += 1
                outcome.in_a_row[line.subject] = max(outcome.in_a_row[line.subject], row[line.subject])
            if line.kind == "accepted":
                row[line.subject] = 0
                outcome.shortened[line.subject] += bool(line.detail.get("shortened"))
    tests = [_draw(rng, truth, 500) for _ in range(4)]
    outcome.accuracy = float(np.mean([np.mean((x @ weights).argmax(1) == y) for x, y in tests]))
    return outcome


def _draw(
    rng: np.random.Generator, truth: Floats, samples: int = SAMPLES
) -> tuple[Floats, npt.NDArray[np.int64]]:
    """Samples around a centre of the device's own, with the labels of the common truth."""
    x = rng.normal(size=(samples, FEATURES)) + rng.normal(size=FEATURES)
    return x, (x @ truth).argmax(1)


def _train(weights: Floats, x: Floats, y: npt.NDArray[np.int64], rate: float) -> Floats:
    """The step of some epochs of gradient descent in batches of eight."""
    moved, wanted = weights.copy(), np.eye(CLASSES)[y]
    for _ in range(EPOCHS):
        for first in range(0, len(x), 8):
            batch = x[first : first + 8]
            logits = batch @ moved
            p = np.exp(logits - logits.max(1, keepdims=True))
            p /= p.sum(1, keepdims=True)
            moved -= rate * batch.T @ (p - wanted[first : first + 8]) / len(batch)
    return moved - weights


def _attack(kind: Attack, size: float, step: Floats, rng: np.random.Generator) -> Floats:
    match kind:
        case "scaled":
            return size * step
        case "reversed":
            return -size * step
        case "noise":
            noise = rng.normal(size=step.shape)
            return size * noise / float(np.linalg.norm(noise))


class _Site:
    """A gateway's machine with the devices' side of its protocol."""

    def __init__(self, devices: tuple[str, ...], life: Life) -> None:
        self.federation = parse(
            f"""
            name = "t"
            rounds = {life.rounds}
            eligibility = "online"
            [model]
            classes = ["a", "b"]
            input = [1, 16, 16]
            [method]
            name = "hierfavg"
            [selection]
            participation = 1.0
            method = "random"
            [deadlines]
            min_updates = 1
            norm_gate = {str(life.norm_gate).lower()}
            [gateways]
            gw1 = []
            """
        )
        self.blobs: dict[str, bytes] = {}
        self.machine = Gateway("gw1", self.blobs)
        (self.role,) = gate.schemas(self.federation)
        self.schema = gate.schemas(self.federation)[self.role]
        self.online: set[str] = set()
        self.devices, self.session = devices, 0
        self._do(Started(), 0.0)
        self._do(
            Received(Channel("spec"), Spec(federation=self.federation, instance=INSTANCE, software="")), 0.0
        )

    def round(
        self, number: int, weights: Floats, updates: Mapping[str, Floats]
    ) -> tuple[Floats | None, list[Log]]:
        """Round `number` from `weights` with the models `updates`: the average, None if void; the ledger."""
        now, actions = float(number), list[Action]()
        for name in sorted(self.online ^ set(updates)):
            self.session += 1
            state = "online" if name in updates else "offline"
            said = DeviceStatus(
                state=state, session=self.session, samples=SAMPLES, labelled=SAMPLES, holdout=0
            )
            actions += self._do(Received(Channel("status", "gw1", name), said), now)
        self.online = set(updates)
        base = pack(self._as_part(weights))
        self.blobs[digest(base)] = base
        task = GatewayTask(
            instance=INSTANCE,
            round=number,
            cluster=0,
            parts={self.role: PartRef(self.role, digest(base), len(base))},
            previous={},
            training=LocalTraining(
                epochs=1,
                batch_size=8,
                learning_rate=0.1,
                momentum=0.0,
                weight_decay=0.0,
                clip_norm=1.0,
                l2={},
            ),
            deadline_s=100.0,
        )
        actions += self._do(Received(Channel("task", "gw1"), task), now)
        asked = [a for a in actions if isinstance(a, Send) and isinstance(a.message, TrainTask)]
        for send in asked:
            name = send.channel.device
            update = DeviceUpdate(
                instance=INSTANCE,
                device=name,
                round=number,
                base={self.role: digest(base)},
                parts={self.role: pack(self._as_part(updates[name]))},
                samples=SAMPLES,
                data=SAMPLES,
                loss=1.0,
                holdout=NO_SCORE,
                previous=None,
                received=0,
                seconds=1.0,
            )
            actions += self._do(Received(Channel("update", "gw1", name), update, 1), now)
        actions += self._do(TimerFired("deadline"), now)
        (report,) = [
            a.message for a in actions if isinstance(a, Send) and isinstance(a.message, GatewayUpdate)
        ]
        receipt = Receipt(kind="train", round=number, accepted=True, reason="")
        actions += self._do(Received(Channel("receipt", "gw1"), receipt), now)
        lines = [action for action in actions if isinstance(action, Log)]
        if report.void:
            return None, lines
        return self._as_weights(unpack(report.parts[self.role], self.schema)), lines

    def _do(self, event: Event, now: float) -> list[Action]:
        actions = self.machine.handle(event, now)
        for action in actions:
            if isinstance(action, Keep):
                self.blobs[action.hash] = action.data
        kept = self.machine.kept()
        for hash in [hash for hash in self.blobs if hash not in kept]:
            del self.blobs[hash]
        return actions

    def _as_part(self, weights: Floats) -> Part:
        """The weights in the largest tensor of a part; the others are zero."""
        part = {name: np.zeros(shape, np.float32) for name, shape in self.schema.items()}
        largest = max(part, key=lambda name: part[name].size)
        part[largest].reshape(-1)[: weights.size] = weights.astype(np.float32).reshape(-1)
        return part

    def _as_weights(self, part: Part) -> Floats:
        largest = max(part, key=lambda name: part[name].size)
        return part[largest].reshape(-1)[: FEATURES * CLASSES].astype(np.float64).reshape(FEATURES, CLASSES)
