"""A federation that begins with what an earlier one has learned: from its state, or what was exported."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from click.testing import CliRunner
from PIL import Image

from export import from_store
from fedbac_edge.cli import cli
from fedbac_edge.federation_file import beginnings, reading
from fedbac_edge.models.catalog import architecture
from fedbac_edge.node import assemble
from fedbac_edge.node.store import Store, StoreError
from fedbac_edge.parts.part import Part, digest, unpack
from fedbac_edge.settings.federation import Federation

pytestmark = pytest.mark.usefixtures("in_tmp_path")


def run(runner: CliRunner, *arguments: str, code: int = 0) -> str:
    result = runner.invoke(cli, ["init", *arguments])
    assert result.exit_code == code, result.output
    return result.output


def part(data: bytes, federation: Federation) -> Part:
    table = federation.model
    return unpack(data, architecture(table.architecture, table.input, len(table.classes)).schema())


def weights_of(state: Path) -> beginnings.Weights:
    store = Store(from_store.cloud_store(state), read_only=True)
    try:
        return from_store.weights(store)
    finally:
        store.close()


def founded(file: Path) -> Any:
    """The cloud of this file after its first start."""
    federation = reading.load(file)
    store = Store(None)
    node = assemble.cloud(federation, "0badcafe", store, start=beginnings.load(file, federation))
    node.start(0.0)
    return node


@pytest.mark.parametrize("exported", [False, True], ids=["state", "models"])
def test_the_new_federation_begins_with_the_old_weights(
    runner: CliRunner, finished: Path, tiny: Federation, exported: bool
) -> None:
    source = finished
    if exported:
        source = Path("models")
        assert runner.invoke(cli, ["export", "--state", str(finished), "--out", "models"]).exit_code == 0
    said = run(runner, "--from", str(source))
    assert "it begins with 4 networks of tiny after round 4" in said
    old = weights_of(finished)
    file = Path("federation.toml")
    made = reading.load(file)
    assert made.name == "tiny-2"
    assert made.method.places == old.places, "sites begin where they were"
    assert made.method.clusters == 3
    assert made.gateways == tiny.gateways
    node = founded(file)
    state = node.machine.state
    assert {name: ref.hash for name, ref in state.parts.items()} == {
        name: digest(data) for name, data in old.parts.items()
    }
    assert sorted(node.store.blobs[ref.hash] for ref in state.parts.values()) == sorted(old.parts.values())


def test_a_class_list_that_grows(runner: CliRunner, finished: Path, tmp_path: Path) -> None:
    """Rows of known classes come along, those of new ones are drawn; the order is the new file's."""
    for name in ("c", "d", "a"):
        (tmp_path / "photos" / name).mkdir(parents=True)
        for index in range(3):
            Image.new("L", (16, 16), 40 * index).save(tmp_path / "photos" / name / f"{index}.png")
    said = run(runner, "--from", str(finished), "--data", "photos", "--name", "more")
    assert "new classes: 'd'" in said
    file = Path("federation.toml")
    made = reading.load(file)
    assert (made.name, made.model.classes) == ("more", ("a", "b", "c", "d"))
    file.write_text(file.read_text().replace('["a", "b", "c", "d"]', '["d", "c", "a"]'))
    made = reading.load(file)
    taken = beginnings.load(file, made)
    assert taken is not None
    old = weights_of(finished)
    before, after = part(old.parts["global"], old.federation), part(taken["global"], made)
    assert np.array_equal(after["conv1.weight"], before["conv1.weight"])
    for tensor in ("fc3.weight", "fc3.bias"):
        assert np.array_equal(after[tensor][1], before[tensor][2]), "c"
        assert np.array_equal(after[tensor][2], before[tensor][0]), "a"
    drawn = founded(file).machine.method.initial(founded(file).machine.model, made.seed)["global"]
    assert np.array_equal(after["fc3.weight"][0], drawn["fc3.weight"][0]), "d is new"


def test_a_cluster_more_gets_a_network_that_has_learned(runner: CliRunner, finished: Path) -> None:
    run(runner, "--from", str(finished))
    file = Path("federation.toml")
    file.write_text(file.read_text().replace("clusters = 3", "clusters = 5"))
    taken = beginnings.load(file, reading.load(file))
    assert taken is not None
    assert taken["cluster-4"] == taken["cluster-1"] == weights_of(finished).parts["cluster-1"]


def test_other_images_are_another_network(runner: CliRunner, finished: Path) -> None:
    run(runner, "--from", str(finished))
    file = Path("federation.toml")
    file.write_text(file.read_text().replace("input = [1, 16, 16]", "input = [1, 28, 28]"))
    with pytest.raises(beginnings.BadWeights, match=r"fc1.weight of global has the shape"):
        beginnings.load(file, reading.load(file))


def test_weights_that_are_gone_or_others_are_named(runner: CliRunner, finished: Path) -> None:
    run(runner, "--from", str(finished))
    file, kept = Path("federation.toml"), Path("federation.weights")
    federation, data = reading.load(file), kept.read_bytes()
    with pytest.raises(StoreError, match="not at hand"):
        assemble.cloud(federation, "0badcafe", Store(None))
    kept.unlink()
    command = ["cloud", "run", "--broker", "mqtt://127.0.0.1:1"]
    gone = runner.invoke(cli, command)
    assert gone.exit_code == 2
    assert "federation.weights (No such file or directory)" in " ".join(gone.output.split())
    kept.write_bytes(data[:-1])
    with pytest.raises(beginnings.BadWeights, match="is not the file that start"):
        beginnings.load(file, federation)


def test_what_cannot_be_begun_from(runner: CliRunner, finished: Path, tmp_path: Path) -> None:
    (tmp_path / "old").mkdir()
    (tmp_path / "old" / "cluster-0.onnx").write_bytes(b"x")
    assert "Export again" in " ".join(run(runner, "--from", "old", code=2).split())
    assert "no cloud's store" in " ".join(run(runner, "--from", "nowhere", code=2).split())
    (tmp_path / "junk.weights").write_bytes(b"\xc1junk")
    assert "no weights of a federation" in run(runner, "--from", "junk.weights", code=2)
    assert "leave --preset out" in run(runner, "--from", str(finished), "--preset", "demo", code=2)
    assert not Path("federation.toml").exists()


def test_names_count_on(finished: Path) -> None:
    from fedbac_edge.commands.successor import succeeding

    old = weights_of(finished)
    second = msgspec.structs.replace(old, federation=msgspec.structs.replace(old.federation, name="x-2"))
    assert succeeding(second, None).name == "x-3"
    assert succeeding(second, "y").name == "y"
