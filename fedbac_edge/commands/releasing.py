"""What `fedbac init`, `cloud run` and `release` share about releases: the key, and what is said."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from fedbac_edge.commands.failures import Misconfigured

if TYPE_CHECKING:
    from fedbac_edge.node.node import Node
    from fedbac_edge.node.store import LedgerLine
    from fedbac_edge.settings.federation import Federation
    from fedbac_edge.signing.keys import SigningKey
    from fedbac_edge.terminal.views import View

KEY_FILE = "release.key"
"""In the state directory of a cloud that made its own key."""


def key_beside(file: Path) -> Path:
    """Where `fedbac init` puts the private key: federation.toml, federation.release.key."""
    return file.with_suffix(".release.key")


def find_key(file: Path | None, federation: Federation, directory: Path) -> Path | None:
    """The private key beside the federation's file, or in the state directory; None: there is none yet."""
    places = [directory / KEY_FILE] if file is None else [key_beside(file), directory / KEY_FILE]
    return next((place for place in places if place.is_file()), None)


def open_key(file: Path | None, federation: Federation, directory: Path, *, make: bool) -> SigningKey:
    """The key that signs the federation's releases; with `make` the cloud's first start makes one.

    Raises Misconfigured when it is not the one that the federation's file names.
    """
    from fedbac_edge.signing import keys

    found = find_key(file, federation, directory)
    named = federation.releases.key
    try:
        if found is None and (named or not make):
            where = directory / KEY_FILE if file is None else key_beside(file)
            raise Misconfigured(
                f"the private key of the releases is not here: put it at {where}"
                + (", or take the key out of [releases]" if named else "")
            )
        key = keys.make(directory / KEY_FILE) if found is None else keys.load(found)
    except keys.KeyFileError as error:
        raise Misconfigured(str(error)) from error
    if named and keys.from_text(named) != key.public:
        raise Misconfigured(
            f"{found} is not the key that [releases] names: its public half is {keys.to_text(key.public)}"
        )
    return key


class ReleaseNotes:
    """Tells a view of each release that the cloud's ledger has come to hold."""

    def __init__(self, view: View, node: Node) -> None:
        self._view = view
        lines = node.store.ledger()
        self._last = lines[-1].id if lines else 0

    def __call__(self, node: Node) -> None:
        """After every event."""
        for kind in ("released", "release failed"):
            for line in node.store.ledger(kind=kind, after=self._last):
                self._last = max(self._last, line.id)
                self._view.note(sentence(line))


def sentence(line: LedgerLine) -> str:
    """A ledger line about a release, for people."""
    if line.kind == "release failed":
        return f"round {line.round}: no release could be built: {line.detail['why']}"
    number, model = line.detail["number"], line.detail["model"]
    back = f", the model of release {model} again" if model != number else ""
    clusters = [
        f"cluster {cluster} for {', '.join(made['sites'])}"
        + ("" if made["accuracy"] is None else f" (hold-out {100 * made['accuracy']:.1f} %)")
        for cluster, made in line.detail["clusters"].items()
    ]
    return f"release {number} (round {line.round}{back}): {'; '.join(clusters)}"
