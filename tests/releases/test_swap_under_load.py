"""Models change under a steady stream of questions: every one is answered, each by exactly one model."""

from __future__ import annotations

import json
import queue
import threading
import time
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from tests.releases.conftest import Client, Pixels, Publisher, Start

RATE = 100
"""Questions per second."""
SWAPS = 5


def test_no_question_fails_and_no_answer_is_mixed(
    serve: Start, client: Client, publisher: Publisher, image: Pixels
) -> None:
    agent = serve("dev-1", "--federation", "shop")
    logits = {1: publisher.publish(1, 100).logits(image)[0]}
    agent.wait_for("answering with release 1")
    over, asked = threading.Event(), list[bytes]()

    def ask() -> None:
        while not over.is_set():
            asked.append(client.ask("dev-1", image.tobytes()))
            time.sleep(1 / RATE)

    asker = threading.Thread(target=ask)
    asker.start()
    for number in range(2, 2 + SWAPS):
        logits[number] = publisher.publish(number, 100 + number).logits(image)[0]
        client.wait_for_status(number=number)
        asked.append(
            client.ask("dev-1", image.tobytes())
        )  # this one finds it, however slow the other thread is
    over.set()
    asker.join()

    answered = dict[bytes, int]()
    while len(answered) < len(asked):
        try:
            message = client.answers.get(timeout=20)
        except queue.Empty:
            break
        answer = json.loads(message.payload)
        answered[message.properties.CorrelationData] = answer["model"]
        assert "error" not in answer
        np.testing.assert_allclose(answer["logits"], logits[answer["model"]], atol=1e-5)
    assert set(answered) == set(asked)
    assert set(answered.values()) == set(logits)  # each model had its time
