"""Rights: the users, what each may publish and read, and the files from which Mosquitto learns them.

    user            publishes                                    reads
    cloud           everything of its federation                 everything of its federation
    observer        nothing                                      everything of its federation
    <gw>            edge/<gw>/{status,reply,update},             spec, cloud/status, model/#, blob/#,
                    edge/<gw>/device/+/{task,receipt,infer}      edge/<gw>/{task,receipt,release},
                                                                 edge/<gw>/device/+/{status,reply,update,
                                                                 serving}, answer/<gw>/#
    <gw>/<dev>      its own {status,reply,update,serving,        spec, cloud/status, model/#, blob/#,
                    infer}, answer/<gw>/#, answer/cloud/#        edge/<gw>/{status,release}, its own {task,
                                                                 receipt,infer}, answer/<gw>/<dev>/#

So a model is asked by its device's own user, by its gateway and by the cloud, and each wants the answer below
`answer/` and its own user name. An operator's orders to the cloud are given as the cloud.

A device's user carries its gateway, so it cannot be taken for a gateway, nor for a device of another one:
no name holds a '/'. No will is outside its user's rights: it is the user's status.

Mosquitto grants every subscription and then delivers what may be read, so the discovery filter
`fedbac/v1/+/spec` shows each user the description of its own federation and no other.
"""

from __future__ import annotations

import base64
import hashlib
import secrets
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from broker.topics import ROOT, BadName, Leaf, answers, check_name, cloud_status, device, edge, spec
from broker.topics import device_filter as of_devices

CLOUD = "cloud"
OBSERVER = "observer"

UP: tuple[Leaf, ...] = ("status", "reply", "update")
"""Leaves on which a gateway speaks to the cloud, and a device to its gateway."""
DOWN: tuple[Leaf, ...] = ("task", "receipt")
"""Leaves on which they are spoken to."""

ITERATIONS = 101
"""Of PBKDF2, as mosquitto_passwd has it. More would slow the broker when a fleet comes back at once, and
guessing 24 random bytes is hopeless anyhow."""


class AccessError(ValueError):
    """Users for whom no access list or certificate can be made; the message says what to change."""


@dataclass(frozen=True)
class Rights:
    """Topics and filters that a user may publish on and read."""

    writes: tuple[str, ...]
    reads: tuple[str, ...]


def user_name(gateway: str | None = None, device: str | None = None) -> str:
    """The user of the cloud (no names), a gateway, or a device at a gateway."""
    return "/".join(name for name in (gateway, device) if name) or CLOUD


def split(user: str) -> tuple[str | None, str | None]:
    """(gateway, device) of a user; both None for the cloud and the observer. Raises BadName, AccessError."""
    if user in (CLOUD, OBSERVER):
        return None, None
    gateway, slash, name = user.partition("/")
    if gateway in (CLOUD, OBSERVER):
        raise AccessError(
            f"no gateway can be called {gateway!r} when access is by user name, since that is a user of its "
            f"own: give this gateway another name, for example {gateway}-1"
        )
    check_name(gateway, "gateway")
    if slash:
        check_name(name, "device (a user is cloud, observer, <gateway> or <gateway>/<device>)")
    return gateway, name or None


def users(roster: Mapping[str, Sequence[str]], others: Iterable[str] = ()) -> list[str]:
    """Every user with rights: the cloud, the observer, the roster, and `others` beyond the roster.

    Raises AccessError for a gateway that bears the name of another user, BadName for what is no user.
    """
    named = [CLOUD, OBSERVER]
    for gateway, devices in roster.items():
        split(f"{gateway}/x")
        named += [gateway, *(user_name(gateway, device) for device in devices)]
    named += others
    for user in named:
        split(user)
    return list(dict.fromkeys(named))


def rights(federation: str, user: str) -> Rights:
    """What `user` may do in `federation`; see the module. Raises BadName."""
    everything = f"{ROOT}/{check_name(federation, 'federation')}/#"
    if user == CLOUD:
        return Rights((everything,), (everything,))
    if user == OBSERVER:
        return Rights((), (everything,))
    gateway, name = split(user)
    assert gateway is not None
    shared = (
        spec(federation),
        cloud_status(federation),
        f"{ROOT}/{federation}/model/#",
        f"{ROOT}/{federation}/blob/#",
    )
    if name is None:
        return Rights(
            (
                *(edge(federation, gateway, leaf) for leaf in UP),
                *(of_devices(federation, gateway, leaf) for leaf in (*DOWN, "infer")),
            ),
            (
                *shared,
                *(edge(federation, gateway, leaf) for leaf in (*DOWN, "release")),
                *(of_devices(federation, gateway, leaf) for leaf in (*UP, "serving")),
                answers_for(federation, user),
            ),
        )
    return Rights(
        (
            *(device(federation, gateway, name, leaf) for leaf in (*UP, "serving", "infer")),
            answers_for(federation, gateway),
            answers_for(federation, CLOUD),
        ),
        (
            *shared,
            edge(federation, gateway, "status"),
            edge(federation, gateway, "release"),
            *(device(federation, gateway, name, leaf) for leaf in (*DOWN, "infer")),
            answers_for(federation, user),
        ),
    )


def answers_for(federation: str, user: str) -> str:
    """Filter for where a user may want the answers to its questions: answer/<user>/ and what follows."""
    return f"{answers(federation)}{user}/#"


def access_list(federation: str, users: Iterable[str]) -> str:
    """Text of Mosquitto's acl_file. A user not named in it may neither publish nor read."""
    lines = [f"# Access to federation {federation}. Generated: change the roster and generate it again."]
    for user in users:
        allowed = rights(federation, user)
        lines += ["", f"user {user}"]
        for topic in dict.fromkeys([*allowed.writes, *allowed.reads]):
            kinds = (topic in allowed.reads, topic in allowed.writes)
            lines.append(f"topic {_KIND[kinds]} {topic}")
    return "\n".join(lines) + "\n"


_KIND = {(True, False): "read", (False, True): "write", (True, True): "readwrite"}


def new_password() -> str:
    """24 random bytes in 32 characters that need no quoting in a URL."""
    return secrets.token_urlsafe(24)


def password_line(user: str, password: str, salt: bytes | None = None) -> str:
    """A line of Mosquitto's password_file: user:$7$iterations$salt$hash (PBKDF2 with SHA-512, RFC 8018)."""
    if ":" in user or not user.isprintable():
        raise BadName(f"{user!r} cannot be a user: ':' and control characters end a name in that file")
    salt = secrets.token_bytes(12) if salt is None else salt
    derived = hashlib.pbkdf2_hmac("sha512", password.encode(), salt, ITERATIONS)
    return f"{user}:$7${ITERATIONS}${_base64(salt)}${_base64(derived)}"


def _base64(data: bytes) -> str:
    return base64.b64encode(data).decode("ascii")
