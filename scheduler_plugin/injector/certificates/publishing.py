"""Publishes the CA bundle to agents in any namespace and to the API server, which cannot read our Secrets.

Agents read it from a ConfigMap in their namespace, which is created empty with their service account under a fixed
name; no other ConfigMap is ever changed. The API server reads it from the webhook's ``caBundle``.
"""

from __future__ import annotations

import base64
import logging
from dataclasses import dataclass
from typing import Final

from protocol.kubernetes.api import ApiCall, ApiError, ApiRefusedError, KubernetesApi
from protocol.kubernetes.objects import Json, JsonObject, items, name_of, text, texts, version_of
from protocol.kubernetes.refusals import RefusalKind
from protocol.kubernetes.resources import CONFIG_MAPS, MERGE_PATCH, MUTATING_WEBHOOKS, STRATEGIC_PATCH
from protocol.runtime.certificates.keeper import BUNDLE, decoded
from protocol.runtime.kubernetes.lease import Leadership
from protocol.units import Seconds
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
