"""Addresses of brokers, and errors that help."""

from __future__ import annotations

from pathlib import Path

import pytest

from broker.url import BadUrl, BrokerUrl


@pytest.mark.parametrize(
    ("text", "host", "port", "tls", "user", "password"),
    [
        ("mqtt://gateway.local", "gateway.local", 1883, False, None, None),
        ("mqtts://example.org", "example.org", 8883, True, None, None),
        (" mqtt://10.0.0.1:2000/ ", "10.0.0.1", 2000, False, None, None),
        ("mqtt://[::1]", "::1", 1883, False, None, None),
        ("mqtts://[fe80::1]:9000", "fe80::1", 9000, True, None, None),
        ("mqtt://cam:a%2Fb%40c@h", "h", 1883, False, "cam", "a/b@c"),
        ("mqtt://cam@h:1", "h", 1, False, "cam", None),
        ("mqtt://cam:@h", "h", 1883, False, "cam", ""),
    ],
)
def test_addresses(
    text: str, host: str, port: int, tls: bool, user: str | None, password: str | None
) -> None:
    url = BrokerUrl.parse(text)
    assert (url.host, url.port, url.tls, url.user, url.password) == (host, port, tls, user, password)


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("", "no scheme"),
        ("gateway.local:1883", "no scheme"),
        ("http://h", "http://"),
        ("mqtt://", "no host"),
        ("mqtt://:1883", "no host"),
        ("mqtt://h:0", "port 0"),
        ("mqtt://h:65536", "cannot be read"),
        ("mqtt://h:x", "cannot be read"),
        ("mqtt://h/topic", "follow"),
        ("mqtt://h?x=1", "follow"),
        ("mqtt://u:hunter2/x@h", "%2F"),
        ("mqtt://:hunter2@h", "no user"),
        ("mqtt://[::1", "cannot be read"),
        ("mqtt://a b", "blank"),
    ],
)
def test_errors_show_an_example_and_no_password(text: str, word: str) -> None:
    with pytest.raises(BadUrl, match="mqtt") as caught:
        BrokerUrl.parse(text)
    assert word in str(caught.value)
    assert "mqtt://gateway.local:1883" in str(caught.value)
    assert "hunter2" not in str(caught.value)


def test_the_password_is_not_shown() -> None:
    url = BrokerUrl.parse("mqtts://c%40m:hunter2@[::1]:9")
    assert str(url) == "mqtts://c%40m@[::1]:9"
    assert "hunter2" not in repr(url) + str(url) + f"{url}"


def test_certificate_files(tmp_path: Path) -> None:
    file = tmp_path / "x.pem"
    file.write_text("no certificate")
    for address, files, word in (
        ("mqtt://h", {"ca": file}, "mqtts://"),
        ("mqtts://h", {"ca": tmp_path / "absent.pem"}, "absent.pem is not there"),
        ("mqtts://h", {"certificate": file}, "go together"),
        ("mqtts://h", {"certificate": file, "key": tmp_path / "no.key"}, "no.key is not there"),
    ):
        with pytest.raises(BadUrl, match=word):
            BrokerUrl.parse(address, **files)
    with pytest.raises(BadUrl, match="holds no certificates"):
        BrokerUrl.parse("mqtts://h", ca=file).tls_context()
    with pytest.raises(BadUrl, match="no certificate with its"):
        BrokerUrl.parse("mqtts://h", certificate=file, key=file).tls_context()
    assert BrokerUrl.parse("mqtt://h").tls_context() is None
    assert BrokerUrl.parse("mqtts://h").tls_context() is not None
