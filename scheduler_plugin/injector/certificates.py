"""The CA bundle for agents and the API server, and the webhook's own certificate (B.4).

- Agents and the API server cannot read our Secrets. Agents read the bundle from a ConfigMap with a fixed name in their
  namespace, which is created empty together with their service account; no other ConfigMap is changed. The API server
  reads it from the webhook's ``caBundle``.
- If cert-manager issues the certificates, the bundle is gathered from all our Secrets.
- The webhook's certificate is copied from its Secret into a file. A volume would have to be mounted before the start,
  when the injector has not issued the certificate yet.
"""

from __future__ import annotations

import base64
import logging
import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.serialization import Encoding

from protocol.kubernetes.api import ApiCall, ApiError, KubernetesApi, Tolerating
from protocol.kubernetes.objects import Json, JsonObject, items, name_of, text, texts, version_of
from protocol.kubernetes.refusals import RefusalKind
from protocol.kubernetes.resources import CONFIG_MAPS, MERGE_PATCH, MUTATING_WEBHOOKS, STRATEGIC_PATCH
from protocol.runtime.certificates.keeper import BUNDLE, certificate_in, content, decoded, read_secret
from protocol.runtime.clock import Clock
from protocol.runtime.kubernetes.lease import Leadership
from protocol.units import Instant, Seconds
from scheduler_plugin.injector.texts import AUTHORITIES_PUBLISHED, WEBHOOK_TRUSTED

LOG: Final = logging.getLogger("autoscale.injector")

TIMEOUT: Final = Seconds(5.0)
PAGE: Final = 200


@dataclass(frozen=True, slots=True)
class BundlePublisher:
    """Publishes the CA bundle.

    ``config_map`` is the name of the ConfigMap in every namespace, ``webhook`` the name of the
    MutatingWebhookConfiguration.
    """

    api: KubernetesApi
    leadership: Leadership
    config_map: str
    webhook: str

    async def published(self) -> bytes:
        """The CA bundle that the API server has; empty if none. Raises ``ApiError``."""
        hooks = items(await self._webhook() or {}, "webhooks")
        return b"".join(dict.fromkeys(decoded(text(hook, "clientConfig", "caBundle")) for hook in hooks))

    async def publish(self, bundle: bytes) -> str:
        """Write the bundle to every outdated copy. Return a copy that cannot be written and why, else an empty text.

        Raises ``ApiError`` and ``NotLeadingError``.
        """
        trouble = ""
        # The API server first: unless it trusts the webhook, no pod gets an agent.
        await self._to_api_server(bundle)
        for copy in await self._copies():
            if texts(copy, "data").get(BUNDLE) != bundle.decode():
                try:
                    await self._to_namespace(copy, bundle)
                except ApiError as error:
                    # A namespace that cannot be written, such as a terminating one, must not block others.
                    trouble = f"{name_of(copy)}: {error}"
        return trouble

    async def _to_namespace(self, copy: JsonObject, bundle: bytes) -> None:
        name = name_of(copy)
        body: Json = {"metadata": {"resourceVersion": version_of(copy)}, "data": {BUNDLE: bundle.decode()}}
        await self._patch(CONFIG_MAPS.path(name.namespace, name.name), body, MERGE_PATCH)
        LOG.info(AUTHORITIES_PUBLISHED, extra={"config_map": str(name)})

    async def _to_api_server(self, bundle: bytes) -> None:
        encoded, configuration = base64.b64encode(bundle).decode(), await self._webhook()
        # The webhook is optional.
        if configuration is None:
            return
        stale = [hook for hook in items(configuration, "webhooks") if text(hook, "clientConfig", "caBundle") != encoded]
        if not stale:
            return
        changed: list[Json] = [{"name": text(hook, "name"), "clientConfig": {"caBundle": encoded}} for hook in stale]
        # A strategic merge patch merges the list by name and keeps other fields.
        body: Json = {"metadata": {"resourceVersion": version_of(configuration)}, "webhooks": changed}
        await self._patch(MUTATING_WEBHOOKS.path(name=self.webhook), body, STRATEGIC_PATCH)
        LOG.info(WEBHOOK_TRUSTED, extra={"webhook": self.webhook})

    async def _webhook(self) -> JsonObject | None:
        with Tolerating(RefusalKind.NOT_FOUND):
            return await self.api.call(ApiCall("GET", MUTATING_WEBHOOKS.path(name=self.webhook), TIMEOUT))
        return None

    async def _copies(self) -> list[Json]:
        copies: list[Json] = []
        # A list of this name only, because the permission is for this name.
        query = {"fieldSelector": f"metadata.name={self.config_map}", "limit": str(PAGE)}
        while True:
            page = await self.api.page(ApiCall("GET", CONFIG_MAPS.path(), TIMEOUT, query=query))
            copies += page.objects
            if not page.continue_token:
                return copies
            query = {**query, "continue": page.continue_token}

    async def _patch(self, path: str, body: JsonObject, kind: str) -> None:
        timeout = self.leadership.allowed(TIMEOUT)
        await self.api.call(ApiCall("PATCH", path, timeout, body=body, content_type=kind))


OVERLAP: Final = Seconds(600.0)
"""How long a CA stays trusted after no Secret has it. Kubelets update files in pods within two minutes; the
rest is a margin for kubelets that are out of contact.
"""


@dataclass(slots=True)
class GatheredBundle:
    """Gathers the CA bundle from ``secrets`` in ``namespace``: of certificates, and of the CA if there is one."""

    api: KubernetesApi
    clock: Clock
    namespace: str
    secrets: Sequence[str]
    _missed: dict[x509.Certificate, Instant] = field(default_factory=dict)
    """CAs that are still trusted although no Secret has them, and since when."""

    async def gather(self, mounted: bytes, published: bytes) -> bytes:
        """All CAs to trust from now on, as PEM, newest first; empty if there are none.

        ``mounted`` is the ``ca.crt`` next to the webhook's own certificate. Raises ``ApiError``.
        """
        named = authorities(mounted)
        for name in self.secrets:
            secret = await read_secret(self.api, self.namespace, name)
            # An issuer with a new key uses it only at the next renewal of each certificate, so for weeks both the old
            # and the new CA are in use.
            named |= authorities(content(secret or {}).get(BUNDLE, b""))
        # `published` is read from the cluster each time, so that a new leader continues where the last one ended.
        trusted, now = named | self._in_overlap(authorities(published) - named), self.clock.wall()
        return in_pem({authority for authority in trusted if now < authority.not_valid_after_utc.timestamp()})

    def _in_overlap(self, missed: set[x509.Certificate]) -> set[x509.Certificate]:
        now = self.clock.now()
        self._missed = {certificate: self._missed.get(certificate, now) for certificate in missed}
        # Long enough for pods to get their new certificates; the old CA's key may be compromised.
        return {certificate for certificate, since in self._missed.items() if now - since < OVERLAP}


def authorities(pem: bytes) -> set[x509.Certificate]:
    """The certificates in a ``ca.crt``; none if it is unreadable."""
    try:
        return set(x509.load_pem_x509_certificates(pem))
    except ValueError:
        return set()


def in_pem(certificates: set[x509.Certificate]) -> bytes:
    """The certificates as PEM, newest first."""
    # Then by fingerprint, because the same set must give the same text; otherwise it would be written in every round.
    ordered = sorted(
        certificates,
        key=lambda certificate: (certificate.not_valid_before_utc, certificate.fingerprint(hashes.SHA256())),
        reverse=True,
    )
    return b"".join(certificate.public_bytes(Encoding.PEM) for certificate in ordered)


async def fetch_certificate(api: KubernetesApi, namespace: str, name: str, file: Path) -> None:
    """Copy certificate and key from the Secret ``name`` to the webhook's file, if they are usable and new.

    Raises ``ApiError`` and ``OSError``.
    """
    stored = certificate_in(content(await read_secret(api, namespace, name) or {}))
    if stored is not None:
        _replace(file, stored.pair.certificate + stored.pair.key)


def _replace(file: Path, pem: bytes) -> None:
    """Replace the file atomically, readable only by its owner."""
    # The listener reloads the file after each write, so save needless ones.
    if file.exists() and file.read_bytes() == pem:
        return
    temporary = file.with_suffix(".new")
    # Created with this mode, because before a later chmod others could read the key.
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "wb") as out:
        out.write(pem)
    # The listener must not see a partial file.
    temporary.replace(file)
