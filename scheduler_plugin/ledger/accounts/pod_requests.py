"""The resizes of one pod's requests: what they may be while a write is on its way, and when to try again (B.10).

Rules that hold here:

- A write fits one version of the pod. While the pod has that version the write may still land, answered or not; once
  another version is seen, it has landed or never will. After ``SETTLE`` it has, too.
- A permit may rely on the least that the requests may be; the node's book holds the most.
- Of writes without an answer that were sent soon after one another only the least and the most are kept: so it is a
  handful, however many there are.
- What was refused, by the API server or the kubelet, is tried again after longer and longer pauses.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, NamedTuple

from protocol.backoff import Backoff
from protocol.units import Instant, Resources, Seconds
from scheduler_plugin.ledger.facts import RunnerRequests

LONG_AGO: Final = Instant(float("-inf"))

SETTLE: Final = Seconds(10.0)
"""A write that was sent so long ago has landed or never will: no call takes longer than a few seconds."""

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


@dataclass(slots=True, eq=False)
class PodRequests:
    """``newest`` is the last write that may yet land on ``version`` of the pod, ``earlier`` all before it.

    ``goal`` is what requests are being raised to, ``held_until`` how long they stay raised without a permit.
    ``why_not`` is why they were not raised last, ``again_at`` when they may be. ``is_exempt``: this pod's requests
    cannot be changed, so that permits do not depend on them.
    """

    newest: Sent | None = None
    earlier: tuple[Sent, ...] = ()
    version: str = ""
    goal: Resources | None = None
    held_until: Instant = LONG_AGO
    why_not: str = ""
    again_at: Instant = LONG_AGO
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
        self.earlier = tuple(_joined(self.may_land))
        self.newest, self.version = Sent(size, size, now, now), runner.version

    def seen(self, runner: RunnerRequests) -> None:
        """The pod as it is now."""
        if runner.version != self.version:
            self.newest, self.earlier = None, ()
        if self.goal is not None and self.goal.within(self.least(runner)):
            self.goal, self.why_not, self.failures, self.again_at = None, "", 0, LONG_AGO

    def settle(self, now: Instant) -> None:
        """Time has passed: what was sent so long ago has landed and been seen, or never will."""
        self.earlier = tuple(each for each in self.earlier if now - each.last < SETTLE)
        if self.newest is not None and now - self.newest.last >= SETTLE:
            self.newest = None

    def refused(self, size: Resources | None, why: str, now: Instant) -> None:
        """The write of ``size`` was certainly not made (None: the kubelet refuses it), for this reason.

        Without a reason it may be tried again at once: the pod had changed.
        """
        if self.newest is not None and self.newest.most == size:
            self.newest = None
        if why and now >= self.again_at:
            self.failures += 1
            self.again_at = Instant(now + AGAIN.delay(self.failures, 0.0))
        self.why_not = why or self.why_not


def _joined(sent: tuple[Sent, ...]) -> Iterator[Sent]:
    """The last two as one where both were sent within ``TOGETHER``."""
    yield from sent[:-2]
    match sent[-2:]:
        case (before, last) if last.last - before.first < TOGETHER:
            yield Sent(before.least.at_most(last.least), before.most.at_least(last.most), before.first, last.last)
        case rest:
            yield from rest
