"""What wire versions differ in, as rewritings of plain maps.

Version 2 counts samples without labels apart (device-update, gateway-update) and has the table [hassle] in
the specification. A message that uses none of this is written as it was in version 1.
"""

from __future__ import annotations

from typing import Any

_NEW_IN_2: dict[str, dict[str, Any]] = {
    "device-update": {"unlabelled": 0},
    "gateway-update": {"unlabelled": 0, "unlabelled_data": 0},
}
"""Message -> its new fields, with the values that version 1 says by silence."""


def from_1(fields: dict[str, Any]) -> dict[str, Any]:
    """Version 1 in version 2: what is not there has its default."""
    return fields


def to_1(fields: dict[str, Any]) -> dict[str, Any] | None:
    """Version 2 in version 1; None for what version 1 cannot say."""
    kind = fields.get("type")
    if kind == "spec" and isinstance(described := fields.get("federation"), dict):
        older = {name: value for name, value in described.items() if name != "hassle"}
        return {**fields, "federation": older} if described.get("hassle") is None else None
    silent = _NEW_IN_2.get(str(kind), {})
    if any(fields.get(name, value) != value for name, value in silent.items()):
        return None
    return {name: value for name, value in fields.items() if name not in silent}
