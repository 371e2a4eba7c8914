"""Nodes of ejabberd for tests: each in a folder, on ports and under an epmd of its own.

The package's own service, its node name and its epmd are not touched.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

CONFIGURATION = """\
hosts: [localhost]
loglevel: warning
listen:
  - port: {port}
    ip: "127.0.0.1"
    module: mod_mqtt
    backlog: 100
    max_payload_size: {most}
auth_method: anonymous
anonymous_protocol: login_anon
allow_multiple_connections: true
modules:
  mod_mqtt:
    session_expiry: 1 hour
    max_queue: 20000
    match_retained_limit: infinity
"""
START_S = 90.0


def installed() -> bool:
    """True where Debian's package is."""
    return shutil.which("erl") is not None and any(Path("/usr/lib").glob("*/ejabberd-*/ebin"))


def free_port() -> int:
    """A TCP port of the loopback address that was free a moment ago."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


class Erlang:
    """What the nodes of one test share: an epmd on a port of its own, and a cookie."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.cookie = folder, secrets.token_hex(8)
        libraries = sorted({str(path.parents[1]) for path in Path("/usr/lib").glob("*/ejabberd-*/ebin")})
        self.environment = {
            **os.environ,
            "HOME": str(folder),
            "ERL_EPMD_PORT": str(free_port()),
            "ERL_EPMD_ADDRESS": "127.0.0.1",
            "ERL_LIBS": os.pathsep.join(libraries),
            "ERL_MAX_PORTS": "4096",
        }

    def command(self, name: str, *rest: str) -> list[str]:
        own = ["-sname", f"{name}@localhost", "-setcookie", self.cookie, "-noinput"]
        return ["erl", *own, "-kernel", "inet_dist_use_interface", "{127,0,0,1}", *rest]

    def call(self, node: str, expression: str) -> str:
        """Let a node evaluate `M, F, A`; what it printed of the answer."""
        text = f"io:format(\"~p\", [rpc:call('{node}@localhost', {expression}, 30000)]), halt()."
        asking = self.command(f"ctl{secrets.token_hex(3)}", "-hidden", "-eval", text)
        return subprocess.run(
            asking, env=self.environment, cwd=self.folder, capture_output=True, text=True, timeout=120
        ).stdout

    def close(self) -> None:
        """End the epmd."""
        subprocess.run(["epmd", "-kill"], env=self.environment, capture_output=True, timeout=30)


class Node:
    """One ejabberd."""

    def __init__(self, erlang: Erlang, name: str, most: int = 131_072, rules: str = "") -> None:
        self.erlang, self.name, self.port = erlang, name, free_port()
        self._folder = erlang.folder / name
        self._folder.mkdir()
        self._configuration = self._folder / "ejabberd.yml"
        self._configuration.write_text(CONFIGURATION.format(port=self.port, most=most) + rules)
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        """With a user and a password, which 23.01 wants even of anonymous clients."""
        return f"mqtt://anybody:anything@127.0.0.1:{self.port}"

    def start(self) -> None:
        """Start and wait until the port answers."""
        environment = {
            **self.erlang.environment,
            "EJABBERD_CONFIG_PATH": str(self._configuration),
            "EJABBERD_LOG_PATH": str(self._folder / "ejabberd.log"),
        }
        command = self.erlang.command(
            self.name, "-mnesia", "dir", f'"{self._folder / "mnesia"}"', "-s", "ejabberd"
        )
        with (self._folder / "output").open("ab") as output:
            self._process = subprocess.Popen(
                command, env=environment, cwd=self._folder, stdout=output, stderr=output
            )
        self.wait()

    def wait(self) -> None:
        """Until the port answers."""
        end = time.monotonic() + START_S
        while True:
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self.port), 1.0):
                return
            assert self._process is not None
            assert self._process.poll() is None, (self._folder / "output").read_text()[-2000:]
            assert time.monotonic() < end, f"{self.name} did not start"
            time.sleep(0.2)

    def join(self, other: Node) -> None:
        """Become one cluster with `other`."""
        end = time.monotonic() + START_S
        while True:  # on a loaded machine a node answers its port before it answers other nodes
            said = self.erlang.call(self.name, f"ejabberd_cluster, join, ['{other.name}@localhost']")
            running = self.erlang.call(self.name, "mnesia, system_info, [running_db_nodes]")
            if self.name in running and other.name in running:
                break
            assert time.monotonic() < end, f"{said} {running}"
            time.sleep(0.5)
        self.wait()

    def kill(self) -> None:
        """End it like a power cut."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None


@contextlib.contextmanager
def nodes(folder: Path, *names: str, most: int = 131_072, rules: str = "") -> Iterator[list[Node]]:
    """Running nodes, in one cluster when there are several; `rules`: more lines of mod_mqtt's."""
    erlang = Erlang(folder)
    made: list[Node] = []
    try:
        for name in names:
            made.append(Node(erlang, f"{name}{secrets.token_hex(3)}", most, rules))
            made[-1].start()
            if len(made) > 1:
                made[-1].join(made[0])
        yield made
    finally:
        for node in made:
            node.kill()
        erlang.close()
