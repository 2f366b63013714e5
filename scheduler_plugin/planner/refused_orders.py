"""VMs whose migrations the API would not make lately: the planner passes over them for others (S4.9).

A refusal is about one VM until others share its fate: the VM rests as after a migration that failed, the others of its
namespace wait for seconds (a quota, a policy), and all VMs do so once a second namespace has refused in a row. If it is
about ourselves (no access, too many requests), all VMs wait and none rests.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from protocol.backoff import Backoff
from protocol.messages import ObjectName
from protocol.units import Instant, Seconds
from scheduler_plugin.planner.victims import Rest
from scheduler_plugin.texts import explanations

PAUSE: Final = Backoff(Seconds(1.0), Seconds(30.0), spread=1.0)


@dataclass(frozen=True, slots=True)
class _Wait:
    """``failures`` in a row; nothing is tried until ``until``."""

    failures: int
    until: Instant


class RefusedOrders:
    """The memory of one planner; a restart forgets it, which costs one order a VM."""

    def __init__(self) -> None:
        self._vms: dict[ObjectName, _Wait] = {}
        self._namespaces: dict[str, _Wait] = {}
        self._in_row: set[str] = set()
        self._all: _Wait | None = None

    def refused(self, vm: ObjectName, now: Instant, rest: Rest, jitter: float) -> None:
        """The API has certainly not made a migration of the VM. ``jitter`` in 0..1 is a random number."""
        self._rest(vm, now, rest, forgiven=0)
        self._namespaces[vm.namespace] = _longer(self._namespaces.get(vm.namespace), now, jitter)
        self._in_row.add(vm.namespace)
        # Two namespaces in a row: it is no quota of one of them.
        if len(self._in_row) > 1:
            self.refused_all(now, jitter)

    def refused_all(self, now: Instant, jitter: float) -> None:
        """The API takes no order of ours just now, whatever the VM."""
        self._all = _longer(self._all, now, jitter)

    def lost(self, vm: ObjectName, now: Instant, rest: Rest) -> None:
        """A creation without an answer has not come to anything."""
        # The network may have been the reason the first time. From the second in a row on it counts like a refusal:
        # an API server that ends each one with an error would be asked for the same VM for ever.
        self._rest(vm, now, rest, forgiven=1)

    def made(self, vm: ObjectName) -> None:
        """The API has made a migration of the VM."""
        self._vms.pop(vm, None)
        # Proves that the API takes migrations, in this namespace too.
        self._namespaces.pop(vm.namespace, None)
        self._in_row.clear()
        self._all = None

    def why_not(self, vm: ObjectName, now: Instant) -> str | None:
        """The reason why no migration of the VM should be ordered just now; None if one may be."""
        if _waits(self._vms.get(vm), now):
            return explanations.REFUSED_BY_API
        return explanations.REFUSED_NAMESPACE if _waits(self._namespaces.get(vm.namespace), now) else None

    def all_wait(self, now: Instant) -> bool:
        """Return True if no order at all should be given just now."""
        return _waits(self._all, now)

    def forget_old(self, now: Instant, rest: Rest) -> None:
        """Forgets waits that ended longer ago than the longest wait."""
        self._vms = {vm: wait for vm, wait in self._vms.items() if wait.until + rest.backoff_most > now}
        recent = {name: wait for name, wait in self._namespaces.items() if wait.until + rest.backoff_most > now}
        self._namespaces = recent
        self._in_row &= recent.keys()
        if self._all is not None and self._all.until + rest.backoff_most <= now:
            self._all = None

    def _rest(self, vm: ObjectName, now: Instant, rest: Rest, *, forgiven: int) -> None:
        previous = self._vms.get(vm)
        failures = 1 if previous is None else previous.failures + 1
        wait = rest.after(failures) if failures > forgiven else Seconds(0.0)
        self._vms[vm] = _Wait(failures, Instant(now + wait))


def _longer(known: _Wait | None, now: Instant, jitter: float) -> _Wait:
    failures = 1 if known is None else known.failures + 1
    return _Wait(failures, Instant(now + PAUSE.delay(failures, jitter)))


def _waits(wait: _Wait | None, now: Instant) -> bool:
    return wait is not None and now < wait.until
