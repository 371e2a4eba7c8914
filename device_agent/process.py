"""One training process as its agent sees it: started, spoken to, ended, and asked what it died of."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from multiprocessing.connection import Connection

from device_agent import pipe


class TrainerProcess:
    """A running `trainer` that has been told to read the data. Raises OSError when it cannot be started."""

    def __init__(self, threads: int) -> None:
        ours, theirs = socket.socketpair()
        try:
            # A session of its own: Ctrl-C in the terminal reaches the agent alone, which ends its trainer.
            self._process = subprocess.Popen(
                [sys.executable, "-m", "device_agent.trainer", str(theirs.fileno())],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                start_new_session=True,
                env={
                    **os.environ,
                    "OMP_NUM_THREADS": str(threads),
                    "OPENBLAS_NUM_THREADS": str(threads),
                    # The agent's own modules, and nothing that lies in the working directory by chance.
                    "PYTHONSAFEPATH": "1",
                    "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
                },
            )
        except OSError:
            ours.close()
            raise
        finally:
            theirs.close()
        self.connection = Connection(ours.detach())

    @property
    def pid(self) -> int:
        """Of the process."""
        return self._process.pid

    def send(self, order: pipe.ToTrainer) -> None:
        """Raises OSError when the process is gone."""
        pipe.send(self.connection, order)

    def kill(self) -> None:
        """From any thread; `end` must follow."""
        self._process.kill()

    def end(self) -> None:
        """Kill and reap; whatever it was doing, it is gone afterwards."""
        self.connection.close()
        self._process.kill()
        self._process.wait()

    def was_killed(self) -> bool:
        """True when it went by SIGKILL, as for lack of memory; after `cause`."""
        return self._process.returncode == -signal.SIGKILL

    def cause(self) -> str:
        """Why it went, after its socket closed: a sentence."""
        try:
            code = self._process.wait(2.0)
        except subprocess.TimeoutExpired:
            return "the training process closed its socket"
        if code == -signal.SIGKILL:
            return "the training process was killed (signal 9), most likely for lack of memory"
        if code < 0:
            return f"the training process died of signal {-code} ({_name(-code)})"
        return f"the training process ended by itself with exit code {code}"


def _name(number: int) -> str:
    """SIGILL, with what it means for people."""
    try:
        name = signal.Signals(number).name
    except ValueError:
        return "unknown"
    return f"{name}: a build for another processor?" if number == signal.SIGILL else name
