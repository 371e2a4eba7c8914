"""Messages for people when the models of a round do not come, or when an update gets no answer."""

from __future__ import annotations


def sentence(times: int) -> str:
    """For the ledger line "stalled": at first a note, then where to look; `times` the cloud was asked."""
    if times == 1:
        return "the models do not come; the cloud is asked to send them again"
    return (
        f"the models do not come, though the cloud was asked {times} times: is it running, and does a bridge "
        "on the way carry blob/# down and edge/+/reply up?"
    )


def unanswered(topic: str, by: str) -> str:
    """For the ledger line "unanswered" of an update: the broker has it, and no receipt came."""
    return (
        f"{by} does not answer, though the broker took our update twice: is it running, and does every "
        f"bridge carry {topic} to it and {topic.removesuffix('update')}receipt back?"
    )
