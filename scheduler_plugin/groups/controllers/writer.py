"""Writes to the cluster, each within the time that the Lease leaves. Nothing is retried here."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from protocol.kubernetes.objects import Json, JsonObject
from protocol.kubernetes.refusals import RefusalKind
from protocol.kubernetes.resources import Resource
from protocol.kubernetes.timestamps import micro_timestamp
from protocol.messages import ObjectName
from protocol.runtime.clock import Clock
from protocol.units import Seconds
from scheduler_plugin.cluster.api import ApiCall, ApiError, ApiRefusedError, KubernetesApi
from scheduler_plugin.cluster.events import EventRecord, event_body
from scheduler_plugin.groups.lease import MERGE_PATCH, Leadership
from scheduler_plugin.groups.objects.writes import Write

PASSING: Final = frozenset({RefusalKind.CONFLICT, RefusalKind.ALREADY_EXISTS, RefusalKind.NOT_FOUND})
"""Refusals that only say that the cache was behind."""

TIMEOUT: Final = Seconds(3.0)
COMPONENT: Final = "autoscale-groups"
STRATEGIC_PATCH: Final = "application/strategic-merge-patch+json"


@dataclass(frozen=True, slots=True)
class Writer:
    """Each method raises ``NotLeadingError``, ``ApiRefusedError`` or ``ApiUnknownError`` (see ``cluster.api``).

    ``report(what, outcome)`` is told of every write: ``done``, ``refused`` or ``unknown``.
    """

    api: KubernetesApi
    leadership: Leadership
    clock: Clock
    report: Callable[[str, str], None]

    async def do(self, write: Write) -> JsonObject:
        """Carries out one write; returns the object, or its Scale, as it is now."""
        kind = STRATEGIC_PATCH if write.merges_lists else MERGE_PATCH
        method, content_type = ("POST", "application/json") if write.creates else ("PATCH", kind)
        return await self._call(write.what, method, write.path, write.guarded_body, content_type)

    async def delete(self, resource: Resource, name: ObjectName, uid: str) -> None:
        """Deletes the object with this uid; 409 where another has taken its name."""
        body: Json = {"kind": "DeleteOptions", "apiVersion": "v1", "preconditions": {"uid": uid}}
        await self._call("delete", "DELETE", resource.path(name.namespace, name.name), body)

    async def tell(self, event: EventRecord) -> None:
        """Records an event; one that is refused is dropped. Raises ``ApiUnknownError`` and ``NotLeadingError``."""
        body = event_body(event, micro_timestamp(self.clock.wall()), COMPONENT)
        try:
            await self._call("event", "POST", event.path, dict(body))
        except ApiRefusedError:
            return

    async def _call(
        self, what: str, method: str, path: str, body: Json, content_type: str = "application/json"
    ) -> JsonObject:
        timeout = self.leadership.allowed(TIMEOUT)
        try:
            found = await self.api.call(ApiCall(method, path, timeout, body=body, content_type=content_type))
        except ApiError as error:
            self.report(what, "refused" if isinstance(error, ApiRefusedError) else "unknown")
            raise
        self.report(what, "done")
        return found
