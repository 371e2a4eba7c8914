"""What is wrong with a value of the wrong type, for its author.

msgspec says what it expected and where. A person wants to see, too, what was there, which words are allowed,
and which name was meant.
"""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Mapping
from typing import Any, Literal, get_args, get_origin

import msgspec

_PLACE = re.compile(r"(.*) - at `\$(.*)`", re.DOTALL)
_STEP = re.compile(r"\.([^.\[]+)|\[(\d+)\]")
_UNKNOWN = re.compile(r"Object contains unknown field `(.*)`", re.DOTALL)
_MISSING = re.compile(r"Object missing required field `(.*)`", re.DOTALL)
_NOTHING = object()
_KINDS = {
    "int": "a whole number",
    "float": "a number",
    "str": "text in quotes",
    "bool": "true or false",
    "array": "a list",
    "object": "a table",
}


def explain(error: msgspec.ValidationError, data: Any, whole: type[msgspec.Struct]) -> str:
    """A sentence for what `msgspec.convert(data, whole)` raised."""
    found = _PLACE.fullmatch(str(error))
    text, place = found.groups() if found else (str(error), "")
    # "[...]": somewhere in a mapping; msgspec does not say under which key.
    path = [name or int(index) for name, index in _STEP.findall(place.partition("[...]")[0])]
    if unknown := _UNKNOWN.fullmatch(text):
        table = isinstance(_value_at([*path, unknown[1]], data), Mapping)
        return _unknown(unknown[1], path, whole, table)
    if missing := _MISSING.fullmatch(text):
        table = bool(_fields(_type_at([*path, missing[1]], whole)))
        return f"{_where([*path, missing[1]], table)} is missing"
    if "[...]" in place:
        expected, _, got = text.partition(", got ")
        return f"[{_where(path)}]: {_plain(expected)} is expected, not {_plain(got)}"
    where, value = _where(path), _value_at(path, data)
    got = "" if value is _NOTHING else f", not {_shown(value)}"
    if text.startswith("Invalid enum value"):
        words = _words(path, whole)
        return f"{where} is one of {', '.join(map(_shown, words))}{got}{_near(str(value), words)}"
    return f"{where}: {_plain(text.partition(', got ')[0])} is expected{got}"


def _unknown(name: str, path: list[Any], whole: type[msgspec.Struct], table: bool) -> str:
    """A name that is not known at `path`: the one that was meant, or where it is known."""
    here = _fields(_type_at(path, whole))
    said = f"there is no {'table' if table else 'setting'} {_where([*path, name], table)}"
    if near := difflib.get_close_matches(name, here, 1):
        meant = f"[{near[0]}]" if not path and _fields(here[near[0]]) else near[0]
        return f"{said}: did you mean {meant}?"
    for other, kind in _fields(whole).items():
        if name in _fields(kind) and [other] != path:
            return f"{said}: it stands under [{other}]"
    if path and name in _fields(whole):
        return f"{said}: it stands above the first [table]"
    return f"{said}; there are: {', '.join(here)}"


def _fields(kind: Any) -> Mapping[str, Any]:
    """Field -> its type, of a struct or of one that may be left out; nothing else has fields."""
    for each in (kind, *get_args(kind)):
        if isinstance(each, type) and issubclass(each, msgspec.Struct):
            return {field.name: field.type for field in msgspec.structs.fields(each)}
    return {}


def _type_at(path: list[Any], kind: Any) -> Any:
    for step in path:
        kind = _fields(kind).get(step)
    return kind


def _words(path: list[Any], whole: Any) -> list[str]:
    literal = _type_at(path, whole)
    return list(get_args(literal)) if get_origin(literal) is Literal else []


def _value_at(path: list[Any], data: Any) -> Any:
    try:
        for step in path:
            data = data[step]
    except (LookupError, TypeError):
        return _NOTHING
    return data


def _where(path: list[Any], table: bool = False) -> str:
    """["training", "epochs"] as a person finds it: "[training] epochs"."""
    names = [str(step) for step in path if isinstance(step, str)]
    position = f" (value {path[-1] + 1})" if path and isinstance(path[-1], int) else ""
    if table:
        return f"[{'.'.join(names)}]"
    return (" ".join([f"[{names[0]}]", *names[1:]]) if len(names) > 1 else "".join(names)) + position


def _plain(text: str) -> str:
    """msgspec's words in those of the file."""
    words = text.removeprefix("Expected ").replace("`", "")
    return re.sub(r"\b(int|float|str|bool|array|object)\b", lambda found: _KINDS[found[0]], words)


def _near(name: str, known: list[str]) -> str:
    near = difflib.get_close_matches(name, known, 1)
    return f": did you mean {_shown(near[0])}?" if near else ""


def _shown(value: Any) -> str:
    try:
        text = json.dumps(value, ensure_ascii=False)
    except TypeError:  # a date: TOML has them
        text = str(value)
    return text if len(text) <= 60 else text[:57] + "..."
