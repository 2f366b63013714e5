"""Metrics of ``neonvm-controller``. Label values are a few constants, never names of VMs."""

from __future__ import annotations

from collections import Counter as Counts
from collections.abc import Callable, Iterable
from typing import Final

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from deploy.kube.informer import Informer, ObjectChange
from deploy.neonvm.objects.vm_spec import ENDED, FAILED, MIGRATING, PENDING, PRE_MIGRATING, RUNNING, SCALING, SUCCEEDED
from protocol.guest.sleep import ASLEEP, WAKING, SleepState, sleep_report
from protocol.kubernetes.objects import Json, text
from protocol.runtime.build_info import describe_process

_PHASES: Final = (PENDING, RUNNING, SCALING, PRE_MIGRATING, MIGRATING, ASLEEP, WAKING, SUCCEEDED, FAILED)
_ORDERED: Final = (SleepState.ASLEEP, SleepState.REFUSED)
_WOKEN: Final = (SleepState.AWAKE, SleepState.RESTARTED)
_WAKE_SECONDS: Final = (0.1, 0.2, 0.35, 0.6, 1.0, 2.0, 5.0, 10.0, 30.0)


class VmControllerTelemetry:
    """The metrics of one replica. Ends of guests are counted by the replica that ``leads``."""

    def __init__(self, vms: Informer, leads: Callable[[], bool]) -> None:
        self.registry = CollectorRegistry()
        self._leads = leads
        describe_process(self.registry, "neonvm-controller")
        leading = Gauge(
            "autoscale_neonvm_leading", "1 while this process holds the Lease and acts", registry=self.registry
        )
        leading.set_function(lambda: float(leads()))
        what = "Guests that ended, by the phase of their VM"
        self._ended = Counter("autoscale_neonvm_guests_ended", what, ("phase",), registry=self.registry)
        for phase in ENDED:
            self._ended.labels(phase.lower())
        what = "Orders to sleep, carried out or refused"
        self._orders = Counter("autoscale_neonvm_sleep_orders", what, ("outcome",), registry=self.registry)
        for state in _ORDERED:
            self._orders.labels(state.lower())
        what = "Time from the event that woke a VM until it ran, from saved memory (awake) or by a boot (restarted)"
        self._wakes = Histogram(
            "autoscale_neonvm_wake_seconds", what, ("end",), buckets=_WAKE_SECONDS, registry=self.registry
        )
        for state in _WOKEN:
            self._wakes.labels(state.lower())
        # Counted at each scrape, so that no missed event leaves a wrong number.
        self.registry.register(_Phases(vms))
        vms.listen(self._changed)

    def page(self) -> bytes:
        """The metrics page in Prometheus' text format."""
        return generate_latest(self.registry)

    def _changed(self, change: ObjectChange) -> None:
        # A VM that was just listed may have ended long ago.
        if change.before is None or change.after is None or not self._leads():
            return
        before, after = _phase(change.before), _phase(change.after)
        if after in ENDED and before not in ENDED:
            self._ended.labels(after.lower()).inc()
        self._count_sleep(change.before, change.after)

    def _count_sleep(self, before: Json, after: Json) -> None:
        report, earlier = sleep_report(after), sleep_report(before)
        if report.state is None or (report.state, report.since) == (earlier.state, earlier.since):
            return
        if report.state in _ORDERED:
            self._orders.labels(report.state.lower()).inc()
        # A VM whose pod ended while it slept was not woken.
        elif report.state in _WOKEN and report.seconds:
            self._wakes.labels(report.state.lower()).observe(report.seconds)


class _Phases(Collector):
    """The number of VMs in each phase, counted at each scrape."""

    def __init__(self, vms: Informer) -> None:
        self._vms = vms

    def collect(self) -> Iterable[GaugeMetricFamily]:
        """One family with label phase."""
        family = GaugeMetricFamily("autoscale_neonvm_vms", "VMs, by phase", labels=("phase",))
        counts = Counts(map(_phase, self._vms.objects.values()))
        for phase in _PHASES:
            family.add_metric((phase.lower(),), counts[phase])
        yield family


def _phase(vm: Json) -> str:
    # A new VM has no phase yet.
    return text(vm, "status", "phase") or PENDING
