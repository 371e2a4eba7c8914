"""Every exported form against PyTorch's own modules, on 1,000 real test images."""

from __future__ import annotations

import platform
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import numpy.typing as npt
import onnx
import pytest
import torch

from export import exporter, graph, quantise, torchscript
from export.served import InputKind, ServedModel
from export.session import Session
from fedbac_edge.models.additive import load, network

Images = npt.NDArray[np.uint8]
FloatArray = npt.NDArray[np.float32]
MakeModel = Callable[..., ServedModel]
GRAY, RGB = (1, 28, 28), (3, 32, 32)


def normalised(model: ServedModel, images: Images) -> torch.Tensor:
    pixels = torch.from_numpy(images.copy()).permute(0, 3, 1, 2).double() / 255
    mean, std = (torch.tensor(v, dtype=torch.float64).reshape(1, -1, 1, 1) for v in (model.mean, model.std))
    return ((pixels - mean) / std).float()


def in_torch(model: ServedModel, images: Images) -> FloatArray:
    """sum(coefficient * f(x; part)), one torch module per part."""
    x = normalised(model, images)
    total = torch.zeros(len(images), 10)
    with torch.no_grad():
        for term in model.terms:
            module = network(model.architecture)
            load(module, term.part)
            total += term.coefficient * module(x)
    return np.asarray(total)


def assert_same(logits: FloatArray, expected: FloatArray) -> None:
    largest = float(np.abs(logits - expected).max())
    assert largest < 1e-4, f"largest difference {largest}"
    # Two classes within rounding of each other may change places; nothing else may.
    second, first = np.sort(expected, axis=1)[:, -2:].T
    clear = first - second > 2 * largest
    assert clear.mean() > 0.99
    assert (logits.argmax(axis=1) == expected.argmax(axis=1))[clear].all()


@pytest.mark.parametrize("kind", ["uint8", "float"])
@pytest.mark.parametrize("fuse", [True, False])
def test_trained_pair_answers_as_in_torch(
    trained: ServedModel, test_images: Images, kind: InputKind, fuse: bool
) -> None:
    images = test_images[:1000]
    session = Session(graph.build(trained, input_kind=kind, fuse=fuse).SerializeToString())
    assert session.input_kind == kind
    assert_same(session.logits(images), in_torch(trained, images))


def test_trained_pair_is_worth_serving(
    trained: ServedModel, test_images: Images, test_labels: Images
) -> None:
    """Guards the other tests: agreement on a network that learned nothing would prove little."""
    session = Session(graph.build(trained).SerializeToString())
    assert (session.logits(test_images[:1000]).argmax(axis=1) == test_labels[:1000]).mean() > 0.6


@pytest.mark.parametrize("kind", ["uint8", "float"])
@pytest.mark.parametrize("fuse", [True, False])
@pytest.mark.parametrize("coefficients", [(1.0,), (1.0, 1.0), (0.5, 0.5), (0.25, 0.5, 0.25)])
@pytest.mark.parametrize(("name", "shape"), [("lenet", RGB), ("lenet-wide", GRAY), ("lenet-wide", RGB)])
def test_every_architecture_and_coefficient(
    make_model: MakeModel,
    photographs: Callable[[tuple[int, int, int]], Images],
    name: str,
    shape: tuple[int, int, int],
    coefficients: tuple[float, ...],
    fuse: bool,
    kind: InputKind,
) -> None:
    model = make_model(name, shape, coefficients)
    images = photographs(shape)
    session = Session(graph.build(model, input_kind=kind, fuse=fuse).SerializeToString())
    assert np.abs(session.logits(images) - in_torch(model, images)).max() < 1e-5


@pytest.mark.parametrize("block", [1, 8])
@pytest.mark.parametrize("name", ["lenet", "lenet-wide"])
def test_other_channel_blocks(
    make_model: MakeModel,
    photographs: Callable[[tuple[int, int, int]], Images],
    name: str,
    block: int,
) -> None:
    """Padding and layout of the fused graph change its speed, never its answers."""
    model = make_model(name, RGB, (0.5, 0.5))
    images = photographs(RGB)[:200]
    session = Session(graph.build(model, block=block, part_logits=True).SerializeToString())
    assert np.abs(session.logits(images) - in_torch(model, images)).max() < 1e-5


@pytest.mark.parametrize("fuse", [True, False])
@pytest.mark.parametrize("coefficients", [(1.0,), (1.0, 1.0), (0.5, 0.5)])
def test_part_logits_add_up(
    make_model: MakeModel,
    photographs: Callable[[tuple[int, int, int]], Images],
    coefficients: tuple[float, ...],
    fuse: bool,
) -> None:
    model = make_model("lenet", RGB, coefficients)
    images = photographs(RGB)[:100]
    session = Session(graph.build(model, fuse=fuse, part_logits=True).SerializeToString())
    parts = session.part_logits(images)
    assert list(parts) == [term.name for term in model.terms]
    assert np.abs(sum(parts.values()) - session.logits(images)).max() < 1e-5
    for term in model.terms:
        alone = ServedModel(model.architecture, (term,), model.mean, model.std, model.classes)
        assert np.abs(parts[term.name] - in_torch(alone, images)).max() < 1e-5


@pytest.mark.parametrize("kind", ["uint8", "float"])
@pytest.mark.parametrize("fuse", [True, False])
def test_torchscript_answers_as_torch(
    trained: ServedModel, test_images: Images, kind: InputKind, fuse: bool
) -> None:
    images = test_images[:1000]
    script = torchscript.build(trained, input_kind=kind, fuse=fuse)
    given = torch.from_numpy(images.copy()) if kind == "uint8" else normalised(trained, images)
    with torch.no_grad():
        logits = [script(given[start:stop]).numpy() for start, stop in ((0, 1), (1, 3), (3, 1000))]
    assert_same(np.concatenate(logits), in_torch(trained, images))


@pytest.mark.parametrize("kind", ["uint8", "float"])
@pytest.mark.parametrize("coefficients", [(1.0,), (0.5, 0.5)])
@pytest.mark.parametrize(("name", "shape"), [("lenet", RGB), ("lenet-wide", GRAY), ("lenet-wide", RGB)])
def test_torchscript_of_every_architecture(
    make_model: MakeModel,
    photographs: Callable[[tuple[int, int, int]], Images],
    name: str,
    shape: tuple[int, int, int],
    coefficients: tuple[float, ...],
    kind: InputKind,
) -> None:
    model = make_model(name, shape, coefficients)
    images = photographs(shape)
    given = torch.from_numpy(images.copy()) if kind == "uint8" else normalised(model, images)
    with torch.no_grad():
        logits = torchscript.build(model, input_kind=kind)(given).numpy()
    assert np.abs(logits - in_torch(model, images)).max() < 1e-5


@pytest.mark.parametrize("kind", ["uint8", "float"])
def test_torch_exporter_gives_the_same_model(
    trained: ServedModel, test_images: Images, kind: InputKind
) -> None:
    images = test_images[:1000]
    proto = exporter.build(trained, input_kind=kind, part_logits=True)
    assert (proto.ir_version, proto.opset_import[0].version) == (graph.IR_VERSION, graph.OPSET)
    session = Session(proto.SerializeToString())
    assert_same(session.logits(images), in_torch(trained, images))
    assert set(session.part_logits(images[:2])) == {"global", "cluster-1"}


def test_int8_stays_close(trained: ServedModel, test_images: Images, test_labels: Images) -> None:
    images, labels = test_images[:1000], test_labels[:1000]
    session = Session(quantise.quantise(trained, test_images[1000:1500]).SerializeToString())
    expected = in_torch(trained, images)
    logits = session.logits(images)
    assert 0 < np.abs(logits - expected).max() < 0.05 * np.abs(expected).max()
    assert (logits.argmax(axis=1) == expected.argmax(axis=1)).mean() > 0.98
    lost = (expected.argmax(axis=1) == labels).mean() - (logits.argmax(axis=1) == labels).mean()
    assert lost < 0.01


@pytest.mark.parametrize(("name", "shape"), [("lenet", RGB), ("lenet-wide", GRAY)])
def test_int8_cannot_saturate_where_products_are_added_in_16_bits(
    make_model: MakeModel,
    photographs: Callable[[tuple[int, int, int]], Images],
    name: str,
    shape: tuple[int, int, int],
) -> None:
    """vpmaddubsw (AVX2 without VNNI) adds the products of two neighbouring pairs, uint8 by int8, in int16."""
    proto = quantise.quantise(make_model(name, shape), photographs(shape)[:50])
    weights = [
        onnx.numpy_helper.to_array(stored)
        for stored in proto.graph.initializer
        if stored.data_type == onnx.TensorProto.INT8 and stored.name.endswith(".weight")
    ]
    assert len(weights) == 4
    for weight in weights:
        largest = np.abs(weight.astype(np.int64)).max()
        assert 2 * 255 * largest < 2**15
        assert largest >= 60, "and the range is used"


ANSWER = """
import sys
import numpy as np
from export.session import Session
images = np.load(sys.argv[2])
np.save(sys.argv[3], Session(open(sys.argv[1], "rb").read()).logits(images))
"""


@pytest.mark.parametrize(("name", "shape"), [("lenet", RGB), ("lenet-wide", GRAY)])
def test_int8_answers_alike_on_a_processor_without_vnni(
    make_model: MakeModel,
    photographs: Callable[[tuple[int, int, int]], Images],
    tmp_path: Path,
    name: str,
    shape: tuple[int, int, int],
) -> None:
    """An emulated Haswell takes onnxruntime's other kernels, whatever this machine has."""
    if shutil.which("qemu-x86_64") is None or platform.machine() != "x86_64":
        pytest.skip("qemu-x86_64 is not installed here (Debian package qemu-user)")
    model, images = make_model(name, shape, (0.5, 0.5)), photographs(shape)[:100]
    file, given, answered = tmp_path / "int8.onnx", tmp_path / "images.npy", tmp_path / "logits.npy"
    file.write_bytes(quantise.quantise(model, images).SerializeToString())
    np.save(given, images)
    subprocess.run(
        ["qemu-x86_64", "-cpu", "Haswell", sys.executable, "-c", ANSWER, file, given, answered],
        check=True,
        capture_output=True,
    )
    there, here, expected = (
        np.load(answered),
        Session(file.read_bytes()).logits(images),
        in_torch(model, images),
    )
    largest = np.abs(expected).max()
    assert np.abs(there - here).max() < 0.01 * largest
    assert np.abs(there - expected).max() < 0.05 * largest


@pytest.mark.parametrize("coefficients", [(1.0,), (0.5, 0.5)])
@pytest.mark.parametrize(("name", "shape"), [("lenet", RGB), ("lenet-wide", GRAY), ("lenet-wide", RGB)])
def test_int8_of_every_architecture(
    make_model: MakeModel,
    photographs: Callable[[tuple[int, int, int]], Images],
    name: str,
    shape: tuple[int, int, int],
    coefficients: tuple[float, ...],
) -> None:
    model = make_model(name, shape, coefficients)
    images = photographs(shape)
    logits = Session(quantise.quantise(model, images[:200]).SerializeToString()).logits(images)
    expected = in_torch(model, images)
    assert np.abs(logits - expected).max() < 0.05 * np.abs(expected).max()
