"""Kubernetes Events on a VM's object for serious conditions; ``kubectl describe`` shows them."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Final

from agent import texts
from agent.core.actions import OrderSleep
from agent.core.events import Event, PatchFailed, Scraped, Started
from agent.core.sleep.obstacles import SHOWN
from agent.core.state import State
from agent.ports import PortError, VmApi
from protocol.runtime.clock import Clock
from protocol.units import Instant, Seconds

QUIET: Final = Seconds(300.0)
"""Minimum time between two Events with the same reason."""

OUT_OF_MEMORY: Final = "GuestOutOfMemory"
RESIZE_REFUSED: Final = "ResizeRefused"
WOKEN_FOR_NOTHING: Final = "WokenForNothing"


class Notices:
    """Writes Kubernetes Events. Run ``run`` in a task."""

    def __init__(self, vm_api: VmApi, clock: Clock) -> None:
        self._vm_api = vm_api
        self._clock = clock
        self._noted_at: dict[str, Instant] = {}
        self._queue: asyncio.Queue[tuple[str, str]] = asyncio.Queue()

    def take(self, state: State, event: Event, now: Instant) -> None:
        """Queue the notice for ``event``, if any. ``state`` does not include ``event`` yet."""
        notice = notice_of(state, event, now)
        # Every scrape may show OOM kills.
        if notice is None or now - self._noted_at.get(notice[0], -QUIET) < QUIET:
            return
        self._noted_at[notice[0]] = now
        self._queue.put_nowait(notice)

    async def run(self) -> None:
        """Write queued Events until cancelled."""
        while True:
            reason, note = await self._queue.get()
            # Drop it on failure: log, metrics and ``/explain`` show the same information.
            with suppress(PortError):
                await self._vm_api.write_event(reason, note, self._clock.wall())


def notice_of(state: State, event: Event, now: Instant) -> tuple[str, str] | None:
    """Reason and text of the Kubernetes Event for ``event``; None if there is none."""
    match event:
        case Started(OrderSleep()):
            wake = state.sleep.unused_wake(state.guest.observed)
            if wake is None:
                return None
            by = wake.by[:SHOWN] or "something"
            return WOKEN_FOR_NOTHING, texts.WOKEN_FOR_NOTHING.format(by=by, seconds=now - wake.at)
        case Scraped(sample):
            count = state.guest.kills_in(sample)
            return (OUT_OF_MEMORY, texts.OUT_OF_MEMORY.format(count=count)) if count else None
        case PatchFailed(_, reason, refused):
            patch, vm = state.vm.patching, state.vm.observed
            # A refused shrink does not harm the VM.
            if not refused or patch is None or vm is None or patch.target.within(vm.use):
                return None
            return RESIZE_REFUSED, texts.RESIZE_REFUSED.format(target=patch.target, reason=reason)
        case _:
            return None
