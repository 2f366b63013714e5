"""A workload whose HPA, VPA and Tortoise act on each other, some minutes at a time."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from math import ceil

from protocol.units import MilliCpu
from scheduler_plugin.groups.core.tortoise.autoscaler import Autoscaler, ContainerTarget, Place, Scaling
from scheduler_plugin.groups.core.tortoise.decide import TortoiseDecision, decide
from scheduler_plugin.groups.core.tortoise.tortoise_memory import (
    ObservedAutoscalers,
    Phase,
    ResourcePhase,
    ResourceState,
    Spec,
    TortoiseMemory,
)
from scheduler_plugin.groups.core.workload import (
    ContainerRecommendation,
    ResourceList,
    SizedContainer,
    VerticalRecommendation,
    Workload,
)

BEGIN = datetime(2026, 5, 4, tzinfo=UTC)
CPU: Place = ("app", "cpu")


def cpu(cores: float) -> ResourceList:
    return ResourceList(cpu=MilliCpu.cores(cores))


def workload(replicas: int, cores: float) -> Workload:
    return Workload(replicas, replicas, (SizedContainer("app", cpu(cores)),))


def recommendation(cores: float) -> VerticalRecommendation:
    said = ContainerRecommendation("app", target=cpu(cores), upper=cpu(cores * 1.2))
    return VerticalRecommendation((said,))


def at_work(spec: Spec, *places: Place) -> TortoiseMemory:
    """The memory of a Tortoise that has gathered enough, but not one number."""
    resources = dict.fromkeys(places or (CPU,), ResourcePhase(ResourceState.WORKING, BEGIN))
    return replace(TortoiseMemory.empty(spec.configuration), phase=Phase.WORKING, resources=resources)


@dataclass
class ClusterModel:
    """One container, whose need of CPU is shared evenly by all replicas."""

    spec: Spec
    replicas: int
    cores: float
    memory: TortoiseMemory
    now: datetime = BEGIN
    step: timedelta = timedelta(minutes=5)
    autoscaler: Autoscaler = field(default_factory=lambda: Autoscaler(3, 20, (ContainerTarget("app", "cpu", 80),)))

    @classmethod
    def working(cls, spec: Spec, replicas: int, cores: float) -> ClusterModel:
        """Everything has been known for long."""
        policies = {CPU: Scaling.HORIZONTAL}
        spec = replace(spec, autoscaler="hpa", policies=policies)
        return cls(spec, replicas, cores, at_work(spec))

    def passes(self, need: float) -> TortoiseDecision:
        """One step of time in which this many vCPUs are needed."""
        used = need / self.replicas
        seen = ObservedAutoscalers(self.autoscaler, recommendation(used))
        decision, self.memory = decide(self.spec, workload(self.replicas, self.cores), seen, self.memory, self.now)
        assert decision.autoscaler is not None
        self.autoscaler = decision.autoscaler
        for container in decision.decision.containers:
            assert container.requests.cpu is not None
            self.cores = container.requests.cpu.as_cores
        self._scales(need)
        self.now += self.step
        return decision

    def run(self, need: float, hours: float) -> list[tuple[int, float]]:
        """Replicas and cores after each step of a constant need."""
        path = []
        for _ in range(int(timedelta(hours=hours) / self.step)):
            self.passes(need)
            path.append((self.replicas, self.cores))
        return path

    def _scales(self, need: float) -> None:
        """The HPA's rule: the ratio to the target, with a tolerance, within its bounds."""
        ratio = need / self.replicas / self.cores / ((self.autoscaler.target(*CPU) or 80) / 100)
        wanted = self.replicas if abs(ratio - 1) <= 0.1 else ceil(self.replicas * ratio - 1e-9)
        self.replicas = max(self.autoscaler.min, min(self.autoscaler.max, wanted))
