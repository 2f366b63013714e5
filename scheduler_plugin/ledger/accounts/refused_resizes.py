"""What was refused of a pod's requests lately: it is not tried again for a while, and keeps back nothing else (B.10).

Rules that hold here:

- Raises and lowerings are counted apart: what may not be lowered may still be raised, and the other way round.
- Of CPU and memory only the one that a refusal names is left alone. Where it names none, memory is, until CPU by itself
  is refused as well.
- The pauses grow with every refusal, and begin anew after as long without one as the longest lasts.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final, NamedTuple

from protocol.backoff import Backoff
from protocol.units import ZERO, Instant, Resources, Seconds

LONG_AGO: Final = Instant(float("-inf"))

AGAIN: Final = Backoff(Seconds(5.0), Seconds(60.0))
"""How long a resize that was refused is not tried again."""


class Parts(NamedTuple):
    """Which of CPU and memory; ``is_guess``: a refusal of both did not say."""

    cpu: bool = False
    mem: bool = False
    is_guess: bool = False

    @classmethod
    def of_rise(cls, lower: Resources, upper: Resources) -> Parts:
        """What ``upper`` has more of."""
        return cls(lower.cpu < upper.cpu, lower.mem < upper.mem)

    def of(self, these: Resources, others: Resources) -> Resources:
        """These parts of ``these``, the rest of ``others``."""
        return Resources(these.cpu if self.cpu else others.cpu, these.mem if self.mem else others.mem)

    def among(self, others: Parts) -> Parts:
        """Those of them that ``others`` has, too."""
        return Parts(self.cpu and others.cpu, self.mem and others.mem, self.is_guess)

    def together(self, others: Parts) -> Parts:
        """Those of both."""
        return Parts(self.cpu or others.cpu, self.mem or others.mem)

    @property
    def any(self) -> bool:
        """Whether there is one."""
        return self.cpu or self.mem


NEITHER: Final = Parts()
BOTH: Final = Parts(cpu=True, mem=True)
_NAMES: Final = re.compile(r"(?i)\bcpu\b|\bmemory\b")


class Change(NamedTuple):
    """What a resize has more of than the requests before it, and what less."""

    raised: Parts
    lowered: Parts

    @classmethod
    def of(cls, before: Resources, after: Resources) -> Change:
        """From ``before`` to ``after``."""
        return cls(Parts.of_rise(before, after), Parts.of_rise(after, before))

    def at_fault(self, why: str) -> Parts:
        """Which part of it a refusal is about. A guess names memory: nodes lack it sooner, and kubelets refuse it where
        they swap.

        >>> both = Change(raised=BOTH, lowered=NEITHER)
        >>> both.at_fault("exceeded quota: q, requested: requests.cpu=2"), both.at_fault("no")
        (Parts(cpu=True, mem=False, is_guess=False), Parts(cpu=False, mem=True, is_guess=True))
        >>> Change(raised=NEITHER, lowered=Parts(cpu=True)).at_fault("no")
        Parts(cpu=True, mem=False, is_guess=False)
        """
        changed = self.raised.together(self.lowered)
        if changed != BOTH:
            return changed
        named = {name.lower() for name in _NAMES.findall(why)}
        return Parts("cpu" in named, "memory" in named) if len(named) == 1 else Parts(mem=True, is_guess=True)


@dataclass(slots=True)
class Pause:
    """``parts`` are left alone until ``again_at``, because ``why``; ``size`` is what of each was refused last."""

    parts: Parts = NEITHER
    why: str = ""
    again_at: Instant = LONG_AGO
    failures: int = 0
    size: Resources = ZERO

    def add(self, parts: Parts, size: Resources, why: str, now: Instant) -> None:
        """``parts`` of ``size`` were refused."""
        if not parts.any:
            return
        self.why, self.size = why, parts.of(size, self.size)
        if now >= self.again_at:
            self.failures = 1 if now - self.again_at >= AGAIN.cap else self.failures + 1
            self.again_at = Instant(now + AGAIN.delay(self.failures, 0.0))
            self.parts = parts
        elif parts != self.parts:
            self.parts = parts if self.parts.is_guess else BOTH

    def parts_at(self, now: Instant) -> Parts:
        """What is left alone now."""
        return NEITHER if now >= self.again_at else self.parts

    def tried(self, now: Instant) -> None:
        """A write is sent: after the pause, also of what was refused."""
        if now >= self.again_at:
            self.parts = NEITHER
