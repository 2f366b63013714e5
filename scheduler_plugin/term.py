"""One time of acting: from winning the Lease to losing it; for ever where a scheduler acts alone.

Rules that hold here:

- A write begins within the term and carries the instant after which it must not be sent: a process that is stopped in
  between finds the time over when it goes on. The API server gives it up then, too.
- What was read or decided in one term is never written in another, not even by the same process.
- A term is given back only where all writes of the process have ended in a known way, those of the terms before too:
  others may begin at once then.
"""

from __future__ import annotations

import asyncio
from contextlib import AbstractContextManager
from typing import Final

from protocol.runtime.clock import Clock
from protocol.units import Instant, Seconds
from scheduler_plugin.cluster.api import ApiCall, ApiRefusedError, ApiUnknownError
from scheduler_plugin.lease import NEVER, Leadership

SETTLE: Final = Seconds(10.0)
"""A write whose outcome is unknown has landed after so long or never will."""


class OutOfTermError(ApiUnknownError):
    """Nothing was sent: this process does not hold the Lease, or is about to give it back."""


class Writes:
    """Writes of this process, in all of its terms: one may have ended before its writes."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._in_flight = 0
        self._idle = asyncio.Event()
        self._unknown_at = NEVER
        self.is_closing = False

    def begin(self) -> None:
        """A write begins."""
        self._in_flight += 1
        self._idle.clear()

    def end(self, *, is_known: bool) -> None:
        """A write has ended, and whether it is known how."""
        if not is_known:
            self._unknown_at = self._clock.now()
        self._in_flight -= 1
        if not self._in_flight:
            self._idle.set()

    async def close(self) -> bool:
        """Begins no further write and waits for those in flight; whether it is known what became of all of them."""
        self.is_closing = True
        if self._in_flight:
            await self._idle.wait()
        return self._clock.now() - self._unknown_at >= SETTLE


class _Write(AbstractContextManager[ApiCall]):
    """One write, counted while it lasts. A generator would do the same and cost three times as much."""

    __slots__ = ("_call", "_writes")

    def __init__(self, writes: Writes, call: ApiCall) -> None:
        self._writes = writes
        self._call = call

    def __enter__(self) -> ApiCall:
        self._writes.begin()
        return self._call

    def __exit__(self, kind: type[BaseException] | None, error: object, trace: object) -> None:
        self._writes.end(is_known=kind is None or issubclass(kind, ApiRefusedError))


class Term:
    """The right to write. Without a ``leadership`` it never ends by itself. ``writes`` are those of the process."""

    def __init__(self, clock: Clock, leadership: Leadership | None = None, writes: Writes | None = None) -> None:
        self._clock = clock
        self._leadership = leadership
        self._writes = writes or Writes(clock)
        self._number = 0 if leadership is None else leadership.term

    @property
    def leads(self) -> bool:
        """True if this term goes on: confirmed writes may be answered."""
        found = self._leadership
        return found is None or (found.leads and found.term == self._number)

    @property
    def may_write(self) -> bool:
        """True if a write may begin: the term goes on, and the process is not about to end."""
        return self.leads and not self._writes.is_closing

    def signed(self, identity: str) -> str:
        """``identity`` with this term: a process that leads again is another writer of permits."""
        return identity if self._leadership is None else f"{identity}.{self._number}"

    def writing(self, call: ApiCall) -> AbstractContextManager[ApiCall]:
        """Entered around a write: the call as it may be made now. Raises ``OutOfTermError``."""
        return _Write(self._writes, self._limited(call))

    async def close(self) -> bool:
        """See ``Writes.close``."""
        return await self._writes.close()

    def _limited(self, call: ApiCall) -> ApiCall:
        now = self._clock.now()
        remaining = call.timeout if self._leadership is None else self._leadership.remaining
        if not self.may_write or remaining <= 0:
            raise OutOfTermError(f"{call.method} {call.path} not sent: this process does not hold the Lease")
        if self._leadership is None:
            return call.within(call.timeout)
        timeout = min(call.timeout, remaining)
        return call.within(timeout, Instant(now + timeout))
