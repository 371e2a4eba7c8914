"""Who asked for what, as a tree of topic levels: a topic finds its subscribers without trying all filters."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass
class _Level:
    children: dict[str, _Level] = field(default_factory=dict)
    clients: dict[str, None] = field(default_factory=dict)
    """Clients with a filter that ends here."""


class SubscriptionTree:
    """Filters of all clients, by MQTT's rule: + is one level, a final # the rest, none included."""

    def __init__(self) -> None:
        self._root = _Level()

    def add(self, client: str, filter: str) -> None:
        """A client asks for a filter; a second time changes nothing."""
        level = self._root
        for name in filter.split("/"):
            level = level.children.setdefault(name, _Level())
        level.clients[client] = None

    def remove(self, client: str, filter: str) -> None:
        """A client asks no longer; empty branches go."""
        path, level = [], self._root
        for name in filter.split("/"):
            if name not in level.children:
                return
            path.append((level, name))
            level = level.children[name]
        level.clients.pop(client, None)
        for parent, name in reversed(path):
            child = parent.children[name]
            if child.clients or child.children:
                return
            del parent.children[name]

    def subscribers(self, topic: str) -> set[str]:
        """The clients of which at least one filter matches."""
        found: set[str] = set()
        _collect(self._root, topic.split("/"), 0, found)
        return found


def _collect(level: _Level, names: list[str], at: int, found: set[str]) -> None:
    if rest := level.children.get("#"):
        found.update(rest.clients)
    if at == len(names):
        found.update(level.clients)
        return
    for name in (names[at], "+"):
        if child := level.children.get(name):
            _collect(child, names, at + 1, found)
