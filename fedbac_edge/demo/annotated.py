"""The demonstration of HASSLE: its labels, what the models come to, what each kind of device sends."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
import numpy.typing as npt

from export.clusters import export_all
from export.session import Session
from fedbac_edge.datasets import npz
from fedbac_edge.datasets.shards import DESCRIPTION
from fedbac_edge.demo.comparable import Comparison, compare
from fedbac_edge.methods import method
from fedbac_edge.node.store import LedgerLine, Store
from fedbac_edge.protocol.messages import RoundSummary
from fedbac_edge.terminal.rounds import accuracy_by_site, mean, percent, size

if TYPE_CHECKING:
    from fedbac_edge.demo.settings import Settings
    from fedbac_edge.settings.federation import Federation

KINDS = ("fully labelled", "partially labelled", "unlabelled")


@dataclass(frozen=True)
class Kind:
    """The devices of one kind: samples, labels, updates that counted, and bytes up and down for these."""

    name: str
    devices: int = 0
    samples: int = 0
    labels: int = 0
    updates: int = 0
    up_bytes: int = 0
    down_bytes: int = 0


@dataclass(frozen=True)
class AnnotatedVerdict:
    """All figures of a finished run; `views`: accuracy of each of the method's models on the test images."""

    views: dict[str, float]
    kinds: tuple[Kind, ...]
    test_samples: int
    rounds: int
    compared: Comparison
    """Of the served model: hold-outs beside test images."""
    training_s: float
    """Sum over rounds and evaluations."""
    up_bytes: int
    down_bytes: int
    models: tuple[Path, ...]

    @property
    def test_accuracy(self) -> float:
        """Of the model that is served."""
        return next(iter(self.views.values()))


def judge(settings: Settings, federation: Federation) -> AnnotatedVerdict:
    """Export every view, let it answer for all test images, and read the ledgers."""
    places = sorted(settings.data.glob("gw*/test.npz"))
    tests = [npz.read(place) for place in places]
    x, y = np.concatenate([t.x for t in tests]), np.concatenate([t.y for t in tests])
    answers: dict[str, npt.NDArray[np.bool_]] = {}
    models = []
    for number, view in enumerate(method(federation).views):
        ((_, path),) = export_all(settings.state, settings.models, view=view.name if number else "")
        models.append(path)
        answers[view.name] = Session(path).logits(x).argmax(axis=1) == y
    summaries = [
        msgspec.convert(line.detail, RoundSummary)
        for line in _ledger(settings.state / "cloud.sqlite")
        if line.kind == "summary"
    ]
    return AnnotatedVerdict(
        views={name: float(right.mean()) for name, right in answers.items()},
        kinds=tuple(_kinds(settings, federation).values()),
        test_samples=len(y),
        rounds=summaries[-1].round,
        compared=compare(
            settings.data,
            federation.model.classes,
            y,
            next(iter(answers.values())),
            mean(accuracy_by_site(summaries[-1])),
        ),
        training_s=sum(summary.seconds for summary in summaries),
        up_bytes=sum(summary.up_bytes for summary in summaries),
        down_bytes=sum(summary.down_bytes for summary in summaries),
        models=tuple(models),
    )


def as_json(verdict: AnnotatedVerdict) -> dict[str, Any]:
    """Everything, with paths as text."""
    fields: dict[str, Any] = msgspec.to_builtins(verdict, enc_hook=str)
    return {**fields, "test_accuracy": verdict.test_accuracy}


def summary(settings: Settings, result: AnnotatedVerdict, broker: str, seconds: float) -> list[str]:
    """The closing lines: figures, where everything lies, what to try next."""
    served, *others = result.views.items()
    lines = [
        "",
        f"Test accuracy by the exported models, on {result.test_samples:,} images: {served[0]} "
        f"{percent(served[1])} (served), " + ", ".join(f"{name} {percent(share)}" for name, share in others),
        *_compared(result.compared),
        f"{'':20}{'devices':>8}{'images':>7}{'labels':>7}{'updates':>8}{'up':>10}{'down':>10}{'up each':>10}",
    ]
    for kind in result.kinds:
        each = size(round(kind.up_bytes / kind.updates)) if kind.updates else "-"
        lines.append(
            f"  {kind.name:18}{kind.devices:>8}{kind.samples:>7,}{kind.labels:>7,}{kind.updates:>8}"
            f"{size(kind.up_bytes):>10}{size(kind.down_bytes):>10}{each:>10}"
        )
    first = sorted(settings.data.glob("gw*/examples.npy"))
    return [
        *lines,
        f"{result.rounds} rounds in {seconds:.0f} s; devices and gateways sent {size(result.up_bytes)} and "
        f"fetched {size(result.down_bytes)}",
        "",
        f"federation  {settings.federation}",
        f"stores      {settings.state}  (fedbac status --state {settings.state})",
        f"logs        {settings.logs}",
        f"models      {settings.models}  (cluster-0.onnx is served)",
        f"data        {settings.data}",
        "",
        "Next: let the served model name images, without torch:",
        f"  fedbac-agent infer --model {result.models[0]} {first[0] if first else 'IMAGE'}",
        "or begin such a federation of your own: fedbac init --preset hassle",
    ]


def _compared(found: Comparison) -> list[str]:
    """Why the hold-outs of the table above say something else."""
    weakest = sorted(found.classes, key=lambda each: each.test_accuracy)[:2]
    return [
        f"The hold-outs say {percent(found.holdout_accuracy)}. They are only {found.holdout_samples} "
        f"labelled images, of the {found.holdout_devices} devices with labels and in the classes they have;",
        f"on test images in the same shares of classes the served model reaches "
        f"{percent(found.test_as_held_out)}. Its weakest classes on all test images: "
        + ", ".join(
            f"{each.name} {percent(each.test_accuracy)} ({each.labels} labels to learn from)"
            for each in weakest
        ),
    ]


def _kinds(settings: Settings, federation: Federation) -> dict[str, Kind]:
    """Kind -> its figures: from what was cut, and from what the gateways counted."""
    described = json.loads((settings.data / DESCRIPTION).read_text(encoding="utf-8"))
    found = {name: Kind(name) for name in KINDS}
    for gateway, devices in federation.gateways.items():
        accepted = [
            line for line in _ledger(settings.state / f"gateway-{gateway}.sqlite") if line.kind == "accepted"
        ]
        for device in devices:
            labels = sum(described["counts"][f"{gateway}/{device}"])
            bare = described["unlabelled"][f"{gateway}/{device}"]
            kind = found[KINDS[2] if not labels else KINDS[1] if bare else KINDS[0]]
            lines = [line.detail for line in accepted if line.subject == device]
            found[kind.name] = replace(
                kind,
                devices=kind.devices + 1,
                samples=kind.samples + labels + bare,
                labels=kind.labels + labels,
                updates=kind.updates + len(lines),
                up_bytes=kind.up_bytes + sum(detail["bytes"] for detail in lines),
                down_bytes=kind.down_bytes + sum(detail["received"] for detail in lines),
            )
    return found


def _ledger(path: Path) -> list[LedgerLine]:
    store = Store(path, read_only=True)
    try:
        return store.ledger()
    finally:
        store.close()
