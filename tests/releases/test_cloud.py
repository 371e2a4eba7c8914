"""The cloud after its last round: it builds, numbers, signs and publishes, and survives being killed."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from click.testing import CliRunner, Result

from broker import topics, wire
from fedbac_edge.cli import cli
from fedbac_edge.node.store import Store
from fedbac_edge.protocol.messages import Release
from fedbac_edge.signing import keys
from fedbac_edge.signing.manifest import MANIFEST

if TYPE_CHECKING:
    from tests.releases.conftest import Broker, Client, Command, FinishedCloud, Pixels, Start


def run(start: Start, finished: FinishedCloud, broker: Broker) -> Command:
    """`fedbac cloud run`."""
    where = ("--federation", finished.file, "--state", finished.directory, "--broker", broker.url)
    return start("fedbac_edge.cli", "cloud", "run", *where)


def release(finished: FinishedCloud, *arguments: str) -> Result:
    """`fedbac release ...`, in this process."""
    where = ("--federation", str(finished.file), "--state", str(finished.directory))
    return CliRunner().invoke(cli, ["release", *arguments, *where])


def blobs(client: Client) -> set[str]:
    """Hashes of which chunks are retained."""
    places = {topics.parse(topic) for topic, data in client.retained.items() if data}
    return {place.digest for place in places if place is not None and place.digest is not None}


def test_one_signed_release_per_site(
    start: Start, finished: FinishedCloud, broker: Broker, client: Client, image: Pixels
) -> None:
    assert run(start, finished, broker).ended() == 0
    public = keys.load(finished.directory / "release.key").public
    state = finished.state()
    for edge, cluster in (("gw1", 0), ("gw2", 1)):
        message, manifest = client.wait_for_release(1, edge)
        assert keys.verify(public, MANIFEST, message.manifest, message.signature)
        assert (manifest.site, manifest.cluster, manifest.round, manifest.model) == (edge, cluster, 3, 1)
        assert manifest.parts == {
            role: state.parts[name].hash
            for role, name in (("global", "global"), ("cluster", f"cluster-{cluster}"))
        }
        assert manifest.hash in blobs(client)
    listed = release(finished, "list", "--json")
    assert listed.exit_code == 0
    (line,) = listed.output.splitlines()
    assert json.loads(line)["clusters"]["1"]["sites"] == ["gw2"]


def test_killed_between_building_and_publishing(
    start: Start, finished: FinishedCloud, broker: Broker
) -> None:
    """There is no broker yet: what was built waits in the store, and goes out as it is."""
    cloud = run(start, finished, broker)
    cloud.wait_for("release 1 (round 3)")
    cloud.kill()
    store = Store(finished.directory / "cloud.sqlite", read_only=True)
    stored = {topic: payload for topic, payload, _, _ in store.owned() if topic.endswith("/release")}
    store.close()
    assert len(stored) == 2

    broker.start()
    client = broker.client()
    assert run(start, finished, broker).ended() == 0
    client.wait_for_release(1, "gw2")
    assert {topic: client.retained[topic] for topic in stored} == stored
    assert finished.state().release_number == 1


def test_killed_while_it_builds(
    start: Start, finished: FinishedCloud, broker: Broker, client: Client
) -> None:
    cloud = run(start, finished, broker)
    client.wait_until(lambda: finished.state().building, "it never began to build")
    cloud.kill()
    assert run(start, finished, broker).ended() == 0
    _, manifest = client.wait_for_release(1)
    assert manifest.number == 1


def test_two_models_are_kept_and_one_can_go_back(
    start: Start, finished: FinishedCloud, broker: Broker, client: Client, serve: Start, image: Pixels
) -> None:
    """Three rounds, three releases; back, back again, and a device that follows all the way."""
    finished.release()
    assert run(start, finished, broker).ended() == 0  # publishes it
    for number in (2, 3):
        finished.learn(number)
        finished.release()
    assert run(start, finished, broker).ended() == 0
    client.wait_for_release(3)
    files = {each.number: each.models[0].hash for each in finished.state().releases}
    client.wait_until(lambda: not {files[1]} & blobs(client), "the oldest file is still there")
    assert {files[2], files[3]} <= blobs(client)

    agent = serve("dev-1", "--federation", "shop")
    agent.wait_for("answering with release 3")
    gone = release(finished, "rollback", "--to", "1", "--broker", broker.url)
    assert gone.exit_code == 2
    assert "the files of release 1 are not kept; one can go back to: 2" in gone.output
    back = release(finished, "rollback", "--broker", broker.url)
    assert back.exit_code == 0, back.output
    assert "release 4 is out: the model of release 2" in back.output
    status = client.wait_for_status(number=4, model=2, hash=files[2])
    assert client.answered("dev-1", image.tobytes())["model"] == 4

    shown = CliRunner().invoke(cli, ["status", "--broker", broker.url])
    assert shown.exit_code == 0
    assert "release 4 (the model of release 2 again), cluster 0" in shown.output
    assert "dev-1: serving release 4" in shown.output
    stored = CliRunner().invoke(cli, ["status", "--state", str(finished.directory)])
    assert "newest release: 4 (round 4, the model of release 2)" in stored.output
    assert status.refused == ""


def test_a_running_cloud_follows_a_signed_order(
    start: Start, finished: FinishedCloud, broker: Broker, client: Client
) -> None:
    finished.release()
    finished.learn(2)
    finished.release()
    finished.gather()  # it has rounds before it again, and stays
    cloud = run(start, finished, broker)
    cloud.wait_for("waiting for gw1")
    back = release(finished, "rollback", "--to", "1", "--broker", broker.url)
    assert back.exit_code == 0, back.output
    message, manifest = client.wait_for_release(3)
    assert manifest.model == 1
    cloud.wait_for("release 3 (round 3, the model of release 1 again)")

    # A stranger with another key, and somebody who repeats what was said, move nothing.
    order = client.retained[topics.cloud_order("shop")]
    client.publish(topics.cloud_order("shop"), order, retain=False)
    client.wait_until(
        lambda: [line for line in finished.ledger("refused") if "it follows release 2" in line.detail["why"]],
        "the repeated order was not refused",
    )
    assert finished.state().release_number == 3
    assert wire.decode(client.retained[topics.edge("shop", "gw1", "release")], Release) == message
