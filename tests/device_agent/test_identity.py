"""A device's name is made once, survives, and belongs to one process."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from broker.topics import BadName
from device_agent.identity import IdentityError, held


def test_made_once_and_kept(tmp_path: Path) -> None:
    with held(tmp_path / "a", None) as first:
        assert re.fullmatch("dev-[0-9a-f]{8}", first)
    with held(tmp_path / "a", None) as again:
        assert again == first
    with held(tmp_path / "a", first) as named:
        assert named == first
    with held(tmp_path / "b", None) as other:
        assert other != first
    assert [path.name for path in sorted((tmp_path / "a").iterdir())] == ["identity", "lock"]


def test_a_given_name_stays(tmp_path: Path) -> None:
    with held(tmp_path, "kitchen"):
        pass
    with held(tmp_path, None) as name:
        assert name == "kitchen"
    with (
        pytest.raises(IdentityError, match="belongs to device kitchen, not to cellar"),
        held(tmp_path, "cellar"),
    ):
        pass
    with held(tmp_path, None) as name:
        assert name == "kitchen"


def test_one_agent_at_a_time(tmp_path: Path) -> None:
    with held(tmp_path, None), pytest.raises(IdentityError, match="another agent"), held(tmp_path, None):
        pass


@pytest.mark.parametrize("damage", ["", "a/b\n", "x" * 300, "\ufffd#"])
def test_a_damaged_file_is_not_guessed_at(tmp_path: Path, damage: str) -> None:
    (tmp_path / "identity").write_text(damage, encoding="utf-8")
    with pytest.raises(IdentityError, match="identity holds no device's name"), held(tmp_path, None):
        pass
    assert (tmp_path / "identity").read_text(encoding="utf-8") == damage


@pytest.mark.parametrize("name", ["", "a/b", "+", "#", "x" * 300, "-x", "é"])
def test_impossible_names(tmp_path: Path, name: str) -> None:
    with pytest.raises(BadName), held(tmp_path / "new", name):
        pass
    assert not (tmp_path / "new").exists()


def test_a_place_that_cannot_be_used(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(IdentityError, match="--state"), held(tmp_path / "file" / "state", None):
        pass


def test_an_interrupted_first_start(tmp_path: Path) -> None:
    """Killed while the name was written: it is made anew, nobody has heard of the old one."""
    (tmp_path / "identity.new").write_text("dev-12")
    with held(tmp_path, None) as name:
        assert name != "dev-12"
    assert not os.path.exists(tmp_path / "identity.new")
