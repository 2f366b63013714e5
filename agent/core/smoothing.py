"""A guard made of smoothing policies: one pipeline of stages for CPU, one for memory (S0.7).

Rules that hold here:

- A pipeline says the whole target, up and down. Where it holds what there is, that is the floor.
- Memory that is needed is given at once, whatever the last target was.
- After a gap the pipelines begin anew: what they remember proves nothing about now.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from math import ceil

from agent.core.guard import ShrinkGuard, Step, WindowGuard
from agent.core.policy import Policy, Smoothing
from protocol.smoothing.policy import Pipeline
from protocol.smoothing.stage import Sample
from protocol.units import Bytes, Instant, MilliCpu, Resources, Seconds


def begin_guard(policy: Policy) -> ShrinkGuard:
    """The guard that ``policy`` asks for; it has seen nothing."""
    if policy.smoothing is None:
        return WindowGuard.begin(policy.shrink)
    return PipelineGuard(policy.smoothing, policy.shrink.max_gap)


@dataclass(slots=True)
class PipelineGuard:
    """Two pipelines and what they said last."""

    smoothing: Smoothing
    max_gap: Seconds
    _cpu: Pipeline = field(init=False)
    _mem: Pipeline = field(init=False)
    _target: Resources | None = None
    _last: Instant | None = None

    def __post_init__(self) -> None:
        self._cpu, self._mem = self.smoothing.cpu.start(), self.smoothing.memory.start()

    def observe(self, need: Resources | None, has: Resources, now: Instant) -> None:
        """See ``ShrinkGuard``."""
        if need is None:
            return
        if self._last is not None and now - self._last > self.max_gap:
            self._cpu, self._mem = self.smoothing.cpu.start(), self.smoothing.memory.start()
        self._last = now
        cpu = self._cpu.target(now, Sample(need.cpu.as_cores, has.cpu.as_cores))
        mem = self._mem.target(now, Sample(float(need.mem.value), float(has.mem.value)))
        self._target = Resources(_milli(cpu), Bytes(ceil(mem)))

    def growth(self, need: Resources, now: Instant) -> Resources:
        """The target for CPU; for memory no less than the need."""
        target = self.floor(now)
        return need if target is None else Resources(target.cpu, max(target.mem, need.mem))

    def floor(self, now: Instant) -> Resources | None:
        """See ``ShrinkGuard``."""
        fresh = self._last is not None and now - self._last <= self.max_gap
        return self._target if fresh else None

    def explain(self, now: Instant) -> str:
        """See ``ShrinkGuard``."""
        target = self.floor(now)
        if target is None:
            return "no proof yet: the policy has seen no need, or none for too long"
        return f"the policy says {target.cpu} cpu and {target.mem.as_gib:.2f} GiB"

    def steps(self) -> tuple[Step, ...]:
        """See ``ShrinkGuard``."""
        cpu = [
            Step("cpu", step.stage, str(_milli(step.before)), str(_milli(step.after)), step.reason)
            for step in self._cpu.explain()
        ]
        mem = [
            Step("memory", step.stage, str(Bytes(ceil(step.before))), str(Bytes(ceil(step.after))), step.reason)
            for step in self._mem.explain()
        ]
        return (*cpu, *mem)


def _milli(cores: float) -> MilliCpu:
    """Rounded up to the thousandth, but not for the sake of a float's last digit: what is held stays what it is."""
    return MilliCpu(ceil(round(cores * 1000, 6)))
