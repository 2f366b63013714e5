"""A small language for stories about one agent: sizes in compute units, a guest with running counters, and a manual
clock.

Every plan that a story makes is checked against the invariants of the core.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from msgspec.structs import replace

from agent.core.actions import Action, PatchVm, Plan, RequestPermit
from agent.core.advance import advance
from agent.core.events import Event, Fault, Patched, SchedulerAnswered, Scraped, Started, VmSeen
from agent.core.guest import CpuSeconds, GuestSample
from agent.core.plan import plan
from agent.core.policy import CpuPolicy, MemoryPolicy, Policy, Smoothing, Timing
from agent.core.state import State, begin
from agent.core.vm import Vm
from protocol.messages import AgentRequest, Metrics, ObjectName, PluginResponse
from protocol.smoothing.policy import parse_policy
from protocol.units import Bytes, ComputeUnit, Instant, MilliCpu, Resources, Seconds
from protocol.virtual_machine import Bounds
from tests.agent.core.invariants import violations

GIB = 1024**3
MIB = 1024**2
POD = ObjectName("default", "vm-1-pod")
UNIT = ComputeUnit(MilliCpu(250), Bytes(GIB))


def holding(seconds: float, max_gap: float = 3.0) -> Smoothing:
    """A policy that grows immediately, and shrinks to the maximum of this many seconds."""
    hold = [{"hold": {"window": seconds}}]
    return Smoothing(parse_policy(hold, "cpu"), parse_policy(hold, "memory"), Seconds(max_gap))


POLICY = Policy(
    cpu=CpuPolicy(target=0.5, pressure_deadband=0.0, reach=4.0),
    memory=MemoryPolicy(target=0.5, kernel_allowance=Bytes(0)),
    smoothing=holding(4.0),
    timing=Timing(tick=Seconds(7.0), tick_jitter=Seconds(1.0)),
)
"""Round numbers: half of everything is to be busy, four seconds prove that less is enough."""


def cu(count: float) -> Resources:
    """So many compute units."""
    return Resources(MilliCpu(int(250 * count)), Bytes(int(GIB * count)))


def vm(use: Resources, *, version: int = 1, actual: Resources | None = None, low: float = 1, high: float = 8) -> Vm:
    """A VM's object."""
    return Vm(Bounds(cu(low), cu(high)), use, actual or use, Bytes(GIB), version)


@dataclass
class Story:
    """One agent, its guest's counters, and what the fixture would answer."""

    policy: Policy = POLICY
    now: float = 0.0
    jitter: float = 0.0
    busy: float = 0.0
    stalled: float = 0.0
    unit: ComputeUnit | None = None
    state: State = field(init=False)

    def __post_init__(self) -> None:
        self.state = begin(POD, self.policy, self.instant, self.jitter, sequence=1, unit=self.unit)

    @property
    def instant(self) -> Instant:
        """The present."""
        return Instant(self.now)

    def at(self, now: float) -> Story:
        """Moves on to ``now``."""
        self.now = now
        return self

    def happens(self, event: Event) -> Story:
        """Takes an event in."""
        advance(self.state, event, self.instant, self.jitter)
        return self

    def sees(self, seen: Vm) -> Story:
        """The API shows the VM."""
        return self.happens(VmSeen(seen))

    def looks(
        self,
        cores: float = 0.0,
        stall: float = 0.0,
        used: float = 0.0,
        span: float = 1.0,
        runnable: float | None = None,
    ) -> Story:
        """Metrics of the last ``span``: ``cores`` were busy, tasks waited, and ``used`` GiB are in use."""
        self.busy += cores * span
        self.stalled += stall * span
        return self.happens(Scraped(replace(sample(self.busy, self.stalled, used), runnable=runnable)))

    def plans(self) -> Plan:
        """The agent's current plan."""
        planned = plan(self.state, self.instant)
        assert violations(self.state, planned, self.instant) == []
        return planned

    def acts(self) -> list[Action]:
        """Start the agent's due actions; they are in flight from here on."""
        planned = self.plans()
        for action in planned.actions:
            self.happens(Started(action))
        return list(planned.actions)

    def answers(self, permit: Resources, *, migrate: bool = False, unit: ComputeUnit = UNIT) -> Story:
        """The scheduler answers the request in flight."""
        return self.happens(SchedulerAnswered(PluginResponse(permit, unit, migrate)))

    def obeys(self) -> Story:
        """The VM gets the size in the patch in flight."""
        patch, seen = self.state.vm.patching, self.state.vm.observed
        assert patch is not None
        assert seen is not None
        return self.happens(
            Patched(replace(seen, use=patch.target, actual=patch.target, version=max(seen.version, patch.base) + 1))
        )


def sample(busy: float, stalled: float, used: float) -> GuestSample:
    """A page of metrics from the counters so far."""
    return GuestSample(
        cpus={"0": CpuSeconds(busy)},
        boot_time=1.0,
        load1=0.5,
        load5=0.25,
        mem_total=Bytes(64 * GIB),
        mem_available=Bytes(64 * GIB - int(used * GIB)),
        cpu_stall=stalled,
        mem_stall=0.0,
    )


def settled(size: float = 1, policy: Policy = POLICY) -> Story:
    """An agent at one second that knows its VM, its compute unit, its permit and one sample of metrics."""
    story = Story(policy).sees(vm(cu(size))).looks()
    story.acts()
    return story.answers(cu(size)).at(1.0)


def asks(
    size: Resources, last: Resources | None, sequence: int, *, unit: ComputeUnit | None = UNIT, used: float = 0.0
) -> RequestPermit:
    """The request for ``size`` of an agent that saw ``used`` GiB in use; before the first unit it saw nothing."""
    seen = Metrics(0.5, 0.25, Bytes(int(used * GIB))) if unit is not None else None
    return RequestPermit(AgentRequest(POD, size, last, unit, seen, sequence), Bytes(GIB))


def patches(size: Resources, base: int) -> PatchVm:
    """The patch to ``size``."""
    return PatchVm(size, base, Bytes(GIB))


def planned(actions: tuple[Action, ...], wake_at: float | None, because: str) -> Plan:
    """A whole plan."""
    return Plan(actions, None if wake_at is None else Instant(wake_at), because)


NETWORK = Fault.NETWORK
