"""What the store of a cloud, a gateway or a device says: its state, and the end of its ledger."""

from __future__ import annotations

import datetime
import json
from pathlib import Path
from typing import Any

import msgspec

from fedbac_edge.node.store import Store, StoreError
from fedbac_edge.protocol.collecting import from_older
from fedbac_edge.protocol.messages import RoundSummary
from fedbac_edge.terminal import narrow, rounds


def stores(place: Path) -> list[Path]:
    """The stores at `place`: the file itself, or those in the directory and one level below it."""
    if place.is_dir():
        return sorted([*place.glob("*.sqlite"), *place.glob("*/*.sqlite")])
    if not place.exists():
        raise StoreError(f"there is no store {place}")
    return [place]


def read(place: Path, lines: int) -> list[dict[str, Any]]:
    """A description of each store at `place` with the last `lines` of its ledger. Raises StoreError."""
    return [_read(path, lines) for path in stores(place)]


def _read(path: Path, lines: int) -> dict[str, Any]:
    store = Store(path, read_only=True)
    try:
        written = store.read("machine")
        state = {} if written is None else from_older(msgspec.msgpack.decode(written))
        ledger = store.ledger()
        found = {"store": str(path), **_describe(state)}
        federation = store.read("federation")
        if federation is not None:
            described = msgspec.msgpack.decode(federation)
            found |= {"federation": described["name"], "rounds": described["rounds"]}
        found["summaries"] = [line.detail for line in ledger if line.kind == "summary"]
        found["ended"] = [line.wall for line in ledger if line.kind == "summary"]
        found["ledger"] = [
            msgspec.to_builtins(line) for line in ledger[len(ledger) - min(lines, len(ledger)) :]
        ]
        return found
    except (msgspec.DecodeError, KeyError, TypeError) as error:
        raise StoreError(f"{path} is not the store of a cloud, a gateway or a device: {error!r}") from error
    finally:
        store.close()


def _describe(state: dict[str, Any]) -> dict[str, Any]:
    """The tier shows in its state: only the cloud clusters, only a gateway has posteriors."""
    if not state:
        return {"tier": "unknown", "phase": "new", "round": 0}
    if "clustering" in state:
        windows = (state["clustering"] or {"windows": {}})["windows"]
        return {
            "refused in a row": state.get("refusals", {}),
            "tier": "cloud",
            "phase": state["phase"],
            "round": state["round"],
            "instance": state["instance"],
            "waiting": list(state["collecting"]["waiting"]),
            "assignment": {site: window["cluster"] for site, window in sorted(windows.items())},
            "parts": {name: ref["hash"] for name, ref in sorted(state["parts"].items())},
            "releases": [
                {"number": each["number"], "model": each["model"], "round": each["round"]}
                for each in state.get("releases", [])
            ],
        }
    if "newest" in state:  # a device that serves
        current = state["current"]
        return {
            "tier": "serving device",
            "phase": "serving" if current else "empty",
            "round": current["round"] if current else 0,
            "federation": state["federation"],
            "release": current["number"] if current else None,
            "previous": state["previous"]["number"] if state["previous"] else None,
            "refused": state["refused"],
        }
    task = state.get("task") or {}
    common = {"phase": state["phase"], "round": task.get("round", 0)}
    if "posteriors" in state:
        spec = state["spec"] or {}
        return {
            "tier": "gateway",
            **common,
            "federation": spec.get("federation", {}).get("name"),
            "instance": spec.get("instance"),
            "waiting": list(state["collecting"]["waiting"]),
            "posteriors": state["posteriors"],
            "refused in a row": state.get("refusals", {}),
            "devices": state["members"],
        }
    return {"tier": "device", **common, "instance": state.get("instance")}


def too_long(times: int) -> str:
    """In words: what the norm gate does with a device, or with a site."""
    return f"refused {times} times in a row: its steps are far longer than those of the others"


def show(found: dict[str, Any]) -> list[str]:
    """One store in plain lines."""
    of = f" of {found['federation']}" if found.get("federation") else ""
    rounds_of = f" of {found['rounds']}" if "rounds" in found else ""
    lines = [f"{found['tier']}{of} ({found['store']}): {found['phase']}, round {found['round']}{rounds_of}"]
    if found.get("waiting"):
        lines.append(f"  waiting for {', '.join(found['waiting'])}")
    if found.get("assignment"):
        lines.append("  " + ", ".join(f"{site} -> cluster {k}" for site, k in found["assignment"].items()))
    if found.get("releases"):
        newest = found["releases"][-1]
        back = f", the model of release {newest['model']}" if newest["model"] != newest["number"] else ""
        lines.append(f"  newest release: {newest['number']} (round {newest['round']}{back})")
    if found["tier"] == "serving device":
        before = "" if found["previous"] is None else f", before it release {found['previous']}"
        lines.append(f"  release {found['release']}{before}" if found["release"] else "  no model yet")
        if found["refused"]:
            lines.append(f"  refused: {found['refused']}")
    for name, times in sorted(found.get("refused in a row", {}).items()):
        lines.append(f"  {name}: {too_long(times)}")
    for device, posterior in sorted(found.get("posteriors", {}).items()):
        lines.append(f"  {device}: Beta({posterior['a']:g}, {posterior['b']:g})")
    if found["summaries"]:
        table = rounds.RoundTable(narrow.terminal_width(), "  ")
        for summary, wall in zip(found["summaries"], found["ended"], strict=True):
            lines += table.lines(msgspec.convert(summary, RoundSummary), wall)
    for line in found["ledger"]:
        when = datetime.datetime.fromtimestamp(line["wall"]).isoformat(" ", "seconds")
        detail = json.dumps(line["detail"], ensure_ascii=False)
        shown = detail if len(detail) <= 160 else detail[:157] + "..."
        lines.append(f"  {when}  round {line['round']}  {line['kind']}  {line['subject']}  {shown}")
    return lines
