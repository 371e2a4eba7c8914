"""Who is let in: passwords, access lists, certificates. What cannot be helped by waiting ends the bus."""

from __future__ import annotations

import datetime
import ipaddress
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from broker.bus import Connected, Delivery, Disconnected, Published, Subscribed
from broker.embedded import EmbeddedBroker
from broker.mosquitto import MosquittoBroker, Tls
from broker.url import BrokerUrl


@dataclass(frozen=True)
class Authority:
    """A certificate authority in a directory; `issue` writes NAME.pem and NAME.key."""

    directory: Path
    name: str
    certificate: x509.Certificate
    key: ec.EllipticCurvePrivateKey

    @property
    def file(self) -> Path:
        return self.directory / f"{self.name}.pem"

    def issue(self, name: str, host: str | None = None) -> tuple[Path, Path]:
        key = ec.generate_private_key(ec.SECP256R1())
        builder = _builder(name, self.certificate.subject, key)
        if host is not None:
            alternative = x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address(host))])
            builder = builder.add_extension(alternative, critical=False)
        certificate = builder.sign(self.key, hashes.SHA256())
        return _write(self.directory, name, certificate, key)


def _builder(name: str, issuer: x509.Name | None, key: ec.EllipticCurvePrivateKey) -> x509.CertificateBuilder:
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    now = datetime.datetime.now(datetime.timezone.utc)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer or subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
    )


def _write(
    directory: Path, name: str, certificate: x509.Certificate, key: ec.EllipticCurvePrivateKey
) -> tuple[Path, Path]:
    files = directory / f"{name}.pem", directory / f"{name}.key"
    files[0].write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
    files[1].write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
    )
    return files


def authority(directory: Path, name: str) -> Authority:
    key = ec.generate_private_key(ec.SECP256R1())
    builder = _builder(name, None, key).add_extension(x509.BasicConstraints(True, None), critical=True)
    certificate = builder.sign(key, hashes.SHA256())
    _write(directory, name, certificate, key)
    return Authority(directory, name, certificate, key)


@pytest.fixture
def start_mosquitto(tmp_path: Path, free_port: int) -> Iterator[Callable[..., int]]:
    """Starts a Mosquitto with these options; returns its port."""
    running: list[MosquittoBroker] = []

    def start(**options: Any) -> int:
        running.append(MosquittoBroker("127.0.0.1", free_port, tmp_path / "mosquitto", **options))
        running[-1].start()
        return free_port

    yield start
    for broker in running:
        broker.stop()


def password_file(directory: Path) -> Path:
    path = directory / "passwords"
    subprocess.run(["mosquitto_passwd", "-b", "-c", str(path), "cam-1", "s3cret/1"], check=True)
    return path


def test_a_wrong_password_is_final(start_mosquitto: Any, client: Any, tmp_path: Path) -> None:
    port = start_mosquitto(password_file=password_file(tmp_path))
    client(f"mqtt://cam-1:s3cret%2F1@127.0.0.1:{port}", "right")
    for name, user in (("wrong", "cam-1:no@"), ("nobody", "")):
        refused = client(f"mqtt://{user}127.0.0.1:{port}", name, wait=False)
        (why,) = refused.inbox.wait(Disconnected, final=True)
        assert name in why.reason
        assert "password" in why.reason


def test_passwords_of_the_embedded_broker(client: Any, tmp_path: Path, free_port: int) -> None:
    with EmbeddedBroker("127.0.0.1", free_port, tmp_path, users={"cam-1": "s3cret"}):
        client(f"mqtt://cam-1:s3cret@127.0.0.1:{free_port}", "right")
        refused = client(f"mqtt://cam-1:no@127.0.0.1:{free_port}", "wrong", wait=False)
        # rumqttd closes without a reason code: the bus cannot know, so it says both and goes on.
        assert "password" in refused.inbox.wait(Disconnected, final=False)[0].reason
        assert refused.inbox.of(Connected) == []


def test_an_access_list(start_mosquitto: Any, client: Any, tmp_path: Path) -> None:
    rules = tmp_path / "acl"
    rules.write_text("topic read open/#\ntopic write mine\n")
    port = start_mosquitto(acl_file=rules)
    url = f"mqtt://127.0.0.1:{port}"
    fenced = client(url, "fenced")
    fenced.bus.publish("mine", b"", token=1)
    fenced.bus.publish("theirs", b"", token=2)
    fenced.inbox.wait(Published, token=1, refused="")
    assert "authorized" in fenced.inbox.wait(Published, token=2)[0].refused.lower()
    # Mosquitto grants every subscription and then delivers nothing that may not be read.
    fenced.bus.subscribe("#")
    fenced.inbox.wait(Subscribed)
    fenced.bus.publish("mine", b"unreadable", token=3)
    fenced.bus.publish("open/1", b"not writable", token=4)
    fenced.inbox.wait(Published, token=4)
    assert fenced.inbox.of(Delivery) == []


def test_tls_both_ways(start_mosquitto: Any, client: Any, tmp_path: Path) -> None:
    ours, other = authority(tmp_path, "ours"), authority(tmp_path, "other")
    certificate, key = ours.issue("broker", "127.0.0.1")
    port = start_mosquitto(tls=Tls(ours.file, certificate, key, require_client=True))
    address = f"mqtts://127.0.0.1:{port}"
    mine, mine_key = ours.issue("cam-1")

    good = client(BrokerUrl.parse(address, ca=ours.file, certificate=mine, key=mine_key), "good")
    good.bus.subscribe("loop")
    payload = bytes(range(256)) * 400
    for n in range(5):
        good.bus.publish("loop", payload, token=n + 1)
    assert all(d.payload == payload for d in good.inbox.wait(Delivery, 5))
    good.inbox.wait(Published, 5)

    stranger, stranger_key = other.issue("stranger")
    for name, url, word in (
        ("mistrusts", BrokerUrl.parse(address, ca=other.file, certificate=mine, key=mine_key), "trusted"),
        ("nameless", BrokerUrl.parse(address, ca=ours.file), "certificate"),
        (
            "strange",
            BrokerUrl.parse(address, ca=ours.file, certificate=stranger, key=stranger_key),
            "certificate",
        ),
    ):
        refused = client(url, name, wait=False)
        (why,) = refused.inbox.wait(Disconnected, final=True)
        assert word in why.reason, why


def test_a_certificate_for_another_host_is_final(start_mosquitto: Any, client: Any, tmp_path: Path) -> None:
    ours = authority(tmp_path, "ours")
    certificate, key = ours.issue("broker", "192.0.2.7")
    port = start_mosquitto(tls=Tls(ours.file, certificate, key))
    refused = client(BrokerUrl.parse(f"mqtts://127.0.0.1:{port}", ca=ours.file), "careful", wait=False)
    assert "trusted" in refused.inbox.wait(Disconnected, final=True)[0].reason


def test_tls_to_a_plain_port_is_explained(mosquitto: Any, client: Any, tmp_path: Path) -> None:
    ours = authority(tmp_path, "ours")
    url = BrokerUrl.parse(f"mqtts://127.0.0.1:{mosquitto.port}", ca=ours.file)
    refused = client(url, "hopeful", wait=False)
    (why,) = refused.inbox.wait(Disconnected, final=False)
    assert "TLS" in why.reason
