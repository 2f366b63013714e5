"""Runs the agent of one VM: tasks feed events to the core and execute its actions (S4.3).

Rules that hold here:

- The runner makes no decisions. Every event goes through ``_take`` and causes a new plan.
- Every task belongs to the runner's task group.
- A ``PortError`` becomes an event. Any other exception is a bug: it ends the runner, and the supervisor restarts it.
"""

from __future__ import annotations

import asyncio
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from math import ceil, floor
from typing import Final

from msgspec.structs import replace
from prometheus_client import Histogram

from agent import texts
from agent.assignments import Assignment
from agent.config import PolicyError, for_pod, read_policy
from agent.core import events
from agent.core.actions import Action, OrderSleep, PatchVm, RequestPermit
from agent.core.advance import advance
from agent.core.events import Event, Fault
from agent.core.growth import PendingGrowth, follow
from agent.core.plan import plan
from agent.core.policy import BatchSchedule, Policy
from agent.core.sleep.windows import window_now
from agent.core.state import State, begin
from agent.core.vm import Vm, VmFloor, view
from agent.local_time import local_time
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
    UnwatchedError,
    VmApi,
)
from agent.telemetry import VmLog
from protocol.backoff import Backoff
from protocol.floors import Floor, decode_floor
from protocol.kubernetes.timestamps import micro_timestamp
from protocol.names import ANNOTATION_CONFIG, ANNOTATION_FLOOR
from protocol.runtime.clock import Clock
from protocol.units import ComputeUnit, Instant, Seconds
from protocol.virtual_machine import Bounds, VirtualMachine

WATCH_BACKOFF = Backoff(Seconds(1.0), Seconds(20.0))
"""Delay between two watches of the VM, even if the server ended the first without an error."""


WAKEUPS: Final = 20
"""Scrapes start at this many fixed points per second, so that several of a node share one wakeup of the process."""

LONGEST_FLOOR: Final = 86_400.0
"""Maximum duration of a floor in seconds: a longer one means that a clock is wrong."""


@dataclass(frozen=True, slots=True)
class Ports:
    """The ports of one VM. ``monitor`` is None if guest monitors are disabled."""

    metrics: MetricsSource
    scheduler: SchedulerClient
    vm_api: VmApi
    database: DatabaseSource
    clock: Clock
    monitor: MonitorSource | None = None


class Runner:
    """Runs the agent of one VM."""

    def __init__(  # noqa: PLR0913 - the dependencies of a VM's agent
        self,
        assignment: Assignment,
        ports: Ports,
        policy: Policy,
        sequence: int,
        growths: Histogram,
        *,
        unit: ComputeUnit | None = None,
        schedule: BatchSchedule | None = None,
    ) -> None:
        self.assignment = assignment
        self.fetch_database = ports.database
        self.log = VmLog(assignment.vm)
        self._growths = growths
        self.pending: tuple[PendingGrowth, ...] = ()
        self._ports = ports
        self._base = self._own(policy)
        self._annotation: str | None = None
        self._bounds: Bounds | None = None
        self._floor: Floor | None = None
        self._held: VmFloor | None = None
        self._problems: tuple[str, ...] = ()
        self._notices = Notices(ports.vm_api, ports.clock)
        self._changed = asyncio.Event()
        self._guest_runs, self._guest_sleeps = asyncio.Event(), asyncio.Event()
        now, jitter = ports.clock.now(), ports.clock.jitter()
        self.state: State = begin(assignment.pod, self._base, now, jitter, sequence, unit=unit, schedule=schedule)
        self._session = None if ports.monitor is None else MonitorSession(ports.monitor, ports.clock, self._take)

    async def run(self) -> None:
        """Run until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._watch())
            tasks.create_task(self._follow_guest())
            tasks.create_task(self._act(tasks))
            tasks.create_task(self._notices.run())
            tasks.create_task(self._follow_windows())

    def use_policy(self, base: Policy) -> None:
        """Apply a new base policy; the VM's annotation overrides it."""
        self._base = self._own(base)
        self._read_policy()

    def refuse_policy(self, reason: str) -> None:
        """Record that a new base policy is invalid; the previous one stays in force."""
        self._take(events.PolicyRefused(reason))

    def _own(self, policy: Policy) -> Policy:
        return policy if self.assignment.container is None else for_pod(policy)

    def _take(self, event: Event) -> None:
        now = self._ports.clock.now()
        # Before ``advance``, because log and notices compare the event with the previous state.
        self.log.note(self.state, event, now)
        self._notices.take(self.state, event, now)
        advance(self.state, event, now, self._ports.clock.jitter())
        self.pending, ended = follow(self.state, self.pending, now)
        for wait in ended:
            self._growths.labels(wait.stage).observe(wait.took)
        self._changed.set()
        if self.state.vm.observed is not None:
            begins, ends = self._guest_runs, self._guest_sleeps
            (ends if self.state.sleeps else begins).set()
            (begins if self.state.sleeps else ends).clear()

    async def _act(self, tasks: asyncio.TaskGroup) -> None:
        while True:
            # Clear before planning, so that an event meanwhile causes another plan.
            self._changed.clear()
            planned = plan(self.state, self._ports.clock.now())
            for action in planned.actions:
                # Record it before the call: it may take effect from now on, and the next plan must allow for that.
                self._take(events.Started(action))
                tasks.create_task(self._do(action))
            if planned.message is not None and self._session is not None:
                self._take(events.Started(planned.message))
                self._session.send(planned.message)
            await self._ports.clock.wait(self._changed, planned.wake_at)

    async def _do(self, action: Action) -> None:
        match action:
            case RequestPermit():
                await self._ask(action)
            case PatchVm():
                await self._patch(action)
            case OrderSleep():
                await self._order_sleep(action)

    async def _ask(self, action: RequestPermit) -> None:
        try:
            self._take(events.SchedulerAnswered(await self._ports.scheduler.ask(action.request, action.slot_size)))
        except PortError as error:
            self._take(events.RequestFailed(error.fault, error.reason, error.retry_after, error.is_superseded))

    async def _patch(self, action: PatchVm) -> None:
        try:
            patched = self._view(await self._ports.vm_api.patch(action.target, action.slot_size, action.base))
            if patched.use == action.target:
                self._take(events.Patched(patched))
            else:
                # Without a backoff the next plan would repeat the patch immediately, and so on.
                self._take(events.VmSeen(patched))
                reason = texts.PATCH_ALTERED.format(stored=patched.use, target=action.target)
                self._take(events.PatchFailed(Fault.VM_API, reason, refused=True))
        except ConflictError as error:
            self._take(events.PatchConflicted(error.reason))
            # Read the new version; a patch based on the old one would conflict again.
            await self._refresh()
        except RefusedError as error:
            self._take(events.PatchFailed(error.fault, error.reason, refused=True))
        except PortError as error:
            # The API may have applied the patch; only a newer version of the VM shows.
            self._take(events.PatchFailed(error.fault, error.reason, refused=False))
            await self._refresh()

    async def _order_sleep(self, action: OrderSleep) -> None:
        try:
            # Each order has a new text, so that the controller never executes one twice.
            order = micro_timestamp(self._ports.clock.wall())
            ordered = self._view(await self._ports.vm_api.order_sleep(order, action.base))
            if ordered.order == order:
                self._take(events.SleepOrdered(ordered))
            else:
                self._take(events.VmSeen(ordered))
                self._take(events.SleepNotOrdered(Fault.VM_API, texts.ORDER_ALTERED))
        except PortError as error:
            self._take(events.SleepNotOrdered(error.fault, error.reason))
            # The object may have changed: read it before the next order.
            await self._refresh()

    async def _refresh(self) -> None:
        """Read the VM immediately, because the watch may lag."""
        try:
            await self._read()
        except PortError as error:
            self._take(events.VmLost(error.fault, error.reason))

    async def _read(self) -> None:
        """Read the object, and detect a restored store."""
        last = self.state.vm.observed
        vm = await self._ports.vm_api.get()
        view = self._view(vm)
        # Unlike a watch, a read is never stale: an older version means that the store was restored from a backup.
        is_older = last is not None and not view.follows(last.version - 1)
        self._note(vm, events.VmRestored(view) if is_older else events.VmSeen(view))

    async def _watch(self) -> None:
        failures = 0
        while True:
            try:
                # A watch cannot distinguish a restored store from a stale event, so start with a read.
                await self._read()
                async for changed in self._ports.vm_api.watch():
                    failures = 0
                    self._note(changed, events.VmSeen(self._view(changed)))
                failures = 0
            except UnwatchedError:
                # Until watching works again, the reads show changes, and whether the object is lost.
                failures += 1
            except PortError as error:
                failures += 1
                self._take(events.VmLost(error.fault, error.reason))
            # Delay even after a watch without an error, in case the API server keeps ending watches immediately.
            wait = WATCH_BACKOFF.delay(max(1, failures), self._ports.clock.jitter())
            await self._ports.clock.sleep(wait)

    def _note(self, found: VirtualMachine, event: events.VmSeen | events.VmRestored) -> None:
        self._take(event)
        # Most events do not change the annotation.
        annotation, problems = found.annotations.get(ANNOTATION_CONFIG), (*found.problems, *_read_floor(found)[1])
        if (annotation, problems) != (self._annotation, self._problems):
            self._annotation, self._problems = annotation, problems
            self._read_policy()

    def _view(self, found: VirtualMachine) -> Vm:
        return view(self._with_old_bounds(found), self.assignment.pod.name, self._current_floor(found))

    def _current_floor(self, found: VirtualMachine) -> VmFloor | None:
        """The object's floor, with its end on the agent's clock."""
        floor, clock = _read_floor(found)[0], self._ports.clock
        if floor != self._floor:
            self._floor, self._held = floor, None
        # Convert the wall-clock end only once: converting it again would move it.
        if floor is not None and self._held is None:
            lasts = min(LONGEST_FLOOR, floor.until - clock.wall())
            self._held = VmFloor(floor.size, Instant(clock.now() + lasts))
        return self._held

    def _with_old_bounds(self, found: VirtualMachine) -> VirtualMachine:
        """Keep the last bounds, clipped to the spec's bounds, if the annotation cannot be decoded."""
        if self._bounds is None or found.has_bounds:
            self._bounds = found.bounds
            return found
        spec, old = found.bounds, self._bounds
        # The spec's bounds may now be narrower than the old annotation.
        low, high = (size.at_least(spec.min).at_most(spec.max) for size in (old.min, old.max))
        return replace(found, bounds=Bounds(low, high))

    def _read_policy(self) -> None:
        try:
            policy = self._base if self._annotation is None else read_policy(self._annotation, self._base)
        except PolicyError as error:
            self._take(events.PolicyRefused(f"annotation {ANNOTATION_CONFIG}: {error}"))
            return
        # Without an annotation the policy is the base, whose ignored settings are already included.
        own = () if self._annotation is None else policy.ignored
        ignored = (*self._base.ignored, *(f"annotation {ANNOTATION_CONFIG}: {setting}" for setting in own))
        self._take(events.PolicySet(policy, (*self._problems, *ignored)))
        # Before the next plan, so that a new window applies immediately.
        self._update_window()

    def _update_window(self) -> None:
        clock = partial(local_time, self._ports.clock.wall())
        window = window_now(self.state.policy.sleep.keep_awake, clock)
        if window != self.state.sleep.window:
            self._take(events.WindowChanged(window))

    async def _follow_windows(self) -> None:
        """Evaluate the windows at the start of each minute, when they may begin or end."""
        clock = self._ports.clock
        while True:
            self._update_window()
            await clock.sleep(Seconds(60.0 - clock.wall() % 60.0))

    async def _follow_guest(self) -> None:
        """Scrape and connect to the guest while it runs; even a connection attempt could wake a sleeping VM."""
        while True:
            await self._guest_runs.wait()
            async with asyncio.TaskGroup() as tasks:
                running = [tasks.create_task(self._scrape())]
                if self._session is not None:
                    running.append(tasks.create_task(self._session.run()))
                await self._guest_sleeps.wait()
                for task in running:
                    task.cancel()

    async def _scrape(self) -> None:
        """Scrape until cancelled, from a random start that spreads the scrapes of a node over the interval."""
        interval, clock = self.state.policy.timing.scrape, self._ports.clock
        at = Instant(floor((clock.now() + interval * clock.jitter()) * WAKEUPS) / WAKEUPS)
        # Close the connection when the runner ends, because the pod may be gone.
        with closing(self._ports.metrics) as metrics:
            while True:
                await clock.sleep(Seconds(at - clock.now()))
                try:
                    self._take(events.Scraped(await metrics.scrape()))
                except PortError as error:
                    self._take(events.ScrapeFailed(error.fault, error.reason))
                # Skip missed scrapes but keep the phase: otherwise, after a stall of the process, scrapes of all VMs of
                # a node would coincide from then on.
                interval = self.state.policy.timing.scrape
                at = Instant(at + interval * max(1, ceil((clock.now() - at) / interval)))


def _read_floor(found: VirtualMachine) -> tuple[Floor | None, tuple[str, ...]]:
    annotation = found.annotations.get(ANNOTATION_FLOOR)
    try:
        return (None if annotation is None else decode_floor(annotation)), ()
    except ValueError as error:
        return None, (f"metadata.annotations[{ANNOTATION_FLOOR}]: {error}",)
