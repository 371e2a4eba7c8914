"""Where the broker is and how to be let in: mqtt[s]://[user[:password]@]host[:port] and certificate files."""

from __future__ import annotations

import ssl
from dataclasses import dataclass, field
from datetime import datetime, timezone
from pathlib import Path
from urllib.parse import SplitResult, quote, unquote, urlsplit

from broker import certificate_dates

PORTS = {"mqtt": 1883, "mqtts": 8883}
_EXAMPLE = "write it like mqtt://gateway.local:1883 or mqtts://user:password@broker.example.org"

_ESCAPES = "the password holds a '/', '?', '#' or '@', to be written %2F, %3F, %23, %40"


class BadUrl(ValueError):
    """The address, or a certificate file that goes with it, cannot be used; says why and shows an example."""


@dataclass(frozen=True)
class BrokerUrl:
    """A broker's address.

    Attributes:
        host: name, IPv4 or IPv6 address (without brackets).
        port: TCP port.
        tls: True for mqtts.
        user, password: None when the broker asks for none. The password is in no repr and no message.
        ca: PEM file with the authority that signed the broker's certificate; None: the system's.
        certificate, key: PEM files of this client (mutual TLS).
        client_id: the client's name where the broker prescribes it; None: each connection has its own.

    """

    host: str
    port: int
    tls: bool = False
    user: str | None = None
    password: str | None = field(default=None, repr=False)
    ca: Path | None = None
    certificate: Path | None = None
    key: Path | None = None
    client_id: str | None = None

    @classmethod
    def parse(
        cls,
        text: str,
        *,
        ca: str | Path | None = None,
        certificate: str | Path | None = None,
        key: str | Path | None = None,
    ) -> BrokerUrl:
        """Read an address. Raises BadUrl; the message never repeats a password."""
        try:
            parts = urlsplit(text.strip())
            port = parts.port
        except ValueError:  # whose text may hold a part of the password
            raise BadUrl(
                f"the broker's address cannot be read: the port is no number to 65535, or a bracket is open, "
                f"or {_ESCAPES}: {_EXAMPLE}"
            ) from None
        if parts.scheme not in PORTS:
            raise BadUrl(
                f"the broker's address begins with {_scheme(text)}, not mqtt:// or mqtts://: {_EXAMPLE}"
            )
        _check(parts, port)
        tls = parts.scheme == "mqtts"
        if not tls and (ca or certificate or key):
            raise BadUrl("certificate files are for mqtts://, and this address says mqtt://")
        if bool(certificate) != bool(key):
            raise BadUrl("a client certificate and its key go together: give both files or none")
        return cls(
            host=parts.hostname or "",
            port=port or PORTS[parts.scheme],
            tls=tls,
            user=unquote(parts.username) if parts.username else None,
            password=unquote(parts.password) if parts.password is not None else None,
            ca=_file(ca, "the CA file"),
            certificate=_file(certificate, "the client certificate"),
            key=_file(key, "the client's key"),
        )

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        user = f"{quote(self.user, safe='')}@" if self.user else ""
        return f"{'mqtts' if self.tls else 'mqtt'}://{user}{host}:{self.port}"

    def tls_context(self) -> ssl.SSLContext | None:
        """Verify the broker's certificate and name, TLS 1.2 or newer; None for mqtt://. Raises BadUrl."""
        if not self.tls:
            return None
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        try:
            if self.ca is None:
                context.load_default_certs()
            else:
                context.load_verify_locations(cafile=self.ca)
        except (ssl.SSLError, OSError) as error:
            raise BadUrl(f"{self.ca} holds no certificates in PEM form ({error})") from None
        if self.certificate is not None:
            try:
                # An encrypted key must not make ssl ask on the terminal of a device that has none.
                context.load_cert_chain(self.certificate, self.key, password=lambda: "")
            except (ssl.SSLError, OSError, ValueError) as error:
                raise BadUrl(
                    f"{self.certificate} and {self.key} are no certificate with its unencrypted key ({error})"
                ) from None
        return context

    def dates_trouble(self, now: datetime | None = None) -> str:
        """Why the dates of our own certificate keep us out, as a sentence; empty when they do not."""
        if self.certificate is None:
            return ""
        try:
            validity = certificate_dates.of_file(self.certificate)
        except (OSError, certificate_dates.NoCertificate):
            return ""
        now = now or datetime.now(timezone.utc)
        if now > validity.ends:
            return (
                f"our certificate {self.certificate} expired on {validity.ends:%Y-%m-%d %H:%M} UTC: "
                f"put a new one in its place (fedbac keys rotate)"
            )
        if now < validity.begins:
            return (
                f"our certificate {self.certificate} is valid from {validity.begins:%Y-%m-%d %H:%M} UTC, and "
                f"the clock here says {now:%Y-%m-%d %H:%M}: set the clock"
            )
        return ""


def _check(parts: SplitResult, port: int | None) -> None:
    if not parts.hostname:
        raise BadUrl(f"the broker's address names no host: {_EXAMPLE}")
    if any(c.isspace() or not c.isprintable() for c in parts.hostname):
        raise BadUrl(f"the broker's host name holds a blank or a control character: {_EXAMPLE}")
    if port == 0:
        raise BadUrl(f"port 0 is no port: {_EXAMPLE}")
    if parts.path not in ("", "/") or parts.query or parts.fragment:
        raise BadUrl(f"nothing may follow the host and port in a broker's address, or {_ESCAPES}: {_EXAMPLE}")
    if parts.username == "" and parts.password:
        raise BadUrl(f"the broker's address has a password but no user: {_EXAMPLE}")


def _scheme(text: str) -> str:
    scheme, separator, _ = text.strip().partition("://")
    return repr(scheme + separator) if separator and len(scheme) <= 16 else "no scheme"


def _file(path: str | Path | None, what: str) -> Path | None:
    if path is None:
        return None
    if not Path(path).is_file():
        raise BadUrl(f"{what} {path} is not there")
    return Path(path)
