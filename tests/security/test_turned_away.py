"""What a client is told that is not let in: the cause and its remedy, and not to start what runs."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from broker import certificates
from fedbac_edge.cli import cli
from fedbac_edge.node import discovery


def broker(orchard: Any, user: str = "", authority: Path | None = None) -> list[str]:
    """Options of a client with this user's certificate; without `user` and `authority`, with none."""
    options = ["--broker", f"mqtts://127.0.0.1:{orchard.link.port}"]
    if authority is not None:
        options += ["--ca", str(authority)]
    if user:
        pair = certificates.client_pair(orchard.keys, user)
        options += ["--cert", str(pair.certificate), "--key", str(pair.key)]
    return options


def status(orchard: Any, *how: Any) -> str:
    done = CliRunner().invoke(cli, ["status", "--timeout", "10", *broker(orchard, *how)])
    assert done.exit_code == 1
    return done.output


def test_status_after_a_tls_error(orchard: Any, tmp_path: Path) -> None:
    certificates.create_authority(tmp_path / "other", ["127.0.0.1"])
    for how in ((), ("", tmp_path / "other" / "ca.pem")):
        said = status(orchard, *how)
        assert "give the authority that signed it with --ca" in said
        assert "start it" not in said
    said = status(orchard, "", orchard.keys / "ca.pem")
    assert "wants a certificate, and none was given: --cert and --key" in said
    assert "start it" not in said
    orchard.broker.stop()
    orchard.link.close()
    assert "no broker listens" in (said := status(orchard))
    assert "start it (fedbac broker run)" in said


def test_a_certificate_that_is_not_on_the_roster(orchard: Any, until: Callable[..., None]) -> None:
    """The broker lets it connect, and hides from it without a word that there is a federation."""
    certificates.issue(orchard.keys, "gw1/stranger")
    cloud = orchard.start("cloud")
    until(lambda: cloud.connections > 0, "the cloud's connection", 10)
    said = status(orchard, "gw1/stranger", orchard.keys / "ca.pem")
    assert "may this user read it? (fedbac doctor --as)" in said
    lines: list[str] = []
    url = orchard.url("gw1/stranger")
    with pytest.raises(discovery.DiscoveryError):
        discovery.find_spec(url, None, "fedbac:gw1:stranger", lines.append, timeout=4.0)
    assert f"if it runs, the name in {url.certificate} is not in the broker's access list" in lines[-1]
    doctor = ["doctor", "--as", "gw1/stranger", "--federation", "orchard"]
    done = CliRunner().invoke(cli, [*doctor, *broker(orchard, "gw1/stranger", orchard.keys / "ca.pem")])
    assert done.exit_code == 1
    assert "access list" in done.output
