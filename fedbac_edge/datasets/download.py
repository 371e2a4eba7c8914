"""Fetches one published file over HTTP: goes on after a cut, held to size and hash, whole or not there.

What has come is kept beside the target as NAME.part until its hash is right. So a killed download goes on
where it stopped (HTTP Range, RFC 9110 section 14), and nothing unchecked ever carries the file's name.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import http.client
import io
import os
import re
import shutil
import ssl
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Sequence
from email.message import Message
from pathlib import Path
from typing import Protocol
from urllib.parse import urlsplit

from fedbac_edge import __version__
from fedbac_edge.datasets.official import File

STEP = 1 << 18
"""Bytes read at once."""
TIMEOUT_S = 30.0
"""So long a server may say nothing."""
RETRIES = 5
"""Attempts after one that brought nothing; a new byte begins the count anew."""
LONGEST_WAIT_S = 30.0
RESERVE = 32 << 20
"""Bytes that must stay free on the disk."""
PASSING = frozenset({408, 425, 429, 500, 502, 503, 504})
"""Answers of a server that may be others a moment later."""


class DownloadError(Exception):
    """A file that could not be had; the message says what happened and what to do."""


class View(Protocol):
    """Is told how it goes on."""

    def at(self, done: int) -> None:
        """So many bytes of the file are here."""

    def note(self, text: str) -> None:
        """Something that a person may want to know: a pause, a start from the beginning."""


def fetch(
    file: File,
    urls: Sequence[str],
    target: Path,
    view: View,
    *,
    retries: int = RETRIES,
    timeout_s: float = TIMEOUT_S,
    sleep: Callable[[float], None] = time.sleep,
) -> bool:
    """Get `file` from one of `urls` (tried in turn) to `target`; False when it was there already.

    Raises DownloadError. KeyboardInterrupt and any other end leave TARGET.part, with which the next call goes
    on; only a second process at work on it is refused.
    """
    if target.exists():
        _check_present(file, target)
        return False
    _make_room(file, target)
    part = target.with_name(f"{target.name}.part")
    try:
        # Unbuffered: what has been written survives this process.
        with part.open("ab+", buffering=0) as sink:
            try:
                fcntl.flock(sink, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                raise DownloadError(f"{target}: another process is fetching it right now") from None
            partial = _Partial(file, sink, target)
            try:
                _fill(partial, urls, view, retries, timeout_s, sleep)
            finally:
                if not partial.size:
                    part.unlink()
            os.fsync(sink.fileno())
            os.replace(part, target)
    except OSError as error:
        raise DownloadError(_disk(target, error)) from error
    return True


class _Partial:
    """What is there of a file so far, and the hash of it."""

    def __init__(self, file: File, sink: io.FileIO, target: Path) -> None:
        self.file, self.target, self._sink = file, target, sink
        self.size, self._hash = 0, hashlib.sha256()
        sink.seek(0)
        while data := sink.read(STEP):
            self._hash.update(data)
            self.size += len(data)
        self.old = self.size > 0
        """Whether bytes of an earlier call are among it."""
        if self.size > file.size:
            self.drop()

    def drop(self) -> None:
        """Begin anew."""
        self._sink.truncate(0)
        self.size, self._hash, self.old = 0, hashlib.sha256(), False

    def add(self, data: bytes) -> None:
        """Append; raises DownloadError when the disk does not take it."""
        rest = memoryview(data)
        try:
            while rest:
                rest = rest[self._sink.write(rest) :]
        except OSError as error:
            raise DownloadError(_disk(self.target, error)) from error
        self._hash.update(data)
        self.size += len(data)

    @property
    def sha256(self) -> str:
        """Of all that is there."""
        return self._hash.hexdigest()


class _Useless(Exception):
    """This address cannot give the file; another might."""


class _Passing(Exception):
    """It may go better a moment later; `after` in seconds, when the server asks for a pause."""

    def __init__(self, what: str, after: float = 0.0) -> None:
        super().__init__(what)
        self.after = after


def _fill(
    partial: _Partial,
    urls: Sequence[str],
    view: View,
    retries: int,
    timeout_s: float,
    sleep: Callable[[float], None],
) -> None:
    """Bring the whole file into `partial`, in as many attempts as it takes."""
    file, left, failed, turn = partial.file, list(urls), 0, 0
    view.at(partial.size)
    while True:
        if partial.size == file.size:
            if partial.sha256 == file.sha256:
                return
            _wrong_hash(partial, view, left, left[turn % len(left)])
        url, before = left[turn % len(left)], partial.size
        try:
            _attempt(partial, url, view, timeout_s)
        except _Useless as reason:
            left.remove(url)
            if not left:
                raise DownloadError(f"{reason}. {_remedy(partial.target)}") from None
            view.note(f"{reason}; trying {_host(left[turn % len(left)])}")
        except _Passing as reason:
            failed = 0 if partial.size > before else failed + 1
            if failed > retries:
                raise DownloadError(f"{reason}. {_kept(partial)}{_remedy(partial.target)}") from None
            wait = min(LONGEST_WAIT_S, max(reason.after, 2.0 ** max(0, failed - 1)))
            turn += 1
            view.note(f"{reason}; again in {wait:.0f} s")
            sleep(wait)


def _attempt(partial: _Partial, url: str, view: View, timeout_s: float) -> None:
    """One request: append what comes until the file is whole. Raises _Useless or _Passing."""
    file, host = partial.file, _host(url)
    headers = {"User-Agent": f"fedbac-edge/{__version__}", "Accept-Encoding": "identity"}
    if partial.size:
        headers["Range"] = f"bytes={partial.size}-"
    try:
        with _opener().open(urllib.request.Request(url, headers=headers), timeout=timeout_s) as answer:
            _begin(partial, answer.status, answer.headers, url, view)
            while partial.size < file.size:
                data = answer.read1(min(STEP, file.size - partial.size))
                if not data:
                    raise _Passing(
                        f"{host} ended the connection after {partial.size:,} of {file.size:,} bytes"
                    )
                partial.add(data)
                view.at(partial.size)
    except urllib.error.HTTPError as error:
        error.close()
        if error.code == 416:
            partial.drop()
            raise _Passing(f"{host} refused to go on in the middle") from None
        if error.code in PASSING:
            raise _Passing(f"{host} answered {error.code} {error.reason}", _pause(error.headers)) from None
        raise _Useless(f"{url}: the server answered {error.code} {error.reason}") from None
    except urllib.error.URLError as error:
        if isinstance(error.reason, ssl.SSLCertVerificationError):
            raise _Useless(f"{host}: its certificate is not to be trusted: {error.reason}") from None
        raise _Passing(f"no connection to {host}: {error.reason}") from None
    except TimeoutError:
        raise _Passing(f"{host} said nothing for {timeout_s:g} s") from None
    except (http.client.HTTPException, OSError) as error:
        raise _Passing(f"the connection to {host} broke: {error or type(error).__name__}") from None


def _begin(partial: _Partial, status: int, headers: Message, url: str, view: View) -> None:
    """Hold the answer's header to what was asked for, before anything is written."""
    file, start, total = partial.file, 0, headers.get("Content-Length")
    if status == 206:
        said = re.fullmatch(r"bytes (\d+)-(\d+)/(\d+|\*)", headers.get("Content-Range", "").strip())
        if said is None:
            raise _Useless(f"{url}: an answer in parts that does not say which part")
        start, total = int(said[1]), None if said[3] == "*" else said[3]
    if total is not None and total.isdigit() and int(total) != file.size:
        raise _Useless(f"{url} has {int(total):,} bytes, the official file {file.size:,}")
    if start != partial.size:
        if start:
            partial.drop()
            raise _Passing(f"{_host(url)} went on at byte {start:,}, which was not requested")
        view.note(f"{_host(url)} cannot go on in the middle: from the beginning")
        partial.drop()
        view.at(0)


def _wrong_hash(partial: _Partial, view: View, left: list[str], url: str) -> None:
    """Away with the bytes: no checksum says which of them are wrong; and with `url`, if they are all new.

    Raises DownloadError when no address is left.
    """
    found, old = partial.sha256, partial.old
    partial.drop()
    view.at(0)
    if old:
        view.note("what was left of an earlier attempt did not belong to it: from the beginning")
        return
    left.remove(url)
    what = (
        f"{_host(url)} gave another file than the official one: its SHA-256 is {found}, expected "
        f"{partial.file.sha256}"
    )
    if not left:
        raise DownloadError(f"{what}. Nothing was kept; try again, or another --from URL")
    view.note(f"{what}; trying {_host(left[0])}")


def _check_present(file: File, target: Path) -> None:
    """Raises DownloadError when a file of that name is not the official one."""
    found = hashlib.sha256()
    with target.open("rb") as stream:
        while data := stream.read(STEP):
            found.update(data)
    if found.hexdigest() != file.sha256:
        raise DownloadError(
            f"{target} is there and is not the official file (SHA-256 {found.hexdigest()}, expected "
            f"{file.sha256}). Move it away, or give another --to DIR"
        )


def _make_room(file: File, target: Path) -> None:
    """The folder made, and enough room in it. Raises DownloadError."""
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        part = target.with_name(f"{target.name}.part")
        needed = file.size - (part.stat().st_size if part.exists() else 0)
        free = shutil.disk_usage(target.parent).free
    except OSError as error:
        raise DownloadError(_disk(target, error)) from error
    if free < needed + RESERVE:
        raise DownloadError(
            f"{target.parent} has {free / 1e6:,.0f} MB free, {(needed + RESERVE) / 1e6:,.0f} MB are needed. "
            "Make room, or give another --to DIR"
        )


def _disk(target: Path, error: OSError) -> str:
    full = error.errno in (errno.ENOSPC, errno.EDQUOT)
    what = "the disk is full" if full else error.strerror or str(error)
    kept = " What has come is kept; the same command goes on." if full else ""
    return f"{target} cannot be written: {what}. Make room, or give another --to DIR.{kept}"


def _kept(partial: _Partial) -> str:
    if not partial.size:
        return ""
    return f"{partial.size:,} of {partial.file.size:,} bytes are kept; the same command goes on. "


def _remedy(target: Path) -> str:
    return (
        "Check the network (a proxy: HTTPS_PROXY), or give a mirror with --from URL, or put the file "
        f"at {target} by hand"
    )


def _pause(headers: Message | None) -> float:
    """Retry-After in seconds, 0 when there is none or it is a date."""
    said = (headers.get("Retry-After") or "").strip() if headers else ""
    return float(said) if said.isdigit() else 0.0


def _host(url: str) -> str:
    return urlsplit(url).netloc.rpartition("@")[2] or url


def _opener() -> urllib.request.OpenerDirector:
    """HTTP and HTTPS with the system's proxies; unlike urllib's own, no ftp and no local files."""
    opener = urllib.request.OpenerDirector()
    for handler in (
        urllib.request.ProxyHandler,
        urllib.request.HTTPHandler,
        urllib.request.HTTPSHandler,
        urllib.request.HTTPDefaultErrorHandler,
        urllib.request.HTTPRedirectHandler,
        urllib.request.HTTPErrorProcessor,
        urllib.request.UnknownHandler,
    ):
        opener.add_handler(handler())
    return opener
