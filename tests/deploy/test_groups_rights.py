"""The groups program's rights match its calls in tests with all of its kinds.

No admission policy of ours refuses any of it.
"""

from __future__ import annotations

import pytest

from deploy.local.apiserver.patch.merge import merge_patch
from protocol.kubernetes.resources import DEPLOYMENTS, HVPAS, TORTOISES, VIRTUAL_MACHINES, VM_GROUPS
from tests.deploy.manifests import Document, documents
from tests.deploy.policies.admission import is_judged, refusal, write_by
from tests.deploy.test_rights import Right, granted, right
from tests.scheduler_plugin.groups.program import cnpg_story, test_in_place, test_tortoise, test_vm_recommender
from tests.scheduler_plugin.groups.program.cluster import EmbeddedCluster
from tests.scheduler_plugin.groups.program.running import DEPLOYMENT, world
from tests.scheduler_plugin.groups.program.test_hvpa import INTERVALS
from tests.scheduler_plugin.groups.program.vm_group_story import story

ACCOUNT = "system:serviceaccount:kube-system:autoscaling-groups"
POLICIES = [each for each in documents() if each["kind"] == "ValidatingAdmissionPolicy"]
SPARED = {
    *(("apps", f"{plural}/scale", "patch") for plural in ("statefulsets", "replicasets")),
    *(("apps", plural, verb) for plural in ("statefulsets", "replicasets") for verb in ("get", "patch")),
    ("autoscaling.neon.tech", "virtualmachinegroups", "get"),
}
"""What no story here does: these kinds of targets are written as Deployments are."""
PODS_ENABLED = {("postgresql.cnpg.io", "clusters/status", "patch"), ("", "pods", "patch")}
"""Rights that the chart grants with ``pods.enabled`` alone, beside ``get`` of pods, which the program never does: the
scheduler explains a pod only to those who may.
"""


def rights(cluster: EmbeddedCluster) -> set[Right]:
    """All API calls of all processes. Raises ``AssertionError`` if a policy would have rejected a write."""
    writes = [write_by(ACCOUNT, each.call.method, each.call.path, each.before, each.after) for each in cluster.written]
    assert any(is_judged(policy, each) for policy in POLICIES for each in writes)
    assert {said for each in writes if (said := refusal(POLICIES, each))} == set()
    return {right(each.method, each.path, each.query) for way in cluster.connections for each in way.asked}


async def of_hvpas() -> set[Right]:
    async with world() as run:
        await run.cluster.make(DEPLOYMENTS, DEPLOYMENT)
        await run.cluster.make(HVPAS, INTERVALS)
        await run.start()
        await run.recommend("hvpa-sample", 3, cpu="1500m", memory="1500Mi")
        await run.passes(15)
        await run.cluster.patch(HVPAS, "hvpa-sample", {"spec": {"hpaTemplate": {"maxReplicas": 11}}})
        await run.cluster.patch(HVPAS, "hvpa-sample", {"spec": {"vpaTemplate": {"resourcePolicy": None}}})
        await run.passes(15)
        return rights(run.cluster)


async def of_pods() -> set[Right]:
    async with test_in_place.begun() as run:
        await run.recommend("sizes", cpu="1500m", memory="1500Mi")
        return rights(run.cluster)


async def of_clusters() -> set[Right]:
    async with world() as run:
        await cnpg_story.begun(run, switchover=True)
        await cnpg_story.denied(run)
        await run.passes(301)
        await run.recommend("pg", 3)
        return rights(run.cluster)


async def of_tortoises() -> set[Right]:
    async with test_tortoise.day() as found:
        await found.needs(16)
        await found.run.cluster.make(VIRTUAL_MACHINES, test_in_place.VM)
        own = test_tortoise.TORTOISE.replace("    horizontalPodAutoscalerName: web\n", "").replace("lovely", "other")
        await found.run.cluster.make(DEPLOYMENTS, test_tortoise.DEPLOYMENT.replace("name: web", "name: other"))
        await found.run.cluster.make(TORTOISES, own.replace("Deployment, name: web", "Deployment, name: other"))
        await found.run.passes(0)
        vertical = [{"containerName": "app", "policy": {"cpu": "Vertical"}}]
        await found.run.cluster.patch(TORTOISES, "other", {"spec": {"autoscalingPolicy": vertical}})
        await found.run.passes(15)
        await found.run.cluster.delete(TORTOISES, "lovely")  # its HPA is put back
        await found.run.passes(15)
        return rights(found.run.cluster)


async def of_vm_groups() -> set[Right]:
    async with story() as run:
        await run.start()
        await run.create(drain={"gracePeriod": "1s", "timeout": "2s"})
        await run.pass_time(4)
        await run.scale(1)
        await run.pass_time(6)
        run.databases.busy = dict.fromkeys(("shop-replica-0", "shop-replica-1"), 8.0)
        await run.cluster.patch(VM_GROUPS, "shop", {"spec": {"scaling": {"maxReplicas": 3, "window": "10s"}}})
        await run.pass_time(20)
        return rights(run.cluster)


async def of_recommender() -> set[Right]:
    async with test_vm_recommender.recommending() as run:
        await run.cluster.make(VIRTUAL_MACHINES, test_in_place.VM)
        run.databases.busy = {"db": 3.0}
        hpa = "spec:\n  hpaTemplate: {maxReplicas: 1}"
        await run.cluster.make(HVPAS, test_vm_recommender.OF_VM.replace("spec:", hpa))
        await run.pass_time(16)
        return rights(run.cluster)


async def test_the_groups_program_may_do_what_it_does() -> None:
    may = granted("ClusterRole", "autoscaling-groups") | granted("Role", "autoscaling-groups")
    stories = of_hvpas, of_pods, of_clusters, of_tortoises, of_vm_groups, of_recommender
    does = {right for story_of in stories for right in await story_of()}
    assert sorted(does - may) == sorted(PODS_ENABLED)
    assert sorted(may - does - SPARED) == []


CLUSTERS = "/apis/postgresql.cnpg.io/v1/namespaces/default/clusters/pg"
ALLOWS: Document = {
    "metadata": {"annotations": {"autoscaling.neon.tech/switchover": "true"}},
    "status": {"phase": "x"},
}
PODS = "/api/v1/namespaces/default/pods/pg-1"
POD: Document = {"metadata": {"name": "pg-1", "labels": {"autoscaling.neon.tech/enabled": "true"}}, "spec": {}}
_CLUSTER = "autoscaling-groups-clusters: autoscale-groups may only promote a standby of a Cluster that allows it"
_POD = "autoscaling-groups-pods: autoscale-groups may change only the size and the annotation floor"


@pytest.mark.parametrize(
    ("path", "before", "change", "policy"),
    [
        (f"{CLUSTERS}/status", ALLOWS, {"status": {"targetPrimary": "pg-2", "phase": "y"}}, ""),
        (f"{CLUSTERS}/status", ALLOWS, {"status": {"currentPrimary": "pg-2"}}, _CLUSTER),
        (f"{CLUSTERS}/status", {**ALLOWS, "metadata": {}}, {"status": {"targetPrimary": "pg-2"}}, _CLUSTER),
        (CLUSTERS, ALLOWS, {"spec": {"instances": 9}}, _CLUSTER),
        (PODS, POD, {"metadata": {"annotations": {"autoscaling.neon.tech/floor": "{}"}}}, ""),
        (PODS, POD, {"metadata": {"annotations": {"autoscaling.neon.tech/bounds": "{}"}}}, _POD),
        (PODS, POD, {"metadata": {"labels": {"role": "primary"}}}, _POD),
        (PODS, POD, {"spec": {"containers": []}}, _POD),
        (PODS, {"metadata": {}}, {"metadata": {"annotations": {"autoscaling.neon.tech/floor": "{}"}}}, _POD),
    ],
    ids=["promotes", "other-status", "not-opted-in", "spec", "floor", "bounds", "label", "image", "pod-not-opted-in"],
)
def test_databases_in_pods_have_fences(path: str, before: Document, change: Document, policy: str) -> None:
    said = refusal(POLICIES, write_by(ACCOUNT, "PATCH", path, before, merge_patch(before, change)))
    assert (said.startswith(policy), bool(said)) == (True, bool(policy))
