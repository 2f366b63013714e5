"""Reconciles the Secrets of CAs and certificates while this process holds the Lease."""

from __future__ import annotations

import base64
import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from protocol.kubernetes.api import ApiCall, ApiError, KubernetesApi, Tolerating
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
    """The decoded data of a Secret; a value that is not base64 counts as empty."""
    return {key: decoded(value) for key, value in texts(secret, "data").items()}


def encoded(data: dict[str, bytes]) -> Json:
    """Encode ``data`` for a Secret."""
    return {key: base64.b64encode(value).decode() for key, value in data.items()}


def authorities_in(data: dict[str, bytes]) -> list[issuing.Issued]:
    """The valid CAs in a Secret, newest first."""
    usable_pairs = [
        issued
        for key, certificate in data.items()
        if key.endswith(".crt") and (issued := usable(issuing.Pair(certificate, data.get(f"{key[:-4]}.key", b""))))
    ]
    # The serial number breaks ties, so that the order is stable.
    return sorted(usable_pairs, key=lambda authority: (authority.lifetime.made, authority.serial), reverse=True)


def authorities_as(authorities: Iterable[issuing.Issued]) -> dict[str, bytes]:
    """CAs as the data of a Secret."""
    data: dict[str, bytes] = {}
    for authority in authorities:
        # Serial numbers are unique, and connect the two files of a pair.
        data |= {f"{authority.serial}.crt": authority.pair.certificate, f"{authority.serial}.key": authority.pair.key}
    return data


def certificate_in(data: dict[str, bytes]) -> issuing.Issued | None:
    """The certificate in a Secret; None if missing or invalid."""
    return usable(issuing.Pair(data.get(CERTIFICATE, b""), data.get(KEY, b"")))


def usable(pair: issuing.Pair) -> issuing.Issued | None:
    """The decoded pair; None if it is invalid."""
    try:
        return issuing.read_pair(pair)
    except issuing.UnusablePairError:
        return None


def decoded(value: str) -> bytes:
    """The decoded base64 value; empty if it is not base64."""
    try:
        return base64.b64decode(value, validate=True)
    except ValueError:
        return b""


async def read_secret(api: KubernetesApi, namespace: str, name: str) -> JsonObject | None:
    """Get a Secret; None if it does not exist. Raises ``ApiError``."""
    # Programs that are not installed have no Secret.
    with Tolerating(RefusalKind.NOT_FOUND):
        return await api.call(ApiCall("GET", SECRETS.path(namespace, name), TIMEOUT))
    return None


LOG: Final = logging.getLogger("autoscale.certificates")


@dataclass(frozen=True, slots=True)
class Lifetimes:
    """Lifetimes of CAs and certificates; a certificate's is at most a third of a CA's."""

    authority: Seconds
    certificate: Seconds


@dataclass(frozen=True, slots=True)
class CertificateSpec:
    """One certificate, and the Secret that contains it."""

    secret: str
    purpose: issuing.Purpose


class MissingSecretError(Exception):
    """The Secret of the CAs does not exist: the manifests create it."""


@dataclass(slots=True)
class CertificateKeeper:
    """Renews CAs and certificates. ``authorities`` is the name of the Secret with the CAs in ``namespace``. ``report``
    counts ``done`` and ``failed`` renewals.
    """

    api: KubernetesApi
    leadership: Leadership
    clock: Clock
    namespace: str
    authorities: str
    wanted: Sequence[CertificateSpec]
    lifetimes: Lifetimes
    report: Callable[[str], None]

    async def renew_due(self) -> tuple[bytes, str]:
        """Do what is due. Return the trusted CAs in PEM, and the certificate that could not be renewed with the reason
        (empty: none).

        Raises ``ApiError``, ``NotLeadingError`` and ``MissingSecretError``.
        """
        trusted, trouble = await self._trusted(), ""
        bundle = b"".join(authority.pair.certificate for authority in trusted)
        for certificate in self.wanted:
            try:
                await self._renew(certificate, trusted, bundle)
            # One failure does not block the others, and the next turn retries.
            except ApiError as error:
                self.report("failed")
                trouble = f"{certificate.secret}: {error}"
        return bundle, trouble

    async def _trusted(self) -> list[issuing.Issued]:
        secret = await read_secret(self.api, self.namespace, self.authorities)
        if secret is None:
            raise MissingSecretError(f"Secret {self.namespace}/{self.authorities} is missing: apply the manifests")
        now, stored = self.clock.wall(), content(secret)
        # Drop expired CAs from the Secret, and thus from every bundle.
        valid = [authority for authority in authorities_in(stored) if authority.lifetime.is_valid(now)]
        if needs_authority([authority.lifetime for authority in valid], now):
            added = issuing.new_authority(self.lifetimes.authority, now)
            LOG.info("new CA announced", extra={"serial": added.serial})
            valid.insert(0, added)
        data = authorities_as(valid)
        if data != stored:
            dropped: Json = {key: None for key in stored if key not in data}
            # Store a new CA before it signs anything or is trusted: a crash must not lose its key.
            await self._write(self.authorities, secret, {**dropped, **encoded(data)})
        return valid

    async def _renew(self, wanted: CertificateSpec, authorities: Sequence[issuing.Issued], bundle: bytes) -> None:
        secret = await read_secret(self.api, self.namespace, wanted.secret)
        # Installing a program creates its Secret empty; without a Secret the certificate is not needed.
        if secret is None:
            return
        stored = content(secret)
        certificate = certificate_in(stored)
        # Every program gets the new bundle, even if its own certificate is still valid.
        changes = {BUNDLE: bundle}
        if certificate is None or not self._is_good(certificate, wanted.purpose, authorities):
            changes |= self._issued(wanted, authorities)
        # The usual turn writes nothing.
        if changes.items() <= stored.items():
            return
        await self._write(wanted.secret, secret, encoded(changes))
        self.report("done")
        LOG.info("certificate renewed" if KEY in changes else "CA bundle updated", extra={"secret": wanted.secret})

    def _is_good(
        self, certificate: issuing.Issued, purpose: issuing.Purpose, authorities: Sequence[issuing.Issued]
    ) -> bool:
        is_trusted = any(certificate.is_signed_by(authority) for authority in authorities)
        return is_trusted and certificate.serves(purpose) and not is_due(certificate.lifetime, self.clock.wall())

    def _issued(self, wanted: CertificateSpec, authorities: Sequence[issuing.Issued]) -> dict[str, bytes]:
        now = self.clock.wall()
        issuer = authorities[signer([authority.lifetime for authority in authorities], now)]
        pair = issuing.issue(issuer, wanted.purpose, self.lifetimes.certificate, now).pair
        return {CERTIFICATE: pair.certificate, KEY: pair.key}

    async def _write(self, name: str, read: JsonObject, data: Json) -> None:
        body: Json = {"metadata": {"resourceVersion": version_of(read)}, "data": data}
        # The write must end before the Lease does, and applies only to the version that was read: a holder that was
        # suspended and resumes late changes nothing.
        timeout = self.leadership.allowed(TIMEOUT)
        path = SECRETS.path(self.namespace, name)
        await self.api.call(ApiCall("PATCH", path, timeout, body=body, content_type=MERGE_PATCH))
