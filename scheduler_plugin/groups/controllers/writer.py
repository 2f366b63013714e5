"""Writes to the cluster, each within the time that the Lease leaves. Nothing is retried here."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from protocol.kubernetes.api import ApiCall, ApiError, ApiRefusedError, KubernetesApi
from protocol.kubernetes.objects import Json, JsonObject, name_of, uid_of, version_of
from protocol.kubernetes.refusals import RefusalKind
from protocol.kubernetes.resources import Resource
from protocol.kubernetes.timestamps import micro_timestamp
from protocol.runtime.clock import Clock
from protocol.runtime.kubernetes.lease import MERGE_PATCH, Leadership
from protocol.units import Seconds
from scheduler_plugin.cluster.events import EventRecord, event_body
from scheduler_plugin.groups.objects.writes import Write

PASSING: Final = frozenset({RefusalKind.CONFLICT, RefusalKind.ALREADY_EXISTS, RefusalKind.NOT_FOUND})
"""Refusals that only say that the cache was behind."""

TIMEOUT: Final = Seconds(3.0)
COMPONENT: Final = "autoscale-groups"
STRATEGIC_PATCH: Final = "application/strategic-merge-patch+json"
NO_DRY_RUN: Final = "does not support dry run"
JSON: Final = "application/json"


@dataclass(frozen=True, slots=True)
class Writer:
    """Each method raises ``NotLeadingError``, ``ApiRefusedError`` or ``ApiUnknownError`` (see ``cluster.api``).

    ``report(what, outcome)`` is called for every write: ``done``, ``refused`` or ``unknown``.
    """

    api: KubernetesApi
    leadership: Leadership
    clock: Clock
    report: Callable[[str, str], None]

    async def do(self, write: Write) -> JsonObject:
        """Carries out one write; returns the object, or its Scale, as it is now."""
        return await self._call(write.what, _creation(write.path, write.body) if write.creates else _patch(write))

    async def rehearse(self, write: Write) -> None:
        """Asks whether the API would accept a patch, and changes nothing (``dryRun``).

        An admission webhook without support for dry runs refuses the request; then only the write itself can tell.
        """
        try:
            await self._call("rehearsal", _patch(write, {"dryRun": "All"}))
        except ApiRefusedError as error:
            if NO_DRY_RUN not in str(error):
                raise

    async def delete(self, resource: Resource, found: JsonObject) -> None:
        """Deletes the object as it was ``found``; 409 if it has changed, or another one has taken its name."""
        name = name_of(found)
        # A process may stall between checking the Lease and sending, and wake when another one leads. The preconditions
        # make the API refuse to delete anything newer.
        preconditions: Json = {"uid": uid_of(found), "resourceVersion": version_of(found)}
        body: Json = {"kind": "DeleteOptions", "apiVersion": "v1", "preconditions": preconditions}
        path = resource.path(name.namespace, name.name)
        await self._call("delete", ApiCall("DELETE", path, TIMEOUT, body=body, content_type=JSON))

    async def tell(self, event: EventRecord) -> None:
        """Records an event; one that is refused is dropped. Raises ``ApiUnknownError`` and ``NotLeadingError``."""
        body = event_body(event, micro_timestamp(self.clock.wall()), COMPONENT)
        try:
            await self._call("event", _creation(event.path, dict(body)))
        # Events only inform; a refused one must not stop a scaling.
        except ApiRefusedError:
            return

    async def _call(self, what: str, call: ApiCall) -> JsonObject:
        # No longer than the Lease is ours: a later request could overlap with a successor's writes.
        in_time = call.within(self.leadership.allowed(call.timeout))
        try:
            response = await self.api.call(in_time)
        except ApiError as error:
            # Unknown: a request without an answer may still have been carried out.
            self.report(what, "refused" if isinstance(error, ApiRefusedError) else "unknown")
            raise
        self.report(what, "done")
        return response


def _creation(path: str, body: Json) -> ApiCall:
    # A creation cannot have a version as a precondition. Names are fixed, so the API refuses a second one; a late one
    # is collected with its owner, which is named by UID.
    return ApiCall("POST", path, TIMEOUT, body=body, content_type=JSON)


def _patch(write: Write, query: Mapping[str, str] | None = None) -> ApiCall:
    # Containers are a list: a JSON merge patch would replace all of them, a strategic one finds them by name.
    kind = STRATEGIC_PATCH if write.merges_lists else MERGE_PATCH
    return ApiCall("PATCH", write.path, TIMEOUT, query=query or {}, body=write.guarded_body, content_type=kind)
