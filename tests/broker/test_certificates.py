"""Our own authority: who is let in by certificate and as whom, dates, and rotation under a running client."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import ssl
import stat
from collections.abc import Iterator
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from hypothesis import given, settings
from hypothesis import strategies as st

from broker import access, access_files, certificate_dates, certificates
from broker.bus import Connected, Disconnected, Published
from broker.certificates import KeysError
from broker.mosquitto import MosquittoBroker
from broker.url import BrokerUrl

ROSTER = {"gw1": ("gw2", "cam"), "gw2": ("cam",)}
OWN = {
    "cloud": "cloud/status",
    "gw1": "edge/gw1/update",
    "gw2": "edge/gw2/update",
    "gw1/gw2": "edge/gw1/device/gw2/update",
    "gw1/cam": "edge/gw1/device/cam/update",
    "gw2/cam": "edge/gw2/device/cam/update",
}


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An authority with a certificate for everybody; tests that change one take a user of their own."""
    folder = tmp_path_factory.mktemp("keys")
    certificates.create_authority(folder, ["127.0.0.1", "broker.example.org"])
    for user in [*OWN, "gw1/new", "gw1/old", "gw1/torn"]:
        certificates.issue(folder, user)
    return folder


@pytest.fixture
def broker(keys: Path, tmp_path: Path, free_port: int) -> Iterator[MosquittoBroker]:
    """Mosquitto that asks for certificates of the authority; its port is in `.process`."""
    users = access.users(ROSTER, ["gw1/new", "gw1/old", "gw1/torn"])
    files = (keys / "ca.pem", keys / "server.pem", keys / "server.key")
    options = {
        **access_files.write_access_list(tmp_path, "orchard", users),
        **access_files.copy_certificates(tmp_path, *files),
    }
    with MosquittoBroker("127.0.0.1", free_port, tmp_path, **options) as running:
        yield running


def url(keys: Path, port: int, user: str) -> BrokerUrl:
    pair = certificates.client_pair(keys, user)
    return BrokerUrl.parse(
        f"mqtts://127.0.0.1:{port}", ca=keys / "ca.pem", certificate=pair.certificate, key=pair.key
    )


@pytest.mark.usefixtures("broker")
def test_a_certificate_says_who_one_is(keys: Path, free_port: int, client: Any) -> None:
    for user in OWN:
        one = client(url(keys, free_port, user), f"as {user}")
        for token, topic in enumerate(OWN.values(), start=1):
            one.bus.publish(f"fedbac/v1/orchard/{topic}", b"x", token=token)
        answers = one.inbox.wait(Published, len(OWN))
        let_through = {
            topic for topic, answer in zip(OWN.values(), answers, strict=True) if not answer.refused
        }
        assert let_through == (set(OWN.values()) if user == "cloud" else {OWN[user]})


@pytest.mark.usefixtures("broker")
def test_a_name_given_beside_the_certificate_does_not_count(keys: Path, free_port: int, client: Any) -> None:
    pair = certificates.client_pair(keys, "gw1/cam")
    pretender = BrokerUrl.parse(
        f"mqtts://cloud:x@127.0.0.1:{free_port}",
        ca=keys / "ca.pem",
        certificate=pair.certificate,
        key=pair.key,
    )
    one = client(pretender, "pretender")
    one.bus.publish("fedbac/v1/orchard/cloud/status", b"x", token=1)
    assert one.inbox.wait(Published)[0].refused == "Not authorized"


@pytest.mark.usefixtures("broker")
def test_who_has_no_certificate_is_told_that_it_is_wanted(keys: Path, free_port: int, client: Any) -> None:
    bare = BrokerUrl.parse(f"mqtts://127.0.0.1:{free_port}", ca=keys / "ca.pem")
    refused = client(bare, "bare", wait=False)
    assert "none was given: --cert and --key" in refused.inbox.wait(Disconnected, final=True)[0].reason


@pytest.mark.usefixtures("broker")
def test_the_brokers_certificate_is_no_clients(keys: Path, free_port: int, client: Any) -> None:
    server = certificates.server_pair(keys)
    borrowed = BrokerUrl.parse(
        f"mqtts://127.0.0.1:{free_port}", ca=keys / "ca.pem", certificate=server.certificate, key=server.key
    )
    refused = client(borrowed, "borrower", wait=False)
    assert "certificate" in refused.inbox.wait(Disconnected, final=True)[0].reason
    assert refused.inbox.of(Connected) == []


def test_a_clients_certificate_is_no_brokers(keys: Path, tmp_path: Path, free_port: int, client: Any) -> None:
    pair = certificates.client_pair(keys, "gw1/cam")
    options = access_files.copy_certificates(tmp_path, keys / "ca.pem", pair.certificate, pair.key)
    with MosquittoBroker("127.0.0.1", free_port, tmp_path, **options):
        careful = client(url(keys, free_port, "gw1"), "careful", wait=False)
        assert "trusted" in careful.inbox.wait(Disconnected, final=True)[0].reason


@pytest.mark.usefixtures("broker")
def test_an_expired_certificate_is_a_sentence_and_a_new_one_is_taken_up(
    keys: Path, free_port: int, client: Any
) -> None:
    certificates.issue(keys, "gw1/old", 0, replace=True)
    late = client(url(keys, free_port, "gw1/old"), "late", wait=False)
    (why,) = late.inbox.wait(Disconnected)[:1]
    assert not why.final
    for said in ("old.pem expired on", "fedbac keys rotate"):
        assert said in why.reason
    certificates.issue(keys, "gw1/old", replace=True)
    late.inbox.wait(Connected)


@pytest.mark.usefixtures("broker")
def test_a_pair_that_is_half_replaced_is_waited_for(
    keys: Path, free_port: int, client: Any, proxy: Any, tmp_path: Path
) -> None:
    link = proxy(_at(free_port))
    one = client(url(keys, link.port, "gw1/torn"), "torn")
    pair = certificates.client_pair(keys, "gw1/torn")
    whole = pair.certificate.read_bytes()
    (tmp_path / "kept.pem").write_bytes(whole)
    certificates.issue(keys, "gw1/torn", replace=True)
    new = pair.certificate.read_bytes()
    pair.certificate.write_bytes(whole)
    link.cut()
    end = one.inbox.wait(Disconnected, 2)
    assert "with its unencrypted key" in end[1].reason
    assert not any(event.final for event in end)
    pair.certificate.write_bytes(new)
    one.inbox.wait(Connected, 2)


def test_the_broker_takes_up_a_new_certificate(
    keys: Path, free_port: int, broker: MosquittoBroker, tmp_path: Path, client: Any
) -> None:
    """SIGHUP; who is connected stays, and the host names are those of before."""
    stayer = client(url(keys, free_port, "gw1"), "stayer")
    before = _shown(keys, free_port)
    certificates.issue_server(keys)
    access_files.copy_certificates(tmp_path, keys / "ca.pem", keys / "server.pem", keys / "server.key")
    assert broker.process.pid is not None
    os.kill(broker.process.pid, signal.SIGHUP)
    for attempt in range(200):
        if (after := _shown(keys, free_port)) != before or attempt == 199:
            break
    assert after.serial_number != before.serial_number
    names = after.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert names.get_values_for_type(x509.DNSName) == ["broker.example.org"]
    client(url(keys, free_port, "gw2"), "newcomer")
    assert stayer.inbox.of(Disconnected) == []


def _shown(keys: Path, port: int) -> x509.Certificate:
    context = url(keys, port, "gw1").tls_context()
    assert context is not None
    with (
        socket.create_connection(("127.0.0.1", port), timeout=5) as plain,
        context.wrap_socket(plain, server_hostname="127.0.0.1") as link,
    ):
        shown = link.getpeercert(binary_form=True)
    assert shown
    return x509.load_der_x509_certificate(shown)


class _at:  # noqa: N801
    def __init__(self, port: int) -> None:
        self.port = port


def test_the_folder(tmp_path: Path) -> None:
    folder = tmp_path / "deep" / "keys"
    certificates.create_authority(folder, ["broker.example.org"])
    gateway, device = certificates.issue(folder, "gw1"), certificates.issue(folder, "gw1/gw1.pem")
    assert gateway.certificate == folder / "gateways" / "gw1.pem"
    assert device.key == folder / "devices" / "gw1" / "gw1.pem.key"
    for key in folder.rglob("*.key"):
        assert stat.S_IMODE(key.stat().st_mode) == 0o600
    assert not list(folder.rglob(".*"))
    with pytest.raises(KeysError, match="lock out"):
        certificates.create_authority(folder, ["broker.example.org"])
    with pytest.raises(KeysError, match="rotate gw1"):
        certificates.issue(folder, "gw1")
    with pytest.raises(KeysError, match="issue gw2"):
        certificates.issue(folder, "gw2", replace=True)
    with pytest.raises(KeysError, match="no authority"):
        certificates.issue(tmp_path, "gw2")
    with pytest.raises(KeysError, match="65 characters"):
        certificates.issue(folder, f"gw1/{'d' * 61}")
    for host in ("", "a b", "mqtts://x", "bücher.example"):
        with pytest.raises(KeysError, match="host"):
            certificates.create_authority(tmp_path / "other", [host])
    assert not (tmp_path / "other").exists()
    before = device.certificate.read_bytes()
    (folder / "ca.key").write_bytes((folder / "gateways" / "gw1.key").read_bytes())
    with pytest.raises(KeysError, match="not the key"):
        certificates.issue(folder, "gw1/gw1.pem", replace=True)
    assert device.certificate.read_bytes() == before


_KEY = ec.generate_private_key(ec.SECP256R1())


@settings(max_examples=60, deadline=None)
@given(
    begins=st.datetimes(datetime(1951, 1, 1), datetime(2100, 1, 1)),
    length=st.timedeltas(timedelta(seconds=1), timedelta(days=40_000)),
    serial=st.integers(1, 2**159 - 1),
    name=st.text(min_size=1, max_size=16),
)
def test_dates_agree_with_another_reader(begins: datetime, length: timedelta, serial: int, name: str) -> None:
    """Years up to 2049 are written with two digits, later ones with four."""
    begins = begins.replace(microsecond=0)
    ends = (begins + length).replace(microsecond=0)
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    certificate = (
        x509.CertificateBuilder(subject, subject, _KEY.public_key(), serial, begins, ends)
        .add_extension(x509.BasicConstraints(True, None), critical=True)
        .sign(_KEY, hashes.SHA256())
    )
    read = certificate_dates.of_der(certificate.public_bytes(serialization.Encoding.DER))
    assert read.begins == begins.replace(tzinfo=timezone.utc)
    assert read.ends == ends.replace(tzinfo=timezone.utc)
    assert read.days_left(read.ends - timedelta(days=3)) == 3


@settings(max_examples=300, deadline=None)
@given(data=st.data())
def test_a_damaged_certificate_is_read_or_refused(keys: Path, data: st.DataObject) -> None:
    der = bytearray(ssl.PEM_cert_to_DER_cert((keys / "ca.pem").read_text()))
    cut = data.draw(st.integers(0, len(der)))
    for _ in range(data.draw(st.integers(0, 4))):
        der[data.draw(st.integers(0, 200))] = data.draw(st.integers(0, 255))
    with contextlib.suppress(certificate_dates.NoCertificate):
        read = certificate_dates.of_der(bytes(der[:cut]))
        assert read.begins.year < 10_000


def test_our_own_dates_are_told(tmp_path: Path) -> None:
    certificates.create_authority(tmp_path, ["localhost"])
    certificates.issue(tmp_path, "gw1")
    where = url(tmp_path, 8883, "gw1")
    now = datetime.now(timezone.utc)
    assert where.dates_trouble() == ""
    assert "expired" in where.dates_trouble(now + timedelta(days=398))
    assert "set the clock" in where.dates_trouble(now - timedelta(days=30 * 365))
