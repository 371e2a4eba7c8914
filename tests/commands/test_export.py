"""`fedbac export` from the store of a finished cloud, held against torch."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from click.testing import CliRunner
from torch.nn import functional as F

from export.session import Session
from fedbac_edge.cli import cli
from fedbac_edge.models.catalog import LeNet
from fedbac_edge.node.store import Store
from fedbac_edge.parts.part import Part, unpack
from fedbac_edge.settings.federation import Federation


def _forward(part: Part, x: torch.Tensor) -> torch.Tensor:
    w = {name: torch.from_numpy(tensor) for name, tensor in part.items()}
    x = F.max_pool2d(F.relu(F.conv2d(x, w["conv1.weight"], w["conv1.bias"])), 2)
    x = F.max_pool2d(F.relu(F.conv2d(x, w["conv2.weight"], w["conv2.bias"])), 2)
    x = x.flatten(1)
    for layer in ("fc1", "fc2"):
        x = F.relu(F.linear(x, w[f"{layer}.weight"], w[f"{layer}.bias"]))
    return F.linear(x, w["fc3.weight"], w["fc3.bias"])


@pytest.mark.parametrize("kind", ["uint8", "float"])
def test_the_files_compute_the_sum_of_the_stored_parts(
    runner: CliRunner, finished: Path, tiny: Federation, tmp_path: Path, kind: str
) -> None:
    out = tmp_path / "models"
    result = runner.invoke(cli, ["export", "--state", str(finished), "--out", str(out), "--input", kind])
    assert result.exit_code == 0, result.output
    store = Store(finished / "cloud.sqlite", read_only=True)
    final = store.ledger(kind="finished")[0]
    summary = store.ledger(kind="summary")[-1].detail
    schema = LeNet((1, 16, 16), 3).schema()
    images = np.random.default_rng(1).integers(0, 256, (9, 16, 16), dtype=np.uint8)
    x = torch.from_numpy((images[:, None] / np.float32(255) - np.float32(0.4)) / np.float32(0.3)).float()
    used = {site["cluster"] for site in summary["sites"].values()}
    files = {"parts.weights", *(f"cluster-{k}.onnx" for k in used)}
    assert {path.name for path in out.iterdir()} == files
    for number in used:
        session = Session(out / f"cluster-{number}.onnx")
        hashes = [final.detail["parts"][name] for name in ("global", f"cluster-{number}")]
        expected = sum(_forward(unpack(store.blobs[hash], schema), x) for hash in hashes)
        assert isinstance(expected, torch.Tensor)
        np.testing.assert_allclose(session.logits(images), expected.numpy(), atol=2e-5)
        assert [part["hash"] for part in json.loads(session.metadata["parts"])] == hashes
        assert session.metadata["federation"] == "tiny"
        assert session.metadata["round"] == "4"
        assert session.metadata["cluster"] == str(number)
        assert session.classes == ("a", "b", "c")
        sites = [site for site in summary["sites"].values() if site["cluster"] == number]
        right = sum(site["accuracy"] * site["holdout"] for site in sites)
        count = sum(site["holdout"] for site in sites)
        assert float(session.metadata["holdout_accuracy"]) == pytest.approx(right / count, abs=1e-6)
    store.close()


def test_part_logits_add_up(runner: CliRunner, finished: Path, tmp_path: Path) -> None:
    command = ["export", "--state", str(finished), "--out", str(tmp_path), "--part-logits"]
    assert runner.invoke(cli, command).exit_code == 0
    session = Session(next(tmp_path.glob("*.onnx")))
    images = np.random.default_rng(2).integers(0, 256, (4, 16, 16), dtype=np.uint8)
    parts = session.part_logits(images)
    assert len(parts) == 2
    np.testing.assert_allclose(sum(parts.values()), session.logits(images), atol=1e-5)


def test_models_of_clusters_that_are_empty_now_are_removed(
    runner: CliRunner, finished: Path, tmp_path: Path
) -> None:
    (tmp_path / "cluster-77.onnx").write_bytes(b"old")
    (tmp_path / "notes.txt").write_text("mine")
    assert runner.invoke(cli, ["export", "--state", str(finished), "--out", str(tmp_path)]).exit_code == 0
    assert not (tmp_path / "cluster-77.onnx").exists()
    assert (tmp_path / "notes.txt").read_text() == "mine"


def test_the_store_of_another_tier_is_refused(runner: CliRunner, finished: Path, tmp_path: Path) -> None:
    state = finished / "gateway-gw1.sqlite"
    result = runner.invoke(cli, ["export", "--state", str(state), "--out", str(tmp_path)])
    assert result.exit_code == 2
    assert "not the store of a cloud" in result.output


def test_a_file_that_is_no_store(runner: CliRunner, tmp_path: Path) -> None:
    (tmp_path / "cloud.sqlite").write_bytes(b"no database at all" * 100)
    result = runner.invoke(cli, ["export", "--state", str(tmp_path), "--out", str(tmp_path / "m")])
    assert result.exit_code == 2
    assert "is no store" in result.output


def test_int8_is_decided_on_labelled_images_and_said(
    runner: CliRunner, finished: Path, tiny: Federation, tmp_path: Path
) -> None:
    rng = np.random.default_rng(3)
    shape = (60, *tiny.model.input[1:], tiny.model.input[0])
    np.savez(
        tmp_path / "holdout.npz",
        x=rng.integers(0, 256, shape, dtype=np.uint8),
        y=rng.integers(0, len(tiny.model.classes), 60),
    )
    out = tmp_path / "models"
    command = ["export", "--state", str(finished), "--out", str(out)]
    result = runner.invoke(cli, [*command, "--int8", str(tmp_path / "holdout.npz")])
    assert result.exit_code == 0, result.output
    for path in out.glob("*.onnx"):
        session = Session(path)
        decision = json.loads(session.metadata["int8"])
        assert session.metadata["precision"] == ("int8" if decision["kept"] else "float32")
        assert decision["images"] == 60
    assert result.output.count("int8 kept") + result.output.count("int8 not kept") == len(
        list(out.glob("*.onnx"))
    )
    for other in (["--input", "float"], ["--part-logits"]):
        refused = runner.invoke(cli, [*command, "--int8", str(tmp_path / "holdout.npz"), *other])
        assert refused.exit_code == 2
        assert "--int8 goes with neither" in refused.output
    nowhere = runner.invoke(cli, [*command, "--int8", str(tmp_path / "nowhere.npz")])
    assert nowhere.exit_code == 2


def test_torchscript_beside_the_onnx_files_says_the_same(
    runner: CliRunner, finished: Path, tiny: Federation, tmp_path: Path
) -> None:
    result = runner.invoke(cli, ["export", "--state", str(finished), "--out", str(tmp_path), "--torchscript"])
    assert result.exit_code == 0, result.output
    shape = (7, *tiny.model.input[1:], tiny.model.input[0])
    images = np.random.default_rng(4).integers(0, 256, shape, dtype=np.uint8)
    onnx_files = sorted(tmp_path.glob("*.onnx"))
    assert onnx_files
    for path in onnx_files:
        script = torch.jit.load(path.with_suffix(".pt"))  # type: ignore[no-untyped-call]
        logits = script(torch.from_numpy(images)).detach().numpy()
        np.testing.assert_allclose(logits, Session(path).logits(images), atol=1e-4)
