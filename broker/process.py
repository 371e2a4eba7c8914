"""A broker as a child process: started until its port answers, log in a file, ended in order or at once."""

from __future__ import annotations

import ctypes
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

_PR_SET_PDEATHSIG = 1


class BrokerError(RuntimeError):
    """The broker did not start, or may not be started like this; the message says what to do."""


class BrokerProcess:
    """One program that listens on host:port.

    Args:
        command: program and arguments.
        host, port: where it will listen.
        log_file: its output is appended here.
        environment: variables on top of ours.

    """

    def __init__(
        self,
        command: Sequence[str],
        host: str,
        port: int,
        log_file: Path,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self._command = list(command)
        self._host, self._port = host, port
        self._log_file = log_file
        self._environment = {**os.environ, **(environment or {})}
        self._process: subprocess.Popen[bytes] | None = None

    def start(self, timeout: float = 15.0, dies_with_us: bool = False) -> None:
        """Start and wait until the port answers. Raises BrokerError.

        dies_with_us: on Linux the kernel ends the broker when the calling *thread* ends, however it does.
        """
        if self.is_running:
            return
        if _answers(self._host, self._port):
            raise BrokerError(
                f"something listens on {self._host}:{self._port} already, perhaps another broker: "
                f"stop it, or choose another port"
            )
        with self._log_file.open("ab") as output:
            tie = _end_with_parent if dies_with_us and sys.platform == "linux" else None
            self._process = subprocess.Popen(
                self._command,
                stdin=subprocess.PIPE,
                start_new_session=True,  # Ctrl-C is for us, and we then end it in order
                stdout=output,
                stderr=subprocess.STDOUT,
                env=self._environment,
                preexec_fn=tie,
            )
        end = time.monotonic() + timeout
        while not _answers(self._host, self._port):
            code = self._process.poll()
            if code is not None or time.monotonic() > end:
                self.kill()
                state = (
                    f"ended with code {code}"
                    if code is not None
                    else f"did not listen within {timeout:.0f} s"
                )
                raise BrokerError(f"the broker {state}; its last words: {self.last_words()}")
            time.sleep(0.02)

    @property
    def is_running(self) -> bool:
        """True while the process lives."""
        return self._process is not None and self._process.poll() is None

    @property
    def pid(self) -> int | None:
        """Process id while it lives."""
        return self._process.pid if self._process is not None and self.is_running else None

    def last_words(self, most: int = 400) -> str:
        """The end of the log, on one line."""
        text = self._log_file.read_text(encoding="utf-8", errors="replace") if self._log_file.exists() else ""
        return " | ".join(line.strip() for line in text[-most:].splitlines() if line.strip()) or "(none)"

    def wait(self, timeout: float) -> int | None:
        """Exit code once it has ended, None when it still runs after `timeout` seconds."""
        if self._process is None:
            return 0
        try:
            return self._process.wait(timeout)
        except subprocess.TimeoutExpired:
            return None

    def stop(self, timeout: float = 5.0) -> None:
        """SIGTERM, and SIGKILL when that is not heeded in `timeout` seconds. Twice is fine."""
        if self._process is not None and self.is_running:
            self._process.send_signal(signal.SIGTERM)
            self.wait(timeout)
        self.kill()

    def kill(self) -> None:
        """SIGKILL. Twice is fine."""
        process, self._process = self._process, None
        if process is None:
            return
        process.kill()
        process.wait()
        if process.stdin is not None:
            process.stdin.close()


def _answers(host: str, port: int) -> bool:
    if host in ("0.0.0.0", "::", ""):
        host = "127.0.0.1"
    try:
        with socket.create_connection((host, port), timeout=1.0):
            return True
    except OSError:
        return False


def _end_with_parent() -> None:
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
