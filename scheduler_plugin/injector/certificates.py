"""Authorities for agents and the API server, and the webhook's own certificate (B.4).

- Agents read the CA bundle from a ConfigMap in their namespace, which is created empty with their service account under
  a fixed name; no other ConfigMap is ever changed. The API server reads it from the webhook's ``caBundle``. Neither can
  read our Secrets.
- If cert-manager makes the certificates, the bundle is gathered from all our Secrets.
- The injector issues the webhook's certificate itself, so it cannot wait for a volume that is mounted before its start:
  it is copied from its Secret into a file.
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

from protocol.kubernetes.api import ApiCall, ApiError, ApiRefusedError, KubernetesApi
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
    """``config_map`` is the name in every namespace, ``webhook`` that of the MutatingWebhookConfiguration."""

    api: KubernetesApi
    leadership: Leadership
    config_map: str
    webhook: str

    async def published(self) -> bytes:
        """The authorities that the API server trusts; empty if none. Raises ``ApiError``."""
        hooks = items(await self._webhook() or {}, "webhooks")
        return b"".join(dict.fromkeys(decoded(text(hook, "clientConfig", "caBundle")) for hook in hooks))

    async def publish(self, bundle: bytes) -> str:
        """Write the bundle to every outdated copy. Return the failed copy and the reason; empty if none.

        Raises ``ApiError`` and ``NotLeadingError``.
        """
        trouble = ""
        # First: unless the API server trusts the webhook, no pod gets an agent.
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
        wanted, configuration = base64.b64encode(bundle).decode(), await self._webhook()
        # The webhook is optional.
        if configuration is None:
            return
        stale = [hook for hook in items(configuration, "webhooks") if text(hook, "clientConfig", "caBundle") != wanted]
        if not stale:
            return
        changed: list[Json] = [{"name": text(hook, "name"), "clientConfig": {"caBundle": wanted}} for hook in stale]
        # A strategic merge patch merges the list by name and keeps other fields.
        body: Json = {"metadata": {"resourceVersion": version_of(configuration)}, "webhooks": changed}
        await self._patch(MUTATING_WEBHOOKS.path(name=self.webhook), body, STRATEGIC_PATCH)
        LOG.info(WEBHOOK_TRUSTED, extra={"webhook": self.webhook})

    async def _webhook(self) -> JsonObject | None:
        try:
            return await self.api.call(ApiCall("GET", MUTATING_WEBHOOKS.path(name=self.webhook), TIMEOUT))
        except ApiRefusedError as error:
            if error.kind is RefusalKind.NOT_FOUND:
                return None
            raise

    async def _copies(self) -> list[Json]:
        copies: list[Json] = []
        # A list by name needs permission for that name only.
        query = {"fieldSelector": f"metadata.name={self.config_map}", "limit": str(PAGE)}
        while True:
            page = await self.api.page(ApiCall("GET", CONFIG_MAPS.path(), TIMEOUT, query=query))
            copies += page.objects
            if not page.rest:
                return copies
            query = {**query, "continue": page.rest}

    async def _patch(self, path: str, body: JsonObject, kind: str) -> None:
        timeout = self.leadership.allowed(TIMEOUT)
        await self.api.call(ApiCall("PATCH", path, timeout, body=body, content_type=kind))


OVERLAP: Final = Seconds(600.0)
"""The kubelet updates files in a pod within two minutes; the rest is margin for kubelets without contact."""


@dataclass(slots=True)
class GatheredBundle:
    """``secrets`` in ``namespace`` are those of the certificates, and of the authority if there is one."""

    api: KubernetesApi
    clock: Clock
    namespace: str
    secrets: Sequence[str]
    _missed: dict[x509.Certificate, Instant] = field(default_factory=dict)
    """Authorities that are still trusted though no Secret has them, and since when."""

    async def gather(self, mounted: bytes, published: bytes) -> bytes:
        """All authorities to trust from now on, in PEM, newest first; empty if there are none.

        ``mounted`` is the ``ca.crt`` next to the webhook's own certificate. Raises ``ApiError``.
        """
        named = authorities(mounted)
        for name in self.secrets:
            secret = await read_secret(self.api, self.namespace, name)
            # An issuer with a new key uses it at each renewal, so both the old and the new authority are in use for
            # weeks.
            named |= authorities(content(secret or {}).get(BUNDLE, b""))
        # Read from the cluster each time, so that a new leader continues where the last one ended.
        trusted, now = named | self._in_overlap(authorities(published) - named), self.clock.wall()
        return in_pem({authority for authority in trusted if now < authority.not_valid_after_utc.timestamp()})

    def _in_overlap(self, missed: set[x509.Certificate]) -> set[x509.Certificate]:
        now = self.clock.now()
        self._missed = {certificate: self._missed.get(certificate, now) for certificate in missed}
        # Long enough for pods to get their new certificates; the old authority's key may be compromised.
        return {certificate for certificate, since in self._missed.items() if now - since < OVERLAP}


def authorities(pem: bytes) -> set[x509.Certificate]:
    """The certificates of a ``ca.crt``; none if unreadable."""
    try:
        return set(x509.load_pem_x509_certificates(pem))
    except ValueError:
        return set()


def in_pem(certificates: set[x509.Certificate]) -> bytes:
    """PEM text of a set, newest first."""
    # Ties by fingerprint: the same set must give the same text, or it would be rewritten every round.
    ordered = sorted(
        certificates,
        key=lambda certificate: (certificate.not_valid_before_utc, certificate.fingerprint(hashes.SHA256())),
        reverse=True,
    )
    return b"".join(certificate.public_bytes(Encoding.PEM) for certificate in ordered)


async def fetch_certificate(api: KubernetesApi, namespace: str, name: str, file: Path) -> None:
    """Write the pair in the Secret ``name`` to the file that the webhook's listener follows, if it is usable and new.
    Raises ``ApiError`` and ``OSError``.
    """
    stored = certificate_in(content(await read_secret(api, namespace, name) or {}))
    if stored is not None:
        _replace(file, stored.pair.certificate + stored.pair.key)


def _replace(file: Path, pem: bytes) -> None:
    """Replace the file atomically, with permissions for its owner only."""
    # The listener reloads the file after each write.
    if file.exists() and file.read_bytes() == pem:
        return
    temporary = file.with_suffix(".new")
    # Created with this mode: a later chmod would leave a moment in which others can read the key.
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "wb") as out:
        out.write(pem)
    # The listener must not see a partial file.
    temporary.replace(file)
