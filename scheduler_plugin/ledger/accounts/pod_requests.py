"""The resizes of one pod's requests: what they may be while a write is on its way, and when to try again (B.10).

Rules that hold here:

- A write fits one version of the pod. While the pod has that version the write may still land, answered or not; once
  another version is seen, it has landed or never will. After ``SETTLE`` it has, too.
- A permit may rely on the least that the requests may be; the node's book holds the most.
- What was refused, by the API server or the kubelet, is tried again after longer and longer pauses; nothing else waits
  for it. Raises and lowerings are counted apart: what may not be lowered may still be raised, and the other way round.
- Of CPU and memory only the one that a refusal names is left alone. If it names none, memory is, until CPU by itself
  is refused as well.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Final, NamedTuple, TypeVar

from protocol.backoff import Backoff
from protocol.units import ZERO, Amount, Bytes, ComputeUnit, Instant, MilliCpu, Resources, Seconds
from scheduler_plugin.ledger.accounts.permit_state import LONG_AGO
from scheduler_plugin.ledger.facts import BOTH, NEITHER, ResourceMask, RunnerRequests

A = TypeVar("A", bound=Amount)

SETTLE: Final = Seconds(10.0)
"""A write that was sent this long ago has landed or never will: API servers give it up within seconds."""

EXEMPT: Final = Seconds(300.0)
"""Wait before a pod that could not be resized is tried again: its cluster may have been upgraded."""

HELD: Final = Seconds(5.0)
"""How long requests stay raised without a permit: a kubelet may be slow, and the agent asks again."""

LIMIT_AGAIN: Final = Seconds(30.0)
"""Wait before a limit that was written and is missing (a webhook has dropped it) is written again."""

LEAST: Final = Resources(MilliCpu(1), Bytes(1024**2))
"""Requests of a pod whose VM sleeps: with none, its class of service would change, which the API refuses."""

TOGETHER: Final = Seconds(2.0)
"""Writes that were sent within this time are remembered, and forgotten, as one."""

AGAIN: Final = Backoff(Seconds(5.0), Seconds(60.0))
"""Pause before a refused resize is tried again."""


_NAMES: Final = re.compile(r"(?i)\bcpu\b|\bmemory\b")


def named_in(why: str) -> ResourceMask:
    """Resources that a refusal names.

    >>> named_in("exceeded quota: q, requested: requests.cpu=2, used: requests.cpu=1, limited: requests.cpu=2")
    ResourceMask(cpu=True, mem=False)
    """
    names = {name.lower() for name in _NAMES.findall(why)}
    return ResourceMask("cpu" in names, "memory" in names)


class RefusedParts(NamedTuple):
    """Resources that a refusal is about; ``is_guess``: a refusal of both did not say which."""

    parts: ResourceMask = NEITHER
    is_guess: bool = False

    def among(self, changed: ResourceMask) -> RefusedParts:
        """Those of them that have ``changed``."""
        return RefusedParts(self.parts.among(changed), self.is_guess)


NOTHING_REFUSED: Final = RefusedParts()


class ResizeChange(NamedTuple):
    """Rise and fall of a resize against the requests before it."""

    raised: ResourceMask
    lowered: ResourceMask

    @classmethod
    def of(cls, before: Resources, after: Resources) -> ResizeChange:
        """From ``before`` to ``after``."""
        return cls(ResourceMask.of_rise(before, after), ResourceMask.of_rise(after, before))

    def at_fault(self, why: str) -> RefusedParts:
        """The resource that a refusal is about. A guess names memory: nodes lack it sooner, and kubelets that swap
        refuse to resize it.

        >>> both = ResizeChange(raised=BOTH, lowered=NEITHER)
        >>> both.at_fault("exceeded quota: q, requested: requests.cpu=2")
        RefusedParts(parts=ResourceMask(cpu=True, mem=False), is_guess=False)
        >>> both.at_fault("no")
        RefusedParts(parts=ResourceMask(cpu=False, mem=True), is_guess=True)
        >>> ResizeChange(raised=NEITHER, lowered=ResourceMask(cpu=True)).at_fault("no").is_guess
        False
        """
        changed = self.raised.together(self.lowered)
        # Only one resource changed, so the refusal is about that one.
        if changed != BOTH:
            return RefusedParts(changed)
        named = named_in(why)
        return RefusedParts(ResourceMask(mem=True), is_guess=True) if named in {NEITHER, BOTH} else RefusedParts(named)


@dataclass(slots=True)
class Pause:
    """The ``refused`` parts are left alone until ``again_at``, because ``why``; ``size`` is what of each was refused
    last.
    """

    refused: RefusedParts = NOTHING_REFUSED
    why: str = ""
    again_at: Instant = LONG_AGO
    failures: int = 0
    size: Resources = ZERO

    @property
    def parts(self) -> ResourceMask:
        """The resources that were refused."""
        return self.refused.parts

    def add(self, refused: RefusedParts, size: Resources, why: str, now: Instant) -> None:
        """``size`` was refused."""
        if not refused.parts.any:
            return
        self.why, self.size = why, refused.parts.of(size, self.size)
        if now >= self.again_at:
            # As long without a refusal as the longest pause starts the backoff over.
            self.failures = 1 if now - self.again_at >= AGAIN.cap else self.failures + 1
            self.again_at = Instant(now + AGAIN.delay(self.failures, 0.0))
            self.refused = refused
        elif refused != self.refused:
            # The guess was wrong: this refusal came without the guessed part.
            self.refused = refused if self.refused.is_guess else RefusedParts(BOTH)

    def parts_at(self, now: Instant) -> ResourceMask:
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
            self.refused = NOTHING_REFUSED


def _middle(less: A, more: A, unit: A) -> A:
    return (less + more).scaled(Fraction(1, 2)).down_to(unit)


class Sent(NamedTuple):
    """Writes on their way to the API server: least and most of their sizes, and when the first and last were sent."""

    least: Resources
    most: Resources
    first: Instant
    last: Instant


@dataclass(slots=True, eq=False)
class PodRequests:
    """``newest`` is the last write that may yet land on ``version`` of the pod, ``earlier`` all before it.

    ``unseen`` is the least that was asked for since the kubelet looked last (None: it has seen the newest).
    ``goal`` is what requests are being raised to; ``wished`` is what they stay raised to without a permit, until
    ``held_until``. ``raising`` and ``lowering`` are what of either was refused, ``no_answer`` is why it is not known
    whether ``newest`` has landed. ``exempt_because``: this pod's requests cannot be changed, so that permits do not
    depend on them until ``exempt_until``. ``limited_at`` is when a limit was last written without new requests.
    """

    newest: Sent | None = None
    earlier: tuple[Sent, ...] = ()
    version: str = ""
    unseen: Resources | None = None
    goal: Resources | None = None
    wished: Resources = ZERO
    held_until: Instant = LONG_AGO
    raising: Pause = field(default_factory=Pause)
    lowering: Pause = field(default_factory=Pause)
    no_answer: str = ""
    exempt_because: str = ""
    exempt_until: Instant = LONG_AGO
    limited_at: Instant = LONG_AGO

    @property
    def may_land(self) -> tuple[Sent, ...]:
        """All that may be on its way; empty if nothing is."""
        return self.earlier if self.newest is None else (*self.earlier, self.newest)

    def least(self, runner: RunnerRequests) -> Resources:
        """Size that the pod has for its guest in any case."""
        # The kubelet may be setting aside less just now, and still report what it had before.
        least = runner.secured if self.unseen is None else runner.secured.at_most(self.unseen)
        for sent in self.may_land:
            least = least.at_most(sent.least)
        return least

    def is_unanswered(self, runner: RunnerRequests) -> bool:
        """Return True if the pod asks for more than it has for its guest in any case."""
        return not runner.asked.within(self.least(runner))

    @property
    def most(self) -> Resources:
        """The maximum of writes that may land.

        ``PodFacts.requests`` has the present requests, if they may be granted.
        """
        return Resources.most(sent.most for sent in self.may_land)

    @property
    def changes_with_time(self) -> bool:
        """True if ``settle`` has anything to do."""
        return bool(self.may_land or self.exempt_because)

    def send(self, size: Resources, runner: RunnerRequests, now: Instant) -> None:
        """A write of ``size`` is about to be sent onto the version of ``runner``; those before it have no answer."""
        self.settle(now)
        self.raising.tried(now)
        self.lowering.tried(now)
        # Joined, so that few remain however many writes go unanswered.
        self.earlier = tuple(_joined(self.may_land))
        self.newest, self.version = Sent(size, size, now, now), runner.version

    def seen(self, runner: RunnerRequests) -> None:
        """The pod as it is now."""
        # A write names the version that it is for: once another version is seen, it has landed or never will.
        if runner.version != self.version:
            self.newest, self.earlier, self.no_answer = None, (), ""
        if runner.is_seen:
            self.unseen = None
        else:
            self.unseen = runner.asked if self.unseen is None else runner.asked.at_most(self.unseen)
        if self.goal is not None and self.goal.within(self.least(runner)):
            self.goal = None
            # The raise has succeeded, so the next refusal begins with a short pause again.
            if self.raising.parts == NEITHER:
                self.raising = Pause()

    def hold(self, wished: Resources, now: Instant) -> None:
        """An agent wants ``wished``."""
        self.wished, self.held_until = wished, Instant(now + HELD)

    def kept(self, asked: Resources, needed: Resources, now: Instant) -> Resources:
        """The requests that a pod with ``asked`` needs: ``needed``, and for a while what an agent wants."""
        return needed if now >= self.held_until else needed.at_least(asked.at_most(self.wished))

    def possible(self, asked: Resources, size: Resources, now: Instant, least: Resources | None = None) -> Resources:
        """``size`` as far as requests of ``asked`` may be changed to it now.

        After a refusal to lower them they may still go down to ``least``, if the refused size was below that.
        """
        size = self.raising.parts_at(now).of(size.at_most(asked), size)
        lowest = asked
        if least is not None:
            lowest = ResourceMask.of_rise(self.lowering.size, least).of(least.at_most(asked), asked)
        return self.lowering.parts_at(now).of(size.at_least(lowest), size)

    def settle(self, now: Instant) -> None:
        """Time has passed: writes sent ``SETTLE`` ago have landed and been seen, or never will."""
        self.earlier = tuple(sent for sent in self.earlier if now - sent.last < SETTLE)
        if self.newest is not None and now - self.newest.last >= SETTLE:
            self.newest = None
        if now >= self.exempt_until:
            self.exempt_because = ""

    def refused_by_kubelet(self, runner: RunnerRequests, now: Instant) -> ResourceMask:
        """The resources at fault if the kubelet says why it does not allocate, or does not release, the requests."""
        change = ResizeChange.of(runner.held, runner.asked)
        fault = change.at_fault(runner.problem)
        self.raising.add(fault.among(change.raised), runner.held, runner.problem, now)
        self.lowering.add(fault.among(change.lowered), runner.held, runner.problem, now)
        raised, lowered = self.raising.parts_at(now), self.lowering.parts_at(now)
        return raised.among(change.raised).together(lowered.among(change.lowered))

    def refused(self, size: Resources, asked: Resources, why: str, now: Instant, *, is_of_size: bool) -> None:
        """The write of ``size`` onto requests of ``asked`` was certainly not made.

        ``why`` is empty if the pod had changed. ``is_of_size``: less might be granted.
        """
        if self.newest is not None and self.newest.most == size:
            self.newest = None
        self.no_answer = ""
        # A write that only came too late may be tried again at once.
        if not why:
            return
        change = ResizeChange.of(asked, size)
        # A refusal that is not about the size says nothing about CPU or memory.
        fault = change.at_fault(why) if is_of_size else RefusedParts(BOTH)
        is_named = is_of_size and fault.among(named_in(why)) == fault
        self.raising.add(fault.among(change.raised), size if is_named else asked, why, now)
        self.lowering.add(fault.among(change.lowered), size, why, now)

    def exempt(self, why: str, now: Instant) -> None:
        """This pod's requests cannot be changed."""
        self.exempt_because, self.exempt_until = why, Instant(now + EXEMPT)


def _joined(sent: tuple[Sent, ...]) -> Iterator[Sent]:
    """The last two as one if both were sent within ``TOGETHER``."""
    yield from sent[:-2]
    match sent[-2:]:
        case (before, last) if last.last - before.first < TOGETHER:
            yield Sent(before.least.at_most(last.least), before.most.at_least(last.most), before.first, last.last)
        case rest:
            yield from rest
