"""Status lines of the VMs and pods of a demonstration that failed: their phase, agents and databases."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Final

from protocol.kubernetes.api import ApiError
from protocol.kubernetes.objects import Json, child, name_of, text
from protocol.kubernetes.resources import PODS, VIRTUAL_MACHINES
from protocol.pod_database import is_pod_database
from scheduler_plugin.dashboard.core.reports import troubles_in
from scheduler_plugin.databases import database_node, is_pod
from scripts.autoscale.demonstration.watcher import sizes_of
from scripts.autoscale.site import Site, SitePods, agent_says

_TIMES: Final = 3
"""At the first question a guest starts a client of its database, which takes an emulated guest some seconds."""
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
    """One line for each VM and each pod that opted in; none if the cluster's API does not answer."""
    try:
        vms, pods = (await site.client.list(VIRTUAL_MACHINES)).objects, (await site.client.list(PODS)).objects
    except ApiError:
        # Without the API there is no list of VMs to ask.
        return []
    index = SitePods.of(pods)
    databases = [*vms, *filter(is_pod_database, pods)]
    return await asyncio.gather(*(_asked(site, vm, index) for vm in sorted(databases, key=name_of)))


async def _asked(site: Site, vm: Json, pods: SitePods) -> str:
    explained = await agent_says(site, vm, pods)
    # Agent and database answer over a private link, which clients do not use: if they answer and clients get no
    # answer, the network is at fault; if they do not, the guest is.
    database: Json | None = None
    # An agent asks no database in a pod.
    for _ in range(0 if is_pod(vm) else _TIMES):
        database = database or await agent_says(site, vm, pods, "/database")
    return statement(vm, explained, database)


def statement(vm: Json, explained: Json | None, database: Json | None) -> str:
    """Status of one VM. ``explained`` and ``database`` are None if nobody answered (pure)."""
    status = child(vm, "status")
    size, _ = sizes_of(vm)
    has = "? CPU, ?" if size is None else f"{size.cpu} CPU, {size.mem}"
    guest = "the agent gives no answer" if explained is None else _of_guest(explained)
    inside = "the database gives no answer" if database is None else _said("the database has", database, _COUNTED)
    where = f"{text(status, 'phase') or 'Pending'} on {database_node(vm) or 'no node'}"
    return "; ".join((f"{name_of(vm).name}: {where}, {has}", guest, *([] if is_pod(vm) else [inside])))


def _of_guest(explained: Json) -> str:
    because = text(explained, "because")
    measured = _said("the agent saw", child(explained, "metrics"), _MEASURED)
    return "; ".join((measured, *([f"its size: {because}"] if because else []), *troubles_in(explained)))


def _said(begin: str, found: Mapping[str, object], words: Mapping[str, str]) -> str:
    # Zero is a reading, and None is not.
    readings = [f"{found[key]} {word}" for key, word in words.items() if found.get(key) is not None]
    return f"{begin} {', '.join(readings) or 'nothing yet'}"
