"""How the agent speaks: one line per thing that happened, as text or as a JSON object."""

from __future__ import annotations

import json
import logging
import sys
import threading
import time
from typing import TextIO

from fedbac_edge.datasets.shown import shown


class Voice:
    """Writes lines at once."""

    def __init__(self, as_json: bool = False, stream: TextIO | None = None) -> None:
        self._json, self._stream = as_json, stream or sys.stdout
        self._lock = threading.Lock()

    def say(self, event: str, text: str, **fields: object) -> None:
        """One line: `text`, or {"time", "event", "text", **fields} with the time in seconds since 1970."""
        text = shown(text)
        if self._json:
            readable = {k: shown(value) if isinstance(value, str) else value for k, value in fields.items()}
            line = {"time": round(time.time(), 3), "event": event, "text": text, **readable}
            text = json.dumps(line, ensure_ascii=False)
        with self._lock:  # several threads speak, and a line must stay one
            self._stream.write(text + "\n")
            self._stream.flush()


class VoiceHandler(logging.Handler):
    """Warnings of the libraries below, in the agent's own lines."""

    def __init__(self, voice: Voice) -> None:
        super().__init__(logging.WARNING)
        self._voice = voice

    def emit(self, record: logging.LogRecord) -> None:
        """Say one record."""
        self._voice.say("warning", f"warning: {record.getMessage()}")
