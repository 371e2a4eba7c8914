"""What `fedbac doctor` tries of a broker's memory: a large retained message, found by name and wildcard."""

from __future__ import annotations

import secrets

from broker import access, reasons, topics
from broker.bus import BusEvent, Delivery, Published
from broker.chunks import FRAMING, PACKET_LIMIT
from fedbac_edge.commands.broker_checks import Conversation
from fedbac_edge.commands.checks import Check

PUBLISH_S = 15.0
"""A broker that hangs up over a large packet is asked a few times before that is clear."""
RETAINED_S = 3.0
"""A retained message comes at once; a large one over a slow link takes a moment."""
LEAST = 2 * FRAMING
NOBODY = "0" * 64
"""A content hash that no part has."""


def tried(user: str | None, federation: str | None) -> str | None:
    """The federation on whose topics it can be tried; None: this user may not keep models retained."""
    if user == access.CLOUD and federation is not None:
        return federation
    return f"doctor-{secrets.token_hex(6)}" if user is None else None


def memory(talk: Conversation, federation: str, announced: int | None) -> list[Check]:
    """Publish one retained message without readers, read it back in two ways, clear it."""
    topic = topics.blob(federation, NOBODY, 0)
    try:
        size, refused = _publish(talk, topic, min(PACKET_LIMIT, announced or PACKET_LIMIT))
        if refused:
            found = f"could not be tried: {refused}"
            return [Check("retained", "unknown", found, "try it as the cloud: --as cloud --federation NAME")]
        limits = []
        if size < min(PACKET_LIMIT, announced or PACKET_LIMIT):
            found = f"it refuses larger packets than {size:,} bytes or so, and does not announce that"
            limits = [Check("size", "warning", found, "models are cut smaller; better raise its limit")]
        return [*limits, _read_back(talk, federation, topic)]
    finally:
        talk.bus.publish(topic, b"", retain=True)


def _publish(talk: Conversation, topic: str, size: int) -> tuple[int, str]:
    """Packet size in bytes that passed, and why none did."""
    token = 0
    while True:
        token += 1
        answers: list[Published] = []

        def answered(event: BusEvent, answers: list[Published] = answers, token: int = token) -> bool:
            if isinstance(event, Published) and event.token == token:
                answers.append(event)
            return bool(answers)

        talk.bus.publish(topic, bytes(size - FRAMING), retain=True, token=token)
        if not talk.until(answered, PUBLISH_S):
            return size, f"a message of {size:,} bytes was not answered"
        if not answers[0].refused:
            return size, ""
        if answers[0].code != reasons.TOO_LARGE or size // 2 < LEAST:
            return size, answers[0].refused.lower()
        size //= 2


def _read_back(talk: Conversation, federation: str, topic: str) -> Check:
    def came(event: BusEvent) -> bool:
        return isinstance(event, Delivery) and event.topic == topic and event.retain and bool(event.payload)

    talk.bus.subscribe(topic)
    by_name = talk.until(came, RETAINED_S)
    talk.bus.unsubscribe(topic)
    talk.bus.subscribe(topics.blob_filter(federation, NOBODY))
    by_wildcard = talk.until(came, RETAINED_S)
    remedy = "it works, since the cloud is asked for what does not come, but each model costs seconds more"
    if by_name and by_wildcard:
        return Check("retained", "ok", "what is retained is found by its name and through +")
    if by_name:
        return Check("retained", "warning", "what is retained is not found through + (a wildcard)", remedy)
    return Check("retained", "warning", "nothing retained comes back, a cluster perhaps", remedy)
