"""The topic tree of a federation: builders and one parser. Pure text.

    fedbac/v1/<federation>/spec                             what this federation is
                          /cloud/{status,order}
                          /answer/...                       where askers may want their answers
                          /model/<part>                     manifest of the newest generation
                          /blob/<hash>/<index>              one chunk
                          /edge/<gateway>/{status,task,reply,update,receipt,release}
                          /edge/<gateway>/device/<device>/{status,task,reply,update,receipt,serving,infer}

The deepest topic has seven slashes, the most that every hosted broker allows.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal, TypeAlias

ROOT = "fedbac/v1"
LEAVES = ("status", "task", "reply", "update", "receipt", "release", "serving", "infer")
Leaf: TypeAlias = Literal["status", "task", "reply", "update", "receipt", "release", "serving", "infer"]

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_HASH = re.compile(r"[0-9a-f]{64}")
_INDEX = re.compile(r"0|[1-9][0-9]{0,5}")
_ALLOWED = "1 to 64 of the letters A-Z a-z, digits, '.', '_' and '-', beginning with a letter or digit"


class BadName(ValueError):
    """A name that cannot stand in a topic; the message says what is allowed."""


def check_name(name: str, what: str) -> str:
    """Return `name` when it may stand in a topic, else raise BadName. `what` is for people: "device"."""
    if not _NAME.fullmatch(name):
        shown = repr(name if len(name) <= 80 else name[:77] + "...")
        raise BadName(f"{shown} cannot be the name of a {what}: a name is {_ALLOWED}")
    return name


@dataclass(frozen=True)
class Address:
    """Where a topic points to.

    Attributes:
        kind: "spec", "order", "model", "blob", or one of LEAVES.
        federation: name of the federation.
        gateway: set below edge/<gateway>; None for the cloud's own topics.
        device: set below device/<device>.
        part: set for "model".
        digest: content hash, set for "blob".
        index: chunk number, set for "blob".

    """

    kind: str
    federation: str
    gateway: str | None = None
    device: str | None = None
    part: str | None = None
    digest: str | None = None
    index: int | None = None


def spec(federation: str) -> str:
    """Topic of the federation's specification."""
    return f"{ROOT}/{check_name(federation, 'federation')}/spec"


def cloud_status(federation: str) -> str:
    """Topic where the cloud says that it is there."""
    return f"{ROOT}/{check_name(federation, 'federation')}/cloud/status"


def cloud_order(federation: str) -> str:
    """Topic of an operator's signed orders to the cloud."""
    return f"{ROOT}/{check_name(federation, 'federation')}/cloud/order"


def answers(federation: str) -> str:
    """What the response topics below this federation's root begin with."""
    return f"{ROOT}/{check_name(federation, 'federation')}/answer/"


def model(federation: str, part: str) -> str:
    """Topic of a part's manifest."""
    return f"{ROOT}/{check_name(federation, 'federation')}/model/{check_name(part, 'part')}"


def blob(federation: str, digest: str, index: int) -> str:
    """Topic of chunk `index` (from 0) of the content with this sha256 (64 hex digits)."""
    if not _HASH.fullmatch(digest):
        raise BadName(f"{digest!r} is no content hash: 64 digits of 0-9a-f")
    if not _INDEX.fullmatch(str(index)):
        raise BadName(f"{index} is no chunk number: 0 to 999999")
    return f"{ROOT}/{check_name(federation, 'federation')}/blob/{digest}/{index}"


def blob_prefix(federation: str, digest: str) -> str:
    """What the topics of all chunks of one content hash begin with."""
    return blob(federation, digest, 0)[:-1]


def blob_filter(federation: str, digest: str) -> str:
    """Filter for all chunks of one content hash."""
    return blob_prefix(federation, digest) + "+"


def edge(federation: str, gateway: str, leaf: Leaf) -> str:
    """Topic between the cloud and one gateway."""
    root = f"{ROOT}/{check_name(federation, 'federation')}"
    return f"{root}/edge/{check_name(gateway, 'gateway')}/{_check_leaf(leaf)}"


def device(federation: str, gateway: str, name: str, leaf: Leaf) -> str:
    """Topic between one gateway and one of its devices."""
    root = f"{ROOT}/{check_name(federation, 'federation')}/edge/{check_name(gateway, 'gateway')}"
    return f"{root}/device/{check_name(name, 'device')}/{_check_leaf(leaf)}"


def edge_filter(federation: str, leaf: Leaf) -> str:
    """What the cloud subscribes to: one leaf of every gateway."""
    return f"{ROOT}/{check_name(federation, 'federation')}/edge/+/{_check_leaf(leaf)}"


def device_filter(federation: str, gateway: str, leaf: Leaf) -> str:
    """What a gateway subscribes to: one leaf of each of its devices."""
    root = f"{ROOT}/{check_name(federation, 'federation')}/edge/{check_name(gateway, 'gateway')}"
    return f"{root}/device/+/{_check_leaf(leaf)}"


def parse(topic: str) -> Address | None:
    """Read a topic back; None for whatever no builder of this module could have made."""
    prefix = ROOT + "/"
    if not topic.startswith(prefix):
        return None
    federation, *rest = topic[len(prefix) :].split("/")
    if not _NAME.fullmatch(federation):
        return None
    match rest:
        case ["spec"]:
            return Address("spec", federation)
        case ["cloud", "status"]:
            return Address("status", federation)
        case ["cloud", "order"]:
            return Address("order", federation)
        case ["model", part] if _NAME.fullmatch(part):
            return Address("model", federation, part=part)
        case ["blob", digest, index] if _HASH.fullmatch(digest) and _INDEX.fullmatch(index):
            return Address("blob", federation, digest=digest, index=int(index))
        case ["edge", gateway, leaf] if leaf in LEAVES and _NAME.fullmatch(gateway):
            return Address(leaf, federation, gateway)
        case ["edge", gateway, "device", name, leaf] if leaf in LEAVES:
            if _NAME.fullmatch(gateway) and _NAME.fullmatch(name):
                return Address(leaf, federation, gateway, name)
    return None


def matches(filter: str, topic: str) -> bool:
    """MQTT's rule for topic filters: + is one level, a final # the rest."""
    if "+" not in filter and "#" not in filter:
        return filter == topic
    wanted, found = filter.split("/"), topic.split("/")
    for index, level in enumerate(wanted):
        if level == "#":
            return True
        if index >= len(found) or level not in ("+", found[index]):
            return False
    return len(wanted) == len(found)


def _check_leaf(leaf: str) -> str:
    if leaf not in LEAVES:
        raise BadName(f"{leaf!r} is no leaf of the topic tree: one of {', '.join(LEAVES)}")
    return leaf
