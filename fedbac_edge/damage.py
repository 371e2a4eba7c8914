"""Is a store whole? SQLite's own check of every page, and every blob held to its hash."""

from __future__ import annotations

import hashlib
import sqlite3


def found(connection: sqlite3.Connection) -> str:
    """What is wrong with the open store, in a few words; "" when nothing is.

    Reads the whole file once. Raises sqlite3.Error where not even that is possible.
    """
    (answer,) = connection.execute("PRAGMA integrity_check(1)").fetchone()
    if answer != "ok":
        return " ".join(str(answer).split())[:200]
    for hash, data in connection.execute("SELECT hash, data FROM blobs"):
        if not isinstance(data, bytes) or hashlib.sha256(data).hexdigest() != hash:
            return f"the blob {str(hash)[:12]} is not what its hash says"
    return ""
