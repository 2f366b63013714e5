"""Backoff for a pod's CPU and memory after the kubelet or the API server rejected a resize (B.7)."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final, Literal

from msgspec.structs import replace as with_fields

from agent.core.policy import DEFERRED_BACKOFF, REFUSED_GROWTH_BACKOFF, TRIAL_BACKOFF
from agent.core.vm import Vm
from protocol.backoff import Backoff
from protocol.pod_database import DEFERRED
from protocol.units import Amount, Instant, Resources

Resource = Literal["cpu", "mem"]

RESOURCE_NAMES: Final[dict[Resource, str]] = {"cpu": "CPU", "mem": "memory"}


def amount(size: Resources, resource: Resource) -> Amount:
    """The amount of ``resource`` in ``size``."""
    return size.cpu if resource == "cpu" else size.mem


def with_amount(size: Resources, resource: Resource, other: Resources) -> Resources:
    """``size`` with the ``resource`` of ``other``."""
    return with_fields(size, **{resource: amount(other, resource)})


@dataclass(frozen=True, slots=True)
class ResizePause:
    """Until ``until``, the requests of ``resource`` must not grow (``is_growth``) or must not shrink.

    ``actual`` is the pod's actual amount when the resize failed, for the ``count``-th time in a row, and ``because``
    the reason.
    """

    resource: Resource
    is_growth: bool
    actual: Amount
    because: str
    count: int = 0
    until: Instant = Instant(0.0)

    def is_active(self, now: Instant) -> bool:
        """Return True until the pause has expired."""
        return now < self.until

    def limits(self, size: Resources, vm: Vm, now: Instant) -> Resources:
        """``size`` as far as the pause allows at ``now``."""
        wanted, use = amount(size, self.resource), amount(vm.use, self.resource)
        is_beyond = wanted > use if self.is_growth else wanted < use
        return with_amount(size, self.resource, vm.use) if is_beyond and self.is_active(now) else size

    def is_over(self, vm: Vm) -> bool:
        """Return True if the pod got at least part of the refused change."""
        has = amount(vm.actual, self.resource)
        return has > self.actual if self.is_growth else has < self.actual


@dataclass(frozen=True, slots=True)
class Pauses:
    """The last pause of each resource. An expired one is kept, because the next one is longer."""

    cpu: ResizePause | None = None
    mem: ResizePause | None = None

    @property
    def set_pauses(self) -> tuple[ResizePause, ...]:
        """The pauses that are set."""
        return tuple(pause for pause in (self.cpu, self.mem) if pause is not None)

    def limits(self, size: Resources, vm: Vm, now: Instant) -> Resources:
        """``size`` as far as the pauses allow at ``now``."""
        for pause in self.set_pauses:
            size = pause.limits(size, vm, now)
        return size

    def after(self, vm: Vm) -> Pauses:
        """These pauses without those that ``vm`` shows to be over."""
        pauses = {pause.resource: pause for pause in self.set_pauses if not pause.is_over(vm)}
        return Pauses(pauses.get("cpu"), pauses.get("mem"))

    def objected(self, resource: Resource, vm: Vm, now: Instant, jitter: float) -> Pauses:
        """These pauses after reverting ``resource`` because the kubelet objected."""
        is_growth = amount(vm.use, resource) > amount(vm.actual, resource)
        pause = ResizePause(resource, is_growth, amount(vm.actual, resource), str(vm.objection))
        is_deferred = vm.objection is not None and vm.objection.verdict == DEFERRED
        # A deferred resize may fit soon.
        return self._longer(pause, DEFERRED_BACKOFF if is_deferred else _backoff(pause), now, jitter)

    def refused(self, pause: ResizePause, now: Instant, jitter: float) -> Pauses:
        """These pauses after the API server refused the change described by ``pause``."""
        return self._longer(pause, _backoff(pause), now, jitter)

    def _longer(self, pause: ResizePause, backoff: Backoff, now: Instant, jitter: float) -> Pauses:
        last = self.cpu if pause.resource == "cpu" else self.mem
        count = last.count if last is not None and last.is_growth is pause.is_growth else 0
        # A revert is repeated after a conflict, but the objection is still the same.
        if last is not None and count and last.is_active(now):
            return self
        until = Instant(now + backoff.delay(count + 1, jitter))
        return replace(self, **{pause.resource: replace(pause, count=count + 1, until=until)})


def _backoff(pause: ResizePause) -> Backoff:
    # Each shrink of memory begins with a trial, which evicts page cache. Kubernetes 1.33 refuses all such shrinks.
    return TRIAL_BACKOFF if pause.resource == "mem" and not pause.is_growth else REFUSED_GROWTH_BACKOFF


NO_PAUSES: Final = Pauses()
"""Nothing has been refused yet."""
