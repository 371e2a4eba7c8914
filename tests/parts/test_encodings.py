"""What travels for an update: sizes, exactness, error feedback, and what a stranger may send."""

from __future__ import annotations

import hashlib
import json
import struct
import tracemalloc
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from safetensors.numpy import load, save

from fedbac_edge.models.catalog import LeNet
from fedbac_edge.parts.encodings import LEVELS, NAMES, SCALES, Encoding, EncodingError, decode, encode
from fedbac_edge.parts.part import Part, PartError, Schema, pack

SCHEMA: Schema = {"b": (3,), "a": (2, 2), "scalar": ()}
LENET = LeNet()
ENCODED: tuple[Encoding, ...] = ("float16", "int8")


def part(schema: Schema, seed: int, scale: float = 1.0) -> Part:
    rng = np.random.default_rng(seed)
    return {n: np.asarray(scale * rng.standard_normal(s), np.float32) for n, s in schema.items()}


def plus(base: Part, step: Part) -> Part:
    return {name: np.asarray(base[name] + step[name]) for name in base}


BASE = part(SCHEMA, 1)
TRAINED = plus(BASE, part(SCHEMA, 2, 0.01))


def test_float32_is_the_canonical_form() -> None:
    data, residual = encode("float32", TRAINED, BASE, None)
    assert data == pack(TRAINED)
    assert residual is None
    assert pack(decode("float32", data, BASE, SCHEMA)) == data


def test_bytes_of_a_lenet_update() -> None:
    base = LENET.init(np.random.default_rng(0))
    trained = plus(base, part(LENET.schema(), 3, 0.01))
    sizes = {name: len(encode(name, trained, base, None)[0]) for name in NAMES}
    weights = 44_426
    assert 4 * weights < sizes["float32"] < 4 * weights + 1200
    assert 2 * weights < sizes["float16"] < 2 * weights + 1200
    assert weights < sizes["int8"] < weights + 1400


def test_int8_by_hand() -> None:
    """The largest entry takes level 127; what is left is what the levels could not say."""
    schema: Schema = {"w": (4,)}
    base = {"w": np.zeros(4, np.float32)}
    step = {"w": np.array([1.27, -0.6349, 0.004, -1.27], np.float32)}
    data, residual = encode("int8", step, base, None)
    stored = load(data)
    assert stored["w"].tolist() == [127, -63, 0, -127]
    np.testing.assert_allclose(stored[SCALES], [0.01], rtol=1e-6)
    assert residual is not None
    np.testing.assert_allclose(residual["w"], [0, -0.0049, 0.004, 0], atol=1e-6)
    np.testing.assert_allclose(decode("int8", data, base, schema)["w"], [1.27, -0.63, 0, -1.27], rtol=1e-6)


@pytest.mark.parametrize("encoding", NAMES)
def test_equal_inputs_give_equal_bytes(encoding: Encoding) -> None:
    shuffled = {name: TRAINED[name].copy() for name in reversed(TRAINED)}
    assert encode(encoding, shuffled, BASE, None)[0] == encode(encoding, TRAINED, BASE, None)[0]


def test_the_bytes_of_every_encoding_are_pinned() -> None:
    """Another byte here is another result of every federation that uses the encoding."""
    schema: Schema = {"w": (3, 2), "b": (2,)}
    base = {n: np.linspace(-1, 1, int(np.prod(s)), dtype=np.float32).reshape(s) for n, s in schema.items()}
    trained = {n: np.asarray(t * np.float32(1.01) + np.float32(0.001), np.float32) for n, t in base.items()}
    found = {n: hashlib.sha256(encode(n, trained, base, None)[0]).hexdigest()[:16] for n in NAMES}
    assert found == PINNED


PINNED = {"float32": "0d9bb5586fc90ddb", "float16": "674f8f986138ecd3", "int8": "e979465423ba0090"}


def test_no_step_at_all() -> None:
    for encoding in ENCODED:
        data, residual = encode(encoding, BASE, BASE, None)
        assert pack(decode(encoding, data, BASE, SCHEMA)) == pack(BASE)
        assert residual is None or not any(t.any() for t in residual.values())


STEPS = arrays(np.float32, (2, 3), elements=st.floats(-1e3, 1e3, width=32, allow_subnormal=True))


@given(STEPS, STEPS)
def test_int8_is_within_half_a_level_and_nothing_is_lost(step: Any, owed: Any) -> None:
    schema: Schema = {"w": (2, 3)}
    base = {"w": np.zeros((2, 3), np.float32)}
    data, left = encode("int8", {"w": step}, base, {"w": owed})
    assert left is not None
    sent = decode("int8", data, base, schema)["w"].astype(np.float64)
    carried = (step + owed).astype(np.float64)
    largest = np.abs(carried).max()
    assert np.abs(sent - carried).max() <= 0.501 * largest / LEVELS + 1e-37
    np.testing.assert_allclose(sent + left["w"], carried, rtol=0, atol=1e-6 * largest + 1e-37)


def test_error_feedback_catches_up_what_one_step_cannot_express() -> None:
    """A constant step far below a level: without feedback it would never arrive."""
    schema: Schema = {"w": (2,)}
    base = {"w": np.zeros(2, np.float32)}
    step = {"w": np.array([1.0, 0.001], np.float32)}
    owed: Part | None = None
    arrived, forgetful = np.zeros(2), np.zeros(2)
    for _ in range(100):
        data, owed = encode("int8", step, base, owed)
        arrived += decode("int8", data, base, schema)["w"]
        forgetful += decode("int8", encode("int8", step, base, None)[0], base, schema)["w"]
    np.testing.assert_allclose(arrived, [100, 0.1], atol=0.005)
    assert forgetful[1] == 0


@pytest.mark.parametrize("encoding", ENCODED)
@pytest.mark.parametrize("value", [np.inf, np.nan, 3e38])
def test_a_step_without_a_finite_form_is_refused_by_its_sender(encoding: Encoding, value: float) -> None:
    base = {"w": np.array([-3e38, 0], np.float32)}
    with pytest.raises(EncodingError, match="w: the step"):
        encode(encoding, {"w": np.array([value, 0], np.float32)}, base, None)


@pytest.mark.parametrize("scale", [0.0, -1.0, np.nan, np.inf])
def test_scales_are_finite_and_positive(scale: float) -> None:
    stored = load(encode("int8", TRAINED, BASE, None)[0])
    stored[SCALES] = np.array([1.0, scale, 1.0], np.float32)
    with pytest.raises(PartError, match="scale"):
        decode("int8", save(stored), BASE, SCHEMA)


def test_a_result_that_is_not_finite_is_refused() -> None:
    stored = load(encode("int8", TRAINED, BASE, None)[0])
    stored[SCALES] = np.full(3, 3e38, np.float32)
    with pytest.raises(PartError, match="not finite"):
        decode("int8", save(stored), BASE, SCHEMA)
    halves = {name: np.full(shape, np.inf, np.float16) for name, shape in SCHEMA.items()}
    with pytest.raises(PartError, match="not finite"):
        decode("float16", save(halves), BASE, SCHEMA)


@pytest.mark.parametrize("encoding", NAMES)
def test_other_tensors_shapes_and_types_are_refused(encoding: Encoding) -> None:
    good = load(encode(encoding, TRAINED, BASE, None)[0])
    spoiled: list[dict[str, Any]] = [
        {**good, "a": good["a"].reshape(4)},
        {**good, "a": good["a"].astype(np.float64)},
        {**good, "a": np.zeros((2, 2), np.uint8 if encoding == "int8" else np.int32)},
        {**good, "more": good["a"]},
        {name: good[name] for name in good if name != "b"},
    ]
    for tensors in spoiled:
        with pytest.raises(PartError):
            decode(encoding, save(tensors), BASE, SCHEMA)
    for other in set(NAMES) - {encoding}:
        with pytest.raises(PartError):
            decode(encoding, encode(other, TRAINED, BASE, None)[0], BASE, SCHEMA)


def test_a_lying_header_costs_no_memory() -> None:
    header = json.dumps({"a": {"dtype": "I8", "shape": [2**40], "data_offsets": [0, 2**40]}}).encode()
    lie = struct.pack("<Q", len(header)) + header
    tracemalloc.start()
    try:
        for data in (lie, lie + b"\0" * 300, struct.pack("<Q", 2**60) + b"{}" * 20):
            for encoding in NAMES:
                with pytest.raises(PartError):
                    decode(encoding, data, BASE, SCHEMA)
        assert tracemalloc.get_traced_memory()[1] < 1_000_000
    finally:
        tracemalloc.stop()


@settings(max_examples=300)
@given(st.sampled_from(NAMES), st.data())
def test_bytes_of_strangers_are_refused_or_finite(encoding: Encoding, data: st.DataObject) -> None:
    """Random bytes, and true ones with some overwritten, cut off or added."""
    true = encode(encoding, TRAINED, BASE, None)[0]
    message = bytearray(data.draw(st.binary(max_size=300)) if data.draw(st.booleans()) else true)
    for place, value in data.draw(
        st.lists(st.tuples(st.integers(0, 10**6), st.integers(0, 255)), max_size=6)
    ):
        if message:
            message[place % len(message)] = value
    message = message[: data.draw(st.integers(0, len(message)))] if data.draw(st.booleans()) else message
    try:
        result = decode(encoding, bytes(message), BASE, SCHEMA)
    except PartError:
        return
    assert {name: tensor.shape for name, tensor in result.items()} == SCHEMA
    assert all(np.isfinite(tensor).all() and tensor.dtype == np.float32 for tensor in result.values())
