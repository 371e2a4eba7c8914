"""The section of a bridge: what it carries, and that Mosquitto takes it; `field/test_link.py` runs one."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from broker import access, certificates, topics
from broker.bridges import carried, section
from broker.mosquitto import MosquittoBroker
from broker.url import BrokerUrl
from fedbac_edge.cli import cli

FILE = """
name = "orchard"
[model]
classes = ["a", "b"]
mean = [0.5]
std = [0.5]
[gateways]
gw1 = ["cam"]
gw2 = ["ear"]
"""


def test_all_that_passes_between_gateway_and_cloud_and_nothing_of_the_devices() -> None:
    down, up = carried("orchard", "gw1")
    rights = access.rights("orchard", "gw1")
    own = {filter for filter in rights.reads if "/device/" not in filter and "/answer/" not in filter}
    assert set(down) == own
    assert set(up) == {filter for filter in rights.writes if "/device/" not in filter}
    assert not any(
        topics.matches(filter, "fedbac/v1/orchard/edge/gw1/device/cam/update") for filter in down + up
    )


@pytest.mark.parametrize("tls", [False, True])
def test_mosquitto_takes_it(tls: bool, free_port: int, tmp_path: Path) -> None:
    certificates.create_authority(tmp_path, ["localhost", "127.0.0.1"])
    pair = certificates.issue(tmp_path, "gw1")
    url = BrokerUrl.parse("mqtt://gw1:secret@127.0.0.1:1")
    if tls:
        files = {"ca": tmp_path / "ca.pem", "certificate": pair.certificate, "key": pair.key}
        url = BrokerUrl.parse("mqtts://127.0.0.1:1", **files)
    broker = MosquittoBroker("127.0.0.1", free_port, tmp_path / "site")
    with broker.configuration.open("a") as configuration:
        configuration.write(section("orchard", "gw1", url))
    with broker:
        pass
    text = section("orchard", "gw1", url)
    assert ("bridge_keyfile" in text, "remote_password secret" in text) == (tls, not tls)
    assert section("orchard", "gw2", url) != text


def test_the_command(tmp_path: Path) -> None:
    file = tmp_path / "federation.toml"
    file.write_text(FILE)
    given = ["broker", "config", "--federation", str(file), "--to", "mqtt://cloud.example"]
    result = CliRunner().invoke(cli, [*given, "--bridge", "gw1"])
    assert result.exit_code == 0, result.output
    assert result.output == section("orchard", "gw1", BrokerUrl.parse("mqtt://cloud.example"))
    wrong = CliRunner().invoke(cli, [*given, "--bridge", "gw9"])
    assert wrong.exit_code == 2
    assert "gw1" in wrong.output
