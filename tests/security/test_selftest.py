"""Who is denied one of his topics hears of it within seconds, by name, when his process comes up."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from click.testing import CliRunner

from broker import certificates
from fedbac_edge.cli import cli
from fedbac_edge.commands import broker_checks, checks
from fedbac_edge.node import access_probe


def test_all_is_well(orchard: Any, until: Callable[..., None], said: Callable[[], list[str]]) -> None:
    """Devices first, their gateway later, the cloud last: who was too early asks again."""
    device = orchard.start("gw1/cam")
    gateway = orchard.start("gw1")
    cloud = orchard.start("cloud")
    for tier in (device, gateway):
        until(lambda tier=tier: not tier._runtime._test.unheard, "an answer")
        assert tier._runtime._test.due() is None
    until(lambda: cloud._runtime._test.settled, "the cloud's test")
    assert said() == []


@pytest.mark.parametrize(
    ("denied", "verb"),
    [
        ("write fedbac/v1/orchard/edge/gw1/device/cam/status", "publish on"),
        ("write fedbac/v1/orchard/edge/gw1/device/cam/reply", "publish on"),
        ("write fedbac/v1/orchard/edge/gw1/device/cam/update", "publish on"),
        ("read fedbac/v1/orchard/edge/gw1/device/cam/task", "read"),
        ("read fedbac/v1/orchard/edge/gw1/device/cam/receipt", "read"),
    ],
)
def test_a_denied_topic_is_named(
    orchard: Any,
    until: Callable[..., None],
    said: Callable[[], list[str]],
    monkeypatch: pytest.MonkeyPatch,
    denied: str,
    verb: str,
) -> None:
    monkeypatch.setattr(access_probe, "ANSWER_S", 1.0)
    orchard.rewrite_access_list(lambda text: text.replace(f"topic {denied}\n", "", 1))
    orchard.start("gw1")
    orchard.start("gw1/cam")
    topic = denied.split()[1]
    until(lambda: any(f"gw1/cam {verb} {topic}" in line for line in said()), "the sentence", 8)
    assert all("fedbac broker config" in line for line in said())


def test_the_answering_gateway_notices_its_own_denial(
    orchard: Any, until: Callable[..., None], said: Callable[[], list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(access_probe, "ANSWER_S", 1.0)
    rule = "topic write fedbac/v1/orchard/edge/gw1/device/+/receipt\n"
    orchard.rewrite_access_list(lambda text: text.replace(rule, "", 1))
    orchard.start("gw1")
    orchard.start("gw1/cam")
    topic = "fedbac/v1/orchard/edge/gw1/device/cam/receipt"
    until(lambda: any(f"gw1 publish on {topic}" in line for line in said()), "the gateway's sentence", 8)
    until(lambda: any(f"gw1/cam read {topic}" in line for line in said()), "the device's sentence", 8)


def test_somebody_elses_certificate(
    orchard: Any, until: Callable[..., None], said: Callable[[], list[str]]
) -> None:
    orchard.start("gw1/cam", credentials_of="gw2/cam")
    wanted = {f"edge/gw1/device/cam/{leaf}" for leaf in ("status", "reply", "update")}
    until(lambda: all(any(topic in line for line in said()) for topic in wanted), "three sentences", 8)


def test_the_doctor_hears_the_answer_of_a_gateway(orchard: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """And misses it where the access list denies it, beside a device that runs under the same user."""
    monkeypatch.setattr(checks, "LIBRARIES", ())
    monkeypatch.setattr(broker_checks, "ANSWER_S", 1.0)
    pair = certificates.client_pair(orchard.keys, "gw1/cam")
    command = ["doctor", "--as", "gw1/cam", "--federation", "orchard", "--state", str(orchard.keys)]
    command += ["--broker", f"mqtts://127.0.0.1:{orchard.link.port}", "--ca", str(orchard.keys / "ca.pem")]
    command += ["--cert", str(pair.certificate), "--key", str(pair.key)]
    for user in ("gw1", "gw1/cam", "gw2", "gw2/cam", "cloud"):
        orchard.start(user)
    well = CliRunner().invoke(cli, command)
    assert well.exit_code == 0, well.output
    assert "gw1/cam may publish on its 3 topics and read what is sent to it" in well.output
    rule = "topic read fedbac/v1/orchard/edge/gw1/device/cam/task\n"
    orchard.rewrite_access_list(lambda text: text.replace(rule, "", 1))
    ill = CliRunner().invoke(cli, command)
    assert ill.exit_code == 1, ill.output
    assert "does not let gw1/cam read fedbac/v1/orchard/edge/gw1/device/cam/task" in ill.output
    assert orchard.tiers["gw1/cam"].connections == 2, "only the broker's restart was noticed"
