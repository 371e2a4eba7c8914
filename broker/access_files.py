"""A folder from which Mosquitto learns each user's rights: access list, passwords, certificates.

    acl                       the access list
    passwords                 hashes, when users show passwords
    users/cloud               the passwords themselves, a file for each user, to set the clients up
    users/observer
    users/gateways/<gw>
    users/devices/<gw>/<dev>
    ca.pem, server.pem, server.key      copies, when users show certificates

Passwords that are there stay. A new one: delete the user's file and write the folder again.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from broker import access, secret_files
from broker.mosquitto import Tls


def password_path(folder: Path, user: str) -> Path:
    """The file with the password of a user. Raises BadName, AccessError."""
    gateway, device = access.split(user)
    if gateway is None:
        return folder / "users" / user
    if device is None:
        return folder / "users" / "gateways" / gateway
    return folder / "users" / "devices" / gateway / device


def write_access_list(folder: Path, federation: str, users: Sequence[str]) -> dict[str, Any]:
    """Write `acl`; returns the options of `mosquitto.configuration` that use it."""
    path = folder.resolve() / "acl"
    secret_files.write(path, access.access_list(federation, users).encode())
    return {"acl_file": path}


def write_passwords(folder: Path, users: Sequence[str]) -> dict[str, Any]:
    """Write `passwords` and `users/`; former users lose their file. Returns options, see above."""
    folder = folder.resolve()
    lines = [access.password_line(user, _password(folder, user)) for user in users]
    path = folder / "passwords"
    secret_files.write(path, ("\n".join(lines) + "\n").encode())
    present = {password_path(folder, user) for user in users}
    for found in (folder / "users").rglob("*"):
        if found.is_file() and found not in present:
            found.unlink()
    return {"password_file": path}


def copy_certificates(folder: Path, ca: Path, certificate: Path, key: Path) -> dict[str, Any]:
    """Copy what the broker shows and asks for, so that its folder is whole. Returns options, see above."""
    folder = folder.resolve()
    places = (folder / "ca.pem", folder / "server.pem", folder / "server.key")
    for source, place in zip((ca, certificate, key), places, strict=True):
        secret_files.write(place, source.read_bytes())
    return {"tls": Tls(*places, require_client=True)}


def _password(folder: Path, user: str) -> str:
    path = password_path(folder, user)
    if path.is_file() and (password := path.read_text("utf-8").strip()):
        return password
    password = access.new_password()
    secret_files.write(path, f"{password}\n".encode())
    return password
