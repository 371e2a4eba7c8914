"""The device's side: what is accepted, what is refused, and what it costs to be there."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import numpy.typing as npt
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from export import graph, inspection
from export.served import ServedModel
from export.session import InputError, ModelError, Session, read_image, session_options

Images = npt.NDArray[np.uint8]
MakeModel = Callable[..., ServedModel]


@pytest.fixture(scope="module")
def data(make_model: MakeModel) -> bytes:
    serialised: bytes = graph.build(make_model()).SerializeToString()
    return serialised


@pytest.fixture(scope="module")
def session(data: bytes) -> Session:
    return Session(data)


@pytest.fixture(scope="module")
def colour(make_model: MakeModel) -> Session:
    return Session(graph.build(make_model("lenet", (3, 32, 32))).SerializeToString())


def test_prediction_names_its_class(session: Session, test_images: Images) -> None:
    (prediction,) = session.predict(test_images[0])
    powers = np.exp(prediction.logits.astype(np.float64))
    assert prediction.label == session.classes[prediction.index]
    assert prediction.index == int(prediction.logits.argmax())
    assert prediction.probability == pytest.approx(powers.max() / powers.sum(), rel=1e-5)


def test_top_k_is_ordered_and_complete(session: Session, test_images: Images) -> None:
    (ranked,) = session.top_k(test_images[:1], k=10)
    shares = [share for _, share in ranked]
    assert shares == sorted(shares, reverse=True)
    assert sum(shares) == pytest.approx(1, abs=1e-5)
    assert {label for label, _ in ranked} == set(session.classes)
    assert session.top_k(test_images[:1], k=2) == [ranked[:2]]
    assert ranked[0] == pytest.approx((session.predict(test_images[:1])[0].label, shares[0]))


def test_shapes_that_mean_the_same(session: Session, test_images: Images) -> None:
    one = test_images[3]
    expected = session.logits(one)
    for same in (one[None], one[..., 0], one[None, ..., 0], one.tolist() and np.asfortranarray(one)):
        assert np.array_equal(session.logits(same), expected)


@pytest.mark.parametrize("count", [1, 2, 7, 63, 64, 65, 200])
def test_batches_of_any_size_keep_their_order(session: Session, test_images: Images, count: int) -> None:
    """Batches are cut into powers of two; the pieces come back in order."""
    whole = session.logits(test_images[:count])
    assert whole.shape == (count, 10)
    for index in {0, count // 2, count - 1}:
        assert np.abs(whole[index] - session.logits(test_images[index])[0]).max() < 1e-5


@pytest.mark.parametrize(
    ("images", "sentence"),
    [
        (np.zeros((28, 28), np.float32), "uint8 pixels"),
        (np.zeros((32, 32), np.uint8), "28x28 pixels with 1 channel"),
        (np.zeros((28, 28, 3), np.uint8), "28x28 pixels with 1 channel"),
        (np.zeros((1, 1, 28, 28, 1), np.uint8), "28x28"),
        (np.zeros((0, 28, 28, 1), np.uint8), "no image"),
        (np.zeros((), np.uint8), "28x28"),
    ],
)
def test_inputs_that_do_not_fit_are_refused(
    session: Session, images: npt.NDArray[np.generic], sentence: str
) -> None:
    with pytest.raises(InputError, match=sentence):
        session.predict(images)


def test_garbage_is_refused(data: bytes) -> None:
    for wrong in (b"", b"not a model", b"\x00" * 5000, data[: len(data) // 2], b"PK\x03\x04" + data):
        with pytest.raises(ModelError, match="not an ONNX model"):
            Session(wrong)


@settings(max_examples=60, deadline=None, derandomize=True)
@given(st.data())
def test_damaged_files_are_refused_or_loaded_never_worse(data: bytes, draw: st.DataObject) -> None:
    """Whatever bytes change, the answer is a model or a ModelError."""
    damaged = bytearray(data)
    for _ in range(draw.draw(st.integers(1, 5))):
        damaged[draw.draw(st.integers(0, len(damaged) - 1))] = draw.draw(st.integers(0, 255))
    with contextlib.suppress(ModelError):
        assert Session(bytes(damaged)).outputs


def test_too_large_a_model_is_refused(data: bytes, tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    path.write_bytes(data)
    with pytest.raises(ModelError, match="limit of 1000"):
        Session(data, size_limit=1000)
    with pytest.raises(ModelError, match="limit of 1000"):
        Session(path, size_limit=1000)
    assert Session(path, size_limit=len(data)).classes


def test_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"nowhere\.onnx"):
        Session(tmp_path / "nowhere.onnx")


@pytest.mark.parametrize("stated", [True, False])
def test_external_data_is_refused_although_the_file_is_there(
    make_model: MakeModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stated: bool
) -> None:
    """onnxruntime itself would follow the reference, relative to the working directory."""
    proto = graph.build(make_model())
    (tensor,) = (t for t in proto.graph.initializer if t.name == "fc1.weight")
    (tmp_path / "weights.bin").write_bytes(tensor.raw_data)
    tensor.ClearField("raw_data")
    tensor.external_data.add(key="location", value="weights.bin")
    if stated:
        tensor.data_location = onnx.TensorProto.EXTERNAL
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ModelError, match="other files"):
        Session(proto.SerializeToString())


def test_references_are_found_wherever_a_tensor_can_be(make_model: MakeModel) -> None:
    reference = onnx.TensorProto(name="w", dims=[1], data_type=1)
    reference.data_location = onnx.TensorProto.EXTERNAL
    reference.external_data.add(key="location", value="/etc/hostname")
    inner = onnx.helper.make_graph([], "inner", [], [], [reference])
    sparse = onnx.SparseTensorProto(values=reference)
    places = [
        onnx.helper.make_node("Constant", [], ["c"], value=reference),
        onnx.helper.make_node("Constant", [], ["c"], sparse_value=sparse),
        onnx.helper.make_node("If", ["c"], ["d"], then_branch=inner, else_branch=inner),
    ]
    for node in places:
        model = graph.build(make_model())
        assert not inspection.refers_to_other_files(model.SerializeToString())
        model.graph.node.append(node)
        assert inspection.refers_to_other_files(model.SerializeToString())
    model = graph.build(make_model())
    function = onnx.helper.make_function("own", "f", [], ["c"], [places[0]], model.opset_import)
    model.functions.append(function)
    assert inspection.refers_to_other_files(model.SerializeToString())


def test_foreign_models_are_refused() -> None:
    value = onnx.helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, ["N", 3])
    out = onnx.helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, ["N", 3])
    graph_ = onnx.helper.make_graph([onnx.helper.make_node("Relu", ["x"], ["y"])], "g", [value], [out])
    proto = onnx.helper.make_model(graph_, opset_imports=[onnx.helper.make_opsetid("", 17)], ir_version=8)
    with pytest.raises(ModelError, match="does not say"):
        Session(proto.SerializeToString())


def test_one_thread_that_sleeps() -> None:
    options = session_options()
    assert options.intra_op_num_threads == options.inter_op_num_threads == 1
    assert options.get_session_config_entry("session.intra_op.allow_spinning") == "0"
    assert options.get_session_config_entry("session.inter_op.allow_spinning") == "0"
    assert not options.enable_cpu_mem_arena


FRESH = """
import sys, os
import numpy as np
from export.session import Session
before = len(os.listdir("/proc/self/task"))
session = Session(sys.argv[1])
session.predict(np.zeros((5, 28, 28, 1), np.uint8))
heavy = {"torch", "onnx", "PIL", "msgspec", "safetensors", "fedbac_edge", "scipy"} & set(sys.modules)
print(len(os.listdir("/proc/self/task")) - before, sorted(heavy))
"""


def test_needs_numpy_and_onnxruntime_only_and_starts_no_thread(data: bytes, tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    path.write_bytes(data)
    done = subprocess.run(
        [sys.executable, "-c", FRESH, str(path)], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout.strip() == "0 []"


def test_works_when_the_process_may_use_one_processor(data: bytes, tmp_path: Path) -> None:
    """Containers restrict processors: no pool sized to the host, no complaint on stderr."""
    path = tmp_path / "model.onnx"
    path.write_bytes(data)
    done = subprocess.run(
        ["taskset", "-c", "0", sys.executable, "-c", FRESH, str(path)],
        capture_output=True, text=True, timeout=60, check=True,
    )  # fmt: skip
    assert done.stdout.strip() == "0 []"
    assert done.stderr == ""


def test_image_files(session: Session, colour: Session, test_images: Images, tmp_path: Path) -> None:
    gray = test_images[0]
    Image.fromarray(gray[..., 0]).save(tmp_path / "gray.png")
    assert np.array_equal(read_image(tmp_path / "gray.png", session), gray)
    rgb = np.random.default_rng(0).integers(0, 256, (32, 32, 3), dtype=np.uint8)
    Image.fromarray(rgb).save(tmp_path / "rgb.png")
    assert np.array_equal(read_image(tmp_path / "rgb.png", colour), rgb)
    with pytest.raises(InputError, match="28x28 pixels, this has 32x32"):
        read_image(tmp_path / "rgb.png", session)
    with pytest.raises(InputError, match="32x32 pixels, this has 28x28"):
        read_image(tmp_path / "gray.png", colour)
    Image.fromarray(rgb[:28, :28]).save(tmp_path / "small.png")
    turned = np.asarray(Image.fromarray(rgb[:28, :28]).convert("L"))
    assert np.array_equal(read_image(tmp_path / "small.png", session)[..., 0], turned), "as in training"
    assert read_image(tmp_path / "rgb.png", session, fit=True).shape == (28, 28, 1)


def test_files_that_are_no_images_are_refused(session: Session, tmp_path: Path) -> None:
    for name, content in (("text.png", b"no image"), ("empty.png", b"")):
        (tmp_path / name).write_bytes(content)
        with pytest.raises(InputError, match=name):
            read_image(tmp_path / name, session)
    whole = tmp_path / "whole.png"
    Image.fromarray(np.zeros((28, 28), np.uint8)).save(whole)
    (tmp_path / "cut.png").write_bytes(whole.read_bytes()[:-20])
    with pytest.raises(InputError, match=r"cut\.png"):
        read_image(tmp_path / "cut.png", session)
    Image.new("1", (9000, 9000)).save(tmp_path / "huge.png")
    with pytest.raises(InputError, match="more than 64,000,000 pixels"):
        read_image(tmp_path / "huge.png", session, fit=True)
    with pytest.raises(InputError, match=r"missing\.png"):
        read_image(tmp_path / "missing.png", session)


def test_metadata_reaches_the_device(trained: ServedModel) -> None:
    session = Session(graph.build(trained).SerializeToString())
    assert session.classes == trained.classes
    assert session.metadata["federation"] == "shoes"
    assert json.loads(session.metadata["parts"])[1]["name"] == "cluster-1"
    assert session.input_shape == (1, 28, 28)
