"""From when to when a certificate is valid, read without any library: devices have none for it.

An X.509 certificate (RFC 5280, 4.1) is DER: SEQUENCE { tbs SEQUENCE { [0] version, serial, algorithm,
issuer, validity SEQUENCE { notBefore, notAfter } ...; only the way to the two times is walked.
"""

from __future__ import annotations

import ssl
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path

LARGEST = 1_000_000
"""Bytes of a PEM file that are read at most."""

_SEQUENCE, _VERSION, _UTC_TIME, _GENERALIZED_TIME = 0x30, 0xA0, 0x17, 0x18
_END = "-----END CERTIFICATE-----"


class NoCertificate(ValueError):
    """What was given holds no certificate; the message says which file."""


@dataclass(frozen=True)
class Validity:
    """Both times in UTC."""

    begins: datetime
    ends: datetime

    def days_left(self, now: datetime | None = None) -> float:
        """Days until the end; negative when it is past."""
        return (self.ends - (now or datetime.now(timezone.utc))).total_seconds() / 86_400


def of_file(path: Path) -> Validity:
    """Validity of the first certificate in a PEM file. Raises NoCertificate, OSError."""
    with path.open("rb") as file:
        text = file.read(LARGEST).decode("ascii", "replace")
    start, end = text.find("-----BEGIN CERTIFICATE-----"), text.find(_END)
    if start < 0 or end < start:
        raise NoCertificate(f"{path} holds no certificate in PEM form")
    try:
        return of_der(ssl.PEM_cert_to_DER_cert(text[start : end + len(_END)]))
    except ValueError as error:
        raise NoCertificate(f"{path} holds a damaged certificate ({error})") from None


def of_der(der: bytes) -> Validity:
    """Validity of one certificate. Raises NoCertificate."""
    try:
        certificate, _ = _value(der, 0, _SEQUENCE)
        fields, _ = _value(certificate, 0, _SEQUENCE)
        at = 0
        if fields[0] == _VERSION:
            _, at = _value(fields, at)
        for _ in ("serial number", "algorithm", "issuer"):
            _, at = _value(fields, at)
        validity, _ = _value(fields, at, _SEQUENCE)
        begins, at = _time(validity, 0)
        ends, _ = _time(validity, at)
    except (IndexError, ValueError) as error:
        raise NoCertificate(f"not a certificate: {error}") from None
    return Validity(begins, ends)


def _value(data: bytes, at: int, expected: int | None = None) -> tuple[bytes, int]:
    """Content of the DER value at `at`, and where the next one begins."""
    tag, length, start = data[at], data[at + 1], at + 2
    if expected is not None and tag != expected:
        raise ValueError(f"tag {tag:#x} where {expected:#x} belongs")
    if length & 0x80:
        count = length & 0x7F
        length, start = int.from_bytes(data[start : start + count], "big"), start + count
    end = start + length
    if end > len(data):
        raise ValueError("it ends too early")
    return data[start:end], end


def _time(data: bytes, at: int) -> tuple[datetime, int]:
    text, end = _value(data, at)
    if data[at] not in (_UTC_TIME, _GENERALIZED_TIME):
        raise ValueError(f"tag {data[at]:#x} where a time belongs")
    digits = text.decode("ascii")
    if data[at] == _UTC_TIME:  # two digits of the year: 50 to 99 are of the last century
        digits = ("19" if digits[:2] >= "50" else "20") + digits
    return datetime.strptime(digits, "%Y%m%d%H%M%SZ").replace(tzinfo=timezone.utc), end
