"""A broker in the foreground, for `fedbac broker`: Mosquitto when it is installed, else the embedded one."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal, TypeAlias

from broker.embedded import EmbeddedBroker, is_available
from broker.mosquitto import MosquittoBroker, find_mosquitto, is_loopback
from broker.process import BrokerError

Kind: TypeAlias = Literal["auto", "mosquitto", "embedded"]


def choose(kind: Kind) -> Literal["mosquitto", "embedded"]:
    """Which broker to run; "auto" takes Mosquitto when it is installed. Raises BrokerError without any."""
    if kind != "auto":
        return kind
    if find_mosquitto() is not None:
        return "mosquitto"
    if is_available():
        return "embedded"
    raise BrokerError("no broker is installed: apt install mosquitto, or pip install 'fedbac-edge[broker]'")


def run(
    kind: Kind,
    host: str,
    port: int,
    state_dir: Path,
    stop: Callable[[], bool],
    *,
    insecure: bool = False,
    **mosquitto_options: Any,
) -> None:
    """Run a broker until `stop()` is true; one line on stdout says when it listens.

    Args:
        kind: see `choose`.
        host, port: where to listen.
        state_dir: configuration, log and (Mosquitto) what survives a restart.
        stop: asked five times a second.
        insecure: allow plain text without passwords on an address that others can reach.
        mosquitto_options: of `mosquitto.configuration`: password_file, acl_file, tls ...

    Raises BrokerError when it cannot start, may not, or ends by itself.

    """
    chosen = choose(kind)
    tls = mosquitto_options.get("tls") is not None
    if not is_loopback(host) and not tls and not insecure:
        raise BrokerError(
            f"at {host} others can reach this broker, and read passwords and models in plain text: "
            f"give it certificates, listen on 127.0.0.1, or allow it explicitly with --insecure"
        )
    broker: MosquittoBroker | EmbeddedBroker
    if chosen == "mosquitto":
        state_dir.mkdir(parents=True, exist_ok=True)
        mosquitto_options.setdefault("persistence_dir", state_dir.resolve())
        broker = MosquittoBroker(host, port, state_dir, insecure=insecure, **mosquitto_options)
    else:
        if mosquitto_options:
            raise BrokerError(
                f"the embedded broker has no {', '.join(sorted(mosquitto_options))}: use Mosquitto"
            )
        broker = EmbeddedBroker(host, port, state_dir)
    try:
        broker.process.start(dies_with_us=True)
        shown = f"[{host}]" if ":" in host else host
        print(f"listening on mqtt{'s' if tls else ''}://{shown}:{port} ({chosen})", flush=True)
        while not stop():
            code = broker.process.wait(0.2)
            if code is not None and not stop():
                raise BrokerError(f"the broker ended with code {code}: {broker.process.last_words()}")
    finally:
        broker.stop()
