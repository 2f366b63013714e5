"""The life of one VM's agent: tasks that feed one core, and whatever the core wants done (S4.3).

Rules that hold here:

- Nothing is decided here. Every event goes through ``_take``, and then a new plan is made.
- Every task belongs to the runner's task group, and ends with it.
- A failing port is an event, not an end. What is no ``PortError`` is a bug: it ends the runner, and the supervisor
  restarts it.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from contextlib import closing
from dataclasses import dataclass
from typing import Final

from msgspec.structs import replace

from agent.assignments import Assignment
from agent.config import PolicyError, for_pod, read_policy
from agent.core import events
from agent.core.actions import AskScheduler, PatchVm
from agent.core.advance import advance
from agent.core.events import Event
from agent.core.growth import GrowthTimes, PendingGrowth, follow
from agent.core.plan import plan
from agent.core.policy import Policy, Rhythm
from agent.core.state import State, begin
from agent.core.vm import Vm, VmFloor, view
from agent.monitor_session import MonitorSession
from agent.notices import Notices
from agent.ports import (
    ConflictError,
    DatabaseSource,
    MetricsSource,
    MonitorSource,
    PortError,
    RefusedError,
    SchedulerClient,
    VmApi,
)
from agent.telemetry import note
from protocol.backoff import Backoff
from protocol.floors import Floor, decode_floor
from protocol.names import ANNOTATION_CONFIG, ANNOTATION_FLOOR
from protocol.runtime.clock import Clock
from protocol.units import ComputeUnit, Instant, Seconds
from protocol.virtual_machine import Bounds, VirtualMachine

WATCH_BACKOFF = Backoff(Seconds(1.0), Seconds(20.0))
"""Between two watches of the VM, even if the server ended the first without an error."""


LONGEST_FLOOR: Final = 86_400.0
"""Seconds: a floor that claims to hold for longer comes from a clock that is wrong."""


@dataclass(frozen=True, slots=True)
class Ports:
    """One VM's part of the world. ``monitor`` is None if guests' monitors are not used."""

    metrics: MetricsSource
    scheduler: SchedulerClient
    vm_api: VmApi
    database: DatabaseSource
    clock: Clock
    monitor: MonitorSource | None = None


class Runner:
    """Looks after one VM until it is cancelled."""

    def __init__(  # noqa: PLR0913 - what a VM's agent is made of
        self,
        assignment: Assignment,
        ports: Ports,
        policy: Policy,
        sequence: int,
        growths: GrowthTimes,
        *,
        unit: ComputeUnit | None = None,
        rhythm: Rhythm | None = None,
    ) -> None:
        self.assignment = assignment
        self.look_at_database = ports.database
        self.tally: Counter[str] = Counter()
        self._growths = growths
        self.wishes: tuple[PendingGrowth, ...] = ()
        self._ports = ports
        self._base = self._own(policy)
        self._annotation: str | None = None
        self._bounds: Bounds | None = None
        self._floor: Floor | None = None
        self._held: VmFloor | None = None
        self._problems: tuple[str, ...] = ()
        self._notices = Notices(ports.vm_api, ports.clock)
        self._changed = asyncio.Event()
        self._never = asyncio.Event()
        now, jitter = ports.clock.now(), ports.clock.jitter()
        self.state: State = begin(assignment.pod, self._base, now, jitter, sequence, unit=unit, rhythm=rhythm)
        self._session = None if ports.monitor is None else MonitorSession(ports.monitor, ports.clock, self._take)

    async def run(self) -> None:
        """Looks after the VM. Returns only by being cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._watch())
            tasks.create_task(self._scrape())
            tasks.create_task(self._act(tasks))
            tasks.create_task(self._notices.run())
            if self._session is not None:
                tasks.create_task(self._session.run())

    def use_policy(self, base: Policy) -> None:
        """Puts another policy for all VMs in force; the VM's own annotation still goes above it."""
        self._base = self._own(base)
        self._read_policy()

    def refuse_policy(self, reason: str) -> None:
        """Record that a new policy for all VMs was refused; the old one stays in force."""
        self._take(events.PolicyRefused(reason))

    def _own(self, policy: Policy) -> Policy:
        return policy if self.assignment.container is None else for_pod(policy)

    def _take(self, event: Event) -> None:
        now = self._ports.clock.now()
        # Log and notices compare the event with the state before it, so they come first.
        note(self.tally, self.assignment.vm, self.state, event, now)
        self._notices.take(self.state, event, now)
        advance(self.state, event, now, self._ports.clock.jitter())
        self.wishes, ended = follow(self.state, self.wishes, now)
        self._growths.add(ended)
        self._changed.set()

    async def _act(self, tasks: asyncio.TaskGroup) -> None:
        while True:
            # Cleared before the plan is made: an event that comes meanwhile makes another plan.
            self._changed.clear()
            planned = plan(self.state, self._ports.clock.now())
            for action in planned.actions:
                # Before the call, not after it: from here on it may take effect, and the next plan must know.
                self._take(events.Started(action))
                doing = self._ask(action) if isinstance(action, AskScheduler) else self._patch(action)
                tasks.create_task(doing)
            if planned.message is not None and self._session is not None:
                self._take(events.Started(planned.message))
                self._session.say(planned.message)
            await self._ports.clock.wait(self._changed, planned.wake_at)

    async def _ask(self, action: AskScheduler) -> None:
        try:
            self._take(events.Answered(await self._ports.scheduler.ask(action.request, action.slot_size)))
        except PortError as error:
            self._take(events.AskFailed(error.fault, error.reason, error.retry_after, error.is_others_turn))

    async def _patch(self, action: PatchVm) -> None:
        try:
            patched = await self._ports.vm_api.patch(action.target, action.slot_size, action.base)
            self._take(events.Patched(self._view(patched)))
        except ConflictError:
            self._take(events.PatchConflicted())
            # The patch was based on an old version; without the new one it would conflict again.
            await self._look()
        except RefusedError as error:
            self._take(events.PatchFailed(error.fault, error.reason, refused=True))
        except PortError as error:
            # The outcome is unknown: the API may have applied the patch. A newer version of the VM settles it.
            self._take(events.PatchFailed(error.fault, error.reason, refused=False))
            await self._look()

    async def _look(self) -> None:
        """Read the VM at once: the watch may take a while to report it."""
        try:
            await self._read()
        except PortError as error:
            self._take(events.VmLost(error.fault, error.reason))

    async def _read(self) -> None:
        """Read the object, and see if the store was restored."""
        last = self.state.vm.seen
        vm = await self._ports.vm_api.get()
        view = self._view(vm)
        # A read is never stale, unlike a watch: only a store restored from a backup brings an older version back.
        is_older = last is not None and not view.follows(last.version - 1)
        self._note(vm, events.VmRestored(view) if is_older else events.VmSeen(view))

    async def _watch(self) -> None:
        failures = 0
        while True:
            try:
                # Versions seen by a watch prove nothing about a restored store, so each watch begins with a read.
                await self._read()
                async for changed in self._ports.vm_api.watch():
                    failures = 0
                    self._note(changed, events.VmSeen(self._view(changed)))
                failures = 0
            except PortError as error:
                failures += 1
                self._take(events.VmLost(error.fault, error.reason))
            # A watch that ended without an error waits like one failure: an API server that ends watches at once must
            # not be hammered.
            wait = WATCH_BACKOFF.delay(max(1, failures), self._ports.clock.jitter())
            await self._ports.clock.wait(self._never, Instant(self._ports.clock.now() + wait))

    def _note(self, found: VirtualMachine, event: events.VmSeen | events.VmRestored) -> None:
        self._take(event)
        # Most events of a watch leave the annotation as it was.
        annotation, problems = found.annotations.get(ANNOTATION_CONFIG), (*found.problems, *_read_floor(found)[1])
        if (annotation, problems) != (self._annotation, self._problems):
            self._annotation, self._problems = annotation, problems
            self._read_policy()

    def _view(self, found: VirtualMachine) -> Vm:
        return view(self._with_old_bounds(found), self.assignment.pod.name, self._held_floor(found))

    def _held_floor(self, found: VirtualMachine) -> VmFloor | None:
        """The object's floor, with its end by the agent's own clock."""
        floor, clock = _read_floor(found)[0], self._ports.clock
        if floor != self._floor:
            self._floor, self._held = floor, None
        # The floor's end is a wall-clock time. It is turned into our own clock once, when it is first seen: each
        # further view would move it.
        if floor is not None and self._held is None:
            lasts = min(LONGEST_FLOOR, floor.until - clock.wall())
            self._held = VmFloor(floor.size, Instant(clock.now() + lasts))
        return self._held

    def _with_old_bounds(self, found: VirtualMachine) -> VirtualMachine:
        """Keep the last bounds, within those of the spec, if the annotation cannot be decoded."""
        if self._bounds is None or found.has_bounds:
            self._bounds = found.bounds
            return found
        spec, old = found.bounds, self._bounds
        # The spec may have become narrower than the old annotation.
        low, high = (size.at_least(spec.min).at_most(spec.max) for size in (old.min, old.max))
        return replace(found, bounds=Bounds(low, high))

    def _read_policy(self) -> None:
        try:
            policy = self._base if self._annotation is None else read_policy(self._annotation, self._base)
        except PolicyError as error:
            self._take(events.PolicyRefused(f"annotation {ANNOTATION_CONFIG}: {error}"))
            return
        # Without an annotation the policy is the base, whose settings are listed already.
        own = () if self._annotation is None else policy.passed_over
        passed_over = (*self._base.passed_over, *(f"annotation {ANNOTATION_CONFIG}: {setting}" for setting in own))
        self._take(events.PolicySet(policy, (*self._problems, *passed_over)))

    async def _scrape(self) -> None:
        """Scrape for ever. The first one comes within an interval, so that the agents of a node are not in step."""
        interval = self.state.policy.timing.scrape
        at = Instant(self._ports.clock.now() + interval * self._ports.clock.jitter())
        # The connection to the guest must not outlive the runner: the pod may be gone.
        with closing(self._ports.metrics) as metrics:
            while True:
                await self._ports.clock.wait(self._never, at)
                try:
                    self._take(events.Scraped(await metrics.scrape()))
                except PortError as error:
                    self._take(events.ScrapeFailed(error.fault, error.reason))
                # A fixed rhythm, without catching up on scrapes that a slow guest has missed.
                at = Instant(max(at + self.state.policy.timing.scrape, self._ports.clock.now()))


def _read_floor(found: VirtualMachine) -> tuple[Floor | None, tuple[str, ...]]:
    annotation = found.annotations.get(ANNOTATION_FLOOR)
    try:
        return (None if annotation is None else decode_floor(annotation)), ()
    except ValueError as error:
        return None, (f"metadata.annotations[{ANNOTATION_FLOOR}]: {error}",)
