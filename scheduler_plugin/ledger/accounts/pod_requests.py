"""The resizes of one pod's requests: what they may be while a write is on its way, and when to try again (B.10).

Rules that hold here:

- A write fits one version of the pod. While the pod has that version the write may still land, answered or not; once
  another version is seen, it has landed or never will. After ``SETTLE`` it has, too.
- A permit may rely on the least that the requests may be; the node's book holds the most.
- Of writes without an answer that were sent soon after one another only the least and the most are kept: so it is a
  handful, however many there are.
- What was refused, by the API server or the kubelet, is tried again after longer and longer pauses. If it was about CPU
  and memory, the one that was not named is changed by itself meanwhile; where none was, CPU is tried first.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, NamedTuple

from protocol.backoff import Backoff
from protocol.units import Instant, Resources, Seconds
from scheduler_plugin.ledger.facts import RunnerRequests

LONG_AGO: Final = Instant(float("-inf"))

SETTLE: Final = Seconds(10.0)
"""A write that was sent so long ago has landed or never will: API servers are told to give it up within seconds."""

AGAIN: Final = Backoff(Seconds(5.0), Seconds(60.0))
"""How long a resize that was refused is not tried again."""

HELD: Final = Seconds(5.0)
"""How long requests stay raised without a permit: a kubelet may be slow, and the agent asks again."""


TOGETHER: Final = Seconds(2.0)
"""Writes that were sent within this time are forgotten together."""


class Sent(NamedTuple):
    """Writes on their way to the API server: least and most of their sizes, and when the first and last were sent."""

    least: Resources
    most: Resources
    first: Instant
    last: Instant


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


NEITHER: Final = Parts()
BOTH: Final = Parts(cpu=True, mem=True)
_NAMES: Final = re.compile(r"(?i)\bcpu\b|\bmemory\b")


def at_fault(changed: Parts, why: str) -> Parts:
    """What a refusal is about. A guess names memory: nodes lack it sooner, and kubelets refuse it where they swap.

    >>> at_fault(BOTH, "exceeded quota: q, requested: requests.cpu=2"), at_fault(Parts(mem=True), "no")
    (Parts(cpu=True, mem=False, is_guess=False), Parts(cpu=False, mem=True, is_guess=False))
    >>> at_fault(BOTH, "no"), at_fault(NEITHER, "no") == BOTH
    (Parts(cpu=False, mem=True, is_guess=True), True)
    """
    if changed == BOTH:
        named = {name.lower() for name in _NAMES.findall(why)}
        return Parts("cpu" in named, "memory" in named) if len(named) == 1 else Parts(mem=True, is_guess=True)
    return BOTH if changed == NEITHER else changed


@dataclass(slots=True, eq=False)
class PodRequests:
    """``newest`` is the last write that may yet land on ``version`` of the pod, ``earlier`` all before it.

    ``goal`` is what requests are being raised to, ``held_until`` how long they stay raised without a permit.
    ``why_not`` is why they were not raised last, ``again_at`` when they may be; until then ``kept_back`` is not raised
    and ``kept_up`` not lowered. ``is_exempt``: this pod's requests cannot be changed, so that permits do not depend on
    them.
    """

    newest: Sent | None = None
    earlier: tuple[Sent, ...] = ()
    version: str = ""
    goal: Resources | None = None
    held_until: Instant = LONG_AGO
    why_not: str = ""
    again_at: Instant = LONG_AGO
    kept_back: Parts = NEITHER
    kept_up: Parts = NEITHER
    failures: int = 0
    is_exempt: bool = False

    @property
    def may_land(self) -> tuple[Sent, ...]:
        """All that may be on its way; empty where nothing is."""
        return self.earlier if self.newest is None else (*self.earlier, self.newest)

    def least(self, runner: RunnerRequests) -> Resources:
        """What the pod has for its guest in any case."""
        least = runner.secured
        for each in self.may_land:
            least = least.at_most(each.least)
        return least

    def most(self, runner: RunnerRequests) -> Resources:
        """What the pod may come to have for its guest."""
        most = runner.asked
        for each in self.may_land:
            most = most.at_least(each.most)
        return most

    def send(self, size: Resources, runner: RunnerRequests, now: Instant) -> None:
        """A write of ``size`` is about to be sent onto the version of ``runner``; those before it have no answer."""
        self.settle(now)
        if now >= self.again_at:
            self.kept_back = self.kept_up = NEITHER
        self.earlier = tuple(_joined(self.may_land))
        self.newest, self.version = Sent(size, size, now, now), runner.version

    def seen(self, runner: RunnerRequests) -> None:
        """The pod as it is now."""
        if runner.version != self.version:
            self.newest, self.earlier = None, ()
        if self.goal is not None and self.goal.within(self.least(runner)):
            self.goal = None
            if self.kept_back == NEITHER:
                self.why_not, self.failures, self.again_at = "", 0, LONG_AGO

    def possible(self, asked: Resources, size: Resources, now: Instant) -> Resources:
        """``size`` as far as what requests ``asked`` may be changed to it now."""
        if now >= self.again_at:
            return size
        size = self.kept_back.of(size.at_most(asked), size)
        return self.kept_up.of(size.at_least(asked), size)

    def settle(self, now: Instant) -> None:
        """Time has passed: what was sent so long ago has landed and been seen, or never will."""
        self.earlier = tuple(each for each in self.earlier if now - each.last < SETTLE)
        if self.newest is not None and now - self.newest.last >= SETTLE:
            self.newest = None

    def refused_by_kubelet(self, runner: RunnerRequests, now: Instant) -> None:
        """The kubelet says why it does not set aside what is asked for, or does not let go of it."""
        held = runner.allocated or runner.asked
        raised, lowered = Parts.of_rise(held, runner.asked), Parts.of_rise(runner.asked, held)
        changed = Parts(raised.cpu or lowered.cpu, raised.mem or lowered.mem)
        self.refused(None, changed, runner.problem, now)
        self.kept_up = Parts(lowered.cpu and self.kept_back.cpu, lowered.mem and self.kept_back.mem)

    def refused(self, size: Resources | None, changed: Parts, why: str, now: Instant) -> None:
        """The write of ``size`` was certainly not made (None: the kubelet refuses it), for this reason.

        Without a reason it may be tried again at once: the pod had changed. ``changed`` is what it was about.
        """
        if self.newest is not None and self.newest.most == size:
            self.newest = None
        if not why:
            return
        self.why_not = why
        if now >= self.again_at:
            self.failures += 1
            self.again_at = Instant(now + AGAIN.delay(self.failures, 0.0))
            self.kept_back = at_fault(changed, why)
        elif changed in (Parts(cpu=True), Parts(mem=True)) and changed != self.kept_back:
            self.kept_back = changed if self.kept_back.is_guess else BOTH


def _joined(sent: tuple[Sent, ...]) -> Iterator[Sent]:
    """The last two as one where both were sent within ``TOGETHER``."""
    yield from sent[:-2]
    match sent[-2:]:
        case (before, last) if last.last - before.first < TOGETHER:
            yield Sent(before.least.at_most(last.least), before.most.at_least(last.most), before.first, last.last)
        case rest:
            yield from rest
