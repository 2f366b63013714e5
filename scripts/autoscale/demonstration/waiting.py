"""Waits of demonstrations and measurements: each has a limit, and all end as soon as a VM has ended by itself."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import Final

from deploy.kube.client import ApiClient
from deploy.kube.informer import Informer, ObjectChange
from protocol.kubernetes.objects import Json, is_terminating, items, name_of, text, uid_of, whole
from protocol.kubernetes.resources import VIRTUAL_MACHINES
from protocol.messages import ObjectName
from protocol.runtime.clock import Clock
from protocol.units import Seconds
from scripts.autoscale.site import SiteError

_ENDED: Final = frozenset({"Failed", "Succeeded"})
_LOOK: Final = Seconds(0.05)


async def together(*jobs: Coroutine[object, object, None]) -> None:
    """Runs all jobs; an error of one cancels the others, and is raised in a group."""
    async with asyncio.TaskGroup() as tasks:
        for job in jobs:
            tasks.create_task(job)


async def comes(holds: Callable[[], bool], clock: Clock, at_most: Seconds) -> bool:
    """Return True as soon as ``holds`` does, False after ``at_most``."""

    async def look() -> bool:
        return holds()

    return await answers(look, clock, at_most)


async def answers(holds: Callable[[], Awaitable[bool]], clock: Clock, at_most: Seconds) -> bool:
    """The same of a condition that has to be asked for."""
    deadline = clock.now() + at_most
    while not await holds():
        if clock.now() >= deadline:
            return False
        await clock.sleep(_LOOK)
    return True


async def watch_for_ends(client: ApiClient, clock: Clock, only: ObjectName | None = None) -> None:
    """Watches the VMs of a cluster, or ``only`` one, until cancelled.

    Raises ``SiteError`` once one of them has ended by itself. What ended before the watch began does not count.
    """
    restarts: dict[str, int] = {}

    def look(vm: Json) -> str:
        if only is not None and name_of(vm) != only:
            return ""
        # Restarts from before the watch do not count.
        return end_of(vm, restarts.setdefault(uid_of(vm), whole(vm, "status", "restartCount")))

    await fail_with_first(Informer(client, VIRTUAL_MACHINES, clock), look)


async def fail_with_first(informer: Informer, failure: Callable[[Json], str]) -> None:
    """Watches until cancelled. Raises ``SiteError`` with the ``failure`` of the first object that has one."""
    failed: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    def look(change: ObjectChange) -> None:
        # Several may fail at once: the first is the cause, and a future takes one result.
        if change.after is not None and (story := failure(change.after)) and not failed.done():
            failed.set_result(story)

    informer.listen(look)
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(informer.run())
        # The error cancels the watch, and everything else in the caller's task group.
        raise SiteError(await failed)


def end_of(vm: Json, restarts: int = 0) -> str:
    """The VM's end, or its restarts beyond that many, as a sentence; empty if it lives or is to be deleted (pure)."""
    phase = text(vm, "status", "phase")
    # A VM that is deleted was ended on purpose.
    if is_terminating(vm):
        return ""
    if phase in _ENDED:
        why = next((text(condition, "message") for condition in items(vm, "status", "conditions")), "")
        return f"VM {name_of(vm).name} has ended: {why or phase}"
    # A VM with a restart policy leaves its end phase again at once; only the count shows it.
    if whole(vm, "status", "restartCount") > restarts:
        return f"VM {name_of(vm).name} had ended and was started again; see: autoscale explain {name_of(vm)}"
    return ""
