"""Deleting a Tortoise or an Hvpa restores a foreign HPA or VPA exactly."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass

import pytest
import yaml

from protocol.kubernetes.objects import Json, annotations_of, child
from protocol.kubernetes.resources import (
    DEPLOYMENTS,
    HORIZONTAL_AUTOSCALERS,
    HVPAS,
    TORTOISES,
    VERTICAL_AUTOSCALERS,
    Resource,
)
from protocol.names import ANNOTATION_ORIGINAL
from tests.scheduler_plugin.groups.program import running, test_attached_hpa
from tests.scheduler_plugin.groups.program.cluster import condition_of
from tests.scheduler_plugin.groups.program.running import FOLLOWED, World, world
from tests.scheduler_plugin.groups.program.test_attached_hpa import CPU, SIDECAR
from tests.scheduler_plugin.groups.program.test_hvpa import INTERVALS
from tests.scheduler_plugin.groups.program.test_tortoise import DEPLOYMENT, HPA, TORTOISE, WORKING

ABOUT = "scaleTargetRef: {apiVersion: apps/v1, kind: Deployment, name: resource-consumer}"
THEIR_HPA = f"""
metadata: {{name: hvpa-sample}}
spec:
  maxReplicas: 5
  {ABOUT}
  behavior: {{scaleDown: {{stabilizationWindowSeconds: 600}}}}
"""
THEIR_VPA = f"""
metadata: {{name: hvpa-sample, labels: {{team: shop}}}}
spec:
  {ABOUT.replace("scaleTargetRef", "targetRef")}
  updatePolicy: {{updateMode: "Off", minReplicas: 2}}
  resourcePolicy: {{containerPolicies: [{{containerName: "*", minAllowed: {{cpu: 1000m}}}}]}}
"""


@dataclass(slots=True)
class Guest:
    """A group that has changed objects of others, which were ``before``."""

    run: World
    group: tuple[Resource, str]
    before: dict[tuple[Resource, str], Json]

    async def changed(self) -> bool:
        """True if each of them is changed and has the record."""
        now = [await self.run.cluster.get(*each) for each in self.before]
        return all(
            child(found, "spec") != child(before, "spec") and ANNOTATION_ORIGINAL in annotations_of(found)
            for found, before in zip(now, self.before.values(), strict=True)
        )

    async def leaves(self) -> None:
        """The group is deleted."""
        await self.run.cluster.delete(*self.group)
        await self.run.passes(20)

    async def as_it_was(self) -> bool:
        """True if each object equals the original, byte by byte."""
        now = [await self.run.cluster.get(*each) for each in self.before]
        pairs = list(zip(now, self.before.values(), strict=True))
        return all(_bytes(found) == _bytes(before) for found, before in pairs) and not any(
            ANNOTATION_ORIGINAL in annotations_of(found) for found in now
        )


def _bytes(found: Json) -> str:
    metadata = {key: value for key, value in child(found, "metadata").items() if key in ("labels", "ownerReferences")}
    return json.dumps([metadata, child(found, "spec")], sort_keys=True)


@asynccontextmanager
async def tortoise(hpa: str = "") -> AsyncIterator[Guest]:
    async with world(FOLLOWED) as run:
        await run.cluster.make(DEPLOYMENTS, DEPLOYMENT)
        made = await run.cluster.make(HORIZONTAL_AUTOSCALERS, hpa or HPA)
        await run.cluster.make(TORTOISES, TORTOISE)
        await run.cluster.patch(TORTOISES, "lovely", {"status": WORKING}, "status")
        yield Guest(run, (TORTOISES, "lovely"), {(HORIZONTAL_AUTOSCALERS, "web"): made})


@asynccontextmanager
async def hvpa() -> AsyncIterator[Guest]:
    async with world(FOLLOWED) as run:
        await run.cluster.make(DEPLOYMENTS, running.DEPLOYMENT)
        before = {
            (kind, "hvpa-sample"): await run.cluster.make(kind, manifest)
            for kind, manifest in ((HORIZONTAL_AUTOSCALERS, THEIR_HPA), (VERTICAL_AUTOSCALERS, THEIR_VPA))
        }
        await run.cluster.make(HVPAS, INTERVALS)
        yield Guest(run, (HVPAS, "hvpa-sample"), before)


Begin = Callable[[], AbstractAsyncContextManager[Guest]]
GROUPS = pytest.mark.parametrize("group", [tortoise, hvpa])


@GROUPS
async def test_a_deleted_group_puts_back(group: Begin) -> None:
    async with group() as guest:
        await guest.run.start()
        await guest.run.passes(60)
        assert await guest.changed()
        await guest.leaves()
        assert await guest.as_it_was()
        writes = len(guest.run.cluster.writes())
        await guest.run.passes(60)
        assert len(guest.run.cluster.writes()) == writes


@GROUPS
@pytest.mark.parametrize("is_applied", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("step", range(10))
async def test_killed_between_any_steps_it_puts_back(group: Begin, step: int, is_applied: bool) -> None:
    """The process dies at any write, of taking the objects over or of putting them back; another one follows."""
    async with group() as guest:
        way = guest.run.cluster.connection()
        way.cut_at, way.is_applied = step, is_applied
        await guest.run.start("first", way)
        await guest.run.passes(20)
        if not way.is_cut:
            await guest.leaves()
        else:
            await guest.run.cluster.delete(*guest.group)
        await guest.run.start("second")
        await guest.run.passes(60)
        assert await guest.as_it_was()


@GROUPS
async def test_deletion_during_outage_restores_hpa(group: Begin) -> None:
    async with group() as guest:
        await guest.run.start()
        await guest.run.passes(20)
        assert await guest.changed()
        guest.run.cluster.connections[0].is_cut = True
        await guest.run.cluster.delete(*guest.group)
        await guest.run.passes(60)
        assert await guest.changed()
        await guest.run.start("second")
        await guest.run.passes(60)
        assert await guest.as_it_was()


async def test_a_group_made_again_keeps_the_original() -> None:
    async with tortoise() as guest:
        await guest.run.start()
        await guest.run.cluster.delete(*guest.group)
        await guest.run.cluster.make(TORTOISES, TORTOISE)
        await guest.run.cluster.patch(TORTOISES, "lovely", {"status": WORKING}, "status")
        await guest.run.passes(30)
        assert await guest.changed()
        await guest.leaves()
        assert await guest.as_it_was()


async def test_fields_that_others_changed_meanwhile_stay() -> None:
    """Someone removes the behavior, and raises maxReplicas, which the Tortoise then sets again."""
    async with tortoise(test_attached_hpa.HPA.replace("METRICS", f"{CPU}, {SIDECAR}")) as guest:
        await guest.run.start()
        body: Json = {"spec": {"behavior": None, "maxReplicas": 60}}
        await guest.run.cluster.patch(HORIZONTAL_AUTOSCALERS, "web", body)
        await guest.run.passes(30)
        hpa = await guest.run.cluster.get(HORIZONTAL_AUTOSCALERS, "web")
        assert child(hpa, "spec")["maxReplicas"] == 20
        await guest.leaves()
        (before,) = guest.before.values()
        after = child(await guest.run.cluster.get(HORIZONTAL_AUTOSCALERS, "web"), "spec")
        assert after == {key: value for key, value in child(before, "spec").items() if key != "behavior"} | {
            "maxReplicas": 60
        }


async def test_what_others_changed_last_is_not_put_back() -> None:
    """Someone changes maxReplicas while no program runs to answer it, and the Tortoise is deleted: theirs stays."""
    async with tortoise() as guest:
        await guest.run.start()
        guest.run.cluster.connections[0].is_cut = True
        await guest.run.cluster.patch(HORIZONTAL_AUTOSCALERS, "web", {"spec": {"maxReplicas": 60}})
        await guest.run.cluster.delete(*guest.group)
        await guest.run.start("second")
        await guest.run.passes(60)
        after = child(await guest.run.cluster.get(HORIZONTAL_AUTOSCALERS, "web"), "spec")
        (before,) = guest.before.values()
        assert after == {**child(before, "spec"), "maxReplicas": 60}


async def test_detached_hpa_is_restored() -> None:
    async with tortoise() as guest:
        await guest.run.start()
        assert await guest.changed()
        other = yaml.safe_load(HPA)
        other["metadata"]["name"] = "other"
        await guest.run.cluster.make(HORIZONTAL_AUTOSCALERS, yaml.safe_dump(other))
        body: Json = {"spec": {"targetRefs": {"horizontalPodAutoscalerName": "other"}}}
        await guest.run.cluster.patch(TORTOISES, "lovely", body)
        await guest.run.passes(30)
        assert await guest.as_it_was()


async def test_refused_restore_blocks_no_other(caplog: pytest.LogCaptureFixture) -> None:
    """A webhook refuses changes of the HPA that was left; the Tortoise is judged all the same."""
    async with tortoise() as guest:
        await guest.run.start()
        other = yaml.safe_load(HPA)
        other["metadata"]["name"] = "other"
        await guest.run.cluster.make(HORIZONTAL_AUTOSCALERS, yaml.safe_dump(other))
        refuse = guest.run.cluster.connections[0].refuse
        refuse["horizontalpodautoscalers/web"] = 403
        body: Json = {"spec": {"targetRefs": {"horizontalPodAutoscalerName": "other"}}}
        await guest.run.cluster.patch(TORTOISES, "lovely", body)
        await guest.run.passes(30)
        said = condition_of(await guest.run.cluster.get(TORTOISES, "lovely"), "AbleToScale")
        assert said[1] == "ForeignAutoscaler"  # both HPAs scale the target now
        assert "cannot restore an HPA or VPA that the group changed" in caplog.text
        await guest.leaves()
        refuse.clear()
        await guest.run.passes(30)
        assert await guest.as_it_was()


async def test_a_refused_put_back_holds_up_nothing() -> None:
    """A webhook refuses the VPA of an Hvpa that needs it no more, whose HPA is kept up; then the HPA of one that is
    deleted, whose VPA is put back.
    """
    async with hvpa() as guest:
        await guest.run.start()
        assert await guest.changed()
        refuse = guest.run.cluster.connections[0].refuse
        refuse[f"PATCH {VERTICAL_AUTOSCALERS.path('default', 'hvpa-sample')}"] = 403
        body: Json = {"spec": {"vpaTemplate": None, "hpaTemplate": {"maxReplicas": 7}}}
        await guest.run.cluster.patch(*guest.group, body)
        await guest.run.passes(60)
        hpa = await guest.run.cluster.get(HORIZONTAL_AUTOSCALERS, "hvpa-sample")
        assert (child(hpa, "spec")["maxReplicas"], await guest.changed()) == (7, True)
        refuse.clear()
        refuse[f"PATCH {HORIZONTAL_AUTOSCALERS.path('default', 'hvpa-sample')}"] = 403
        await guest.leaves()
        hpa, vpa = [await guest.run.cluster.get(*each) for each in guest.before]
        assert [ANNOTATION_ORIGINAL in annotations_of(each) for each in (hpa, vpa)] == [True, False]
        refuse.clear()
        await guest.run.passes(60)
        assert await guest.as_it_was()


async def test_unreadable_group_restores_nothing() -> None:
    """A typo in the spec is no reason to take everything back."""
    async with tortoise() as guest:
        await guest.run.start()
        bounds = {"minAllocatedResources": {"cpu": "2"}, "maxAllocatedResources": {"cpu": "1"}}
        body: Json = {"spec": {"resourcePolicy": [{"containerName": "app", **bounds}]}}
        await guest.run.cluster.patch(TORTOISES, "lovely", body)
        await guest.run.passes(30)
        said = condition_of(await guest.run.cluster.get(TORTOISES, "lovely"), "AbleToScale")
        assert (said[:2], await guest.changed()) == (("False", "InvalidSpec"), True)


async def test_oversized_hpa_is_left_alone() -> None:
    words = {f"key{number}": "x" * 60 for number in range(1000)}
    metric: Json = {"name": "queue", "selector": {"matchLabels": words}}
    hpa = yaml.safe_load(HPA)
    hpa["spec"]["metrics"].append(
        {"type": "External", "external": {"metric": metric, "target": {"type": "Value", "value": "1"}}}
    )
    async with tortoise(yaml.safe_dump(hpa)) as guest:
        await guest.run.start()
        await guest.run.passes(20)
        assert await guest.as_it_was()
        said = condition_of(await guest.run.cluster.get(TORTOISES, "lovely"), "AbleToScale")
        assert said[:2] == ("False", "AutoscalerTooLarge")


async def test_an_hpa_of_its_own_needs_no_record() -> None:
    async with world(FOLLOWED) as run:
        await run.cluster.make(DEPLOYMENTS, DEPLOYMENT)
        await run.cluster.make(TORTOISES, TORTOISE.replace("    horizontalPodAutoscalerName: web\n", ""))
        await run.cluster.patch(TORTOISES, "lovely", {"status": WORKING}, "status")
        await run.start()
        body: Json = {"spec": {"maxReplicas": 99}}
        await run.cluster.patch(HORIZONTAL_AUTOSCALERS, "tortoise-hpa-lovely", body)
        await run.passes(30)
        hpa = await run.cluster.get(HORIZONTAL_AUTOSCALERS, "tortoise-hpa-lovely")
        assert (child(hpa, "spec")["maxReplicas"], annotations_of(hpa)) == (20, {})


async def test_unreadable_record_is_ignored() -> None:
    async with tortoise() as guest:
        records = ["{", "[]", '{"group": {"kind": "Tortoise"}}']
        for record in records:
            body: Json = {"metadata": {"annotations": {ANNOTATION_ORIGINAL: record}}}
            await guest.run.cluster.patch(HORIZONTAL_AUTOSCALERS, "web", body)
        await guest.run.start()
        assert await guest.changed()
        await guest.leaves()
        assert await guest.as_it_was()
