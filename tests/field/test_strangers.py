"""Whatever a stranger sends: each decoder reads it or refuses it in its own words, and each tier goes on."""

from __future__ import annotations

import contextlib
import tracemalloc
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from broker import wire
from fedbac_edge.lab.trials import strangers

DECODERS = strangers.decoders()
NODES = ("cloud", "gateway", "device")
RANDOM = settings(
    max_examples=150,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)
VALUES: st.SearchStrategy[Any] = st.recursive(
    st.one_of(
        st.none(),
        st.booleans(),
        st.integers(-(2**63), 2**64 - 1),
        st.floats(),
        st.text(max_size=70),
        st.binary(max_size=70),
        st.just(strangers.HASH),
    ),
    lambda inner: st.one_of(
        st.lists(inner, max_size=4),
        st.dictionaries(st.text(max_size=8) | st.integers(0, 3), inner, max_size=4),
    ),
    max_leaves=6,
)


def take(name: str, data: bytes) -> None:
    decoder = DECODERS[name]
    with contextlib.suppress(*decoder.refusals):
        decoder.read(data)


def test_there_is_an_example_of_every_message() -> None:
    """Of those that a stranger can send; a release and an order carry what a decoder of its own reads."""
    kinds = {type(message) for message in strangers.examples()}
    missing = {kind.__name__ for kind in strangers.MESSAGES} - {kind.__name__ for kind in kinds}
    assert missing <= {"Release", "Order", "ServingStatus"}
    assert len(kinds) >= 15


@pytest.mark.parametrize("name", sorted(DECODERS))
def test_examples_are_read(name: str) -> None:
    decoder = DECODERS[name]
    assert decoder.examples
    for example in decoder.examples if name != "chunk" else decoder.examples[:1]:
        decoder.read(example)


@pytest.mark.parametrize("name", sorted(DECODERS))
@RANDOM
@given(data=st.binary(max_size=400))
def test_random_bytes(name: str, data: bytes) -> None:
    take(name, data)


@pytest.mark.parametrize("name", sorted(DECODERS))
@RANDOM
@given(data=st.data())
def test_damaged_examples(name: str, data: st.DataObject) -> None:
    """Some bytes changed, a piece left out, doubled, or cut off."""
    whole = bytearray(data.draw(st.sampled_from(DECODERS[name].examples)))
    for _ in range(data.draw(st.integers(0, 4))):
        whole[data.draw(st.integers(0, len(whole) - 1))] = data.draw(st.integers(0, 255))
    first, last = sorted(data.draw(st.tuples(*[st.integers(0, len(whole))] * 2)))
    damaged = data.draw(
        st.sampled_from((whole, whole[:last], whole[:first] + whole[last:], whole[:last] + whole[first:]))
    )
    take(name, bytes(damaged))


@pytest.mark.parametrize("name", NODES)
@RANDOM
@given(data=st.data())
def test_messages_with_other_values(name: str, data: st.DataObject) -> None:
    """Well-formed messages whose fields hold anything: extreme numbers, other types, other names."""
    message = data.draw(st.sampled_from(strangers.examples()))
    plain = msgspec.msgpack.decode(wire.encode(message))
    fields = plain["m"]
    for _ in range(data.draw(st.integers(1, 3))):
        field = data.draw(st.sampled_from(sorted(fields)))
        if field != "type":
            fields[field] = data.draw(VALUES)
    topic = bytes([data.draw(st.integers(0, 7))])
    take(name, topic + msgspec.msgpack.encode(plain))


@pytest.mark.parametrize("name", sorted(set(DECODERS) - set(NODES)))
def test_refusing_costs_no_memory(name: str) -> None:
    """A header that promises gigabytes is refused before anything is made of it."""
    decoder = DECODERS[name]
    promises = [
        b"\xff" * 8 + b"{}",
        b"\xdd\xff\xff\xff\xff",
        b"\xc6\xff\xff\xff\xff",
        b"\xdf\xff\xff\xff\xff",
    ]
    promises += [example[:20] + promise for example in decoder.examples[:3] for promise in promises]
    promises += [b"\x91" * 100_000, b"\x81\xa1v" * 50_000]
    tracemalloc.start()
    try:
        for promise in promises:
            with contextlib.suppress(*decoder.refusals):
                decoder.read(promise)
        assert tracemalloc.get_traced_memory()[1] < 2_000_000
    finally:
        tracemalloc.stop()
