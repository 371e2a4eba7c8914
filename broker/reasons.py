"""MQTT 5 reason codes and network errors as sentences, and which of them make coming back pointless."""

from __future__ import annotations

import socket
import ssl

TAKEN_OVER = 0x8E
TOO_LARGE = 0x95
DENIED = frozenset({0x87, 0x90})
"""Of a PUBACK: not authorised. ejabberd calls it a topic name that is invalid."""
TEMPORARY = frozenset({0x80, 0x83, 0x97})
"""Of a PUBACK: unspecified, implementation specific, quota exceeded. The same message may pass later."""

ONE_OF_TWO = (
    "a federation has one cloud, and each gateway and each device a name of its own; stop one of the two, or "
    "rename it"
)
"""The remedy for two processes with one name."""

# Reason code -> why waiting does not help (MQTT 5.0, table 2-6). Everything else may pass by itself.
_FINAL = {
    0x84: "the broker does not speak MQTT 5, which a federation needs: it speaks only MQTT 3.1.1 or older",
    0x85: "the broker refuses the client name {client}",
    0x86: "the broker refuses the user name or password of {client}",
    0x87: "the broker does not authorise {client}: user, password or access list are wrong",
    0x8A: "the broker has banned {client}",
    0x8C: "the broker wants another way of authentication",
    TAKEN_OVER: "another process has connected as {client}: " + ONE_OF_TWO,
    0x90: "the broker refuses the topic of the will of {client}",
    0x9A: "the broker keeps no retained messages, which a federation needs",
    0x9B: "the broker does not speak QoS 1, which a federation needs",
}

# What OpenSSL says when one side does not believe the other; found inside the error's text.
_CERTIFICATE_ALERTS = (
    "CERTIFICATE_REQUIRED",
    "HANDSHAKE_FAILURE",
    "UNKNOWN_CA",
    "BAD_CERTIFICATE",
    "CERTIFICATE_EXPIRED",
    "CERTIFICATE_REVOKED",
    "CERTIFICATE_UNKNOWN",
    "UNSUPPORTED_CERTIFICATE",
    "ALERT_ACCESS_DENIED",
)

# OpenSSL's verification results that a set clock or a rotated certificate will change (x509_vfy.h).
_NOT_YET_VALID, _EXPIRED = 9, 10
_NO_AUTHORITY = (18, 19, 20, 21)
_OTHER_NAME = (62, 64)


def of_code(code: int, name: str, client: str) -> tuple[str, bool]:
    """Sentence for a reason code >= 0x80 of CONNACK or DISCONNECT, and whether it is final."""
    if code in _FINAL:
        return _FINAL[code].format(client=client), True
    return f"the broker ended the connection: {name.lower()}", False


def of_error(error: BaseException, broker: str, certified: bool = True) -> tuple[str, bool]:
    """Sentence for what opening a connection raised, and whether it is final; see `of_text`."""
    match error:
        case ssl.SSLCertVerificationError():
            final = error.verify_code not in (_NOT_YET_VALID, _EXPIRED)
            return _untrusted(error, broker), final
        case ssl.SSLError() if error.reason in ("WRONG_VERSION_NUMBER", "HTTP_REQUEST"):
            return f"{broker} does not speak TLS on this port: use mqtt://, or its TLS port", True
        case ssl.SSLEOFError() | ConnectionResetError():
            hint = " during the TLS handshake: is it the TLS port?" if broker.startswith("mqtts") else ""
            return f"{broker} closed the connection{hint}", False
        case ssl.SSLError():
            return of_text(str(error), broker, certified)
        case ConnectionRefusedError():
            return f"no broker listens at {broker} yet", False
        case socket.gaierror():
            return f"the host of {broker} has no address ({error.strerror})", False
        case TimeoutError():
            return f"{broker} does not answer", False
        case OSError():
            return f"{broker} cannot be reached ({error.strerror or error})", False
        case ValueError():
            return f"{broker} cannot be a broker's address ({error})", True
    return f"{broker} cannot be reached ({error!r})", False


def _untrusted(error: ssl.SSLCertVerificationError, broker: str) -> str:
    """Why the broker's certificate does not convince us, and what to do."""
    remedy = ""
    if error.verify_code in _NO_AUTHORITY:
        remedy = "; give the authority that signed it with --ca"
    elif error.verify_code in _OTHER_NAME:
        remedy = "; use a name that is in it in --broker"
    return f"the certificate of {broker} is not to be trusted: {error.verify_message}{remedy}"


def of_text(text: str, broker: str, certified: bool = True) -> tuple[str, bool]:
    """Sentence for an error that the client library only logged, and whether it is final.

    `certified`: this client has a certificate to show.
    """
    if any(alert in text.upper() for alert in _CERTIFICATE_ALERTS):
        if not certified:
            return f"{broker} wants a certificate, and none was given: --cert and --key ({text})", True
        return f"{broker} does not accept our certificate ({text})", True
    return f"the connection to {broker} was lost ({text})", False
