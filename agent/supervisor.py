"""Runs one runner per VM of an agent process: all VMs of a node, or the VM of its own pod (S4.3).

Rules that hold here:

- Level-triggered: exactly the VMs in the current set have a runner.
- Runners are isolated. If one crashes, the supervisor logs it and restarts it after a delay. Its new state has no
  evidence and no permit; it inherits only the counted OOM kills.
"""

from __future__ import annotations

import asyncio
import traceback
from collections.abc import Callable
from typing import Final

from prometheus_client import Histogram

from agent import texts
from agent.assignments import Assignment, AssignmentSource
from agent.core.memory.kills import Kills
from agent.core.policy import Policy
from agent.ports import PortError
from agent.runner import WATCH_BACKOFF, Runner
from agent.telemetry import LOG, growth_times
from protocol.backoff import Backoff, Retries
from protocol.runtime.clock import Clock
from protocol.units import Seconds

BACKOFF = Backoff(Seconds(2.0), Seconds(60.0))
"""Delay before a crashed runner is restarted."""

HEALTHY = Seconds(600.0)
"""A crash after running this long resets the delay."""

STEADY_WATCH = Seconds(1.0)
"""A watch that lasted at least this long and ended without an error is resumed immediately, any other after a delay."""


MAX_KILLS: Final = 256
"""Maximum pods whose kills are remembered between containers; a node runs about 110 pods."""

RunnerFactory = Callable[[Assignment, Policy, Histogram], Runner]
"""Creates the runner of one VM."""


class Supervisor:
    """Keeps one runner for every VM in the set."""

    def __init__(self, source: AssignmentSource, create_runner: RunnerFactory, policy: Policy, clock: Clock) -> None:
        self.runners: dict[Assignment, Runner] = {}
        self.crashes = 0
        self.growths = growth_times()
        self.is_listed = False
        self.source = source
        self._create_runner = create_runner
        self._policy = policy
        self._clock = clock
        self._kills: dict[str, Kills] = {}

    async def run(self) -> None:
        """Run until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            try:
                await self._follow(tasks)
            finally:
                self.runners.clear()

    async def _follow(self, tasks: asyncio.TaskGroup) -> None:
        """Start and stop runners as the source changes, until cancelled."""
        running: dict[Assignment, asyncio.Task[None]] = {}
        retries, now = Retries(WATCH_BACKOFF, STEADY_WATCH), self._clock.now
        while True:
            began = now()
            try:
                async for assignments in self.source.sets():
                    self._adjust(tasks, running, assignments)
            except PortError as error:
                fields = {"fault": error.fault.value, "reason": error.reason}
                LOG.warning(texts.PODS_NOT_READ, extra=fields)
            else:
                if now() - began >= STEADY_WATCH:
                    # The API server ends watches regularly; that is not a failure.
                    retries.succeeded()
                    continue
            await self._pause(retries, Seconds(now() - began))

    def use_policy(self, policy: Policy) -> None:
        """Apply a new policy to all VMs, current and future."""
        self._policy = policy
        for runner in self.runners.values():
            runner.use_policy(policy)

    def settings_accepted(self, generation: int) -> None:
        """Log that a new policy file applies."""
        LOG.info(texts.POLICY_APPLIED, extra={"generation": generation})

    def settings_refused(self, reason: str) -> None:
        """Report an invalid policy file to every runner, so that ``explain`` shows it."""
        LOG.error(texts.POLICY_REFUSED, extra={"reason": reason})
        for runner in self.runners.values():
            runner.refuse_policy(reason)

    def _adjust(
        self,
        tasks: asyncio.TaskGroup,
        running: dict[Assignment, asyncio.Task[None]],
        assignments: frozenset[Assignment],
    ) -> None:
        # Even for an empty set: a node without VMs is ready.
        self.is_listed = True
        # A pod with a new address is a new assignment, and gets a new runner.
        for assignment in running.keys() - assignments:
            running.pop(assignment).cancel()
            # Before the task has ended: its successor takes over the kills and may start earlier.
            self._remember(self.runners.pop(assignment, None))
        for assignment in assignments - running.keys():
            running[assignment] = tasks.create_task(self._keep_running(assignment))

    async def _keep_running(self, assignment: Assignment) -> None:
        retries, now = Retries(BACKOFF, HEALTHY), self._clock.now
        crashed: Runner | None = None
        while True:
            # One histogram for all runners, so that it keeps the growths of earlier ones.
            runner = self._create_runner(assignment, self._policy, self.growths)
            if crashed is not None:
                # Otherwise the VM would shrink back to the size at which it ran out of memory.
                runner.state.guest.kills = crashed.state.guest.kills
            self._recall(runner)
            self.runners[assignment] = crashed = runner
            began = now()
            try:
                await runner.run()
            except* Exception as bugs:  # noqa: BLE001 - isolates VMs: logged, counted, restarted
                self.crashes += 1
                fields = {"vm": str(assignment.vm), "error": "".join(traceback.format_exception(bugs))}
                LOG.error(texts.CRASHED, extra=fields)
            # In Python 3.11, an exception during cancellation hides the cancellation.
            if self.runners.get(assignment) is not runner:
                return
            await self._pause(retries, Seconds(now() - began))

    def _remember(self, runner: Runner | None) -> None:
        """Keep the kills of a pod for the runner of its next container: an OOM kill may end both."""
        if runner is None or runner.assignment.container is None:
            return
        self._kills[runner.assignment.container.pod_uid] = runner.state.guest.kills
        while len(self._kills) > MAX_KILLS:
            del self._kills[next(iter(self._kills))]

    def _recall(self, runner: Runner) -> None:
        container = runner.assignment.container
        kills = None if container is None else self._kills.pop(container.pod_uid, None)
        if kills is not None:
            runner.state.guest.kills = kills

    async def _pause(self, retries: Retries, ran: Seconds) -> None:
        await self._clock.sleep(retries.failed(self._clock.jitter(), ran))
