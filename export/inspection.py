"""Looking into a model file before any runtime sees it: is it self-contained?

onnxruntime follows references to other files (and, in some versions, to memory) while it loads. A device
takes files from a network, so references are looked for first, by walking the protocol buffer with nothing
but the standard library. Only the few messages that can hold a tensor are entered; field numbers are those
of onnx.proto.
"""

from __future__ import annotations

from collections.abc import Iterator

# message -> {field number: message inside it}
_INSIDE: dict[str, dict[int, str]] = {
    "model": {7: "graph", 20: "training", 25: "function"},
    "training": {1: "graph", 2: "graph"},
    "function": {7: "node", 11: "attribute"},
    "graph": {1: "node", 5: "tensor", 15: "sparse"},
    "node": {5: "attribute"},
    "attribute": {5: "tensor", 6: "graph", 10: "tensor", 11: "graph", 22: "sparse", 23: "sparse"},
    "sparse": {1: "tensor", 2: "tensor"},
    "tensor": {},
}
_EXTERNAL_DATA, _DATA_LOCATION = 13, 14  # fields of TensorProto
_DEEPEST = 64


class MalformedModelError(ValueError):
    """The bytes are not a protocol buffer that holds an ONNX model."""


def refers_to_other_files(data: bytes) -> bool:
    """True when any tensor of the model keeps its values outside `data`.

    Raises MalformedModelError when the bytes cannot be an ONNX model.
    """
    view = memoryview(data)
    if not any(number == 7 for number, _, _ in _fields(view, 0, len(view))):
        raise MalformedModelError("it holds no graph")
    return _external(view, 0, len(view), "model", 0)


def _external(view: memoryview, start: int, end: int, message: str, depth: int) -> bool:
    if depth > _DEEPEST:
        raise MalformedModelError("its graphs are nested too deeply")
    inside = _INSIDE[message]
    for number, low, high in _fields(view, start, end):
        if message == "tensor":
            # An empty span is a number: data_location is an enumeration, and 0 (inside the file) is fine.
            if number == _EXTERNAL_DATA or (number == _DATA_LOCATION and _varint(view, low, high)[0] != 0):
                return True
        elif number in inside and _external(view, low, high, inside[number], depth + 1):
            return True
    return False


def _fields(view: memoryview, start: int, end: int) -> Iterator[tuple[int, int, int]]:
    """(field number, first byte, last byte + 1) of each field's value between `start` and `end`."""
    at = start
    while at < end:
        key, at = _varint(view, at, end)
        number, wire = key >> 3, key & 7
        low = at
        if wire == 0:
            _, at = _varint(view, at, end)
        elif wire == 1:
            at += 8
        elif wire == 5:
            at += 4
        elif wire == 2:
            size, low = _varint(view, at, end)
            at = low + size
        else:
            raise MalformedModelError("it is not a protocol buffer")
        if at > end or number == 0:
            raise MalformedModelError("it is cut short or damaged")
        yield number, low, at


def _varint(view: memoryview, at: int, end: int) -> tuple[int, int]:
    value = 0
    for shift in range(0, 70, 7):
        if at >= end:
            break
        byte = view[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
    raise MalformedModelError("it is cut short or damaged")
