"""Runs written by another state of this software: settings that it had and this one does not know.

They are not dropped in silence, since two runs may differ by them: they are kept beside the scenario.
"""

from __future__ import annotations

import typing
from pathlib import Path
from typing import Any

import msgspec

from fedbac_edge import __version__
from fedbac_edge.lab.fleet.run import About, read_about
from fedbac_edge.lab.scenario import Scenario, ScenarioError


def read_known(folder: Path) -> tuple[About, dict[str, Any]]:
    """run.json, and the settings of this version's runs that are unknown here: dotted name -> value.

    Raises ScenarioError: no run, or one that cannot be read even so.
    """
    try:
        return read_about(folder), {}
    except ScenarioError as error:
        try:
            tree = msgspec.json.decode((folder / "run.json").read_bytes())
            if tree["software"] != __version__:
                raise error
            unknown: dict[str, Any] = {}
            _take_unknown(tree["scenario"], Scenario, "", unknown)
            known = {name.removeprefix("federation."): value for name, value in unknown.items()}
            return msgspec.convert(tree, About), known
        except (OSError, msgspec.DecodeError, KeyError, TypeError, ValueError) as again:
            raise error from again


def _take_unknown(tree: Any, struct: type[msgspec.Struct], path: str, found: dict[str, Any]) -> None:
    """Move from `tree` to `found` what `struct` and those below it have no field for."""
    if not isinstance(tree, dict):
        return
    kinds = typing.get_type_hints(struct)
    for key in list(tree):
        if key not in kinds:
            value = tree.pop(key)
            found[f"{path}{key}"] = value if isinstance(value, (str, int, float, bool)) else str(value)
        elif (inner := _struct(kinds[key])) is not None:
            _take_unknown(tree[key], inner, f"{path}{key}.", found)


def _struct(kind: Any) -> type[msgspec.Struct] | None:
    """The struct in a field's type: itself, or of "table or none"."""
    for each in (kind, *typing.get_args(kind)):
        if isinstance(each, type) and issubclass(each, msgspec.Struct):
            return each
    return None
