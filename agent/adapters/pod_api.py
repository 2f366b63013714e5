"""``VmApi`` for a postgres pod, which is resized in place (B.7)."""

from __future__ import annotations

from collections.abc import AsyncIterator

from agent import texts
from agent.adapters.database_object import DatabaseObject, trimmed
from agent.adapters.http_errors import SHOWN
from agent.adapters.kubernetes_api import LightKubernetesApi
from agent.adapters.node_pods import PodStates
from agent.core.events import Fault
from agent.ports import RefusedError
from protocol.kubernetes.objects import JsonObject, number, uid_of
from protocol.kubernetes.resources import PODS, STRATEGIC_PATCH
from protocol.messages import ObjectName
from protocol.pod_database import RESIZE, PodDatabase, parse_pod_database, resize_body
from protocol.units import Bytes, Resources
from protocol.virtual_machine import InvalidObjectError, VirtualMachine


class PodApi(DatabaseObject):
    """The pod ``name`` with the UID ``uid``, watched through ``states``. Rejects a recreated pod."""

    def __init__(self, api: LightKubernetesApi, name: ObjectName, uid: str, states: PodStates) -> None:
        super().__init__(api, PODS, name)
        self._uid = uid
        self._states = states
        self._seen: PodDatabase | None = None

    async def watch(self) -> AsyncIterator[PodDatabase]:
        """See ``VmApi``. Raises like ``PodStates.follow``."""
        async for database in self._states.follow(self._name):
            self._require_same(database.uid)
            self._seen = database
            yield database

    async def patch(self, use: Resources, slot_size: Bytes, base: int) -> VirtualMachine:  # noqa: ARG002 - see ``VmApi``
        """Resize the container to ``use``. Raises like ``VmApi.patch``."""
        last = self._seen
        # A new watch may start with an older version than the last read.
        if last is None or base not in (0, number(last.resource_version)):
            last = await self._get_parsed()
        # The UID is a precondition: the pod may have been recreated under its name.
        metadata = {"uid": self._uid, **({"resourceVersion": str(base)} if base else {})}
        body = {"metadata": metadata, **resize_body(last, use)}
        try:
            return self._read(await self._api.patch(f"{self._path}/{RESIZE}", body, STRATEGIC_PATCH))
        except RefusedError as error:
            raise _resize_error(error) from None

    async def _get_parsed(self) -> PodDatabase:
        pod = await self._api.get(self._path)
        try:
            return self._parsed(pod)
        except InvalidObjectError as error:
            raise self._undecodable(str(error)) from None

    def _read(self, obj: JsonObject) -> VirtualMachine:
        self._require_same(uid_of(obj))
        return super()._read(obj)

    def _require_same(self, uid: str) -> None:
        if uid != self._uid:
            raise RefusedError(Fault.VM_API, texts.POD_REPLACED.format(pod=self._name))

    def _parsed(self, obj: JsonObject) -> PodDatabase:
        self._seen = trimmed(parse_pod_database(obj))
        return self._seen


def _resize_error(error: RefusedError) -> RefusedError:
    """``error`` without the request path in its message."""
    reason = error.reason.partition(": ")[2] or error.reason
    # Only this 403 comes from RBAC; quotas, policies and impossible sizes also cause 403s.
    return RefusedError(Fault.AGENT if texts.FORBIDDEN_PATCH in reason else Fault.VM_API, reason[:SHOWN])
