"""The wire format against whatever may arrive: wrong, old, hostile, or random bytes."""

from __future__ import annotations

import contextlib
import struct
import tracemalloc
from typing import Annotated, Any

import msgpack
import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from broker import wire
from broker.wire import WireError, decode, encode
from fedbac_edge.protocol import messages


class Ask(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag="ask", tag_field="type"):
    number: Annotated[int, msgspec.Meta(ge=0, le=100)]
    words: tuple[str, ...] = ()
    table: dict[int, float] = {}
    data: bytes = b""


class Tell(
    msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag="tell", tag_field="type"
):
    text: Annotated[str, msgspec.Meta(max_length=5)]


def packed(message: dict[str, Any], version: object = wire.WIRE_VERSION) -> bytes:
    return msgspec.msgpack.encode({"v": version, "m": message})


@settings(suppress_health_check=[HealthCheck.too_slow])
@given(
    number=st.integers(0, 100),
    words=st.lists(st.text()).map(tuple),
    table=st.dictionaries(st.integers(-(2**63), 2**64 - 1), st.floats(allow_nan=False)),
    data=st.binary(),
)
def test_round_trip(number: int, words: tuple[str, ...], table: dict[int, float], data: bytes) -> None:
    message = Ask(number=number, words=words, table=table, data=data)
    assert decode(encode(message), Tell, Ask) == message


def test_equal_messages_give_equal_bytes() -> None:
    """Whatever the order in which a map was filled: what is sent again is the same."""
    table = {3: 1.0, 1: 2.0, 2: 3.0}
    assert encode(Ask(number=1, table=table)) == encode(Ask(number=1, table=dict(sorted(table.items()))))


@pytest.mark.parametrize(
    ("message", "why"),
    [
        ({"type": "ask"}, "missing required field `number`"),
        ({"type": "ask", "number": 1, "more": 2}, "unknown field `more`"),
        ({"type": "ask", "number": "1"}, "Expected `int`"),
        ({"type": "ask", "number": 1.5}, "Expected `int`"),
        ({"type": "ask", "number": True}, "Expected `int`"),
        ({"type": "ask", "number": 101}, "<= 100"),
        ({"type": "ask", "number": -1}, ">= 0"),
        ({"type": "ask", "number": 1, "words": "abc"}, "Expected `array`"),
        ({"type": "ask", "number": 1, "words": [b"abc"]}, "Expected `str`"),
        ({"type": "ask", "number": 1, "table": {"a": 1.0}}, "Expected `int`"),
        ({"type": "ask", "number": 1, "data": 7}, "Expected `bytes`"),
        ({"type": "tell", "text": "longer"}, "expected ask, not 'tell'"),
        ({"type": "other" * 100}, "expected ask, not 'other"),
        ({"type": 7, "number": 1}, "Expected `str`"),
        ({"number": 1}, "expected ask, not ''"),
    ],
)
def test_a_message_that_is_not_what_was_expected(message: dict[str, Any], why: str) -> None:
    with pytest.raises(WireError) as refusal:
        decode(packed(message), Ask)
    assert why in str(refusal.value)
    assert len(str(refusal.value)) < 300


@pytest.mark.parametrize("version", [0, 3, 2**63, -1])
def test_another_version_is_refused_with_both_named(version: int) -> None:
    with pytest.raises(WireError) as refusal:
        decode(packed({"type": "ask", "number": 1}, version), Ask)
    assert f"wire version {version} " in str(refusal.value)
    assert "speaks 1, 2;" in str(refusal.value)


def test_a_newer_version_may_look_otherwise() -> None:
    payload = msgspec.msgpack.encode({"signature": b"x", "v": 9, "body": [1, 2]})
    with pytest.raises(WireError, match="wire version 9 is not understood"):
        decode(payload, Ask)


@pytest.mark.parametrize("version", [True, "1", 1.0, None, [1]])
def test_a_version_is_a_whole_number(version: object) -> None:
    with pytest.raises(WireError, match="Expected `int`"):
        decode(packed({"type": "ask", "number": 1}, version), Ask)


def test_the_version_before_is_read_and_an_older_one_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    def from_zero(fields: dict[str, Any]) -> dict[str, Any]:
        """Version 0 called it `count`, and its type "question"."""
        return {"type": "ask", "number": fields["count"]}

    monkeypatch.setattr(wire, "UPGRADES", {0: from_zero})
    assert decode(packed({"type": "question", "count": 4}, 0), Ask) == Ask(number=4)
    with pytest.raises(WireError, match="version 0 of ask cannot be read"):
        decode(packed({"type": "question"}, 0), Ask)
    with pytest.raises(WireError, match="<= 100"):
        decode(packed({"type": "question", "count": 400}, 0), Ask)
    with pytest.raises(WireError, match=r"wire version -1 .* speaks 0, 2;"):
        decode(packed({"type": "question"}, -1), Ask)


def test_what_follows_a_message_is_refused() -> None:
    with pytest.raises(WireError, match="trailing"):
        decode(encode(Tell(text="a")) + b"\x00", Tell)


@settings(max_examples=300)
@given(st.binary(max_size=200))
def test_random_bytes_are_only_refused(payload: bytes) -> None:
    with pytest.raises(WireError):
        decode(payload, Ask, Tell)


@settings(max_examples=300)
@given(st.data())
def test_damaged_messages_are_read_or_refused(data: st.DataObject) -> None:
    whole = bytearray(encode(Ask(number=5, words=("a", "b"), table={1: 2.0}, data=b"xyz")))
    for _ in range(data.draw(st.integers(1, 4))):
        whole[data.draw(st.integers(0, len(whole) - 1))] = data.draw(st.integers(0, 255))
    cut = data.draw(st.integers(0, len(whole)))
    for payload in (bytes(whole), bytes(whole[:cut])):
        with contextlib.suppress(WireError):
            assert isinstance(decode(payload, Ask), Ask)


def nested(header: bytes, depth: int) -> bytes:
    return header * depth


ARRAY, MAP = b"\xdd" + struct.pack(">I", 100_000), b"\xdf" + struct.pack(">I", 100_000) + b"\xa1a"
HUGE = [b"\xdd\xff\xff\xff\xff", b"\xdf\xff\xff\xff\xff", b"\xdb\xff\xff\xff\xff", b"\xc6\xff\xff\xff\xff"]


@pytest.mark.parametrize(
    "body",
    [
        *HUGE,
        *(b"\x82\xa4type\xa3ask\xa5words" + huge for huge in HUGE),
        b"\x82\xa4type\xa3ask\xa5table" + HUGE[1],
        b"\x82\xa4type\xa3ask\xa4more" + nested(ARRAY, 500),
        b"\x82\xa4type\xa3ask\xa4more" + nested(ARRAY, 20_000),
        b"\x82\xa4type\xa3ask\xa4more" + nested(MAP, 500),
        b"\x82\xa4type\xa3ask\xa4more" + nested(b"\x91", 100_000),
        nested(ARRAY, 20_000),
    ],
    ids=lambda body: body[:14].hex(),
)
def test_headers_cannot_ask_for_memory(body: bytes) -> None:
    payload = b"\x82\xa1v\x01\xa1m" + body + b"\x00" * 10_000
    tracemalloc.start()
    try:
        with pytest.raises(WireError):
            decode(payload, Ask)
        assert tracemalloc.get_traced_memory()[1] < 100_000
    finally:
        tracemalloc.stop()


def test_other_software_reads_our_messages_as_plain_messagepack() -> None:
    """The format is MessagePack, not a dialect: the msgpack package finds version, type and fields."""
    receipt = messages.Receipt(kind="train", round=3, accepted=True)
    assert msgpack.unpackb(wire.encode(receipt)) == {
        "v": 1,
        "m": {"type": "receipt", "kind": "train", "round": 3, "accepted": True, "reason": ""},
    }
