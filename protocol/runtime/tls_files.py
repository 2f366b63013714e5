"""TLS from files that change: certificates, keys and CAs, reloaded for the next connection (B.4).

- Invalid or inconsistent files have no effect: the last valid ones stay in force. Keys are never logged.
- Certificate and CAs are replaced together: a removed CA is no longer trusted.
"""

from __future__ import annotations

import base64
import logging
import re
import ssl
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final, Generic, TypeVar

from protocol.runtime.trust import trusting

_BLOCK: Final = re.compile(rb"-----BEGIN CERTIFICATE-----([A-Za-z0-9+/=\s]+)-----END CERTIFICATE-----")
_SEQUENCE: Final = 0x30
_VERSION: Final = 0xA0
_FORMATS: Final = {0x17: "%y%m%d%H%M%SZ", 0x18: "%Y%m%d%H%M%SZ"}
"""UTCTime and GeneralizedTime, in the forms that RFC 5280 allows."""

_BEFORE_VALIDITY: Final = 3
"""Serial number, signature algorithm and issuer."""


class UnreadableCertificateError(ValueError):
    """Not a PEM certificate."""


@dataclass(frozen=True, slots=True)
class Validity:
    """The validity period of a certificate, in seconds since 1970."""

    begin: float
    end: float


def validities(pem: bytes) -> list[Validity]:
    """The validity of each certificate, in order. Raises ``UnreadableCertificateError``."""
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
    # For an unknown tag, the format never matches, which raises ``ValueError``.
    return datetime.strptime(text, _FORMATS.get(der[at], "expected a time")).replace(tzinfo=UTC).timestamp()


def _inside(der: bytes, at: int, tag: int) -> int:
    """The start of the content of the element at ``at``."""
    if der[at] != tag:
        raise ValueError("unexpected element")
    return _content(der, at)[0]


def _after(der: bytes, at: int) -> int:
    """The start of the next element."""
    start, length = _content(der, at)
    return start + length


def _content(der: bytes, at: int) -> tuple[int, int]:
    """The start and length of an element's content."""
    short = der[at + 1]
    # DER: a length below 128 is one byte; otherwise the low bits are the number of length bytes that follow.
    if short < 0x80:
        return at + 2, short
    begin = at + 2 + (short & 0x7F)
    return begin, int.from_bytes(der[at + 2 : begin], "big")


LOG: Final = logging.getLogger("autoscale.tls")

_READS: Final = 3
"""Attempts to read files that are being replaced."""

Stamp = tuple[tuple[int, int, int] | None, ...]
T = TypeVar("T")


class TlsFilesError(ssl.SSLError):
    """The files are invalid, so no connection is possible; the message says which and why."""

    def __init__(self, message: str) -> None:
        super().__init__(ssl.SSLErrorNumber.SSL_ERROR_SSL, message)


@dataclass(frozen=True, slots=True)
class TlsParts:
    """The PEM files of one TLS endpoint, each optional: a certificate chain with its key, and the trusted CAs."""

    certificate: Path | None = None
    key: Path | None = None
    authority: Path | None = None

    @property
    def paths(self) -> Sequence[Path]:
        """The files that are set."""
        return [path for path in (self.certificate, self.key, self.authority) if path is not None]


class FollowedTls(Generic[T]):
    """The result of ``make`` for the files ``parts``, computed again when they change. ``name`` identifies them in logs
    and metrics. ``make`` raises ``OSError`` or ``ssl.SSLError``.

    ``reloads`` and ``refusals`` count new contents.
    """

    def __init__(self, name: str, parts: TlsParts, make: Callable[[TlsParts], T]) -> None:
        self.name = name
        self.parts = parts
        self.reloads = 0
        self.refusals = 0
        self._make = make
        self._made: T | None = None
        self._stamp: Stamp | None = None
        self._problem = ""
        # Clients without an event loop connect in other threads.
        self._lock = threading.Lock()

    def value(self) -> T:
        """The result for the newest valid files. Raises ``TlsFilesError`` if there were none yet."""
        with self._lock:
            # Check at each new connection and each scrape, which needs no task and causes no delay. Open connections
            # are not affected.
            if self._stamped() != self._stamp:
                self._renew()
            if self._made is None:
                raise TlsFilesError(f"{self.name}: {self._problem}")
            return self._made

    def validities(self) -> dict[str, Validity]:
        """The validity of the ``certificate``, and of the ``authority`` that expires last."""
        with suppress(TlsFilesError):
            self.value()
        result = {}
        for kind, path in (("certificate", self.parts.certificate), ("authority", self.parts.authority)):
            with suppress(OSError, UnreadableCertificateError):
                if path is not None and (valid := validities(path.read_bytes())):
                    # A chain begins with the certificate itself; of several CAs, the last to expire decides.
                    result[kind] = valid[0] if kind == "certificate" else max(valid, key=lambda validity: validity.end)
        return result

    def _renew(self) -> None:
        for _ in range(_READS):
            # Take the stamp before reading the files, to detect a replacement in between.
            self._stamp = self._stamped()
            try:
                made = self._make(self.parts)
            except (OSError, ssl.SSLError) as error:
                reason = getattr(error, "reason", None) or error.strerror or str(error)
                problem = f"{', '.join(map(str, self.parts.paths))}: {reason}"
                # Files that changed meanwhile may be half replaced, so read them again.
                if self._stamped() == self._stamp:
                    self._refuse(problem)
                    return
            else:
                if self._stamped() == self._stamp:
                    self._accept(made)
                    return
        self._stamp = None  # they keep changing: retry at the next connection

    def _accept(self, made: T) -> None:
        # The first content is not a reload.
        is_first = self._made is None and not self._problem
        self._made, self._problem = made, ""
        if not is_first:
            self.reloads += 1
            LOG.info("certificates reloaded", extra={"certificates": self.name})

    def _refuse(self, problem: str) -> None:
        self._problem = problem
        self.refusals += 1
        stays = "keeping the last valid ones" if self._made is not None else "there are none yet"
        LOG.error(f"invalid certificates; {stays}", extra={"certificates": self.name, "reason": problem})

    def _stamped(self) -> Stamp:
        return tuple(_stamp(path) for path in self.parts.paths)


class FollowingContext(ssl.SSLContext):
    """A context that uses the current files for each new connection. Create it with ``following``."""

    followed: FollowedTls[ssl.SSLContext]

    def wrap_bio(self, *arguments: Any, **options: Any) -> ssl.SSLObject:
        """See ``ssl.SSLContext``. Raises ``TlsFilesError``."""
        # asyncio calls this for each new connection.
        return self.followed.value().wrap_bio(*arguments, **options)

    def wrap_socket(self, *arguments: Any, **options: Any) -> ssl.SSLSocket:
        """See ``ssl.SSLContext``; for clients without an event loop. Raises ``TlsFilesError``."""
        return self.followed.value().wrap_socket(*arguments, **options)


def following(followed: FollowedTls[ssl.SSLContext], protocol: int) -> FollowingContext:
    """A context that follows ``followed``; ``protocol`` is ``ssl``'s constant for a server or a client."""
    context = FollowingContext(protocol)
    context.followed = followed
    return context


def server_tls(
    name: str, certificate: Path, key: Path, client_authority: Path | None = None
) -> FollowedTls[ssl.SSLContext]:
    """The TLS context of a listener; with ``client_authority``, only for clients with a certificate signed by it."""
    return FollowedTls(name, TlsParts(certificate, key, client_authority), server_context)


def client_tls(name: str, authority: Path) -> FollowedTls[ssl.SSLContext]:
    """The TLS context of a client that trusts only the CAs in one file."""
    return FollowedTls(name, TlsParts(authority=authority), client_context)


def unverified_client_tls(name: str, certificate: Path, key: Path) -> FollowedTls[ssl.SSLContext]:
    """The TLS context of a client with a certificate that does not verify the server, since any program may be
    there.
    """
    return FollowedTls(name, TlsParts(certificate, key), _unverified_context)


def _unverified_context(parts: TlsParts) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    # Any program may be at the server's address, so there is no name to verify.
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    _load_chain(context, parts)
    return context


def server_context(parts: TlsParts) -> ssl.SSLContext:
    """Create a listener's context. Raises ``OSError`` and ``ssl.SSLError``."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    _load_chain(context, parts)
    if parts.authority is not None:
        context.load_verify_locations(parts.authority)
        context.verify_mode = ssl.CERT_REQUIRED
        # A resumed session would skip the client's certificate, whose CA may no longer be trusted.
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        context.num_tickets = 0
    return context


def client_context(parts: TlsParts) -> ssl.SSLContext:
    """Create a client's context. Raises ``OSError`` and ``ssl.SSLError``."""
    context = trusting(file=parts.authority)
    if parts.certificate is not None:
        _load_chain(context, parts)
    return context


def _load_chain(context: ssl.SSLContext, parts: TlsParts) -> None:
    if parts.certificate is not None:
        # With an empty password, OpenSSL rejects an encrypted key instead of prompting on the terminal.
        context.load_cert_chain(parts.certificate, parts.key, password="")


def _stamp(path: Path) -> tuple[int, int, int] | None:
    try:
        status = path.stat()
    except OSError:
        return None
    # A replaced file has another inode, even with the same size and modification time.
    return status.st_mtime_ns, status.st_ino, status.st_size
