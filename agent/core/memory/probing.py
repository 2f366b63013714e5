"""Probing: which memory the page cache needs is found by trials, downwards and upwards (B.16).

    Shrink ── HARMLESS, GREW ──►┌─────────┐── SHORT ──► Growing ── GREW ──► Filling ── full ──► Filled
      │  ▲                      │         │              │ ▲                   │                │ │ │
      │  └─────── FELL ─────────│ Resting │◄─ RELIEVED ──┘ └───────────────────┼── TOO_SMALL ───┘ │ │
      │ HURTS, CROWDED          │         │◄─ HELPS ───────────────────────────┴──────────────────┘ │
      ▼                         │         │                                                 USELESS │
    Reclaiming ── WAITED ──────►└─────────┘◄─ WAITED, FELL, GREW ── Returning ◄─────────────────────┘

FELL leads to Shrink from every state but Returning. Resting and Growing remember the last shrink until it is EXPIRED,
and lead to Reclaiming like Shrink if that is to blame. ``Probing._next`` is the table.
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
    is_over,
    suffers,
)
from agent.core.memory.working_set import (
    Fruitless,
    WorkingSetFloor,
    floor_of_gain,
    floor_of_harm,
    fruitless_of,
    part_of,
)
from agent.core.policy import CachePolicy
from protocol.units import Bytes, Instant

LEAST_STEP: Final = 0.04
"""A smaller share of the memory is not worth a resize."""

RESERVE: Final = 0.08
"""The kernel keeps at least about this share of the memory unused for itself."""

REPEATED: Final = 0.25
"""A trial that is repeated goes this share of the way to all that the VM may have: enough for a verdict at once."""

NEARLY: Final = 0.85
"""A growth that reaches this share of the maximum goes all the way."""


@dataclass(slots=True)
class Probing:
    """The state of the trials with one VM's memory, and what earlier ones taught."""

    keep: Bytes = NONE
    """The least memory that the VM is to have; if that is above what it has, it grows."""
    floor: WorkingSetFloor | None = None
    fruitless: Fruitless | None = None
    phase: Phase = RESTING
    recent: Cost = NO_COST
    """The cost of the last minute or so."""
    idle_since: Instant | None = None
    _use: Bytes | None = None
    _free: Bytes | None = None
    """Unused memory at the last view, if the size is still the same."""
    _changed_at: Instant = Instant(0.0)
    """The time of the last resize, or of the harm of one."""
    _anchor: Cost | None = None
    """The cost before the first shrink since the last growth: many small steps may hurt together."""
    _trend: Trend = field(default_factory=Trend)

    def observe(self, view: MemoryView, now: Instant, policy: CachePolicy) -> None:
        """Apply one view of the VM's memory. ``now`` never goes back."""
        for observation in self._observations(view, now, policy):
            self.phase = self._next(observation, view, now, policy)
        self._use, self._free, self.keep = view.use, view.free, self._kept(view, now, policy)

    def is_lifted(self, now: Instant, policy: CachePolicy) -> bool:
        """Return True if the guest has been idle for ``idle_after``: then nothing that was learned bars a shrink."""
        return self.idle_since is not None and now - self.idle_since >= policy.idle_after

    def is_refilling(self, now: Instant, policy: CachePolicy) -> bool:
        """Return True while memory that was given back is being refilled: tasks that wait for it need no more."""
        return self.floor is not None and now - self.floor.at < policy.watch

    def _next(  # noqa: PLR0911, PLR0912 - the whole table
        self, observation: Observation, view: MemoryView, now: Instant, policy: CachePolicy
    ) -> Phase:
        """The state that follows ``observation``; its lesson goes into ``floor`` and ``fruitless``."""
        match self.phase, observation:
            # The VM got at least a part of the growth, which is judged by what it got.
            case Growing(growth) | Filling(growth) | Filled(growth), Observation.GREW:
                return Filling(growth, view.use)
            # Growth that no trial asked for ends the doubt about a shrink, and the way back from a growth.
            case Resting() | Shrink() | Returning(), Observation.GREW:
                return Resting()
            # This shrink takes a fruitless growth back; it is no trial of less.
            case Returning(), Observation.FELL:
                return Resting()
            # Whoever ordered it, and whatever was tried before: less memory may hurt.
            case phase, Observation.FELL:
                return self._shrink(phase, view.use, now)
            # The claim was granted, or the time for it or for the return is over: both bar every other trial.
            case Reclaiming() | Returning(), Observation.WAITED:
                return Resting()
            # Metrics were missing for long, so the watch goes on.
            case Shrink() as shrink, Observation.EXPIRED:
                return replace(shrink, is_expired=True)
            # What goes wrong so late has another cause.
            case Resting(), Observation.EXPIRED:
                return Resting()
            case Growing(growth), Observation.EXPIRED:
                return Growing(growth)
            # Programs need more soon after the shrink. A guest that shows what it uses needs no more than that; of
            # another it is only known that all of it sufficed.
            case (
                (Shrink() as shrink) | Resting(Shrink() as shrink) | Growing(_, Shrink() as shrink),
                Observation.CROWDED,
            ):
                size = shrink.before if view.free is None else min(shrink.before, view.need.up_to(view.step))
                return self._reclaim(replace(shrink, before=size), view, now, policy)
            # Also from Resting: a shrink may do its harm only after its watch.
            case (Shrink() as shrink) | Resting(Shrink() as shrink), Observation.HURTS:
                return self._reclaim(shrink, view, now, policy)
            # Less was enough, which an idle guest does not prove: the floor is for when it works again.
            case Shrink() as shrink, Observation.HARMLESS:
                if self.floor is not None and shrink.after < self.floor.size and self.idle_since is None:
                    self.floor = self.floor.lowered(shrink.after, now, policy)
                return Resting(None if shrink.is_expired else shrink)
            case Resting(shrunk), Observation.SHORT:
                return Growing(Growth(view.use, self._grown(view, policy), self.recent), shrunk)
            # A first scan that has ended says nothing about the next load.
            case Resting() as phase, Observation.RELIEVED:
                self.fruitless = self.fruitless and replace(self.fruitless, retry_at=now)
                return phase
            # The rereading has ended before the growth came.
            case Growing(_, shrunk), Observation.RELIEVED:
                return Resting(shrunk)
            # If the guest still suffers, the next step follows from Resting.
            case Filling(growth) | Filled(growth), Observation.HELPS:
                self.floor = floor_of_gain(self.floor, growth, self.recent, view, now, policy)
                self.fruitless = None
                return Resting()
            # The steps so far count as one growth, from the same size and compared with the same cost.
            case Filled(growth), Observation.TOO_SMALL:
                return Growing(replace(growth, wanted=self._grown(view, policy)))
            # A floor above the size that proved to be as good was wrong.
            case Filled(growth) as trial, Observation.USELESS:
                self.fruitless = fruitless_of(self.fruitless, trial, now, policy)
                self.floor = None if self.floor is None or self.floor.size > growth.base else self.floor
                return Returning(growth.base, self.fruitless.retry_at)
            # Reclaiming, GREW: this may be a part of the claim; WAITED follows if it is all.
            case _:
                return self.phase

    def _observations(self, view: MemoryView, now: Instant, policy: CachePolicy) -> Iterator[Observation]:
        """The observations of one view, in order: each is made in the state to which the one before has led."""
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
        loss = self.recent.loss(self.recent) if suffers(self.recent, view.use, policy, 0.5) else 0.0
        self._trend.sees(loss, view.free or NONE, now, policy)
        verdict = self._verdict(view, now, policy)
        if verdict is not None:
            yield verdict

    def _has_waited(self, view: MemoryView, now: Instant, policy: CachePolicy) -> bool:
        match self.phase:
            case Reclaiming(size, since):
                return view.use >= min(size, view.most) or now - since >= policy.retry
            case Returning(until=until):
                return now >= until
        return False

    def _account(self, view: MemoryView, now: Instant, policy: CachePolicy) -> None:
        """Add the cost of the time since the last view to ``recent`` and to the trial."""
        if self.floor is not None and now - self.floor.at > policy.remember:
            self.floor = None
        cost = view.cost
        # Time that the metrics do not cover proves nothing.
        if cost is None:
            return
        self.recent = recent(self.recent, cost, policy.recent)
        self._trend.reads(cost.read)
        match self.phase:
            case Shrink() as shrink:
                self.phase = replace(shrink, cost=shrink.cost + cost.times(1.0 - self._filling(view, cost)))
            case Filling() as trial if view.free is not None:
                self.phase = trial.spend(cost, view.free, policy)
            case Filled() as trial if view.free is not None:
                self.phase = replace(trial, cost=trial.cost + cost)
        busy_once = self.floor.cores if self.floor is not None else 0.0
        is_idle = self.recent.cores < max(IDLE_CORES, policy.idle_share * busy_once)
        self.idle_since = (self.idle_since or now) if is_idle else None

    def _filling(self, view: MemoryView, cost: Cost) -> float:
        """The share of the rereading that filled unused memory: a resize may throw out more than it must."""
        # Only rereading that displaces something else shows a lack of memory.
        if not cost.reread or view.free is None or self._free is None:
            return 0.0
        return min(1.0, self._free.minus_or_zero(view.free).value / cost.reread)

    def _verdict(self, view: MemoryView, now: Instant, policy: CachePolicy) -> Observation | None:
        match self.phase:
            case Resting(shrunk):
                return self._lack(shrunk, view, now, policy)
            case Shrink() as trial:
                return trial.verdict(policy)
            case Growing() | Filling() as trial:
                return trial.verdict(self.recent, policy)
            case Filled() as trial:
                return trial.verdict(self.recent, view.free or NONE, view.most, policy)
        return None

    def _lack(self, shrunk: Shrink | None, view: MemoryView, now: Instant, policy: CachePolicy) -> Observation | None:
        """The lack of memory that a guest shows without a trial, or its end."""
        # The effects of a resize take a while to show.
        if now - self._changed_at < policy.watch:
            return None
        if not suffers(self.recent, view.use, policy) or view.free is None:
            barred = self.fruitless if self.fruitless is not None and now < self.fruitless.retry_at else None
            # A growth that failed more than once stays barred: its load ends and comes back.
            is_new = barred is not None and barred.tries == 1
            return Observation.RELIEVED if is_new and is_over(self.recent, view.use, policy) else None
        # A size that is known to be too small was too small before the shrink as well.
        is_known = self.floor is not None and self.floor.size > view.use
        if shrunk is not None and not is_known and shrunk.is_to_blame(self.recent):
            return Observation.HURTS
        # Unused memory that the guest does not fill although it rereads is kept free by its kernel.
        is_full = view.free.ratio(view.use) < FULL or not self._trend.is_filling
        may_grow = is_full and not self._is_barred(view, now) and not self._trend.is_falling
        return Observation.SHORT if may_grow else None

    def _shrink(self, phase: Phase, after: Bytes, now: Instant) -> Shrink:
        """The trial of less than before, which began in ``phase``."""
        before, baseline = self._use or NONE, self.recent
        # A shrink on top of one that is still watched counts as one with it.
        if isinstance(phase, Shrink):
            before, baseline = phase.before, phase.baseline
        self._anchor = self._anchor or baseline
        # The cheaper of the two: the cost may have crept up over many small steps, each harmless by itself.
        baseline = min(self._anchor, baseline, key=lambda cost: cost.loss(self.recent))
        return Shrink(before, after, now, baseline)

    def _reclaim(self, shrink: Shrink, view: MemoryView, now: Instant, policy: CachePolicy) -> Reclaiming:
        self.floor = floor_of_harm(self.floor, shrink, self.recent, view, now, policy)
        # A guest that a shrink hurts is at work, however little.
        self.idle_since = None
        self.recent, self._changed_at = NO_COST, now
        return Reclaiming(shrink.before, now)

    def _is_barred(self, view: MemoryView, now: Instant) -> bool:
        """Return True if the VM is at its maximum, or more memory did not help recently."""
        return view.use >= view.most or (self.fruitless is not None and now < self.fruitless.retry_at)

    def _kept(self, view: MemoryView, now: Instant, policy: CachePolicy) -> Bytes:
        match self.phase:
            case Growing(growth) | Filling(growth) | Filled(growth):
                return growth.wanted
            # An idle guest gives memory back, whatever it needed at work.
            case Reclaiming(size) if not self.is_lifted(now, policy):
                return size
            case Returning(base):
                return base
        # A guest that does not show what it rereads shrinks as far as its programs allow, until that first hurts.
        if view.free is None and self.floor is None:
            return NONE
        # Below a floor no shrink is tried until its time has come.
        is_open = self.floor is None or now >= self.floor.retry_at or self.is_lifted(now, policy)
        bar = NONE if self.floor is None or is_open else min(self.floor.size, view.use)
        waits = isinstance(self.phase, Shrink) or now - self._changed_at < policy.watch
        if waits or (not self._is_barred(view, now) and suffers(self.recent, view.use, policy, 0.5)):
            return view.use if view.cost is None else max(bar, view.use - self._unused(view, policy))
        return max(bar, self._lower(view, policy))

    def _lower(self, view: MemoryView, policy: CachePolicy) -> Bytes:
        """One step down: without what holds nothing; otherwise without a part of what holds page cache."""
        unused = self._unused(view, policy)
        if unused:
            return view.use - unused
        share = policy.step if self.idle_since is None else policy.idle_step
        cached = view.cached if view.free is not None else view.use
        step = max(part_of(cached, share), part_of(view.use, LEAST_STEP))
        return min(view.use.minus_or_zero(step).up_to(view.step), view.use.minus_or_zero(view.step))

    def _unused(self, view: MemoryView, policy: CachePolicy) -> Bytes:
        """Whole steps that hold nothing, are not kept free by the kernel, and are not about to be filled."""
        if view.cost is not None and view.cost.reread:
            return NONE
        fills = part_of(view.use, min(1.0, self.recent.read_rate * policy.watch / max(1, view.use.value)))
        # The kernel keeps some memory free although the guest rereads; giving that back would hurt.
        reserve = max(part_of(view.use, RESERVE), NONE if self.floor is None else self.floor.spare)
        return (view.free or NONE).minus_or_zero(reserve).minus_or_zero(fills).down_to(view.step)

    def _grown(self, view: MemoryView, policy: CachePolicy) -> Bytes:
        """The next size to try: the known working set, or else a step up; from a size known to suffice, a small one."""
        needed = self.floor.size if self.floor is not None else NONE
        if needed > view.use:
            return min(view.most, needed)
        grown = view.use + part_of(view.use, policy.step if needed == view.use else policy.growth)
        if self.fruitless is not None:
            # A trial that is repeated comes in one step, so that it gets a verdict at once.
            grown = max(grown, view.use + part_of(view.most.minus_or_zero(view.use), REPEATED))
        return view.most if grown.ratio(view.most) >= NEARLY else grown.up_to(view.step)
