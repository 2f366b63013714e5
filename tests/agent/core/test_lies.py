"""A scheduler that sends wrong permits, and invalid settings: the agent survives and reports them."""

from __future__ import annotations

from dataclasses import replace

import pytest
from msgspec import structs

from agent.core.events import Fault, PolicyRefused, PolicySet, ScrapeFailed
from agent.core.explain import explain
from agent.core.state import Failure
from agent.core.vm import view
from protocol.messages import ObjectName
from protocol.units import Bytes, Instant, MilliCpu, Resources
from protocol.virtual_machine import VirtualMachine
from tests.agent.core.story import GIB, POLICY, Story, asks, cu, holding, planned, settled, vm


@pytest.mark.parametrize(
    ("permit", "complaint"),
    [
        (Resources(MilliCpu(0), Bytes(GIB)), "permit with a zero amount: 0 cpu, 1Gi"),
        (cu(3), "the permit (750m cpu, 3Gi) is above the request (500m cpu, 2Gi)"),
        (cu(0.5), "the permit (125m cpu, 512Mi) is below the size in use (250m cpu, 1Gi)"),
    ],
)
def test_impossible_permit_is_rejected_and_retried(permit: Resources, complaint: str) -> None:
    story = settled(1).looks(cores=0.25)
    story.acts()
    story.answers(permit)
    assert story.plans() == planned((), 4.0, "growing for cpu busy")
    assert story.state.scheduler.rejected == 1
    assert story.state.scheduler.ceiling == cu(1)
    assert story.state.scheduler.failure == Failure(Fault.SCHEDULER, complaint, Instant(1.0), Instant(1.0), 1)
    assert story.at(4.0).acts() == [asks(cu(2), cu(1), 3)]
    assert story.answers(cu(2)).state.scheduler.failure is None


def test_permit_before_vm_is_judged_by_request() -> None:
    story = Story().sees(vm(cu(2)))
    story.acts()
    story.state.vm.observed = None
    assert story.answers(cu(1)).state.scheduler.rejected == 1


def test_a_refused_policy_leaves_the_last_good_one() -> None:
    story = settled(1)
    stabilizer = story.state.guest.stabilizer
    story.happens(PolicyRefused("cpu.target: too big")).happens(PolicySet(replace(POLICY, cpu=POLICY.cpu)))
    assert explain(story.state, "default/vm-1", story.instant).troubles == []
    assert story.state.guest.stabilizer is stabilizer
    story.happens(PolicySet(replace(POLICY, smoothing=holding(9.0))))
    assert story.state.guest.stabilizer is not stabilizer
    story.happens(PolicyRefused("cpu.target: too big"))
    assert story.state.settings_failure is not None
    assert story.state.policy.smoothing == holding(9.0)


def test_metrics_before_vm_start_the_interval() -> None:
    story = Story().looks(cores=0.25)
    assert story.state.guest.goal.parts == ()
    story.sees(vm(cu(1))).at(0.1).looks()
    assert story.state.guest.observed is not None
    assert story.state.guest.observed.at == 0.0, "a second look within a moment is no interval"


def test_explanation_lists_failures_with_fault() -> None:
    story = settled(1).looks(cores=0.25, stall=0.75)
    story.acts()
    story.answers(cu(2)).at(3.0)
    story.happens(ScrapeFailed(Fault.GUEST, "answers 500")).happens(PolicyRefused("cpu.target: too big"))
    found = explain(story.state, "default/vm-1", story.instant)
    assert found.because == ("growing for cpu waiting; the scheduler granted 500m cpu, 2Gi of 1 cpu, 4Gi")
    assert found.denied == {
        "by": "scheduler",
        "wanted": {"cpu": "1", "mem": "4Gi"},
        "granted": {"cpu": "500m", "mem": "2Gi"},
        "since_seconds": 2.0,
        "times": 1,
    }
    assert [(t["with_"], t["fault"], t["reason"]) for t in found.troubles] == [
        ("metrics", "guest", "answers 500"),
        ("settings", "settings", "cpu.target: too big"),
    ]
    assert found.size is not None
    assert (found.size["has"], found.size["wished"]) == ({"cpu": "250m", "mem": "1Gi"}, {"cpu": "1", "mem": "4Gi"})
    assert found.metrics is not None
    assert [found.metrics[name] for name in ("cores_busy", "cpu_stall", "mem_used")] == [0.25, 0.75, "0"]


def test_cpu_seconds_count_seen_intervals_only() -> None:
    story = settled(1).at(10.0).looks()
    begun = story.state.guest.counted
    story.at(12.0).looks(cores=0.25, span=2.0).at(13.0).looks(cores=0.75)
    story.at(60.0).looks(cores=0.5, span=47.0).at(61.0).looks(cores=0.5)
    metrics = explain(story.state, "default/vm-1", story.instant).metrics
    assert metrics is not None
    assert (metrics["cpu_seconds"], metrics["seen_seconds"]) == (begun.used + 1.75, begun.observed + 4.0)


def test_explanation_of_new_agent() -> None:
    found = explain(Story().state, "default/vm-1", Instant(0.0))
    assert (found.because, found.size, found.metrics, found.permit) == (
        "the object has not been read yet",
        None,
        None,
        None,
    )


def test_view_without_status_uses_spec() -> None:
    found = VirtualMachine(
        name=ObjectName("default", "vm-1"),
        uid="u",
        resource_version="12",
        labels={},
        annotations={},
        bounds=vm(cu(1)).bounds,
        use=cu(2),
        actual=None,
        slot_size=Bytes(GIB),
        pod_name="vm-1-pod",
        node=None,
        pod_ip=None,
        phase="Running",
        enabled=True,
        permit=cu(3),
    )
    seen = view(found, "vm-1-pod")
    unable = "its controller does not support sleep"
    assert seen == structs.replace(vm(cu(2), version=12), recorded_permit=cu(3), never_sleeps=unable)
    assert not view(structs.replace(found, enabled=False), "vm-1-pod").resizable
    moved = view(structs.replace(found, pod_name="other", phase="Migrating", resource_version="x"), "vm-1-pod")
    assert (moved.ours, moved.resizable, moved.version) == (False, False, 0)
