"""What a device's owner chooses: flag over FEDBAC_* variable over file over default.

The file is TOML with the flags' long names as keys, for example

    edge = "gw1"
    broker = "mqtts://gateway.local"
    data = "photos"            # relative paths are relative to the file's folder
"""

from __future__ import annotations

import os
import tomllib
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import msgspec

from broker.topics import check_name
from broker.url import BrokerUrl
from device_agent.data import MissingData
from fedbac_edge.datasets.samples import DataError
from fedbac_edge.datasets.sources import KINDS
from fedbac_edge.signing import keys

DEFAULT_FILE = Path("/etc/fedbac/agent.toml")
DEFAULT_BROKER = "mqtt://localhost:1883"
Compute = Literal["auto", "cpu", "cuda"]
_PATHS = ("data", "state", "ca", "cert", "key")


class SettingsError(ValueError):
    """The settings are wrong; the message names the file or flag and what is possible."""


class AgentFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """The file's keys; what is absent is left to the defaults."""

    edge: str | None = None
    broker: str | None = None
    name: str | None = None
    data: str | None = None
    state: str | None = None
    device: Compute | None = None
    federation: str | None = None
    ca: str | None = None
    cert: str | None = None
    key: str | None = None
    client_id: str | None = None
    resize: bool | None = None
    strict: bool | None = None
    fit: bool | None = None
    release_key: str | None = None
    json: bool | None = None


@dataclass(frozen=True)
class Settings:
    """A device's settings, checked as far as that goes without a broker."""

    edge: str
    broker: BrokerUrl
    name: str | None
    data: Path
    state: Path
    device: Compute
    federation: str | None
    resize: bool
    strict: bool


@dataclass(frozen=True)
class ServeSettings:
    """What `fedbac-agent serve` needs, checked as far as that goes without a broker."""

    edge: str
    broker: BrokerUrl
    name: str | None
    state: Path
    federation: str | None
    release_key: bytes | None
    fit: bool = False


def read_file(path: Path) -> dict[str, Any]:
    """The settings in a file, paths made absolute. Raises SettingsError."""
    try:
        written = msgspec.convert(tomllib.loads(path.read_text("utf-8-sig")), AgentFile)
    except (OSError, UnicodeDecodeError) as error:
        raise SettingsError(f"{path} cannot be read: {error}") from error
    except tomllib.TOMLDecodeError as error:
        raise SettingsError(f"{path} is not valid TOML: {error}") from error
    except msgspec.ValidationError as error:
        known = ", ".join(AgentFile.__struct_fields__)
        raise SettingsError(f"{path}: {str(error).replace('`$.', '`')}; the settings are: {known}") from error
    settings = msgspec.to_builtins(written)
    for key in _PATHS:
        if key in settings:
            settings[key] = str(path.resolve().parent / settings[key])
    release_key = path.resolve().parent / settings.get("release_key", "")
    if release_key.is_file():  # else it is the key itself
        settings["release_key"] = str(release_key)
    return dict(settings)


def default_state(name: str | None) -> Path:
    """Where a device keeps its identity and its store by default.

    Below /var/lib/fedbac for root, else below $XDG_STATE_HOME/fedbac or ~/.local/state/fedbac: `device`, or
    `devices/NAME` for a device that was given a name, so that several fit on one machine.

    Raises SettingsError for a user that has no home folder.
    """
    if hasattr(os, "geteuid") and os.geteuid() == 0:
        base = Path("/var/lib")
    else:
        try:
            base = Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state")
        except RuntimeError:
            raise SettingsError(
                "this user has no home folder to keep the device's identity in: give a folder with --state"
            ) from None
    return base / "fedbac" / ("device" if name is None else f"devices/{name}")


def checked(
    *,
    edge: str | None,
    broker: str,
    name: str | None,
    data: str | None,
    state: str | None,
    device: Compute,
    federation: str | None,
    ca: str | None,
    cert: str | None,
    key: str | None,
    resize: bool,
    strict: bool = False,
    client_id: str | None = None,
) -> Settings:
    """Settings that a device can join with. Raises SettingsError, BadName, BadUrl, DataError."""
    edge, url = _place(edge, name, federation, broker, ca, cert, key, client_id)
    if data is None or not data.strip():
        raise MissingData(edge)
    if not Path(data).exists():
        raise DataError(data, "there is no such file or folder", f"Give {KINDS}")
    return Settings(
        edge=edge,
        broker=url,
        name=name,
        data=Path(data).absolute(),
        state=Path(state) if state else default_state(name),
        device=device,
        federation=federation,
        resize=resize,
        strict=strict,
    )


def checked_for_serving(
    *,
    edge: str | None,
    broker: str,
    name: str | None,
    state: str | None,
    federation: str | None,
    ca: str | None,
    cert: str | None,
    key: str | None,
    release_key: str | None,
    fit: bool = False,
    client_id: str | None = None,
) -> ServeSettings:
    """Settings that a device can serve with. Raises SettingsError, BadName, BadUrl."""
    edge, url = _place(edge, name, federation, broker, ca, cert, key, client_id)
    try:
        trusted = keys.read_public(release_key) if release_key else None
    except keys.KeyFileError as error:
        raise SettingsError(f"--release-key: {error}") from error
    return ServeSettings(
        edge=edge,
        broker=url,
        name=name,
        state=Path(state) if state else default_state(name),
        federation=federation,
        release_key=trusted,
        fit=fit,
    )


def _place(
    edge: str | None,
    name: str | None,
    federation: str | None,
    broker: str,
    ca: str | None,
    cert: str | None,
    key: str | None,
    client_id: str | None,
) -> tuple[str, BrokerUrl]:
    """The gateway and the broker. Raises SettingsError, BadName, BadUrl."""
    if edge is None:
        raise SettingsError(
            "no gateway was given: which one does this device belong to? For example --edge gw1"
        )
    check_name(edge, "gateway")
    if name is not None:
        check_name(name, "device")
    if federation is not None:
        check_name(federation, "federation")
    url = BrokerUrl.parse(broker, ca=ca or None, certificate=cert or None, key=key or None)
    url.tls_context()  # reads the certificates: a wrong file is named now, not at the first connection
    return edge, replace(url, client_id=client_id or None)
