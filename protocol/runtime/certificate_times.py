"""Validity of certificates, read from their PEM without a library: the agent has none that reads them.

Only the validity is read. Whether a certificate is good is up to OpenSSL, which loads it first.
"""

from __future__ import annotations

import base64
import re
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

_BLOCK: Final = re.compile(rb"-----BEGIN CERTIFICATE-----([A-Za-z0-9+/=\s]+)-----END CERTIFICATE-----")
_SEQUENCE: Final = 0x30
_VERSION: Final = 0xA0
_FORMATS: Final = {0x17: "%y%m%d%H%M%SZ", 0x18: "%Y%m%d%H%M%SZ"}
"""UTCTime and GeneralizedTime, in the forms that RFC 5280 allows."""

_BEFORE_VALIDITY: Final = 3
"""Serial number, signature algorithm and issuer."""


class UnreadableCertificateError(ValueError):
    """This is no certificate in PEM."""


@dataclass(frozen=True, slots=True)
class Validity:
    """From when to when a certificate is valid, in seconds since 1970."""

    begin: float
    end: float


def validities(pem: bytes) -> list[Validity]:
    """The validity of each certificate, in their order. Raises ``UnreadableCertificateError``."""
    try:
        return [_validity(base64.b64decode(block)) for block in _BLOCK.findall(pem)]
    except (ValueError, IndexError):
        raise UnreadableCertificateError("expected certificates in PEM") from None


def _validity(der: bytes) -> Validity:
    certificate = _inside(der, 0, _SEQUENCE)
    at = _inside(der, certificate, _SEQUENCE)
    # The version is optional in X.509; its context tag marks it.
    if der[at] == _VERSION:
        at = _after(der, at)
    for _ in range(_BEFORE_VALIDITY):
        at = _after(der, at)
    begin = _inside(der, at, _SEQUENCE)
    return Validity(_time(der, begin), _time(der, _after(der, begin)))


def _time(der: bytes, at: int) -> float:
    start, length = _content(der, at)
    text = der[start : start + length].decode("ascii")
    # An unknown tag gets a format that never matches, and so raises ``ValueError``.
    return datetime.strptime(text, _FORMATS.get(der[at], "expected a time")).replace(tzinfo=UTC).timestamp()


def _inside(der: bytes, at: int, tag: int) -> int:
    """Start of the content of the element at ``at``."""
    if der[at] != tag:
        raise ValueError("unexpected element")
    return _content(der, at)[0]


def _after(der: bytes, at: int) -> int:
    """Start of the next element."""
    start, length = _content(der, at)
    return start + length


def _content(der: bytes, at: int) -> tuple[int, int]:
    """Start and length of an element's content."""
    short = der[at + 1]
    # DER: a length below 128 is one byte; otherwise the low bits say how many bytes of length follow.
    if short < 0x80:
        return at + 2, short
    begin = at + 2 + (short & 0x7F)
    return begin, int.from_bytes(der[at + 2 : begin], "big")
