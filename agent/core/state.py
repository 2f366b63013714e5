"""Everything one agent knows of its VM.

Rules that hold here:

- ``advance.advance`` is the only writer. ``plan`` and ``explain`` only read.
- ``ceiling`` is the part of the permit that is certain: it falls to a request when that is *sent*, and rises only with
  an accepted answer. Until the first answer there is none, and the VM may not grow at all.
- What may be in effect counts as in effect: a patch in flight, and a patch whose outcome is unknown (``unsettled``).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from math import inf
from typing import Final

from agent.core.actions import AskScheduler, PatchVm
from agent.core.events import Fault
from agent.core.goal import NO_GOAL, Goal
from agent.core.guest import NO_COUNT, NO_RATES, CpuCount, GuestSample, ObservedSample, Rates, is_other_boot
from agent.core.memory.kills import Kills
from agent.core.memory.probing import Probing
from agent.core.monitor.monitor_side import MonitorSide
from agent.core.pods.pauses import NO_PAUSES, Pauses
from agent.core.policy import SOONEST, Policy, Rhythm
from agent.core.stabilizer import Stabilizer
from agent.core.vm import Vm
from protocol.messages import ObjectName
from protocol.units import ComputeUnit, Instant, Resources, Seconds

LEAN: Final = Seconds(240.0)
"""How long a VM stays lean after it was asked last: longer than the default policy remembers a need of CPU."""

TOO_SOON: Final = Seconds(60.0)
"""Growth within this time of giving back was needed after all."""

REGRET: Final = Seconds(60.0)
"""How long a VM that gave too much offers nothing."""

_NEVER: Final = Instant(-inf)


@dataclass(frozen=True, slots=True)
class Failure:
    """Something that has been wrong since ``since``, ``count`` times in a row, and whose fault it is."""

    fault: Fault
    reason: str
    since: Instant
    last: Instant
    count: int


def failed_again(before: Failure | None, fault: Fault, reason: str, now: Instant) -> Failure:
    """The failure ``before`` (None: the first), which has now happened once more."""
    return Failure(
        fault, reason, now if before is None else before.since, now, 1 if before is None else before.count + 1
    )


@dataclass(frozen=True, slots=True)
class Denial:
    """The scheduler granted less than was asked for, ``count`` times in a row since ``since``."""

    wanted: Resources
    granted: Resources
    since: Instant
    count: int
    retry_at: Instant


@dataclass(slots=True)
class Giving:
    """Room given to neighbours on a node that is short (B.17): what this VM was asked for, gave and regrets.

    ``shrink_to`` is the size it was asked for last; None: not asked. The VM decides: it never gives what it has just
    needed. It is lean for a while afterwards: it grows for its need, but not for what its policy would keep beyond
    that. One that had to grow again soon offers nothing before ``offers_from``. ``is_offering``: its last request, at
    ``told_at``, said that it could do with less.
    """

    shrink_to: Resources | None = None
    lean_until: Instant = _NEVER
    gave_at: Instant = _NEVER
    offers_from: Instant = _NEVER
    told_at: Instant = _NEVER
    is_offering: bool = False

    def hear(self, shrink_to: Resources | None, now: Instant) -> None:
        """Takes the scheduler's last word: the size to shrink to, or None."""
        self.shrink_to = shrink_to
        if shrink_to is not None:
            self.lean_until = Instant(now + LEAN)

    def note_shrink(self, now: Instant) -> None:
        """The VM was ordered to shrink."""
        if self.is_lean(now):
            self.gave_at = now

    def note_growth(self, now: Instant) -> None:
        """More is asked for than is permitted."""
        if now - self.gave_at < TOO_SOON:
            self.offers_from = Instant(now + REGRET)

    def note_offer(self, needs: Resources | None, now: Instant) -> None:
        """A request was sent, which says the least size that the VM ``needs``, or nothing."""
        self.is_offering, self.told_at = needs is not None, now

    def awaits_offer(self, now: Instant) -> bool:
        """Return True if an offer would be news on a node that is short, and may be told already."""
        return self.is_lean(now) and not self.is_offering and now - self.told_at >= SOONEST

    def is_lean(self, now: Instant) -> bool:
        """Return True if the VM keeps no more than it has just needed."""
        return now < self.lean_until

    def offers(self, now: Instant) -> bool:
        """Return True if the VM may be asked to give."""
        return now >= self.offers_from


@dataclass(slots=True)
class SchedulerSide:
    """State of the conversation with the scheduler. ``next_at`` is the latest time of the next request.

    ``sequence`` numbers the next request: it only rises, so that the scheduler knows a late message from a new one.
    ``is_void``: the VM was opted out or restored before the answer, so a permit in that does not count.
    ``knows_load``: it has accepted the VM's load once; without that it cannot tell an idle VM from a busy one.
    ``answered_version`` is the version of the VM that was known when the last permit came. ``is_stood_back``: the
    scheduler answers another agent of the VM. ``stores_permits``: what the VM's object records is this scheduler's.
    The original's stores none there, and takes what an agent presents as granted, so a permit that another scheduler
    has left must not reach it.
    """

    next_at: Instant
    sequence: int
    compute_unit: ComputeUnit | None = None
    stores_permits: bool = True
    answered_version: int = 0
    is_stood_back: bool = False
    permit: Resources | None = None
    ceiling: Resources | None = None
    asking: AskScheduler | None = None
    is_void: bool = False
    retry_at: Instant | None = None
    denial: Denial | None = None
    migrate: bool = False
    knows_load: bool = False
    failure: Failure | None = None
    rejected: int = 0
    answered_at: Instant | None = None
    giving: Giving = field(default_factory=Giving)

    def forget_permit(self) -> None:
        """Drop the permit, so that the scheduler must grant again."""
        self.permit = self.ceiling = None
        # An answer in flight was decided before the opt-out or the restore, so it does not count.
        self.is_void = self.asking is not None


@dataclass(slots=True)
class VmSide:
    """State of the VM's object and of the patches in flight.

    ``stale_at`` is a version that a patch was refused for: until a newer one is seen no patch can succeed.
    ``shrunk_at`` is when the last order to shrink went out, ``fell_at`` when the VM was last seen to have less than
    before. ``failure`` is with patching, ``lost`` with reading. The API has refused ``refused`` growths in a row for
    certain; none is tried or asked for until ``grows_from``. A pod has ``pauses`` instead, for each resource.
    """

    seen: Vm | None = None
    patching: PatchVm | None = None
    unsettled: PatchVm | None = None
    stale_at: int | None = None
    retry_at: Instant | None = None
    refused: int = 0
    grows_from: Instant | None = None
    pauses: Pauses = NO_PAUSES
    shrunk_at: Instant | None = None
    fell_at: Instant | None = None
    failure: Failure | None = None
    lost: Failure | None = None

    @property
    def ordered(self) -> Resources | None:
        """The least that the VM has been ordered to have, a patch in flight included; None before it was seen."""
        use = None if self.seen is None else self.seen.use
        return use if use is None or self.patching is None else use.at_most(self.patching.target)

    def may_grow(self, now: Instant) -> bool:
        """Return False while a growth that the API refused is not to be tried again."""
        return self.grows_from is None or now >= self.grows_from


@dataclass(slots=True)
class GuestSide:
    """State of the guest: its last sample, the need that follows, and how low the VM may go.

    ``calm_since`` is the start of the last interval in which the guest, already smaller, showed no effect of a shrink.
    ``cpus`` is the greatest number of CPUs that one of its pages has listed.
    """

    stabilizer: Stabilizer
    seen: ObservedSample | None = None
    had: Resources | None = None
    rates: Rates = NO_RATES
    counted: CpuCount = NO_COUNT
    goal: Goal = NO_GOAL
    probing: Probing = field(default_factory=Probing)
    kills: Kills = field(default_factory=Kills)
    calm_since: Instant | None = None
    cpus: int = 0
    failure: Failure | None = None

    def is_rebooted(self, sample: GuestSample) -> bool:
        """Return True if the guest was started between the last sample and ``sample``."""
        return self.seen is not None and is_other_boot(self.seen.sample, sample)

    def kills_in(self, sample: GuestSample) -> int:
        """The kills that ``sample`` shows beyond those that are known."""
        return self.kills.count(sample, is_rebooted=self.is_rebooted(sample))


@dataclass(slots=True)
class State:
    """One agent's knowledge. ``settings_failure`` says why other settings than the wanted ones are in force,
    ``monitor_failure`` why the guest's monitor, which had answered, is gone. ``rhythm`` is that of all VMs of a node.
    """

    pod: ObjectName
    policy: Policy
    begins_at: Instant
    scheduler: SchedulerSide
    guest: GuestSide
    vm: VmSide = field(default_factory=VmSide)
    monitor: MonitorSide = field(default_factory=MonitorSide)
    settings_failure: Failure | None = None
    monitor_failure: Failure | None = None
    rhythm: Rhythm | None = None

    @property
    def ceiling(self) -> Resources | None:
        """The certain part of the permit."""
        side, vm = self.scheduler, self.vm.seen
        if side.ceiling is None or vm is None or vm.recorded_permit is None or not side.stores_permits:
            return side.ceiling
        # A permit is stored before it is answered. So a newer object that records less proves that it was taken back:
        # autoscaling was off for a while, or another agent speaks for the VM.
        return side.ceiling.at_most(vm.recorded_permit) if vm.version > side.answered_version else side.ceiling

    @property
    def held(self) -> Resources | None:
        """The size that the VM has or may come to have without another order; None before it was seen (S4.5).

        A request is never below this.
        """
        if self.vm.seen is None:
            return None
        size = self.vm.seen.holds
        # A patch in flight, or one whose outcome is unknown, may be in effect already.
        for patch in (self.vm.patching, self.vm.unsettled):
            size = size if patch is None else size.at_least(patch.target)
        return size

    def is_settling(self, since: Instant) -> bool:
        """Return True if a recent or unfinished shrink may have kept the guest busy ``since`` (it was never calm)."""
        side, timing, calm = self.vm, self.policy.timing, self.guest.calm_since
        # Nothing is unplugged in a pod: one that waits right after a shrink has too little.
        if side.seen is not None and side.seen.is_pod:
            return False
        is_unfinished = side.seen is not None and side.seen.unfinished_shrink
        # A guest that still has more than was ordered is still unplugging.
        span = max(timing.settle, timing.unfinished_shrink) if is_unfinished else timing.settle
        shrinks = [at for at in (side.shrunk_at, side.fell_at) if at is not None and (calm is None or at > calm)]
        return any(since - at <= span for at in shrinks)

    def use(self, policy: Policy, problems: str, now: Instant) -> None:
        """Put ``policy`` in force; ``problems`` names the settings that could not be applied, if any."""
        self.settings_failure = failed_again(None, Fault.SETTINGS, problems, now) if problems else None
        # New stages begin without a memory; unchanged ones keep theirs, or each policy would delay shrinking.
        if policy.smoothing != self.policy.smoothing:
            self.guest.stabilizer = Stabilizer(policy.smoothing)
        self.policy = policy


def begin(  # noqa: PLR0913 - what a state begins with
    pod: ObjectName,
    policy: Policy,
    now: Instant,
    jitter: float,
    sequence: int,
    *,
    unit: ComputeUnit | None = None,
    rhythm: Rhythm | None = None,
) -> State:
    """An agent that has just started: nothing is proven, nothing is permitted.

    ``jitter`` in 0..1 spreads the first requests of many agents over ``policy.timing.start_spread``. ``sequence``
    numbers the first request; it must be above every number that an earlier agent of this VM used.
    ``unit`` is the agent's own compute unit, beside a scheduler that has none (B.11). ``rhythm``: of all its VMs.
    """
    begins_at = Instant(now + policy.timing.start_spread * jitter)
    return State(
        pod=pod,
        policy=policy,
        begins_at=begins_at,
        # An agent has a compute unit of its own only beside the original's scheduler, which stores no permits.
        scheduler=SchedulerSide(begins_at, sequence, compute_unit=unit, stores_permits=unit is None),
        guest=GuestSide(stabilizer=Stabilizer(policy.smoothing)),
        rhythm=rhythm,
    )
