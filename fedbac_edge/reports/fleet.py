"""A real fleet's state folder as a report: what the cloud's ledger and those of gateways beside it tell.

Accuracies are those of hold-outs, for a fleet has no test set. Nothing is written to a store.
"""

from __future__ import annotations

import datetime
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

import msgspec

from fedbac_edge.node.store import LedgerLine, Store, StoreError
from fedbac_edge.protocol.messages import RoundSummary
from fedbac_edge.reports.document import (
    NONE,
    Block,
    Heading,
    Paragraph,
    Picture,
    Table,
    without_empty_columns,
)
from fedbac_edge.reports.reading import ReportError

CLOUD = "cloud.sqlite"
LATEST = 20
"""Rounds in the table; the picture has all."""


@dataclass(frozen=True)
class Device:
    """What the gateways' ledgers say of a device."""

    gateway: str
    name: str
    accepted: int
    refused: int
    up_bytes: int
    last: float
    """When it was heard of last, in seconds since 1970."""


@dataclass(frozen=True)
class Fleet:
    """A federation as its cloud remembers it. `rounds` are (ended, summary), oldest first."""

    name: str
    folder: Path
    method: str
    phase: str
    round: int
    rounds: tuple[tuple[float, RoundSummary], ...]
    devices: tuple[Device, ...]
    releases: tuple[int, ...]


def is_fleet(folder: Path) -> bool:
    """Does a cloud keep its state here?"""
    return (folder / CLOUD).is_file()


def read_fleet(folder: Path) -> Fleet:
    """The fleet, also while its cloud runs. Raises ReportError."""
    try:
        state, federation, lines = _store(folder / CLOUD)
        rounds = tuple(
            (line.wall, msgspec.convert(line.detail, RoundSummary))
            for line in lines
            if line.kind == "summary"
        )
        devices = [
            device
            for path in sorted(folder.glob("gateway-*.sqlite"))
            for device in _devices(path.stem.removeprefix("gateway-"), _store(path)[2])
        ]
        return Fleet(
            name=federation["name"],
            folder=folder,
            method=federation["method"]["name"],
            phase=state["phase"],
            round=state["round"],
            rounds=rounds,
            devices=tuple(devices),
            releases=tuple(release["number"] for release in state.get("releases", [])),
        )
    except (StoreError, OSError, msgspec.DecodeError, msgspec.ValidationError, KeyError, TypeError) as error:
        raise ReportError(f"{folder} is no state of a fleet that can be read: {error}") from error


def _store(path: Path) -> tuple[dict[str, Any], dict[str, Any], list[LedgerLine]]:
    """The machine's state, the federation and the ledger; empty where a store has none."""
    store = Store(path, read_only=True)
    try:
        machine, federation = store.read("machine"), store.read("federation")
        return (
            {} if machine is None else msgspec.msgpack.decode(machine),
            {} if federation is None else msgspec.msgpack.decode(federation),
            store.ledger(),
        )
    finally:
        store.close()


def _devices(gateway: str, lines: Sequence[LedgerLine]) -> list[Device]:
    counted = [line for line in lines if line.kind in ("accepted", "refused") and line.subject]
    found = []
    for name in sorted({line.subject for line in counted}):
        own = [line for line in counted if line.subject == name]
        accepted = [line for line in own if line.kind == "accepted"]
        found.append(
            Device(
                gateway=gateway,
                name=name,
                accepted=len(accepted),
                refused=len(own) - len(accepted),
                up_bytes=sum(int(line.detail.get("bytes", 0)) for line in accepted),
                last=max(line.wall for line in own),
            )
        )
    return found


def fleet_page(fleet: Fleet, names: set[str]) -> list[Block]:
    """Its blocks, under a heading of the second level; `names` are those of pictures that are taken."""
    from fedbac_edge.reports import figures  # matplotlib: the figures alone do without

    blocks: list[Block] = [Heading(2, f"Fleet {fleet.name}"), Paragraph(_story(fleet))]
    curves = _curves(fleet)
    if curves:
        name = f"accuracy-fleet-{len(names) + 1}.png"
        names.add(name)
        blocks.append(
            Picture(
                name=name,
                alt=f"Hold-out accuracy over rounds of {fleet.name}",
                caption="Hold-out accuracy of the model that a round starts from: mean and sites.",
                png=figures.shares_over_rounds(curves, "hold-out accuracy, %"),
            )
        )
    tables = [_sites(fleet), _devices_table(fleet), _rounds(fleet)]
    return [*blocks, *(without_empty_columns(table) for table in tables if table.rows)]


def _story(fleet: Fleet) -> str:
    told = f"State in {fleet.folder}: {fleet.method}, {fleet.phase}, round {fleet.round}. "
    if not fleet.rounds:
        return told + "No round has ended yet."
    first, last = fleet.rounds[0], fleet.rounds[-1]
    up, down = sum(s.up_bytes for _, s in fleet.rounds), sum(s.down_bytes for _, s in fleet.rounds)
    told += (
        f"Its ledger goes from round {first[1].round} ({_when(first[0])}) to round {last[1].round} "
        f"({_when(last[0])}); devices and gateways sent {up / 1e6:,.1f} MB, fetched {down / 1e6:,.1f} MB."
    )
    return told + (f" Newest release: {fleet.releases[-1]}." if fleet.releases else "")


def _curves(fleet: Fleet) -> list[tuple[str, list[tuple[int, float]]]]:
    """(name, points): mean over sites first; only rounds of training, which all score alike."""
    training = [summary for _, summary in fleet.rounds if summary.phase == "train"]
    sites = sorted({name for summary in training for name in summary.sites})
    curves = []
    if len(sites) > 1:
        means = []
        for summary in training:
            there = [site.accuracy for site in summary.sites.values() if site.accuracy is not None]
            if there:
                means.append((summary.round, fmean(there)))
        curves.append(("mean over sites", means))
    for name in sites:
        points = [
            (summary.round, share)
            for summary in training
            if name in summary.sites and (share := summary.sites[name].accuracy) is not None
        ]
        curves.append((name, points))
    return [(name, points) for name, points in curves if points]


def _sites(fleet: Fleet) -> Table:
    training = [summary for _, summary in fleet.rounds if summary.phase == "train"]
    newest = fleet.rounds[-1][1] if fleet.rounds else None
    rows = []
    for name in sorted({name for summary in training for name in summary.sites}):
        there = [summary.sites[name] for summary in training if name in summary.sites]
        last = newest.sites.get(name, there[-1]) if newest is not None else there[-1]
        rows.append(
            (
                name,
                str(last.cluster),
                NONE if last.accuracy is None else f"{100 * last.accuracy:.1f}",
                str(last.holdout) if last.holdout else NONE,
                str(sum(site.asked for site in there)),
                str(sum(site.answered for site in there)),
                str(sum(site.refused for site in there)),
                str(sum(bool(site.void) for site in there)),
            )
        )
    return Table(
        "Sites: cluster and hold-out accuracy as last told; devices asked, answered and refused, and void "
        "rounds, over all rounds of the ledger",
        ("site", "cluster", "hold-out, %", "held out", "asked", "answered", "refused", "void rounds"),
        tuple(rows),
    )


def _devices_table(fleet: Fleet) -> Table:
    rows = tuple(
        (
            f"{device.gateway}/{device.name}",
            str(device.accepted),
            str(device.refused) if device.refused else NONE,
            f"{device.up_bytes / 1e6:.1f}",
            _when(device.last),
        )
        for device in fleet.devices
    )
    return Table(
        "Devices: updates that counted or were refused, by the ledgers of the gateways in this folder",
        ("device", "counted", "refused", "MB up", "heard of last"),
        rows,
        frozenset({4}),
    )


def _rounds(fleet: Fleet) -> Table:
    rows = []
    for wall, summary in fleet.rounds[-LATEST:]:
        shares = [site.accuracy for site in summary.sites.values() if site.accuracy is not None]
        training = summary.phase == "train"
        rows.append(
            (
                f"{summary.round} {summary.phase}",
                _when(wall),
                f"{100 * fmean(shares):.1f}" if shares else NONE,
                f"{100 * min(shares):.1f}" if shares else NONE,
                f"{100 * max(shares):.1f}" if shares else NONE,
                str(summary.active_clusters),
                str(sum(site.answered for site in summary.sites.values())) if training else NONE,
                f"{(summary.up_bytes + summary.down_bytes) / 1e6:.2f}",
                f"{summary.seconds:.1f}",
            )
        )
    return Table(
        f"The last {LATEST} rounds. A train row scores the model that its round starts from, an evaluate row "
        "the one that the round made",
        ("round", "ended", "hold-out, %", "worst", "best", "clusters", "answered", "MB", "seconds"),
        tuple(rows),
        frozenset({1}),
    )


def fleet_json(fleet: Fleet) -> dict[str, object]:
    """The same figures for other programs."""
    return {
        "name": fleet.name,
        "folder": str(fleet.folder),
        "method": fleet.method,
        "phase": fleet.phase,
        "round": fleet.round,
        "releases": list(fleet.releases),
        "rounds": [{"ended": wall, **msgspec.to_builtins(summary)} for wall, summary in fleet.rounds],
        "devices": [
            {
                "gateway": d.gateway,
                "name": d.name,
                "accepted": d.accepted,
                "refused": d.refused,
                "last": d.last,
            }
            for d in fleet.devices
        ],
    }


def _when(wall: float) -> str:
    """UTC, to the second."""
    return datetime.datetime.fromtimestamp(wall, datetime.UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
