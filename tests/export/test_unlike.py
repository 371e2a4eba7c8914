"""Sums of unlike networks: compact residuals beside full ones, LeNets and ResNet-8; against torch."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import onnx
import pytest
import torch

from export import exporter, graph, quantise, torchscript
from export.served import ExportError, InputKind, ServedModel, Term
from export.session import Session
from fedbac_edge.models.additive import load, network
from fedbac_edge.models.catalog import LeNet, shrunk
from fedbac_edge.models.description import Architecture
from fedbac_edge.models.resnet import ResNet8
from fedbac_edge.parts.part import Part, is_statistic
from fedbac_edge.releases import vectors

Images = npt.NDArray[np.uint8]
FloatArray = npt.NDArray[np.float32]
CLASSES = tuple("abcdefghij")
NARROW = ResNet8(widths=(16, 32, 64))


def drawn(model: Architecture, seed: int) -> Part:
    """Fresh weights; running statistics and the factors of normalisations moved from where they begin."""
    rng = np.random.default_rng(seed)
    part = model.init(rng)
    for name, tensor in part.items():
        if is_statistic(name) or "norm" in name:
            positive = name.endswith(("running_var", "weight"))
            low, high = (0.3, 2.0) if positive else (-0.5, 0.5)
            part[name] = rng.uniform(low, high, tensor.shape).astype(np.float32)
    return part


def served(*terms: tuple[Architecture, float]) -> ServedModel:
    """The first architecture is the served model's; the others stand at their terms."""
    first, channels = terms[0][0], terms[0][0].input_shape[0]
    return ServedModel(
        first,
        tuple(
            Term(f"part-{i}", drawn(model, i), coefficient, None if model == first else model)
            for i, (model, coefficient) in enumerate(terms)
        ),
        (0.49, 0.48, 0.45)[:channels],
        (0.25, 0.24, 0.26)[:channels],
        CLASSES,
    )


SUMS = {
    "lenet and its residual": served((LeNet(), 1.0), (shrunk(LeNet(), 4), 1.0)),
    "two duals and two residuals": served(
        (LeNet(), 0.5), (shrunk(LeNet(), 4), 0.5), (LeNet(), 0.5), (shrunk(LeNet(), 4), 0.5)
    ),
    "resnet8 alone": served((NARROW, 1.0)),
    "resnet8 and its residual": served((ResNet8(), 0.5), (shrunk(ResNet8(), 4), 0.5)),
    "lenet and resnet8": served((LeNet((3, 32, 32)), 0.7), (NARROW, 0.3), (LeNet((3, 32, 32)), 0.25)),
}


def in_torch(model: ServedModel, images: Images) -> dict[str, FloatArray]:
    """Part -> coefficient * f(x; part) by torch's own modules in evaluation mode."""
    pixels = torch.from_numpy(images.copy()).permute(0, 3, 1, 2).double() / 255
    mean, std = (torch.tensor(v, dtype=torch.float64).reshape(1, -1, 1, 1) for v in (model.mean, model.std))
    x = ((pixels - mean) / std).float()
    found = {}
    with torch.no_grad():
        for term in model.terms:
            module = network(model.of(term)).eval()
            load(module, term.part)
            found[term.name] = np.asarray(term.coefficient * module(x))
    return found


def taken(model: ServedModel, photographs: Callable[[tuple[int, int, int]], Images]) -> Images:
    count = 12 if any(isinstance(model.of(term), ResNet8) for term in model.terms) else 1000
    return photographs(model.architecture.input_shape)[:count]


def assert_same(logits: FloatArray, expected: FloatArray) -> None:
    assert np.abs(logits - expected).max() < 2e-5 * max(1.0, float(np.abs(expected).max()))
    second, first = np.sort(expected, axis=1)[:, -2:].T
    clear = first - second > 1e-4
    assert clear.mean() > 0.9
    assert (logits.argmax(axis=1) == expected.argmax(axis=1))[clear].all()


@pytest.mark.parametrize("name", SUMS)
@pytest.mark.parametrize("kind", ["uint8", "float"])
@pytest.mark.parametrize("fuse", [True, False])
def test_the_graph_answers_as_torch(
    name: str, kind: InputKind, fuse: bool, photographs: Callable[[tuple[int, int, int]], Images]
) -> None:
    model = SUMS[name]
    images = taken(model, photographs)
    proto = graph.build(model, input_kind=kind, fuse=fuse)
    onnx.shape_inference.infer_shapes(proto, check_type=True, strict_mode=True, data_prop=True)
    assert_same(Session(proto.SerializeToString()).logits(images), sum(in_torch(model, images).values()))  # type: ignore[arg-type]


@pytest.mark.parametrize("name", SUMS)
def test_part_logits_are_each_parts_own(
    name: str, photographs: Callable[[tuple[int, int, int]], Images]
) -> None:
    model = SUMS[name]
    images = taken(model, photographs)[:24]
    session = Session(graph.build(model, part_logits=True).SerializeToString())
    expected, found = in_torch(model, images), session.part_logits(images)
    assert list(found) == [term.name for term in model.terms]
    for part, logits in found.items():
        assert_same(logits, expected[part])
    assert np.abs(sum(found.values()) - session.logits(images)).max() < 1e-4


def test_equal_lenets_run_as_one_network_each() -> None:
    """Two widths are two networks: eight convolutions, two last products, one sum."""
    kinds = [node.op_type for node in graph.build(SUMS["two duals and two residuals"]).graph.node]
    assert (kinds.count("Conv"), kinds.count("Gemm"), kinds.count("Sum")) == (8, 2, 1)


def test_normalisations_are_inside_the_convolutions() -> None:
    kinds = [node.op_type for node in graph.build(SUMS["resnet8 alone"]).graph.node]
    assert (kinds.count("Conv"), kinds.count("BatchNormalization")) == (9, 0)


@pytest.mark.parametrize("name", SUMS)
@pytest.mark.parametrize("fuse", [True, False])
def test_torchscript_answers_as_torch(
    name: str, fuse: bool, photographs: Callable[[tuple[int, int, int]], Images]
) -> None:
    model = SUMS[name]
    images = taken(model, photographs)[:24]
    with torch.no_grad():
        logits = torchscript.build(model, fuse=fuse)(torch.from_numpy(images.copy())).numpy()
    assert_same(logits, sum(in_torch(model, images).values()))  # type: ignore[arg-type]


def test_torchs_exporter_writes_unlike_sums_too(
    photographs: Callable[[tuple[int, int, int]], Images],
) -> None:
    model = SUMS["lenet and resnet8"]
    images = taken(model, photographs)[:8]
    session = Session(exporter.build(model, part_logits=True).SerializeToString())
    for part, expected in in_torch(model, images).items():
        assert_same(session.part_logits(images)[part], expected)


@pytest.mark.parametrize("name", ["two duals and two residuals", "lenet and resnet8"])
def test_vectors_of_releases_agree(name: str) -> None:
    """The reference in numpy shares no line with the graph."""
    model = SUMS[name]
    session = Session(graph.build(model).SerializeToString())
    for vector in vectors.of_model(model, 2):
        logits = session.logits(vectors.image(model.architecture.input_shape, vector.index))[0]
        assert np.abs(logits - np.array(vector.logits)).max() < vectors.TOLERANCE / 10


def test_int8_says_what_it_cannot() -> None:
    images = np.zeros((4, 28, 28, 1), np.uint8)
    with pytest.raises(ExportError, match=r"one LeNet only, not for 2 different networks \(LeNet\)"):
        quantise.quantise(SUMS["lenet and its residual"], images)
    with pytest.raises(ExportError, match="not for ResNet8"):
        quantise.quantise(SUMS["resnet8 alone"], images)


def test_networks_for_other_images_or_classes_do_not_add_up() -> None:
    mixed = served((LeNet(), 1.0), (shrunk(LeNet(classes=9), 4), 1.0))
    with pytest.raises(ExportError, match=r"part-1: its network takes \(1, 28, 28\) and gives 9 logits"):
        graph.build(mixed)
    broken = served((NARROW, 1.0))
    broken.terms[0].part["norm.running_var"][3] = -1.0
    with pytest.raises(ExportError, match="running variance below zero"):
        graph.build(broken)
