"""One seeded story: a scheduler with its web layer, service and ledger, agents, people, webhooks and a late API.

Rules that hold here:

- One step does one thing, lets time pass, and is judged. The same seed gives the same story.
- Messages live for less than ``SETTLE``; everything else may be as late as it likes.
- Every fourth story has two replicas with a Lease.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress

from protocol.units import ZERO
from tests.fake_clock import settle
from tests.oracle.agents import Agents
from tests.oracle.migrations import Migrations
from tests.oracle.outsiders import Outsiders
from tests.oracle.sleep import Sleep
from tests.oracle.stage import NAMES, BrokenError

Doing = Callable[[], Awaitable[None] | None]


class Story(Migrations, Sleep, Agents, Outsiders):
    """A random sequence of actions."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.doings, self.weights = zip(*self._doings(), strict=True)

    def _doings(self) -> list[tuple[Doing, float]]:
        return [
            (self.create, 3),
            (self.bind, 5),
            (self.look, 22),
            (self.ask, 30),
            (self.deliver, 12),
            (self.patch, 18),
            (self.land_patch, 8),
            (self.land_write, 4),
            (self.report, 8),
            (self.restart_agent, 0.7),
            (self.hide_agent, 1.2),
            (self.delete, 0.8),
            (self.restart_pod, 0.7),
            (self.switch, 1.6),
            (self.edit_permit, 1.2),
            (self.edit_use, 0.8),
            (self.edit_bounds, 1.0),
            (self.edit_weight, 0.6),
            (self.webhook, 0.6),
            (self.foreign_pod, 0.6),
            (self.roll, 0.4),
            (self.kill, 0.6),
            (self.start, 3),
            (self.cut, 0.8),
            (self.order_move, 0.7),
            (self.carry, 5),
            (self.fall_asleep, 5),
            (self.wake, 4),
            (self.start_guest, 6),
        ]

    async def step(self) -> None:
        """One thing happens, then everything is checked."""
        doing = self.chance.choices(self.doings, self.weights)[0]
        self.steps += 1
        happened = doing()
        if happened is not None:
            await happened
        pause = self.chance.choices((0.0, 0.05, 0.5, 4.0, 20.0), (60, 20, 14, 5, 0.6))[0]
        await (self.clock.advance(pause) if pause else settle())
        self.end_patches()
        self._excuse()
        self.require(self.judge.look(self.ledger))

    async def start(self) -> None:
        """A scheduler starts if one is missing."""
        if self.schedulers.is_full:
            return
        name = await self.schedulers.start()
        self.note(f"{name} starts")

    async def kill(self) -> None:
        """Kill a scheduler; its requests in flight may still land."""
        for task in self.asking:
            task.cancel()
        if self.asking:
            await asyncio.wait(list(self.asking))
        self.asking.clear()
        # Connections to it end; nothing is stored by which a late message about a pod could be told from a newer one.
        self.wire = [message for message in self.wire if not message.machine.is_pod]
        if await self.schedulers.kill():
            self.note("the scheduler dies")

    def _excuse(self) -> None:
        """The ledger was replaced: the new one cannot know of permits that others have removed from the objects."""
        ledger = self.ledger
        if ledger is not None and ledger is not self.known:
            self.known = ledger
            for machine in self.fleet.machines.values():
                machine.is_excused = machine.is_excused or machine.is_tainted
                stored = self.fleet.stored(machine) or ZERO
                for agent in machine.agents:
                    agent.is_unknown = agent.is_unknown or (machine.is_tainted and not agent.may_order.within(stored))

    def land_write(self) -> None:
        """A permit write that its sender believes lost lands."""
        landed = self.api.land()
        if landed is not None:
            self.note(f"a late write lands: {landed.body}")

    async def end(self) -> None:
        with suppress(asyncio.CancelledError):
            for _ in range(2):
                await self.kill()


__all__ = ["NAMES", "BrokenError", "Story"]
