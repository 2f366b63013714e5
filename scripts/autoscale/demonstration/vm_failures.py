"""Ends a run as soon as one of its VMs has ended: what the run waits for cannot come any more."""

from __future__ import annotations

import asyncio
from typing import Final

from deploy.kube.client import ApiClient
from deploy.kube.informer import Informer, ObjectChange
from protocol.kubernetes.objects import Json, is_leaving, items, name_of, text, uid_of, whole
from protocol.kubernetes.resources import VIRTUAL_MACHINES
from protocol.messages import ObjectName
from protocol.runtime.clock import Clock
from scripts.autoscale.site import SiteError

_ENDED: Final = frozenset({"Failed", "Succeeded"})


async def watch_for_ends(client: ApiClient, clock: Clock, only: ObjectName | None = None) -> None:
    """Watches the VMs of a cluster, or ``only`` one, until cancelled.

    Raises ``SiteError`` once one of them has ended by itself. What ended before the watch began does not count.
    """
    informer = Informer(client, VIRTUAL_MACHINES, clock)
    ended: asyncio.Future[str] = asyncio.get_running_loop().create_future()
    restarts: dict[str, int] = {}

    def look(change: ObjectChange) -> None:
        if change.after is None or (only is not None and change.name != only):
            return
        # Restarts from before the watch do not count.
        before = restarts.setdefault(uid_of(change.after), whole(change.after, "status", "restartCount"))
        story = end_of(change.after, before)
        # Several VMs may end at once; a future takes one result.
        if story and not ended.done():
            ended.set_result(story)

    informer.listen(look)
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(informer.run())
        # The error cancels the watch, and everything else in the caller's task group.
        raise SiteError(await ended)


def end_of(vm: Json, restarts: int = 0) -> str:
    """Sentence on the VM's end, or its restarts beyond that many (pure).

    Empty if it has not ended, or is to be deleted.
    """
    phase = text(vm, "status", "phase")
    # A VM that is deleted was ended on purpose.
    if is_leaving(vm):
        return ""
    if phase in _ENDED:
        why = next((text(condition, "message") for condition in items(vm, "status", "conditions")), "")
        return f"VM {name_of(vm).name} has ended: {why or phase}"
    # A VM with a restart policy leaves its end phase again at once; only the count shows it.
    if whole(vm, "status", "restartCount") > restarts:
        return f"VM {name_of(vm).name} had ended and was started again; see: autoscale explain {name_of(vm)}"
    return ""
