"""Canonical bytes of a part, and bytes that only claim to be one."""

from __future__ import annotations

import json
import struct
import tracemalloc
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedbac_edge.parts.part import Part, PartError, digest, distance, is_finite, pack, unpack

SCHEMA: dict[str, tuple[int, ...]] = {"w": (2, 3), "b": (3,), "a.bias": (1,)}


def some(seed: int = 0) -> Part:
    rng = np.random.default_rng(seed)
    return {name: rng.standard_normal(shape).astype(np.float32) for name, shape in SCHEMA.items()}


def raw(header: Any, body: bytes, length: int | None = None) -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text) if length is None else length) + text + body


def header(**change: Any) -> dict[str, Any]:
    """A true header of SCHEMA (40 bytes of weights) with entries replaced or, for None, removed."""
    entries: dict[str, Any] = {
        "w": {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]},
        "b": {"dtype": "F32", "shape": [3], "data_offsets": [24, 36]},
        "a.bias": {"dtype": "F32", "shape": [1], "data_offsets": [36, 40]},
        **change,
    }
    return {name: entry for name, entry in entries.items() if entry is not None}


@given(seed=st.integers(0, 2**32), order=st.permutations(list(SCHEMA)))
def test_equal_parts_give_equal_bytes(seed: int, order: list[str]) -> None:
    part = some(seed)
    data = pack(part)
    assert pack({name: part[name] for name in order}) == data
    assert pack({name: np.asfortranarray(part[name]) for name in order}) == data
    assert pack({name: part[name].astype(np.float64) for name in order}) == data
    again = unpack(data, SCHEMA)
    assert list(again) == list(SCHEMA), "tensors in the order of the model"
    assert all(np.array_equal(again[name], part[name]) for name in SCHEMA)
    assert digest(pack(again)) == digest(data)


def test_one_bit_more_is_another_hash() -> None:
    part = some()
    before = digest(pack(part))
    part["b"][0] = np.nextafter(part["b"][0], np.float32(9), dtype=np.float32)
    assert digest(pack(part)) != before
    assert len(before) == 64


def test_numbers_that_are_none_survive_and_are_found() -> None:
    for value in (np.nan, np.inf, -np.inf):
        part = some()
        part["w"][1, 2] = value
        assert not is_finite(unpack(pack(part), SCHEMA))
    assert is_finite(some())


LIES: dict[str, tuple[bytes, str]] = {
    "empty": (b"", "40 bytes of weights, these are 0"),
    "short": (raw(header(), b"\x00" * 10)[:39], "these are 39"),
    "long": (raw(header(), b"\x00" * 5_000), "bytes of weights"),
    "a header longer than the file": (raw(header(), b"\x00" * 40, length=10**6), "not readable"),
    "a header of 2^63 bytes": (raw(header(), b"\x00" * 40, length=2**63), "not readable"),
    "no JSON": (raw(b"{" * 60, b"\x00" * 40), "not readable"),
    "another tensor": (raw(header(b=None, c=header()["b"]), b"\x00" * 40), "expected the tensors"),
    "a tensor too few": (
        raw({"w": {"dtype": "F32", "shape": [10], "data_offsets": [0, 40]}}, b"\x00" * 40),
        "expected",
    ),
    "another shape": (
        raw(header(w={**header()["w"], "shape": [3, 2]}), b"\x00" * 40),
        r"w: expected float32 \(2, 3\)",
    ),
    "another type": (raw(header(w={**header()["w"], "dtype": "I32"}), b"\x00" * 40), "found int32"),
    "a huge shape": (raw(header(w={**header()["w"], "shape": [2**40, 2**40]}), b"\x00" * 40), "not readable"),
    "offsets beyond the file": (
        raw(header(b={**header()["b"], "data_offsets": [24, 4000]}), b"\x00" * 40),
        "not readable",
    ),
    "overlapping offsets": (
        raw(header(b={**header()["b"], "data_offsets": [0, 12]}), b"\x00" * 40),
        "not readable",
    ),
    "negative offsets": (
        raw(header(b={**header()["b"], "data_offsets": [-12, 0]}), b"\x00" * 40),
        "not readable",
    ),
    "a pickle": (b"\x80\x04\x95" + b"\x00" * 60, "not readable"),
}


@pytest.mark.parametrize("lie", LIES)
def test_bytes_that_only_claim_to_be_a_part(lie: str) -> None:
    data, why = LIES[lie]
    assert unpack(raw(header(), b"\x00" * 40), SCHEMA), "the true header is read"
    with pytest.raises(PartError, match=why):
        unpack(data, SCHEMA)


@given(st.binary(max_size=400))
def test_random_bytes_are_only_refused(data: bytes) -> None:
    with pytest.raises(PartError):
        unpack(data, SCHEMA)


@given(st.data())
def test_damaged_parts_are_read_or_refused(data: st.DataObject) -> None:
    whole = bytearray(pack(some()))
    for _ in range(data.draw(st.integers(1, 4))):
        whole[data.draw(st.integers(0, len(whole) - 1))] = data.draw(st.integers(0, 255))
    try:
        found = unpack(bytes(whole), SCHEMA)
    except PartError:
        return
    assert {name: tensor.shape for name, tensor in found.items()} == SCHEMA


def test_a_lie_about_size_allocates_nothing() -> None:
    big = {"w": (4_000, 4_000)}
    small = pack({"w": np.zeros((2, 2), np.float32)})
    oversized = b"\x00" * 1_000_000
    tracemalloc.start()
    try:
        with pytest.raises(PartError, match="64000000 bytes of weights, these are"):
            unpack(small, big)
        with pytest.raises(PartError, match="these are 1000000"):
            unpack(oversized, SCHEMA)
        assert tracemalloc.get_traced_memory()[1] < 100_000
    finally:
        tracemalloc.stop()


def test_the_distance_is_euclidean_over_all_tensors_in_double_precision() -> None:
    base = {name: np.zeros(shape, np.float32) for name, shape in SCHEMA.items()}
    part = {name: np.full(shape, 3.0, np.float32) for name, shape in SCHEMA.items()}
    assert distance(part, base) == pytest.approx((10 * 9.0) ** 0.5)
    huge = {name: np.full(shape, 3e38, np.float32) for name, shape in SCHEMA.items()}
    assert np.isfinite(distance(huge, base)), "float32 squares would overflow"
