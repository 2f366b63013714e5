"""Postgres in ordinary pods next to VMs: one ledger, permits without writes, and only node agents may ask (B.7)."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx2 as httpx
import pytest

from scheduler_plugin.texts import explanations
from scheduler_plugin.workers import event_recorder
from tests.fake_clock import FakeClock, settle
from tests.scheduler_plugin.fake_cluster import CLUSTERS, HPAS, NODES, PODS, VMS, VPAS, FakeCluster, Fault
from tests.scheduler_plugin.objects import Obj, has, node, plain_pod, postgres_pod, token_of, vm, vm_pod
from tests.scheduler_plugin.running import Running, running

POD = postgres_pod("pg-1", "1", "4Gi", "n1")
AGENT = plain_pod("agent", "0", "0", "n1", namespace="kube-system")


@pytest.fixture
def cluster() -> FakeCluster:
    """A node of 10 CPUs with a VM that has 4, and a pod that requests 1.1."""
    cluster = FakeCluster()
    cluster.put(NODES, node("n1"))
    cluster.put(VMS, vm("db", 4, 4))
    cluster.put(PODS, vm_pod("db", "n1"))
    cluster.put(PODS, AGENT)
    cluster.put(PODS, POD)
    cluster.tokens["node"] = token_of(AGENT, node="n1")
    cluster.tokens["node"]["user"]["username"] = "system:serviceaccount:kube-system:autoscaling-agent"
    return cluster


async def ask(scheduler: Running, cpu: Any, gib: int, *, pod: Obj = POD, **more: Any) -> httpx.Response:
    """A request of the node's agent, with memory in slots of 64Mi."""
    return await scheduler.ask(pod, cpu, gib * 16, "node", **more)


async def permit(scheduler: Running, cpu: Any, gib: int, **more: Any) -> tuple[str, int]:
    """CPUs and GiB that the agent is permitted."""
    response = await ask(scheduler, cpu, gib, **more)
    assert response.status_code == 200, response.text
    granted = response.json()["permit"]
    return str(granted["vCPUs"]), granted["mem"] // 16


def resized(cpu: str, mem: str, actual: tuple[str, str] | None = None) -> Obj:
    """The pod with other requests; its kubelet has set them aside, or still ``actual``."""
    obj = postgres_pod("pg-1", cpu, mem, "n1")
    in_force = {"cpu": cpu, "memory": mem} if actual is None else {"cpu": actual[0], "memory": actual[1]}
    obj["status"]["containerStatuses"] = [has(in_force)]
    return obj


async def test_permits_without_a_write(cluster: FakeCluster) -> None:
    async with running(cluster, FakeClock()) as scheduler:
        await scheduler.clock.advance(31)  # so long a message of before the start may be on its way
        assert scheduler.reserved("n1") == "5100m cpu, 8256Mi"
        assert await permit(scheduler, 3, 6, sequence=1) == ("3", 6)
        assert scheduler.reserved("n1") == "7100m cpu, 10304Mi"
        # Beyond the node's 10 CPUs it gets what is left; the exporter's part stays its own.
        assert await permit(scheduler, 8, 6, sequence=2) == ("5900m", 6)
        assert await permit(scheduler, 2, 4, sequence=3) == ("2", 4)
        assert scheduler.reserved("n1") == "6100m cpu, 8256Mi"
        await scheduler.clock.advance(60)
        assert cluster.made("PATCH", "/") == []


async def test_what_the_container_has_counts(cluster: FakeCluster) -> None:
    """Until the kubelet has released it."""
    async with running(cluster, FakeClock()) as scheduler:
        await scheduler.clock.advance(31)
        await permit(scheduler, 3, 6, sequence=1)
        cluster.put(PODS, resized("3", "6Gi"))
        await settle()
        cluster.put(PODS, resized("1", "4Gi", actual=("1", "6Gi")))
        await settle()
        assert await permit(scheduler, 1, 4, sequence=2) == ("1", 4)
        assert scheduler.reserved("n1") == "5100m cpu, 10304Mi"
        cluster.put(PODS, resized("1", "4Gi"))
        await settle()
        assert scheduler.reserved("n1") == "5100m cpu, 8256Mi"


async def test_person_who_edits_requests_is_believed(cluster: FakeCluster) -> None:
    async with running(cluster, FakeClock()) as scheduler:
        cluster.put(PODS, resized("4", "8Gi", actual=("1", "4Gi")))
        await settle()
        assert scheduler.reserved("n1") == "8100m cpu, 12352Mi"


async def test_restart_waits_for_agents(cluster: FakeCluster) -> None:
    """Only the agent knows that it holds 4 CPUs: they are in no object."""
    clock = FakeClock()
    async with running(cluster, clock) as scheduler:
        assert await permit(scheduler, 4, 6, sequence=1) == ("4", 6)
    async with running(cluster, clock, identity="successor") as scheduler:
        assert (await scheduler.ask(vm_pod("db", "n1"), 8, 8)).json()["permit"] == {"vCPUs": 4, "mem": 4}
        assert await permit(scheduler, 4, 6, sequence=2, lastPermit={"vCPUs": 4, "mem": 96}) == ("4", 6)
        assert (await scheduler.ask(vm_pod("db", "n1"), 8, 8)).json()["permit"] == {"vCPUs": "5900m", "mem": 8}


async def test_restart_waits_for_dead_agent(cluster: FakeCluster) -> None:
    """Only as long as messages live."""
    clock = FakeClock()
    async with running(cluster, clock) as scheduler:
        assert await scheduler.filter(plain_pod("new"), "n1") == []
        await clock.advance(35)
        assert await scheduler.filter(plain_pod("new"), "n1") == ["n1"]


@pytest.mark.parametrize(
    ("token", "status"),
    [("node", 200), ("own", 403), ("sidecar", 403), ("elsewhere", 403)],
)
async def test_only_node_agents_speak(cluster: FakeCluster, token: str, status: int) -> None:
    """The pod's creator can put a token into it, and could reserve what its neighbours need."""
    cluster.tokens |= {
        "own": token_of(POD),
        "sidecar": token_of(POD, node="n1"),
        "elsewhere": token_of(AGENT, node="n2"),
    }
    cluster.tokens["elsewhere"]["user"]["username"] = "system:serviceaccount:kube-system:autoscaling-agent"
    async with running(cluster, FakeClock()) as scheduler:
        before = scheduler.reserved("n1")
        assert (await scheduler.ask(POD, 4, 64, token)).status_code == status
        assert (scheduler.reserved("n1") == before) is (status != 200)


async def test_deleted_pod_frees_its_room(cluster: FakeCluster) -> None:
    """A pod that terminates keeps its reservation until it is gone."""
    async with running(cluster, FakeClock()) as scheduler:
        await permit(scheduler, 3, 6, sequence=1)
        leaving = resized("1", "4Gi")
        leaving["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
        cluster.put(PODS, leaving)
        await settle()
        assert scheduler.reserved("n1") == "7100m cpu, 10304Mi"
        cluster.remove(PODS, "default", "pg-1")
        await settle()
        assert scheduler.reserved("n1") == "4 cpu, 4Gi"
        assert (await scheduler.probe("explain/default/pod/pg-1")).status_code == 404


async def test_statefulset_pod_made_again_is_another_one(cluster: FakeCluster) -> None:
    async with running(cluster, FakeClock()) as scheduler:
        await permit(scheduler, 3, 6, sequence=1)
        again = postgres_pod("pg-1", "1", "4Gi", "n1")
        again["metadata"]["uid"] = "second"
        cluster.collections[PODS].objects.pop(("default", "pg-1"))
        cluster.put(PODS, again)
        await settle()
        assert scheduler.reserved("n1") == "5100m cpu, 8256Mi"
        assert await permit(scheduler, 2, 4, sequence=1, pod=again) == ("2", 4)


@pytest.mark.parametrize("change", ["ends", "opts out"])
async def test_ended_or_opted_out_pod(cluster: FakeCluster, change: str) -> None:
    async with running(cluster, FakeClock()) as scheduler:
        await permit(scheduler, 3, 6, sequence=1)
        pod = resized("1", "4Gi")
        if change == "ends":
            pod["status"]["phase"] = "Succeeded"
        else:
            pod["metadata"]["labels"] = {}
        cluster.put(PODS, pod)
        await settle()
        assert scheduler.reserved("n1") == ("4 cpu, 4Gi" if change == "ends" else "5100m cpu, 8256Mi")
        assert (await ask(scheduler, 2, 4)).status_code == (404 if change == "ends" else 400)
        assert (await scheduler.probe("explain/default/pod/pg-1")).status_code == 404


async def test_explanation_takes_the_name_of_a_pod(cluster: FakeCluster) -> None:
    clock = FakeClock()
    async with running(cluster, clock) as scheduler:
        await permit(scheduler, 9, 6, sequence=1)
        await permit(scheduler, 9, 6, sequence=2)
        explained = (await scheduler.probe("explain/default/pod/pg-1")).json()
    (pod,) = explained["pods"]
    assert (explained["vm"], explained["mayMove"], explained["problems"]) == ("default/pod/pg-1", False, [])
    assert explained["staysBecause"] == "in an ordinary pod, which cannot be migrated"
    assert (pod["pod"], pod["permitStored"], pod["denied"]) == ("default/pg-1", True, {"cpu": "2100m", "mem": "0"})
    assert pod["reservedBecause"] == {
        "permit the agent may hold": {"cpu": "6", "mem": "6208Mi"},
        "requests of the container": {"cpu": "1100m", "mem": "4160Mi"},
        "actual resources of the container": {"cpu": "1100m", "mem": "4160Mi"},
        "requests of the pod": {"cpu": "1100m", "mem": "4160Mi"},
    }
    (event,) = [each for each in cluster.notices if each["reason"] == "GrowthDenied"]
    assert (event["involvedObject"]["kind"], event["involvedObject"]["name"]) == ("Pod", "pg-1")
    assert event["metadata"]["name"].startswith("pg-1.")


HPA = {
    "metadata": {"namespace": "default", "name": "h", "uid": "h"},
    "spec": {
        "scaleTargetRef": {"apiVersion": "apps/v1", "kind": "StatefulSet", "name": "pg"},
        "metrics": [{"type": "Resource", "resource": {"name": "cpu", "target": {"type": "Utilization"}}}],
    },
}
VPA = {
    "metadata": {"namespace": "default", "name": "v", "uid": "v"},
    "spec": {"targetRef": {"apiVersion": "apps/v1", "kind": "StatefulSet", "name": "pg"}},
}


@pytest.mark.parametrize(("path", "obj"), [(HPAS, HPA), (VPAS, VPA)])
async def test_conflict_stops_growth(cluster: FakeCluster, path: str, obj: Obj) -> None:
    owner = {"apiVersion": "apps/v1", "kind": "StatefulSet", "name": "pg", "uid": "s", "controller": True}
    owned = postgres_pod("pg-1", "1", "4Gi", "n1")
    owned["metadata"]["ownerReferences"] = [owner]
    cluster.put(PODS, owned)
    other = {**obj, "metadata": {**obj["metadata"], "name": "other"}, "spec": {**obj["spec"]}}
    for field in {"scaleTargetRef", "targetRef"} & obj["spec"].keys():
        other["spec"][field] = {**obj["spec"][field], "name": "other"}
    cluster.put(path, other)
    clock = FakeClock()
    async with running(cluster, clock) as scheduler:
        assert await permit(scheduler, 1, 4, sequence=1) == ("1", 4)
        assert await permit(scheduler, 2, 4, sequence=2) == ("2", 4)
        cluster.put(path, obj)
        await clock.advance(11)
        assert await permit(scheduler, 3, 5, sequence=3) == ("1", 4)
        explained = (await scheduler.probe("explain/default/pod/pg-1")).json()
        (why,) = explained["problems"]
        assert explained["pods"][0]["requestsProblem"] == why
        assert why.startswith(("HorizontalPodAutoscaler h scales", "VerticalPodAutoscaler v also sizes"))
        await clock.advance(1)
        told = [each for each in cluster.notices if each["involvedObject"]["name"] == "pg-1"]
        assert [(each["reason"], each["type"], each["message"]) for each in told] == [("NotResized", "Warning", why)]
        cluster.put(path, {**obj, "spec": other["spec"]})
        await settle()
        assert await permit(scheduler, 3, 5, sequence=4) == ("3", 5)
        cluster.remove(path, "default", obj["metadata"]["name"])
        await settle()
        assert await permit(scheduler, 4, 5, sequence=5) == ("4", 5)


async def test_growth_waits_for_other_kinds(cluster: FakeCluster) -> None:
    """One growth too early, and CloudNativePG restarts the primary. A kind that the cluster lacks is known, too."""
    slow = asyncio.Event()
    cluster.faults += [
        Fault(lambda call: call.path == CLUSTERS, hold=slow, is_stale=True),
        Fault(lambda call: call.path == VPAS, refuse=404),
        Fault(lambda call: call.path == HPAS, refuse=403),
    ]
    async with running(cluster, FakeClock()) as scheduler:
        assert await permit(scheduler, 2, 4, sequence=1) == ("1", 4)
        (pod,) = (await scheduler.probe("explain/default/pod/pg-1")).json()["pods"]
        assert pod["requestsProblem"] == explanations.NOT_READ_YET
        await scheduler.clock.advance(15)
        assert cluster.notices == []
        slow.set()
        await settle()
        assert await permit(scheduler, 2, 4, sequence=2) == ("2", 4)


async def test_autoscalers_are_read_on_demand(cluster: FakeCluster) -> None:
    cluster.remove(PODS, "default", "pg-1")
    async with running(cluster, FakeClock()):
        assert [call for path in (HPAS, VPAS, CLUSTERS) for call in cluster.made("GET", path)] == []
        cluster.put(PODS, POD)
        await settle()
        assert len([call for path in (HPAS, VPAS, CLUSTERS) for call in cluster.made("GET", path)]) == 3


async def test_operators_that_take_resizes_back_are_refused(cluster: FakeCluster) -> None:
    owner = {"apiVersion": "postgresql.cnpg.io/v1", "kind": "Cluster", "name": "pg", "uid": "c", "controller": True}
    owned = postgres_pod("pg-1", "1", "4Gi", "n1")
    owned["metadata"]["ownerReferences"] = [owner]
    cluster.put(PODS, owned)
    spec = {"resourcesUpdateStrategy": "inPlace"}
    cluster.put(CLUSTERS, {"metadata": {"namespace": "default", "name": "pg", "uid": "c"}, "spec": spec})
    async with running(cluster, FakeClock()) as scheduler:
        assert await permit(scheduler, 2, 4, sequence=1) == ("1", 4)
        disabled = {"cnpg.io/reconcilePodSpec": "disabled"}
        metadata = {"namespace": "default", "name": "pg", "uid": "c", "annotations": disabled}
        cluster.put(CLUSTERS, {"metadata": metadata, "spec": spec})
        await settle()
        assert await permit(scheduler, 2, 4, sequence=2) == ("2", 4)
        owned["metadata"]["labels"]["app.kubernetes.io/managed-by"] = "kubeblocks"
        cluster.put(PODS, owned)
        await settle()
        assert await permit(scheduler, 3, 4, sequence=3) == ("1", 4)
        owned["metadata"]["annotations"]["autoscaling.neon.tech/resize"] = "true"
        cluster.put(PODS, owned)
        await settle()
        assert await permit(scheduler, 3, 4, sequence=4) == ("3", 4)


async def test_pod_that_cannot_be_served_says_why(cluster: FakeCluster) -> None:
    broken = postgres_pod("pg-1", "1", "4Gi", "n1", most='{"cpu": 8}')
    cluster.put(PODS, broken)
    clock = FakeClock()
    async with running(cluster, clock) as scheduler:
        assert (await ask(scheduler, 2, 4)).status_code == 400
        await clock.advance(30)
        (problem,) = (await scheduler.probe("explain/default/pod/pg-1")).json()["problems"]
    assert problem.startswith("pod default/pg-1 is not resized: metadata.annotations[autoscaling.neon.tech/bounds]: ")
    (event,) = cluster.notices
    assert (event["reason"], event["message"]) == ("NotResized", problem)


@pytest.mark.parametrize(("waiting", "written"), [(2, ["default", "other"]), (1, ["default"])])
async def test_same_pod_name_is_reported_per_namespace(
    cluster: FakeCluster, waiting: int, written: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every team calls its Cluster pg. Events are dropped only if too many wait."""
    monkeypatch.setattr(event_recorder, "MAX_QUEUED", waiting)
    for namespace in ("default", "other"):
        odd = postgres_pod("pg-1", "1", "1Gi", "n1")
        odd["metadata"] |= {"namespace": namespace, "uid": f"pg-1-of-{namespace}"}
        odd["metadata"]["labels"]["autoscaling.neon.tech/weight"] = "heavy"
        cluster.put(PODS, odd)
    clock = FakeClock()
    async with running(cluster, clock):
        await clock.advance(30)
    assert sorted(event["metadata"]["namespace"] for event in cluster.notices) == written


async def test_unreadable_weight_is_reported(cluster: FakeCluster) -> None:
    odd = postgres_pod("pg-1", "1", "4Gi", "n1")
    odd["metadata"]["labels"]["autoscaling.neon.tech/weight"] = "heavy"
    cluster.put(PODS, odd)
    clock = FakeClock()
    async with running(cluster, clock):
        await clock.advance(30)
    (event,) = cluster.notices
    assert (event["reason"], event["involvedObject"]["kind"]) == ("WeightUnreadable", "Pod")
