"""The section of a site's mosquitto.conf that connects its broker to the cloud's."""

from __future__ import annotations

from broker import access, topics
from broker.url import BrokerUrl


def carried(federation: str, gateway: str) -> tuple[list[str], list[str]]:
    """Filters that a bridge of a site carries down from the cloud's broker, and up to it. Raises BadName."""
    root = f"{topics.ROOT}/{topics.check_name(federation, 'federation')}"
    leaves = (*access.DOWN, "release")
    down = [topics.spec(federation), topics.cloud_status(federation), f"{root}/model/#", f"{root}/blob/#"]
    down += [f"{root}/edge/{gateway}/{leaf}" for leaf in leaves]
    up = [topics.edge(federation, gateway, leaf) for leaf in access.UP]
    return down, up


def section(federation: str, gateway: str, cloud: BrokerUrl) -> str:
    """Lines to append to the site's mosquitto.conf; `cloud`: the cloud's broker, and the login there."""
    down, up = carried(federation, gateway)
    lines = [
        f"# Bridge of the site {gateway} to the cloud's broker. Its names carry the site's: two bridges",
        "# of one name throw each other out.",
        f"connection fedbac-{federation}-{gateway}",
        f"address {cloud.host}:{cloud.port}",
        f"remote_clientid fedbac-{federation}-bridge-{gateway}",
        "# Without it a cloud's broker of another make than Mosquitto loses the retain flag.",
        "bridge_protocol_version mqttv50",
        "# Other brokers refuse the topics $SYS/... on which Mosquitto tells of its bridges.",
        "notifications false",
        "# What comes while the link is down is kept for it, on both sides.",
        "cleansession false",
        "try_private false",
        "restart_timeout 1 30",
        "# Bytes. As the largest packet of this broker.",
        "bridge_max_packet_size 131072",
    ]
    if cloud.tls:
        lines += [
            "",
            "# TLS, with the certificate pair of the gateway where the cloud's broker asks for one.",
            f"bridge_cafile {cloud.ca or '/etc/ssl/certs/ca-certificates.crt'}",
        ]
        if cloud.certificate is not None and cloud.key is not None:
            lines += [f"bridge_certfile {cloud.certificate}", f"bridge_keyfile {cloud.key}"]
    if cloud.user is not None:
        lines += [
            "",
            "# The gateway's user and password at the *cloud's* broker.",
            f"remote_username {cloud.user}",
        ]
        lines += [f"remote_password {cloud.password}"] if cloud.password else []
    lines += ["", "# QoS 1 both ways: nothing that a cut leaves half sent is lost."]
    lines += [f"topic {filter} in 1" for filter in down]
    lines += [f"topic {filter} out 1" for filter in up]
    return "\n".join([*lines, ""])
