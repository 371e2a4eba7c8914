"""The two state machines, without processes: when a release is due, what orders and trials may do."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import pytest

from fedbac_edge.node import assemble
from fedbac_edge.node.runtime import opened_store
from fedbac_edge.node.store import Store
from fedbac_edge.parts.part import digest
from fedbac_edge.protocol.cloud import releasing, state
from fedbac_edge.protocol.cloud.machine import Cloud
from fedbac_edge.protocol.cloud.state import CloudState
from fedbac_edge.protocol.events import (
    Channel,
    JobFailed,
    Log,
    ModelFailed,
    Received,
    ReleaseJob,
    Started,
    TrialJob,
    Tried,
    Work,
)
from fedbac_edge.protocol.messages import Order, Release
from fedbac_edge.protocol.serving import ATTEMPTS, Serving, ServingState
from fedbac_edge.settings.federation import Federation, ReleaseTable
from fedbac_edge.signing import keys
from fedbac_edge.signing.manifest import MANIFEST, ORDER, Manifest, RollbackOrder, canonical
from fedbac_edge.vocabulary.terms import PartRef

if TYPE_CHECKING:
    from tests.releases.conftest import FinishedCloud, Publisher


@pytest.mark.parametrize(
    ("every", "round", "phase", "due"),
    [
        (0, 2, "training", False),
        (2, 1, "training", False),
        (2, 2, "training", True),
        (2, 0, "gathering", False),
        (0, 3, "finished", True),
        (2, 3, "finished", True),
    ],
)
def test_when_a_release_is_due(federation: Federation, every: int, round: int, phase: str, due: bool) -> None:
    federation = msgspec.structs.replace(federation, releases=ReleaseTable(every=every))
    state = CloudState(instance="1" * 8, round=round, phase=phase)  # type: ignore[arg-type]
    assert not releasing.is_due(state, federation), "no update has counted"
    state.last_update = {"gw1": 1}
    assert releasing.is_due(state, federation) is due


def test_what_was_released_is_not_due_again(finished: FinishedCloud) -> None:
    finished.release()
    assert not releasing.is_due(finished.state(), finished.federation)
    finished.learn(2)
    assert releasing.is_due(finished.state(), finished.federation)


def test_a_build_that_failed_is_tried_again_at_the_next_start(finished: FinishedCloud) -> None:
    key = keys.make(finished.directory / "release.key")
    for _ in range(2):
        with opened_store(finished.directory, "cloud") as store:
            node = assemble.cloud(finished.federation, "2" * 8, store, signer=key)
            node.start(0.0)
            assert node.machine.state.building is not None
            node.finished(JobFailed("release-3", "no memory"), 1.0)
            assert node.machine.state.building is None
    assert [line.detail["why"] for line in finished.ledger("release failed")] == ["no memory"] * 2


def test_rounds_quicker_than_builds_get_their_releases(finished: FinishedCloud) -> None:
    """What becomes due during a build is built after it, once, from the newest parts."""
    key = keys.make(finished.directory / "release.key")
    with opened_store(finished.directory, "cloud") as store:
        machine = assemble.cloud(finished.federation, "2" * 8, store, signer=key).machine
        assert isinstance(machine, Cloud)
        state, method = machine.state, machine.method
        (first,) = releasing.order(state, method, 3)
        assert isinstance(first, Work)
        for round in (4, 5):
            state.round = round
            assert releasing.order(state, method, round) == []
        state.parts = dict.fromkeys(state.parts, PartRef("global", "0" * 64, 1))
        state.round, state.phase = 6, "training"  # open: not in the parts yet
        _, second = machine.handle(JobFailed("release-3", "whatever"), 1.0)
        assert isinstance(second, Work)
        assert isinstance(second.job, ReleaseJob)
        assert second.job.round == 5
        assert set(second.job.clusters[0].parts.values()) == {"0" * 64}
        (line,) = machine.handle(JobFailed("release-5", "whatever"), 2.0)
        assert isinstance(line, Log)
        assert state.building is None


def test_what_becomes_due_before_an_evaluation_is_built_after_it(finished: FinishedCloud) -> None:
    """Else the last release would have the parts of the one before, and going back would lead nowhere."""
    key = keys.make(finished.directory / "release.key")
    with opened_store(finished.directory, "cloud") as store:
        machine = assemble.cloud(finished.federation, "2" * 8, store, signer=key).machine
        assert isinstance(machine, Cloud)
        state, method = machine.state, machine.method
        state.round = 1
        releasing.order(state, method, 1)
        state.round = 2
        releasing.order(state, method, 2)
        state.round, state.phase = 3, "evaluating"
        (line,) = machine.handle(JobFailed("release-1", "whatever"), 1.0)
        assert isinstance(line, Log)
        assert state.building is None
        state.phase = "training"
        assert releasing.is_due(state, finished.federation)
        releasing.order(state, method, 3)
        assert not releasing.is_due(state, finished.federation)


BAD_ORDERS = {
    "another key": "not signed with the key",
    "another purpose": "not signed with the key",
    "another federation": "for another federation",
    "another instance": "for another federation",
    "an old order": "it follows release 1, and the newest is 2",
    "files that are gone": "the files of release 7 are not kept; one can go back to: 1",
}


@pytest.mark.parametrize("case", BAD_ORDERS)
def test_an_order_that_is_not_followed(finished: FinishedCloud, tmp_path: Path, case: str) -> None:
    finished.release()
    finished.learn(2)
    finished.release()
    own = keys.load(finished.directory / "release.key")
    key = keys.make(tmp_path / "other.key") if case == "another key" else own
    order = RollbackOrder(
        federation="market" if case == "another federation" else "shop",
        instance="3" * 8 if case == "another instance" else finished.state().instance,
        after=1 if case == "an old order" else 2,
        to=7 if case == "files that are gone" else 1,
    )
    signature = key.sign(MANIFEST if case == "another purpose" else ORDER, canonical(order))
    message = Order(order=canonical(order), signature=signature)
    with opened_store(finished.directory, "cloud") as store:
        machine = assemble.cloud(finished.federation, "2" * 8, store, signer=own).machine
        (line,) = machine.handle(Received(Channel("order"), message), 1.0)
        assert isinstance(line, Log)
        assert BAD_ORDERS[case] in line.detail["why"]
        assert machine.state.release_number == 2


class Device:
    """A serving machine over a store in memory, and a publisher whose files are there at once."""

    def __init__(self, key: keys.SigningKey, publisher: Publisher) -> None:
        self.store, self.key, self.publisher = Store(None), key, publisher
        self.state = ServingState()

    def machine(self) -> Serving:
        """Anew from the state, as after a restart."""
        stored = msgspec.msgpack.decode(msgspec.msgpack.encode(self.state), type=ServingState)
        machine = Serving("shop", "gw1", "dev-1", self.key.public, self.store.blobs, stored)
        self.state = machine.state
        return machine

    def release(self, number: int, seed: int) -> tuple[Manifest, Received]:
        manifest = self.publisher.release(number, seed)
        self.store.keep_blob(manifest.hash, self.publisher.onnx)
        signed = canonical(manifest)
        message = Release(manifest=signed, signature=self.key.sign(MANIFEST, signed), key=self.key.public)
        return manifest, Received(Channel("release", "gw1"), message)


def trials(actions: list[object]) -> list[TrialJob]:
    return [action.job for action in actions if isinstance(action, Work) and isinstance(action.job, TrialJob)]


@pytest.fixture
def device(offline_publisher: Publisher) -> Device:
    return Device(offline_publisher.key, offline_publisher)


def take(device: Device, machine: Serving, number: int, seed: int) -> Manifest:
    manifest, message = device.release(number, seed)
    (job,) = trials([*machine.handle(message, 1.0)])
    machine.handle(Tried(job.id), 2.0)
    assert machine.state.current == manifest
    return manifest


def test_a_model_that_kills_its_device_is_given_up(device: Device) -> None:
    """The process dies in the trial, again and again: after that it starts without trying."""
    machine = device.machine()
    good = take(device, machine, 1, 5)
    _, message = device.release(2, 6)
    assert len(trials([*machine.handle(message, 3.0)])) == 1
    for _ in range(ATTEMPTS - 1):
        machine = device.machine()
        (opening,) = trials([*machine.handle(Started(), 4.0)])
        assert opening.manifest == good
        assert [job.manifest.number for job in trials([*machine.handle(Tried(opening.id), 5.0)])] == [2]
    machine = device.machine()
    (opening,) = trials([*machine.handle(Started(), 4.0)])
    assert trials([*machine.handle(Tried(opening.id), 5.0)]) == []
    assert machine.state.pending is None
    assert "this device died 3 times trying it" in machine.state.refused
    assert machine.state.current == good
    assert machine.handle(message, 6.0) == []  # the broker repeats it


def test_a_model_that_fails_while_it_answers_gives_way(device: Device) -> None:
    machine = device.machine()
    first = take(device, machine, 1, 5)
    second = take(device, machine, 2, 6)
    (job,) = trials([*machine.handle(ModelFailed(second.hash, "it answered NaN"), 9.0)])
    assert job.manifest == first
    assert machine.state.current == first
    assert "release 2: it answered NaN" in machine.state.refused
    assert machine.handle(ModelFailed(second.hash, "again"), 9.0) == []  # it is current no more
    _, message = device.release(2, 6)
    assert trials([*machine.handle(message, 10.0)]) == []


def test_an_opening_that_kills_the_device_gives_way_to_the_model_before(device: Device) -> None:
    machine = device.machine()
    first = take(device, machine, 1, 5)
    second = take(device, machine, 2, 6)
    for _ in range(ATTEMPTS):
        machine = device.machine()
        assert [job.manifest for job in trials([*machine.handle(Started(), 4.0)])] == [second]
    machine = device.machine()
    assert [job.manifest for job in trials([*machine.handle(Started(), 4.0)])] == [first]
    assert machine.state.current == first


def test_equal_releases_have_equal_bytes(offline_publisher: Publisher) -> None:
    """Building twice is signing the same."""
    first = offline_publisher.release(1, 5)
    data = offline_publisher.onnx
    assert offline_publisher.release(1, 5) == first
    assert offline_publisher.onnx == data
    assert digest(data) == first.hash
    assert canonical(first) == canonical(msgspec.msgpack.decode(canonical(first), type=Manifest))


def test_a_signature_is_for_one_purpose(tmp_path: Path) -> None:
    key = keys.make(tmp_path / "a.key")
    signature = key.sign(MANIFEST, b"bytes")
    assert keys.verify(key.public, MANIFEST, b"bytes", signature)
    assert not keys.verify(key.public, ORDER, b"bytes", signature)
    assert not keys.verify(key.public, MANIFEST, b"other", signature)
    assert not keys.verify(bytes(32), MANIFEST, b"bytes", signature)
    with pytest.raises(keys.KeyFileError, match="it is kept"):
        keys.make(tmp_path / "a.key")


def test_as_many_models_are_kept_as_the_federation_says() -> None:
    """The newest first; a model that came back counts once."""
    releases = [
        state.Release(number=n, model=m, round=n, models={}) for n, m in enumerate((1, 2, 3, 4, 2), start=1)
    ]
    cloud = CloudState(instance="1" * 8, releases=releases)
    assert releasing.models_kept(cloud) == [2, 4]
    cloud.models_kept = 3
    assert releasing.models_kept(cloud) == [2, 4, 3]
