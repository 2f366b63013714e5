"""Status lines of VMs and pods after a failed demonstration: their phases, agents and databases."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Final

from protocol.kubernetes.api import ApiError
from protocol.kubernetes.objects import Json, child, name_of, text
from protocol.kubernetes.resources import PODS, VIRTUAL_MACHINES
from protocol.pod_database import is_pod_database
from scheduler_plugin.dashboard.core.reports import problems_in
from scheduler_plugin.databases import database_node, is_pod
from scripts.autoscale.demonstration.watcher import sizes_of
from scripts.autoscale.site import Site, SitePods, agent_response

_ATTEMPTS: Final = 3
"""On the first request a guest starts a client of its database, which takes an emulated guest some seconds."""
_MEASURED: Final = {
    "cores_busy": "CPUs busy",
    "cores_in_iowait": "waiting for the disk",
    "cores_stolen": "stolen",
    "cpu_stall": "stalled for CPU",
    "mem_stall": "stalled for memory",
    "mem_used": "used",
    "age_seconds": "s ago",
}
_COUNTED: Final = {"sessions": "sessions", "oldestTransactionSeconds": "s since the oldest transaction began"}


async def statements(site: Site) -> list[str]:
    """A line for each VM and each pod that opted in; empty if the cluster's API does not respond."""
    try:
        vms, pods = (await site.client.list(VIRTUAL_MACHINES)).objects, (await site.client.list(PODS)).objects
    except ApiError:
        return []
    index = SitePods.of(pods)
    databases = [*vms, *filter(is_pod_database, pods)]
    return await asyncio.gather(*(_query(site, vm, index) for vm in sorted(databases, key=name_of)))


async def _query(site: Site, vm: Json, pods: SitePods) -> str:
    explanation = await agent_response(site, vm, pods)
    # Agents query databases over a private link that clients do not use. If the database answers but clients get no
    # answer, the network is at fault; otherwise the guest.
    database: Json | None = None
    # Agents do not query databases in pods.
    for _ in range(0 if is_pod(vm) else _ATTEMPTS):
        database = database or await agent_response(site, vm, pods, "/database")
    return statement(vm, explanation, database)


def statement(vm: Json, explanation: Json | None, database: Json | None) -> str:
    """Status of a VM or pod; ``explanation`` and ``database`` are None without an answer (pure)."""
    status = child(vm, "status")
    size, _ = sizes_of(vm)
    has = "? CPU, ?" if size is None else f"{size.cpu} CPU, {size.mem}"
    guest = "the agent does not respond" if explanation is None else _guest(explanation)
    inside = "the database does not respond" if database is None else _readings("the database has", database, _COUNTED)
    where = f"{text(status, 'phase') or 'Pending'} on {database_node(vm) or 'no node'}"
    return "; ".join((f"{name_of(vm).name}: {where}, {has}", guest, *([] if is_pod(vm) else [inside])))


def _guest(explanation: Json) -> str:
    because = text(explanation, "because")
    measured = _readings("the agent saw", child(explanation, "metrics"), _MEASURED)
    return "; ".join((measured, *([f"its size: {because}"] if because else []), *problems_in(explanation)))


def _readings(begin: str, values: Mapping[str, object], units: Mapping[str, str]) -> str:
    # Zero is a reading, but None is not.
    readings = [f"{values[key]} {unit}" for key, unit in units.items() if values.get(key) is not None]
    return f"{begin} {', '.join(readings) or 'nothing yet'}"
