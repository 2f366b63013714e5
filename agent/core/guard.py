"""Who says how far down a VM may go (architecture, decision 7).

Rules that hold here:

- Without proof a guard says nothing, and nothing shrinks. About growing it has a say only by a policy's choice.
- A restart is a new beginning, and so is a gap in which nothing was seen or no need could be told: no proof yet.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from agent.core.policy import ShrinkPolicy
from protocol.smoothing.window import WindowMax
from protocol.units import Bytes, Instant, MilliCpu, Resources


@dataclass(frozen=True, slots=True)
class Step:
    """What one stage of smoothing did to the last need of ``resource``: amounts as texts, and why."""

    resource: str
    stage: str
    before: str
    after: str
    reason: str


class ShrinkGuard(Protocol):
    """Watches what a VM needed over time, and says how low it may go."""

    def observe(self, need: Resources | None, has: Resources, now: Instant) -> None:
        """Takes what is needed at ``now`` (None: cannot be told), and what was ordered. ``now`` never goes back."""

    def growth(self, need: Resources, now: Instant) -> Resources:
        """How far to go for ``need``. Less than it only by a policy's choice, and never for memory."""

    def floor(self, now: Instant) -> Resources | None:
        """The least that is proven to be enough; None while nothing is proven."""

    def explain(self, now: Instant) -> str:
        """One line for people: what is proven, or what is missing."""

    def steps(self) -> tuple[Step, ...]:
        """What each stage did to the last need; empty where there are no stages."""


@dataclass(slots=True)
class WindowGuard:
    """The greatest need of each resource in a full window of time (S0.4)."""

    policy: ShrinkPolicy
    _cpu: WindowMax
    _mem: WindowMax
    _since: Instant | None = None
    _last: Instant | None = None

    @classmethod
    def begin(cls, policy: ShrinkPolicy) -> WindowGuard:
        """A guard that has seen nothing."""
        return cls(policy, WindowMax(policy.window), WindowMax(policy.window))

    def observe(self, need: Resources | None, has: Resources, now: Instant) -> None:  # noqa: ARG002 - needs decide
        """See ``ShrinkGuard``."""
        if need is None:
            return
        if self._last is None or now - self._last > self.policy.max_gap:
            self._cpu.clear()
            self._mem.clear()
            self._since = now
        self._last = now
        self._cpu.add(need.cpu.value, now)
        self._mem.add(need.mem.value, now)

    def growth(self, need: Resources, now: Instant) -> Resources:  # noqa: ARG002 - growing is never delayed
        """The need itself."""
        return need

    def steps(self) -> tuple[Step, ...]:
        """None: a window has no stages."""
        return ()

    def floor(self, now: Instant) -> Resources | None:
        """See ``ShrinkGuard``."""
        cpu, mem = self._cpu.max(), self._mem.max()
        if cpu is None or mem is None or not self._proven(now):
            return None
        return Resources(MilliCpu(int(cpu)), Bytes(int(mem)))

    def explain(self, now: Instant) -> str:
        """See ``ShrinkGuard``."""
        floor = self.floor(now)
        if floor is not None:
            return f"at most {floor.cpu} cpu and {floor.mem.as_gib:.2f} GiB were needed in {self.policy.window:g} s"
        seen = 0.0 if self._since is None else now - self._since
        return f"no proof yet: {min(seen, self.policy.window):.0f} s of {self.policy.window:g} s seen without a gap"

    def _proven(self, now: Instant) -> bool:
        gap = self._last is None or now - self._last > self.policy.max_gap
        return not gap and self._cpu.is_full(now)
