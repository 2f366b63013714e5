"""Processes that the guest's kernel killed for lack of memory: the strongest witness that a VM has too little.

Each look that shows kills asks for one step beyond what the guest had, however many they were, and bars less for a
while.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

from agent.core.goal import Part
from agent.core.guest import GuestSample
from agent.core.policy import MemoryPolicy
from protocol.units import Bytes, Instant

MEMORY_KILLS: Final = "memory kills"
"""The name of the part that kills ask for."""

_MOST: Final = 1_000_000
"""Kills of one look that are counted; a guest may claim any number."""


@dataclass(frozen=True, slots=True)
class Kills:
    """Kills seen so far: ``total`` since the agent began, the last at ``at``. Until ``until`` the VM needs ``need``.

    ``counter`` is what the guest's kernel has counted since boot, None before it was seen.
    """

    counter: float | None = None
    total: int = 0
    at: Instant | None = None
    need: Bytes = Bytes(0)
    until: Instant = Instant(0.0)

    def count(self, sample: GuestSample, *, is_rebooted: bool) -> int:
        """The kills that ``sample`` shows beyond those that are known."""
        before, now = self.counter, sample.oom_kills
        # The counter is the kernel's, since boot. One that fell, or of another boot, begins again and is no kill.
        if is_rebooted or before is None or now is None or now <= before:
            return 0
        return int(min(_MOST, now - before))

    def after(self, sample: GuestSample, has: Bytes, now: Instant, policy: MemoryPolicy, *, is_rebooted: bool) -> Kills:
        """These kills with one more look at a guest that had ``has`` since the look before."""
        count = self.count(sample, is_rebooted=is_rebooted)
        counter = sample.oom_kills if is_rebooted or sample.oom_kills is not None else self.counter
        if not count:
            return replace(self, counter=counter)
        # One step for any number of kills: a guest that lies about them moves its own VM alone, a step for each look.
        step = has + max(Bytes(1), has.scaled(policy.pressure_step))
        need = max(self.need, step) if now < self.until else step
        return Kills(counter, self.total + count, now, need, Instant(now + policy.kill_hold))

    def needed(self, now: Instant) -> Bytes:
        """The memory that the VM needs at ``now`` because of kills."""
        return self.need if now < self.until else Bytes(0)

    def part(self, now: Instant) -> Part | None:
        """The need with its reason; None if no kill counts any more."""
        if self.at is None or now >= self.until:
            return None
        ago, left = now - self.at, self.until - now
        return Part(
            MEMORY_KILLS,
            self.need,
            f"{self.total} processes killed for lack of memory so far, the last {ago:.0f} s ago; "
            f"no less for another {left:.0f} s",
        )
