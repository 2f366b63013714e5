"""Smooths a VM's need into its target size: immediate growth, shrinking only with proof (S0.7).

One pipeline of stages per resource decides the target, up and down. A policy may delay growth of CPU, never of memory.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from math import ceil
from typing import Final

from agent.core.goal import NOTHING
from agent.core.policy import Smoothing
from protocol.kubernetes.objects import Json
from protocol.smoothing.policy import Pipeline
from protocol.smoothing.stage import Sample
from protocol.units import Amount, Bytes, Instant, MilliCpu, Resources, Seconds

RECENT: Final = Seconds(20.0)
"""On a node that is short of room, a VM keeps what it needed within this time."""


@dataclass(slots=True)
class Stabilizer:
    """The smoothing pipelines of one VM and their last result."""

    smoothing: Smoothing
    target: Resources | None = None
    """The target for the last need; None if that is unknown."""
    observed_size: Resources | None = None
    """The VM's size at the last observation; the target proves nothing for a larger size."""
    hold: Resources = NOTHING
    """The size to hold at the last observation, even without a proven need."""
    _cpu: Pipeline = field(init=False)
    _mem: Pipeline = field(init=False)
    _last: Instant | None = None
    _began: Instant | None = None
    _recent: deque[tuple[Instant, Resources]] = field(default_factory=deque)

    def __post_init__(self) -> None:
        self._begin()

    def observe(self, need: Resources | None, has: Resources, now: Instant, hold: Resources = NOTHING) -> None:
        """Feed the need at ``now`` (None: unknown) and the ordered size to the pipelines. ``now`` never decreases.

        ``hold`` (at most the ordered size) is held even without a proven need: see ``Goal.possible``.
        """
        self.hold = hold
        if need is None:
            self.target = None
            return
        # Start over after a gap, because the need in between is unknown.
        if self._last is not None and now - self._last > self.smoothing.max_gap:
            self._begin()
        # The pipelines treat ``hold`` like a need. It never exceeds the ordered size, so it causes no growth.
        need = need.at_least(hold)
        self._last = now
        self._remember(need, now)
        cpu = self._cpu.target(now, Sample(need.cpu.as_cores, has.cpu.as_cores))
        mem = self._mem.target(now, Sample(float(need.mem.value), float(has.mem.value)))
        # Rounded down from floats, the target could be below the need.
        self.target, self.observed_size = Resources(MilliCpu.cores(cpu), Bytes(ceil(mem))), has

    def recent_need(self, now: Instant) -> Resources | None:
        """The maximum need of each resource within the last ``RECENT`` seconds; None if unknown."""
        if self.target is None or self._began is None or now - self._began < RECENT:
            return None
        return Resources.most(need for _, need in self._recent)

    def _remember(self, need: Resources, now: Instant) -> None:
        self._began = now if self._began is None else self._began
        # A need holds until it changes, so keep the last one from before the window.
        if not self._recent or self._recent[-1][1] != need:
            self._recent.append((now, need))
        while len(self._recent) > 1 and now - self._recent[1][0] >= RECENT:
            self._recent.popleft()

    def explain(self) -> str:
        """The target in one line, with the stage that raised it above the need."""
        if self.target is None:
            return "no target: the need is unknown"
        memory = f"{self.target.mem.as_gib:.2f} GiB memory"
        return f"{self.target.cpu} vCPU{self._raised('cpu')} and {memory}{self._raised('memory')}"

    def steps(self) -> list[Json]:
        """The effect of each stage on the last need and its reason, with amounts as text; empty before the first."""
        amounts: tuple[tuple[str, Pipeline, Callable[[float], Amount]], ...] = (
            ("cpu", self._cpu, MilliCpu.cores),
            ("memory", self._mem, lambda size: Bytes(ceil(size))),
        )
        return [
            {
                "resource": resource,
                "stage": step.stage,
                "before": str(amount(step.before)),
                "after": str(amount(step.after)),
                "reason": step.reason,
            }
            for resource, pipeline, amount in amounts
            for step in pipeline.explain()
        ]

    def _begin(self) -> None:
        self._began = None
        self._recent.clear()
        self._cpu, self._mem = self.smoothing.cpu.start(), self.smoothing.memory.start()

    def _raised(self, resource: str) -> str:
        """The stage that raised the need of ``resource`` most, and why; empty if none did."""
        steps = (self._cpu if resource == "cpu" else self._mem).explain()
        most = max(steps, key=lambda step: step.after - step.before, default=None)
        return f" ({most.stage}: {most.reason})" if most is not None and most.after > most.before else ""
