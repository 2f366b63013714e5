"""The four examples of Tortoise's document on horizontal scaling, and its example of two containers.

The global configuration of all of them: MinimumMinReplicas 3, PreferredMaxReplicas 10, MaximumCPURequest 5 cores. The
workload requests 2 cores of CPU for each replica, and its policy asks for no less than 1 (MinAllocatedResources).
"""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

from protocol.units import MilliCpu
from scheduler_plugin.groups.core.tortoise.autoscaler import Autoscaler, ContainerTarget, Scaling
from scheduler_plugin.groups.core.tortoise.configuration import Configuration
from scheduler_plugin.groups.core.tortoise.decide import decide
from scheduler_plugin.groups.core.tortoise.tortoise_memory import ObservedAutoscalers, Spec, TortoiseMode
from scheduler_plugin.groups.core.workload import (
    ContainerRecommendation,
    Rule,
    SizeBounds,
    SizedContainer,
    VerticalRecommendation,
    WithheldChange,
    Workload,
)
from tests.scheduler_plugin.groups.core.tortoise.cluster_model import BEGIN, ClusterModel, at_work, cpu

CONFIGURATION = Configuration(
    minimum_min_replicas=3,
    preferred_max_replicas=10,
    maximum_cpu_request=MilliCpu(5000),
    minimum_target_resource_utilization=80,
    maximum_target_resource_utilization=80,
)
SPEC = Spec(CONFIGURATION, TortoiseMode.AUTO, sizes={"app": SizeBounds(min=cpu(1))})


def grown(needs: list[float], hours: float = 3) -> ClusterModel:
    """Ten replicas of 2 cores after each of ``needs`` lasted this many hours."""
    model = ClusterModel.working(SPEC, 10, 2)
    for need in needs:
        model.run(need, hours)
    return model


def test_example_1_preferred_replicas_grow_containers() -> None:
    model = ClusterModel.working(SPEC, 10, 2)
    day = [model.run(need, 1.5) for need in (17, 20, 24, 28, 31)]
    assert max(replicas for replicas, _ in day[-1]) <= 10
    assert model.cores > 3.8
    size = model.cores
    evening = [model.run(need, 1.5) for need in (28, 24, 20, 17)]
    assert {cores for part in evening for _, cores in part} == {size}  # horizontal again: the size stays
    assert model.replicas < 10
    next_day = [model.run(need, 1.5) for need in (17, 20, 24, 28, 31)]
    assert {cores for part in next_day for _, cores in part} == {size}  # no need to grow any more


def test_example_2_largest_request_adds_replicas() -> None:
    model = grown([20, 30, 40, 60])
    assert (model.replicas, model.cores) == (15, 5)


def test_example_3_minimum_replicas_shrink_containers() -> None:
    model = ClusterModel.working(SPEC, 3, 2)
    first = model.run(3.9, 1)
    assert set(first) == {(3, 1.6)}  # one step keeps four fifths, and the next comes an hour later
    second = model.run(3.9, 1)
    assert (first[-1], second[0]) == ((3, 1.6), (4, 1.3))  # full containers: the HPA adds a replica
    day = [model.run(need, 1)[-1] for need in (6, 8, 6, 4)]
    assert day == [(6, 1.3), (8, 1.3), (6, 1.3), (4, 1.3)]  # horizontal again: the size stays


def test_example_4_minimum_allocation_holds() -> None:
    model = ClusterModel.working(SPEC, 3, 2)
    model.run(0.6, 12)
    assert (model.replicas, model.cores) == (3, 1)
    last = model.passes(0.3)
    assert last.decision.containers == ()
    assert last.decision.withheld == (
        WithheldChange(
            "app/cpu",
            desired=MilliCpu(100),
            current=MilliCpu(1000),
            rule=Rule.BOUNDS,
            message="the replicas are at their minimum, so containers shrink instead",
        ),
    )


def test_idle_container_shrinks_to_target() -> None:
    spec = Spec(
        replace(CONFIGURATION, maximum_cpu_request=MilliCpu(10_000)),
        TortoiseMode.AUTO,
        policies={("app", "cpu"): Scaling.HORIZONTAL, ("istio-proxy", "cpu"): Scaling.HORIZONTAL},
    )
    said = VerticalRecommendation(
        (ContainerRecommendation("app", target=cpu(8)), ContainerRecommendation("istio-proxy", target=cpu(2)))
    )
    hpa = Autoscaler(3, 20, (ContainerTarget("app", "cpu", 80), ContainerTarget("istio-proxy", "cpu", 80)))
    memory, sizes, now = at_work(spec, ("app", "cpu"), ("istio-proxy", "cpu")), [5.0], BEGIN
    while len(sizes) < 6:
        here = Workload(6, 6, (SizedContainer("app", cpu(10)), SizedContainer("istio-proxy", cpu(sizes[-1]))))
        decision, memory = decide(spec, here, ObservedAutoscalers(hpa, said), memory, now)
        assert [each.name for each in decision.decision.containers] in ([], ["istio-proxy"])
        found = decision.sizes[1].requests.cpu
        assert found is not None
        sizes.append(found.as_cores)
        now += timedelta(hours=2)
    assert sizes == [5, 4, 3.2, 2.56, 2.56, 2.56]  # four fifths a step, until within a tenth of the target
