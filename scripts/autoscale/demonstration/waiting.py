"""Jobs of demonstrations and measurements, and a watch that fails as soon as a VM ends."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Final

from deploy.kube.client import ApiClient
from deploy.kube.informer import Informer, ObjectChange
from protocol.kubernetes.objects import Json, integer, is_terminating, items, name_of, text, uid_of
from protocol.kubernetes.resources import VIRTUAL_MACHINES
from protocol.messages import ObjectName
from protocol.runtime.clock import Clock
from scripts.autoscale.site import SiteError

_ENDED: Final = frozenset({"Failed", "Succeeded"})


async def run_all(*jobs: Coroutine[object, object, None]) -> None:
    """Runs all jobs; an error in one cancels the others and is raised in a group."""
    async with asyncio.TaskGroup() as tasks:
        for job in jobs:
            tasks.create_task(job)


async def watch_for_ends(client: ApiClient, clock: Clock, only: ObjectName | None = None) -> None:
    """Watches the VMs of a cluster, or ``only`` one, until cancelled.

    Raises ``SiteError`` once one of them ends on its own; restarts before the watch do not count.
    """
    restarts: dict[str, int] = {}

    def failure(vm: Json) -> str:
        if only is not None and name_of(vm) != only:
            return ""
        return end_of(vm, restarts.setdefault(uid_of(vm), integer(vm, "status", "restartCount")))

    await fail_with_first(Informer(client, VIRTUAL_MACHINES, clock), failure)


async def fail_with_first(informer: Informer, failure: Callable[[Json], str]) -> None:
    """Watches until cancelled. Raises ``SiteError`` with the first non-empty ``failure`` of an object."""
    failed: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    def changed(change: ObjectChange) -> None:
        # Only the first failure: it is the cause, and a future accepts one result.
        if change.after is not None and (message := failure(change.after)) and not failed.done():
            failed.set_result(message)

    informer.listen(changed)
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(informer.run())
        # The error cancels the watch, and everything else in the caller's task group.
        raise SiteError(await failed)


def end_of(vm: Json, restarts: int = 0) -> str:
    """Describes the VM's end, or its restart; empty if it runs or is being deleted (pure)."""
    phase = text(vm, "status", "phase")
    # Deleted on purpose.
    if is_terminating(vm):
        return ""
    if phase in _ENDED:
        why = next((text(condition, "message") for condition in items(vm, "status", "conditions")), "")
        return f"VM {name_of(vm).name} has ended: {why or phase}"
    # A VM with a restart policy leaves its final phase immediately, so only the count shows the restart.
    if integer(vm, "status", "restartCount") > restarts:
        return f"VM {name_of(vm).name} has ended and was restarted; see: autoscale explain {name_of(vm)}"
    return ""
