"""The embedded broker: rumqttd out of the iotcore wheel, on a configuration of ours, in a process of its own.

For demonstrations, tests and a site without Mosquitto. Checked on iotcore 0.4.0 with MQTT 5; what it does
otherwise than the standard or Mosquitto, so that the bus and the tiers must live with it:

- CONNACK names no packet limit and no receive maximum, and the client's receive maximum is ignored: up to
  100 deliveries are open. A packet above the limit closes the connection without a reason code.
- Acknowledgements out of order close the connection (`windows.Incoming` keeps the order).
- A packet from a client must be complete within one and a half keep-alives; bytes of it do not count as life.
- A namesake takes the session over; the older connection is closed without 0x8E.
- Sessions never expire, whatever CONNECT asked for. They hold the subscriptions and what came while away.
- Unacknowledged deliveries come again on the next connection, under new packet ids and without the DUP flag,
  *except retained ones*: a retained message that was sent and not acknowledged is gone for this session.
  Subscribing again to the same filter does not bring it; `unsubscribe` and then `subscribe` of the bus do.
- UNSUBSCRIBE is ignored, and not answered, for a filter that an earlier connection of the session subscribed
  (the bus subscribes it anew first).
- Overlapping filters of one client deliver a message once per filter.
- Messages are kept in one log per topic filter, of SEGMENTS x SEGMENT_BYTES. A client that falls further
  behind loses the oldest without notice (their sender misses a receipt and sends again).
- Nothing survives a restart: no retained message, no session.
- rumqttd has listeners for MQTT 3.1.1 and for MQTT 5 on separate ports; here there is only the latter.
- No access list.
"""

from __future__ import annotations

import importlib.util
import json
import logging
import os
import sys
import threading
from pathlib import Path

from broker.process import BrokerError, BrokerProcess

# Kept per subscribed topic filter, for slow or absent clients: 128 MB, more than a round's
# updates at a site. A busy filter comes to use that much memory.
SEGMENT_BYTES = 16 * 1024 * 1024
SEGMENTS = 8
MAX_PAYLOAD = 1024 * 1024


def is_available() -> bool:
    """True when the iotcore wheel is installed."""
    return importlib.util.find_spec("iotcore") is not None


def configuration(
    host: str, port: int, *, max_payload: int = MAX_PAYLOAD, users: dict[str, str] | None = None
) -> str:
    """TOML text for rumqttd: one MQTT 5 listener.

    Args:
        host, port: where to listen; `host` must be an IP address.
        max_payload: largest packet taken, bytes.
        users: name -> password; None: every client may connect.

    """
    address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    lines = [
        "id = 0",
        "[router]",
        "id = 0",
        "max_connections = 2000",
        "max_outgoing_packet_count = 200",
        f"max_segment_size = {SEGMENT_BYTES}",
        f"max_segment_count = {SEGMENTS}",
        "[v5.1]",
        'name = "v5"',
        f'listen = "{address}"',
        "next_connection_delay_ms = 0",
        "[v5.1.connections]",
        "connection_timeout_ms = 60000",
        f"max_payload_size = {max_payload}",
        "max_inflight_count = 100",
        "dynamic_filters = true",
    ]
    if users:
        lines += ["[v5.1.connections.auth]"]
        lines += [f"{json.dumps(name)} = {json.dumps(password)}" for name, password in users.items()]
    return "\n".join(lines) + "\n"


class EmbeddedBroker:
    """A rumqttd process of our own, with its files in `directory`; also a context manager.

    It ends with this process: it reads a pipe that only we hold.
    """

    def __init__(
        self,
        host: str,
        port: int,
        directory: Path,
        *,
        max_payload: int = MAX_PAYLOAD,
        users: dict[str, str] | None = None,
    ) -> None:
        if not is_available():
            raise BrokerError("the embedded broker is not installed: pip install 'fedbac-edge[broker]'")
        host = "127.0.0.1" if host == "localhost" else host
        directory.mkdir(parents=True, exist_ok=True)
        self.configuration = directory / "rumqttd.toml"
        with os.fdopen(
            os.open(self.configuration, os.O_CREAT | os.O_WRONLY | os.O_TRUNC, 0o600), "w"
        ) as file:
            file.write(configuration(host, port, max_payload=max_payload, users=users))
        self.process = BrokerProcess(
            [sys.executable, "-m", "broker.embedded", str(self.configuration)],
            host,
            port,
            directory / "rumqttd.log",
            # The child finds this package wherever we found it.
            {"PYTHONPATH": os.pathsep.join(p for p in sys.path if p)},
        )

    def start(self) -> None:
        """Start and wait until the port answers. Raises BrokerError."""
        self.process.start()

    def stop(self) -> None:
        """End it."""
        self.process.stop()

    def kill(self) -> None:
        """End it like a power cut."""
        self.process.kill()

    def __enter__(self) -> EmbeddedBroker:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()


def _end_with_the_pipe() -> None:
    sys.stdin.buffer.read()
    os._exit(0)


def _serve(configuration_file: str) -> None:
    from iotcore import IotCoreBroker

    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    # rumqttd logs the trace of every packet as an error.
    logging.getLogger("rumqttd").setLevel(logging.CRITICAL)
    threading.Thread(target=_end_with_the_pipe, daemon=True).start()
    IotCoreBroker(config_path=configuration_file).run_forever()


if __name__ == "__main__":
    _serve(sys.argv[1])
