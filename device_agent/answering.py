"""Answers questions over MQTT: one thread, one model at a time, a bounded queue.

The bus's thread only queues. The answering thread takes the live model once per question, so that an answer
is one model's from its logits to its number, whatever is swapped meanwhile.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from broker import topics
from broker.bus import Answering, Bus, Delivery
from device_agent import questions
from export.session import InputError, Session

MOST_WAITING = 256
"""Questions in the queue; one more is told that the device is busy."""
COMPLAIN_S = 60.0
"""Questions that cannot be answered are mentioned this often."""


@dataclass(frozen=True)
class Live:
    """The model that answers, and the release that it belongs to."""

    number: int
    hash: str
    session: Session


class Answerer:
    """Owns the answering thread.

    Args:
        federation: its name: response topics below its root must be below its `answer/`.
        failed: told the hash of a model that fails on a good question, and why.
        complain: told in a sentence about questions that cannot be answered at all.
        fit: scale pictures of another size, instead of refusing them.

    """

    def __init__(
        self,
        federation: str,
        failed: Callable[[str, str], None],
        complain: Callable[[str], None],
        *,
        fit: bool = False,
    ) -> None:
        self._fit = fit
        self._root, self._answers = f"{topics.ROOT.split('/')[0]}/", topics.answers(federation)
        self._failed, self._complain = failed, complain
        self._queue: queue.SimpleQueue[Delivery | Callable[[], None] | None] = queue.SimpleQueue()
        self._bus: Bus | None = None
        self._live: Live | None = None
        self._given_up = ""
        self._complained = float("-inf")
        self._thread = threading.Thread(target=self._run, name="answering", daemon=True)

    @property
    def live(self) -> Live | None:
        """The model that answers now."""
        return self._live

    def start(self, bus: Bus) -> None:
        """Answer over this bus from now on."""
        self._bus = bus
        self._thread.start()

    def serve(self, live: Live | None) -> None:
        """Answer with this model from the next question on; the one being answered keeps its own."""
        self._live = live

    def take(self, question: Delivery) -> None:
        """Queue a question; called by the bus's thread, does not wait."""
        if self._queue.qsize() >= MOST_WAITING:
            live = self._live
            self._reply(question, questions.error("busy", live.number if live else None), questions.JSON)
        else:
            self._queue.put(question)

    def poke(self, answer: Callable[[], None]) -> None:
        """Have `answer` called by the thread, behind what waits: proof for a watchdog that it goes round."""
        self._queue.put(answer)

    def close(self) -> None:
        """Answer what waits, and stop."""
        self._queue.put(None)
        if self._thread.is_alive():
            self._thread.join()

    # --- the answering thread ---

    def _run(self) -> None:
        while (item := self._queue.get()) is not None:
            if isinstance(item, Delivery):
                payload, content_type = self._answer(item)
                self._reply(item, payload, content_type)
            else:
                item()

    def _answer(self, question: Delivery) -> tuple[bytes, str]:
        live = self._live
        if live is None:
            content_type = questions.form(question.payload, None)
            return questions.error("no model is served here yet", None, content_type), content_type
        content_type = questions.form(question.payload, live.session)
        try:
            asked = questions.read(question.payload, live.session, fit=self._fit)
        except InputError as error:
            return questions.error(str(error), live.number, content_type), content_type
        except Exception as error:  # from whatever reads the payload: this thread must outlive any question
            reason = f"not readable: {type(error).__name__}"
            return questions.error(reason, live.number, content_type), content_type
        try:
            prediction = live.session.predict(asked.pixels)[0]
            if not np.isfinite(prediction.logits).all():
                raise ArithmeticError("its logits are not finite")
        except Exception as error:  # whatever a runtime raises: the model is at fault, the device must go on
            reason = f"the model failed on a question: {error}"
            if self._given_up != live.hash:
                self._given_up = live.hash
                self._failed(live.hash, reason)
            return questions.error(reason[:400], live.number, content_type), content_type
        return questions.answer(asked, prediction, live.number, live.hash), content_type

    # --- both threads ---

    def _reply(self, question: Delivery, payload: bytes, content_type: str) -> None:
        assert self._bus is not None
        why = self._no_answer(question)
        if why:
            self._mention(why)
        else:
            certain = question.ticket != 0
            self._bus.publish(
                question.response_topic,
                payload,
                answering=Answering(question.correlation_data, content_type, certain),
            )
        self._bus.acknowledge(question.ticket)

    def _no_answer(self, question: Delivery) -> str:
        """Why a question cannot be answered anywhere; empty when it can."""
        topic = question.response_topic
        if question.retain:
            return "a question was retained; it is not answered again and again"
        if not topic:
            return "a question came without a response topic"
        if any(sign in topic for sign in "+#\0") or topic.startswith("$"):
            return f"a question named the response topic {topic[:80]!r}, on which a device cannot publish"
        if topic.startswith(self._root) and not topic.startswith(self._answers):
            return f"a question named the response topic {topic[:80]!r}; use one below {self._answers}"
        return ""

    def _mention(self, why: str) -> None:
        now = time.monotonic()
        if now - self._complained >= COMPLAIN_S:
            self._complained = now
            self._complain(why)
