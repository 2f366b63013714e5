"""Resizes of one pod's requests: writes in flight, and retries after refusals (B.10).

Rules:

- A write applies to one resourceVersion of the pod. While the pod has that version, the write may still land. Once
  another version is seen, or ``SETTLE`` has passed, it has landed or never will.
- A permit relies on the minimum that the requests may be; the node's sum contains the maximum.
- A refused resize, by the API server or the kubelet, is retried with backoff; nothing else waits for it. Raises and
  lowerings back off separately: a pod whose requests cannot be lowered may still be raised, and the other way round.
- A refusal pauses only the resource that it names. If it names none, it pauses memory, until CPU alone is refused too.
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
"""A write sent this long ago has landed or never will: API servers time out within seconds."""

EXEMPT_RETRY: Final = Seconds(300.0)
"""Retry interval for a pod that could not be resized: its cluster may have been upgraded."""

HOLD_TIME: Final = Seconds(5.0)
"""How long requests stay raised without a permit: the kubelet may be slow, and the agent repeats its request."""

LIMIT_RETRY: Final = Seconds(30.0)
"""Retry interval for a CPU limit that was written and is missing because a webhook dropped it."""

MIN_REQUESTS: Final = Resources(MilliCpu(1), Bytes(1024**2))
"""Requests of a pod whose VM sleeps. Zero requests would change its QoS class, which the API server refuses."""

MERGE_WINDOW: Final = Seconds(2.0)
"""Writes sent within this time count as one."""

BACKOFF: Final = Backoff(Seconds(5.0), Seconds(60.0))
"""Backoff of refused resizes."""


_NAMES: Final = re.compile(r"(?i)\bcpu\b|\bmemory\b")


def named_in(why: str) -> ResourceMask:
    """Resources that a refusal message names.

    >>> named_in("exceeded quota: q, requested: requests.cpu=2, used: requests.cpu=1, limited: requests.cpu=2")
    ResourceMask(cpu=True, mem=False)
    """
    names = {name.lower() for name in _NAMES.findall(why)}
    return ResourceMask("cpu" in names, "memory" in names)


class RefusedResources(NamedTuple):
    """The refused resources; ``is_guess`` if both were resized and the refusal named none."""

    parts: ResourceMask = NEITHER
    is_guess: bool = False

    def intersection(self, changed: ResourceMask) -> RefusedResources:
        """The part of them that has ``changed``."""
        return RefusedResources(self.parts.intersection(changed), self.is_guess)


NOTHING_REFUSED: Final = RefusedResources()


class ResizeChange(NamedTuple):
    """Resources that a resize raises and lowers."""

    raised: ResourceMask
    lowered: ResourceMask

    @classmethod
    def of(cls, before: Resources, after: Resources) -> ResizeChange:
        """The change from ``before`` to ``after``."""
        return cls(ResourceMask.of_increase(before, after), ResourceMask.of_increase(after, before))

    def at_fault(self, why: str) -> RefusedResources:
        """The resources that a refusal is about. The guess is memory: nodes run out of it sooner, and kubelets that
        swap refuse to resize it.

        >>> both = ResizeChange(raised=BOTH, lowered=NEITHER)
        >>> both.at_fault("exceeded quota: q, requested: requests.cpu=2")
        RefusedResources(parts=ResourceMask(cpu=True, mem=False), is_guess=False)
        >>> both.at_fault("no")
        RefusedResources(parts=ResourceMask(cpu=False, mem=True), is_guess=True)
        >>> ResizeChange(raised=NEITHER, lowered=ResourceMask(cpu=True)).at_fault("no").is_guess
        False
        """
        changed = self.raised.union(self.lowered)
        # Only one resource changed.
        if changed != BOTH:
            return RefusedResources(changed)
        named = named_in(why)
        return (
            RefusedResources(ResourceMask(mem=True), is_guess=True)
            if named in {NEITHER, BOTH}
            else RefusedResources(named)
        )


@dataclass(slots=True)
class Pause:
    """Pause of the ``refused`` resources until ``retry_at``, because of ``why``. ``size`` is the last refused size."""

    refused: RefusedResources = NOTHING_REFUSED
    why: str = ""
    retry_at: Instant = LONG_AGO
    failures: int = 0
    size: Resources = ZERO

    @property
    def parts(self) -> ResourceMask:
        """The refused resources."""
        return self.refused.parts

    def add(self, refused: RefusedResources, size: Resources, why: str, now: Instant) -> None:
        """Record that ``size`` was refused."""
        if not refused.parts.any:
            return
        self.why, self.size = why, refused.parts.of(size, self.size)
        if now >= self.retry_at:
            # Reset the backoff after the longest pause without a refusal.
            self.failures = 1 if now - self.retry_at >= BACKOFF.cap else self.failures + 1
            self.retry_at = Instant(now + BACKOFF.delay(self.failures, 0.0))
            self.refused = refused
        elif refused != self.refused:
            # The guess was wrong: this refusal came without the guessed resource.
            self.refused = refused if self.refused.is_guess else RefusedResources(BOTH)

    def parts_at(self, now: Instant) -> ResourceMask:
        """The resources that are paused now."""
        return NEITHER if now >= self.retry_at else self.parts

    def halfway(self, requested: Resources, size: Resources, unit: ComputeUnit, now: Instant) -> Resources:
        """``size``, lowered to the middle between ``requested`` and the refused size, in whole units."""
        # A quota may have room for a part: try half of it, then half of the rest.
        middle = Resources(
            _middle(requested.cpu, self.size.cpu, unit.cpu), _middle(requested.mem, self.size.mem, unit.mem)
        )
        return self.parts_at(now).of(requested.at_least(size.at_most(middle)), requested)

    def write_sent(self, now: Instant) -> None:
        """A write was sent: forget the refusal if its pause is over."""
        if now >= self.retry_at:
            self.refused = NOTHING_REFUSED


def _middle(less: A, more: A, unit: A) -> A:
    return (less + more).scaled(Fraction(1, 2)).down_to(unit)


class Sent(NamedTuple):
    """Writes in flight: minimum and maximum of their sizes, and when the first and last were sent."""

    minimum: Resources
    maximum: Resources
    first: Instant
    last: Instant


@dataclass(slots=True, eq=False)
class PodRequests:
    """Resizes of one pod's requests."""

    newest: Sent | None = None  # last write that may still land on ``version``
    earlier: tuple[Sent, ...] = ()  # all before it that may still land
    version: str = ""
    unseen: Resources | None = None  # minimum requested since the kubelet's last report; None if it has seen the newest
    goal: Resources | None = None  # what requests are being raised to
    wanted: Resources = ZERO  # they stay raised to this without a permit until ``held_until``
    held_until: Instant = LONG_AGO
    raising: Pause = field(default_factory=Pause)
    lowering: Pause = field(default_factory=Pause)
    no_answer: str = ""  # why the outcome of ``newest`` is unknown
    exempt_because: str = ""  # why the pod cannot be resized: until ``exempt_until`` permits do not depend on requests
    exempt_until: Instant = LONG_AGO
    limited_at: Instant = LONG_AGO  # when a CPU limit was last written without new requests

    @property
    def may_land(self) -> tuple[Sent, ...]:
        """All writes that may be in flight; empty if none."""
        return self.earlier if self.newest is None else (*self.earlier, self.newest)

    def secured(self, runner: RunnerRequests) -> Resources:
        """Size that the pod's requests cover in any case."""
        # The kubelet may just be lowering its allocation and still report the old one.
        secured = runner.secured if self.unseen is None else runner.secured.at_most(self.unseen)
        for sent in self.may_land:
            secured = secured.at_most(sent.minimum)
        return secured

    def is_unanswered(self, runner: RunnerRequests) -> bool:
        """Return True if the pod requests more than they cover in any case."""
        return not runner.requested.within(self.secured(runner))

    @property
    def largest_in_flight(self) -> Resources:
        """Maximum of writes that may land.

        The present requests are in ``PodFacts.requests``, unless the kubelet refuses them.
        """
        return Resources.most(sent.maximum for sent in self.may_land)

    @property
    def changes_with_time(self) -> bool:
        """True if ``settle`` has anything to do."""
        return bool(self.may_land or self.exempt_because)

    def send(self, size: Resources, runner: RunnerRequests, now: Instant) -> None:
        """Record that a write of ``size`` to the version of ``runner`` is about to be sent."""
        self.settle(now)
        self.raising.write_sent(now)
        self.lowering.write_sent(now)
        # Joined, so that few remain however many get no response.
        self.earlier = tuple(_joined(self.may_land))
        self.newest, self.version = Sent(size, size, now, now), runner.version

    def observe(self, runner: RunnerRequests) -> None:
        """Update from a pod that the watch has delivered."""
        # A write carries a resourceVersion: once another version is seen, it has landed or never will.
        if runner.version != self.version:
            self.newest, self.earlier, self.no_answer = None, (), ""
        if runner.is_seen:
            self.unseen = None
        else:
            self.unseen = runner.requested if self.unseen is None else runner.requested.at_most(self.unseen)
        if self.goal is not None and self.goal.within(self.secured(runner)):
            self.goal = None
            # The raise succeeded: reset its backoff.
            if self.raising.parts == NEITHER:
                self.raising = Pause()

    def hold(self, wanted: Resources, now: Instant) -> None:
        """Keep requests raised to ``wanted`` for ``HOLD_TIME``, because an agent requests that."""
        self.wanted, self.held_until = wanted, Instant(now + HOLD_TIME)

    def requests_to_keep(self, requested: Resources, needed: Resources, now: Instant) -> Resources:
        """The requests to keep: ``needed``, and for ``HOLD_TIME`` the part of ``requested`` that an agent wants."""
        return needed if now >= self.held_until else needed.at_least(requested.at_most(self.wanted))

    def possible(
        self, requested: Resources, size: Resources, now: Instant, minimum: Resources | None = None
    ) -> Resources:
        """``size`` without the changes to ``requested`` that are paused.

        After a refusal to lower, requests may still go down to ``minimum`` if the refused size was below that.
        """
        size = self.raising.parts_at(now).of(size.at_most(requested), size)
        lowest = requested
        if minimum is not None:
            lowest = ResourceMask.of_increase(self.lowering.size, minimum).of(minimum.at_most(requested), requested)
        return self.lowering.parts_at(now).of(size.at_least(lowest), size)

    def settle(self, now: Instant) -> None:
        """Forget writes sent ``SETTLE`` ago: they have landed and been seen, or never will."""
        self.earlier = tuple(sent for sent in self.earlier if now - sent.last < SETTLE)
        if self.newest is not None and now - self.newest.last >= SETTLE:
            self.newest = None
        if now >= self.exempt_until:
            self.exempt_because = ""

    def refused_by_kubelet(self, runner: RunnerRequests, now: Instant) -> ResourceMask:
        """The resources at fault if the kubelet refuses the requests."""
        change = ResizeChange.of(runner.held, runner.requested)
        fault = change.at_fault(runner.problem)
        self.raising.add(fault.intersection(change.raised), runner.held, runner.problem, now)
        self.lowering.add(fault.intersection(change.lowered), runner.held, runner.problem, now)
        raised, lowered = self.raising.parts_at(now), self.lowering.parts_at(now)
        return raised.intersection(change.raised).union(lowered.intersection(change.lowered))

    def refused(self, size: Resources, requested: Resources, why: str, now: Instant, *, is_of_size: bool) -> None:
        """Record that the write of ``size`` onto requests of ``requested`` was certainly not made.

        ``why`` is empty if the pod had changed. ``is_of_size``: a smaller size might be accepted.
        """
        if self.newest is not None and self.newest.maximum == size:
            self.newest = None
        self.no_answer = ""
        # A conflict is retried immediately.
        if not why:
            return
        change = ResizeChange.of(requested, size)
        # A refusal for another reason than the size is about neither resource.
        fault = change.at_fault(why) if is_of_size else RefusedResources(BOTH)
        is_named = is_of_size and fault.intersection(named_in(why)) == fault
        self.raising.add(fault.intersection(change.raised), size if is_named else requested, why, now)
        self.lowering.add(fault.intersection(change.lowered), size, why, now)

    def exempt(self, why: str, now: Instant) -> None:
        """Record that this pod cannot be resized."""
        self.exempt_because, self.exempt_until = why, Instant(now + EXEMPT_RETRY)


def _joined(sent: tuple[Sent, ...]) -> Iterator[Sent]:
    """The writes, with the last two as one if both were sent within ``MERGE_WINDOW``."""
    yield from sent[:-2]
    match sent[-2:]:
        case (before, last) if last.last - before.first < MERGE_WINDOW:
            yield Sent(
                before.minimum.at_most(last.minimum), before.maximum.at_least(last.maximum), before.first, last.last
            )
        case rest:
            yield from rest
