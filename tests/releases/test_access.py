"""Under the generated access list a device takes its releases, tells its status, answers who may ask."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import quote

import pytest

from broker import access
from broker.mosquitto import MosquittoBroker

if TYPE_CHECKING:
    from tests.releases.conftest import Broker, Pixels, Publisher, Start

USERS = ("cloud", "gw1", "gw1/dev-1", "gw1/dev-2")


@pytest.fixture
def guarded(broker: Broker, tmp_path: Path) -> dict[str, str]:
    """User -> password, on a broker that lets in nobody else."""
    passwords = {user: access.new_password() for user in USERS}
    (tmp_path / "passwords").write_text(
        "".join(access.password_line(user, password) + "\n" for user, password in passwords.items())
    )
    (tmp_path / "acl").write_text(access.access_list("shop", USERS))
    for file in ("passwords", "acl"):
        (tmp_path / file).chmod(0o644)
    running = MosquittoBroker(
        "127.0.0.1",
        broker.port,
        broker.directory,
        password_file=tmp_path / "passwords",
        acl_file=tmp_path / "acl",
    )
    broker.stack.enter_context(running)
    return passwords


def test_serving_with_the_rights_of_a_device(
    guarded: dict[str, str],
    broker: Broker,
    start: Start,
    offline_publisher: Publisher,
    tmp_path: Path,
    image: Pixels,
) -> None:
    cloud = broker.client("cloud", guarded["cloud"])
    publisher = offline_publisher
    publisher.client = cloud
    address = f"mqtt://{quote('gw1/dev-1', safe='')}:{guarded['gw1/dev-1']}@127.0.0.1:{broker.port}"
    agent = start(
        "device_agent",
        *("serve", "--edge", "gw1", "--name", "dev-1", "--federation", "shop"),
        *("--broker", address, "--state", tmp_path / "device"),
    )
    publisher.publish(1, 5)
    agent.wait_for("answering with release 1")
    cloud.wait_for_status(number=1)
    for user in ("cloud", "gw1"):
        asker = cloud if user == "cloud" else broker.client(user, guarded[user])
        topic = f"fedbac/v1/shop/answer/{user}/me"
        assert asker.answered("dev-1", image.tobytes(), response_topic=topic)["model"] == 1
    assert not [line for line in agent.lines if "does not let" in line]
