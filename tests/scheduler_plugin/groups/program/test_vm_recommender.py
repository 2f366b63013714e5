"""Recommendations from VMs' agents are stored on the HPA and VPA of an Hvpa, and override their status."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import msgspec
import pytest

from protocol.kubernetes.conditions import condition
from protocol.kubernetes.objects import Json, annotations_of, child, items, text
from protocol.kubernetes.resources import (
    HORIZONTAL_AUTOSCALERS,
    HVPAS,
    VERTICAL_AUTOSCALERS,
    VIRTUAL_MACHINES,
    VM_GROUPS,
)
from protocol.names import ANNOTATION_BOUNDS, ANNOTATION_RECOMMENDATION
from protocol.units import Bytes
from scheduler_plugin.groups.objects.vm_use import GuestUse, has_recommendation, with_annotated_status
from scheduler_plugin.groups.settings import GroupsLease, GroupsSettings
from tests.scheduler_plugin.groups.program.cluster import condition_of
from tests.scheduler_plugin.groups.program.running import UNFOLLOWED
from tests.scheduler_plugin.groups.program.test_in_place import VM
from tests.scheduler_plugin.groups.program.vm_group_story import Story, story

AGENTS = GroupsSettings(lease=UNFOLLOWED.lease, recommender="agents")

GIB = 2**30

OF_GROUP = """
metadata: {name: readers}
spec:
  mode: HpaPreferred
  hpaTemplate:
    minReplicas: 1
    maxReplicas: 4
    metrics:
    - {type: Resource, resource: {name: cpu, target: {type: AverageValue, averageValue: "1"}}}
  targetRef: {apiVersion: autoscaling.neon.tech/v1alpha1, kind: VirtualMachineGroup, name: shop}
"""

OF_VM = """
metadata: {name: sizes}
spec:
  vpaTemplate: {}
  targetRef: {apiVersion: vm.neon.tech/v1, kind: VirtualMachine, name: db}
"""


@asynccontextmanager
async def recommending(settings: GroupsSettings = AGENTS) -> AsyncIterator[Story]:
    async with story() as run:
        await run.start(settings=settings)
        yield run


async def replicas(run: Story) -> object:
    return child(await run.cluster.get(VM_GROUPS, "shop"), "spec")["replicas"]


async def test_hvpa_scales_vm_group_by_agents() -> None:
    async with recommending() as run:
        await run.create(replicas=1)
        await run.pass_time(4)
        run.databases.busy = {"shop-replica-0": 2.5}
        await run.serve("shop-replica-0")
        await run.cluster.make(HVPAS, OF_GROUP)
        await run.pass_time(40)
        hpa = with_annotated_status(await run.cluster.get(HORIZONTAL_AUTOSCALERS, "readers"))
        assert (child(hpa, "status")["desiredReplicas"], await replicas(run)) == (3, 3)
        assert condition_of(hpa, "ScalingActive")[:2] == ("True", "ValidMetricFound")


async def test_vm_lower_bound_survives_restart() -> None:
    async with recommending() as run:
        await run.cluster.make(VIRTUAL_MACHINES, VM)
        run.databases.busy = {"db": 3.0}
        await run.cluster.make(HVPAS, OF_VM)
        await run.pass_time(40)
        vpa = with_annotated_status(await run.cluster.get(VERTICAL_AUTOSCALERS, "sizes"))
        (row,) = items(vpa, "status", "recommendation", "containerRecommendations")
        bounds: Json = json.loads(annotations_of(await run.cluster.get(VIRTUAL_MACHINES, "db"))[ANNOTATION_BOUNDS])
        assert text(row, "containerName") == "vm"
        assert bounds["min"] == {"cpu": text(row, "target", "cpu"), "mem": "1Gi"}
        before = annotations_of(vpa)
        await run.stop()
        run.databases.busy = {}
        await run.start(settings=AGENTS)
        assert annotations_of(await run.cluster.get(VERTICAL_AUTOSCALERS, "sizes")) == before


async def test_vm_memory_bound_follows_peaks() -> None:
    async with recommending() as run:
        await run.cluster.make(VIRTUAL_MACHINES, VM)
        run.databases.used = {"db": GuestUse(memory=Bytes(3 * GIB), memory_total=Bytes(4 * GIB), kills=7)}
        await run.cluster.make(HVPAS, OF_VM)
        await run.pass_time(40)
        assert await least_memory(run) == "4Gi"  # 3 GiB, the end of its bucket, 15 % and whole slots
        run.databases.used = {"db": GuestUse(memory=Bytes(2 * GIB), memory_total=Bytes(4 * GIB), kills=7)}
        await run.pass_time(20)
        assert await least_memory(run) == "4Gi"  # what was needed once a day is needed
        run.databases.used = {"db": GuestUse(memory=Bytes(2 * GIB), memory_total=Bytes(4 * GIB), kills=8)}
        await run.pass_time(60)
        assert await least_memory(run) == "6Gi"  # 4 GiB and a fifth, 15 %
        run.databases.used = {"db": GuestUse(memory=Bytes(2 * GIB), memory_total=Bytes(9 * GIB), kills=0)}
        await run.pass_time(60)
        assert await least_memory(run) == "6Gi"  # it has booted


async def test_deleted_vms_are_forgotten() -> None:
    """A group that scales creates and deletes VMs all day."""
    async with story() as run:
        program = await run.start(settings=AGENTS)
        await run.cluster.make(VIRTUAL_MACHINES, VM)
        run.databases.used = {"db": GuestUse(memory=Bytes(3 * GIB), memory_total=Bytes(4 * GIB), kills=7)}
        await run.cluster.make(HVPAS, OF_VM)
        await run.pass_time(20)
        assert program.recommender is not None
        assert list(program.recommender._kills.values()) == [7]
        await run.cluster.delete(VIRTUAL_MACHINES, "db")
        await run.pass_time(20)
        assert program.recommender._kills == {}


async def least_memory(run: Story) -> object:
    vm = await run.cluster.get(VIRTUAL_MACHINES, "db")
    return json.loads(annotations_of(vm)[ANNOTATION_BOUNDS])["min"]["mem"]


async def test_silent_agents_stop_scaling() -> None:
    async with recommending() as run:
        await run.create(replicas=1)
        await run.cluster.make(HVPAS, OF_GROUP)
        await run.pass_time(25)
        hpa = with_annotated_status(await run.cluster.get(HORIZONTAL_AUTOSCALERS, "readers"))
        assert condition_of(hpa, "ScalingActive")[:2] == ("False", "FailedGetResourceMetric")
        group = await run.cluster.get(HVPAS, "readers")
        assert condition_of(group, "ScalingActive")[2].startswith("FailedGetResourceMetric")
        assert await replicas(run) == 1


async def test_blind_hpa_removes_nothing() -> None:
    """A real one writes the status of every HPA, every 15 s."""
    async with recommending() as run:
        await run.create(replicas=1)
        await run.pass_time(4)
        run.databases.busy = {"shop-replica-0": 2.5}
        await run.serve("shop-replica-0")
        await run.cluster.make(HVPAS, OF_GROUP)
        blind = condition({}, "ScalingActive", "False", "FailedGetResourceMetric", "no metrics returned")
        for _ in range(4):
            await run.pass_time(10)
            status: Json = {"currentReplicas": 1, "desiredReplicas": 0, "conditions": [blind]}
            await run.cluster.patch(HORIZONTAL_AUTOSCALERS, "readers", {"status": status}, "status")
        await run.pass_time(1)
        assert await replicas(run) == 3
        assert condition_of(await run.cluster.get(HVPAS, "readers"), "ScalingActive")[0] == "True"


async def test_own_recommender_is_opt_in() -> None:
    async with recommending() as run:
        await run.create(replicas=1)
        run.databases.busy = {"shop-replica-0": 2.5}
        await run.cluster.make(HVPAS, OF_GROUP)
        await run.pass_time(25)
        assert has_recommendation(await run.cluster.get(HORIZONTAL_AUTOSCALERS, "readers"))
        await run.stop()
        await run.start(settings=GroupsSettings(lease=AGENTS.lease))
        await run.pass_time(25)
        assert not has_recommendation(await run.cluster.get(HORIZONTAL_AUTOSCALERS, "readers"))


@pytest.mark.parametrize("noted", ["{", "3", "{}"])
def test_a_note_that_says_nothing_leaves_the_status(noted: str) -> None:
    hpa: Json = {"metadata": {"annotations": {ANNOTATION_RECOMMENDATION: noted}}, "status": {"desiredReplicas": 2}}
    assert with_annotated_status(hpa) == hpa


async def test_self_scaling_group_is_no_target() -> None:
    async with recommending() as run:
        await run.create(replicas=1, scaling={"maxReplicas": 2})
        await run.cluster.make(HVPAS, OF_GROUP)
        await run.pass_time(3)
        said = ("False", "TargetTaken", "VirtualMachineGroup shop scales itself (spec.scaling)")
        assert condition_of(await run.cluster.get(HVPAS, "readers"), "AbleToScale") == said


async def test_failed_recommendation_affects_one_group(caplog: pytest.LogCaptureFixture) -> None:
    async with recommending() as run:
        await run.cluster.make(VIRTUAL_MACHINES, VM)
        run.databases.busy = {"db": float("inf")}
        await run.cluster.make(HVPAS, OF_VM)
        await run.pass_time(16)
        assert "cannot reconcile an object" in caplog.text
        run.databases.busy = {"db": 3.0}
        await run.pass_time(40)
        vpa = with_annotated_status(await run.cluster.get(VERTICAL_AUTOSCALERS, "sizes"))
        assert child(vpa, "status", "recommendation") != {}


async def test_restart_keeps_replicas_for_five_minutes() -> None:
    """As the HPA controller, which after a restart keeps the present number for its window."""
    async with recommending() as run:
        await run.create(replicas=1)
        await run.pass_time(4)
        run.databases.busy = {"shop-replica-0": 2.5}
        await run.cluster.make(HVPAS, OF_GROUP)
        await run.pass_time(40)
        await run.stop()
        run.databases.busy = {f"shop-replica-{number}": 0.1 for number in range(3)}
        await run.start(settings=AGENTS)
        await run.clock.advance(240)
        assert await replicas(run) == 3
        await run.clock.advance(120)
        assert await replicas(run) == 1


async def test_regained_lease_keeps_replicas() -> None:
    """Its memory from an earlier term is older than the window, and another process has scaled since."""
    lease = GroupsLease(duration_seconds=20, renew_seconds=9.0)
    async with story(msgspec.structs.replace(AGENTS, lease=lease)) as run:
        first, second = run.cluster.connection(), run.cluster.connection()
        await run.start(first)
        await run.create(replicas=1)
        await run.pass_time(4)
        run.databases.busy = {"shop-replica-0": 0.5}
        await run.cluster.make(HVPAS, OF_GROUP)
        await run.pass_time(40)
        await run.start(second)
        first.is_cut = True
        run.databases.busy = {"shop-replica-0": 2.5}
        await run.clock.advance(340)
        assert await replicas(run) == 3
        first.is_cut, second.is_cut = False, True
        run.databases.busy = {f"shop-replica-{number}": 0.1 for number in range(3)}
        await run.clock.advance(120)
        assert await replicas(run) == 3


async def test_lease_regained_within_interval_keeps_replicas() -> None:
    """Another process led between two rounds of the first, which then removed what the other had just added."""
    lease = GroupsLease(duration_seconds=20, renew_seconds=9.0)
    async with story(msgspec.structs.replace(AGENTS, lease=lease, interval_seconds=200.0)) as run:
        first, second = run.cluster.connection(), run.cluster.connection()
        await run.start(first)  # its rounds: 200 and 400
        await run.create(replicas=1)
        run.databases.busy = {"shop-replica-0": 0.5}
        await run.cluster.make(HVPAS, OF_GROUP)
        await run.clock.advance(97)
        await run.start(second)  # its round: 300
        await run.clock.advance(107)
        first.is_cut = True
        run.databases.busy = {"shop-replica-0": 2.5}
        await run.clock.advance(95)
        assert await replicas(run) == 3
        await run.boot()
        first.is_cut, second.is_cut = False, True
        run.databases.busy = {f"shop-replica-{number}": 0.1 for number in range(3)}
        await run.clock.advance(100)
        hpa = with_annotated_status(await run.cluster.get(HORIZONTAL_AUTOSCALERS, "readers"))
        assert child(hpa, "status")["desiredReplicas"] == 3


async def test_kill_counts_once_across_leaders() -> None:
    """A process that had led before used to count it again, with the guest's later size."""
    lease = GroupsLease(duration_seconds=20, renew_seconds=9.0)
    async with story(msgspec.structs.replace(AGENTS, lease=lease)) as run:
        first, second = run.cluster.connection(), run.cluster.connection()
        await run.cluster.make(VIRTUAL_MACHINES, VM)
        run.databases.used = {"db": GuestUse(memory=Bytes(2 * GIB), memory_total=Bytes(4 * GIB), kills=7)}
        await run.cluster.make(HVPAS, OF_VM)
        await run.start(first)
        await run.clock.advance(40)
        await run.start(second)
        first.is_cut = True
        await run.clock.advance(60)
        run.databases.used = {"db": GuestUse(memory=Bytes(2 * GIB), memory_total=Bytes(4 * GIB), kills=8)}
        await run.clock.advance(60)
        assert await least_memory(run) == "6Gi"
        run.databases.used = {"db": GuestUse(memory=Bytes(2 * GIB), memory_total=Bytes(6 * GIB), kills=8)}
        first.is_cut, second.is_cut = False, True
        await run.clock.advance(120)
        assert await least_memory(run) == "6Gi"


async def test_terminating_vm_is_no_replica() -> None:
    """A node was dead, so a deleted VM stayed; a group of two had one more in each round, until its maximum."""
    async with recommending() as run:
        await run.create(replicas=2)
        await run.pass_time(6)
        finalizer: Json = {"metadata": {"finalizers": ["example.com/stays"]}}
        await run.cluster.patch(VIRTUAL_MACHINES, "shop-replica-1", finalizer)
        await run.cluster.delete(VIRTUAL_MACHINES, "shop-replica-1")
        run.databases.busy = {"shop-replica-0": 1.5}
        await run.cluster.make(HVPAS, OF_GROUP)
        await run.pass_time(60)
        assert await replicas(run) == 2
