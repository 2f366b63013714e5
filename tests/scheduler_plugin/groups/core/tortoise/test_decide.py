"""The life of a Tortoise: what it learns, and what it writes to the HPA and the containers."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta
from zoneinfo import ZoneInfo

from protocol.units import Bytes, MilliCpu
from scheduler_plugin.groups.core.tortoise.autoscaler import Autoscaler, ContainerTarget, OtherMetric, Scaling
from scheduler_plugin.groups.core.tortoise.configuration import Configuration
from scheduler_plugin.groups.core.tortoise.decide import TortoiseDecision, decide
from scheduler_plugin.groups.core.tortoise.tortoise_memory import (
    ObservedAutoscalers,
    Phase,
    Spec,
    TortoiseMemory,
    TortoiseMode,
)
from scheduler_plugin.groups.core.workload import (
    ContainerRecommendation,
    ResourceList,
    Rule,
    SizedContainer,
    VerticalRecommendation,
    WithheldChange,
    Workload,
    WorkloadDecision,
)
from tests.scheduler_plugin.groups.core.tortoise.cluster_model import (
    BEGIN,
    CPU,
    ClusterModel,
    at_work,
    cpu,
    recommendation,
    workload,
)

DAILY = Configuration(gathering_data_period_type="daily", time_zone=ZoneInfo("UTC"))
AUTO = Spec(DAILY, TortoiseMode.AUTO)
TARGET = ContainerTarget("app", "cpu", 70)
HOUR, DAY = timedelta(hours=1), timedelta(days=1)


def days(spec: Spec, replicas: list[int], memory: TortoiseMemory) -> tuple[Autoscaler | None, TortoiseMemory]:
    """Observe a workload every hour at this number of replicas. Returns the last HPA."""
    hpa: Autoscaler | None = None
    for hour, count in enumerate(replicas):
        seen = ObservedAutoscalers(hpa, recommendation(1.4))
        decision, memory = decide(spec, workload(count, 2), seen, memory, BEGIN + hour * HOUR)
        hpa = decision.autoscaler
    return hpa, memory


def test_new_tortoise_waits_then_creates_hpa() -> None:
    first, memory = decide(AUTO, workload(6, 2), ObservedAutoscalers(), TortoiseMemory.empty(DAILY), BEGIN)
    assert first == TortoiseDecision(
        WorkloadDecision(explanation=("waiting for the first recommendation; between 3 and 12 replicas",)),
        Autoscaler(3, 12, (TARGET,)),
        Autoscaler(3, 12, (TARGET,)),
        (),
    )
    _, memory = decide(AUTO, workload(6, 2), ObservedAutoscalers(first.autoscaler), memory, BEGIN + HOUR)
    assert memory.phase is Phase.INITIALIZING
    _, memory = decide(
        AUTO, workload(6, 2), ObservedAutoscalers(first.autoscaler, recommendation(1)), memory, BEGIN + 2 * HOUR
    )
    assert memory.phase is Phase.GATHERING_DATA


def test_hours_have_own_numbers_after_day() -> None:
    rhythm = [6] * 8 + [20] * 12 + [6] * 4
    hpa, memory = days(AUTO, [*rhythm, *rhythm, *rhythm[:4]], TortoiseMemory.empty(DAILY))
    assert memory.phase is Phase.WORKING
    assert hpa == Autoscaler(3, 12, (replace(TARGET, utilisation=75),))
    day = BEGIN + 2 * DAY + 9 * HOUR
    later, _ = decide(AUTO, workload(6, 2), ObservedAutoscalers(hpa, recommendation(1.4)), memory, day)
    assert later.autoscaler == Autoscaler(9, 38, (replace(TARGET, utilisation=75),))  # 10 and 40, a day older


def test_crash_loops_are_not_learned_as_need() -> None:
    """Of six replicas two were ready: maxReplicas went from 12 to 100, and the next healthy day kept that."""
    memory, hpa = at_work(AUTO), Autoscaler(3, 12, (TARGET,))
    healthy, memory = decide(AUTO, workload(6, 2), ObservedAutoscalers(hpa, recommendation(1)), memory, BEGIN)
    assert healthy.autoscaler is not None
    for minutes, replicas in enumerate((6, 12, 24, 48, 100), start=1):
        crashing = replace(workload(replicas, 2), ready=2)
        now = BEGIN + timedelta(minutes=minutes)
        decision, memory = decide(
            AUTO, crashing, ObservedAutoscalers(healthy.autoscaler, recommendation(2)), memory, now
        )
        assert decision.autoscaler == healthy.autoscaler
    assert (healthy.autoscaler.min, healthy.autoscaler.max) == (3, 12)


def test_only_ready_replicas_are_learned() -> None:
    _, memory = decide(AUTO, replace(workload(6, 2), ready=4), ObservedAutoscalers(), at_work(AUTO), BEGIN)
    assert memory.replicas.max.at(BEGIN) == 8


def test_target_rises_by_five_once_a_day() -> None:
    memory = replace(at_work(AUTO), replicas=TortoiseMemory.empty(DAILY).replicas)
    hpa, targets = Autoscaler(3, 12, (TARGET,)), []
    for hour in (0, 1, 24, 48, 72):
        said = recommendation(1.4 if hour < 72 else 1.9)
        decision, memory = decide(AUTO, workload(6, 2), ObservedAutoscalers(hpa, said), memory, BEGIN + hour * HOUR)
        assert decision.autoscaler is not None
        hpa = decision.autoscaler
        targets.append(hpa.target(*CPU))
    assert targets == [75, 75, 75, 75, 80]


def test_a_resource_that_gathers_data_keeps_its_target() -> None:
    both = ResourceList(MilliCpu(2000), Bytes(2**30))
    spec = replace(AUTO, policies={CPU: Scaling.HORIZONTAL, ("app", "memory"): Scaling.HORIZONTAL})
    hpa = Autoscaler(3, 12, (TARGET, ContainerTarget("app", "memory", 70)))
    said = VerticalRecommendation((ContainerRecommendation("app", target=ResourceList(MilliCpu(1400), Bytes(2**30))),))
    here = Workload(6, 6, (SizedContainer("app", both),))
    decision, _ = decide(spec, here, ObservedAutoscalers(hpa, said), at_work(spec), BEGIN)
    assert decision.autoscaler == Autoscaler(3, 12, (replace(TARGET, utilisation=75), hpa.metrics[1]))


def test_target_stays_at_max_replicas() -> None:
    hpa = Autoscaler(3, 100, (TARGET,))
    decision, _ = decide(AUTO, workload(100, 2), ObservedAutoscalers(hpa, recommendation(1.8)), at_work(AUTO), BEGIN)
    assert decision.proposed is not None
    assert decision.proposed.target(*CPU) == 70


def test_off_learns_without_writing() -> None:
    off = replace(AUTO, mode=TortoiseMode.OFF, policies={CPU: Scaling.VERTICAL})
    seen = ObservedAutoscalers(None, recommendation(1))
    decision, memory = decide(off, workload(6, 2), seen, at_work(off), BEGIN)
    assert decision.decision.withheld == (
        WithheldChange("app/cpu", MilliCpu(1600), MilliCpu(2000), Rule.UPDATE_MODE, "updateMode is Off"),
    )
    assert (decision.decision.changes, decision.autoscaler) == (False, None)
    assert decision.sizes == (SizedContainer("app", cpu(1.6)),)
    assert memory.replicas.max.at(BEGIN) == 12


def test_off_says_what_it_would_tell_the_hpa() -> None:
    off = replace(AUTO, mode=TortoiseMode.OFF)
    decision, memory = decide(off, workload(6, 2), ObservedAutoscalers(None, recommendation(1)), at_work(off), BEGIN)
    assert [(each.subject, each.desired, each.current) for each in decision.decision.withheld] == [
        ("minReplicas", 3, None),
        ("maxReplicas", 12, None),
    ]
    hpa = Autoscaler(3, 12, (TARGET,))
    again, after = decide(off, workload(6, 2), ObservedAutoscalers(hpa, recommendation(1.4)), memory, BEGIN)
    assert (again.autoscaler, again.decision.withheld, after.targets_at) == (hpa, (), None)
    busier, _ = decide(off, workload(9, 2), ObservedAutoscalers(hpa, recommendation(1.4)), memory, BEGIN)
    assert [(each.desired, each.current) for each in busier.decision.withheld] == [(5, 3), (18, 12)]


def test_request_rises_at_once_falls_hourly() -> None:
    spec = replace(AUTO, policies={CPU: Scaling.VERTICAL})
    memory, size, sizes, kept = at_work(spec), 2.0, [], []
    for minutes, need in ((0, 1.0), (30, 1.0), (60, 1.0), (70, 2.0)):
        now = BEGIN + timedelta(minutes=minutes)
        decision, memory = decide(spec, workload(6, size), ObservedAutoscalers(None, recommendation(need)), memory, now)
        for container in decision.decision.containers:
            assert container.requests.cpu is not None
            size = container.requests.cpu.as_cores
        sizes.append(size)
        kept.append([(each.rule, each.desired, each.current) for each in decision.decision.withheld])
    assert sizes == [1.6, 1.6, 1.28, 2.42]
    assert kept == [
        [(Rule.BOUNDS, MilliCpu(1100), MilliCpu(1600))],
        [(Rule.DELAY, MilliCpu(1280), MilliCpu(1600))],
        [(Rule.BOUNDS, MilliCpu(1100), MilliCpu(1280))],
        [],
    ]


def test_too_many_replicas_grow_containers() -> None:
    spec = replace(AUTO, configuration=replace(DAILY, preferred_max_replicas=10))
    hpa, memory, grown = Autoscaler(3, 40, (TARGET,)), at_work(AUTO), []
    for minutes, replicas in ((0, 12), (20, 12), (30, 12), (50, 12), (60, 12), (90, 9), (120, 12)):
        now = BEGIN + timedelta(minutes=minutes)
        seen = ObservedAutoscalers(replace(hpa, max=40, min=3), recommendation(1.4))
        decision, memory = decide(spec, workload(replicas, 2), seen, memory, now)
        grown.append(bool(decision.decision.containers))
    assert grown == [False, False, True, False, True, False, False]


def test_containers_grow_though_another_clock_was_ahead() -> None:
    spec = replace(AUTO, configuration=replace(DAILY, preferred_max_replicas=10))
    memory, grown = replace(at_work(AUTO), too_many_since=BEGIN + DAY), []
    for minutes in (0, 20, 30):
        now = BEGIN + timedelta(minutes=minutes)
        seen = ObservedAutoscalers(Autoscaler(3, 40, (TARGET,)), recommendation(1.4))
        decision, memory = decide(spec, workload(12, 2), seen, memory, now)
        grown.append(bool(decision.decision.containers))
    assert grown == [False, False, True]


def test_hpa_minimum_stops_container_growth() -> None:
    spec = replace(AUTO, configuration=replace(DAILY, preferred_max_replicas=10))
    memory = replace(at_work(AUTO), too_many_since=BEGIN - DAY)
    seen = ObservedAutoscalers(Autoscaler(12, 40, (TARGET,)), recommendation(1.4))
    decision, after = decide(spec, workload(12, 2), seen, memory, BEGIN)
    assert (decision.decision.changes, after.too_many_since) == (False, BEGIN - DAY)


def test_emergency_uses_peak_then_returns() -> None:
    model = ClusterModel.working(AUTO, 10, 2)
    model.run(14, 1)
    model.spec = replace(model.spec, mode=TortoiseMode.EMERGENCY)
    before = model.cores
    assert {replicas for replicas, _ in model.run(2, 3)} == {20}
    assert (model.autoscaler.min, model.autoscaler.max, model.cores) == (20, 20, before)
    learned = model.memory.replicas
    model.spec = replace(model.spec, mode=TortoiseMode.AUTO)
    back = model.run(2, 1.5)
    assert [replicas for replicas, _ in back][:6] == [19, 18, 17, 16, 15, 14]
    assert model.memory.phase is Phase.WORKING
    assert learned.max.at(BEGIN) == 20  # nothing was learned of the emergency


def test_an_emergency_that_cannot_be_says_why() -> None:
    asked = replace(AUTO, mode=TortoiseMode.EMERGENCY)
    new, _ = decide(
        asked, workload(6, 2), ObservedAutoscalers(None, recommendation(1)), TortoiseMemory.empty(DAILY), BEGIN
    )
    assert new.decision.explanation[0] == (
        "updateMode Emergency has no effect: the usual number of replicas is not known yet"
    )
    vertical = replace(asked, policies={CPU: Scaling.VERTICAL})
    alone, _ = decide(vertical, workload(6, 2), ObservedAutoscalers(None, recommendation(1)), at_work(vertical), BEGIN)
    assert alone.decision.explanation[0] == "updateMode Emergency has no effect: nothing scales horizontally"


def test_the_steps_back_are_an_update_interval_apart() -> None:
    memory = replace(at_work(AUTO), phase=Phase.BACK_TO_NORMAL)
    hpa, found = Autoscaler(20, 20, (TARGET,)), []
    for seconds in (0, 5, 14, 15, 29, 30):
        now = BEGIN + timedelta(seconds=seconds)
        decision, memory = decide(AUTO, workload(20, 2), ObservedAutoscalers(hpa, recommendation(1)), memory, now)
        assert decision.autoscaler is not None
        hpa = decision.autoscaler
        found.append(hpa.min)
    assert found == [19, 19, 19, 18, 18, 17]


def test_missing_metrics_cause_emergency() -> None:
    memory, since = at_work(AUTO), BEGIN
    hpa, phases = Autoscaler(3, 12, (TARGET,)), []
    for minutes, missing in ((4, since), (5, since), (60, since), (61, None)):
        seen = ObservedAutoscalers(hpa, recommendation(1), missing)
        decision, memory = decide(AUTO, workload(6, 2), seen, memory, BEGIN + timedelta(minutes=minutes))
        assert decision.autoscaler is not None
        hpa = decision.autoscaler
        phases.append((memory.phase, hpa.min))
    assert phases == [
        (Phase.WORKING, 3),
        (Phase.EMERGENCY, 12),
        (Phase.EMERGENCY, 12),
        (Phase.BACK_TO_NORMAL, 11),
    ]


def test_metrics_missing_since_tomorrow_count_from_now() -> None:
    """The HPA controller's clock was ahead: the emergency came only once that time had come."""
    memory, phases = at_work(AUTO), []
    for minutes, missing in ((0, BEGIN + DAY), (4, BEGIN + DAY), (5, BEGIN + DAY), (6, None)):
        seen = ObservedAutoscalers(Autoscaler(3, 12, (TARGET,)), recommendation(1), missing)
        _, memory = decide(AUTO, workload(6, 2), seen, memory, BEGIN + timedelta(minutes=minutes))
        phases.append(memory.phase)
    assert phases == [Phase.WORKING, Phase.WORKING, Phase.EMERGENCY, Phase.WORKING]
    assert memory.metrics_missing_since is None
    ahead = replace(memory, metrics_missing_since=BEGIN + DAY).with_missing_metrics(BEGIN + DAY, BEGIN)
    assert ahead.metrics_missing_since == BEGIN


def test_own_hpa_is_deleted_if_vertical() -> None:
    spec = replace(AUTO, policies={CPU: Scaling.VERTICAL})
    decision, _ = decide(spec, workload(6, 2), ObservedAutoscalers(Autoscaler(3, 12, (TARGET,))), at_work(spec), BEGIN)
    assert decision.autoscaler is None


def test_attached_hpa_keeps_other_metrics() -> None:
    spec = replace(AUTO, autoscaler="mine", policies={CPU: Scaling.VERTICAL})
    queue = OtherMetric({"type": "External"})
    for metrics, left in (((TARGET, queue), Autoscaler(3, 12, (queue,))), ((TARGET,), Autoscaler(6, 6))):
        decision, _ = decide(
            spec, workload(6, 2), ObservedAutoscalers(Autoscaler(3, 12, metrics)), at_work(spec), BEGIN
        )
        assert decision.autoscaler == left


def test_attached_hpa_rests_at_zero_replicas() -> None:
    spec = replace(AUTO, autoscaler="mine", policies={CPU: Scaling.VERTICAL})
    hpa = Autoscaler(3, 12, (TARGET,))
    decision, _ = decide(spec, workload(0, 2), ObservedAutoscalers(hpa), at_work(spec), BEGIN)
    assert decision.autoscaler == hpa


def test_vertical_only_ends_emergency_numbers() -> None:
    spec = replace(AUTO, mode=TortoiseMode.EMERGENCY, autoscaler="mine", policies={CPU: Scaling.VERTICAL})
    memory = replace(at_work(spec), phase=Phase.EMERGENCY)
    decision, _ = decide(spec, workload(6, 2), ObservedAutoscalers(Autoscaler(20, 20, (TARGET,))), memory, BEGIN)
    assert decision.autoscaler == Autoscaler(6, 6)


def test_missing_attached_hpa_changes_nothing() -> None:
    spec = replace(AUTO, autoscaler="mine")
    hpa = Autoscaler(3, 12, (TARGET,))
    _, memory = decide(spec, workload(6, 2), ObservedAutoscalers(hpa, recommendation(1)), at_work(spec), BEGIN)
    _, after = decide(spec, workload(6, 2), ObservedAutoscalers(None, recommendation(1)), memory, BEGIN + HOUR)
    assert after.policies == memory.policies == {CPU: Scaling.HORIZONTAL, ("app", "memory"): Scaling.OFF}


def test_one_write_sizes_cpu_and_memory() -> None:
    both = ResourceList(MilliCpu(1000), Bytes(1000 * 2**20))
    spec = replace(AUTO, policies={CPU: Scaling.VERTICAL, ("app", "memory"): Scaling.VERTICAL})
    said = ContainerRecommendation("app", target=ResourceList(MilliCpu(2000), Bytes(2000 * 2**20)))
    here = Workload(6, 6, (SizedContainer("app", both), SizedContainer("other", both)))
    seen = ObservedAutoscalers(None, VerticalRecommendation((said,)))
    decision, _ = decide(spec, here, seen, at_work(spec, CPU, ("app", "memory")), BEGIN)
    wanted = SizedContainer("app", ResourceList(MilliCpu(2420), Bytes(2420 * 2**20)))
    assert (decision.decision.containers, decision.sizes) == ((wanted,), (wanted,))


def test_time_of_day_is_that_of_the_zone() -> None:
    tokyo = replace(AUTO, configuration=replace(DAILY, time_zone=ZoneInfo("Asia/Tokyo")))
    _, memory = decide(tokyo, workload(6, 2), ObservedAutoscalers(None, recommendation(1)), at_work(tokyo), BEGIN)
    assert [slot.start for slot, _ in memory.replicas.max] == [9]
    assert datetime(2026, 5, 4, 9, tzinfo=ZoneInfo("Asia/Tokyo")) == BEGIN
