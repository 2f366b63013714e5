"""The resizes of one pod's requests: what they may be while a write is on its way, and when to try again (B.10).

Rules that hold here:

- A write fits one version of the pod. While the pod has that version the write may still land, answered or not; once
  another version is seen, it has landed or never will. After ``SETTLE`` it has, too.
- A permit may rely on the least that the requests may be; the node's book holds the most.
- What was refused, by the API server or the kubelet, is tried again after longer and longer pauses.
"""

from __future__ import annotations

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


class Sent(NamedTuple):
    """A size of the guest's container on its way to the API server, and since when."""

    size: Resources
    at: Instant


@dataclass(slots=True, eq=False)
class PodRequests:
    """``sent`` is what may yet be written onto ``version`` of the pod.

    ``goal`` is what requests are being raised to, ``held_until`` how long they stay raised without a permit.
    ``why_not`` is why they were not raised last, ``again_at`` when they may be. ``is_exempt``: this pod's requests
    cannot be changed, so that permits do not depend on them.
    """

    sent: tuple[Sent, ...] = ()
    version: str = ""
    goal: Resources | None = None
    held_until: Instant = LONG_AGO
    why_not: str = ""
    again_at: Instant = LONG_AGO
    failures: int = 0
    is_exempt: bool = False

    def least(self, runner: RunnerRequests) -> Resources:
        """What the pod has for its guest in any case."""
        least = runner.secured
        for each in self.sent:
            least = least.at_most(each.size)
        return least

    def most(self, runner: RunnerRequests) -> Resources:
        """What the pod may come to have for its guest."""
        most = runner.asked
        for each in self.sent:
            most = most.at_least(each.size)
        return most

    def send(self, size: Resources, runner: RunnerRequests, now: Instant) -> None:
        """A write of ``size`` is about to be sent onto the version of ``runner``."""
        self.sent, self.version = (*self.sent, Sent(size, now)), runner.version

    def seen(self, runner: RunnerRequests) -> None:
        """The pod as it is now."""
        if runner.version != self.version:
            self.sent = ()
        if self.goal is not None and self.goal.within(self.least(runner)):
            self.goal, self.why_not, self.failures, self.again_at = None, "", 0, LONG_AGO

    def settle(self, now: Instant) -> None:
        """Time has passed: what was sent so long ago has landed and been seen, or never will."""
        self.sent = tuple(each for each in self.sent if now - each.at < SETTLE)

    def refused(self, size: Resources | None, why: str, now: Instant) -> None:
        """The write of ``size`` was certainly not made (None: the kubelet refuses it), for this reason.

        Without a reason it may be tried again at once: the pod had changed.
        """
        newest = next((each for each in reversed(self.sent) if each.size == size), None)
        self.sent = tuple(each for each in self.sent if each is not newest)
        if why and now >= self.again_at:
            self.failures += 1
            self.again_at = Instant(now + AGAIN.delay(self.failures, 0.0))
        self.why_not = why or self.why_not
