"""How the agent speaks: one line per thing that happened, as text or as a JSON object."""

from __future__ import annotations

import json
import logging
import sys
import time
from typing import TextIO


class Voice:
    """Writes lines at once."""

    def __init__(self, as_json: bool = False, stream: TextIO | None = None) -> None:
        self._json, self._stream = as_json, stream or sys.stdout

    def say(self, event: str, text: str, **fields: object) -> None:
        """One line: `text`, or {"time", "event", "text", **fields} with the time in seconds since 1970."""
        if self._json:
            text = json.dumps(
                {"time": round(time.time(), 3), "event": event, "text": text, **fields}, ensure_ascii=False
            )
        print(text, file=self._stream, flush=True)


class VoiceHandler(logging.Handler):
    """Warnings of the libraries below, in the agent's own lines."""

    def __init__(self, voice: Voice) -> None:
        super().__init__(logging.WARNING)
        self._voice = voice

    def emit(self, record: logging.LogRecord) -> None:
        """Say one record."""
        self._voice.say("warning", f"warning: {record.getMessage()}")
