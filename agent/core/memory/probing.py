"""Probing: trials with less and more memory determine how much the page cache needs (B.16).

    Shrink ── HARMLESS, GREW ──►┌─────────┐── SHORT ──► Growing ── GREW ──► Filling ── full ──► Filled
      │  ▲                      │         │              │ ▲                   │                │ │ │
      │  └─────── FELL ─────────│ Resting │◄─ RELIEVED ──┘ └───────────────────┼── TOO_SMALL ───┘ │ │
      │ HURTS, CROWDED          │         │◄─ HELPS ───────────────────────────┴──────────────────┘ │
      ▼                         │         │                                                 USELESS │
    Reclaiming ── WAITED ──────►└─────────┘◄─ WAITED, FELL, GREW ── Returning ◄─────────────────────┘

FELL leads to Shrink from every state but Returning. Resting and Growing remember the last shrink until it is EXPIRED;
if it is to blame, they lead to Reclaiming like Shrink. ``Probing._next`` is the transition table.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Final

from agent.core.memory.memory_view import NONE, MemoryView
from agent.core.memory.rereading import IDLE_CORES, NO_COST, Cost, Trend, recent
from agent.core.memory.trials import (
    FULL,
    RESTING,
    Filled,
    Filling,
    Growing,
    Growth,
    Observation,
    Phase,
    Reclaiming,
    Resting,
    Returning,
    Shrink,
    exceeds_limits,
    have_rereads_ended,
)
from agent.core.memory.working_set import (
    FailedGrowth,
    WorkingSetFloor,
    failed_growth_after,
    floor_after_growth,
    floor_after_shrink,
    part_of,
)
from agent.core.policy import CachePolicy
from protocol.units import Bytes, Instant

LEAST_STEP: Final = 0.04
"""Minimum step as a share of the memory; less is not worth a resize."""

RESERVE: Final = 0.08
"""Share of the memory that the kernel keeps unused."""

REPEATED: Final = 0.25
"""A repeated trial covers this share of the distance to the VM's maximum, which is enough for a verdict."""

NEARLY: Final = 0.85
"""A growth beyond this share of the maximum goes to the maximum."""


@dataclass(slots=True)
class Probing:
    """The current trial with one VM's memory, and the results of earlier ones."""

    keep: Bytes = NONE
    """Minimum memory for the VM; it grows if it has less."""
    floor: WorkingSetFloor | None = None
    failed_growth: FailedGrowth | None = None
    phase: Phase = RESTING
    recent: Cost = NO_COST
    """The cost over about the last minute."""
    idle_since: Instant | None = None
    _use: Bytes | None = None
    _free: Bytes | None = None
    """Unused memory at the last view; None after a resize."""
    _changed_at: Instant = Instant(0.0)
    """Time of the last resize, or of the last harm done by one."""
    _anchor: Cost | None = None
    """The cost before the first shrink since the last growth: many small steps may hurt in total."""
    _trend: Trend = field(default_factory=Trend)

    def observe(self, view: MemoryView, now: Instant, policy: CachePolicy) -> None:
        """Apply one view of the VM's memory. ``now`` never decreases."""
        for observation in self._observations(view, now, policy):
            self.phase = self._next(observation, view, now, policy)
        self._use, self._free, self.keep = view.use, view.free, self._held_memory(view, now, policy)

    def is_lifted(self, now: Instant, policy: CachePolicy) -> bool:
        """Return True if the guest has been idle for ``idle_after``, so that the floor does not block a shrink."""
        return self.idle_since is not None and now - self.idle_since >= policy.idle_after

    def is_refilling(self, now: Instant, policy: CachePolicy) -> bool:
        """Return True while the guest refills reclaimed memory: stalls then do not mean that it needs more."""
        return self.floor is not None and now - self.floor.at < policy.watch

    def _next(  # noqa: PLR0911, PLR0912 - the whole table
        self, observation: Observation, view: MemoryView, now: Instant, policy: CachePolicy
    ) -> Phase:
        """The state after ``observation``; updates ``floor`` and ``failed_growth``."""
        match self.phase, observation:
            # At least a part of the growth was granted, and is judged.
            case Growing(growth) | Filling(growth) | Filled(growth), Observation.GREW:
                return Filling(growth, view.use)
            # A growth that no trial asked for ends the watch of a shrink, and the return from a growth.
            case Resting() | Shrink() | Returning(), Observation.GREW:
                return Resting()
            # This shrink reverts a useless growth, so it is not a trial.
            case Returning(), Observation.FELL:
                return Resting()
            # Any shrink may hurt, no matter who ordered it.
            case phase, Observation.FELL:
                return self._shrink(phase, view.use, now)
            # While a claim or a return is pending, no other trial starts.
            case Reclaiming() | Returning(), Observation.WAITED:
                return Resting()
            # Metrics were missing for a long time, so the watch continues.
            case Shrink() as shrink, Observation.EXPIRED:
                return replace(shrink, is_expired=True)
            # Harm this late must have another cause.
            case Resting(), Observation.EXPIRED:
                return Resting()
            case Growing(growth), Observation.EXPIRED:
                return Growing(growth)
            # Programs need more memory soon after the shrink.
            case (
                (Shrink() as shrink) | Resting(Shrink() as shrink) | Growing(_, Shrink() as shrink),
                Observation.CROWDED,
            ):
                return self._reclaim_for_programs(shrink, view, now, policy)
            # Also from Resting: harm may show only after the watch.
            case (Shrink() as shrink) | Resting(Shrink() as shrink), Observation.HURTS:
                return self._reclaim(shrink, view, now, policy)
            case Shrink() as shrink, Observation.HARMLESS:
                return self._lower_floor(shrink, now, policy)
            case Resting(shrunk), Observation.SHORT:
                return Growing(Growth(view.use, self._next_larger(view, policy), self.recent), shrunk)
            # The load behind the failed growth has ended, which says nothing about the next load.
            case Resting() as phase, Observation.RELIEVED:
                self.failed_growth = self.failed_growth and replace(self.failed_growth, retry_at=now)
                return phase
            # The rereads ended before the growth was granted.
            case Growing(_, shrunk), Observation.RELIEVED:
                return Resting(shrunk)
            # If the limits are still exceeded, the next step starts from Resting.
            case Filling(growth) | Filled(growth), Observation.HELPS:
                return self._raise_floor(growth, view, now, policy)
            # Further steps count as the same growth, with the same base and baseline.
            case Filled(growth), Observation.TOO_SMALL:
                return Growing(replace(growth, wanted=self._next_larger(view, policy)))
            case Filled() as trial, Observation.USELESS:
                return self._return_to_base(trial, now, policy)
            # Reclaiming, GREW: maybe a part of the claim; WAITED follows once all of it is granted.
            case _:
                return self.phase

    def _observations(self, view: MemoryView, now: Instant, policy: CachePolicy) -> Iterator[Observation]:
        """The observations of one view, in order. Each depends on the state that the previous one led to."""
        if self._use is None:
            self._changed_at = now
        elif view.use != self._use:
            self._changed_at, self._free = now, None
            self._anchor = None if view.use > self._use else self._anchor
            yield Observation.GREW if view.use > self._use else Observation.FELL
        if self._has_waited(view, now, policy):
            yield Observation.WAITED
        self._account(view, now, policy)
        match self.phase:
            case (Shrink(is_expired=False) as shrink) | Resting(Shrink() as shrink) | Growing(_, Shrink() as shrink):
                if now - shrink.at > policy.retry:
                    yield Observation.EXPIRED
                elif view.need > shrink.after:
                    yield Observation.CROWDED
        loss = self.recent.loss(self.recent) if exceeds_limits(self.recent, view.use, policy, 0.5) else 0.0
        self._trend.observe(loss, view.free or NONE, now, policy)
        verdict = self._observation(view, now, policy)
        if verdict is not None:
            yield verdict

    def _has_waited(self, view: MemoryView, now: Instant, policy: CachePolicy) -> bool:
        match self.phase:
            case Reclaiming(size, since):
                return view.use >= min(size, view.maximum) or now - since >= policy.retry
            case Returning(until=until):
                return now >= until
        return False

    def _account(self, view: MemoryView, now: Instant, policy: CachePolicy) -> None:
        """Add the cost since the last view to ``recent`` and to the trial."""
        if self.floor is not None and now - self.floor.at > policy.remember:
            self.floor = None
        cost = view.cost
        # Time without metrics is not evidence.
        if cost is None:
            return
        self.recent = recent(self.recent, cost, policy.recent)
        self._trend.add_read(cost.read)
        match self.phase:
            case Shrink() as shrink:
                self.phase = replace(shrink, cost=shrink.cost + cost.scaled(1.0 - self._filling(view, cost)))
            case Filling() as trial if view.free is not None:
                self.phase = trial.after_interval(cost, view.free, policy)
            case Filled() as trial if view.free is not None:
                self.phase = replace(trial, cost=trial.cost + cost)
        busy_once = self.floor.cores if self.floor is not None else 0.0
        is_idle = self.recent.cores < max(IDLE_CORES, policy.idle_share * busy_once)
        self.idle_since = (self.idle_since or now) if is_idle else None

    def _filling(self, view: MemoryView, cost: Cost) -> float:
        """Share of the rereads that filled unused memory: a resize may evict more than it must."""
        # Only rereads that evict other pages show a lack of memory.
        if not cost.reread or view.free is None or self._free is None:
            return 0.0
        return min(1.0, self._free.minus_or_zero(view.free).value / cost.reread)

    def _observation(self, view: MemoryView, now: Instant, policy: CachePolicy) -> Observation | None:
        match self.phase:
            case Resting(shrunk):
                return self._resting_observation(shrunk, view, now, policy)
            case Shrink() as trial:
                return trial.observation(policy)
            case Growing() | Filling() as trial:
                return trial.observation(self.recent, policy)
            case Filled() as trial:
                return trial.observation(self.recent, view.free or NONE, view.maximum, policy)
        return None

    def _resting_observation(
        self, shrunk: Shrink | None, view: MemoryView, now: Instant, policy: CachePolicy
    ) -> Observation | None:
        """``HURTS``, ``SHORT`` or ``RELIEVED`` outside of a trial; None if nothing changed."""
        # A resize takes a while to show its effects.
        if now - self._changed_at < policy.watch:
            return None
        if not exceeds_limits(self.recent, view.use, policy) or view.free is None:
            blocked = (
                self.failed_growth if self.failed_growth is not None and now < self.failed_growth.retry_at else None
            )
            # A growth that failed more than once stays blocked, because its load recurs.
            is_new = blocked is not None and blocked.tries == 1
            return Observation.RELIEVED if is_new and have_rereads_ended(self.recent, view.use, policy) else None
        # A size below the floor was too small before the shrink as well.
        is_known = self.floor is not None and self.floor.size > view.use
        if shrunk is not None and not is_known and shrunk.is_to_blame(self.recent):
            return Observation.HURTS
        # If the guest rereads but does not fill unused memory, its kernel keeps that memory free.
        is_full = view.free.ratio(view.use) < FULL or not self._trend.is_filling
        may_grow = is_full and not self._is_blocked(view, now) and not self._trend.is_falling
        return Observation.SHORT if may_grow else None

    def _shrink(self, phase: Phase, after: Bytes, now: Instant) -> Shrink:
        """The state after a shrink to ``after`` in ``phase``."""
        before, baseline = self._use or NONE, self.recent
        # A shrink during the watch of another extends it.
        if isinstance(phase, Shrink):
            before, baseline = phase.before, phase.baseline
        self._anchor = self._anchor or baseline
        # The lower of the two: the cost may have crept up over many small steps, each harmless on its own.
        baseline = min(self._anchor, baseline, key=lambda cost: cost.loss(self.recent))
        return Shrink(before, after, now, baseline)

    def _reclaim(self, shrink: Shrink, view: MemoryView, now: Instant, policy: CachePolicy) -> Reclaiming:
        self.floor = floor_after_shrink(self.floor, shrink, self.recent, view, now, policy)
        # A guest that a shrink hurts is not idle.
        self.idle_since = None
        self.recent, self._changed_at = NO_COST, now
        return Reclaiming(shrink.before, now)

    def _reclaim_for_programs(self, shrink: Shrink, view: MemoryView, now: Instant, policy: CachePolicy) -> Reclaiming:
        # Without metrics of unused memory, only the full size before the shrink is known to be enough.
        size = shrink.before if view.free is None else min(shrink.before, view.need.up_to(view.step))
        return self._reclaim(replace(shrink, before=size), view, now, policy)

    def _lower_floor(self, shrink: Shrink, now: Instant, policy: CachePolicy) -> Resting:
        # An idle guest does not prove that less is enough: the floor is for its next load.
        if self.floor is not None and shrink.after < self.floor.size and self.idle_since is None:
            self.floor = self.floor.lowered(shrink.after, now, policy)
        return Resting(None if shrink.is_expired else shrink)

    def _raise_floor(self, growth: Growth, view: MemoryView, now: Instant, policy: CachePolicy) -> Resting:
        self.floor = floor_after_growth(self.floor, growth, self.recent, view, now, policy)
        self.failed_growth = None
        return Resting()

    def _return_to_base(self, trial: Filled, now: Instant, policy: CachePolicy) -> Returning:
        base = trial.growth.base
        self.failed_growth = failed_growth_after(self.failed_growth, trial, now, policy)
        # A floor above the base was wrong, because the base turned out to be just as good.
        self.floor = None if self.floor is None or self.floor.size > base else self.floor
        return Returning(base, self.failed_growth.retry_at)

    def _is_blocked(self, view: MemoryView, now: Instant) -> bool:
        """Return True if the VM is at its maximum, or recently gained nothing from more memory."""
        return view.use >= view.maximum or (self.failed_growth is not None and now < self.failed_growth.retry_at)

    def _held_memory(self, view: MemoryView, now: Instant, policy: CachePolicy) -> Bytes:
        match self.phase:
            case Growing(growth) | Filling(growth) | Filled(growth):
                return growth.wanted
            # An idle guest gives memory back, even if it needed that under load.
            case Reclaiming(size) if not self.is_lifted(now, policy):
                return size
            case Returning(base):
                return base
        # Without refault metrics, shrink as far as the programs allow, until that hurts for the first time.
        if view.free is None and self.floor is None:
            return NONE
        # No shrink below the floor before its ``retry_at``.
        is_open = self.floor is None or now >= self.floor.retry_at or self.is_lifted(now, policy)
        bar = NONE if self.floor is None or is_open else min(self.floor.size, view.use)
        waits = isinstance(self.phase, Shrink) or now - self._changed_at < policy.watch
        if waits or (not self._is_blocked(view, now) and exceeds_limits(self.recent, view.use, policy, 0.5)):
            return view.use if view.cost is None else max(bar, view.use - self._unused(view, policy))
        return max(bar, self._next_smaller(view, policy))

    def _next_smaller(self, view: MemoryView, policy: CachePolicy) -> Bytes:
        """The next smaller size to try: without unused memory if there is any, otherwise with less page cache."""
        unused = self._unused(view, policy)
        if unused:
            return view.use - unused
        share = policy.step if self.idle_since is None else policy.idle_step
        cached = view.cached if view.free is not None else view.use
        step = max(part_of(cached, share), part_of(view.use, LEAST_STEP))
        return min(view.use.minus_or_zero(step).up_to(view.step), view.use.minus_or_zero(view.step))

    def _unused(self, view: MemoryView, policy: CachePolicy) -> Bytes:
        """Unused memory in whole steps, minus what the kernel reserves and what is about to be filled."""
        if view.cost is not None and view.cost.reread:
            return NONE
        fills = part_of(view.use, min(1.0, self.recent.read_rate * policy.watch / max(1, view.use.value)))
        # Taking away memory that the kernel reserves would hurt.
        reserve = max(part_of(view.use, RESERVE), NONE if self.floor is None else self.floor.spare)
        return (view.free or NONE).minus_or_zero(reserve).minus_or_zero(fills).down_to(view.step)

    def _next_larger(self, view: MemoryView, policy: CachePolicy) -> Bytes:
        """The next larger size to try: the known working set, otherwise a step up, small from a size at the floor."""
        needed = self.floor.size if self.floor is not None else NONE
        if needed > view.use:
            return min(view.maximum, needed)
        grown = view.use + part_of(view.use, policy.step if needed == view.use else policy.growth)
        if self.failed_growth is not None:
            # A repeated trial takes one large step, to get a verdict from a single step.
            grown = max(grown, view.use + part_of(view.maximum.minus_or_zero(view.use), REPEATED))
        return view.maximum if grown.ratio(view.maximum) >= NEARLY else grown.up_to(view.step)
