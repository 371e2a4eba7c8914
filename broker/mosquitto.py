"""Mosquitto for a federation: a commented configuration, and a process that runs on it.

Written for Mosquitto 2, checked with Debian's 2.0.11. What a federation should know of 2.0.11:

- It closes a connection that a namesake took over without saying 0x8E (2.1 says it).
- A publish that the access list denies is dropped and, on MQTT 5, answered with 0x87. A subscription is
  always granted; what may not be read is just not delivered.
- A packet above the limit closes the connection with 0x95; the limit is in CONNACK.
- Bytes of an unfinished packet count as life, so a slow upload outlasts its keep-alive.
"""

from __future__ import annotations

import ipaddress
import os
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from broker.process import BrokerError, BrokerProcess

# One chunk (120,000 bytes with framing) and some room: the same limit as that of the smallest hosted brokers.
MAX_PACKET = 131_072


@dataclass(frozen=True)
class Tls:
    """PEM files of a broker with TLS; `require_client` asks every client for a certificate of `ca`."""

    ca: Path
    certificate: Path
    key: Path
    require_client: bool = False


def find_mosquitto() -> str | None:
    """Path of the mosquitto program; distributions put it where a user's PATH does not look."""
    places = [os.environ.get("PATH", ""), "/usr/sbin", "/usr/local/sbin", "/opt/homebrew/sbin"]
    return shutil.which("mosquitto", path=os.pathsep.join(places))


def is_loopback(host: str) -> bool:
    """True when only this machine can reach `host`."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def check_exposure(host: str, *, closed: bool, encrypted: bool) -> None:
    """Raise BrokerError for a broker that others can reach when it is open to all, or speaks plain text."""
    if is_loopback(host):
        return
    if not closed:
        raise BrokerError(
            f"a broker at {host} without a password file or client certificates would let in any client that "
            f"reaches that address: give one of them, listen on 127.0.0.1, or allow it (--insecure)"
        )
    if not encrypted:
        raise BrokerError(
            f"at {host} others can reach this broker, and read passwords and models in plain text: "
            f"give it certificates, listen on 127.0.0.1, or allow it (--insecure)"
        )


def configuration(
    host: str,
    port: int,
    *,
    persistence_dir: Path | None = None,
    password_file: Path | None = None,
    acl_file: Path | None = None,
    tls: Tls | None = None,
    max_packet: int = MAX_PACKET,
    max_queued_messages: int = 20_000,
    max_queued_bytes: int = 256 * 1024 * 1024,
    user: str | None = None,
    insecure: bool = False,
) -> str:
    """Text of a mosquitto.conf for a federation.

    Args:
        host, port: where to listen.
        persistence_dir: keep retained messages and sessions here over a restart; None: in memory only.
        password_file: of `access.password_line` or mosquitto_passwd; None: clients with a certificate
            where those are required, else all, on the loopback address only.
        acl_file: read and write rights per user, see `access.access_list`.
        tls: certificates; None: plain text.
        max_packet: largest packet taken, bytes with framing.
        max_queued_messages, max_queued_bytes: kept for a client that is away or slow; beyond either limit
            the newest are dropped silently.
        user: whom Mosquitto becomes when root starts it; None: its own default, "mosquitto".
        insecure: allow plain text, and a broker without passwords or client certificates, on an address that
            others can reach.

    Raises BrokerError for a broker that would be open to the network without `insecure`.

    """
    closed = password_file is not None or (tls is not None and tls.require_client)
    if not insecure:
        check_exposure(host, closed=closed, encrypted=tls is not None)
    lines = [
        "# Mosquitto 2 for a fedbac federation.",
        "",
        "# One set of access rules, whatever is listened on.",
        "per_listener_settings false",
        f"listener {port} {host}",
        "",
        "# Largest packet in bytes. Clients read it in CONNACK and cut their chunks to fit.",
        f"max_packet_size {max_packet}",
        "",
        "# Kept per absent or slow client; what does not fit is dropped without a word. The default of 1000",
        "# messages is less than a model's chunks and a round's updates at a large site.",
        f"max_queued_messages {max_queued_messages}",
        f"max_queued_bytes {max_queued_bytes}",
        "# Unacknowledged messages per client; a client asks for less with its receive maximum.",
        "max_inflight_messages 20",
        "# Sessions of clients that never came back are dropped.",
        "persistent_client_expiration 7d",
        "# Send small packets at once: tasks and receipts do not wait for a full segment.",
        "set_tcp_nodelay true",
        "",
    ]
    if persistence_dir is None:
        lines += [
            "# Nothing survives a restart; every tier then repeats what it has retained.",
            "persistence false",
        ]
    else:
        lines += [
            "# Retained messages and sessions survive a restart.",
            "persistence true",
            f"persistence_location {persistence_dir}{os.sep}",
            "# Seconds between writes to disk.",
            "autosave_interval 60",
        ]
    lines += ["", f"allow_anonymous {'false' if closed else 'true'}"]
    if password_file:
        lines += [f"password_file {password_file}"]
    if acl_file:
        lines += [
            "# A denied publish is dropped, a denied subscription delivers nothing.",
            f"acl_file {acl_file}",
        ]
    if tls:
        lines += [
            "",
            f"cafile {tls.ca}",
            f"certfile {tls.certificate}",
            f"keyfile {tls.key}",
            "tls_version tlsv1.2",
            f"require_certificate {str(tls.require_client).lower()}",
        ]
        if tls.require_client and not password_file:
            lines += [
                "# The certificate's common name is the user that the access list speaks of.",
                "use_identity_as_username true",
            ]
    if user:
        lines += ["", f"user {user}"]
    lines += ["", "log_dest stderr", "log_type error", "log_type warning", "log_type notice", ""]
    return "\n".join(lines)


class MosquittoBroker:
    """A Mosquitto process of our own, with its files in `directory`; also a context manager.

    Args:
        host, port: where to listen.
        directory: mosquitto.conf and mosquitto.log are written here.
        options: of `configuration`.

    """

    def __init__(self, host: str, port: int, directory: Path, **options: Any) -> None:
        program = find_mosquitto()
        if program is None:
            raise BrokerError("Mosquitto is not installed: apt install mosquitto, or use the embedded broker")
        if os.geteuid() == 0:  # else it would become a user that may not read these files
            options.setdefault("user", "root")
        directory.mkdir(parents=True, exist_ok=True)
        self.configuration = directory / "mosquitto.conf"
        self.configuration.write_text(configuration(host, port, **options), encoding="utf-8")
        self.process = BrokerProcess(
            [program, "-c", str(self.configuration)], host, port, directory / "mosquitto.log"
        )

    def start(self) -> None:
        """Start and wait until the port answers. Raises BrokerError."""
        self.process.start()

    def stop(self) -> None:
        """End it in order (persistence is written)."""
        self.process.stop()

    def kill(self) -> None:
        """End it like a power cut."""
        self.process.kill()

    def __enter__(self) -> MosquittoBroker:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()
