"""Events on a VM's object, for people who use ``kubectl describe``: what is wrong and must not be overlooked."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Final

from agent import texts
from agent.core.events import Event, PatchFailed, Scraped
from agent.core.state import State
from agent.ports import PortError, VmApi
from protocol.runtime.clock import Clock
from protocol.units import Instant, Seconds

QUIET: Final = Seconds(300.0)

OUT_OF_MEMORY: Final = "GuestOutOfMemory"
RESIZE_REFUSED: Final = "ResizeRefused"


class Notices:
    """Writes Kubernetes Events for what people must not overlook. Run ``run`` in a task."""

    def __init__(self, vm_api: VmApi, clock: Clock) -> None:
        self._vm_api = vm_api
        self._clock = clock
        self._noted_at: dict[str, Instant] = {}
        self._queue: asyncio.Queue[tuple[str, str]] = asyncio.Queue()

    def take(self, state: State, event: Event, now: Instant) -> None:
        """Queue the notice that ``event`` is worth, if any; ``state`` has not taken the event yet."""
        notice = notice_of(state, event)
        # At most one of each reason in ``QUIET`` seconds: a guest may kill processes on every look.
        if notice is None or now - self._noted_at.get(notice[0], -QUIET) < QUIET:
            return
        self._noted_at[notice[0]] = now
        self._queue.put_nowait(notice)

    async def run(self) -> None:
        """Writes Events for ever."""
        while True:
            reason, note = await self._queue.get()
            # One that cannot be written is dropped: log, metrics and ``/explain`` say the same.
            with suppress(PortError):
                await self._vm_api.tell(reason, note, self._clock.wall())


def notice_of(state: State, event: Event) -> tuple[str, str] | None:
    """Reason and text of the Event that ``event`` is worth; None if it is not worth any."""
    match event:
        case Scraped(sample):
            count = state.guest.kills_in(sample)
            return (OUT_OF_MEMORY, texts.OUT_OF_MEMORY.format(count=count)) if count else None
        case PatchFailed(_, reason, refused):
            patch, vm = state.vm.patching, state.vm.seen
            # A shrink that is refused costs the VM nothing, so it is not worth an Event.
            if not refused or patch is None or vm is None or patch.target.within(vm.use):
                return None
            return RESIZE_REFUSED, texts.RESIZE_REFUSED.format(target=patch.target, reason=reason)
        case _:
            return None
