"""Metrics of the requests of VMs' pods (B.10)."""

from __future__ import annotations

from typing import Final

from prometheus_client import CollectorRegistry, Counter, Histogram

from scheduler_plugin.metrics.leader_gauges import LeaderGauges

_PREFIX: Final = "autoscale_scheduler_pod_requests"
_SECONDS: Final = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0)


class RequestMetrics:
    """The metrics of one process: how writes end, how long agents wait for them, and how many pods are behind."""

    def __init__(self, registry: CollectorRegistry, of_leader: LeaderGauges) -> None:
        self.writes = Counter(f"{_PREFIX}_writes", "Requests of VMs' pods written", ["outcome"], registry=registry)
        self.waited = Histogram(
            f"{_PREFIX}_wait_seconds",
            "Time until a pod's requests held what its agent asked for: API server and kubelet together",
            registry=registry,
            buckets=_SECONDS,
        )
        self.withdrawn = Counter(
            f"{_PREFIX}_withdrawn",
            "Wishes taken back that a kubelet had put off (Deferred) or called impossible (Infeasible)",
            ["verdict"],
            registry=registry,
        )
        self.followed = of_leader.gauge(f"{_PREFIX}_followed", "1 while requests of pods follow their VMs")
        self.short = of_leader.gauge(f"{_PREFIX}_short", "Pods that request less than is reserved for their VMs")
