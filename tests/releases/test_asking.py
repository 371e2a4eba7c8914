"""Questions over MQTT 5 in every form, from plain paho and from mosquitto_rr, and what is no question."""

from __future__ import annotations

import contextlib
import io
import json
import shutil
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from broker import topics
from device_agent import questions
from export import graph
from export.served import ServedModel, Term
from export.session import InputError, Session
from fedbac_edge.models.catalog import architecture

if TYPE_CHECKING:
    from tests.releases.conftest import Client, Command, Pixels


@dataclass
class Asked:
    """A device that serves release 1."""

    client: Client
    session: Session
    agent: Command
    port: int


@pytest.fixture(scope="module")
def asked(tmp_path_factory: pytest.TempPathFactory, make_place: Callable[..., Any]) -> Iterator[Asked]:
    with contextlib.ExitStack() as stack:
        place = stack.enter_context(make_place(tmp_path_factory.mktemp("asking")))
        agent = place.serve("dev-1", "--federation", "shop")
        session = place.publisher.publish(1, 5)
        agent.wait_for("answering with release 1")
        yield Asked(place.client, session, agent, place.broker.port)


@pytest.fixture(scope="module")
def blank() -> Session:
    """A model of the same shape, without any process."""
    lenet = architecture("lenet", (1, 28, 28), 10)
    terms = (Term("global", lenet.init(np.random.default_rng(1))),)
    model = ServedModel(lenet, terms, (0.5,), (0.5,), tuple("abcdefghij"))
    return Session(graph.build(model).SerializeToString())


def as_file(pixels: Pixels, kind: str) -> bytes:
    file = io.BytesIO()
    Image.fromarray(pixels[:, :, 0]).save(file, kind)
    return file.getvalue()


def as_npy(array: Any) -> bytes:
    file = io.BytesIO()
    np.save(file, array)
    return file.getvalue()


FORMS: dict[str, Callable[[Any], bytes]] = {
    "raw": lambda pixels: bytes(pixels.tobytes()),
    "png": lambda pixels: as_file(pixels, "PNG"),
    "npy": as_npy,
    "npy in Fortran's order": lambda pixels: as_npy(np.asfortranarray(pixels[:, :, 0])),
    "npy with a batch of one": lambda pixels: as_npy(pixels[None]),
}


@pytest.mark.parametrize("form", FORMS)
def test_an_image_in_any_form(asked: Asked, image: Pixels, form: str) -> None:
    answer = asked.client.answered("dev-1", FORMS[form](image))
    (expected,) = asked.session.predict(image)
    assert answer["label"] == expected.label
    assert answer["index"] == expected.index
    assert answer["probability"] == pytest.approx(expected.probability, abs=1e-5)
    assert answer["logits"] == pytest.approx(expected.logits.tolist(), abs=1e-5)
    assert answer["model"] == 1


def test_a_jpeg(asked: Asked, image: Pixels) -> None:
    """Lossy: what matters are the pixels that come out of it."""
    data = as_file(image, "JPEG")
    with Image.open(io.BytesIO(data)) as opened:
        pixels = np.asarray(opened.convert("L"))
    answer = asked.client.answered("dev-1", data)
    assert answer["logits"] == pytest.approx(asked.session.logits(pixels)[0].tolist(), abs=1e-5)


def test_messagepack_is_answered_in_messagepack(asked: Asked, image: Pixels) -> None:
    correlation = asked.client.ask(
        "dev-1", msgspec.msgpack.encode({"image": as_file(image, "PNG"), "top": 3})
    )
    message = asked.client.answers.get(timeout=20)
    assert message.properties.CorrelationData == correlation
    assert message.properties.ContentType == "application/msgpack"
    answer = msgspec.msgpack.decode(message.payload)
    expected = asked.session.predict(image)[0].top_k(3)
    assert [each["label"] for each in answer["top"]] == [label for label, _ in expected]
    shares = [share for _, share in expected]
    assert [each["probability"] for each in answer["top"]] == pytest.approx(shares, abs=1e-5)


def test_json_says_that_it_is_json(asked: Asked, image: Pixels) -> None:
    asked.client.ask("dev-1", image.tobytes())
    assert asked.client.answers.get(timeout=20).properties.ContentType == "application/json"


MALFORMED: dict[str, tuple[bytes, str]] = {
    "nothing": (b"", "0 bytes are no picture"),
    "too short": (b"x" * 783, "783 bytes are no picture"),
    "text": (b"what is this?", "13 bytes are no picture"),
    "broken png": (b"\x89PNG\r\n\x1a\n" + b"\0" * 50, "cannot be decoded"),
    "other size": (b"", "the model takes 28x28 pixels, this has 32x30"),
    "float array": (as_npy(np.zeros((28, 28), np.float32)), "not float32"),
    "objects": (b"\x93NUMPY\x01\x00" + b"\x10\x00" + b"{'descr': '|O'} ", "not readable as an .npy file"),
    "two images": (as_npy(np.zeros((2, 28, 28), np.uint8)), "about one image, not about 2"),
    "claims a terabyte": (
        as_npy(np.zeros((28, 28), np.uint8)).replace(b"(28, 28)", b"(1048576, 1048576)"),
        "bytes",
    ),
    "messagepack without an image": (msgspec.msgpack.encode({"picture": b"x"}), "not a question"),
    "messagepack with a bad image": (msgspec.msgpack.encode({"image": b"x"}), "1 bytes are no picture"),
}


@pytest.mark.parametrize("case", MALFORMED)
def test_a_malformed_question_gets_an_error(asked: Asked, image: Pixels, case: str) -> None:
    payload, reason = MALFORMED[case]
    if case == "other size":
        payload = as_file(np.zeros((30, 32, 1), np.uint8), "PNG")
    correlation = asked.client.ask("dev-1", payload)
    message = asked.client.answers.get(timeout=20)
    assert message.properties.CorrelationData == correlation
    packed = message.properties.ContentType == "application/msgpack"
    answer = (msgspec.msgpack if packed else msgspec.json).decode(message.payload)
    assert reason in answer["error"]
    assert answer["model"] == 1
    assert asked.client.answered("dev-1", image.tobytes())["model"] == 1  # and it goes on


def test_answers_have_the_quality_of_the_question(asked: Asked, image: Pixels) -> None:
    for qos in (0, 1):
        asked.client.ask("dev-1", image.tobytes(), qos=qos)
        assert asked.client.answers.get(timeout=20).qos == qos


def test_below_the_federations_root_only_answer_is_for_answers(asked: Asked, image: Pixels) -> None:
    """A question must not make the device publish on a topic that means something."""
    task = topics.device("shop", "gw1", "dev-2", "task")
    asked.client.retained.pop(task, None)
    asked.client.ask("dev-1", image.tobytes(), response_topic=task)
    asked.client.ask("dev-1", image.tobytes(), response_topic="fedbac/v1/other/spec")
    answer = asked.client.answered("dev-1", image.tobytes(), response_topic="fedbac/v1/shop/answer/gw1/me")
    assert answer["model"] == 1
    assert task not in asked.client.retained
    asked.agent.wait_for("a question named the response topic")


def test_any_mqtt_client_can_ask(asked: Asked, image: Pixels) -> None:
    """Mosquitto's own request-response client; its messages are text, so the pixels are printable bytes."""
    program = shutil.which("mosquitto_rr")
    if program is None:
        pytest.skip("mosquitto_rr is not installed")
    pixels = image % 90 + 33
    topic = topics.device("shop", "gw1", "dev-1", "infer")
    command = [program, "-p", str(asked.port), "-V", "5", "-t", topic, "-e", "my/other", "-W", "20"]
    command += ["-m", pixels.tobytes().decode("ascii")]
    out = subprocess.run(command, stdout=subprocess.PIPE, check=True, timeout=30)
    asked.client.answers.get(timeout=20)  # my/# hears it, too
    assert json.loads(out.stdout)["label"] == asked.session.predict(pixels)[0].label


def test_the_process_has_loaded_neither_torch_nor_onnx(asked: Asked, image: Pixels) -> None:
    assert asked.client.answered("dev-1", image.tobytes())["model"] == 1
    maps = asked.agent.libraries()
    assert "onnxruntime" in maps
    assert "libtorch" not in maps
    assert "/onnx/" not in maps


HEADS = (b"", b"\x89PNG\r\n\x1a\n", b"\xff\xd8\xff\xe0", b"\x93NUMPY\x01\x00", b"\x81\xa5image\xc4")


@settings(deadline=None)
@given(head=st.sampled_from(HEADS), tail=st.binary(max_size=200))
def test_any_bytes_are_a_question_or_refused(blank: Session, head: bytes, tail: bytes) -> None:
    with contextlib.suppress(InputError):
        questions.read(head + tail, blank)


@given(descr=st.text(max_size=5), shape=st.lists(st.integers(-784, 2**40), max_size=4).map(tuple))
def test_any_header_of_an_array_is_read_or_refused(
    blank: Session, descr: str, shape: tuple[int, ...]
) -> None:
    """Negative lengths, terabytes and types that do not exist; the bytes behind it are those of one image."""
    header = repr({"descr": descr or "|u1", "fortran_order": False, "shape": shape}).encode() + b"\n"
    payload = b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header + bytes(784)
    with contextlib.suppress(InputError):
        questions.read(payload, blank)


def test_a_shape_that_only_multiplies_to_the_right_size(blank: Session) -> None:
    payload = as_npy(np.zeros((28, 28), np.uint8)).replace(b"(28, 28), ", b"(-28, -28)")
    with pytest.raises(InputError, match="no array has the shape"):
        questions.read(payload, blank)


def test_an_array_is_not_allocated_before_its_size_is_known() -> None:
    """The header of a terabyte costs nothing: refused by the length that is really there."""
    payload = as_npy(np.zeros((28, 28), np.uint8)).replace(b"(28, 28)", b"(1048576, 1048576)")
    with pytest.raises(InputError):
        questions._array(payload)
