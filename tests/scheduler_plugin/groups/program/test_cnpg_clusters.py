"""Hvpas of Clusters of CloudNativePG: how many instances there are, and how large a standby is kept."""

from __future__ import annotations

from protocol.kubernetes.objects import Json, child
from protocol.kubernetes.resources import CNPG_CLUSTERS, HVPAS, PODS, STATEFUL_SETS, TORTOISES
from tests.scheduler_plugin.groups.program.cluster import condition_of
from tests.scheduler_plugin.groups.program.cnpg_story import begun, instances, size_of
from tests.scheduler_plugin.groups.program.running import world

BY_AGENTS = (
    "True",
    "OptedIn",
    "the agents of the nodes size pods labelled autoscaling.neon.tech/enabled=true, so this group sets only their"
    " number",
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
        spec: Json = {"targetRef": TARGET, "vpaTemplate": {}, "mode": "HpaBiased", "updateMode": "InPlace"}
        await begun(run, **spec)
        await run.recommend("pg", 3, container="postgres", cpu="4", memory="4Gi")
        stateful_set, hvpa = await run.cluster.get(STATEFUL_SETS, "pg"), await run.cluster.get(HVPAS, "pg")
        assert (child(stateful_set, "spec")["replicas"], condition_of(hvpa, "SizedByAgents")) == (3, BY_AGENTS)
        template = child(stateful_set, "spec", "template")
        sizes = [size_of(template), *[size_of(await run.cluster.get(PODS, name)) for name in ("pg-1", "pg-2")]]
        assert sizes == [{"cpu": "1", "memory": "1Gi"}] * 3


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
            "agents size pods of StatefulSet pg, and a Tortoise would size them, too: use an Hvpa, or remove the label"
            " autoscaling.neon.tech/enabled from the pods",
        )
