"""Metrics of ``neonvm-controller``. Labels are few fixed words, never names of VMs."""

from __future__ import annotations

from collections import Counter as Counts
from collections.abc import Callable, Iterable
from typing import Final

from prometheus_client import CollectorRegistry, Counter, Gauge, generate_latest
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from deploy.kube.informer import Informer, ObjectChange
from deploy.neonvm.objects.vm_spec import ENDED, FAILED, MIGRATING, PENDING, PRE_MIGRATING, RUNNING, SCALING, SUCCEEDED
from protocol.kubernetes.objects import Json, text
from protocol.runtime.build_info import describe_process

_PHASES: Final = (PENDING, RUNNING, SCALING, PRE_MIGRATING, MIGRATING, SUCCEEDED, FAILED)


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
        what = "Guests that have ended, by the phase of their VM"
        self._ended = Counter("autoscale_neonvm_guests_ended", what, ("phase",), registry=self.registry)
        for phase in ENDED:
            self._ended.labels(phase.lower())
        # Counted at each scrape, so that no missed event leaves a wrong number.
        self.registry.register(_Phases(vms))
        vms.listen(self._changed)

    def page(self) -> bytes:
        """The metrics in Prometheus's text format."""
        return generate_latest(self.registry)

    def _changed(self, change: ObjectChange) -> None:
        # A VM that is seen for the first time may have ended long ago.
        if change.before is None or change.after is None or not self._leads():
            return
        before, after = _phase(change.before), _phase(change.after)
        if after in ENDED and before not in ENDED:
            self._ended.labels(after.lower()).inc()


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
    # A VM that no controller has seen yet has no phase.
    return text(vm, "status", "phase") or PENDING
