"""A term of leadership, from acquiring the Lease to losing it; without a Lease it never ends.

A write must start within the term, and carries the deadline after which it must not be sent.
"""

from __future__ import annotations

import asyncio
from contextlib import AbstractContextManager
from typing import Final

from protocol.kubernetes.api import ApiCall, ApiRefusedError, ApiUnknownError
from protocol.runtime.clock import Clock
from protocol.runtime.kubernetes.lease import NEVER, Leadership
from protocol.units import Instant, Seconds
from scheduler_plugin.texts import refusals

SETTLE: Final = Seconds(10.0)
"""After this time, a write with an unknown outcome has landed or never will."""


class OutOfTermError(ApiUnknownError):
    """Not sent: this process does not hold the Lease, or is about to release it."""


class Writes:
    """Writes of this process in all terms: a term may end while its writes are in flight."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._in_flight = 0
        self._idle = asyncio.Event()
        self._unknown_at = NEVER
        self.is_closing = False

    def begin(self) -> None:
        """Count a started write."""
        self._in_flight += 1
        self._idle.clear()

    def end(self, *, is_known: bool) -> None:
        """Count an ended write; ``is_known`` is False if its outcome is unknown."""
        if not is_known:
            self._unknown_at = self._clock.now()
        self._in_flight -= 1
        if not self._in_flight:
            self._idle.set()

    async def close(self) -> bool:
        """Start no further write and wait for those in flight; return True if all outcomes are known."""
        self.is_closing = True
        if self._in_flight:
            await self._idle.wait()
        # It may land within ``SETTLE``; a successor must not act before that.
        return self._clock.now() - self._unknown_at >= SETTLE


class _Write(AbstractContextManager[ApiCall]):
    """One write, counted while it runs. A generator context manager would take three times as long."""

    __slots__ = ("_call", "_writes")

    def __init__(self, writes: Writes, call: ApiCall) -> None:
        self._writes = writes
        self._call = call

    def __enter__(self) -> ApiCall:
        self._writes.begin()
        return self._call

    def __exit__(self, kind: type[BaseException] | None, error: object, trace: object) -> None:
        # Only a response settles a write: after a timeout or a lost connection it may still land.
        self._writes.end(is_known=kind is None or issubclass(kind, ApiRefusedError))


class Term:
    """Permission to write. Without a ``leadership`` it never ends. ``writes`` are the process's writes."""

    def __init__(self, clock: Clock, leadership: Leadership | None = None, writes: Writes | None = None) -> None:
        self._clock = clock
        self._leadership = leadership
        self._writes = writes or Writes(clock)
        # Decisions of one term are never written in another, even by the same process.
        self._number = 0 if leadership is None else leadership.term

    @property
    def leads(self) -> bool:
        """True while the term lasts: confirmed writes may be reported to agents."""
        leadership = self._leadership
        return leadership is None or (leadership.leads and leadership.term == self._number)

    @property
    def may_write(self) -> bool:
        """True if a write may start: the term lasts, and the process is not shutting down."""
        return self.leads and not self._writes.is_closing

    def signed(self, identity: str) -> str:
        """``identity`` with this term: a process that leads again is another writer of permits."""
        return identity if self._leadership is None else f"{identity}.{self._number}"

    def writing(self, call: ApiCall) -> AbstractContextManager[ApiCall]:
        """Context manager of a write, which yields the call with its deadline. Raises ``OutOfTermError``."""
        return _Write(self._writes, self._limited(call))

    async def close(self) -> bool:
        """See ``Writes.close``."""
        return await self._writes.close()

    def _limited(self, call: ApiCall) -> ApiCall:
        now = self._clock.now()
        remaining = call.timeout if self._leadership is None else self._leadership.remaining
        if not self.may_write or remaining <= 0:
            raise OutOfTermError(refusals.NO_LEASE.format(call=call))
        if self._leadership is None:
            return call.within(call.timeout)
        # A process that is suspended here exceeds the deadline and sends nothing. The API server gives up after the
        # same time.
        timeout = min(call.timeout, remaining)
        return call.within(timeout, Instant(now + timeout))
