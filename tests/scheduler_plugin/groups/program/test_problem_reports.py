"""A group's problem becomes a condition and an event; nothing is scaled, and all other groups keep working."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
import yaml

from protocol.kubernetes.objects import Json, child, items, name_of
from protocol.kubernetes.resources import DEPLOYMENTS, HORIZONTAL_AUTOSCALERS, HVPAS, VERTICAL_AUTOSCALERS
from tests.scheduler_plugin.groups.program.cluster import condition_of
from tests.scheduler_plugin.groups.program.running import DEPLOYMENT, World, world
from tests.scheduler_plugin.groups.program.test_hvpa import INTERVALS

HPA = """
apiVersion: autoscaling/v2
kind: HorizontalPodAutoscaler
metadata: {name: NAME}
spec:
  maxReplicas: 5
  scaleTargetRef: {apiVersion: apps/v1, kind: Deployment, name: resource-consumer}
"""


def named(manifest: str, name: str) -> str:
    """The same manifest with another name."""
    found = yaml.safe_load(manifest)
    return yaml.safe_dump({**found, "metadata": {"name": name}})


def changed(manifest: str, **spec: object) -> str:
    """The same manifest with other fields of its spec."""
    found = yaml.safe_load(manifest)
    return yaml.safe_dump({**found, "spec": {**found["spec"], **spec}})


def owned(manifest: str, kind: str) -> str:
    """The same manifest, with another controller as its owner."""
    found = yaml.safe_load(manifest)
    owner = {"apiVersion": "example.com/v1", "kind": kind, "name": "them", "uid": "theirs", "controller": True}
    return yaml.safe_dump({**found, "metadata": {**found["metadata"], "ownerReferences": [owner]}})


@asynccontextmanager
async def started() -> AsyncIterator[World]:
    """The program, with an Hvpa of a Deployment."""
    async with world() as run:
        await run.cluster.make(DEPLOYMENTS, DEPLOYMENT)
        await run.cluster.make(HVPAS, INTERVALS)
        await run.start()
        yield run


async def able(run: World, name: str = "hvpa-sample") -> tuple[str, str, str]:
    """True if the Hvpa can scale, the reason and the message."""
    return condition_of(await run.cluster.get(HVPAS, name), "AbleToScale")


async def test_missing_target_is_awaited() -> None:
    async with world() as run:
        await run.cluster.make(HVPAS, INTERVALS)
        await run.start()
        assert await able(run) == ("False", "TargetMissing", "Deployment resource-consumer does not exist")
        assert await run.cluster.every(HORIZONTAL_AUTOSCALERS) == []
        await run.cluster.make(DEPLOYMENTS, DEPLOYMENT)
        await run.passes(0)
        assert (await able(run))[0] == "True"
        assert await run.events() == [("TargetMissing", "Deployment resource-consumer does not exist")]


async def test_deleted_target_is_reported() -> None:
    async with started() as run:
        await run.cluster.delete(DEPLOYMENTS, "resource-consumer")
        await run.recommend("hvpa-sample", 5)
        await run.passes(60)
        assert (await able(run))[:2] == ("False", "TargetMissing")
        assert [reason for reason, _ in await run.events()] == ["TargetMissing"]


async def test_rival_groups_both_stop() -> None:
    async with started() as run:
        assert (await able(run))[0] == "True"
        await run.cluster.make(HVPAS, named(INTERVALS, "another"))
        await run.recommend("hvpa-sample", 5)
        await run.passes(60)
        said = "Deployment resource-consumer is also the target of Hvpa {}"
        assert await able(run) == ("False", "TargetTaken", said.format("another"))
        assert await able(run, "another") == ("False", "TargetTaken", said.format("hvpa-sample"))
        assert (await run.size())[0] == 1
        assert [name_of(each).name for each in await run.cluster.every(HORIZONTAL_AUTOSCALERS)] == ["hvpa-sample"]
        await run.cluster.delete(HVPAS, "another")
        await run.passes(0)
        assert (await able(run))[0] == "True"


async def test_many_rivals_are_not_named() -> None:
    """Each new one changed the statuses of all others: a tenant's 2,000 made two million writes, and as many Events."""
    async with world() as run:
        await run.cluster.make(DEPLOYMENTS, DEPLOYMENT)
        await run.start()
        for number in range(12):
            await run.cluster.make(HVPAS, named(INTERVALS, f"rival-{number}"))
            await run.passes(1)
        said = "Deployment resource-consumer is also the target of more than 3 other groups"
        assert {await able(run, f"rival-{number}") for number in range(12)} == {("False", "TargetTaken", said)}
        written = len([write for write in run.cluster.writes() if "hvpas" in write])
        for number in range(8):
            await run.cluster.delete(HVPAS, f"rival-{number}")
            await run.passes(1)
        assert len([write for write in run.cluster.writes() if "hvpas" in write]) == written + 4


async def test_foreign_hpa_is_left_alone() -> None:
    async with world() as run:
        await run.cluster.make(DEPLOYMENTS, DEPLOYMENT)
        theirs = await run.cluster.make(HORIZONTAL_AUTOSCALERS, owned(HPA.replace("NAME", "hvpa-sample"), "Rollout"))
        await run.cluster.make(HVPAS, INTERVALS)
        await run.start()
        await run.recommend("hvpa-sample", 5)
        said = "HorizontalPodAutoscaler hvpa-sample belongs to Rollout them"
        assert await able(run) == ("False", "ForeignAutoscaler", said)
        left = await run.cluster.get(HORIZONTAL_AUTOSCALERS, "hvpa-sample")
        assert (left["spec"], (await run.size())[0]) == (theirs["spec"], 1)


async def test_rival_hpa_stops_the_group() -> None:
    async with world() as run:
        await run.cluster.make(DEPLOYMENTS, DEPLOYMENT)
        await run.cluster.make(HORIZONTAL_AUTOSCALERS, HPA.replace("NAME", "web"))
        await run.cluster.make(HVPAS, INTERVALS)
        await run.start()
        said = "Deployment resource-consumer is also scaled by HorizontalPodAutoscaler web"
        assert await able(run) == ("False", "ForeignAutoscaler", said)
        await run.cluster.delete(HORIZONTAL_AUTOSCALERS, "web")
        await run.passes(0)
        assert (await able(run))[0] == "True"


async def test_sizing_group_leaves_replicas_to_hpa() -> None:
    async with world() as run:
        await run.cluster.make(DEPLOYMENTS, DEPLOYMENT)
        await run.cluster.make(HORIZONTAL_AUTOSCALERS, HPA.replace("NAME", "web"))
        found = yaml.safe_load(INTERVALS)
        for name in ("hpaTemplate", "weightBasedScalingIntervals"):
            del found["spec"][name]
        await run.cluster.make(HVPAS, yaml.safe_dump(found))
        await run.start()
        await run.recommend("hvpa-sample", cpu="1500m", memory="1500Mi")
        assert (await able(run))[0] == "True"
        assert await run.size() == (1, {"cpu": "1500m", "memory": "1500Mi"})


async def test_ownerless_hpa_is_adopted() -> None:
    async with world() as run:
        await run.cluster.make(DEPLOYMENTS, DEPLOYMENT)
        await run.cluster.make(HORIZONTAL_AUTOSCALERS, HPA.replace("NAME", "hvpa-sample"))
        await run.cluster.make(HVPAS, INTERVALS)
        await run.start()
        hpa = await run.cluster.get(HORIZONTAL_AUTOSCALERS, "hvpa-sample")
        assert items(hpa, "metadata", "ownerReferences") == []  # it would be collected with the Hvpa
        assert items(hpa, "spec", "metrics") != []
        assert (await able(run))[0] == "True"


async def test_unreadable_group_names_field() -> None:
    async with world() as run:
        await run.cluster.make(DEPLOYMENTS, DEPLOYMENT)
        await run.cluster.make(
            HVPAS, changed(named(INTERVALS, "broken"), scaleUpDelay="soon", targetRef={"kind": "Deployment"})
        )
        await run.clock.advance(5)
        await run.cluster.make(HVPAS, INTERVALS)
        await run.start()
        status, reason, message = await able(run, "broken")
        assert (status, reason) == ("False", "InvalidSpec")
        assert "scaleUpDelay" in message
        assert "targetRef.name" in message
        assert (await able(run))[0] == "True"


async def test_intervals_that_overlap_are_allowed_and_said() -> None:
    async with started() as run:
        said = "for replica counts in both 3-7 and 7-10, the interval listed first applies"
        overlap = condition_of(await run.cluster.get(HVPAS, "hvpa-sample"), "IntervalsOverlap")
        assert overlap == ("True", "FirstMatchWins", said)


async def test_first_overlapping_interval_wins() -> None:
    listed = [{"vpaWeight": 0, "lastReplicaCount": 6}, {"vpaWeight": 1, "startReplicaCount": 2}]
    async with world() as run:
        await run.cluster.make(DEPLOYMENTS, DEPLOYMENT)
        await run.cluster.make(HVPAS, changed(INTERVALS, scaleUpDelay="0s", weightBasedScalingIntervals=listed))
        await run.start()
        await run.recommend("hvpa-sample", 4)
        said = "for replica counts in both 1-6 and 2-10, the interval listed first applies"
        overlap = condition_of(await run.cluster.get(HVPAS, "hvpa-sample"), "IntervalsOverlap")
        assert ((await run.size())[0], overlap) == (4, ("True", "FirstMatchWins", said))


async def test_without_vpas_only_replicas_scale() -> None:
    async with world() as run:
        run.cluster.undefine("verticalpodautoscalers.autoscaling.k8s.io")
        await run.cluster.make(DEPLOYMENTS, DEPLOYMENT)
        await run.cluster.make(HVPAS, changed(INTERVALS, scaleUpDelay="0s"))
        await run.start()
        await run.recommend("hvpa-sample", 2)
        group = await run.cluster.get(HVPAS, "hvpa-sample")
        said = "the cluster has no VerticalPodAutoscalers, so nothing recommends sizes"
        assert condition_of(group, "SizesUnknown") == ("True", "KindMissing", said)
        assert ((await run.size())[0], condition_of(group, "ScalingActive")[0]) == (2, "True")


async def test_defaulted_fields_are_not_rewritten() -> None:
    """A real one reads ``0.040`` as ``40m``, and nothing changes."""
    async with world() as run:
        await run.cluster.make(DEPLOYMENTS, DEPLOYMENT)
        await run.cluster.make(HVPAS, INTERVALS)
        way = run.cluster.connection()
        way.unchanged = "horizontalpodautoscalers"
        await run.start("first", way)
        for target in (70, 60):
            metric = {"name": "cpu", "target": {"type": "Utilization", "averageUtilization": target}}
            spec: Json = {"metrics": [{"type": "Resource", "resource": metric}]}
            await run.cluster.patch(HORIZONTAL_AUTOSCALERS, "hvpa-sample", {"spec": spec})
            for replicas in (1, 2, 1, 2):
                await run.recommend("hvpa-sample", replicas)
                await run.passes(15)
        written = [each for each in way.asked if each.method == "PATCH" and "horizontalpod" in each.path]
        assert len(written) == 2


async def test_vpa_without_amount_is_silent() -> None:
    async with started() as run:
        await run.recommend("hvpa-sample", cpu="a lot")
        active = condition_of(await run.cluster.get(HVPAS, "hvpa-sample"), "ScalingActive")
        assert active[:2] == ("False", "NoRecommendation")
        assert "target.cpu" in active[2]


async def test_permanent_refusal_is_reported_and_redecided() -> None:
    async with world() as run:
        await run.cluster.make(DEPLOYMENTS, DEPLOYMENT)
        await run.cluster.make(HVPAS, INTERVALS)
        way = run.cluster.connection()
        way.refuse = {"deployments/resource-consumer/scale": 403}
        await run.start("first", way)
        await run.recommend("hvpa-sample", 2)
        group = await run.cluster.get(HVPAS, "hvpa-sample")
        assert condition_of(group, "TargetWritable")[:2] == ("False", "Refused")
        assert "intent" not in child(group, "status")
        way.refuse.clear()
        await run.passes(300)
        group = await run.cluster.get(HVPAS, "hvpa-sample")
        assert ((await run.size())[0], condition_of(group, "TargetWritable")) == (2, ("", "", ""))


async def test_refused_write_backs_off() -> None:
    async with world() as run:
        await run.cluster.make(DEPLOYMENTS, DEPLOYMENT)
        found = yaml.safe_load(INTERVALS)
        for name in ("scaleUpDelay", "scaleDownDelay"):
            found["spec"].pop(name, None)
        await run.cluster.make(HVPAS, yaml.safe_dump(found))
        way = run.cluster.connection()
        way.refuse = {"deployments/resource-consumer/scale": 403}
        await run.start("first", way)
        await run.recommend("hvpa-sample", 5)
        for _ in range(12):
            await run.passes(5)
        assert 3 < len([each for each in way.asked if each.method == "PATCH" and "deployments" in each.path]) < 20


@pytest.mark.parametrize("what", ["deployments/resource-consumer/scale", "PATCH /apis/apps/v1/namespaces/default/dep"])
async def test_repeated_refusal_writes_no_status(what: str) -> None:
    async with world() as run:
        await run.cluster.make(DEPLOYMENTS, DEPLOYMENT)
        await run.cluster.make(HVPAS, changed(INTERVALS, scaleUpDelay="0s", scaleDownDelay="0s"))
        way = run.cluster.connections[0] if run.cluster.connections else run.cluster.connection()
        way.refuse = {what: 403}
        await run.start("first", way)
        await run.recommend("hvpa-sample", 5, cpu="1500m", memory="1500Mi")
        await run.passes(5)
        written = len(run.cluster.writes())
        for _ in range(24):
            await run.passes(5)
        assert len(run.cluster.writes()) == written
        await run.recommend("hvpa-sample", 6, cpu="1600m", memory="1600Mi")
        way.refuse.clear()
        await run.passes(600)
        group = await run.cluster.get(HVPAS, "hvpa-sample")
        assert (condition_of(group, "TargetWritable"), (await run.size())[0] > 1) == (("", "", ""), True)


async def test_unaskable_webhook_decides_on_write() -> None:
    async with world() as run:
        await run.cluster.make(DEPLOYMENTS, DEPLOYMENT)
        await run.cluster.make(HVPAS, changed(INTERVALS, scaleUpDelay="0s", scaleDownDelay="0s"))
        way = run.cluster.connection()
        way.refuse = {"deployments/resource-consumer/scale": 403}
        await run.start("first", way)
        await run.recommend("hvpa-sample", 5)
        way.refuse.clear()
        way.no_dry_run = "admission webhook policy.example.com does not support dry run"
        await run.passes(300)
        assert (await run.size())[0] > 1


async def test_deleted_group_removes_hpa_and_vpa() -> None:
    async with started() as run:
        await run.cluster.delete(HVPAS, "hvpa-sample")
        before = len(run.cluster.writes())
        await run.passes(30)
        for kind in (HORIZONTAL_AUTOSCALERS, VERTICAL_AUTOSCALERS):
            (left,) = await run.cluster.every(kind)
            assert items(left, "metadata", "ownerReferences")[0]["kind"] == "Hvpa"
        assert len(run.cluster.writes()) == before


async def test_accepted_writes_end_the_refusal() -> None:
    """A quota of HPAs was raised, and the group said until its next scaling that its target cannot be written."""
    async with world() as run:
        await run.cluster.make(DEPLOYMENTS, DEPLOYMENT)
        way = run.cluster.connection()
        way.refuse = {f"POST {HORIZONTAL_AUTOSCALERS.path('default')}": 403}
        await run.start("first", way)
        await run.cluster.make(HVPAS, INTERVALS)
        await run.passes(1)
        assert condition_of(await run.cluster.get(HVPAS, "hvpa-sample"), "TargetWritable")[:2] == ("False", "Refused")
        way.refuse = {}
        await run.passes(30)
        assert condition_of(await run.cluster.get(HVPAS, "hvpa-sample"), "TargetWritable") == ("", "", "")


async def test_overload_keeps_the_intent() -> None:
    """A 429 says nothing about the write: it is repeated, and an API server with too much to do gets no status."""
    async with world() as run:
        await run.cluster.make(DEPLOYMENTS, DEPLOYMENT)
        await run.cluster.make(HVPAS, INTERVALS)
        way = run.cluster.connection()
        way.refuse = {"deployments/resource-consumer/scale": 429}
        await run.start("first", way)
        await run.recommend("hvpa-sample", 2)
        before = run.cluster.writes()
        await run.passes(20)
        group = await run.cluster.get(HVPAS, "hvpa-sample")
        assert (run.cluster.writes(), condition_of(group, "TargetWritable")) == (before, ("", "", ""))
        assert child(group, "status", "intent")["replicas"] == {"from": 1, "to": 2}
        way.refuse = {}
        await run.passes(12)
        assert (await run.size())[0] == 2
