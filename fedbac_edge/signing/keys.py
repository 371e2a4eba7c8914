"""Ed25519 keys: the private one stays with the cloud, the public one is given to devices.

Files are PEM (PKCS 8 and SubjectPublicKeyInfo), as openssl and everything else reads them. Inside
federation.toml, on command lines and on the wire a public key is its 32 bytes, as text in base64.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import os
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

PUBLIC_BYTES = 32
_MOST_BYTES = 10_000


class KeyFileError(ValueError):
    """A key cannot be used; the message names the file and what to do."""


class SigningKey:
    """A private key in memory. Signing is a pure function: the same bytes, the same signature."""

    def __init__(self, key: Ed25519PrivateKey) -> None:
        self._key = key
        self.public: bytes = key.public_key().public_bytes_raw()

    def sign(self, purpose: str, data: bytes) -> bytes:
        """64 bytes that `verify` accepts for this purpose and no other."""
        return self._key.sign(_signed(purpose, data))

    def verify(self, purpose: str, data: bytes, signature: bytes) -> bool:
        """True for what this key has signed."""
        return verify(self.public, purpose, data, signature)


def verify(public: bytes, purpose: str, data: bytes, signature: bytes) -> bool:
    """True when the private half of `public` signed `data` for `purpose`."""
    from cryptography.exceptions import InvalidSignature
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

    try:
        Ed25519PublicKey.from_public_bytes(public).verify(signature, _signed(purpose, data))
    except (InvalidSignature, ValueError):
        return False
    return True


def make(private: Path) -> SigningKey:
    """A new key: `private` (only its owner may read it) and its public half beside it as .pub.

    Never replaces a key that is there: devices trust it. Raises KeyFileError.
    """
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
    from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

    from fedbac_edge.host.files import write_bytes

    key = Ed25519PrivateKey.generate()
    pem = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    new = private.with_name(f".{private.name}.new")
    try:
        private.parent.mkdir(parents=True, exist_ok=True)
        new.unlink(missing_ok=True)
        with os.fdopen(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
            file.write(pem)
            file.flush()
            os.fsync(file.fileno())
        os.link(new, private)  # unlike a rename, it never replaces
        new.unlink()
        made = SigningKey(key)
        write_bytes(public_pem(made.public), public_path(private))
    except FileExistsError:
        new.unlink(missing_ok=True)
        raise KeyFileError(f"there is a key {private} already, which devices may trust; it is kept") from None
    except OSError as error:
        raise KeyFileError(f"the key {private} cannot be written: {error}") from error
    return made


def public_path(private: Path) -> Path:
    """Where `make` puts the public half."""
    return private.with_suffix(".pub")


def public_pem(public: bytes) -> bytes:
    """The public key as the text of a file."""
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
    from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

    key = Ed25519PublicKey.from_public_bytes(public)
    return key.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)


def load(private: Path) -> SigningKey:
    """The private key in a file. Raises KeyFileError."""
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
    from cryptography.hazmat.primitives.serialization import load_pem_private_key

    try:
        key = load_pem_private_key(_read(private), password=None)
    except (ValueError, TypeError, UnsupportedAlgorithm) as error:
        raise KeyFileError(f"{private} is no private key without a password (PEM): {error}") from error
    if not isinstance(key, Ed25519PrivateKey):
        raise KeyFileError(f"{private} is no Ed25519 key; `fedbac init` makes one")
    return SigningKey(key)


def read_public(given: str) -> bytes:
    """The 32 bytes of a public key, given as a file (PEM, or base64 in a line) or as base64 itself.

    Raises KeyFileError.
    """
    path = Path(given)
    if not path.is_file():
        try:
            return from_text(given)
        except KeyFileError:
            raise KeyFileError(
                f"{given!r} is neither a file nor a public key in base64; the cloud prints its key when it "
                "starts, and `fedbac init` writes it to a file that ends in .pub"
            ) from None
    data = _read(path)
    if b"PRIVATE KEY" in data:
        raise KeyFileError(f"{path} is the private key, which must stay with the cloud; give the .pub file")
    if b"-----BEGIN" not in data:
        return from_text(data.decode("ascii", "replace").strip())
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
    from cryptography.hazmat.primitives.serialization import load_pem_public_key

    try:
        key = load_pem_public_key(data)
    except ValueError as error:
        raise KeyFileError(f"{path} is no public key (PEM): {error}") from error
    if not isinstance(key, Ed25519PublicKey):
        raise KeyFileError(f"{path} is no Ed25519 key")
    return key.public_bytes_raw()


def from_text(text: str) -> bytes:
    """A public key from base64. Raises KeyFileError."""
    try:
        public = base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError) as error:
        raise KeyFileError(f"{text[:60]!r} is no public key: {error}") from error
    if len(public) != PUBLIC_BYTES:
        raise KeyFileError(f"{text[:60]!r} is no public key: {len(public)} bytes instead of {PUBLIC_BYTES}")
    return public


def to_text(public: bytes) -> str:
    """A public key in base64."""
    return base64.b64encode(public).decode()


def fingerprint(public: bytes) -> str:
    """16 hex digits for people to compare."""
    return hashlib.sha256(public).hexdigest()[:16]


def _signed(purpose: str, data: bytes) -> bytes:
    return f"fedbac-edge {purpose}\n".encode() + data


def _read(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            return file.read(_MOST_BYTES)
    except OSError as error:
        raise KeyFileError(f"the key {path} cannot be read: {error.strerror}") from error
