"""OOM kills in the guest: the strongest evidence that a VM has too little memory.

Each sample with new kills calls for one step more than the guest had, and blocks shrinking for a while.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

from agent.core.goal import Part
from agent.core.guest import GuestSample
from agent.core.policy import MemoryPolicy
from protocol.units import Bytes, Instant

MEMORY_KILLS: Final = "memory kills"
"""Name of the part of the goal that comes from OOM kills."""

_MOST: Final = 1_000_000
"""Maximum kills counted per sample: a guest may report any number."""


@dataclass(frozen=True, slots=True)
class Kills:
    """OOM kills so far: ``total`` since the agent started, the last at ``at``. Until ``until`` the VM needs ``need``.

    ``counter`` is the kernel's count since boot; None before the first sample.
    """

    counter: float | None = None
    total: int = 0
    at: Instant | None = None
    need: Bytes = Bytes(0)
    until: Instant = Instant(0.0)

    def new_kills(self, sample: GuestSample, *, is_rebooted: bool) -> int:
        """Number of new kills in ``sample``."""
        before, now = self.counter, sample.oom_kills
        # A reboot resets the kernel's counter, so its value does not show new kills.
        if is_rebooted or before is None or now is None or now <= before:
            return 0
        return int(min(_MOST, now - before))

    def after(self, sample: GuestSample, has: Bytes, now: Instant, policy: MemoryPolicy, *, is_rebooted: bool) -> Kills:
        """Add a sample of a guest that had ``has`` since the sample before."""
        count = self.new_kills(sample, is_rebooted=is_rebooted)
        counter = sample.oom_kills if is_rebooted or sample.oom_kills is not None else self.counter
        if not count:
            return replace(self, counter=counter)
        # One step for any number of kills, so that a lying guest grows its VM by only one step per sample.
        step = has + max(Bytes(1), has.scaled(policy.pressure_step))
        need = max(self.need, step) if now < self.until else step
        return Kills(counter, self.total + count, now, need, Instant(now + policy.kill_hold))

    def needed(self, now: Instant) -> Bytes:
        """Memory that the VM needs at ``now`` because of kills; 0 if none count."""
        return self.need if now < self.until else Bytes(0)

    def part(self, now: Instant) -> Part | None:
        """The need and its reason; None once it has expired."""
        if self.at is None or now >= self.until:
            return None
        ago, left = now - self.at, self.until - now
        return Part(
            MEMORY_KILLS,
            self.need,
            f"{self.total} OOM kills so far, the last {ago:.0f} s ago; no shrink for another {left:.0f} s",
        )
