"""The Service and the EndpointSlice of a group of VMs, as they are and as they should be (S4.3)."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from protocol.kubernetes.api import ApiCall, ApiRefusedError, KubernetesApi
from protocol.kubernetes.objects import Json, version_of
from protocol.kubernetes.refusals import RefusalKind
from protocol.kubernetes.resources import ENDPOINT_SLICES, SERVICES, Resource
from protocol.messages import ObjectName
from scheduler_plugin.groups.controllers.controller import TIMEOUT, Writer
from scheduler_plugin.groups.core.replicas.group_plan import GroupPlan
from scheduler_plugin.groups.core.writes import Write
from scheduler_plugin.groups.objects.group_members import (
    differs,
    endpoint_name,
    endpoint_slice,
    is_of,
    listed_uids,
    read_service,
)
from scheduler_plugin.groups.objects.vm_group import VmGroup


@dataclass(frozen=True, slots=True)
class ReadEndpoint:
    """The two objects of one group, None if there is none. ``foreign`` names the one that belongs to others."""

    service: Json | None
    slice: Json | None
    foreign: str = ""

    @property
    def listed(self) -> frozenset[str]:
        """The UIDs of the VMs that it offers to new clients."""
        return frozenset() if self.foreign else listed_uids(self.slice or {})


async def look_at_endpoint(api: KubernetesApi, group: VmGroup) -> ReadEndpoint:
    """The group's read endpoint as it is now. Raises ``ApiError``."""
    name, kinds = endpoint_name(group.name), (SERVICES, ENDPOINT_SLICES)
    # Read at each look, so that a deleted one is made again without watching every Service of the cluster.
    service, slice_ = await asyncio.gather(*(read_object(api, kind, name) for kind in kinds))
    pairs = zip(kinds, (service, slice_), strict=True)
    # A Service or slice of that name that belongs to others is left alone. The other one is not written either: it
    # could send the clients of others to the replicas.
    foreign = [f"{kind.kind} {name.name}" for kind, obj in pairs if obj is not None and not is_of(obj, group)]
    return ReadEndpoint(service, slice_, foreign[0] if foreign else "")


async def offer(writer: Writer, group: VmGroup, found: ReadEndpoint, plan: GroupPlan) -> None:
    """Makes the read endpoint list the replicas that serve. Raises as ``Writer``."""
    if found.foreign:
        return
    name, wanted = endpoint_name(group.name), endpoint_slice(group, plan)
    if found.service is None:
        await writer.do(Write("endpoint", SERVICES, name, read_service(group), creates=True))
    if found.slice is None:
        await writer.do(Write("endpoint", ENDPOINT_SLICES, name, wanted, creates=True))
    elif differs(found.slice, wanted):
        # Labels and owner stay as they are; only these two fields change.
        body: Json = {key: wanted[key] for key in ("endpoints", "ports")}
        await writer.do(Write("endpoint", ENDPOINT_SLICES, name, body, version=version_of(found.slice)))


async def read_object(api: KubernetesApi, resource: Resource, name: ObjectName) -> Json | None:
    """One object as it is now, None if there is none. Raises ``ApiError``."""
    try:
        return dict(await api.call(ApiCall("GET", resource.path(name.namespace, name.name), TIMEOUT)))
    except ApiRefusedError as error:
        # No other refusal must pass for a missing object: the caller would create it.
        if error.kind is not RefusalKind.NOT_FOUND:
            raise
        return None
