"""Ends a run as soon as one of its VMs has ended: what the run waits for does not come any more.

Run ``watch_for_ends`` in the task group of everything that waits: its error cancels the rest and says why.
"""

from __future__ import annotations

import asyncio
from typing import Final

from deploy.kube.client import ApiClient
from deploy.kube.informer import Change, Informer
from protocol.kubernetes.objects import Json, is_leaving, items, name_of, text, whole
from protocol.kubernetes.resources import VIRTUAL_MACHINES
from protocol.runtime.clock import Clock
from scripts.autoscale.site import SiteError

_ENDED: Final = frozenset({"Failed", "Succeeded"})


async def watch_for_ends(client: ApiClient, clock: Clock) -> None:
    """Watches the VMs of a cluster until cancelled. Raises ``SiteError`` once one of them has ended by itself."""
    informer = Informer(client, VIRTUAL_MACHINES, clock)
    ended: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    def look(change: Change) -> None:
        story = end_of(change.new) if change.new is not None else ""
        if story and not ended.done():
            ended.set_result(story)

    informer.listen(look)
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(informer.run())
        raise SiteError(await ended)


def end_of(vm: Json) -> str:
    """How the VM has ended, or that it had and was started again; empty where it has not, or is to be deleted."""
    phase = text(vm, "status", "phase")
    if is_leaving(vm):
        return ""
    if phase in _ENDED:
        why = next((text(each, "message") for each in items(vm, "status", "conditions")), "")
        return f"VM {name_of(vm).name} has ended: {why or phase}"
    if whole(vm, "status", "restartCount"):
        return f"VM {name_of(vm).name} had ended and was started again; see: autoscale explain {name_of(vm)}"
    return ""
