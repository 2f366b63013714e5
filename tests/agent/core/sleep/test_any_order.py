"""In any order of events, a guest that sleeps and wakes never has more than its permit (B.18).

The model has the truth: the object with its stored permit, a guest that wakes only if that covers what is ordered, and
what a ledger must reserve. The agent sees all of it late, or not at all.
"""

from __future__ import annotations

from dataclasses import replace

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from msgspec import structs

from agent.core.actions import OrderSleep, PatchVm, RequestPermit
from agent.core.advance import advance
from agent.core.events import (
    Event,
    Fault,
    PatchConflicted,
    Patched,
    PatchFailed,
    RequestFailed,
    SchedulerAnswered,
    Scraped,
    SleepNotOrdered,
    SleepOrdered,
    Started,
    VmSeen,
    WindowChanged,
)
from agent.core.guest import CpuSeconds, GuestSample
from agent.core.plan import plan
from agent.core.policy import SleepPolicy
from agent.core.state import begin
from agent.core.vm import Vm
from protocol.guest.sleep import SleepReport, SleepState
from protocol.messages import PluginResponse
from protocol.units import ZERO, Bytes, Instant, Resources, Seconds
from protocol.virtual_machine import Bounds
from tests.agent.core.invariants import violations
from tests.agent.core.sleep.sleepers import SLEEPY
from tests.agent.core.story import GIB, POD, UNIT, cu
from tests.examples import examples


class SleepsAndWakes(RuleBasedStateMachine):
    """One agent, its VM, and a scheduler that stores each permit before it answers."""

    @initialize(size=st.sampled_from([1, 1, 2]), asleep=st.booleans(), after=st.sampled_from([60.0, 240.0]))
    def begins(self, size: int, asleep: bool, after: float) -> None:
        self.now, self.orders, self.busy, self.quiet_from = 0.0, 0, 0.0, 0.0
        policy = replace(SLEEPY, sleep=SleepPolicy(Seconds(after)))
        self.state = begin(POD, policy, Instant(0.0), 0.0, 1)
        size_now = cu(size)
        self.vm = Vm(Bounds(cu(1), cu(8)), size_now, size_now, Bytes(GIB), 10, recorded_permit=size_now)
        # What the agent may hold, as far as the scheduler knows: all that is stored.
        self.promised = self.accepted = size_now
        if asleep:
            self.changes(phase="Asleep", actual=ZERO, resizable=False)
        self.send(VmSeen(self.vm))

    @property
    def stored(self) -> Resources:
        return self.vm.recorded_permit or ZERO

    def send(self, event: Event) -> None:
        advance(self.state, event, Instant(self.now), 0.0)

    def changes(self, **fields: object) -> None:
        """The object changes; the agent is not told."""
        self.vm = structs.replace(self.vm, version=self.vm.version + 1, **fields)

    def reports(self, phase: str, state: SleepState) -> None:
        has = self.vm.use if phase == "Running" else ZERO
        sleep = SleepReport(self.vm.order, state, message="10.1.2.3")
        self.changes(phase=phase, sleep=sleep, actual=has, resizable=phase == "Running")

    @rule()
    def agent_sees_the_vm(self) -> None:
        self.send(VmSeen(self.vm))

    @rule(seconds=st.sampled_from([0.3, 1.0, 2.0, 7.0, 61.0]))
    def time_passes(self, seconds: float) -> None:
        self.now += seconds

    @rule()
    def acts(self) -> None:
        for action in plan(self.state, Instant(self.now)).actions:
            self.send(Started(action))
            self.orders += isinstance(action, OrderSleep)

    @precondition(lambda self: self.vm.phase == "Running")
    @rule(cores=st.sampled_from([0.0, 0.0, 0.0, 1.0]), awake=st.sampled_from([(), (), ("cron",)]))
    def metrics_arrive(self, cores: float, awake: tuple[str, ...]) -> None:
        self.busy += cores
        self.quiet_from = self.now if cores else self.quiet_from
        memory = Bytes(64 * GIB)
        page = GuestSample(
            cpus={"0": CpuSeconds(self.busy)},
            load1=cores,
            mem_total=memory,
            mem_available=memory,
            quiet=self.now - self.quiet_from,
            awake=awake,
        )
        self.send(Scraped(page))

    @rule(steps=st.integers(0, 12), asks=st.sampled_from([None, ZERO]))
    def quiet_minute_passes(self, steps: int, asks: Resources | None) -> None:
        """One minute without load, then ``steps`` turns in which every request of the agent is granted."""
        self.send(WindowChanged(None))
        for seconds in (61.0, *[1.0] * steps):
            self.time_passes(seconds)
            self.agent_sees_the_vm()
            if self.vm.phase == "Running":
                self.metrics_arrive(0.0, ())
            self.acts()
            self.everything_is_answered(asks)

    @precondition(lambda self: self.vm.phase == "Running")
    @rule(is_seen=st.booleans())
    def falls_asleep(self, is_seen: bool) -> None:
        """The whole sequence without faults."""
        self.quiet_minute_passes(12, ZERO)
        if self.state.sleep.ordering is not None:
            self.order_ends("known")
        if self.vm.is_ordered_to_sleep:
            self.controller_carries_the_order_out(False)
        if is_seen:
            self.agent_sees_the_vm()

    def everything_is_answered(self, asks: Resources | None = None) -> None:
        if self.state.scheduler.in_flight is not None:
            self.scheduler_answers(cu(8), asks)
        if self.state.vm.patching is not None:
            self.patch_ends("known")

    @precondition(lambda self: self.vm.sleeps)
    @rule(seconds=st.sampled_from([0.1, 20.0]))
    def packet_wakes_it_soon(self, seconds: float) -> None:
        """The whole sequence without faults."""
        if self.vm.is_asleep:
            self.packet_wakes()
        self.agent_sees_the_vm()
        self.time_passes(seconds)
        self.acts()
        self.everything_is_answered()
        if self.vm.use.within(self.stored):
            self.guest_runs_on()

    @precondition(lambda self: self.state.scheduler.in_flight is not None)
    @rule(room=st.sampled_from([ZERO, cu(1), cu(2), cu(8), cu(8)]), asks=st.sampled_from([None, None, ZERO, cu(1)]))
    def scheduler_answers(self, room: Resources, asks: Resources | None) -> None:
        asking = self.state.scheduler.in_flight
        assert asking is not None
        wanted = asking.request.resources
        # What the guest has, and what is ordered of one that runs, is never taken.
        least = self.vm.holds if self.vm.phase == "Running" else ZERO
        permit = wanted.at_most(room.at_least(least))
        self.promised = permit
        # An agent that has not seen yet that the VM sleeps rejects a permit of zero, and keeps the last one.
        if permit.any or self.state.sleeps:
            self.accepted = permit
        if not permit.within(self.stored):
            self.changes(recorded_permit=self.stored.at_least(permit))
        self.send(SchedulerAnswered(PluginResponse(permit, UNIT, shrink_to=asks)))

    @precondition(lambda self: self.state.scheduler.in_flight is not None)
    @rule(was_taken=st.booleans())
    def answer_is_lost(self, was_taken: bool) -> None:
        asking = self.state.scheduler.in_flight
        assert asking is not None
        self.accepted = self.accepted.at_most(asking.request.resources)
        if was_taken:
            self.promised = self.promised.at_most(asking.request.resources)
        self.send(RequestFailed(Fault.NETWORK, "away"))

    @precondition(lambda self: self.vm.phase != "Waking")
    @rule()
    def scheduler_stores_less(self) -> None:
        """Room becomes free; not while the guest may be waking by what is stored."""
        self.changes(recorded_permit=self.promised.at_least(self.vm.holds).at_most(self.stored))

    @precondition(lambda self: self.state.vm.patching is not None)
    @rule(outcome=st.sampled_from(["known", "known", "unknown", "lost"]))
    def patch_ends(self, outcome: str) -> None:
        patch = self.state.vm.patching
        assert isinstance(patch, PatchVm)
        fits = patch.base == self.vm.version
        if fits and outcome != "lost":
            has = patch.target if self.vm.phase == "Running" else self.vm.actual
            self.changes(use=patch.target, actual=has)
        if outcome == "known":
            self.send(Patched(self.vm) if fits else PatchConflicted())
        else:
            self.send(PatchFailed(Fault.NETWORK, "no answer", refused=False))

    @precondition(lambda self: self.state.sleep.ordering is not None)
    @rule(outcome=st.sampled_from(["known", "known", "unknown", "lost"]))
    def order_ends(self, outcome: str) -> None:
        order = self.state.sleep.ordering
        assert order is not None
        fits = order.base == self.vm.version
        if fits and outcome != "lost":
            self.changes(order=f"order-{self.orders}")
        if outcome == "known" and fits:
            self.send(SleepOrdered(self.vm))
        else:
            self.send(SleepNotOrdered(Fault.NETWORK, "no answer"))

    @precondition(lambda self: self.vm.is_ordered_to_sleep and self.vm.phase == "Running")
    @rule(refuses=st.booleans())
    def controller_carries_the_order_out(self, refuses: bool) -> None:
        if refuses:
            self.reports("Running", SleepState.REFUSED)
        else:
            self.reports("Asleep", SleepState.ASLEEP)

    @precondition(lambda self: self.vm.is_asleep)
    @rule()
    def packet_wakes(self) -> None:
        self.reports("Waking", SleepState.WAKING)

    @precondition(lambda self: self.vm.is_waking and self.vm.use.within(self.stored))
    @rule()
    def guest_runs_on(self) -> None:
        self.reports("Running", SleepState.AWAKE)

    @rule(window=st.sampled_from([None, "Mon 07:00-20:00 UTC"]))
    def window_changes(self, window: str | None) -> None:
        self.send(WindowChanged(window))

    @invariant()
    def plan_keeps_every_rule(self) -> None:
        planned = plan(self.state, Instant(self.now))
        assert violations(self.state, planned, Instant(self.now)) == []

    @invariant()
    def guest_has_no_more_than_is_stored(self) -> None:
        assert self.vm.actual.within(self.stored), "what is stored is reserved"

    @invariant()
    def agent_counts_on_no_more_than_it_accepted(self) -> None:
        ceiling = self.state.scheduler.ceiling
        assert ceiling is None or ceiling.within(self.accepted)

    @invariant()
    def request_comes_in_time(self) -> None:
        """A VM that is asleep has its heartbeat; one that wakes asks again within the soonest time."""
        planned, side = plan(self.state, Instant(self.now)), self.state.scheduler
        if side.in_flight is not None or any(isinstance(each, RequestPermit) for each in planned.actions):
            return
        assert planned.wake_at is not None
        waits = self.state.vm.observed is not None and self.state.vm.observed.is_waking and side.denial is not None
        assert planned.wake_at - self.now <= (2.0 if waits else 15.0)


SleepsAndWakes.TestCase.settings = settings(
    max_examples=examples(40, 200), stateful_step_count=60, suppress_health_check=[HealthCheck.too_slow]
)
TestSleepsAndWakes = SleepsAndWakes.TestCase
