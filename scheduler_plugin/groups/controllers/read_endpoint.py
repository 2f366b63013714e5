"""The read endpoint of a group of VMs: its Service and EndpointSlice (S4.3)."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from protocol.kubernetes.api import ApiCall, KubernetesApi, Tolerating
from protocol.kubernetes.objects import Json, version_of
from protocol.kubernetes.refusals import RefusalKind
from protocol.kubernetes.resources import ENDPOINT_SLICES, SERVICES, Resource
from protocol.messages import ObjectName
from scheduler_plugin.groups.controllers.controller import TIMEOUT, Writer
from scheduler_plugin.groups.core.replicas.group_plan import GroupPlan
from scheduler_plugin.groups.objects.group_members import (
    belongs_to,
    differs,
    endpoint_name,
    endpoint_slice,
    listed_uids,
    read_service,
)
from scheduler_plugin.groups.objects.vm_group import VmGroup
from scheduler_plugin.groups.objects.writes import Write


@dataclass(frozen=True, slots=True)
class ReadEndpoint:
    """The Service and EndpointSlice of one group; None if missing. ``foreign`` names one with another owner."""

    service: Json | None
    slice: Json | None
    foreign: str = ""

    @property
    def listed(self) -> frozenset[str]:
        """UIDs of the VMs to which it sends new clients."""
        return frozenset() if self.foreign else listed_uids(self.slice or {})


async def read_endpoint(api: KubernetesApi, group: VmGroup) -> ReadEndpoint:
    """Read the group's endpoint. Raises ``ApiError``."""
    name, kinds = endpoint_name(group.name), (SERVICES, ENDPOINT_SLICES)
    # Read it each time, because a watch would cache every Service of the cluster.
    service, slice_ = await asyncio.gather(*(read_object(api, kind, name) for kind in kinds))
    pairs = zip(kinds, (service, slice_), strict=True)
    # Write neither if one is foreign: a foreign Service could send its clients to the replicas.
    foreign = [f"{kind.kind} {name.name}" for kind, obj in pairs if obj is not None and not belongs_to(obj, group)]
    return ReadEndpoint(service, slice_, foreign[0] if foreign else "")


async def write_endpoint(writer: Writer, group: VmGroup, endpoint: ReadEndpoint, plan: GroupPlan) -> None:
    """Update the read endpoint to the serving replicas. Raises like ``Writer``."""
    if endpoint.foreign:
        return
    name, desired = endpoint_name(group.name), endpoint_slice(group, plan)
    if endpoint.service is None:
        await writer.do(Write("endpoint", SERVICES, name, read_service(group), creates=True))
    if endpoint.slice is None:
        await writer.do(Write("endpoint", ENDPOINT_SLICES, name, desired, creates=True))
    elif differs(endpoint.slice, desired):
        # Labels and owner do not change.
        body: Json = {key: desired[key] for key in ("endpoints", "ports")}
        await writer.do(Write("endpoint", ENDPOINT_SLICES, name, body, version=version_of(endpoint.slice)))


async def read_object(api: KubernetesApi, resource: Resource, name: ObjectName) -> Json | None:
    """Read one object; None if missing. Raises ``ApiError``."""
    # Other refusals do not mean that it is missing; the caller would create it.
    with Tolerating(RefusalKind.NOT_FOUND):
        return dict(await api.call(ApiCall("GET", resource.path(name.namespace, name.name), TIMEOUT)))
    return None
