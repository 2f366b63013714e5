"""Memory that a VM keeps for its page cache: probing downwards, and growing where that pays (B.16).

Rules that hold here:

- What programs do not use is page cache, and may be the working set of a database. It is taken away in small steps, and
  the guest's answer is awaited after each. Memory that holds nothing is given back at once.
- A shrink that hurt is taken back at once, remembered, and tried again after hours; an idle guest gives all back.
- Growth for the cache is a trial too: what does not help is given back, and not repeated for hours.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Final

from agent.core.memory.memory_view import NONE, MemoryView
from agent.core.memory.rereading import IDLE_CORES, NO_COST, Cost, recent
from agent.core.memory.trend import Trend
from agent.core.memory.trials import FULL, Growth, Shrink, TrialVerdict, suffers
from agent.core.memory.working_set import Fruitless, WorkingSetFloor, next_try, tries_before
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
    """The trial under way with one VM's memory, and what earlier ones taught."""

    keep: Bytes = NONE
    """The least memory that the VM is to have; if that is above what it has, it grows."""
    floor: WorkingSetFloor | None = None
    fruitless: Fruitless | None = None
    trial: Shrink | Growth | None = None
    recent: Cost = NO_COST
    """The cost of the last minute or so."""
    idle_since: Instant | None = None
    shrunk: Shrink | None = None
    """The last shrink, while it may still turn out to have been wrong."""
    _use: Bytes | None = None
    _free: Bytes | None = None
    """Unused memory at the last view, if the size is still the same."""
    _changed_at: Instant = Instant(0.0)
    _claim: Bytes | None = None
    """The size to ask back after a shrink that hurt, for a while at most."""
    _claimed_at: Instant = Instant(0.0)
    _returning: bool = False
    _anchor: Cost | None = None
    """The cost before the first shrink since the last growth: many small steps may hurt together."""
    _trend: Trend = field(default_factory=Trend)

    def observe(self, view: MemoryView, now: Instant, policy: CachePolicy) -> None:
        """Apply one view of the VM's memory. ``now`` never goes back."""
        self._resized(view, now)
        self._end_waits(view, now, policy)
        self._account(view, now, policy)
        self._regret(view, now, policy)
        self._trend.sees(self._loss(view, policy), view.free or NONE, now, policy)
        if isinstance(self.trial, Shrink):
            self._judge_shrink(self.trial, view, now, policy)
        elif isinstance(self.trial, Growth):
            self._judge_growth(self.trial, view, now, policy)
        else:
            self._rest(view, now, policy)
        self.keep, self._free = self._kept(view, now, policy), view.free

    def is_lifted(self, now: Instant, policy: CachePolicy) -> bool:
        """Return True if the guest has been idle for ``idle_after``: then nothing that was learned bars a shrink."""
        return self.idle_since is not None and now - self.idle_since >= policy.idle_after

    def is_refilling(self, now: Instant, policy: CachePolicy) -> bool:
        """Return True while memory that was given back is being refilled: tasks that wait for it need no more."""
        return self.floor is not None and now - self.floor.at < policy.watch

    def _resized(self, view: MemoryView, now: Instant) -> None:
        before, self._use = self._use, view.use
        if before is None or before == view.use:
            self._changed_at = now if before is None else self._changed_at
            return
        self._changed_at, self._free = now, None
        if view.use > before:
            self._grew(view)
        # This shrink takes a fruitless growth back; it is no trial of less.
        elif self._returning:
            self.trial, self._returning = None, False
        else:
            self._fell(before, view.use, now)

    def _grew(self, view: MemoryView) -> None:
        self._anchor, self._returning = None, False
        self.trial = self.trial.got(view.use) if isinstance(self.trial, Growth) else None

    def _end_waits(self, view: MemoryView, now: Instant, policy: CachePolicy) -> None:
        """Give up a claim that is not granted, or a return that cannot end: both bar every other trial."""
        if self._claim is not None:
            is_granted = view.use >= min(self._claim, view.most)
            self._claim = None if is_granted or now - self._claimed_at >= policy.retry else self._claim
        self._returning = self._returning and self.fruitless is not None and now < self.fruitless.retry_at

    def _fell(self, before: Bytes, after: Bytes, now: Instant) -> None:
        """Begin the trial of a shrink."""
        # A shrink on top of one that is still watched counts as one with it.
        earlier = self.trial if isinstance(self.trial, Shrink) else None
        self._claim = None
        self.trial = self.shrunk = Shrink(
            before=before if earlier is None else earlier.before,
            after=after,
            at=now,
            baseline=self.recent if earlier is None else earlier.baseline,
        )
        if self._anchor is None:
            self._anchor = self.trial.baseline
        # The cheaper of the two: the cost may have crept up over many small steps, each harmless by itself.
        self.trial.baseline = min(self._anchor, self.trial.baseline, key=lambda cost: cost.loss(self.recent))

    def _account(self, view: MemoryView, now: Instant, policy: CachePolicy) -> None:
        if self.floor is not None and now - self.floor.at > policy.remember:
            self.floor = None
        cost = view.cost
        # Time that the metrics do not cover proves nothing.
        if cost is None:
            return
        self.recent = recent(self.recent, cost, policy.recent)
        self._trend.reads(cost.read)
        if isinstance(self.trial, Shrink):
            self.trial.cost += cost.times(1.0 - self._filling(view, cost))
        elif isinstance(self.trial, Growth) and view.free is not None:
            self.trial.sees(cost, view.free, policy)
        busy_once = self.floor.cores if self.floor is not None else 0.0
        is_idle = self.recent.cores < max(IDLE_CORES, policy.idle_share * busy_once)
        self.idle_since = (self.idle_since or now) if is_idle else None

    def _filling(self, view: MemoryView, cost: Cost) -> float:
        """The share of the rereading that filled unused memory: a resize may throw out more than it must.

        Only rereading that displaces something else shows a lack of memory.
        """
        if not cost.reread or view.free is None or self._free is None:
            return 0.0
        return min(1.0, self._free.minus_or_zero(view.free).value / cost.reread)

    def _regret(self, view: MemoryView, now: Instant, policy: CachePolicy) -> None:
        """Take a shrink back if soon after it programs need more than is left."""
        shrunk = self.shrunk
        if shrunk is None:
            return
        if now - shrunk.at > policy.retry or view.use > shrunk.after:
            self.shrunk = None
        elif view.need > shrunk.after:
            # A guest that shows what it uses needs no more than that; of another it is only known that all of it
            # sufficed.
            needed = shrunk.before if view.free is None else min(shrunk.before, view.need.up_to(view.step))
            self._hurt(replace(shrunk, before=needed), view, now, policy)

    def _hurt(self, shrunk: Shrink, view: MemoryView, now: Instant, policy: CachePolicy) -> None:
        """Take the shrink back, and learn from it."""
        floor, tries = self.floor, tries_before(self.floor, now, policy.remember) + 1
        cost = shrunk.cost if shrunk.cost.seconds else self.recent
        cores, retry_at = max(shrunk.baseline.cores, cost.cores), next_try(tries, now, policy)
        spare = view.free if cost.reread and view.free is not None else NONE
        # A greater floor, from before the guest was idle, stays.
        if floor is None or floor.size <= shrunk.before:
            self.floor = WorkingSetFloor(shrunk.before, shrunk.after, now, tries, retry_at, cost, cores, spare)
        else:
            self.floor = replace(floor, tries=tries, retry_at=retry_at, cores=min(floor.cores, cores), spare=spare)
        # A guest that a shrink hurts is at work, however little.
        self.idle_since = None
        self._claim, self.trial, self.shrunk, self.recent = shrunk.before, None, None, NO_COST
        self._claimed_at = self._changed_at = now

    def _judge_shrink(self, trial: Shrink, view: MemoryView, now: Instant, policy: CachePolicy) -> None:
        verdict = trial.verdict(policy)
        if verdict is TrialVerdict.BAD:
            self._hurt(trial, view, now, policy)
        elif verdict is TrialVerdict.GOOD:
            self.trial = None
            if self.floor is not None and trial.after < self.floor.size and self.idle_since is None:
                self.floor = self._lowered(self.floor, trial.after, now, policy)

    def _lowered(self, floor: WorkingSetFloor, size: Bytes, now: Instant, policy: CachePolicy) -> WorkingSetFloor:
        """The floor after less than it has proven to be enough."""
        # A next step that would reach the size that once hurt waits as long as after that.
        is_near = _part(size, 1 - policy.step) <= floor.hurt
        return replace(floor, size=size, tries=0, retry_at=next_try(1, now, policy) if is_near else floor.retry_at)

    def _judge_growth(self, trial: Growth, view: MemoryView, now: Instant, policy: CachePolicy) -> None:
        free = view.free or NONE
        verdict = trial.verdict(self.recent, free, view.most, policy)
        if verdict is TrialVerdict.OPEN:
            return
        self.trial = None
        if trial.size is None:
            return
        if verdict is TrialVerdict.GO_ON:
            self.trial = Growth(trial.base, self._grown(view, policy), trial.baseline)
        elif verdict is TrialVerdict.GOOD:
            self._pays(trial, view, now, policy)
        else:
            self._is_fruitless(trial, now, policy)

    def _pays(self, trial: Growth, view: MemoryView, now: Instant, policy: CachePolicy) -> None:
        """Learn that the size before the growth was too little. If the guest still suffers, the next step follows."""
        needed = self.floor.size if self.floor is not None else NONE
        was_wrong = needed == trial.base
        tries = max(1, tries_before(self.floor, now, policy.remember)) if was_wrong else 1
        self.floor = WorkingSetFloor(
            size=view.use if was_wrong else max(needed, min(view.use, trial.base + view.step)),
            hurt=trial.base,
            at=now,
            tries=tries,
            retry_at=next_try(tries, now, policy),
            cost=trial.baseline,
            cores=max(trial.baseline.cores, self.recent.cores),
            spare=NONE if self.floor is None else self.floor.spare,
        )
        self.fruitless, self.shrunk = None, None

    def _is_fruitless(self, trial: Growth, now: Instant, policy: CachePolicy) -> None:
        tries = tries_before(self.fruitless, now, policy.remember) + 1
        self.fruitless = Fruitless(
            base=trial.base,
            tried=trial.size or trial.wanted,
            at=now,
            tries=tries,
            retry_at=next_try(tries, now, policy),
            fell=trial.fell,
        )
        if self.floor is not None and self.floor.size > trial.base:
            self.floor = None
        self._returning = True

    def _rest(self, view: MemoryView, now: Instant, policy: CachePolicy) -> None:
        if self._returning or self._claim is not None or now - self._changed_at < policy.watch:
            return
        if not suffers(self.recent, view.use, policy) or view.free is None:
            self._calm(view, now, policy)
        elif self.shrunk is not None and self._is_late_hurt(self.shrunk, view):
            self._hurt(self.shrunk, view, now, policy)
        elif self._may_grow(view, now) and not self._trend.is_falling:
            self.trial = Growth(view.use, self._grown(view, policy), self.recent)

    def _is_late_hurt(self, shrunk: Shrink, view: MemoryView) -> bool:
        """Return True if the last shrink is to blame although it did no harm while it was watched."""
        is_known = self.floor is not None and self.floor.size > view.use
        return not is_known and shrunk.is_to_blame(self.recent)

    def _loss(self, view: MemoryView, policy: CachePolicy) -> float:
        return self.recent.loss(self.recent) if suffers(self.recent, view.use, policy, 0.5) else 0.0

    def _calm(self, view: MemoryView, now: Instant, policy: CachePolicy) -> None:
        """Lift the bar of a single fruitless growth once the rereading has ended."""
        learned = self.fruitless
        # A first scan that has ended says nothing about the next load.
        is_over = self.recent.seconds >= policy.watch / 6 and not suffers(self.recent, view.use, policy, 0.5)
        if learned is not None and learned.tries == 1 and is_over and now < learned.retry_at:
            self.fruitless = replace(learned, retry_at=now)

    def _may_grow(self, view: MemoryView, now: Instant) -> bool:
        """Return True if the memory is full and a growth is not barred."""
        # Unused memory that the guest does not fill although it rereads is kept free by its kernel.
        is_full = view.free is not None and (view.free.ratio(view.use) < FULL or not self._trend.is_filling)
        return is_full and not self._is_barred(view, now)

    def _is_barred(self, view: MemoryView, now: Instant) -> bool:
        """Return True if the VM is at its maximum, or more memory did not help recently."""
        return view.use >= view.most or (self.fruitless is not None and now < self.fruitless.retry_at)

    def _kept(self, view: MemoryView, now: Instant, policy: CachePolicy) -> Bytes:
        if isinstance(self.trial, Growth):
            return self.trial.wanted
        if self._claim is not None and not self.is_lifted(now, policy):
            return self._claim
        if self._returning and self.fruitless is not None:
            return self.fruitless.base
        # A guest that does not show what it rereads shrinks as far as its programs allow, until that first hurts.
        if view.free is None and self.floor is None:
            return NONE
        bar = min(self._bar(now, policy), view.use)
        waits = self.trial is not None or now - self._changed_at < policy.watch
        if waits or (not self._is_barred(view, now) and suffers(self.recent, view.use, policy, 0.5)):
            return view.use if view.cost is None else max(bar, view.use - self._unused(view, policy))
        return max(bar, self._lower(view, policy))

    def _bar(self, now: Instant, policy: CachePolicy) -> Bytes:
        """Below this no shrink is tried now."""
        floor = self.floor
        return NONE if floor is None or now >= floor.retry_at or self.is_lifted(now, policy) else floor.size

    def _lower(self, view: MemoryView, policy: CachePolicy) -> Bytes:
        """One step down: without what holds nothing; otherwise without a part of what holds page cache."""
        unused = self._unused(view, policy)
        if unused:
            return view.use - unused
        share = policy.step if self.idle_since is None else policy.idle_step
        cached = view.cached if view.free is not None else view.use
        step = max(_part(cached, share), _part(view.use, LEAST_STEP))
        return min(view.use.minus_or_zero(step).up_to(view.step), view.use.minus_or_zero(view.step))

    def _unused(self, view: MemoryView, policy: CachePolicy) -> Bytes:
        """Whole steps that hold nothing, are not kept free by the kernel, and are not about to be filled."""
        if view.cost is not None and view.cost.reread:
            return NONE
        fills = _part(view.use, min(1.0, self.recent.read_rate * policy.watch / max(1, view.use.value)))
        # The kernel keeps some memory free although the guest rereads; giving that back would hurt.
        reserve = max(_part(view.use, RESERVE), NONE if self.floor is None else self.floor.spare)
        return (view.free or NONE).minus_or_zero(reserve).minus_or_zero(fills).down_to(view.step)

    def _grown(self, view: MemoryView, policy: CachePolicy) -> Bytes:
        """The next size to try: the known working set, or else a step up; from a size known to suffice, a small one."""
        needed = self.floor.size if self.floor is not None else NONE
        if needed > view.use:
            return min(view.most, needed)
        grown = view.use + _part(view.use, policy.step if needed == view.use else policy.growth)
        if self.fruitless is not None:
            # A trial that is repeated comes in one step, so that it gets a verdict at once.
            grown = max(grown, view.use + _part(view.most.minus_or_zero(view.use), REPEATED))
        return view.most if grown.ratio(view.most) >= NEARLY else grown.up_to(view.step)


def _part(amount: Bytes, share: float) -> Bytes:
    """``amount`` times ``share`` (>= 0), to the byte or so: exact shares cost more than the rest of a look."""
    return Bytes(int(amount.value * share))
