"""A round's summary in the words and columns that people read: the same for the cloud, status and demo."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from fedbac_edge.protocol.messages import RoundSummary

COLUMNS = (
    ("round", 5),
    ("phase", 8),
    ("hold-out", 8),
    ("worst site", 12),
    ("best site", 12),
    ("clusters", 8),
    ("asked", 5),
    ("answered", 8),
    ("refused", 7),
    ("up", 9),
    ("down", 9),
    ("seconds", 7),
)
"""Heading and width of each column; what a round moved or missed follows after the last one."""


def header() -> str:
    """The headings, aligned with `line`."""
    return " ".join(f"{name:>{width}}" for name, width in COLUMNS)


def line(summary: RoundSummary) -> str:
    """One round. hold-out: mean over sites of the model that the round began with (train) or made."""
    accuracies = accuracy_by_site(summary)
    sites = summary.sites.values()
    training = summary.phase == "train"
    asked, answered, refused = (
        str(sum(getattr(site, name) for site in sites)) if training else "-"
        for name in ("asked", "answered", "refused")
    )
    cells = (
        str(summary.round),
        summary.phase,
        percent(mean(accuracies)),
        _site(accuracies, lowest=True),
        _site(accuracies, lowest=False),
        str(summary.active_clusters),
        asked,
        answered,
        refused,
        size(summary.up_bytes),
        size(summary.down_bytes),
        f"{summary.seconds:.1f}",
    )
    notes = [f"{site} -> cluster {cluster}" for site, cluster in sorted(summary.reassigned.items())]
    notes += [f"{name}: {site.void}" for name, site in sorted(summary.sites.items()) if site.void]
    aligned = " ".join(f"{cell:>{width}}" for cell, (_, width) in zip(cells, COLUMNS, strict=True))
    return "  ".join([aligned, *notes])


def as_json(summary: RoundSummary) -> dict[str, Any]:
    """The summary's fields, and the mean, worst and best hold-out accuracy over its sites."""
    accuracies = accuracy_by_site(summary)
    extremes = {
        "accuracy": mean(accuracies),
        "worst": min(accuracies.values(), default=None),
        "best": max(accuracies.values(), default=None),
    }
    fields: dict[str, Any] = msgspec.to_builtins(summary)
    return {**fields, **extremes}


def accuracy_by_site(summary: RoundSummary) -> dict[str, float]:
    """Site -> hold-out accuracy, of the sites that have one."""
    return {name: site.accuracy for name, site in sorted(summary.sites.items()) if site.accuracy is not None}


def mean(accuracies: Mapping[str, float]) -> float | None:
    """Unweighted over sites: distributed accuracy."""
    return sum(accuracies.values()) / len(accuracies) if accuracies else None


def percent(share: float | None) -> str:
    """0.8123 as "81.2 %"."""
    return "-" if share is None else f"{100 * share:.1f} %"


def size(count: int) -> str:
    """Bytes in kB or MB (powers of ten)."""
    return f"{count / 1e6:.2f} MB" if count >= 1e6 else f"{count / 1e3:.1f} kB"


def _site(accuracies: Mapping[str, float], *, lowest: bool) -> str:
    if not accuracies:
        return "-"
    name = (min if lowest else max)(accuracies, key=lambda site: accuracies[site])
    return f"{name} {percent(accuracies[name])}"
