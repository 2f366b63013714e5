"""Names of objects that need a look, each once however often it was said, and again later where a look failed.

Rules that hold here:

- A name in work is not handed out a second time; said again meanwhile, it comes back when the work is done.
- Failed looks are repeated after 0.25 s, doubled each time, at most 10 s; a good look forgets the failures.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final

from protocol.messages import ObjectName
from protocol.runtime.clock import Clock
from protocol.units import Instant, Seconds

FIRST_PAUSE: Final = 0.25
LONGEST_PAUSE: Final = 10.0
_AT_ONCE: Final = Seconds(0.0)
_IDLE: Final = Seconds(3600.0)


def pause(failures: int) -> Seconds:
    """How long to wait after so many failures in a row (>= 1)."""
    return Seconds(min(FIRST_PAUSE * 2.0 ** min(failures - 1, 16), LONGEST_PAUSE))


class WorkQueue:
    """The queue of one controller. For the use of one event loop."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._due: dict[ObjectName, Instant] = {}
        self._working: set[ObjectName] = set()
        self._failures: dict[ObjectName, int] = {}
        self._stir = asyncio.Event()

    def add(self, name: ObjectName, after: Seconds = _AT_ONCE) -> None:
        """``name`` needs a look, not before ``after`` has passed; the earliest wish counts."""
        due = Instant(self._clock.now() + after)
        self._due[name] = min(due, self._due.get(name, due))
        self._stir.set()

    async def take(self) -> ObjectName:
        """The next name to look at; waits for one. Say ``done`` or ``failed`` afterwards."""
        while True:
            self._stir.clear()
            now = self._clock.now()
            free = {name: due for name, due in self._due.items() if name not in self._working}
            if free and min(free.values()) <= now:
                name = min(free, key=lambda each: free[each])
                del self._due[name]
                self._working.add(name)
                return name
            await self._wait(Seconds(min(free.values()) - now) if free else _IDLE)

    async def serve(self, look: Callable[[ObjectName], Awaitable[None]], failures: tuple[type[Exception], ...]) -> None:
        """Looks at one name after the other until cancelled; a look that raises one of ``failures`` is repeated."""
        while True:
            name = await self.take()
            try:
                await look(name)
            except failures:
                self.failed(name)
            else:
                self.done(name)

    def done(self, name: ObjectName) -> None:
        """The look at ``name`` went well."""
        self._failures.pop(name, None)
        self._working.discard(name)
        self._stir.set()

    def failed(self, name: ObjectName) -> None:
        """The look at ``name`` failed; it is repeated after a pause."""
        self._failures[name] = failures = self._failures.get(name, 0) + 1
        self._working.discard(name)
        self.add(name, pause(failures))

    async def _wait(self, span: Seconds) -> None:
        sleep = asyncio.ensure_future(self._clock.sleep(span))
        stir = asyncio.ensure_future(self._stir.wait())
        try:
            await asyncio.wait((sleep, stir), return_when=asyncio.FIRST_COMPLETED)
        finally:
            sleep.cancel()
            stir.cancel()
