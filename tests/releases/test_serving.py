"""A device that answers: which key it trusts, what survives a reboot, what it falls back to."""

from __future__ import annotations

import io
import json
import shutil
import socket
import sqlite3
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from click.testing import CliRunner
from PIL import Image

from device_agent import identity
from device_agent.cli import main as agent_command
from fedbac_edge.signing import keys

if TYPE_CHECKING:
    from tests.releases.conftest import Broker, Client, Command, Pixels, Publisher, Start


def test_without_a_key_the_first_one_is_trusted_and_no_other(
    serve: Start, client: Client, publisher: Publisher, tmp_path: Path
) -> None:
    agent = serve("dev-1", "--federation", "shop")
    publisher.publish(1, 5)
    agent.wait_for("from now on trusting the key " + keys.fingerprint(publisher.key.public))
    agent.wait_for("answering with release 1")
    stranger = type(publisher)(client, keys.make(tmp_path / "stranger.key"))
    stranger.publish(2, 6)
    refused = client.wait_for_status(refused=lambda text: "this device trusts" in text)
    assert (refused.number, refused.state) == (1, "serving")


def test_with_a_key_a_stranger_is_refused_from_the_first_release_on(
    serve: Start, client: Client, publisher: Publisher, tmp_path: Path
) -> None:
    stranger = type(publisher)(client, keys.make(tmp_path / "stranger.key"))
    stranger.publish(7, 5)
    agent = serve("dev-1", "--federation", "shop", "--release-key", keys.to_text(publisher.key.public))
    refused = client.wait_for_status(refused=lambda text: "bad signature" in text)
    assert (refused.number, refused.state) == (0, "empty")
    answer = client.answered("dev-1", b"x" * 784)
    assert answer == {"error": "no model is served here yet", "model": None}
    publisher.publish(1, 6)
    agent.wait_for("answering with release 1")


def test_a_reboot_without_a_broker(
    serve: Start, broker: Broker, client: Client, publisher: Publisher, image: Pixels, tmp_path: Path
) -> None:
    agent = serve("dev-1", "--federation", "shop")
    session = publisher.publish(3, 5)
    agent.wait_for("answering with release 3")
    agent.kill()
    broker.stop()
    agent = serve("dev-1")  # the federation is remembered, and so is the key
    agent.wait_for("trusting releases signed with the key " + keys.fingerprint(publisher.key.public))
    agent.wait_for("answering with release 3")

    (tmp_path / "image.npy").write_bytes(npy(image))
    state = str(tmp_path / "devices" / "dev-1")
    asked = subprocess.run(
        [
            sys.executable,
            "-m",
            "device_agent",
            "infer",
            "--state",
            state,
            "--json",
            str(tmp_path / "image.npy"),
        ],
        stdout=subprocess.PIPE,
        check=True,
    )
    expected = session.logits(image)[0].tolist()
    assert json.loads(asked.stdout)["logits"] == pytest.approx(expected, abs=1e-5)

    broker.start()
    answer = broker.client().answered("dev-1", image.tobytes()) if _connected(agent) else {}
    assert answer["model"] == 3
    assert answer["logits"] == pytest.approx(expected, abs=1e-5)


def test_a_current_model_that_is_damaged_on_the_disk_gives_way_to_the_one_before(
    serve: Start, client: Client, publisher: Publisher, image: Pixels, tmp_path: Path
) -> None:
    agent = serve("dev-1", "--federation", "shop")
    first = publisher.publish(1, 5)
    agent.wait_for("answering with release 1")
    second = publisher.release(2, 6)
    publisher.send(second)
    agent.wait_for("answering with release 2")
    agent.kill()
    store = sqlite3.connect(tmp_path / "devices" / "dev-1" / "serving" / "gw1.sqlite")
    (data,) = store.execute("SELECT data FROM blobs WHERE hash = ?", (second.hash,)).fetchone()
    store.execute("UPDATE blobs SET data = ? WHERE hash = ?", (data[:5000], second.hash))
    store.commit()
    store.close()

    agent = serve("dev-1")
    agent.wait_for("went back to release 1: release 2: wrong hash")
    agent.wait_for("answering with release 1")
    status = client.wait_for_status(number=1, refused=lambda text: "release 2: wrong hash" in text)
    assert status.state == "serving"
    answer = client.answered("dev-1", image.tobytes())
    assert answer["logits"] == pytest.approx(first.logits(image)[0].tolist(), abs=1e-5)
    third = publisher.publish(3, 7)  # and it can learn again
    client.wait_for_status(number=3, refused="")
    answer = client.answered("dev-1", image.tobytes())
    assert answer["logits"] == pytest.approx(third.logits(image)[0].tolist(), abs=1e-5)


def test_killed_while_it_fetches_it_goes_on_where_it_was(
    serve: Start, client: Client, publisher: Publisher
) -> None:
    agent = serve("dev-1", "--federation", "shop")
    manifest = publisher.release(1, 5)
    whole, publisher.onnx = publisher.onnx, publisher.onnx[:0]
    publisher.send_manifest(manifest)  # its chunks are not there yet
    client.wait_for_status(doing="fetching 1")
    agent.kill()
    publisher.onnx = whole
    publisher.send(manifest)
    agent = serve("dev-1")
    agent.wait_for("answering with release 1")


def test_systemd_hears_of_it(serve: Start, client: Client, publisher: Publisher) -> None:
    """In a directory with a short name: a socket's path has 107 bytes."""
    import tempfile

    directory = tempfile.mkdtemp()
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(f"{directory}/notify")
        manager.settimeout(20)
        agent = serve(
            "dev-1",
            *("--federation", "shop"),
            NOTIFY_SOCKET=f"{directory}/notify",
            WATCHDOG_USEC="200000",
        )
        assert "READY=1" in manager.recv(1000).decode().splitlines()
        publisher.publish(1, 5)
        heard = set[str]()
        while not {"WATCHDOG=1", "STATUS=serving release 1"} <= heard:
            heard |= set(manager.recv(1000).decode().splitlines())
        assert agent.end() == 0
        while "STOPPING=1" not in heard:
            heard |= set(manager.recv(1000).decode().splitlines())
    shutil.rmtree(directory)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "no gateway was given"),
        (("--edge", "gw1", "--release-key", "nothing"), "neither a file nor a public key"),
        (("--edge", "gw1", "--release-key", "{key}"), "the private key, which must stay with the cloud"),
    ],
)
def test_wrong_settings(tmp_path: Path, arguments: tuple[str, ...], message: str) -> None:
    keys.make(tmp_path / "some.key")
    given = [argument.format(key=tmp_path / "some.key") for argument in arguments]
    result = CliRunner().invoke(agent_command, ["serve", *given, "--state", str(tmp_path / "state")])
    assert result.exit_code == 2
    assert message in " ".join(result.output.split())


def test_a_second_one_on_the_same_state(tmp_path: Path) -> None:
    with identity.held(tmp_path, "dev-1", "serve.lock"):
        result = CliRunner().invoke(agent_command, ["serve", "--edge", "gw1", "--state", str(tmp_path)])
    assert result.exit_code == 2
    assert "another agent runs on" in result.output


def npy(array: Any) -> bytes:
    import io

    import numpy as np

    file = io.BytesIO()
    np.save(file, array)
    return file.getvalue()


def _connected(agent: Command) -> bool:
    return bool(agent.wait_for("connected"))


def test_pictures_of_another_size_are_scaled_where_that_is_wanted(
    serve: Start, client: Client, publisher: Publisher
) -> None:
    publisher.publish(1, 5)
    serve("dev-1", "--federation", "shop").wait_for("answering with release 1")
    serve("dev-2", "--federation", "shop", "--fit").wait_for("answering with release 1")
    file = io.BytesIO()
    Image.fromarray(np.full((48, 48), 90, np.uint8)).save(file, "PNG")
    assert "takes 28x28 pixels" in client.answered("dev-1", file.getvalue())["error"]
    assert client.answered("dev-2", file.getvalue())["model"] == 1
