"""Status lines of the VMs of a demonstration that failed: their phase, agents and databases."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Final

from protocol.kubernetes.api import ApiError
from protocol.kubernetes.objects import Json, child, name_of, text
from protocol.kubernetes.resources import PODS, VIRTUAL_MACHINES
from scheduler_plugin.dashboard.core.said import troubles_in
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
    """One line for each VM of the cluster; none if its API does not answer."""
    try:
        vms, pods = (await site.client.list(VIRTUAL_MACHINES)).objects, (await site.client.list(PODS)).objects
    except ApiError:
        # Without the API there is no list of VMs to ask.
        return []
    index = SitePods.of(pods)
    return await asyncio.gather(*(_asked(site, vm, index) for vm in sorted(vms, key=name_of)))


async def _asked(site: Site, vm: Json, pods: SitePods) -> str:
    explained = await agent_says(site, vm, pods)
    # Agent and database answer over a private link, which clients do not use: if they answer and clients get no
    # answer, the network is at fault; if they do not, the guest is.
    database: Json | None = None
    for _ in range(_TIMES):
        database = database or await agent_says(site, vm, pods, "/database")
    return statement(vm, explained, database)


def statement(vm: Json, explained: Json | None, database: Json | None) -> str:
    """Status of one VM. ``explained`` and ``database`` are None if nobody answered (pure)."""
    status = child(vm, "status")
    size = f"{text(status, 'cpus') or '?'} CPU, {text(status, 'memorySize') or '?'}"
    guest = "the agent gives no answer" if explained is None else _of_guest(explained)
    inside = "the database gives no answer" if database is None else _said("the database has", database, _COUNTED)
    where = f"{text(status, 'phase') or 'Pending'} on {text(status, 'node') or 'no node'}"
    return f"{name_of(vm).name}: {where}, {size}; {guest}; {inside}"


def _of_guest(explained: Json) -> str:
    because = text(explained, "because")
    measured = _said("the agent saw", child(explained, "metrics"), _MEASURED)
    return "; ".join((measured, *([f"its size: {because}"] if because else []), *troubles_in(explained)))


def _said(begin: str, found: Mapping[str, object], words: Mapping[str, str]) -> str:
    # Zero is a reading, and None is not.
    readings = [f"{found[key]} {word}" for key, word in words.items() if found.get(key) is not None]
    return f"{begin} {', '.join(readings) or 'nothing yet'}"
