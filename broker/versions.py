"""What wire versions differ in, as rewritings of plain maps.

Version 2 counts samples without labels apart (device-update, gateway-update) and knows more settings in the
specification. A message that uses none of this is written as it was in version 1. A setting that came later
into a table of version 2 is written only where it says something: software without it then refuses the
specification by that name, and never takes it for another one.
"""

from __future__ import annotations

from typing import Any

_FIELDS: dict[str, dict[str, Any]] = {
    "device-update": {"unlabelled": 0},
    "gateway-update": {"unlabelled": 0, "unlabelled_data": 0},
    "taken": {"instance": None},
    "gateway-status": {"refused": {}},
}
"""Message -> its new fields, with the values that version 1 says by silence."""
_SETTINGS: dict[str, dict[str, Any]] = {
    "model": {"start": ""},
    "releases": {"keep": 4},
    "method": {"places": {}},
    "training": {"unlabelled": "ignore", "confidence": 0.0},
    "assignment": {"confidence": 1.0, "tolerance": 1.5, "moves": True, "merges": True},
}
"""Table of the specification -> its new settings, likewise. The table "hassle" is new as a whole."""

_LATER: dict[str, Any] = {"pairing": "download"}
"""Settings of the table "hassle" that the first software of version 2 did not have, likewise."""


def to_1(fields: dict[str, Any]) -> dict[str, Any] | None:
    """Version 2 in version 1; None for what version 1 cannot say."""
    kind = str(fields.get("type"))
    if kind == "spec" and isinstance(described := fields.get("federation"), dict):
        older = _settings_to_1(described)
        return None if older is None else {**fields, "federation": older}
    return _without(fields, _FIELDS.get(kind, {}))


def to_2(fields: dict[str, Any]) -> dict[str, Any]:
    """Version 2 as it is written: later settings are silent at their defaults."""
    federation = fields.get("federation") if fields.get("type") == "spec" else None
    if not isinstance(federation, dict) or not isinstance(table := federation.get("hassle"), dict):
        return fields
    spoken = {name: value for name, value in table.items() if name not in _LATER or value != _LATER[name]}
    return {**fields, "federation": {**federation, "hassle": spoken}}


def _settings_to_1(federation: dict[str, Any]) -> dict[str, Any] | None:
    merges = federation.get("assignment", {}).get("method") == "merge"
    if merges or federation.get("hassle") is not None:
        return None
    older = {name: table for name, table in federation.items() if name != "hassle"}
    for name, silent in _SETTINGS.items():
        table = _without(federation.get(name, {}), silent)
        if table is None:
            return None
        older[name] = table
    return older


def _without(fields: dict[str, Any], silent: dict[str, Any]) -> dict[str, Any] | None:
    """The map without what is said by silence; None when some of it says something."""
    if any(fields.get(name, value) != value for name, value in silent.items()):
        return None
    return {name: value for name, value in fields.items() if name not in silent}
