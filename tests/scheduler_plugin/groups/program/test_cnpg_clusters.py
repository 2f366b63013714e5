"""Hvpas of Clusters of CloudNativePG: how many instances there are, and how large a standby is kept."""

from __future__ import annotations

import pytest

from protocol.floors import decode_floor
from protocol.kubernetes.objects import Json, annotations_of, child
from protocol.kubernetes.resources import CNPG_CLUSTERS, HVPAS, PODS, STATEFUL_SETS, TORTOISES
from protocol.names import ANNOTATION_BOUNDS, ANNOTATION_FLOOR, LABEL_CNPG_ROLE, LABEL_ENABLED
from protocol.units import Resources
from tests.scheduler_plugin.groups.program.cluster import condition_of
from tests.scheduler_plugin.groups.program.cnpg_story import HVPA, begun, denied, instances, resized, size_of
from tests.scheduler_plugin.groups.program.running import World, world

BY_AGENTS = (
    "True",
    "OptedIn",
    "node agents size pods labelled autoscaling.neon.tech/enabled=true; this group sets only the number of replicas",
)


async def test_hvpa_scales_cluster_and_leaves_sizes_to_agents() -> None:
    async with world() as run:
        await begun(run)
        before = await run.cluster.get(CNPG_CLUSTERS, "pg")
        await run.recommend("pg", 3)
        hvpa = await run.cluster.get(HVPAS, "pg")
        assert (await instances(run), condition_of(hvpa, "SizedByAgents")) == (3, BY_AGENTS)
        assert child(hvpa, "status")["targetSelector"] == "cnpg.io/cluster=pg,cnpg.io/podRole=instance"
        after = await run.cluster.get(CNPG_CLUSTERS, "pg")
        assert {**child(before, "spec"), "instances": 3} == child(after, "spec")
        assert size_of(await run.cluster.get(PODS, "pg-1")) == {"cpu": "1", "memory": "1Gi"}


STATEFUL_SET = """
apiVersion: apps/v1
kind: StatefulSet
metadata: {name: pg}
spec:
  replicas: 2
  serviceName: pg
  selector: {matchLabels: {cnpg.io/cluster: pg}}
  template:
    metadata: {labels: {cnpg.io/cluster: pg}}
    spec:
      containers:
      - name: postgres
        image: example.invalid/postgres
        resources: {requests: {cpu: "1", memory: 1Gi}}
"""

TARGET: Json = {"apiVersion": "apps/v1", "kind": "StatefulSet", "name": "pg"}


async def test_stateful_set_that_agents_size_is_scaled_alone() -> None:
    """Also with the VPA's recommendation, and if its pods were to be resized in place."""
    async with world() as run:
        await run.cluster.make(STATEFUL_SETS, STATEFUL_SET)
        await begun(run, targetRef=TARGET, vpaTemplate={}, mode="HpaBiased", updateMode="InPlace")
        await run.recommend("pg", 3, container="postgres", cpu="4", memory="4Gi")
        stateful_set, hvpa = await run.cluster.get(STATEFUL_SETS, "pg"), await run.cluster.get(HVPAS, "pg")
        assert (child(stateful_set, "spec")["replicas"], condition_of(hvpa, "SizedByAgents")) == (3, BY_AGENTS)
        template = child(stateful_set, "spec", "template")
        sizes = [size_of(template), *[size_of(await run.cluster.get(PODS, name)) for name in ("pg-1", "pg-2")]]
        assert sizes == [{"cpu": "1", "memory": "1Gi"}] * 3


@pytest.mark.parametrize(
    ("spec", "label"),
    [({}, "true"), ({}, None), ({"targetRef": TARGET}, "true")],
    ids=["cluster", "cluster-without-agents", "stateful-set"],
)
async def test_number_follows_hpa_instead_of_effective_intervals(spec: Json, label: str | None) -> None:
    """They plan sizes and replicas together, and are the default beside a VPA."""
    async with world() as run:
        await run.cluster.make(STATEFUL_SETS, STATEFUL_SET)
        await begun(run, switchover=False, vpaTemplate={}, **spec)
        for pod in ("pg-1", "pg-2"):
            await run.cluster.patch(PODS, pod, {"metadata": {"labels": {LABEL_ENABLED: label}}})
        for replicas in (4, 3):
            await run.recommend("pg", replicas, container="postgres", cpu="6", memory="1Gi")
            await run.passes(30)
            status = child(await run.cluster.get(HVPAS, "pg"), "status")
            assert (status["replicas"], status["mode"]) == (replicas, "HpaBiased")


async def test_tortoise_leaves_pods_of_agents_alone() -> None:
    async with world() as run:
        await run.cluster.make(STATEFUL_SETS, STATEFUL_SET)
        await begun(run)
        spec: Json = {"targetRefs": {"scaleTargetRef": TARGET}, "updateMode": "Auto"}
        tortoise: Json = {"apiVersion": TORTOISES.api_version, "kind": "Tortoise", "metadata": {"name": "slow"}}
        await run.cluster.request("POST", TORTOISES.path("default"), {**tortoise, "spec": spec})
        await run.passes(0)
        stopped = condition_of(await run.cluster.get(TORTOISES, "slow"), "AbleToScale")
        assert stopped == (
            "False",
            "SizedByAgents",
            "node agents size pods of StatefulSet pg, and a Tortoise would size them too: use an Hvpa, or remove the"
            " label autoscaling.neon.tech/enabled from the pods",
        )


async def floor_of(run: World, pod: str) -> Resources | None:
    annotation = annotations_of(await run.cluster.get(PODS, pod)).get(ANNOTATION_FLOOR)
    return None if annotation is None else decode_floor(annotation).size


async def test_standby_has_floor_of_primary() -> None:
    """After a failover the old primary gets the new one's size as its floor; the new primary's floor expires on its
    own.
    """
    async with world() as run:
        await begun(run)
        assert (await floor_of(run, "pg-1"), await floor_of(run, "pg-2")) == (None, Resources.parse(1, "1Gi"))
        await resized(run, "pg-1", "4", "8Gi")
        await run.passes(15)
        assert (await floor_of(run, "pg-1"), await floor_of(run, "pg-2")) == (None, Resources.parse(4, "8Gi"))
        await resized(run, "pg-2", "4", "8Gi")
        for pod, role in (("pg-1", "replica"), ("pg-2", "primary")):
            await run.cluster.patch(PODS, pod, {"metadata": {"labels": {LABEL_CNPG_ROLE: role}}})
        await run.passes(15)
        assert await floor_of(run, "pg-1") == Resources.parse(4, "8Gi")
        written = len(run.cluster.writes())
        await run.passes(15)
        assert len(run.cluster.writes()) == written


async def test_floors_need_hvpa_that_grows_sizes() -> None:
    async with world() as run:
        await begun(run, updateMode="Off")
        await run.passes(15)
        assert await floor_of(run, "pg-2") is None


async def test_floors_need_no_recommendations() -> None:
    async with world() as run:
        await begun(run, hpa={"deploy": False})
        await resized(run, "pg-1", "4", "8Gi")
        await run.passes(15)
        assert (await floor_of(run, "pg-2"), await instances(run)) == (Resources.parse(4, "8Gi"), 2)


async def test_floors_need_known_primary() -> None:
    async with world() as run:
        await begun(run)
        await run.cluster.patch(PODS, "pg-2", {"metadata": {"labels": {LABEL_CNPG_ROLE: "primary"}}})
        await resized(run, "pg-1", "4", "8Gi")
        await run.passes(15)
        assert (await floor_of(run, "pg-1"), await floor_of(run, "pg-2")) == (None, Resources.parse(1, "1Gi"))


async def test_stopped_group_writes_no_floor() -> None:
    async with world() as run:
        await begun(run)
        await run.cluster.make(HVPAS, HVPA.replace("name: pg}\nspec", "name: rival}\nspec"))
        await resized(run, "pg-1", "4", "8Gi")
        await run.passes(15)
        assert await floor_of(run, "pg-2") == Resources.parse(1, "1Gi")


async def test_standby_with_room_is_promoted() -> None:
    """A primary waits for five minutes, then changes places with a standby that has its size: once."""
    async with world() as run:
        await begun(run, switchover=True)
        since = await denied(run)
        await run.passes(15)
        waiting = condition_of(await run.cluster.get(HVPAS, "pg"), "PrimaryDenied")
        assert waiting[:2] == ("True", "Waiting")
        before = await run.cluster.get(CNPG_CLUSTERS, "pg")
        await run.passes(300)
        cluster = await run.cluster.get(CNPG_CLUSTERS, "pg")
        changes = {
            "targetPrimary": "pg-2",
            "phase": "Switchover in progress",
            "phaseReason": "Switching over to pg-2",
            "targetPrimaryTimestamp": child(cluster, "status")["targetPrimaryTimestamp"],
        }
        assert child(cluster, "status") == {**child(before, "status"), **changes}
        note = (
            f"pg-1 has been denied 4 cpu, 8Gi since {since[11:16]} UTC because its node is full: promoting pg-2, which"
            " has that size; writes are refused for about 8 s"
        )
        assert ("Switchover", note) in await run.events()
        assert b"autoscale_groups_switchovers_total 1.0" in run.processes["first"].page()
        await run.passes(300)
        assert condition_of(await run.cluster.get(HVPAS, "pg"), "PrimaryDenied")[1] == "NotHealthy"
        assert len([write for write in run.cluster.writes() if write.endswith("clusters/pg/status")]) == 1


async def test_owner_has_to_allow_switchover() -> None:
    async with world() as run:
        await begun(run)
        since = await denied(run)
        await run.passes(600)
        status, reason, message = condition_of(await run.cluster.get(HVPAS, "pg"), "PrimaryDenied")
        assert (status, reason, message) == (
            "True",
            "NotAllowed",
            f"pg-1 has been denied 4 cpu, 8Gi since {since[11:16]} UTC because its node is full: to promote a standby"
            ' with room, annotate the Cluster with autoscaling.neon.tech/switchover: "true"; writes are refused for'
            " about 8 s",
        )
        assert not [write for write in run.cluster.writes() if write.endswith("clusters/pg/status")]


async def test_refused_floor_is_reported() -> None:
    """Without ``pods.enabled`` in the chart the program may not annotate pods."""
    async with world() as run:
        await begun(run)
        run.cluster.connections[0].refuse = {"PATCH /api/v1/namespaces/default/pods/pg-2": 403}
        await resized(run, "pg-1", "4", "8Gi")
        await run.passes(15)
        await run.recommend("pg", 3)
        hvpa = await run.cluster.get(HVPAS, "pg")
        assert (condition_of(hvpa, "TargetWritable"), await instances(run)) == (("False", "Refused", "403: no"), 3)


async def test_pod_that_cannot_be_resized_gets_no_floor() -> None:
    async with world() as run:
        await begun(run)
        await run.cluster.patch(PODS, "pg-2", {"metadata": {"annotations": {ANNOTATION_BOUNDS: "wrong"}}})
        await resized(run, "pg-1", "4", "8Gi")
        await run.passes(15)
        assert await floor_of(run, "pg-2") == Resources.parse(1, "1Gi")
