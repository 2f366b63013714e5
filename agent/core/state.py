"""The state of one VM's agent.

Rules that hold here:

- ``advance.advance`` is the only writer. ``plan`` and ``explain`` only read.
- ``ceiling`` is the certain part of the permit: sending a lower request lowers it, and only an accepted answer raises
  it. Before the first answer it is None, and the VM may not grow.
- A patch in flight, or one with an unknown outcome (``unsettled``), counts as in effect; the latter until a newer view,
  or any view from ``settles_at`` on.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from math import inf
from typing import Final

from agent.core.actions import PatchVm, RequestPermit
from agent.core.events import Fault
from agent.core.goal import NO_GOAL, Goal
from agent.core.guest import NO_COUNT, NO_RATES, CpuCount, GuestSample, ObservedSample, Rates, is_other_boot
from agent.core.memory.kills import Kills
from agent.core.memory.probing import Probing
from agent.core.monitor.monitor_side import MonitorSide
from agent.core.pods.pauses import NO_PAUSES, Pauses
from agent.core.policy import MIN_REQUEST_DELAY, BatchSchedule, Policy
from agent.core.sleep.sleep_side import SleepSide
from agent.core.stabilizer import Stabilizer
from agent.core.vm import Vm
from protocol.messages import ObjectName
from protocol.units import ZERO, ComputeUnit, Instant, Resources, Seconds

LEAN_PERIOD: Final = Seconds(240.0)
"""A VM stays lean for this long after the last request to shrink: longer than the default policy remembers CPU need."""

APART_PERIOD: Final = Seconds(3600.0)
"""A cluster that lacked headroom this recently may lack it again."""

REGROWTH_WINDOW: Final = Seconds(60.0)
"""A VM that grows within this time of giving room back gave too much."""

OFFER_PAUSE: Final = Seconds(60.0)
"""A VM that gave too much offers nothing for this long."""

_NEVER: Final = Instant(-inf)


@dataclass(frozen=True, slots=True)
class Failure:
    """A failure that has occurred ``count`` times in a row since ``since``, and the party at fault."""

    fault: Fault
    reason: str
    since: Instant
    last: Instant
    count: int


def failed_again(before: Failure | None, fault: Fault, reason: str, now: Instant) -> Failure:
    """The failure after it occurred again at ``now``; ``before`` is None for the first time."""
    return Failure(
        fault, reason, now if before is None else before.since, now, 1 if before is None else before.count + 1
    )


@dataclass(frozen=True, slots=True)
class Denial:
    """The scheduler has granted less than requested, ``count`` times in a row since ``since``."""

    wanted: Resources
    granted: Resources
    since: Instant
    count: int
    retry_at: Instant


@dataclass(slots=True)
class GiveBack:
    """Room given back to a node that is short of it (B.17).

    ``shrink_to`` is the size that the scheduler last asked for, None if it does not ask; ``asks_sleep``: it asks for
    sleep. The VM never gives up its recent need. Until ``lean_until`` it keeps only that, without what its policy would
    add; until ``apart_until``, of CPU and memory separately. After giving too much it offers nothing before
    ``offers_from``. ``is_offering``: its last request, at ``requested_at``, offered room.
    """

    shrink_to: Resources | None = None
    asks_sleep: bool = False
    lean_until: Instant = _NEVER
    apart_until: Instant = _NEVER
    gave_at: Instant = _NEVER
    offers_from: Instant = _NEVER
    requested_at: Instant = _NEVER
    is_offering: bool = False

    def apply(self, shrink_to: Resources | None, permit: Resources, now: Instant) -> None:
        """Apply the size that the scheduler asks the VM with ``permit`` to shrink to; None if it does not ask."""
        # Zero CPU asks for sleep instead of a shrink.
        self.asks_sleep = shrink_to is not None and not shrink_to.cpu
        self.shrink_to = None if self.asks_sleep else shrink_to
        if self.shrink_to is not None:
            self.lean_until = Instant(now + LEAN_PERIOD)
            # Only a scheduler whose cluster lacks headroom asks a VM to stay.
            if self.shrink_to == permit:
                self.apart_until = Instant(now + APART_PERIOD)

    def note_shrink(self, now: Instant) -> None:
        """Record that the VM was ordered to shrink."""
        if self.is_lean(now):
            self.gave_at = now

    def note_growth(self, now: Instant) -> None:
        """Record that the VM requests more than its permit."""
        if now - self.gave_at < REGROWTH_WINDOW:
            self.offers_from = Instant(now + OFFER_PAUSE)

    def note_offer(self, needs: Resources | None, now: Instant) -> None:
        """Record a request with the offer ``needs``, the smallest size that the VM needs; None without an offer."""
        self.is_offering, self.requested_at = needs is not None, now

    def awaits_offer(self, now: Instant) -> bool:
        """Return True if a new offer justifies a request now."""
        return self.is_lean(now) and not self.is_offering and now - self.requested_at >= MIN_REQUEST_DELAY

    def is_lean(self, now: Instant) -> bool:
        """Return True if the VM keeps only its recent need."""
        return now < self.lean_until

    def sizes_apart(self, now: Instant) -> bool:
        """Return True if the VM offers, and while lean keeps, CPU and memory separately, not in equal compute units."""
        return now < self.apart_until

    def offers(self, now: Instant) -> bool:
        """Return True if the VM may offer room."""
        return now >= self.offers_from


@dataclass(slots=True)
class SchedulerSide:
    """State of the exchange with the scheduler. ``next_at`` is the latest time of the next request.

    ``sequence`` numbers the next request, so that the scheduler can drop late messages. ``is_void``: the VM was opted
    out or restored while a request was in flight, so the permit in its answer does not count. ``has_reported_load``:
    the scheduler knows the VM's load; otherwise it cannot distinguish an idle VM from a busy one. ``answered_version``
    is the VM's version at the last permit. ``is_superseded``: the scheduler serves another agent of the VM.
    ``migrate``: the last answer forbids any change, as did ``freezes`` answers in a row. ``stores_permits``: permits
    are stored on the VM's object. The original project's scheduler trusts its agents, so it must not get a stored one.
    """

    next_at: Instant
    sequence: int
    compute_unit: ComputeUnit | None = None
    stores_permits: bool = True
    answered_version: int = 0
    is_superseded: bool = False
    permit: Resources | None = None
    ceiling: Resources | None = None
    in_flight: RequestPermit | None = None
    is_void: bool = False
    retry_at: Instant | None = None
    denial: Denial | None = None
    migrate: bool = False
    freezes: int = 0
    has_reported_load: bool = False
    failure: Failure | None = None
    rejected: int = 0
    answered_at: Instant | None = None
    give_back: GiveBack = field(default_factory=GiveBack)

    def forget_permit(self) -> None:
        """Drop the permit, so that the scheduler must grant it again."""
        self.permit = self.ceiling = None
        # An answer in flight precedes the opt-out or restore, so it does not count.
        self.is_void = self.in_flight is not None


@dataclass(slots=True)
class VmSide:
    """State of the VM's object and of the patches in flight.

    ``stale_at`` is a version at which a patch conflicted: the next waits for a newer one, or for ``retry_at``, because
    other objects can conflict as well. ``shrunk_at`` is the time of the last order to shrink, ``shrink_seen_at`` when
    the VM was last observed to shrink. ``failure`` concerns patching, ``lost`` reading. After ``refused`` refused
    growths in a row, none is tried or requested before ``grows_from``. Pods have ``pauses`` per resource instead.
    """

    observed: Vm | None = None
    patching: PatchVm | None = None
    unsettled: PatchVm | None = None
    settles_at: Instant = _NEVER
    stale_at: int | None = None
    retry_at: Instant | None = None
    refused: int = 0
    grows_from: Instant | None = None
    pauses: Pauses = NO_PAUSES
    shrunk_at: Instant | None = None
    shrink_seen_at: Instant | None = None
    failure: Failure | None = None
    lost: Failure | None = None

    @property
    def ordered(self) -> Resources | None:
        """The smallest size ordered, including a patch in flight; None before the VM was observed."""
        use = None if self.observed is None else self.observed.use
        return use if use is None or self.patching is None else use.at_most(self.patching.target)

    def may_grow(self, now: Instant) -> bool:
        """Return False until a growth that the API server refused may be retried."""
        return self.grows_from is None or now >= self.grows_from


@dataclass(slots=True)
class GuestSide:
    """State of the guest: its last sample, its need, and the limits on shrinking.

    ``sampled_size`` is the VM's size at the last sample. ``calm_since`` is the start of the last interval that showed
    no effects of a shrink. ``cpus`` is the largest number of CPUs in a sample. While its VM sleeps, the guest has been
    suspended since ``suspended_at``; earlier sleeps lasted ``suspended_seconds`` in total.
    """

    stabilizer: Stabilizer
    observed: ObservedSample | None = None
    sampled_size: Resources | None = None
    rates: Rates = NO_RATES
    counted: CpuCount = NO_COUNT
    goal: Goal = NO_GOAL
    probing: Probing = field(default_factory=Probing)
    kills: Kills = field(default_factory=Kills)
    calm_since: Instant | None = None
    cpus: int = 0
    failure: Failure | None = None
    suspended_at: Instant | None = None
    suspended_seconds: float = 0.0

    def fall_asleep(self, now: Instant) -> None:
        """Record that the guest is suspended. Keep what was learned, but do not compute rates across the sleep."""
        if self.suspended_at is None:
            self.suspended_at = now if self.observed is None else self.observed.last
        self.observed = self.sampled_size = self.failure = self.calm_since = None
        self.rates, self.goal = NO_RATES, NO_GOAL

    def wake(self, now: Instant) -> None:
        """Record that the guest runs again."""
        if self.suspended_at is not None:
            self.suspended_seconds += now - self.suspended_at
            self.suspended_at = None

    def awake_time(self, now: Instant) -> Instant:
        """``now`` on a clock that stops during sleep, so that sleep leaves no gap in the history of needs."""
        return Instant(now - self.suspended_seconds)

    def is_rebooted(self, sample: GuestSample) -> bool:
        """Return True if the guest booted between the last sample and ``sample``."""
        return self.observed is not None and is_other_boot(self.observed.sample, sample)

    def kills_in(self, sample: GuestSample) -> int:
        """Number of new OOM kills in ``sample``."""
        return self.kills.new_kills(sample, is_rebooted=self.is_rebooted(sample))


@dataclass(slots=True)
class State:
    """The whole state. ``settings_failure``: some settings do not apply; ``monitor_failure``: the guest's monitor is
    lost; ``sleep_failure``: the last order to sleep was not written. All VMs of a node share ``schedule``.
    """

    pod: ObjectName
    policy: Policy
    begins_at: Instant
    scheduler: SchedulerSide
    guest: GuestSide
    vm: VmSide = field(default_factory=VmSide)
    monitor: MonitorSide = field(default_factory=MonitorSide)
    sleep: SleepSide = field(default_factory=SleepSide)
    settings_failure: Failure | None = None
    monitor_failure: Failure | None = None
    sleep_failure: Failure | None = None
    schedule: BatchSchedule | None = None

    @property
    def sleeps(self) -> bool:
        """Return True if the VM was last seen asleep or waking, without a running guest."""
        return self.vm.observed is not None and self.vm.observed.sleeps

    @property
    def ceiling(self) -> Resources | None:
        """The certain part of the permit."""
        scheduler, vm = self.scheduler, self.vm.observed
        if scheduler.ceiling is None or vm is None or vm.recorded_permit is None or not scheduler.stores_permits:
            return scheduler.ceiling
        # The scheduler stores a permit before it answers. So if a newer object records less, the permit was revoked:
        # autoscaling was off for a while, or another agent made requests for the VM.
        is_newer = vm.version > scheduler.answered_version
        return scheduler.ceiling.at_most(vm.recorded_permit) if is_newer else scheduler.ceiling

    @property
    def held(self) -> Resources | None:
        """The size that the VM has or may reach without another patch; None before it was observed (S4.5).

        A request is never below this.
        """
        if self.vm.observed is None:
            return None
        # While asleep the VM uses nothing; the permit for its wake covers the size ordered then.
        if self.vm.observed.is_asleep:
            return ZERO
        size = self.vm.observed.holds
        # A patch in flight, or one with an unknown outcome, may already be in effect.
        for patch in (self.vm.patching, self.vm.unsettled):
            size = size if patch is None else size.at_least(patch.target)
        return size

    def is_settling(self, since: Instant) -> bool:
        """Return True if a recent or unfinished shrink may have kept the guest busy since ``since``."""
        vm_state, timing, calm = self.vm, self.policy.timing, self.guest.calm_since
        # Nothing is unplugged from a pod: if it stalls right after a shrink, it has too little.
        if vm_state.observed is not None and vm_state.observed.is_pod:
            return False
        is_unfinished = vm_state.observed is not None and vm_state.observed.unfinished_shrink
        # A guest that still has more than was ordered is still unplugging.
        span = max(timing.settle, timing.unfinished_shrink) if is_unfinished else timing.settle
        shrinks = (at for at in (vm_state.shrunk_at, vm_state.shrink_seen_at) if at is not None)
        return any(since - at <= span for at in shrinks if calm is None or at > calm)

    def use(self, policy: Policy, problems: str, now: Instant) -> None:
        """Apply ``policy``; ``problems`` names the settings that could not be applied, if any."""
        self.settings_failure = failed_again(None, Fault.SETTINGS, problems, now) if problems else None
        # Keep unchanged stages and their history; otherwise each new policy would delay shrinking.
        if policy.smoothing != self.policy.smoothing:
            self.guest.stabilizer = Stabilizer(policy.smoothing)
        self.policy = policy


def begin(  # noqa: PLR0913 - the inputs of a new state
    pod: ObjectName,
    policy: Policy,
    now: Instant,
    jitter: float,
    sequence: int,
    *,
    unit: ComputeUnit | None = None,
    schedule: BatchSchedule | None = None,
) -> State:
    """The initial state: nothing is proven, nothing is permitted.

    ``jitter`` (0..1) spreads the first requests of many agents over ``policy.timing.start_spread``, and the sleep of
    VMs that have long been idle. ``sequence`` numbers the first request, and must exceed every number used by an
    earlier agent of this VM. ``unit`` is the agent's own compute unit, for a scheduler that has none (B.11). All VMs of
    the agent share ``schedule``.
    """
    begins_at = Instant(now + policy.timing.start_spread * jitter)
    return State(
        pod=pod,
        policy=policy,
        begins_at=begins_at,
        # An agent has its own compute unit only with the original project's scheduler, which stores no permits.
        scheduler=SchedulerSide(begins_at, sequence, compute_unit=unit, stores_permits=unit is None),
        guest=GuestSide(stabilizer=Stabilizer(policy.smoothing)),
        sleep=SleepSide(spread_fraction=jitter),
        schedule=schedule,
    )
