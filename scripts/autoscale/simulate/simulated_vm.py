"""A simulated VM: its object, its guest and its agent.

The agent is the real one: ``plan`` decides, ``advance`` processes events. Observations take a shortcut.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from math import ceil
from typing import Final, Protocol

from agent.core.actions import PatchVm, RequestPermit
from agent.core.advance import advance
from agent.core.events import Patched, SchedulerAnswered, Started, VmSeen
from agent.core.goal import OBSERVER, goal
from agent.core.guest import GuestSample, ObservedSample, Rates
from agent.core.plan import plan
from agent.core.policy import Policy, Smoothing, Timing
from agent.core.state import OFFER_PAUSE, REGROWTH_WINDOW, GiveBack, State, begin
from agent.core.vm import Sizes, Vm
from protocol.messages import AgentRequest, ObjectName, PluginResponse
from protocol.units import Bytes, Instant, Resources, Seconds
from protocol.virtual_machine import Bounds
from scheduler_plugin.ledger.accounts.permit_state import SETTLE
from scripts.autoscale.simulate.vm_table import SLOT, UNIT

MEM_STALL: Final = 0.5
"""Share of time that tasks stall on memory in a guest that needs more memory than it has."""


def observe_guest(cores: float, mem: float, size: Resources) -> tuple[GuestSample, Rates]:
    """Metrics of a guest of ``size`` under a constant demand of ``cores`` (>= 0) vCPUs and ``mem`` bytes."""
    has, total = size.cpu.as_cores, size.mem.value
    sample = GuestSample(
        # The agent's observer is a runnable task, too; its policy subtracts it.
        runnable=ceil(cores) + OBSERVER,
        load1=cores,
        load5=cores,
        mem_total=size.mem,
        # Used memory is the demand, capped at the guest's memory. The rest can be unplugged.
        mem_available=Bytes(max(0, total - int(mem))),
    )
    # Tasks wait for the share of the demand that exceeds the guest's CPU.
    waits = 1.0 - has / cores if cores > has else 0.0
    # Disk and host are never the bottleneck.
    return sample, Rates(busy=min(cores, has), steal=0.0, cpu_stall=waits, mem_stall=MEM_STALL if mem > total else 0.0)


NAMESPACE: Final = "fleet"
MAX_ROUNDS: Final = 8
"""Maximum planning rounds of an agent at one instant; more mean a bug."""

NEVER, FOR_EVER = Instant(float("-inf")), Instant(float("inf"))

SEQUENCE_STRIDE: Final = 1_000_000
"""Increase in sequence numbers from one agent of a VM to the next."""


def agent_policy(step: Seconds) -> Policy:
    """The agents' default policy, for at most one observation per step."""
    no_limit = Seconds(float("inf"))
    return Policy(
        smoothing=Smoothing(max_gap=no_limit), timing=Timing(stale=no_limit, scrape=step, start_spread=Seconds(0.0))
    )


GuestInputs = tuple[object, Resources | None, Resources | None]


class AgentCluster(Protocol):
    """The cluster, as an agent uses it."""

    def request_permit(self, vm: SimulatedVm, request: AgentRequest, now: Instant) -> PluginResponse:
        """Send a request to the scheduler."""

    def publish(self, vm: SimulatedVm, now: Instant) -> None:
        """Publish a change of the VM's object to the scheduler and the agent."""


@dataclass(slots=True)
class NeighbourShrinks:
    """Counts a VM's shrinks for its neighbours, and those after which it requested more within a minute."""

    count: int = 0
    regrown: int = 0
    _recent: list[Instant] = field(default_factory=list)

    def note(self, give_back: GiveBack, now: Instant) -> None:
        """Count the changes that the agent has made to ``give_back`` at ``now``."""
        # The agent sets ``offers_from`` only if it grows too soon after a shrink.
        if self._recent and give_back.offers_from == now + OFFER_PAUSE:
            self.regrown += sum(now - at < REGROWTH_WINDOW for at in self._recent)
            self._recent.clear()
        if give_back.gave_at == now and now not in self._recent:
            self.count += 1
            self._recent = [at for at in self._recent if now - at < REGROWTH_WINDOW] + [now]


@dataclass(slots=True, eq=False)
class SimulatedVm:
    """VM number ``index``. Some fields are caches: most observations and requests repeat the last one.

    ``use``: size in the spec and in the guest. ``permit``: stored permit. ``max_units``: maximum in compute units.
    ``may_shrink``: larger than the need at the last observation, so it may shrink with constant demand.
    ``moved_for_room``: denied when its last migration started, and not grown since.

    ``last_inputs``: inputs of the last observation. ``target_units``: its target in compute units.
    ``repeated_inputs``: guest inputs of the last request, if it changed nothing; with equal inputs, the agent repeats
    it until ``repeats_until``.
    """

    index: int
    bounds: Bounds
    use: Resources
    policy: Policy
    node: str = ""
    pod: str = ""
    pods: int = 0
    version: int = 1
    permit: Resources | None = None
    is_migrating: bool = False
    may_shrink: bool = True
    moved_for_room: bool = False
    shrinks: NeighbourShrinks = field(default_factory=NeighbourShrinks)
    name: ObjectName = field(init=False)
    max_units: int = field(init=False)
    state: State = field(init=False)
    agent_started_at: Instant = Instant(0.0)
    last_inputs: tuple[float, float, Resources, Resources] | None = None
    need: Resources | None = None
    target_units: int = 1
    is_off_target: bool = False
    repeated_inputs: GuestInputs | None = None
    repeats_until: Instant = NEVER
    _sizes_apart: Sizes = field(init=False)

    def __post_init__(self) -> None:
        self.name = ObjectName(NAMESPACE, f"vm-{self.index}")
        self.max_units = _units_up(self.bounds.max)
        self._sizes_apart = Sizes(UNIT, self.bounds, SLOT, apart=True)

    def start_agent(self, pod: str, now: Instant) -> None:
        """Start an agent in ``pod``. It knows only the VM's object."""
        self.pods += 1
        self.pod = pod
        # The scheduler accepts only sequence numbers above the last agent's.
        self.state = begin(ObjectName(NAMESPACE, pod), self.policy, now, 0.0, self.pods * SEQUENCE_STRIDE)
        self.agent_started_at, self.last_inputs = now, None
        self.refresh_agent(now)

    def refresh_agent(self, now: Instant) -> None:
        """Pass the VM's current object to the agent."""
        self.repeats_until = NEVER
        advance(self.state, VmSeen(self._view()), now, 0.0)

    @property
    def held(self) -> Resources:
        """The permit, as the agent knows it."""
        return self.state.scheduler.ceiling or self.use

    @property
    def is_denied(self) -> bool:
        """True if the scheduler granted less than the last request."""
        return self.state.scheduler.denial is not None

    @property
    def is_waiting(self) -> bool:
        """True if the agent needs a response regardless of metrics: after its start, and during a migration."""
        scheduler = self.state.scheduler
        return scheduler.migrate or self.is_migrating or scheduler.ceiling is None

    def observe(self, cores: float, mem: float, now: Instant) -> bool:
        """Observe the guest; return True if the agent may have to act."""
        guest, use = self.state.guest, self.use
        inputs = (cores, mem, use, guest.sampled_size or use)
        # Shortcut for speed: call only `goal` and `Stabilizer.observe` instead of `advance`. A test compares both.
        if guest.observed is None or inputs != self.last_inputs:
            sample, over = observe_guest(cores, mem, use)
            guest.goal = goal(sample, over, use.at_most(guest.sampled_size or use), self.policy, settling=False)
            need = guest.goal.need
            self.need = None if need is None else need.at_most(self.bounds.max)
            self.last_inputs = inputs
        else:
            sample = guest.observed.sample
        guest.observed, guest.sampled_size = ObservedSample(sample, now), use
        guest.stabilizer.observe(self.need, use, now)
        target = guest.stabilizer.target
        if self.need is None or target is None:
            return True
        self.may_shrink = _units_up(self.need) < _units_up(use)
        self.target_units = self._bounded_units(target)
        self.is_off_target = not _is_size(use, self.target_units)
        # The agent plans if the size is off target, or to withdraw a denied request.
        return self.is_off_target or self.is_denied

    def act(self, cluster: AgentCluster, now: Instant, jitter: float) -> None:
        """Execute the agent's plans until they change nothing. Raises ``RuntimeError`` after ``MAX_ROUNDS``."""
        scheduler, inputs_before = self.state.scheduler, self._other_inputs(now)
        has_offered = has_requested = False
        self.repeats_until = NEVER
        for _ in range(MAX_ROUNDS):
            actions = plan(self.state, now).actions
            before = scheduler.ceiling, scheduler.compute_unit, scheduler.migrate
            for action in actions:
                advance(self.state, Started(action), now, jitter)
                self.shrinks.note(scheduler.give_back, now)
                if isinstance(action, RequestPermit):
                    has_requested, has_offered = True, has_offered or action.request.needs is not None
                    response = cluster.request_permit(self, action.request, now)
                    advance(self.state, SchedulerAnswered(response), now, jitter)
                elif isinstance(action, PatchVm):
                    self._patch(action, cluster, now, jitter)
            has_changed = before != (scheduler.ceiling, scheduler.compute_unit, scheduler.migrate)
            if not has_changed and not any(isinstance(action, PatchVm) for action in actions):
                # Until then, the ledger may still reserve the previous agent's permit; the next request ends that.
                is_settled = now - self.agent_started_at >= SETTLE + self.policy.timing.scrape
                must_ask_again = has_offered or self.is_waiting or scheduler.give_back.shrink_to is not None
                if is_settled and has_requested and not must_ask_again and self._other_inputs(now) == inputs_before:
                    # Only these change with time alone.
                    give_back = scheduler.give_back
                    changes = (give_back.lean_until, give_back.apart_until, give_back.offers_from)
                    self.repeats_until = min((at for at in changes if at > now), default=FOR_EVER)
                    self.repeated_inputs = self._guest_inputs(now)
                return
        raise RuntimeError(f"the agent of {self.name} does not settle: {plan(self.state, now)}")

    def would_repeat(self, now: Instant) -> bool:
        """Return True if the agent would repeat its last request, which offered and changed nothing."""
        give_back, stabilizer = self.state.scheduler.give_back, self.state.guest.stabilizer
        recent = stabilizer.recent_need(now)
        if now >= self.repeats_until or recent is None:
            return False
        # If requests are not due in every step, a different load changes the time of the next one.
        if self.policy.timing.scrape < self.policy.timing.tick and self.repeated_inputs != self._guest_inputs(now):
            return False
        # A lean VM does not grow to its target until it needs more.
        apart, target = give_back.sizes_apart(now), UNIT * self.target_units
        least = self._sizes_apart.covering(recent) if apart else UNIT * self._bounded_units(recent)
        is_lean = give_back.is_lean(now)
        has_right_size = not self.is_off_target or (is_lean and least.within(self.use) and self.use.within(target))
        return has_right_size and (self.use.within(least) or not give_back.offers(now))

    def _guest_inputs(self, now: Instant) -> GuestInputs:
        """Inputs of a plan that come from the guest."""
        stabilizer = self.state.guest.stabilizer
        return self.last_inputs, stabilizer.target, stabilizer.recent_need(now)

    def _other_inputs(self, now: Instant) -> tuple[object, ...]:
        """All other inputs of a plan, except the time of the next request."""
        scheduler = self.state.scheduler
        give_back = scheduler.give_back
        return (
            *(self.version, self.is_waiting, give_back.is_lean(now), give_back.sizes_apart(now)),
            *(give_back.offers(now), give_back.shrink_to),
            *(self.state.ceiling, scheduler.denial, scheduler.has_reported_load),
        )

    def _bounded_units(self, need: Resources) -> int:
        """Compute units that cover ``need``, within the VM's bounds."""
        return min(max(1, _units_up(need)), self.max_units)

    def _patch(self, patch: PatchVm, cluster: AgentCluster, now: Instant, jitter: float) -> None:
        self.use = patch.target
        cluster.publish(self, now)
        advance(self.state, Patched(self._view()), now, jitter)

    def _view(self) -> Vm:
        return Vm(
            bounds=self.bounds,
            use=self.use,
            actual=self.use,
            slot_size=SLOT,
            version=self.version,
            resizable=not self.is_migrating,
            recorded_permit=self.permit,
        )


def _is_size(use: Resources, units: int) -> bool:
    return units * UNIT.cpu.value == use.cpu.value and units * UNIT.mem.value == use.mem.value


def _units_up(amounts: Resources) -> int:
    """``Resources.units_up`` in plain integers, because it runs for every observation."""
    # -(-a // b) rounds up.
    return max(-(-amounts.cpu.value // UNIT.cpu.value), -(-amounts.mem.value // UNIT.mem.value))
