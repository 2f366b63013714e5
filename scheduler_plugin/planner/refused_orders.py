"""VMs whose migrations the API server recently refused to create; the planner skips them (S4.9).

After a refusal its VM is in cooldown as after a failed migration, and others of its namespace wait for seconds (quota,
policy). After a refusal in a second namespace without a success in between, all VMs wait. A refusal that any VM would
get (unauthorized, too many requests) makes all VMs wait and starts no cooldown.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from protocol.backoff import Backoff
from protocol.messages import ObjectName
from protocol.units import Instant, Seconds
from scheduler_plugin.planner.victims import MoveDelays
from scheduler_plugin.texts import explanations

PAUSE: Final = Backoff(Seconds(1.0), Seconds(30.0), spread=1.0)


@dataclass(frozen=True, slots=True)
class _OrderWait:
    """``failures`` in a row; no try before ``until``."""

    failures: int
    until: Instant


class RefusedOrders:
    """Recent refusals, in memory only: a restart costs one attempt per VM."""

    def __init__(self) -> None:
        self._vms: dict[ObjectName, _OrderWait] = {}
        self._namespaces: dict[str, _OrderWait] = {}
        self._in_row: set[str] = set()
        self._all: _OrderWait | None = None

    def refused(self, vm: ObjectName, now: Instant, delays: MoveDelays, jitter: float) -> None:
        """Record that the API server certainly refused a migration of the VM. ``jitter`` is a random number in 0..1."""
        self._delay(vm, now, delays, tolerated=0)
        self._namespaces[vm.namespace] = _extended(self._namespaces.get(vm.namespace), now, jitter)
        self._in_row.add(vm.namespace)
        # Two namespaces in a row: not a quota of one of them.
        if len(self._in_row) > 1:
            self.refused_all(now, jitter)

    def refused_all(self, now: Instant, jitter: float) -> None:
        """Record that the API server accepts no migrations from us now."""
        self._all = _extended(self._all, now, jitter)

    def lost(self, vm: ObjectName, now: Instant, delays: MoveDelays) -> None:
        """Record that a creation without a response never landed."""
        # The first may be due to the network. From the second in a row it counts as a refusal: otherwise an API server
        # that fails on one VM would get only that one.
        self._delay(vm, now, delays, tolerated=1)

    def made(self, vm: ObjectName) -> None:
        """Record that the API server created a migration of the VM."""
        self._vms.pop(vm, None)
        # So the API server accepts migrations, in this namespace too.
        self._namespaces.pop(vm.namespace, None)
        self._in_row.clear()
        self._all = None

    def refusal_reason(self, vm: ObjectName, now: Instant) -> str | None:
        """The reason not to order a migration of the VM now; None if there is none."""
        if _is_waiting(self._vms.get(vm), now):
            return explanations.REFUSED_BY_API
        return explanations.REFUSED_NAMESPACE if _is_waiting(self._namespaces.get(vm.namespace), now) else None

    def all_wait(self, now: Instant) -> bool:
        """Return True if no migration should be ordered now."""
        return _is_waiting(self._all, now)

    def forget_old(self, now: Instant, delays: MoveDelays) -> None:
        """Drop waits that ended longer ago than the longest wait."""
        self._vms = {vm: wait for vm, wait in self._vms.items() if wait.until + delays.max_backoff > now}
        recent = {name: wait for name, wait in self._namespaces.items() if wait.until + delays.max_backoff > now}
        self._namespaces = recent
        self._in_row &= recent.keys()
        if self._all is not None and self._all.until + delays.max_backoff <= now:
            self._all = None

    def _delay(self, vm: ObjectName, now: Instant, delays: MoveDelays, *, tolerated: int) -> None:
        previous = self._vms.get(vm)
        failures = 1 if previous is None else previous.failures + 1
        wait = delays.after(failures) if failures > tolerated else Seconds(0.0)
        self._vms[vm] = _OrderWait(failures, Instant(now + wait))


def _extended(previous: _OrderWait | None, now: Instant, jitter: float) -> _OrderWait:
    failures = 1 if previous is None else previous.failures + 1
    return _OrderWait(failures, Instant(now + PAUSE.delay(failures, jitter)))


def _is_waiting(wait: _OrderWait | None, now: Instant) -> bool:
    return wait is not None and now < wait.until
