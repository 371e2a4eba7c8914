"""`fedbac init` writes what `config.load` reads back, with every setting explained."""

from __future__ import annotations

from pathlib import Path
from typing import get_args

import msgspec
import numpy as np
import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from fedbac_edge.cli import cli
from fedbac_edge.commands.init import PRESET_NAMES
from fedbac_edge.federation_file import reading
from fedbac_edge.federation_file.starters import PRESETS
from fedbac_edge.federation_file.template import ABOUT, render
from fedbac_edge.settings.federation import AssignmentTable, Federation, ModelTable, TrainingTable


@pytest.mark.parametrize("preset", PRESET_NAMES)
def test_what_is_written_is_read_back(runner: CliRunner, tmp_path: Path, preset: str) -> None:
    out = tmp_path / "federation.toml"
    result = runner.invoke(cli, ["init", "--out", str(out), "--name", "orchard", "--preset", preset])
    assert result.exit_code == 0, result.output
    expected = PRESETS[preset]("orchard")
    written = reading.load(out)  # the key of the releases is made anew each time
    assert msgspec.structs.replace(written, releases=expected.releases) == expected
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".")] == []


def test_the_offered_presets_are_those_that_exist() -> None:
    assert set(PRESET_NAMES) == set(PRESETS)


def test_every_setting_is_explained() -> None:
    fields = {field.name: field for field in msgspec.structs.fields(Federation)}
    expected = set()
    for name, field in fields.items():
        kind = next((each for each in get_args(field.type) if each is not type(None)), field.type)
        if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
            expected |= {f"[{name}]", *(f"{name}.{inner.name}" for inner in msgspec.structs.fields(kind))}
        else:
            expected.add("[gateways]" if name == "gateways" else name)
    assert set(ABOUT) == expected


def test_a_table_of_one_method_stands_in_its_files_alone() -> None:
    assert "hassle]" not in render(PRESETS["fleet"]("x"))
    federation = PRESETS["hassle"]("x")
    text = render(federation)
    assert "[hassle]\n" in text
    assert "Default: 2.0\ntau_s = 2.0" in text
    assert reading.parse(text) == federation


def test_defaults_are_named() -> None:
    text = render(PRESETS["fleet"]("x"))
    assert "Default: 0.995\nlearning_rate_decay = 0.995" in text
    assert 'Default: "common"\ncluster_start = "common"' in text


names = st.from_regex(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}", fullmatch=True)
labels = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)


@given(
    name=names,
    classes=st.lists(labels, min_size=2, max_size=4, unique=True),
    rate=st.floats(1e-9, 1e9),
    alpha=st.floats(0, 1e9),
    gateways=st.dictionaries(names, st.lists(names, unique=True, max_size=3).map(tuple), max_size=3),
)
def test_any_federation_survives(
    name: str, classes: list[str], rate: float, alpha: float, gateways: dict[str, tuple[str, ...]]
) -> None:
    federation = Federation(
        name=name,
        model=ModelTable(classes=tuple(classes)),
        training=TrainingTable(learning_rate=rate),
        assignment=AssignmentTable(alpha=alpha, live_counts=False),
        gateways=gateways,
    )
    assert reading.parse(render(federation)) == federation


def test_a_file_that_is_there_stays_without_force(runner: CliRunner, tmp_path: Path) -> None:
    out = tmp_path / "federation.toml"
    out.write_text("mine")
    assert runner.invoke(cli, ["init", "--out", str(out)]).exit_code == 2
    assert out.read_text() == "mine"
    assert runner.invoke(cli, ["init", "--out", str(out), "--force"]).exit_code == 0
    assert reading.load(out).name == "fleet"


@pytest.mark.parametrize("name", ["", "a/b", "a+b", "a#b", "x" * 300, ".hidden", "a b"])
def test_bad_names_are_refused(runner: CliRunner, tmp_path: Path, name: str) -> None:
    result = runner.invoke(cli, ["init", "--out", str(tmp_path / "f.toml"), "--name", name])
    assert result.exit_code == 2
    assert "cannot be the name of a federation" in result.output
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("out", [".", "missing/federation.toml"])
@pytest.mark.usefixtures("in_tmp_path")
def test_a_place_that_cannot_be_written(runner: CliRunner, out: str) -> None:
    assert runner.invoke(cli, ["init", "--out", out]).exit_code == 2


def _pictures(folder: Path, sizes: dict[str, tuple[int, int]], mode: str = "RGB") -> None:
    for name, size in sizes.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        Image.new(mode, size, (51, 102, 204) if mode == "RGB" else 51).save(folder / name)


def _init(runner: CliRunner, data: str, code: int = 0) -> tuple[str, ModelTable | None]:
    result = runner.invoke(cli, ["init", "--data", data])
    assert result.exit_code == code, result.output
    return result.output, reading.load(Path("federation.toml")).model if code == 0 else None


@pytest.mark.usefixtures("in_tmp_path")
def test_a_federation_for_ones_own_pictures(runner: CliRunner) -> None:
    _pictures(Path("photos"), {"dog/1.png": (40, 32), "cat/1.png": (40, 32), "cat/2.png": (40, 32)})
    output, model = _init(runner, "photos")
    expected = ModelTable(
        classes=("cat", "dog"), input=(3, 32, 40), mean=(0.2, 0.4, 0.8), std=(0.5, 0.5, 0.5)
    )
    assert model == expected
    assert "40x32, 3 channels, 2 classes ('cat', 'dog')" in output
    assert "--resize" not in output


@pytest.mark.usefixtures("in_tmp_path")
@pytest.mark.parametrize("sizes", [((32, 32), (30, 32)), ((4000, 3000), (4000, 3000)), ((8, 8), (8, 8))])
def test_pictures_that_must_be_scaled(runner: CliRunner, sizes: tuple[tuple[int, int], ...]) -> None:
    _pictures(Path("photos"), {"cat/1.png": sizes[0], "dog/1.png": sizes[1]}, mode="L")
    output, model = _init(runner, "photos")
    assert model is not None
    assert model.input == (1, 32, 32)
    assert "devices join with --resize" in output


@pytest.mark.usefixtures("in_tmp_path")
def test_a_federation_for_an_archive(runner: CliRunner) -> None:
    x = np.random.default_rng(1).integers(0, 256, (60, 20, 24, 3), dtype=np.uint8)
    np.savez("photos.npz", x=x, y=np.arange(60) % 4)
    _, model = _init(runner, "photos.npz")
    assert model is not None
    assert (model.classes, model.input) == (("0", "1", "2", "3"), (3, 20, 24))
    assert np.allclose(model.mean, (x / 255).mean((0, 1, 2)), atol=1e-4)
    assert np.allclose(model.std, (x / 255).std((0, 1, 2)), atol=1e-4)


@pytest.mark.usefixtures("in_tmp_path")
def test_data_of_which_some_are_unlabelled(runner: CliRunner) -> None:
    """They count for mean and deviation; what is unlabelled is no class."""
    _pictures(Path("photos"), {f"{name}/1.png": (32, 32) for name in ("cat", "dog", "unlabelled")})
    _, model = _init(runner, "photos")
    assert model is not None
    assert model.classes == ("cat", "dog")
    Path("federation.toml").unlink()
    np.savez("some.npz", x=np.zeros((30, 20, 20), np.uint8), y=np.arange(30) % 4 - 1)
    _, model = _init(runner, "some.npz")
    assert model is not None
    assert model.classes == ("0", "1", "2")


@pytest.mark.usefixtures("in_tmp_path")
def test_data_that_tell_nothing(runner: CliRunner) -> None:
    _pictures(Path("loose"), {"1.png": (32, 32)})
    _pictures(Path("single"), {"cat/1.png": (32, 32)})
    Path("empty").mkdir()
    Path("torn/cat").mkdir(parents=True)
    Path("torn/cat/1.png").write_bytes(b"no picture")
    _pictures(Path("bare"), {"unlabelled/1.png": (32, 32)})
    np.savez("bare.npz", x=np.zeros((3, 20, 20), np.uint8))
    np.savez("holes.npz", x=np.zeros((3, 20, 20), np.uint8), y=np.array([0, 1, 10**6]))
    for data, said in {
        "loose": "outside any class folder",
        "single": "at least two different names",
        "empty": "no pictures in it",
        "bare": "only pictures without a label",
        "bare.npz": "no labels in it",
        "torn": "1.png: cannot be decoded: not a picture of a kind that is read here",
        "holes.npz": "1000001 classes by its labels",
        "nothing": "no such folder",
    }.items():
        assert said in _init(runner, data, 2)[0]
        assert not list(Path().glob("federation*"))


@pytest.mark.usefixtures("in_tmp_path")
def test_pictures_are_scaled_to_a_size_of_ones_own(runner: CliRunner) -> None:
    _pictures(Path("photos"), {"cat/1.png": (100, 80), "dog/1.png": (64, 64)})
    done = runner.invoke(cli, ["init", "--data", "photos", "--size", "48x40"])
    assert done.exit_code == 0, done.output
    assert "48x40" in done.output
    assert "--resize" in done.output
    assert reading.load(Path("federation.toml")).model.input[1:] == (40, 48)
    for size in ("48", "48x", "0x32", "axb"):
        refused = runner.invoke(cli, ["init", "--data", "photos", "--size", size, "--force"])
        assert refused.exit_code == 2
        assert "say WIDTHxHEIGHT" in refused.output
    assert runner.invoke(cli, ["init", "--size", "48x40", "--force"]).exit_code == 2
