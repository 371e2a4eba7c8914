"""A round's summary in the words and columns that people read: the same for the cloud, status and demo."""

from __future__ import annotations

import datetime
from collections.abc import Mapping
from typing import Any

import msgspec

from fedbac_edge.protocol.messages import RoundSummary
from fedbac_edge.terminal.narrow import Column, fitting, packed, row

EXPLAINED = (
    "A train row scores the model that its round starts from (round 1: the untrained one), "
    "on pictures that the asked devices never train on; hold-out is the mean over sites. "
    "An evaluate row scores the model that the round made, on those of all devices."
)
"""Said once, above the first row."""
PROSE = 100
"""Sentences are not wider."""


class RoundTable:
    """Rows as wide as the terminal: all columns, then fewer, then a card of a few lines per round."""

    def __init__(self, width: int | None, indent: str = "") -> None:
        """`width` in characters, None where lines may be of any length (files, pipes)."""
        self._width, self._indent = width, indent
        self._layout: tuple[Column, ...] | None = None
        self._named = 0
        self._explained = False

    def lines(self, summary: RoundSummary, wall: float | None = None, width: int | None = None) -> list[str]:
        """One round, ended at `wall` (seconds since 1970), with what must stand above it.

        The explanation stands above the first row alone; headings again where the layout changes: with a
        site of a longer name, or a terminal of another `width`.
        """
        self._width = width or self._width
        room = None if self._width is None else self._width - len(self._indent)
        found: list[str] = []
        if not self._explained:
            found += packed(EXPLAINED.split(), min(room or PROSE, PROSE), " ")
            self._explained = True
        self._named = max(self._named, *(len(name) for name in summary.sites), 3)
        layout = fitting(_columns(self._named, wall is not None), room)
        if layout != self._layout:
            self._layout = layout
            found += [row({each.name: each.name for each in layout}, layout)] if layout else []
        cells = _cells(summary, wall)
        found += _rows(cells, layout, _notes(summary, layout), room) if layout else _card(summary, wall, room)
        return [self._indent + line for line in found]


def _columns(named: int, timed: bool) -> tuple[Column, ...]:
    """Heading, width, and the order in which columns go: the lowest `keep` first. `named`: longest name."""
    site = named + 8
    columns = (
        Column("time", 8),
        Column("round", 5),
        Column("phase", 8),
        Column("hold-out", 8),
        Column("worst site", max(10, site)),
        Column("best site", max(9, site)),
        Column("clusters", 8),
        Column("asked", 5, 2),
        Column("answered", 8),
        Column("refused", 7, 2),
        Column("up", 9, 1),
        Column("down", 9, 1),
        Column("seconds", 7),
    )
    return columns if timed else columns[1:]


def _cells(summary: RoundSummary, wall: float | None) -> dict[str, str]:
    accuracies = accuracy_by_site(summary)
    training = summary.phase == "train"
    asked, answered, refused = counts(summary)
    return {
        "time": clock(wall),
        "round": str(summary.round),
        "phase": summary.phase,
        "hold-out": percent(mean(accuracies)),
        "worst site": _site(accuracies, lowest=True),
        "best site": _site(accuracies, lowest=False),
        "clusters": str(summary.active_clusters),
        "asked": str(asked) if training else "-",
        "answered": str(answered) if training else "-",
        "refused": str(refused) if training else "-",
        "up": size(summary.up_bytes),
        "down": size(summary.down_bytes),
        "seconds": f"{summary.seconds:.1f}",
    }


def _rows(
    cells: Mapping[str, str], layout: tuple[Column, ...], notes: list[str], room: int | None
) -> list[str]:
    """The aligned row; notes follow it where there is room, else on lines of their own."""
    shown = {column.name for column in layout}
    answered = cells["answered"]
    if "asked" not in shown and answered != "-":
        cells = {**cells, "answered": f"{answered}/{cells['asked']}"}
    aligned = row(cells, layout)
    if not notes:
        return [aligned]
    beside = "  ".join([aligned, *notes])
    if room is None or len(beside) <= room:
        return [beside]
    return [aligned, *("      " + line for line in packed([f"{each};" for each in notes], room - 6, " "))]


def _card(summary: RoundSummary, wall: float | None, room: int | None) -> list[str]:
    """The round as a heading and lines that wrap between facts."""
    accuracies = accuracy_by_site(summary)
    heading = [f"round {summary.round}", summary.phase, *([clock(wall)] if wall is not None else [])]
    facts = [f"hold-out {percent(mean(accuracies))}"]
    if accuracies:
        facts += [f"worst {_site(accuracies, lowest=True)}", f"best {_site(accuracies, lowest=False)}"]
    if summary.phase == "train":
        asked, answered, refused = counts(summary)
        facts.append(f"{answered} of {asked} answered")
        facts += [f"{refused} refused"] if refused else []
    facts.append(f"{summary.active_clusters} cluster{'s' * (summary.active_clusters != 1)}")
    facts += [f"{size(summary.up_bytes)} up", f"{size(summary.down_bytes)} down", f"{summary.seconds:.1f} s"]
    facts += _notes(summary, (Column("refused", 7),))
    listed = [f"{each}," for each in facts[:-1]] + facts[-1:]
    wrapped = packed(listed, None if room is None else room - 2, " ")
    return ["  ".join(heading), *("  " + line for line in wrapped)]


def _notes(summary: RoundSummary, layout: tuple[Column, ...] | None) -> list[str]:
    """What a round moved or missed, and refused where there is no column for it."""
    notes = [f"{site} -> cluster {cluster}" for site, cluster in sorted(summary.reassigned.items())]
    notes += [f"{name}: {site.void}" for name, site in sorted(summary.sites.items()) if site.void]
    refused = counts(summary)[2]
    if refused and "refused" not in {column.name for column in layout or ()}:
        notes.append(f"{refused} refused")
    return notes


def counts(summary: RoundSummary) -> tuple[int, int, int]:
    """(asked, answered, refused) devices over all sites."""
    sites = summary.sites.values()
    return (
        sum(site.asked for site in sites),
        sum(site.answered for site in sites),
        sum(site.refused for site in sites),
    )


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


def clock(wall: float | None) -> str:
    """Seconds since 1970 as the local time of day; the date is the log's or the terminal's own."""
    return "-" if wall is None else f"{datetime.datetime.fromtimestamp(wall):%H:%M:%S}"


def _site(accuracies: Mapping[str, float], *, lowest: bool) -> str:
    if not accuracies:
        return "-"
    name = (min if lowest else max)(accuracies, key=lambda site: accuracies[site])
    return f"{name} {percent(accuracies[name])}"
