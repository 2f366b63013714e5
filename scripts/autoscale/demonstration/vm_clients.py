"""The clients of a VM that may move: some transactions, and a probe that measures every stall."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Final, Protocol

from protocol.runtime.clock import Clock
from protocol.units import Instant, Seconds
from scripts.autoscale.demonstration.pgbench import DatabaseServer, Outcome, prepare, press
from scripts.autoscale.demonstration.probe import Noticed, probe

_SCALE: Final = 1
_CLIENTS: Final = 2
_PER_SECOND: Final = 20
"""Little: the VM that is moved should be the one that does the least."""


@dataclass(frozen=True, slots=True)
class ClientReport:
    """Observations of one VM's clients. ``noticed`` is None if no probe asked."""

    outcome: Outcome
    noticed: Noticed | None = None

    @property
    def failed(self) -> int:
        """Transactions that failed, and connections that broke."""
        return self.outcome.failed + (self.noticed.outcome.failed if self.noticed else 0)

    @property
    def problem(self) -> str:
        """The reason why they gave up; empty if they did not."""
        return self.outcome.problem or (self.noticed.outcome.problem if self.noticed else "")

    def __add__(self, later: ClientReport) -> ClientReport:
        """Both, of which ``later`` began when this one had ended."""
        if self.noticed is None or later.noticed is None:
            return ClientReport(self.outcome + later.outcome, self.noticed or later.noticed)
        answers = [*self.noticed.answers, *later.noticed.answers]
        noticed = Noticed(self.noticed.outcome + later.noticed.outcome, answers)
        return ClientReport(self.outcome + later.outcome, noticed)

    def longest_stall(self, since: Instant, until: Instant) -> Seconds | None:
        """The longest wait for an answer within the span."""
        return self.noticed.longest_stall(since, until) if self.noticed else None


class VmClients(Protocol):
    """The clients of one VM."""

    async def prepare(self) -> None:
        """Makes what they need."""

    async def live(self, seconds: int) -> ClientReport:
        """Uses the VM for ``seconds``."""


@dataclass(frozen=True, slots=True)
class PgbenchClients:
    """Two clients with twenty transactions a second between them, and the probe."""

    server: DatabaseServer
    clock: Clock

    async def prepare(self) -> None:
        """Makes pgbench's tables. Raises ``PgbenchError``."""
        await prepare(self.server, _SCALE)

    async def live(self, seconds: int) -> ClientReport:
        """Runs both. Raises ``PgbenchError``."""
        async with asyncio.TaskGroup() as tasks:
            # The load and the probe have connections of their own, so that queries of the load do not delay the
            # probe's.
            work = tasks.create_task(press(self.server, _CLIENTS, seconds, lambda _: None, _PER_SECOND))
            ask = tasks.create_task(probe(self.server, seconds, self.clock))
        return ClientReport(work.result(), ask.result())


@dataclass(frozen=True, slots=True)
class NoClients:
    """A simulated guest has no database."""

    clock: Clock

    async def prepare(self) -> None:
        """Nothing is needed."""

    async def live(self, seconds: int) -> ClientReport:
        """Lets the time pass."""
        await self.clock.sleep(Seconds(float(seconds)))
        return ClientReport(Outcome(0, 0, ""))
