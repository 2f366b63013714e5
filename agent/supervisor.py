"""The set of VMs that one agent process looks after: those of a node, or the one of its own pod (S4.3).

Rules that hold here:

- Level-triggered: what counts is the whole set as it is now. A VM that is in it has a runner, one that is not has none.
- Runners do not hurt each other. One that ends by a bug is written down and begun anew after a wait, as after a
  restart of the process: nothing proven, nothing permitted.
"""

from __future__ import annotations

import asyncio
import traceback
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from typing import Protocol

from agent.core.policy import Policy, Retry, wait_after
from agent.ports import Clock, Dice, PortError
from agent.runner import Charge, Runner
from agent.telemetry import Level, Log
from protocol.units import Instant, Seconds

BEGIN_AGAIN = Retry(first=Seconds(2.0), factor=2.0, cap=Seconds(60.0))
"""Between the end of something that should not have ended, and its next beginning."""


class Charges(Protocol):
    """Says which VMs to look after."""

    def sets(self) -> AsyncIterator[frozenset[Charge]]:
        """The whole set, now and after each change. May end or raise ``PortError``: then it is asked again."""


class OwnVm:
    """The set of one: the VM of the pod that this agent is a sidecar of."""

    def __init__(self, charge: Charge) -> None:
        self._charge = charge

    async def sets(self) -> AsyncIterator[frozenset[Charge]]:
        """The one set, for ever."""
        yield frozenset({self._charge})
        await asyncio.Event().wait()


@dataclass(frozen=True, slots=True)
class Means:
    """What every part of one process shares."""

    clock: Clock
    dice: Dice
    log: Log


Make = Callable[[Charge, Policy], Runner]
"""Makes the runner of one VM."""


class Supervisor:
    """Keeps a runner for every VM in the set."""

    def __init__(self, charges: Charges, make: Make, policy: Policy, means: Means) -> None:
        self.runners: dict[Charge, Runner] = {}
        self.crashes = 0
        self.is_listed = False
        self._charges = charges
        self._make = make
        self._policy = policy
        self._means = means
        self._never = asyncio.Event()

    async def run(self) -> None:
        """Looks after the set. Returns only by being cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tended: dict[Charge, asyncio.Task[None]] = {}
            failures = 0
            while True:
                try:
                    async for wanted in self._charges.sets():
                        self._adjust(tasks, tended, wanted)
                        failures = 0
                except PortError as error:
                    fields = {"fault": error.fault.value, "reason": error.reason}
                    self._means.log.line(Level.WARNING, "the pods of this node cannot be read", fields)
                failures += 1
                await self._pause(failures)

    def use_policy(self, policy: Policy) -> None:
        """Puts another policy in force for all VMs, present and future."""
        self._policy = policy
        for runner in self.runners.values():
            runner.use_policy(policy)

    def refuse_policy(self, reason: str) -> None:
        """Says everywhere why another policy than the wanted one is in force."""
        self._means.log.line(Level.ERROR, "policy refused; the last good one stays", {"reason": reason})
        for runner in self.runners.values():
            runner.refuse_policy(reason)

    def _adjust(
        self, tasks: asyncio.TaskGroup, tended: dict[Charge, asyncio.Task[None]], wanted: frozenset[Charge]
    ) -> None:
        self.is_listed = True
        for charge in tended.keys() - wanted:
            tended.pop(charge).cancel()
        for charge in wanted - tended.keys():
            tended[charge] = tasks.create_task(self._tend(charge))

    async def _tend(self, charge: Charge) -> None:
        failures = 0
        try:
            while True:
                self.runners[charge] = self._make(charge, self._policy)
                try:
                    await self.runners[charge].run()
                except* Exception as bugs:  # noqa: BLE001 - the boundary between VMs: written down, counted, begun anew
                    self.crashes += 1
                    failures += 1
                    fields = {"vm": str(charge.vm), "trace": "".join(traceback.format_exception(bugs))}
                    self._means.log.line(Level.ERROR, "an agent ended by a bug and begins anew", fields)
                await self._pause(failures)
        finally:
            self.runners.pop(charge, None)

    async def _pause(self, failures: int) -> None:
        wait = wait_after(BEGIN_AGAIN, failures, self._means.dice.roll())
        await self._means.clock.wait(self._never, Instant(self._means.clock.now() + wait))
