"""What is asked of a model over MQTT, in whatever form a client finds easiest, and the answer's bytes.

A payload is one image: the bytes of a picture file (PNG, JPEG, GIF, WebP, TIFF, BMP, PPM) or of an .npy file
(uint8), exactly the raw pixels (height, width, channels), or a MessagePack map {"image": any of these,
"top": K}. Sizes are checked before anything is decoded. Answers are JSON, or MessagePack to a question in it.
"""

from __future__ import annotations

import io
import math
from dataclasses import dataclass
from typing import Annotated, Any

import msgspec
import numpy as np
import numpy.typing as npt
from msgspec import Meta

from export.session import InputError, Prediction, Session, read_image
from fedbac_edge.datasets.picture import is_picture

JSON, MSGPACK = "application/json", "application/msgpack"
MOST_HEADER = 4096
"""Bytes of an .npy header that are read."""

_PNG, _JPEG, _NPY = b"\x89PNG\r\n\x1a\n", b"\xff\xd8\xff", b"\x93NUMPY"

Pixels = npt.NDArray[np.uint8]


class Ask(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A question in MessagePack: the image, and how many labels shall be named."""

    image: bytes
    top: Annotated[int, Meta(ge=1, le=1000)] = 1


@dataclass(frozen=True)
class Question:
    """One image (height, width, channels), how many labels are wanted, and the form of the answer."""

    pixels: Pixels
    top: int = 1
    content_type: str = JSON


def form(payload: bytes, session: Session | None) -> str:
    """The content type of the answer: MessagePack for a payload that looks like a question in it."""
    if payload.startswith((_PNG, _JPEG, _NPY)) or (session is not None and len(payload) == _raw(session)):
        return JSON
    is_map = bool(payload) and (payload[0] & 0xF0 == 0x80 or payload[0] in (0xDE, 0xDF))
    return MSGPACK if is_map else JSON


def read(payload: bytes, session: Session, *, fit: bool = False) -> Question:
    """The question in `payload`, held to what the model takes; `fit` scales pictures. Raises InputError."""
    if form(payload, session) == JSON:
        return Question(_image(payload, session, fit))
    try:
        ask = msgspec.msgpack.decode(payload, type=Ask)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise InputError(f"not a question in MessagePack ({error}): {{'image': bytes, 'top': 1}}") from error
    return Question(_image(ask.image, session, fit), ask.top, MSGPACK)


def answer(question: Question, prediction: Prediction, number: int, hash: str) -> bytes:
    """The answer of release `number`, whose file has this hash."""
    fields: dict[str, Any] = {
        "label": prediction.label,
        "index": prediction.index,
        "probability": prediction.probability,
        "logits": [float(value) for value in prediction.logits],
        "model": number,
        "hash": hash,
    }
    if question.top > 1:
        fields["top"] = [
            {"label": label, "probability": share} for label, share in prediction.top_k(question.top)
        ]
    return encode(fields, question.content_type)


def error(reason: str, number: int | None, content_type: str = JSON) -> bytes:
    """The answer to a question that has none."""
    return encode({"error": reason, "model": number}, content_type)


def encode(fields: dict[str, Any], content_type: str) -> bytes:
    """A map in the form of `content_type`."""
    return msgspec.msgpack.encode(fields) if content_type == MSGPACK else msgspec.json.encode(fields)


def _raw(session: Session) -> int:
    return math.prod(session.input_shape)


def _image(payload: bytes, session: Session, fit: bool) -> Pixels:
    channels, height, width = session.input_shape
    if payload.startswith((_PNG, _JPEG)):
        return read_image(payload, session, fit=fit)
    if payload.startswith(_NPY):
        pixels = _array(payload)
    elif len(payload) == _raw(session):
        pixels = np.frombuffer(payload, np.uint8).reshape(height, width, channels)
    elif is_picture(payload):
        return read_image(payload, session, fit=fit)
    else:
        raise InputError(
            f"{len(payload)} bytes are no picture and no .npy file, no question in MessagePack, and not the "
            f"{_raw(session)} raw bytes of {height}x{width} pixels with {channels} channel(s)"
        )
    batch = session.as_batch(pixels)
    if len(batch) != 1:
        raise InputError(f"one question is about one image, not about {len(batch)}")
    one: Pixels = batch[0]
    return one


def _array(payload: bytes) -> Pixels:
    """The array in the bytes of an .npy file; no more is allocated than the bytes that are there."""
    file = io.BytesIO(payload)
    try:
        version = np.lib.format.read_magic(file)
        reader = (
            np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
        )
        shape, fortran, dtype = reader(file, max_header_size=MOST_HEADER)
    except Exception as error:  # numpy parses the header as Python, and raises what that raises
        raise InputError(f"not readable as an .npy file: {str(error)[:200]}") from error
    if any(length < 0 for length in shape):
        raise InputError(f"no array has the shape {shape}")
    if dtype != np.uint8:
        raise InputError(f"images are uint8 pixels from 0 to 255, not {dtype}")
    data = payload[file.tell() :]
    if math.prod(shape) != len(data):
        raise InputError(f"an .npy file of shape {shape} holds {math.prod(shape)} bytes, this {len(data)}")
    return np.frombuffer(data, np.uint8).reshape(shape, order="F" if fortran else "C")
