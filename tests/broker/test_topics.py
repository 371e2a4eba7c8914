"""The topic tree: what is built is read back, and nothing else is."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker import topics
from broker.topics import Address, BadName, check_name, parse

NAMES = st.from_regex(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}", fullmatch=True)
LEAVES = st.sampled_from(topics.LEAVES)
DIGEST = "0123456789abcdef" * 4


@given(NAMES, NAMES, NAMES, LEAVES, st.integers(0, 999_999))
def test_built_topics_are_read_back(
    federation: str, gateway: str, device: str, leaf: str, index: int
) -> None:
    built = {
        topics.spec(federation): Address("spec", federation),
        topics.cloud_status(federation): Address("status", federation),
        topics.model(federation, device): Address("model", federation, part=device),
        topics.blob(federation, DIGEST, index): Address("blob", federation, digest=DIGEST, index=index),
        topics.edge(federation, gateway, leaf): Address(leaf, federation, gateway),  # type: ignore[arg-type]
        topics.device(federation, gateway, device, leaf): Address(leaf, federation, gateway, device),  # type: ignore[arg-type]
    }
    assert len(built) == 6
    for topic, address in built.items():
        assert parse(topic) == address
        assert topic.count("/") <= 7


@given(st.text(max_size=40))
def test_no_topic_of_ours_is_none(text: str) -> None:
    assert parse(text) is None
    assert parse(topics.ROOT + "/" + text) is None or text.count("/") >= 1


@pytest.mark.parametrize(
    "topic",
    [
        "fedbac/v2/demo/spec",
        "fedbac/v1//spec",
        "fedbac/v1/demo/spec/",
        "fedbac/v1/demo/cloud/task",
        "fedbac/v1/demo/edge/gw/secret",
        "fedbac/v1/demo/edge/gw/device/cam/status/more",
        "fedbac/v1/demo/edge/gw/device/c m/status",
        "fedbac/v1/demo/edge/+/status",
        "fedbac/v1/demo/blob/abc/0",
        f"fedbac/v1/demo/blob/{DIGEST}/01",
        f"fedbac/v1/demo/blob/{DIGEST}/-1",
        f"fedbac/v1/demo/blob/{DIGEST}/٣",
    ],
)
def test_what_is_no_topic(topic: str) -> None:
    assert parse(topic) is None


@pytest.mark.parametrize(
    "name", ["", "a/b", "+", "a#", "$SYS", "-a", ".hidden", "a b", "a\n", "a\0", "ä", "x" * 65, "a\u200b"]
)
def test_bad_names_say_what_is_allowed(name: str) -> None:
    with pytest.raises(BadName, match=r"gateway.*A-Z a-z") as caught:
        check_name(name, "gateway")
    assert len(str(caught.value)) < 300


@given(NAMES)
def test_good_names_pass(name: str) -> None:
    assert check_name(name, "device") == name


def test_builders_refuse_what_would_escape_the_tree() -> None:
    attempts: list[Callable[[], str]] = [
        lambda: topics.device("demo", "gw", "../x", "status"),
        lambda: topics.edge("demo", "+", "status"),
        lambda: topics.edge("demo", "gw", "secret"),  # type: ignore[arg-type]
        lambda: topics.blob("demo", "abc", 0),
        lambda: topics.blob("demo", DIGEST, -1),
        lambda: topics.spec("a/b"),
    ]
    for build in attempts:
        with pytest.raises(BadName):
            build()


def test_filters_cover_their_topics() -> None:
    assert topics.edge_filter("demo", "update") == "fedbac/v1/demo/edge/+/update"
    assert topics.device_filter("demo", "gw", "reply") == "fedbac/v1/demo/edge/gw/device/+/reply"
    assert topics.blob_filter("demo", DIGEST) == f"fedbac/v1/demo/blob/{DIGEST}/+"
