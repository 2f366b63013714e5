"""State of a VM's sleep: the order in flight, refusals and wakes (B.18).

Rules:

- The agent orders sleep and requests permits; the controller decides when the VM sleeps and wakes.
- Quiet time counts only while the VM was observed running, so that a metrics page from before a sleep does not trigger
  the next.
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass, field, replace
from typing import Final

from agent.core.actions import OrderSleep
from agent.core.guest import ObservedSample
from agent.core.policy import VM_API_BACKOFF, SleepPolicy
from agent.core.vm import Vm
from protocol.guest.sleep import SleepReport, SleepState
from protocol.units import Instant, Seconds

_WOKEN: Final = frozenset({SleepState.WAKING, SleepState.AWAKE})
"""States whose message names the source of the wake."""


PACKET: Final = "packet"
WOKEN_BY: Final = (PACKET, "order")
"""Sources of a wake: a client's packet, or anything else, such as a removed order, a migration or a drain."""

_SPREAD: Final = Seconds(300.0)
"""Time over which VMs fall asleep that share the end of a window, a policy change or an agent restart, because each
writes its memory to disk.
"""

_READ_RATE: Final = 100 * 2**20
"""Bytes per second at which even a slow disk reads saved memory."""

_KNOWN_WITHIN: Final = Seconds(10.0)
"""Time within which every watcher has observed a wake."""

_CLIENT: Final = re.compile(r"[0-9.]{7,15}:[0-9]{1,5} ")


@dataclass(frozen=True, slots=True)
class SleepRefusal:
    """Refusal of ``order``, the ``count``-th in a row, with its reason. The next order waits until ``retry_at``."""

    order: str
    because: str
    count: int
    retry_at: Instant


@dataclass(frozen=True, slots=True)
class Wake:
    """A wake observed at ``at``, caused by ``by``. ``is_unused``: the VM was ordered to sleep again without any client
    activity in between.
    """

    by: str
    at: Instant
    is_unused: bool = False


@dataclass(slots=True)
class SleepSide:
    """Sleep state of one VM. ``window`` is the keep-awake window that applies now. There is no order before
    ``spread_until``, because many VMs may become ready to sleep at the same time.

    ``running_from``, ``waking_from`` and ``starting_from`` are the times when the VM was first observed in that state;
    None in any other. A VM whose guest is starting is in all three. ``spread_fraction`` (0..1): a VM that was idle
    before its agent started waits for this part of the spread, because the agents of a node may restart together.
    ``wakes`` counts observed wakes by source. ``ordering`` is the order in flight. After ``failures`` failed writes in
    a row, the next waits until ``retry_at``. ``is_early``: the pending or current order was given because the node was
    short.
    """

    window: str | None = None
    spread_until: Instant | None = None
    running_from: Instant | None = None
    spread_fraction: float = 0.0
    waking_from: Instant | None = None
    starting_from: Instant | None = None
    ordering: OrderSleep | None = None
    failures: int = 0
    retry_at: Instant | None = None
    refusal: SleepRefusal | None = None
    is_early: bool = False
    wake: Wake | None = None
    wakes: Counter[str] = field(default_factory=lambda: Counter(dict.fromkeys(WOKEN_BY, 0)))

    def update(self, before: Vm | None, vm: Vm, policy: SleepPolicy, now: Instant) -> None:
        """Update from a newer view of the VM; ``before`` is the previous one."""
        report = vm.sleep
        if vm.sleeps:
            self.running_from = self.refusal = None
            self.spread_fraction = 0.0
        elif self.running_from is None:
            self.running_from = now
        if not (vm.is_waking or vm.is_starting):
            self.waking_from = None
        elif self.waking_from is None:
            self.waking_from = now
        if not vm.is_starting:
            self.starting_from = None
        elif self.starting_from is None:
            self.starting_from = now
        if before is not None and before.is_asleep and not vm.is_asleep:
            self.wake, self.is_early = Wake(report.message, now), False
            # The message starts with a client's address and port, whose cardinality is too high for a label.
            self.wakes[PACKET if _CLIENT.match(report.message) else WOKEN_BY[1]] += 1
        if report.state is SleepState.RESTARTED:
            # The guest counts quiet time from its boot, so activity before the wake is unknown.
            self.wake = None
        elif self.wake is not None and report.state in _WOKEN and report.message:
            self.wake = replace(self.wake, by=report.message)
        is_known = self.refusal is not None and self.refusal.order == report.order
        if report.state is SleepState.REFUSED and not is_known:
            self.is_early = False
            count = 1 if self.refusal is None else self.refusal.count + 1
            retry_at = Instant(now + policy.refused.delay(count, 0.0))
            self.refusal = SleepRefusal(report.order, report.message, count, retry_at)

    def update_window(self, window: str | None, now: Instant, jitter: float) -> None:
        """Update the window that applies; None if none does."""
        if self.window is not None and window is None:
            self.spread_until = Instant(now + _SPREAD * jitter)
        self.window = window

    def update_policy(self, before: SleepPolicy, policy: SleepPolicy, now: Instant, jitter: float) -> None:
        """Update for a new policy that replaces ``before``: VMs that have been idle for days may now sleep."""
        if policy.after and (not before.after or policy.after < before.after):
            self.spread_until = Instant(now + min(_SPREAD, policy.after) * jitter)

    def quiet_for(self, quiet: float, after: Seconds, now: Instant) -> Seconds:
        """The part of the guest's ``quiet`` time that counts towards ``after``: while the VM was observed running."""
        observed = Seconds(0.0 if self.running_from is None else now - self.running_from)
        # The clients of different VMs do not all stop at the same time, so no spread is needed.
        if quiet < observed:
            return Seconds(quiet)
        return Seconds(max(0.0, observed - self.spread_fraction * min(_SPREAD, after)))

    def wake_overdue(self, report: SleepReport, now: Instant) -> Seconds:
        """The time for which the VM has been waking, minus the time to read its saved memory (``report.saved``); 0 if
        it is not waking.
        """
        if self.waking_from is None:
            return Seconds(0.0)
        waking = now - self.waking_from
        # Reading starts only with the permit.
        if self.starting_from is None:
            return Seconds(waking)
        return Seconds(waking - min(now - self.starting_from, report.saved / _READ_RATE))

    def has_just_woken(self, now: Instant) -> bool:
        """Return True if other watchers may not have observed the wake yet."""
        return self.wake is not None and self.running_from is not None and now - self.running_from < _KNOWN_WITHIN

    def unused_wake(self, observed: ObservedSample | None) -> Wake | None:
        """The last wake if the last sample shows no client activity since and no order followed it, else None."""
        if observed is None or observed.sample.quiet is None or self.wake is None or self.wake.is_unused:
            return None
        return self.wake if observed.at - observed.sample.quiet < self.wake.at else None

    def order_sent(self, order: OrderSleep, observed: ObservedSample | None) -> None:
        """Record that ``order`` was sent."""
        self.ordering, self.is_early = order, order.is_early
        wake = self.unused_wake(observed)
        self.wake = self.wake if wake is None else replace(wake, is_unused=True)

    def order_written(self) -> None:
        """Record that the order was written to the object."""
        self.ordering, self.failures, self.retry_at = None, 0, None

    def order_failed(self, now: Instant, jitter: float) -> None:
        """Record that writing the order failed or timed out."""
        self.ordering, self.is_early, self.failures = None, False, self.failures + 1
        self.retry_at = Instant(now + VM_API_BACKOFF.delay(self.failures, jitter))
