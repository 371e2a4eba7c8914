"""What is at the other end, when a port closed our MQTT 5 connection without a word: two short questions."""

from __future__ import annotations

import contextlib
import socket
import ssl

from broker.url import BrokerUrl

WAIT_S = 5.0

# CONNECT with a clean session, a keep-alive of 10 s and an empty client name; in MQTT 5 without properties.
_CONNECT = {
    4: bytes([0x10, 12, 0, 4]) + b"MQTT" + bytes([4, 2, 0, 10, 0, 0]),
    5: bytes([0x10, 13, 0, 4]) + b"MQTT" + bytes([5, 2, 0, 10, 0, 0, 0]),
}
_CONNACK = 0x20
_DISCONNECT = bytes([0xE0, 0])


def trouble(url: BrokerUrl, context: ssl.SSLContext | None) -> str:
    """Why MQTT 5 cannot be spoken at `url`, as a sentence; empty when nothing is known. Raises nothing."""
    if context is None and _speaks_tls(url):
        return f"{url} wants TLS on this port: write mqtts://{url.host}:{url.port}, and give --ca"
    # A broker that knows both may have been busy, or the link was cut: it answers the second question, too.
    if _answers(url, context, 4) and not _answers(url, context, 5):
        return (
            f"{url} speaks only MQTT 3.1.1, and a federation needs MQTT 5: another broker, or a newer version"
        )
    return ""


def _answers(url: BrokerUrl, context: ssl.SSLContext | None, level: int) -> bool:
    """Does it answer a CONNECT of this protocol level (4 is MQTT 3.1.1)? A refusal is an answer, too."""
    with contextlib.suppress(OSError, ValueError), contextlib.ExitStack() as open_:
        link: socket.socket = open_.enter_context(socket.create_connection((url.host, url.port), WAIT_S))
        if context is not None:
            link = open_.enter_context(context.wrap_socket(link, server_hostname=url.host))
        link.sendall(_CONNECT[level])
        first = _read(link, 1)
        with contextlib.suppress(OSError):
            link.sendall(_DISCONNECT)
        return first == bytes([_CONNACK])
    return False


def _speaks_tls(url: BrokerUrl) -> bool:
    """Does a TLS handshake get an answer of TLS? Nothing is sent but the hello, nothing is believed."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    hello = context.wrap_bio(incoming, outgoing, server_hostname=url.host)
    with contextlib.suppress(ssl.SSLWantReadError):
        hello.do_handshake()
    with (
        contextlib.suppress(OSError, ValueError),
        socket.create_connection((url.host, url.port), WAIT_S) as link,
    ):
        link.sendall(outgoing.read())
        first = _read(link, 3)
        return first[:2] in (b"\x16\x03", b"\x15\x03")  # a record of handshake, or of an alert
    return False


def _read(link: socket.socket, count: int) -> bytes:
    data = b""
    while len(data) < count and (piece := link.recv(count - len(data))):
        data += piece
    return data
