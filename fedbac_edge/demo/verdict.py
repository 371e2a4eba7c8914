"""What a demonstration came to: accuracy on test images by the exported models, and what the bandits did."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from export.clusters import export_all
from export.session import Session
from fedbac_edge.datasets import npz
from fedbac_edge.node.store import LedgerLine, Store
from fedbac_edge.protocol.messages import RoundSummary

if TYPE_CHECKING:
    from fedbac_edge.demo.settings import Settings
    from fedbac_edge.settings.federation import Federation


@dataclass(frozen=True)
class Site:
    """One site: its cluster's model on its own test images."""

    name: str
    cluster: int
    test_samples: int
    test_accuracy: float
    holdout_accuracy: float | None


@dataclass(frozen=True)
class Bandits:
    """Evidence from the ledgers: selections by rank, placements weighed over clusters, moves made."""

    ranked_selections: int
    placements_weighed: int
    moves: int


@dataclass(frozen=True)
class Verdict:
    """All figures of a finished run. Accuracy over sites is unweighted."""

    sites: tuple[Site, ...]
    bandits: Bandits
    rounds: int
    training_s: float
    """Sum over rounds and evaluations."""
    up_bytes: int
    down_bytes: int
    models: tuple[Path, ...]

    @property
    def test_accuracy(self) -> float:
        """Distributed test accuracy."""
        return float(np.mean([site.test_accuracy for site in self.sites]))


def judge(settings: Settings, federation: Federation) -> Verdict:
    """Export the models, let them answer for every site's test images, and read the ledgers."""
    exported = export_all(settings.state, settings.models)
    sites = []
    for cluster, path in exported:
        session = Session(path)
        for name in cluster.sites:
            test = npz.read(settings.data / name / "test.npz")
            right = session.logits(test.x).argmax(axis=1) == test.y
            sites.append((name, cluster.number, len(test), float(right.mean())))
    cloud = _ledger(settings.state / "cloud.sqlite")
    summaries = [msgspec.convert(line.detail, RoundSummary) for line in cloud if line.kind == "summary"]
    final = summaries[-1].sites
    return Verdict(
        sites=tuple(Site(*site, final[site[0]].accuracy) for site in sorted(sites)),
        bandits=_bandits(cloud, settings, federation),
        rounds=summaries[-1].round,
        training_s=sum(summary.seconds for summary in summaries),
        up_bytes=sum(summary.up_bytes for summary in summaries),
        down_bytes=sum(summary.down_bytes for summary in summaries),
        models=tuple(path for _, path in exported),
    )


def as_json(verdict: Verdict) -> dict[str, Any]:
    """Everything, with paths as text."""
    accuracies = [site.test_accuracy for site in verdict.sites]
    fields: dict[str, Any] = msgspec.to_builtins(verdict, enc_hook=str)
    return {
        **fields,
        "test_accuracy": verdict.test_accuracy,
        "worst": min(accuracies),
        "best": max(accuracies),
    }


def _bandits(cloud: list[LedgerLine], settings: Settings, federation: Federation) -> Bandits:
    sweeps = [line.detail for line in cloud if line.kind == "sweep"]
    selections = [
        line.detail
        for gateway in federation.gateways
        for line in _ledger(settings.state / f"gateway-{gateway}.sqlite")
        if line.kind == "selected"
    ]
    return Bandits(
        ranked_selections=sum(not selection["warm_up"] for selection in selections),
        placements_weighed=sum(len(sweep["scores"]) > 1 for sweep in sweeps),
        moves=sum(sweep["chosen"] != sweep["previous"] for sweep in sweeps),
    )


def _ledger(path: Path) -> list[LedgerLine]:
    store = Store(path, read_only=True)
    try:
        return store.ledger()
    finally:
        store.close()
