"""Keeps the Secrets of authorities and certificates as they should be, while this process holds the Lease."""

from __future__ import annotations

import base64
import logging
from binascii import Error
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from protocol.kubernetes.api import ApiCall, ApiError, ApiRefusedError, KubernetesApi
from protocol.kubernetes.objects import Json, JsonObject, texts, version_of
from protocol.kubernetes.refusals import RefusalKind
from protocol.kubernetes.resources import MERGE_PATCH, SECRETS
from protocol.rotation import is_due, needs_authority, signer
from protocol.runtime.certificates import issuing
from protocol.runtime.clock import Clock
from protocol.runtime.kubernetes.lease import Leadership
from protocol.units import Seconds

CERTIFICATE: Final = "tls.crt"
KEY: Final = "tls.key"
BUNDLE: Final = "ca.crt"

TIMEOUT: Final = Seconds(3.0)


def content(secret: JsonObject) -> dict[str, bytes]:
    """Content of a Secret; a value that is not base64 counts as empty."""
    return {key: decoded(value) for key, value in texts(secret, "data").items()}


def encoded(data: dict[str, bytes]) -> Json:
    """The data of a Secret with this content."""
    return {key: base64.b64encode(value).decode() for key, value in data.items()}


def authorities_in(data: dict[str, bytes]) -> list[issuing.Issued]:
    """The usable authorities in a Secret, the newest first."""
    usable_pairs = [
        issued
        for key, certificate in data.items()
        if key.endswith(".crt") and (issued := usable(issuing.Pair(certificate, data.get(f"{key[:-4]}.key", b""))))
    ]
    # The serial number breaks ties, so that the order never changes between two turns.
    return sorted(usable_pairs, key=lambda authority: (authority.life.made, authority.serial), reverse=True)


def authorities_as(authorities: Iterable[issuing.Issued]) -> dict[str, bytes]:
    """Authorities as the content of a Secret."""
    data: dict[str, bytes] = {}
    for authority in authorities:
        # Serial numbers are unique, and show which files form a pair.
        data |= {f"{authority.serial}.crt": authority.pair.certificate, f"{authority.serial}.key": authority.pair.key}
    return data


def certificate_in(data: dict[str, bytes]) -> issuing.Issued | None:
    """The certificate of a Secret; None if it holds none that can be used."""
    return usable(issuing.Pair(data.get(CERTIFICATE, b""), data.get(KEY, b"")))


def usable(pair: issuing.Pair) -> issuing.Issued | None:
    """The pair, decoded; None if it cannot be used."""
    try:
        return issuing.read_pair(pair)
    except issuing.UnusablePairError:
        return None


def decoded(value: str) -> bytes:
    """Decoded base64 value; empty if it is not base64."""
    try:
        return base64.b64decode(value, validate=True)
    except (Error, ValueError):
        return b""


async def read_secret(api: KubernetesApi, namespace: str, name: str) -> JsonObject | None:
    """The Secret; None if there is none. Raises ``ApiError``."""
    try:
        return await api.call(ApiCall("GET", SECRETS.path(namespace, name), TIMEOUT))
    except ApiRefusedError as error:
        # Programs that are not installed have no Secret.
        if error.kind is RefusalKind.NOT_FOUND:
            return None
        raise


LOG: Final = logging.getLogger("autoscale.certificates")


@dataclass(frozen=True, slots=True)
class Lives:
    """Lifetimes of an authority and of a certificate; a certificate's is at most a third of an authority's."""

    authority: Seconds
    certificate: Seconds


@dataclass(frozen=True, slots=True)
class WantedCertificate:
    """One certificate, and the Secret that has it."""

    secret: str
    purpose: issuing.Purpose


class MissingSecretError(Exception):
    """The Secret of the authorities does not exist: it comes with the manifests."""


@dataclass(slots=True)
class CertificateKeeper:
    """``authorities`` is the name of the Secret in ``namespace`` that holds them. ``report`` counts ``done`` and
    ``failed`` renewals.
    """

    api: KubernetesApi
    leadership: Leadership
    clock: Clock
    namespace: str
    authorities: str
    wanted: Sequence[WantedCertificate]
    lives: Lives
    report: Callable[[str], None]

    async def turn(self) -> tuple[bytes, str]:
        """Do what is due. Return what is trusted from now on, in PEM, and which certificate could not be kept and
        why (empty: none).

        Raises ``ApiError``, ``NotLeadingError`` and ``MissingSecretError``.
        """
        trusted, trouble = await self._trusted(), ""
        bundle = b"".join(authority.pair.certificate for authority in trusted)
        for certificate in self.wanted:
            try:
                await self._keep(certificate, trusted, bundle)
            # One failure does not hold up the others, and the next turn tries again.
            except ApiError as error:
                self.report("failed")
                trouble = f"{certificate.secret}: {error}"
        return bundle, trouble

    async def _trusted(self) -> list[issuing.Issued]:
        secret = await read_secret(self.api, self.namespace, self.authorities)
        if secret is None:
            raise MissingSecretError(f"Secret {self.namespace}/{self.authorities} is missing: apply the manifests")
        now, stored = self.clock.wall(), content(secret)
        # Expired authorities are dropped from the Secret, and so from every bundle.
        valid = [authority for authority in authorities_in(stored) if authority.life.is_valid(now)]
        if needs_authority([authority.life for authority in valid], now):
            added = issuing.new_authority(self.lives.authority, now)
            LOG.info("a new authority is announced", extra={"serial": added.serial})
            valid.insert(0, added)
        data = authorities_as(valid)
        if data != stored:
            dropped: Json = {key: None for key in stored if key not in data}
            # Written before a new authority signs anything or is trusted: a crash must not lose its key.
            await self._write(self.authorities, secret, {**dropped, **encoded(data)})
        return valid

    async def _keep(self, wanted: WantedCertificate, authorities: Sequence[issuing.Issued], bundle: bytes) -> None:
        secret = await read_secret(self.api, self.namespace, wanted.secret)
        # A program's installation creates the Secret empty; without a Secret nobody needs the certificate.
        if secret is None:
            return
        stored = content(secret)
        certificate = certificate_in(stored)
        # Every program gets the new bundle, even if its own certificate is still good.
        changes = {BUNDLE: bundle}
        if certificate is None or not self._is_good(certificate, wanted.purpose, authorities):
            changes |= self._issued(wanted, authorities)
        # The usual turn writes nothing.
        if changes.items() <= stored.items():
            return
        await self._write(wanted.secret, secret, encoded(changes))
        self.report("done")
        LOG.info("certificate renewed" if KEY in changes else "authorities renewed", extra={"secret": wanted.secret})

    def _is_good(
        self, certificate: issuing.Issued, purpose: issuing.Purpose, authorities: Sequence[issuing.Issued]
    ) -> bool:
        is_trusted = any(certificate.is_signed_by(authority) for authority in authorities)
        return is_trusted and certificate.serves(purpose) and not is_due(certificate.life, self.clock.wall())

    def _issued(self, wanted: WantedCertificate, authorities: Sequence[issuing.Issued]) -> dict[str, bytes]:
        now = self.clock.wall()
        issuer = authorities[signer([authority.life for authority in authorities], now)]
        pair = issuing.issue(issuer, wanted.purpose, self.lives.certificate, now).pair
        return {CERTIFICATE: pair.certificate, KEY: pair.key}

    async def _write(self, name: str, read: JsonObject, data: Json) -> None:
        body: Json = {"metadata": {"resourceVersion": version_of(read)}, "data": data}
        # The write must end before the Lease does, and is onto the version that was judged: a holder that was suspended
        # and wakes late changes nothing.
        timeout = self.leadership.allowed(TIMEOUT)
        path = SECRETS.path(self.namespace, name)
        await self.api.call(ApiCall("PATCH", path, timeout, body=body, content_type=MERGE_PATCH))
