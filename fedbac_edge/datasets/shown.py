"""Text for people, logs and messages from names of files that may be no text at all."""

from __future__ import annotations


def shown(text: str) -> str:
    r"""`text` with every byte that is no text written as \xe9: whatever prints or sends it can.

    Python keeps such bytes of a path as lone surrogates, which neither UTF-8 nor MessagePack has words for.
    """
    if text.isascii():
        return text
    return text.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")
