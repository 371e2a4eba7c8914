"""Where `fedbac backup` puts its file."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from click.testing import CliRunner

from fedbac_edge.cli import cli

NAMED = "tiny-round-4.sqlite"


@pytest.mark.parametrize(
    ("to", "file"),
    [
        ("there", f"there/{NAMED}"),
        ("there/", f"there/{NAMED}"),
        ("new/", f"new/{NAMED}"),
        ("new/deep/", f"new/deep/{NAMED}"),
        ("new", "new"),
        ("new/copy.sqlite", "new/copy.sqlite"),
    ],
)
def test_a_slash_at_the_end_means_a_folder(
    runner: CliRunner, finished: Path, in_tmp_path: Path, to: str, file: str
) -> None:
    (in_tmp_path / "there").mkdir()
    result = runner.invoke(cli, ["backup", "--state", str(finished), "--to", to])
    assert result.exit_code == 0, result.output
    assert result.output.startswith(f"{file}: federation tiny after round 4")
    assert (in_tmp_path / file).is_file()


def test_without_to_it_lands_here(runner: CliRunner, finished: Path, in_tmp_path: Path) -> None:
    assert runner.invoke(cli, ["backup", "--state", str(finished)]).exit_code == 0
    assert (in_tmp_path / NAMED).is_file()


def test_a_file_is_no_folder(runner: CliRunner, finished: Path, in_tmp_path: Path) -> None:
    (in_tmp_path / "mine").write_text("mine")
    for to in ("mine/", "mine"):
        result = runner.invoke(cli, ["backup", "--state", str(finished), "--to", to])
        assert result.exit_code == 2, result.output
        assert "mine" in result.output
    assert (in_tmp_path / "mine").read_text() == "mine"
    assert os.listdir(in_tmp_path) == ["mine"], "nothing is left behind"
