"""A certificate authority of a federation's own: itself, the broker's certificate, one for each client.

    keys/ca.pem, ca.key                      the authority; its key can issue any certificate: keep it safe
    keys/server.pem, server.key              the broker, with its host names
    keys/cloud.pem, cloud.key                a client each; the common name is the user of `access`
    keys/observer.pem, observer.key
    keys/gateways/<gw>.pem, <gw>.key
    keys/devices/<gw>/<dev>.pem, <dev>.key

X.509 v3 with keys on P-256. A client's certificate cannot serve as a broker's, nor the other way round.
Needs the package `cryptography` (extra `keys`), where certificates are made and nowhere else.
"""

from __future__ import annotations

import datetime
import ipaddress
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from broker import access, secret_files

try:
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID
except ImportError as error:
    raise ImportError(
        "certificates are made with the package cryptography: pip install 'fedbac-edge[keys]'"
    ) from error

AUTHORITY_DAYS = 3650
SERVER_DAYS = 397
"""What the strictest TLS clients accept of a server."""
CLIENT_DAYS = 397
LONGEST_COMMON_NAME = 64
"""X.520's bound, in characters."""
CLOCKS_DIFFER = datetime.timedelta(days=1)
"""A certificate is valid since yesterday: the clock of a device may be behind."""


class KeysError(access.AccessError):
    """The folder of keys is not as it must be, or a certificate cannot be made; says what to do."""


@dataclass(frozen=True)
class Pair:
    """Where a certificate and its key lie."""

    certificate: Path
    key: Path

    @classmethod
    def at(cls, place: Path) -> Pair:
        """`place` without its ending."""
        return cls(place.with_name(place.name + ".pem"), place.with_name(place.name + ".key"))

    @property
    def exists(self) -> bool:
        """True when one of the two files is there."""
        return self.certificate.exists() or self.key.exists()


def authority_pair(folder: Path) -> Pair:
    """Files of the authority."""
    return Pair.at(folder / "ca")


def server_pair(folder: Path) -> Pair:
    """Files of the broker."""
    return Pair.at(folder / "server")


def client_pair(folder: Path, user: str) -> Pair:
    """Files of a user of `access`. Raises BadName, AccessError."""
    gateway, device = access.split(user)
    if gateway is None:
        return Pair.at(folder / user)
    if device is None:
        return Pair.at(folder / "gateways" / gateway)
    return Pair.at(folder / "devices" / gateway / device)


def create_authority(folder: Path, hosts: Sequence[str]) -> None:
    """Make the authority and the broker's certificate for `hosts` (names or IP addresses).

    Raises KeysError when there is an authority already: replacing it would lock every client out.
    """
    pair = authority_pair(folder)
    if pair.exists:
        raise KeysError(
            f"{folder} holds an authority already, and a new one would lock out every client with a "
            f"certificate of it: use it (fedbac keys issue NAME), or give another --dir"
        )
    key = ec.generate_private_key(ec.SECP256R1())
    name = _name("fedbac authority")
    usage = _usage(digital_signature=True, key_cert_sign=True, crl_sign=True)
    builder = (
        _builder(name, name, key, AUTHORITY_DAYS)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(usage, critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
    )
    alternative = _alternative_names(hosts)
    _write(pair, builder.sign(key, hashes.SHA256()), key)
    _issue(folder, server_pair(folder), "fedbac broker", SERVER_DAYS, alternative)


def issue_server(folder: Path, hosts: Sequence[str] = ()) -> Pair:
    """A new certificate for the broker; without `hosts` for those of the present one. Raises KeysError."""
    pair = server_pair(folder)
    alternative = _alternative_names(hosts) if hosts else _present_names(pair.certificate)
    return _issue(folder, pair, "fedbac broker", SERVER_DAYS, alternative)


def issue(folder: Path, user: str, days: int = CLIENT_DAYS, *, replace: bool = False) -> Pair:
    """A certificate and key for `user`, whose name is the common name.

    Raises KeysError (no authority here, one is there already and `replace` is false, the name is too long)
    and what `access.split` raises.
    """
    pair = client_pair(folder, user)
    if pair.exists and not replace:
        raise KeysError(
            f"{user} has a certificate already ({pair.certificate}): fedbac keys rotate {user} replaces it"
        )
    if not pair.exists and replace:
        raise KeysError(f"{user} has no certificate yet: fedbac keys issue {user}")
    check_names([user])
    return _issue(folder, pair, user, days)


def check_names(users: Iterable[str]) -> None:
    """Raise BadName, AccessError or KeysError when one of the users cannot have a certificate."""
    for user in users:
        access.split(user)
        if len(user) > LONGEST_COMMON_NAME:
            raise KeysError(
                f"{user} has {len(user)} characters, and a certificate's name may have "
                f"{LONGEST_COMMON_NAME}: use shorter names of gateway and device"
            )


def _issue(
    folder: Path,
    pair: Pair,
    common_name: str,
    days: int,
    alternative: x509.SubjectAlternativeName | None = None,
) -> Pair:
    authority, authority_key = _authority(folder)
    key = ec.generate_private_key(ec.SECP256R1())
    builder = _builder(_name(common_name), authority.subject, key, days)
    purpose = ExtendedKeyUsageOID.CLIENT_AUTH if alternative is None else ExtendedKeyUsageOID.SERVER_AUTH
    builder = (
        builder.add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage(digital_signature=True), critical=True)
        .add_extension(x509.ExtendedKeyUsage([purpose]), critical=False)
        .add_extension(
            x509.AuthorityKeyIdentifier.from_issuer_public_key(authority_key.public_key()), critical=False
        )
    )
    if alternative is not None:
        builder = builder.add_extension(alternative, critical=False)
    _write(pair, builder.sign(authority_key, hashes.SHA256()), key)
    return pair


def _authority(folder: Path) -> tuple[x509.Certificate, ec.EllipticCurvePrivateKey]:
    pair = authority_pair(folder)
    if not pair.key.exists():
        raise KeysError(f"there is no authority in {folder}: fedbac keys init --dir {folder}")
    try:
        certificate = x509.load_pem_x509_certificate(pair.certificate.read_bytes())
        key = serialization.load_pem_private_key(pair.key.read_bytes(), password=None)
    except (OSError, ValueError, TypeError) as error:
        raise KeysError(f"the authority in {folder} cannot be read: {error}") from error
    if not isinstance(key, ec.EllipticCurvePrivateKey) or key.public_key() != certificate.public_key():
        raise KeysError(f"{pair.key} is not the key of {pair.certificate}")
    return certificate, key


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePrivateKey, days: int
) -> x509.CertificateBuilder:
    now = datetime.datetime.now(datetime.timezone.utc)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - CLOCKS_DIFFER)
        .not_valid_after(now + datetime.timedelta(days=days))
    )


def _name(common_name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common_name)])


def _usage(
    *, digital_signature: bool = False, key_cert_sign: bool = False, crl_sign: bool = False
) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=digital_signature,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=key_cert_sign,
        crl_sign=crl_sign,
        encipher_only=False,
        decipher_only=False,
    )


def _alternative_names(hosts: Iterable[str]) -> x509.SubjectAlternativeName:
    names: list[x509.GeneralName] = []
    for host in dict.fromkeys(hosts):
        try:
            names.append(x509.IPAddress(ipaddress.ip_address(host)))
        except ValueError:
            if not host.isascii() or not host or any(c in host for c in " /:@"):
                raise KeysError(
                    f"{host!r} is no host: give a name or an IP address as clients will write it"
                ) from None
            names.append(x509.DNSName(host))
    if not names:
        raise KeysError("a broker needs at least one host name by which clients reach it")
    return x509.SubjectAlternativeName(names)


def _present_names(certificate: Path) -> x509.SubjectAlternativeName:
    try:
        present = x509.load_pem_x509_certificate(certificate.read_bytes())
        return present.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except (OSError, ValueError, x509.ExtensionNotFound) as error:
        raise KeysError(f"the broker's host names cannot be read from {certificate}: {error}") from error


def _write(pair: Pair, certificate: x509.Certificate, key: ec.EllipticCurvePrivateKey) -> None:
    """Key first: a client that reads between the two sees a pair that does not fit, and tries again."""
    secret_files.write(
        pair.key,
        key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        ),
    )
    secret_files.write(
        pair.certificate, certificate.public_bytes(serialization.Encoding.PEM), secret_files.PUBLIC
    )
