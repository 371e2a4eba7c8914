"""Stores after a power cut, in all three roles: who can go on goes on, who cannot says what to do."""

from __future__ import annotations

import hashlib
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import numpy as np
import pytest

from device_agent.recovery import opened_or_new
from device_agent.voice import Voice
from fedbac_edge.node.store import Store, StoreDamaged
from fedbac_edge.protocol.device.state import DeviceState

if TYPE_CHECKING:
    from tests.field.conftest import Fleet

PAGE = 4096


def make_store(path: Path) -> None:
    """A store as a process leaves it: several pages of state, blobs and ledger."""
    store = Store(path)
    with store.transaction():
        store.write("machine", msgspec.msgpack.encode(DeviceState(instance="0badcafe", session=7)))
        for number in range(3):
            data = np.random.default_rng(number).bytes(20_000)
            store.keep_blob(hashlib.sha256(data).hexdigest(), data)
            store.own(f"topic-{number}", data[:2000])
        for number in range(200):
            store.log(0.0, number, "kind", "subject", {"number": number})
    store.close()


def random_pages(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[PAGE : 8 * PAGE] = np.random.default_rng(1).bytes(7 * PAGE)
    path.write_bytes(data)


def every_third_page(path: Path) -> None:
    data = bytearray(path.read_bytes())
    for start in range(3 * PAGE, len(data), 3 * PAGE):
        data[start : start + PAGE] = np.random.default_rng(start).bytes(len(data[start : start + PAGE]))
    path.write_bytes(data)


def truncated(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: 5 * PAGE])


def zeroed_header(path: Path) -> None:
    path.write_bytes(bytes(100) + path.read_bytes()[100:])


def text(path: Path) -> None:
    path.write_text("to be or not to be\n" * 100)


def zero_length(path: Path) -> None:
    path.write_bytes(b"")


def flipped_byte_in_a_blob(path: Path) -> None:
    """SQLite has no checksum of what a row holds: only the hash tells."""
    needle = np.random.default_rng(0).bytes(20_000)[8_000:8_032]
    data = bytearray(path.read_bytes())
    at = data.index(needle)
    data[at] ^= 1
    path.write_bytes(data)


def unreadable_state(path: Path) -> None:
    connection = sqlite3.connect(path)
    connection.execute("UPDATE state SET value = ? WHERE key = 'machine'", (b"\xc1" * 50,))
    connection.commit()
    connection.close()


DAMAGES = [
    random_pages,
    every_third_page,
    truncated,
    zeroed_header,
    text,
    zero_length,
    flipped_byte_in_a_blob,
    unreadable_state,
]
Damage = Callable[[Path], None]


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_device_moves_it_aside_and_goes_on(
    damage: Damage, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "gw1.sqlite"
    for _ in range(2):  # the second time nothing piles up
        path.unlink(missing_ok=True)
        make_store(path)
        damage(path)
        spoiled = path.read_bytes()
        with opened_or_new(tmp_path, "gw1", DeviceState, Voice(False), "that costs a round") as store:
            assert store.read("machine") is None, "a new one"
            store.write("machine", msgspec.msgpack.encode(DeviceState(instance="0badcafe")))
        said = capsys.readouterr().out
        assert str(path) in said
        assert "moved it to" in said
        assert "that costs a round" in said
        (aside,) = tmp_path.glob("gw1.sqlite.damaged-*[0-9]")
        assert aside.read_bytes() == spoiled
        with opened_or_new(tmp_path, "gw1", DeviceState, Voice(False), "") as store:
            assert store.read("machine") is not None, "and that one stays"
        assert not capsys.readouterr().out


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("role", ["cloud", "gateway"])
def test_cloud_and_gateway_say_what_to_do(role: str, damage: Damage, tmp_path: Path) -> None:
    """Exit code 2 and a sentence; nothing is changed, and above all no new federation begins."""
    (tmp_path / "federation.toml").write_text('name = "f"\n[model]\nclasses = ["a", "b"]\n')
    path = tmp_path / ("cloud.sqlite" if role == "cloud" else "gateway-gw1.sqlite")
    make_store(path)
    if role == "cloud" and damage is not unreadable_state:
        connection = sqlite3.connect(path)
        connection.execute("DELETE FROM state")
        connection.commit()
        connection.close()
    damage(path)
    spoiled = path.read_bytes()
    command = {
        "cloud": ["cloud", "run", "--federation", str(tmp_path / "federation.toml")],
        "gateway": ["gateway", "run", "gw1", "--federation", "f"],
    }[role]
    done = subprocess.run(
        [sys.executable, "-m", "fedbac_edge.cli", *command, "--state", str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 2, done.stderr
    assert "Traceback" not in done.stderr
    assert str(path) in done.stderr
    assert ("fedbac restore" if role == "cloud" else "move the file away") in done.stderr
    assert path.read_bytes() == spoiled


def test_a_serving_device_goes_on(tmp_path: Path) -> None:
    """A process, without a broker."""
    (tmp_path / "serving").mkdir()
    path = tmp_path / "serving" / "gw1.sqlite"
    make_store(path)
    random_pages(path)
    command = [
        "serve",
        "--edge",
        "gw1",
        "--federation",
        "f",
        "--name",
        "dev",
        "--broker",
        "mqtt://127.0.0.1:9",
    ]
    process = subprocess.Popen(
        [sys.executable, "-u", "-m", "device_agent", *command, "--state", str(tmp_path)],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    assert process.stdout is not None
    lines = []
    for line in process.stdout:
        lines.append(line)
        if "serves gw1" in line:
            process.send_signal(signal.SIGTERM)
    assert process.wait(30) == 0, lines
    assert any("moved it to" in line and "--release-key" in line for line in lines), lines


def test_a_training_device_goes_on(fleet: Fleet) -> None:
    """A process, which finds its damaged store after a restart and takes part in the next round."""
    fleet.wait_until(lambda: fleet.counted() >= 1, "a first round")
    fleet.processes["dev"].terminate()  # with its changes folded in: a WAL would repair the pages
    assert fleet.processes["dev"].wait(20) == 0
    random_pages(fleet.state / "dev" / "again.gw1.sqlite")
    then, mark = fleet.counted(), len(fleet.log("dev"))
    fleet.start("dev")
    fleet.wait_for("dev", "moved it to", mark)
    fleet.wait_until(lambda: fleet.counted() > then + 1, "a round with the new store")


def test_a_store_that_is_being_made_is_never_empty(tmp_path: Path) -> None:
    """Else a process that was killed at its first start would find a damaged store."""
    path = tmp_path / "s.sqlite"
    (tmp_path / "s.sqlite.new").write_bytes(b"half of one")
    Store(path).close()
    assert sorted(p.name for p in tmp_path.iterdir()) == ["s.sqlite"]
    zero_length(path)
    with pytest.raises(StoreDamaged, match="empty"):
        Store(path)


@pytest.mark.parametrize(
    ("role", "existing"),
    [("cloud", False), ("device", False), ("cloud", True), ("gateway", True), ("device", True)],
)
def test_a_full_disk_at_start_is_tried_again(role: str, existing: bool, tmp_path: Path) -> None:
    """Exit code 1, and never the advice to move a store away that is whole."""
    disk = tmp_path / "disk"
    disk.mkdir()
    (tmp_path / "federation.toml").write_text('name = "f"\n[model]\nclasses = ["a", "b"]\n')
    command = {
        "cloud": f"fedbac_edge.cli cloud run --federation {tmp_path / 'federation.toml'} --state {disk}",
        "gateway": f"fedbac_edge.cli gateway run gw1 --federation f --state {disk}",
        "device": f"device_agent serve --edge gw1 --federation f --name dev --state {disk}",
    }[role]
    name = {"cloud": "cloud", "gateway": "gateway-gw1", "device": "serving/gw1"}[role]
    make = (
        f"mkdir -p {(disk / name).parent}; {sys.executable} -c 'from fedbac_edge.node.store import Store; "
        f'Store(__import__("pathlib").Path("{disk / name}.sqlite")).close()\'; '
    )
    script = (
        f"mount -t tmpfs -o size=256k none {disk} || exit 77; {make if existing else ''}"
        f"dd if=/dev/zero of={disk}/ballast bs=4k 2>/dev/null; "
        f"{sys.executable} -m {command} --broker mqtt://127.0.0.1:9"
    )
    done = subprocess.run(
        ["unshare", "-rm", "sh", "-c", script], capture_output=True, text=True, timeout=120, check=False
    )
    if done.returncode == 77 or "unshare" in done.stderr:
        pytest.skip(f"no mounts here: {done.stderr}")
    assert done.returncode == 1, done.stdout + done.stderr
    assert "Traceback" not in done.stderr
    assert "make room" in done.stdout + done.stderr
    assert "move" not in done.stdout + done.stderr
