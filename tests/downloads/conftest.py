"""A real HTTP server on loopback that serves a folder, as well or as badly as a test wants."""

from __future__ import annotations

import contextlib
import re
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest


@dataclass
class Server:
    """`folder` is what it serves; the rest are its faults."""

    folder: Path
    url: str = ""
    ranges: bool = True
    cut_after: list[int] = field(default_factory=list)
    """So many bytes of the next answers, then the connection is closed."""
    answers: list[int] = field(default_factory=list)
    """Status of the next answers, instead of files."""
    retry_after: str = ""
    piece: int = 1 << 16
    pause_s: float = 0.0
    """After each piece."""
    lie: int = 0
    """Added to the length that it says."""
    shift: int = 0
    """Added to where it goes on."""
    asked: list[tuple[str, str]] = field(default_factory=list)
    """(path, Range) of every request."""
    closing: threading.Event = field(default_factory=threading.Event)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    faults: Server

    def do_GET(self) -> None:
        faults, wanted = self.faults, self.headers.get("Range", "")
        faults.asked.append((self.path, wanted))
        path = faults.folder / self.path.lstrip("/")
        # Taken before the answer begins: the client may ask again before this one has ended.
        stop = faults.cut_after.pop(0) if faults.cut_after and not faults.answers else None
        if faults.answers:
            return self._empty(faults.answers.pop(0))
        if not path.is_file():
            return self._empty(404)
        data, start = path.read_bytes(), 0
        if wanted and faults.ranges:
            said = re.fullmatch(r"bytes=(\d+)-", wanted)
            assert said is not None
            start = int(said[1]) + faults.shift
            if start >= len(data):
                return self._empty(416)
            self.send_response(206)
            total = len(data) + faults.lie
            self.send_header("Content-Range", f"bytes {start}-{total - 1}/{total}")
        else:
            self.send_response(200)
        self.send_header("Content-Length", str(len(data) - start + faults.lie))
        self.end_headers()
        end = len(data) if stop is None else min(start + stop, len(data))
        with contextlib.suppress(ConnectionError):  # the client has heard enough
            for at in range(start, end, faults.piece):
                self.wfile.write(data[at : min(at + faults.piece, end)])
                if faults.closing.wait(faults.pause_s):
                    break
        self.close_connection = True
        return None

    def _empty(self, status: int) -> None:
        self.send_response(status)
        if self.faults.retry_after:
            self.send_header("Retry-After", self.faults.retry_after)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    """Running; its folder is tmp_path/served."""
    folder = tmp_path / "served"
    folder.mkdir()
    found = Server(folder)
    handler = type("Handler", (_Handler,), {"faults": found})
    http = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    http.daemon_threads = True
    found.url = f"http://127.0.0.1:{http.server_port}"
    thread = threading.Thread(target=http.serve_forever, args=(0.02,))
    thread.start()
    yield found
    found.closing.set()
    http.shutdown()
    http.server_close()
    thread.join()
