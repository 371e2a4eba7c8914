"""The demonstration of HASSLE over a real broker: each kind of device counts, and sends what it trains."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from export.session import Session
from fedbac_edge.datasets import holdout, npz
from fedbac_edge.models.catalog import LeNet, parameter_count, shrunk

ROUNDS = 3


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, Any], str, Path]:
    """The closing summary, what was said on the way, and the folder."""
    out = tmp_path_factory.mktemp("demo") / "run"
    command = [sys.executable, "-m", "fedbac_edge.cli", "demo", "--method", "hassle", "--json"]
    command += ["--samples", "1600", "--test-samples", "400", "--rounds", str(ROUNDS), "--labels", "20%"]
    finished = subprocess.run([*command, "--out", str(out)], capture_output=True, text=True, timeout=200)
    assert finished.returncode == 0, finished.stderr
    return json.loads(finished.stdout), finished.stderr, out


def test_every_view_is_measured_by_its_exported_model(run: tuple[dict[str, Any], str, Path]) -> None:
    result, said, out = run
    assert list(result["views"]) == ["EM", "SM", "UM"]
    assert result["test_accuracy"] == result["views"]["EM"]
    assert (result["rounds"], result["test_samples"]) == (ROUNDS, 400)
    assert [str(Path(path).relative_to(out)) for path in result["models"]] == [
        "models/cluster-0.onnx",
        "models/cluster-0-SM.onnx",
        "models/cluster-0-UM.onnx",
    ]
    tests = [npz.read(out / "data" / gateway / "test.npz") for gateway in ("gw1", "gw2")]
    x, y = np.concatenate([t.x for t in tests]), np.concatenate([t.y for t in tests])
    logits = {
        name: Session(path).logits(x) for name, path in zip(result["views"], result["models"], strict=True)
    }
    assert np.abs(logits["EM"] - (logits["SM"] + logits["UM"]) / 2).max() < 1e-4
    for name, values in logits.items():
        assert result["views"][name] == pytest.approx(float((values.argmax(axis=1) == y).mean()), abs=0.006)
    assert f"EM {100 * result['views']['EM']:.1f} % (served), SM" in said


def test_hold_outs_and_test_images_are_told_apart_in_comparable_figures(
    run: tuple[dict[str, Any], str, Path],
) -> None:
    """Hold-outs have the classes of the few devices with labels: the test images are weighed alike."""
    result, said, out = run
    found = result["compared"]
    tests = [npz.read(out / "data" / gateway / "test.npz") for gateway in ("gw1", "gw2")]
    x, y = np.concatenate([t.x for t in tests]), np.concatenate([t.y for t in tests])
    right = Session(Path(result["models"][0])).logits(x).argmax(axis=1) == y
    weighed, count, labels = [], 0, 0
    for gateway in ("gw1", "gw2"):
        shards = [npz.read(p, allow_unlabelled=True) for p in sorted((out / "data" / gateway).glob("dev-*"))]
        cut = [holdout.split(shard) for shard in shards]
        held = np.concatenate([part.y for _, part in cut])
        labels += sum(int((trained.y >= 0).sum()) for trained, _ in cut)
        weighed.append(np.mean([right[y == label].mean() for label in held]))
        count += len(held)
    assert found["holdout_samples"] == count
    assert found["test_as_held_out"] == pytest.approx(np.mean(weighed))
    assert sum(each["labels"] for each in found["classes"]) == labels
    assert f"They are only {count} labelled images" in said
    assert f"reaches {100 * np.mean(weighed):.1f} %" in said


def test_kinds_of_devices_send_what_their_data_train(run: tuple[dict[str, Any], str, Path]) -> None:
    full, partial, bare = run[0]["kinds"]
    assert [kind["devices"] for kind in (full, partial, bare)] == [2, 2, 4]
    assert [kind["updates"] for kind in (full, partial, bare)] == [2 * ROUNDS, 2 * ROUNDS, 4 * ROUNDS]
    assert (full["labels"], full["samples"]) == (160, 160)
    assert partial["labels"] == 160 < partial["samples"]
    assert bare["labels"] == 0 < bare["samples"]
    assert full["samples"] + partial["samples"] + bare["samples"] == 1600
    # Round 1 trains residuals alone; from then on one kind of data trains a dual and a residual, two both.
    dual, residual = parameter_count(LeNet()), parameter_count(shrunk(LeNet(), 4))
    one_kind = 4 * (residual + (ROUNDS - 1) * (dual + residual))
    for kind, devices, sides in ((full, 2, 1), (partial, 2, 2), (bare, 4, 1)):
        assert kind["up_bytes"] == pytest.approx(devices * sides * one_kind, rel=0.05)
    assert (
        full["down_bytes"] / 2 < partial["down_bytes"] / 2 == pytest.approx(bare["down_bytes"] / 4, rel=0.01)
    )


def test_it_says_who_has_labels(run: tuple[dict[str, Any], str, Path]) -> None:
    _, said, out = run
    assert "2 with all labels, 2 with some, 4 with none (20 % of the images have one)" in said
    agent = (out / "logs" / "dev-1-3.log").read_text()
    assert "images, none labelled" in agent
    assert "images, 80 labelled" in (out / "logs" / "dev-1-2.log").read_text()
