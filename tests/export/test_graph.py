"""What an exported file promises: one file, old runtimes, any batch, and a description of itself."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import numpy.typing as npt
import onnx
import onnxruntime as ort
import pytest
from onnx import numpy_helper

from export import graph, quantise, torchscript
from export.served import ExportError, InputKind, ServedModel, Term
from fedbac_edge.host import files
from fedbac_edge.parts.part import digest, pack

Images = npt.NDArray[np.uint8]
MakeModel = Callable[..., ServedModel]


@pytest.mark.parametrize("kind", ["uint8", "float"])
@pytest.mark.parametrize("fuse", [True, False])
@pytest.mark.parametrize("part_logits", [True, False])
def test_loads_on_old_runtimes(make_model: MakeModel, kind: InputKind, fuse: bool, part_logits: bool) -> None:
    """onnxruntime 1.16 takes operator sets up to 19 and IR up to 9."""
    proto = graph.build(make_model(), input_kind=kind, fuse=fuse, part_logits=part_logits)
    assert proto.ir_version <= 9
    assert [(o.domain, o.version) for o in proto.opset_import] == [("", 17)]
    onnx.checker.check_model(proto, full_check=True)
    inferred = onnx.shape_inference.infer_shapes(proto, check_type=True, strict_mode=True, data_prop=True)
    known = {value.name for value in inferred.graph.value_info} | {o.name for o in proto.graph.output}
    assert {name for node in proto.graph.node for name in node.output} <= known


@pytest.mark.parametrize("fuse", [True, False])
def test_batch_is_dynamic(make_model: MakeModel, fuse: bool) -> None:
    proto = graph.build(make_model(), input_kind="float", fuse=fuse)
    session = ort.InferenceSession(proto.SerializeToString(), providers=["CPUExecutionProvider"])
    images = np.random.default_rng(0).normal(size=(7, 1, 28, 28)).astype(np.float32)
    (all_seven,) = session.run(None, {"image": images})
    for count in (1, 2):
        (some,) = session.run(None, {"image": images[:count]})
        assert some.shape == (count, 10)
        assert np.abs(some - all_seven[:count]).max() < 1e-5


def test_fused_graph_reads_the_image_once(make_model: MakeModel) -> None:
    proto = graph.build(make_model())
    kinds = [node.op_type for node in proto.graph.node]
    assert kinds.count("Conv") == 4
    assert kinds.count("Gemm") == 1
    assert "Add" not in kinds
    assert "Sum" not in kinds


def test_file_explains_itself(trained: ServedModel) -> None:
    proto = graph.build(trained)
    stored = {entry.key: entry.value for entry in proto.metadata_props}
    assert {key: stored[key] for key in trained.metadata} == trained.metadata
    assert json.loads(stored["classes"]) == list(trained.classes)
    assert json.loads(stored["normalisation"]) == {"mean": [0.2860], "std": [0.3530]}
    assert json.loads(stored["input"]) == {"kind": "uint8", "shape": [1, 28, 28]}
    assert json.loads(stored["parts"]) == [
        {"name": term.name, "coefficient": 1.0, "hash": digest(pack(term.part))} for term in trained.terms
    ]


def test_denormal_weights_become_zero(make_model: MakeModel) -> None:
    model = make_model(coefficients=(1.0,))
    part = dict(model.terms[0].part)
    part["fc1.weight"] = part["fc1.weight"].copy()
    part["fc1.weight"][0, :3] = (1e-40, -1e-35, 1e-29)
    proto = graph.build(replace(model, terms=(Term("only", part),)))
    (row,) = (
        numpy_helper.to_array(t)[0, :3] for t in proto.graph.initializer if t.name.endswith("fc1.weight")
    )
    assert row.tolist() == [0.0, 0.0, np.float32(1e-29)]


def test_same_parts_give_same_bytes(make_model: MakeModel, tmp_path: Path) -> None:
    paths = [graph.write(graph.build(make_model()), tmp_path / name) for name in ("a.onnx", "b.onnx")]
    assert paths[0].read_bytes() == paths[1].read_bytes()


def test_failed_write_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = files.write_bytes(b"old", tmp_path / "model.onnx")

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("fedbac_edge.host.files.os.fsync", full)
    with pytest.raises(OSError, match="No space"):
        files.write_bytes(b"new", path)
    assert path.read_bytes() == b"old"
    assert [p.name for p in tmp_path.iterdir()] == ["model.onnx"]


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"terms": ()}, "at least one part"),
        ({"mean": (0.1, 0.2)}, "each of the 1 channels"),
        ({"std": (0.0,)}, "std must be positive"),
        ({"classes": ("a",) * 10}, "different class names"),
    ],
)
def test_what_does_not_fit_is_refused(
    make_model: MakeModel, change: dict[str, object], sentence: str
) -> None:
    with pytest.raises(ExportError, match=sentence):
        graph.build(replace(make_model(), **change))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("tensor", "sentence"),
    [
        (np.zeros((6, 1, 3, 3), np.float32), r"expected shape \(6, 1, 5, 5\)"),
        (np.full((6, 1, 5, 5), np.nan, np.float32), "NaN or infinite"),
    ],
)
def test_foreign_or_broken_parts_are_refused(
    make_model: MakeModel, tensor: npt.NDArray[np.float32], sentence: str
) -> None:
    model = make_model(coefficients=(1.0,))
    part = {**model.terms[0].part, "conv1.weight": tensor}
    with pytest.raises(ExportError, match=sentence):
        graph.build(replace(model, terms=(Term("only", part),)))


def test_two_parts_of_one_name_are_refused(make_model: MakeModel) -> None:
    model = make_model()
    with pytest.raises(ExportError, match="different names"):
        graph.build(replace(model, terms=(model.terms[0], model.terms[0])))


def test_torchscript_file_carries_the_description(trained: ServedModel, tmp_path: Path) -> None:
    import torch

    path = torchscript.save(torchscript.build(trained), trained, "uint8", tmp_path / "model.pt")
    extra = {"metadata.json": ""}
    script = torch.jit.load(path, _extra_files=extra)  # type: ignore[no-untyped-call]
    assert json.loads(extra["metadata.json"])["federation"] == "shoes"
    assert script(torch.zeros((3, 28, 28, 1), dtype=torch.uint8)).shape == (3, 10)


def test_int8_decision_is_kept_to_and_stored(
    trained: ServedModel, test_images: Images, test_labels: Images
) -> None:
    proto, decision = quantise.decide(trained, test_images[:1000], test_labels[:1000])
    stored = {entry.key: entry.value for entry in proto.metadata_props}
    figures = json.loads(stored["int8"])
    assert figures["kept"] == decision.kept
    allowed = decision.accuracy_float - decision.accuracy_int8 <= 0.5
    assert decision.kept == (allowed and decision.p50_int8 < decision.p50_float)
    integers = any(node.op_type == "QuantizeLinear" for node in proto.graph.node)
    assert integers == decision.kept
    assert stored["precision"] == ("int8" if decision.kept else "float32")
    assert f"{decision.p50_int8:.1f} us" in str(decision)


def test_int8_needs_labels(trained: ServedModel, test_images: Images, test_labels: Images) -> None:
    with pytest.raises(ExportError, match="labelled hold-out"):
        quantise.decide(trained, test_images[:10], test_labels[:9])
