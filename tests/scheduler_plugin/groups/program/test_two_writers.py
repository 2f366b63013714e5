"""No field has two writers: where two would write one, both sides say so in a condition, and neither scales."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from protocol.kubernetes.objects import Json, child
from protocol.kubernetes.resources import (
    DEPLOYMENTS,
    HORIZONTAL_AUTOSCALERS,
    HVPAS,
    TORTOISES,
    VERTICAL_AUTOSCALERS,
    VM_GROUPS,
    Resource,
)
from scheduler_plugin.groups.settings import parse_settings
from tests.scheduler_plugin.groups.program.cluster import condition_of
from tests.scheduler_plugin.groups.program.running import DEPLOYMENT, World, world
from tests.scheduler_plugin.groups.program.test_hvpa import INTERVALS
from tests.scheduler_plugin.groups.program.test_problem_reports import HPA, able, changed, owned
from tests.scheduler_plugin.groups.program.test_vm_recommender import OF_GROUP
from tests.scheduler_plugin.groups.program.vm_group_story import Story, story

SCALING = {"minReplicas": 1, "maxReplicas": 3, "window": "10s", "scaleUpDelay": "2s"}
OF_THE_GROUP = "apiVersion: autoscaling.neon.tech/v1alpha1, kind: VirtualMachineGroup, name: shop"
TORTOISE = f"""
metadata: {{name: readers}}
spec:
  updateMode: Auto
  targetRefs: {{scaleTargetRef: {{{OF_THE_GROUP}}}}}
"""
HPA_OF_GROUP = f"""
metadata: {{name: readers}}
spec:
  maxReplicas: 4
  scaleTargetRef: {{{OF_THE_GROUP}}}
"""
RIVALS = [(HVPAS, OF_GROUP), (TORTOISES, TORTOISE), (HORIZONTAL_AUTOSCALERS, HPA_OF_GROUP)]

VPA = """
apiVersion: autoscaling.k8s.io/v1
kind: VerticalPodAutoscaler
metadata: {name: theirs}
spec:
  targetRef: {apiVersion: apps/v1, kind: Deployment, name: resource-consumer}
"""
TORTOISE_OF_DEPLOYMENT = """
metadata: {name: lovely}
spec:
  updateMode: Auto
  targetRefs:
    scaleTargetRef: {apiVersion: apps/v1, kind: Deployment, name: resource-consumer}
"""

ONLY_REPLICAS = """
metadata: {name: hvpa-sample}
spec:
  hpaTemplate: {minReplicas: 1, maxReplicas: 10}
  targetRef: {apiVersion: apps/v1, kind: Deployment, name: resource-consumer}
"""


@asynccontextmanager
async def overloaded() -> AsyncIterator[Story]:
    """A group with one replica whose load asks for three."""
    async with story() as run:
        run.databases.busy = {"shop-replica-0": 8.0}
        yield run


async def replicas(run: Story) -> object:
    return child(await run.cluster.get(VM_GROUPS, "shop"), "spec")["replicas"]


async def said(run: Story) -> tuple[str, str]:
    """True if the group scales itself, and why not."""
    return condition_of(await run.cluster.get(VM_GROUPS, "shop"), "AbleToScale")[:2]


@pytest.mark.parametrize("group_first", [True, False])
@pytest.mark.parametrize(("kind", "manifest"), RIVALS, ids=[kind.kind for kind, _ in RIVALS])
async def test_targeted_group_stops_self_scaling(kind: Resource, manifest: str, group_first: bool) -> None:
    async with overloaded() as run:
        if not group_first:
            await run.cluster.make(kind, manifest)
        await run.create(replicas=1, scaling=SCALING)
        if group_first:
            await run.cluster.make(kind, manifest)
        await run.start()
        await run.pass_time(16)
        assert (await said(run), await replicas(run)) == (("False", "TargetTaken"), 1)
        await run.stop()
        await run.start()
        await run.pass_time(16)
        assert (await said(run), await replicas(run)) == (("False", "TargetTaken"), 1)
        await run.cluster.delete(kind, "readers")
        await run.pass_time(15)
        assert (await said(run), await replicas(run)) == (("True", "ScalesItself"), 3)


@pytest.mark.parametrize(("kind", "manifest"), RIVALS[:2], ids=[kind.kind for kind, _ in RIVALS[:2]])
async def test_both_sides_say_so_while_they_run(kind: Resource, manifest: str) -> None:
    async with overloaded() as run:
        await run.create(replicas=1)
        await run.cluster.make(kind, manifest)
        await run.start()
        await run.pass_time(3)
        assert await said(run) == ("", "")
        await run.cluster.patch(VM_GROUPS, "shop", {"spec": {"scaling": SCALING}})
        await run.pass_time(16)
        theirs = condition_of(await run.cluster.get(kind, "readers"), "AbleToScale")
        assert theirs == ("False", "TargetTaken", "VirtualMachineGroup shop scales itself (spec.scaling)")
        assert (await said(run), await replicas(run)) == (("False", "TargetTaken"), 1)


async def test_foreign_replica_writer_is_named_once() -> None:
    async with overloaded() as run:
        await run.create(replicas=1, scaling=SCALING)
        await run.cluster.make(HVPAS, OF_GROUP)
        await run.cluster.make(HORIZONTAL_AUTOSCALERS, HPA_OF_GROUP.replace("name: readers", "name: web"))
        await run.start()
        await run.pass_time(20)
        condition = condition_of(await run.cluster.get(VM_GROUPS, "shop"), "AbleToScale")
        assert condition[2] == (
            "spec.scaling and Hvpa readers, HorizontalPodAutoscaler web would both write the replicas: remove one"
        )
        events = [each for each in run.cluster.writes(whole=True) if "/events" in each]
        assert len(events) <= 4  # the members that were made, the Hvpa's own, and this once


async def with_vpa(run: World, mode: str | None) -> None:
    """An Hvpa that recommends more of everything, and a foreign VPA in this mode."""
    await run.cluster.make(DEPLOYMENTS, DEPLOYMENT)
    policy: Json = {} if mode is None else {"updatePolicy": {"updateMode": mode}}
    await run.cluster.make(VERTICAL_AUTOSCALERS, changed(VPA, **policy))
    await run.cluster.make(HVPAS, INTERVALS)
    await run.start()
    if (await able(run))[0] == "True":
        await run.recommend("hvpa-sample", 5, cpu="1500m", memory="1500Mi")


@pytest.mark.parametrize("mode", [None, "Auto", "Recreate", "InPlaceOrRecreate", "InPlace", "Initial"])
async def test_sizing_vpa_stops_the_group(mode: str | None) -> None:
    async with world() as run:
        await with_vpa(run, mode)
        what = f"VerticalPodAutoscaler theirs (updateMode {mode or 'Auto'})"
        said = f"Deployment resource-consumer is also sized by {what}"
        assert await able(run) == ("False", "ForeignAutoscaler", said)
        assert await run.cluster.every(HORIZONTAL_AUTOSCALERS) == []
        await run.cluster.delete(VERTICAL_AUTOSCALERS, "theirs")
        await run.passes(0)
        assert (await able(run))[0] == "True"


async def test_recommending_vpa_is_no_rival() -> None:
    async with world() as run:
        await with_vpa(run, "Off")
        assert (await run.size())[0] > 1
        before = await run.size()
        await run.cluster.patch(VERTICAL_AUTOSCALERS, "theirs", {"spec": {"updatePolicy": {"updateMode": "Auto"}}})
        await run.recommend("hvpa-sample", 9, cpu="3", memory="3Gi")
        await run.passes(600)
        assert ((await able(run))[1], await run.size()) == ("ForeignAutoscaler", before)


async def test_unsized_group_leaves_sizes_to_vpa() -> None:
    async with world() as run:
        await run.cluster.make(DEPLOYMENTS, DEPLOYMENT)
        await run.cluster.make(VERTICAL_AUTOSCALERS, VPA)
        await run.cluster.make(HVPAS, ONLY_REPLICAS)
        await run.start()
        await run.recommend("hvpa-sample", 3)
        assert ((await able(run))[0], (await run.size())[0]) == ("True", 3)


async def test_tortoise_rejects_rival_vpa_and_hpa() -> None:
    async with world(parse_settings("tortoise: {GatheringDataPeriodType: daily}")) as run:
        await run.cluster.make(DEPLOYMENTS, DEPLOYMENT)
        await run.cluster.make(VERTICAL_AUTOSCALERS, VPA)
        await run.cluster.make(HORIZONTAL_AUTOSCALERS, owned(HPA.replace("NAME", "web"), "ScaledObject"))
        await run.cluster.make(TORTOISES, TORTOISE_OF_DEPLOYMENT)
        await run.start()
        both = (
            "Deployment resource-consumer is also scaled by HorizontalPodAutoscaler web and sized by "
            "VerticalPodAutoscaler theirs (updateMode Auto)"
        )
        group = await run.cluster.get(TORTOISES, "lovely")
        assert condition_of(group, "AbleToScale") == ("False", "ForeignAutoscaler", both)
        await run.cluster.delete(VERTICAL_AUTOSCALERS, "theirs")
        body: Json = {"spec": {"targetRefs": {"horizontalPodAutoscalerName": "web"}}}
        await run.cluster.patch(TORTOISES, "lovely", body)
        await run.passes(0)
        group = await run.cluster.get(TORTOISES, "lovely")
        said = "HorizontalPodAutoscaler web belongs to ScaledObject them"
        assert condition_of(group, "AbleToScale") == ("False", "ForeignAutoscaler", said)
