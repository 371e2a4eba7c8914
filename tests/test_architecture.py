"""The picture in docs/architecture.md is the structure: imports go down a floor, so there is no circle."""

from __future__ import annotations

from pathlib import Path

import grimp
import pytest

ROOT = Path(__file__).parents[1]
TOPS = ("fedbac_edge", "device_agent", "broker", "export")
DOORS = {"cli", "__main__"}
"""Modules at the top of `fedbac_edge`, through which a process comes in: they may import everything."""


def floors() -> dict[str, int]:
    """Package -> floor, counted from the picture's lowest line."""
    text = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    picture = text.split("```floors\n")[1].split("```")[0].rstrip().splitlines()
    drawn = [line.split("|")[0].split() for line in reversed(picture)]
    return {word: floor for floor, words in enumerate(drawn) for word in words}


def packages() -> set[str]:
    """As the picture names them: without `fedbac_edge.`."""
    inside = {path.parent.name for path in (ROOT / "fedbac_edge").glob("*/__init__.py")}
    modules = {path.stem for path in (ROOT / "fedbac_edge").glob("*.py")} - {"__init__"} - DOORS
    return inside | modules | (set(TOPS) - {"fedbac_edge"})


def package(module: str) -> str:
    words = module.split(".")
    return words[0] if words[0] != "fedbac_edge" else words[1] if len(words) > 1 else ""


@pytest.fixture(scope="module")
def imports() -> list[tuple[str, str]]:
    """(importer, imported), ours alone, those inside of functions and for type checkers included."""
    graph = grimp.build_graph(*TOPS, cache_dir=None)
    return [
        (module, imported)
        for module in sorted(graph.modules)
        for imported in sorted(graph.find_modules_directly_imported_by(module))
    ]


def test_every_package_is_in_the_picture() -> None:
    assert set(floors()) == packages()


def test_imports_go_down(imports: list[tuple[str, str]]) -> None:
    floor = floors()
    assert len(imports) > 500
    up = [
        f"{importer} imports {imported}"
        for importer, imported in imports
        if package(importer) not in DOORS | {""}
        and package(imported) != ""
        and package(importer) != package(imported)
        and not floor[package(importer)] > floor.get(package(imported), 99)
    ]
    assert not up, "\n".join(up)


def test_no_circle_inside_a_package(imports: list[tuple[str, str]]) -> None:
    """Modules in a circle cannot be read one after the other."""
    below: dict[str, set[str]] = {}
    for importer, imported in imports:
        below.setdefault(importer, set()).add(imported)
    left = {module: set(found) for module, found in below.items()}
    while ready := [module for module in left if not left[module] & left.keys()]:
        for module in ready:
            del left[module]
    assert not left, f"in circles, or above one: {sorted(left)}"
