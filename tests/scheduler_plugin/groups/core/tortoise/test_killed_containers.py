"""A container that ran out of memory is an emergency until it has more; and limits go along with requests."""

from __future__ import annotations

import re
from dataclasses import replace
from datetime import timedelta

import pytest

from protocol.units import Bytes, MilliCpu
from scheduler_plugin.groups.core.tortoise.autoscaler import Autoscaler, ContainerTarget, OtherMetric, Place, Scaling
from scheduler_plugin.groups.core.tortoise.configuration import Configuration
from scheduler_plugin.groups.core.tortoise.decide import TortoiseDecision, decide
from scheduler_plugin.groups.core.tortoise.tortoise_memory import (
    ObservedAutoscalers,
    Phase,
    Spec,
    TortoiseMemory,
    TortoiseMode,
)
from scheduler_plugin.groups.core.workload import OutOfMemory, ResourceList, SizeBounds, SizedContainer, Workload
from tests.scheduler_plugin.groups.core.tortoise.cluster_model import BEGIN, CPU, at_work, recommendation

MEMORY: Place = ("app", "memory")
BOTH = {CPU: Scaling.HORIZONTAL, MEMORY: Scaling.VERTICAL}
SPEC = Spec(Configuration(), TortoiseMode.AUTO, policies=BOTH)
HPA = Autoscaler(3, 12, (ContainerTarget("app", "cpu", 70),))
GIGA = 10**9
KILL = OutOfMemory("app", BEGIN)


def sizes(cores: float, memory: float) -> ResourceList:
    return ResourceList(MilliCpu.cores(cores), Bytes(int(memory * GIGA)))


def killed(*kills: OutOfMemory, limits: ResourceList | None = None) -> Workload:
    """Six replicas of 2 CPUs and 1 GB, of which one was killed."""
    return Workload(6, 6, (SizedContainer("app", sizes(2, 1), limits or ResourceList()),), kills or (KILL,))


def looked(
    spec: Spec, workload: Workload, memory: TortoiseMemory, minutes: float = 0, hpa: Autoscaler | None = HPA
) -> tuple[TortoiseDecision, TortoiseMemory]:
    return decide(
        spec, workload, ObservedAutoscalers(hpa, recommendation(1.4)), memory, BEGIN + timedelta(minutes=minutes)
    )


def test_oom_growth_precedes_shrinks() -> None:
    decision, memory = looked(SPEC, killed(), at_work(SPEC, CPU, MEMORY))
    assert memory.phase is Phase.EMERGENCY
    assert decision.autoscaler is not None
    assert decision.autoscaler.min == decision.autoscaler.max
    assert decision.decision.containers == (SizedContainer("app", ResourceList(memory=Bytes(1_452_000_000))),)
    _, memory = looked(SPEC, replace(killed(), out_of_memory=()), memory, 1, decision.autoscaler)
    assert memory.phase is Phase.BACK_TO_NORMAL


def in_pods(*minutes: float) -> OutOfMemory:
    """Kills of the container in this many pods, each this many minutes after the beginning."""
    times = [BEGIN + timedelta(minutes=each) for each in minutes]
    return OutOfMemory("app", max(times), tuple(times))


@pytest.mark.parametrize(
    ("replicas", "pods", "is_emergency"),
    [
        (20, 1, False),
        (20, 6, False),
        (20, 7, True),
        (6, 2, False),
        (6, 3, True),
        (2, 1, False),
        (2, 2, True),
        (1, 1, True),
    ],
)
def test_many_kills_are_an_emergency(replicas: int, pods: int, is_emergency: bool) -> None:
    """Otherwise, one leaking pod of twenty doubled the group for as long as the kills repeated."""
    spec = replace(SPEC, policies={CPU: Scaling.HORIZONTAL})
    here = replace(killed(in_pods(*[0] * pods)), replicas=replicas, ready=replicas)
    decision, memory = looked(spec, here, at_work(spec))
    assert (memory.phase is Phase.EMERGENCY) is is_emergency
    (said,) = decision.unresolved_kills
    assert said == (
        f"app ran out of memory in {pods} of {replicas} pods, last at 00:00:00 UTC: "
        "autoscalingPolicy does not scale its memory"
    )


def test_kill_emergency_ends_with_grace() -> None:
    spec = replace(SPEC, policies={CPU: Scaling.HORIZONTAL})
    memory, phases, hpa = at_work(spec), [], HPA
    for minutes in (0, 4, 5, 6):
        decision, memory = looked(spec, killed(in_pods(0, 0, 0)), memory, minutes, hpa)
        hpa = decision.autoscaler or hpa
        phases.append((memory.phase, bool(decision.unresolved_kills)))
    after = (Phase.BACK_TO_NORMAL, False)
    assert phases == [(Phase.EMERGENCY, True), (Phase.EMERGENCY, True), after, after]


def test_kills_of_long_ago_are_not_many() -> None:
    """A pod's status shows its last kill as long as the pod exists."""
    spec = replace(SPEC, policies={CPU: Scaling.HORIZONTAL})
    decision, memory = looked(spec, killed(in_pods(0, 0, 0, 60)), at_work(spec), 60)
    assert (memory.phase, len(decision.unresolved_kills)) == (Phase.WORKING, 1)


def test_kill_at_maximum_is_reported() -> None:
    for settings, sizes in (
        (Configuration(maximum_memory_request=Bytes(GIGA)), {}),
        (Configuration(), {"app": SizeBounds(max=ResourceList(memory=Bytes(GIGA)))}),
    ):
        small = replace(SPEC, configuration=settings, sizes=sizes)
        decision, memory = looked(small, killed(), at_work(small, CPU, MEMORY))
        assert (memory.phase, decision.decision.containers) == (Phase.WORKING, ())
        assert decision.unresolved_kills[0].endswith(f"its memory is at its maximum, {Bytes(GIGA)}")


def test_emergency_at_maximum_writes_nothing() -> None:
    small = replace(SPEC, configuration=Configuration(maximum_memory_request=Bytes(GIGA)))
    decision, memory = looked(small, killed(in_pods(0, 0, 0)), at_work(small, CPU, MEMORY))
    assert (memory.phase, decision.decision.containers) == (Phase.EMERGENCY, ())


def test_gathering_memory_does_not_grow() -> None:
    decision, memory = looked(SPEC, killed(), at_work(SPEC))
    assert memory.phase is Phase.PARTLY_WORKING
    assert decision.unresolved_kills[0].endswith("data on its memory is still being gathered")


def test_off_reports_without_emergency() -> None:
    off = replace(SPEC, mode=TortoiseMode.OFF)
    decision, memory = looked(off, killed(), at_work(off, CPU, MEMORY))
    assert (memory.phase, decision.decision.changes) == (Phase.WORKING, False)
    assert "app/memory" in [each.subject for each in decision.decision.withheld]


def test_no_emergency_before_numbers() -> None:
    _, memory = looked(SPEC, killed(), replace(at_work(SPEC), phase=Phase.GATHERING_DATA, resources={}))
    assert memory.phase is Phase.GATHERING_DATA


def test_unmanaged_kill_sizes_nothing() -> None:
    bare = Workload(6, 6, (SizedContainer("app", ResourceList(MilliCpu(2000))),), (KILL, OutOfMemory("gone", BEGIN)))
    decision, memory = looked(SPEC, bare, at_work(SPEC))
    assert (memory.phase, decision.decision.containers) == (Phase.WORKING, ())
    assert [each.partition("UTC: ")[2] for each in decision.unresolved_kills] == [
        "it has neither request nor limit for memory"
    ] * 2
    assert "gone" not in memory.recommended


@pytest.mark.parametrize(
    ("limits", "settings", "expected"),
    [
        (sizes(4, 1), Configuration(), Bytes(1_452_000_000)),
        (sizes(4, 2), Configuration(), Bytes(5_808_000_000)),  # killed at its limit: a fifth more than 2 GB
        (sizes(4, 2), Configuration(resource_limit_multiplier={"memory": 3}), Bytes(8_712_000_000)),
    ],
)
def test_limit_keeps_ratio(limits: ResourceList, settings: Configuration, expected: Bytes) -> None:
    spec = replace(SPEC, configuration=settings)
    (written,) = looked(spec, killed(limits=limits), at_work(spec, CPU, MEMORY))[0].decision.containers
    assert written.limits == ResourceList(memory=expected)
    assert written.requests.memory is not None
    assert written.limits.memory is not None
    assert written.limits.memory.value >= written.requests.memory.value


def test_cpu_limit_has_cluster_minimum() -> None:
    spec = replace(
        SPEC, policies={CPU: Scaling.VERTICAL}, configuration=Configuration(minimum_cpu_limit=MilliCpu(5000))
    )
    here = replace(killed(limits=sizes(4, 1)), out_of_memory=())
    decision, _ = decide(spec, here, ObservedAutoscalers(None, recommendation(3)), at_work(spec), BEGIN)
    assert decision.decision.containers == (
        SizedContainer("app", ResourceList(MilliCpu(3630)), ResourceList(MilliCpu(7260))),
    )
    less, _ = decide(spec, here, ObservedAutoscalers(None, recommendation(0.5)), at_work(spec), BEGIN)
    assert less.decision.containers == (
        SizedContainer("app", ResourceList(MilliCpu(1600)), ResourceList(MilliCpu(5000))),
    )


def test_excluded_external_metrics_are_removed() -> None:
    def external(name: str) -> OtherMetric:
        return OtherMetric({"type": "External", "external": {"metric": {"name": name}}})

    pods = OtherMetric({"type": "Pods", "pods": {"metric": {"name": "datadogmetric@x"}}})
    settings = Configuration(hpa_external_metric_exclusion_regex=re.compile("datadogmetric.*"))
    hpa = replace(HPA, metrics=(external("datadogmetric@shop:cpu"), *HPA.metrics, external("queue"), pods))
    spec = replace(SPEC, configuration=settings, autoscaler="web")
    here = replace(killed(), out_of_memory=())
    decision, _ = decide(spec, here, ObservedAutoscalers(hpa, recommendation(1.4)), at_work(spec, CPU, MEMORY), BEGIN)
    assert decision.autoscaler is not None
    assert decision.autoscaler.metrics == (ContainerTarget("app", "cpu", 75), external("queue"), pods)
    left, _ = decide(replace(spec, policies={}), here, ObservedAutoscalers(hpa, None), at_work(spec), BEGIN)
    assert left.autoscaler is not None
    assert left.autoscaler.metrics == (*HPA.metrics, external("queue"), pods)  # nothing is managed, so cpu stays
