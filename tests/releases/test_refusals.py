"""A device that serves release 10, and all that it must not take: it says why, and the old model goes on."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from export.session import Session
from fedbac_edge.node.store import Store
from fedbac_edge.protocol.serving import SIZE_LIMIT
from fedbac_edge.signing import keys
from fedbac_edge.signing.manifest import MANIFEST, Manifest, Vector

if TYPE_CHECKING:
    from tests.releases.conftest import Client, Pixels, Publisher


@dataclass
class Standing:
    """The device and who speaks to it; `number` gives the next release's."""

    client: Client
    publisher: Publisher
    other: Publisher
    session: Session
    store: Path
    numbers: Iterator[int] = field(default_factory=lambda: itertools.count(20))

    def next(self, **fields: Any) -> Manifest:
        return self.publisher.release(next(self.numbers), 7, **fields)


@pytest.fixture(scope="module")
def standing(tmp_path_factory: pytest.TempPathFactory, make_place: Callable[..., Any]) -> Iterator[Standing]:
    directory = tmp_path_factory.mktemp("refusals")
    with contextlib.ExitStack() as stack:
        place = stack.enter_context(make_place(directory))
        agent = place.serve("dev-1", "--federation", "shop", "--release-key", directory / "publisher.pub")
        session = place.publisher.publish(10, 5)
        agent.wait_for("answering with release 10")
        other = type(place.publisher)(place.client, keys.make(directory / "other.key"))
        store = directory / "devices" / "dev-1" / "serving" / "gw1.sqlite"
        yield Standing(place.client, place.publisher, other, session, store)


def bad_signature(at: Standing) -> None:
    at.publisher.send(at.next(), signature=bytes(64))


def changed_manifest(at: Standing) -> None:
    """A signature of something else."""
    manifest = at.next()
    at.publisher.send(manifest, signature=at.publisher.key.sign(MANIFEST, b"something else"))


def another_purpose(at: Standing) -> None:
    """What was signed as an order is no release."""
    from fedbac_edge.signing.manifest import ORDER, canonical

    manifest = at.next()
    at.publisher.send(manifest, signature=at.publisher.key.sign(ORDER, canonical(manifest)))


def another_key(at: Standing) -> None:
    at.other.send(at.other.release(next(at.numbers), 7))


def another_key_that_claims_to_be_the_first(at: Standing) -> None:
    at.other.send(at.other.release(next(at.numbers), 7), key=at.publisher.key.public)


def older_number(at: Standing) -> None:
    at.publisher.send(at.publisher.release(9, 7))


def same_number_other_model(at: Standing) -> None:
    at.publisher.send(at.publisher.release(10, 7))


def earlier_federation(at: Standing) -> None:
    at.publisher.send(at.next(founded=at.publisher.founded - 1))


def foreign_site(at: Standing) -> None:
    at.publisher.send(at.next(site="gw2"))


def foreign_federation(at: Standing) -> None:
    at.publisher.send(at.next(federation="market"))


def foreign_cluster(at: Standing) -> None:
    """The file of cluster 0 under a manifest for cluster 1."""
    at.publisher.send(at.next(cluster=1))


def other_parts(at: Standing) -> None:
    at.publisher.send(at.next(parts={"global": "0" * 64}))


def wrong_hash(at: Standing) -> None:
    """Other bytes of the same length under the hash of the manifest."""
    manifest = at.next()
    at.publisher.send(manifest, onnx=b"\0" + at.publisher.onnx[1:])


def truncated_file(at: Standing) -> None:
    manifest = at.next()
    at.publisher.send(manifest, onnx=at.publisher.onnx[:-1000])


def failing_self_test(at: Standing) -> None:
    manifest = at.next()
    first, *rest = manifest.vectors
    off = (first.logits[0] + 2e-3, *first.logits[1:])
    wrong = (Vector(index=first.index, logits=off), *rest)
    at.publisher.send(msgspec.structs.replace(manifest, vectors=wrong))


def no_model(at: Standing) -> None:
    """Signed with the right key, and yet not a model."""
    from fedbac_edge.parts.part import digest

    junk = b"not a model" * 100
    manifest = at.next()
    at.publisher.send(msgspec.structs.replace(manifest, hash=digest(junk), size=len(junk)), onnx=junk)


def too_large(at: Standing) -> None:
    at.publisher.send(at.next(size=SIZE_LIMIT + 1))


CASES: list[tuple[Callable[[Standing], None], str]] = [
    (bad_signature, "bad signature"),
    (changed_manifest, "bad signature"),
    (another_purpose, "bad signature"),
    (another_key, "bad signature: signed with the key"),
    (another_key_that_claims_to_be_the_first, "bad signature"),
    (older_number, "release 9 is not newer than"),
    (same_number_other_model, "release 10 is not newer than"),
    (earlier_federation, "an earlier federation of this name"),
    (foreign_site, "a release for the site gw2, not gw1"),
    (foreign_federation, "a release of the federation market, not shop"),
    (foreign_cluster, "foreign cluster: the file is of cluster 0, not 1"),
    (other_parts, "made of other parts"),
    (wrong_hash, "do not have the hash"),
    (truncated_file, "not a chunk of"),
    (failing_self_test, "a logit differs by 0.002, over 0.001"),
    (no_model, "not an ONNX model"),
    (too_large, "over the limit"),
]


@pytest.mark.parametrize(("send", "reason"), CASES, ids=[case[0].__name__ for case in CASES])
def test_refused_and_the_old_model_goes_on(
    standing: Standing, image: Pixels, send: Callable[[Standing], None], reason: str
) -> None:
    before = len(_refusals(standing))
    send(standing)
    (why,) = standing.client.wait_until(lambda: _refusals(standing)[before:], f"never refused: {reason}")
    assert reason in why
    standing.client.wait_for_status(number=10, refused=why)
    answer = standing.client.answered("dev-1", image.tobytes())
    assert answer["model"] == 10
    assert answer["logits"] == pytest.approx(standing.session.logits(image)[0].tolist(), abs=1e-5)


def test_after_all_of_that_a_good_one_is_taken(standing: Standing, image: Pixels) -> None:
    """Runs last: whatever came before has left the device able to learn."""
    session = standing.publisher.publish(next(standing.numbers) + 100, 8)
    standing.client.wait_for_status(number=lambda number: number > 100, refused="", doing="")
    answer = standing.client.answered("dev-1", image.tobytes())
    assert answer["logits"] == pytest.approx(session.logits(image)[0].tolist(), abs=1e-5)


def _refusals(standing: Standing) -> list[str]:
    store = Store(standing.store, read_only=True)
    try:
        return [line.detail["why"] for line in store.ledger(kind="refused")]
    finally:
        store.close()
