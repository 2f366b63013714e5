"""Refused resizes of a pod's requests: not tried again for a while, and nothing else waits for them (B.10).

Rules that hold here:

- Raises and lowerings are counted apart: what may not be lowered may still be raised, and the other way round.
- Of CPU and memory only the one that a refusal names is left alone. If it names none, memory is, until CPU by itself
  is refused as well.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from fractions import Fraction
from typing import Final, NamedTuple, TypeVar

from protocol.backoff import Backoff
from protocol.units import ZERO, Amount, ComputeUnit, Instant, Resources, Seconds

A = TypeVar("A", bound=Amount)

LONG_AGO: Final = Instant(float("-inf"))

AGAIN: Final = Backoff(Seconds(5.0), Seconds(60.0))
"""Pause before a refused resize is tried again."""


class RefusedParts(NamedTuple):
    """CPU, memory or both; ``is_guess``: a refusal of both did not say which."""

    cpu: bool = False
    mem: bool = False
    is_guess: bool = False

    @classmethod
    def of_rise(cls, lower: Resources, upper: Resources) -> RefusedParts:
        """The resources of which ``upper`` has more than ``lower``."""
        return cls(lower.cpu < upper.cpu, lower.mem < upper.mem)

    def of(self, these: Resources, others: Resources) -> Resources:
        """These parts of ``these``, the rest of ``others``."""
        return Resources(these.cpu if self.cpu else others.cpu, these.mem if self.mem else others.mem)

    def among(self, others: RefusedParts) -> RefusedParts:
        """Those of them that ``others`` has, too."""
        return RefusedParts(self.cpu and others.cpu, self.mem and others.mem, self.is_guess)

    def together(self, others: RefusedParts) -> RefusedParts:
        """Those of both."""
        return RefusedParts(self.cpu or others.cpu, self.mem or others.mem)

    @property
    def any(self) -> bool:
        """True if there is one."""
        return self.cpu or self.mem


NEITHER: Final = RefusedParts()
BOTH: Final = RefusedParts(cpu=True, mem=True)
_NAMES: Final = re.compile(r"(?i)\bcpu\b|\bmemory\b")


def named_in(why: str) -> RefusedParts:
    """Resources that a refusal names.

    >>> named_in("exceeded quota: q, requested: requests.cpu=2, used: requests.cpu=1, limited: requests.cpu=2")
    RefusedParts(cpu=True, mem=False, is_guess=False)
    """
    names = {name.lower() for name in _NAMES.findall(why)}
    return RefusedParts("cpu" in names, "memory" in names)


class ResizeChange(NamedTuple):
    """Rise and fall of a resize against the requests before it."""

    raised: RefusedParts
    lowered: RefusedParts

    @classmethod
    def of(cls, before: Resources, after: Resources) -> ResizeChange:
        """From ``before`` to ``after``."""
        return cls(RefusedParts.of_rise(before, after), RefusedParts.of_rise(after, before))

    def at_fault(self, why: str) -> RefusedParts:
        """The resource that a refusal is about. A guess names memory: nodes lack it sooner, and kubelets that swap
        refuse to resize it.

        >>> both = ResizeChange(raised=BOTH, lowered=NEITHER)
        >>> both.at_fault("exceeded quota: q, requested: requests.cpu=2"), both.at_fault("no")
        (RefusedParts(cpu=True, mem=False, is_guess=False), RefusedParts(cpu=False, mem=True, is_guess=True))
        >>> ResizeChange(raised=NEITHER, lowered=RefusedParts(cpu=True)).at_fault("no")
        RefusedParts(cpu=True, mem=False, is_guess=False)
        """
        changed = self.raised.together(self.lowered)
        # Only one resource changed, so the refusal is about that one.
        if changed != BOTH:
            return changed
        named = named_in(why)
        return RefusedParts(mem=True, is_guess=True) if named in {NEITHER, BOTH} else named


@dataclass(slots=True)
class Pause:
    """``parts`` are left alone until ``again_at``, because ``why``; ``size`` is what of each was refused last."""

    parts: RefusedParts = NEITHER
    why: str = ""
    again_at: Instant = LONG_AGO
    failures: int = 0
    size: Resources = ZERO

    def add(self, parts: RefusedParts, size: Resources, why: str, now: Instant) -> None:
        """``parts`` of ``size`` were refused."""
        if not parts.any:
            return
        self.why, self.size = why, parts.of(size, self.size)
        if now >= self.again_at:
            # As long without a refusal as the longest pause starts the backoff over.
            self.failures = 1 if now - self.again_at >= AGAIN.cap else self.failures + 1
            self.again_at = Instant(now + AGAIN.delay(self.failures, 0.0))
            self.parts = parts
        elif parts != self.parts:
            # The guess was wrong: this refusal came without the guessed part.
            self.parts = parts if self.parts.is_guess else BOTH

    def parts_at(self, now: Instant) -> RefusedParts:
        """Resources that are left alone now."""
        return NEITHER if now >= self.again_at else self.parts

    def halfway(self, asked: Resources, size: Resources, unit: ComputeUnit, now: Instant) -> Resources:
        """``size`` as far as it lies, in whole units, no nearer to what was refused than to what is ``asked``."""
        # A quota may have some of what was refused: half of it is tried, then half of the rest.
        middle = Resources(_middle(asked.cpu, self.size.cpu, unit.cpu), _middle(asked.mem, self.size.mem, unit.mem))
        return self.parts_at(now).of(asked.at_least(size.at_most(middle)), asked)

    def tried(self, now: Instant) -> None:
        """A write is sent: after the pause, also of what was refused."""
        if now >= self.again_at:
            self.parts = NEITHER


def _middle(less: A, more: A, unit: A) -> A:
    return (less + more).scaled(Fraction(1, 2)).down_to(unit)
