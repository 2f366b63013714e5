"""The invariants detect violations, and no order of events breaks them."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from msgspec import structs

from agent.core.actions import PatchVm, Plan, RequestPermit
from agent.core.advance import advance
from agent.core.events import (
    Fault,
    MonitorAnswered,
    MonitorJoined,
    MonitorLost,
    PatchConflicted,
    Patched,
    PatchFailed,
    RequestFailed,
    SchedulerAnswered,
    Scraped,
    ScrapeFailed,
    Started,
    VmSeen,
)
from agent.core.guest import CpuSeconds, GuestSample
from agent.core.plan import plan
from agent.core.policy import Policy
from agent.core.state import begin
from agent.core.vm import Vm
from protocol.guest.monitor_messages import DownscaleResult, UpscaleNotification
from protocol.messages import AgentRequest, PluginResponse
from protocol.pod_database import DEFERRED, ERROR, INFEASIBLE, MEMORY_STEP, ResizeObjection
from protocol.units import Bytes, ComputeUnit, Instant, MilliCpu, Resources, Seconds
from protocol.virtual_machine import Bounds
from tests.agent.core.invariants import violations
from tests.agent.core.story import GIB, MIB, POD, UNIT, Story, cu, holding, patches, settled, vm
from tests.examples import examples


def ask(size: Resources) -> RequestPermit:
    return RequestPermit(AgentRequest(POD, size), Bytes(GIB))


def broken(story: Story, *actions: RequestPermit | PatchVm, wake: float | None = None) -> list[str]:
    planned = Plan(actions, None if wake is None else Instant(wake), "")
    return violations(story.state, planned, story.instant)


def test_a_good_plan_breaks_nothing() -> None:
    assert broken(settled(2), patches(cu(1), 1), ask(cu(2)), wake=2.0) == []
    assert broken(Story().sees(vm(cu(2))), ask(cu(2.5))) == [], "before the unit is known"


def test_violations_of_monitor_rules() -> None:
    spoken = Plan((), None, "", UpscaleNotification(cu(2)))
    complaint = "speaks to a monitor that is not there, or has not answered yet"
    story = settled(2)
    assert violations(story.state, spoken, story.instant) == [complaint]
    story.happens(MonitorJoined(2))
    assert violations(story.state, spoken, story.instant) == []
    assert broken(story, patches(cu(1), 1)) == ["takes memory that the guest's monitor has not given"]
    story.happens(Started(UpscaleNotification(cu(2))))
    assert violations(story.state, spoken, story.instant) == [complaint]


def test_every_broken_rule_is_named() -> None:
    assert broken(Story(), patches(cu(1), 1), ask(cu(1))) == [
        "patches a VM that was never seen",
        "asks for a VM that was never seen",
    ]
    story = settled(2)
    assert broken(story, wake=0.5) == ["wakes at 0.5, which has passed"]
    assert broken(story, patches(cu(3), 1)) == [f"patches to {cu(3)}, above the permitted {cu(2)}"]
    assert broken(story, patches(cu(1.5), 1)) == ["patches a part of a slot"]
    assert broken(story, ask(cu(1))) == [f"asks for {cu(1)}, less than the VM holds ({cu(2)})"]
    assert broken(story, ask(cu(2.5))) == [f"asks for {cu(2.5)}, no multiple of {UNIT}"]
    assert broken(story, patches(cu(3), 1), ask(cu(2)))[1:] == [f"asks for {cu(2)}, less than the VM holds ({cu(3)})"]


def test_rules_about_what_is_in_flight_are_named() -> None:
    story = settled(2)
    story.state.vm.patching = patches(cu(1), 1)
    story.state.vm.retry_at = story.state.scheduler.retry_at = story.state.begins_at = Instant(9.0)
    story.state.scheduler.in_flight = ask(cu(2))
    story.state.scheduler.migrate = True
    assert broken(story, patches(cu(1), 1), ask(cu(2))) == [
        "patches while a patch is in flight",
        "patches during its wait after a failure",
        "patches while a migration is ordered",
        "asks while a request is in flight",
        "asks during its wait after a failure",
        "asks before its turn",
    ]


SIZES = st.builds(lambda c, m: Resources(MilliCpu(c * 50), Bytes(m * GIB)), st.integers(1, 60), st.integers(1, 12))
UNITS = st.sampled_from([UNIT, ComputeUnit(MilliCpu(500), Bytes(GIB)), ComputeUnit(MilliCpu(1000), Bytes(4 * GIB))])


class AnyOrderOfEvents(RuleBasedStateMachine):
    """One agent in a fixture where everything can happen at any time; the model is what a scheduler would reserve."""

    @initialize(use=SIZES, jitter=st.floats(0, 1), is_pod=st.booleans(), odd=st.booleans())
    def begins(self, use: Resources, jitter: float, is_pod: bool, odd: bool) -> None:
        self.now, self.jitter, self.version = 0.0, jitter, 10
        self.busy = self.stall = 0.0
        policy = Policy(smoothing=holding(3.0))
        self.state = begin(POD, policy, Instant(0.0), jitter, 1)
        self.observed = Vm(Bounds(cu(1), cu(12)), use.at_most(cu(12)), use.at_most(cu(12)), Bytes(GIB), 10)
        if is_pod:
            # Any size may be the first one of a pod.
            use = Resources(use.cpu, use.mem + Bytes(MIB * odd)).at_most(cu(12))
            self.observed = structs.replace(self.observed, use=use, actual=use, slot_size=MEMORY_STEP, is_pod=True)
        self.promised = 0.0
        self.reserved = self.observed.holds
        self.send(VmSeen(self.observed))

    def send(self, event: object) -> None:
        advance(self.state, event, Instant(self.now), self.jitter)  # type: ignore[arg-type]

    @invariant()
    def the_plan_keeps_every_rule(self) -> None:
        if not hasattr(self, "state"):
            return
        planned = plan(self.state, Instant(self.now))
        assert violations(self.state, planned, Instant(self.now)) == []
        held = self.state.held
        assert held is not None
        assert self.observed.holds.within(held), "what the VM has is always accounted for"

    @rule()
    def acts(self) -> None:
        planned = plan(self.state, Instant(self.now))
        for action in planned.actions:
            self.send(Started(action))
            if isinstance(action, RequestPermit):
                self.promised = self.now
        if planned.message is not None:
            self.send(Started(planned.message))

    @rule(seconds=st.floats(0.05, 4.0), jitter=st.floats(0, 1))
    def time_passes(self, seconds: float, jitter: float) -> None:
        wake = plan(self.state, Instant(self.now)).wake_at
        self.now = self.now + seconds if wake is None else min(self.now + seconds, max(wake, self.now))
        self.jitter = jitter

    @rule(cores=st.floats(0, 4), stall=st.floats(0, 1), used=st.integers(0, 8))
    def metrics_arrive(self, cores: float, stall: float, used: int) -> None:
        self.busy += cores
        self.stall += stall
        page = GuestSample(
            cpus={"0": CpuSeconds(self.busy)},
            load1=cores,
            mem_total=Bytes(12 * GIB),
            mem_available=Bytes((12 - used) * GIB),
            cpu_stall=self.stall,
        )
        self.send(Scraped(page))

    @rule()
    def metrics_fail(self) -> None:
        self.send(ScrapeFailed(Fault.GUEST, "away"))

    @precondition(lambda self: self.state.scheduler.in_flight is not None)
    @rule(granted=SIZES, unit=UNITS, migrate=st.booleans(), lies=st.booleans())
    def scheduler_answers(self, granted: Resources, unit: ComputeUnit, migrate: bool, lies: bool) -> None:
        asking = self.state.scheduler.in_flight
        assert asking is not None
        asked, held = asking.request.resources, self.state.held
        assert held is not None
        permit = granted if lies else granted.at_least(held).at_most(asked)
        self.send(SchedulerAnswered(PluginResponse(permit, unit, migrate)))

    @precondition(lambda self: self.state.scheduler.in_flight is not None)
    @rule(after=st.none() | st.floats(0, 100))
    def scheduler_fails(self, after: float | None) -> None:
        self.send(RequestFailed(Fault.NETWORK, "away", None if after is None else Seconds(after)))

    @precondition(lambda self: self.state.vm.patching is not None)
    @rule(applied=st.booleans(), outcome=st.sampled_from(["known", "unknown", "refused"]))
    def patch_ends(self, applied: bool, outcome: str) -> None:
        patch = self.state.vm.patching
        assert patch is not None
        fits = patch.base == self.version
        if fits and outcome != "refused" and (applied or outcome == "known"):
            self.version += 1
            self.observed = structs.replace(self.observed, use=patch.target, version=self.version, objection=None)
        if outcome == "refused":
            self.send(PatchFailed(Fault.VM_API, "no", refused=True))
        elif outcome == "unknown":
            self.send(PatchFailed(Fault.NETWORK, "no answer", refused=False))
        else:
            self.send(Patched(self.observed) if fits else PatchConflicted())

    @rule()
    def vm_catches_up(self) -> None:
        self.version += 1
        self.observed = structs.replace(self.observed, actual=self.observed.use, version=self.version, objection=None)
        self.send(VmSeen(self.observed))

    @precondition(lambda self: self.observed.is_pod and self.observed.use != self.observed.actual)
    @rule(verdict=st.sampled_from([DEFERRED, INFEASIBLE, ERROR]))
    def kubelet_objects(self, verdict: str) -> None:
        self.version += 1
        self.observed = structs.replace(self.observed, objection=ResizeObjection(verdict, "no"), version=self.version)
        self.send(VmSeen(self.observed))

    @precondition(lambda self: self.observed.is_pod)
    @rule(use=SIZES)
    def owner_edits_requests(self, use: Resources) -> None:
        self.version += 1
        self.observed = structs.replace(self.observed, use=use.at_most(cu(12)), version=self.version, objection=None)
        self.send(VmSeen(self.observed))

    @precondition(lambda self: self.state.monitor.version is None)
    @rule()
    def monitor_joins(self) -> None:
        self.send(MonitorJoined(2))

    @precondition(lambda self: self.state.monitor.version is not None)
    @rule()
    def monitor_leaves(self) -> None:
        self.send(MonitorLost(Fault.GUEST, "gone"))

    @precondition(lambda self: self.state.monitor.in_flight is not None)
    @rule(ok=st.booleans())
    def monitor_answers(self, ok: bool) -> None:
        self.send(MonitorAnswered(DownscaleResult(1, ok=ok, status="")))

    @rule(low=st.integers(1, 4), high=st.integers(4, 12))
    def bounds_change(self, low: int, high: int) -> None:
        self.version += 1
        self.observed = structs.replace(self.observed, bounds=Bounds(cu(low), cu(high)), version=self.version)
        self.send(VmSeen(self.observed))

    @rule()
    def an_old_view_arrives(self) -> None:
        self.send(VmSeen(structs.replace(self.observed, use=cu(1), actual=cu(1), version=self.version - 3)))

    @invariant()
    def a_request_comes_every_fifteen_seconds(self) -> None:
        if not hasattr(self, "state") or self.state.scheduler.in_flight is not None:
            return
        planned = plan(self.state, Instant(self.now))
        due = any(isinstance(action, RequestPermit) for action in planned.actions)
        retry = self.state.scheduler.retry_at or Instant(0.0)
        assert due or planned.wake_at is not None
        assert due or (planned.wake_at or 0.0) <= max(self.promised + 15.0, retry)


AnyOrderOfEvents.TestCase.settings = settings(
    max_examples=examples(40, 160), stateful_step_count=50, suppress_health_check=[HealthCheck.too_slow]
)
TestAnyOrderOfEvents = pytest.mark.filterwarnings("default")(AnyOrderOfEvents.TestCase)
