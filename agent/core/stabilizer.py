"""From a VM's need to its target size by the smoothing policies: growth at once, shrinking with proof (S0.7).

For each resource a pipeline of stages decides the target, up and down. While it holds the present size, nothing
shrinks. Only a policy's choice delays growth, and never that of memory.
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
from protocol.smoothing.stage import UNSTEADY, Sample
from protocol.units import Amount, Bytes, Instant, MilliCpu, Resources, Seconds

RECENT: Final = Seconds(20.0)
"""A VM whose node is short keeps what it needed within this time."""


@dataclass(slots=True)
class Stabilizer:
    """The smoothing pipelines of one VM, and their last result."""

    smoothing: Smoothing
    target: Resources | None = None
    """The size for the last need; None if that was unknown, and before the first."""
    asked_with: Resources | None = None
    """The VM's size at the last observation: only for this size or a smaller one does the target prove anything."""
    kept: Resources = NOTHING
    """The size that the pipelines were last asked to hold, needed or not."""
    _cpu: Pipeline = field(init=False)
    _mem: Pipeline = field(init=False)
    _last: Instant | None = None
    _wanted: Resources = NOTHING
    _steady_until: Instant = UNSTEADY
    """The time before which looks that repeat the last one change nothing."""
    _has_skipped: bool = False
    _began: Instant | None = None
    _recent: deque[tuple[Instant, Resources]] = field(default_factory=deque)

    def __post_init__(self) -> None:
        self._begin()

    def observe(self, need: Resources | None, has: Resources, now: Instant, kept: Resources = NOTHING) -> None:
        """Feed the need at ``now`` (None: unknown) and the ordered size to the pipelines. ``now`` never goes back.

        ``kept``, never more than what was ordered, is held although no need proves it: see ``Goal``.
        """
        self.kept = kept
        if need is None:
            self.target = None
            return
        # A gap counts like a restart: nothing is proven about the time in between.
        if self._last is not None and now - self._last > self.smoothing.max_gap:
            self._begin()
        # The pipelines remember doubtful evidence like a need. It never exceeds the ordered size, so nothing grows
        # for it.
        wanted = need.at_least(kept)
        is_repeated = self.target is not None and wanted == self._wanted and has == self.asked_with
        if is_repeated and now < self._steady_until:
            self._last, self._has_skipped = now, True
            return
        if self._has_skipped and self._last is not None and self.asked_with is not None:
            # Of the looks that were skipped the pipelines need only the latest.
            self._look(self._wanted, self.asked_with, self._last)
        self._last = now
        self._look(wanted, has, now)
        # Most guests of a fleet are idle, and look the same for minutes.
        self._steady_until = self._steady_from(now) if is_repeated else UNSTEADY

    def _look(self, wanted: Resources, has: Resources, now: Instant) -> None:
        self._remember(wanted, now)
        cpu = self._cpu.target(now, Sample(wanted.cpu.as_cores, has.cpu.as_cores))
        mem = self._mem.target(now, Sample(float(wanted.mem.value), float(has.mem.value)))
        # The pipelines calculate in floats; rounded down, the target could be below the need.
        self.target, self.asked_with = Resources(MilliCpu.cores(cpu), Bytes(ceil(mem))), has
        self._wanted, self._has_skipped = wanted, False

    def _steady_from(self, now: Instant) -> Instant:
        """The time before which the same look changes nothing, from ``now`` on."""
        if any(need != self._wanted for _, need in self._recent):
            return UNSTEADY
        cpu = self._cpu.steady_until(now)
        return cpu if cpu == UNSTEADY else min(cpu, self._mem.steady_until(now))

    def just_needed(self, now: Instant) -> Resources | None:
        """The most of each resource that was needed within the last ``RECENT`` seconds; None if that is not known."""
        if self.target is None or self._began is None or now - self._began < RECENT:
            return None
        # Long since the same, and asked for often.
        if now < self._steady_until:
            return self._wanted
        return Resources.most(need for _, need in self._recent)

    def _remember(self, need: Resources, now: Instant) -> None:
        self._began = now if self._began is None else self._began
        self._recent.append((now, need))
        # A need holds until the next look: the last one before the window began still counts in it.
        while len(self._recent) > 1 and now - self._recent[1][0] >= RECENT:
            self._recent.popleft()

    def explain(self) -> str:
        """One line for people: what the policies say, and by which stage they say more than is needed."""
        if self.target is None:
            return "no proof yet: the policy has seen no need, or not the last one"
        amounts = {"cpu": str(self.target.cpu), "memory": f"{self.target.mem.as_gib:.2f} GiB"}
        return " and ".join(f"{amount} {resource}{self._raised(resource)}" for resource, amount in amounts.items())

    def steps(self) -> list[Json]:
        """The effect of each stage on the last need, with amounts as text, and its reason; empty before the first."""
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
        self._began, self._steady_until, self._has_skipped = None, UNSTEADY, False
        self._recent.clear()
        self._cpu, self._mem = self.smoothing.cpu.start(), self.smoothing.memory.start()

    def _raised(self, resource: str) -> str:
        """The stage that added most to the need of ``resource``, and why; empty if none did."""
        steps = (self._cpu if resource == "cpu" else self._mem).explain()
        most = max(steps, key=lambda step: step.after - step.before, default=None)
        return f" ({most.stage}: {most.reason})" if most is not None and most.after > most.before else ""
