"""A pod that is resized in place, and the pods of a node, against a real API server of this project on loopback."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import httpx2 as httpx
import pytest
import pytest_asyncio

from agent.adapters.kubernetes_api import LightKubernetesApi
from agent.adapters.node_pods import NodePods, PodStates
from agent.adapters.pod_api import PodApi
from agent.adapters.token import no_token, read_token
from agent.assignments import Assignment, PodContainer
from agent.core.events import Fault
from agent.ports import ConflictError, PortError, RefusedError
from protocol.kubernetes.resources import STRATEGIC_PATCH
from protocol.messages import ObjectName
from protocol.pod_database import MEMORY_STEP, PodDatabase
from protocol.units import Resources, Seconds
from tests.agent.adapters.answering import client
from tests.local.apiserver.running import running_api_server
from tests.plain_http import plain_client

PODS = "/api/v1/namespaces/default/pods"
NAME = ObjectName("default", "pg-1")
BOUNDS = {"autoscaling.neon.tech/bounds": '{"max": {"cpu": 4, "mem": "8Gi"}}'}
ENABLED = {"autoscaling.neon.tech/enabled": "true"}
RUNNING = {
    "phase": "Running",
    "podIP": "10.0.0.1",
    "containerStatuses": [
        {
            "name": "postgres",
            "containerID": "containerd://c1",
            "state": {"running": {"startedAt": "2026-01-01T00:00:00Z"}},
        }
    ],
}


def pod(name: str = "pg-1", **metadata: object) -> dict[str, object]:
    """A pod as its owner makes it."""
    resources = {"requests": {"cpu": "1", "memory": "1Gi"}, "limits": {"cpu": "2", "memory": "1Gi"}}
    container = {"name": "postgres", "image": "postgres", "resources": resources}
    return {
        "metadata": {"name": name, "labels": ENABLED, "annotations": BOUNDS, **metadata},
        "spec": {"nodeName": "node-1", "schedulerName": "default-scheduler", "containers": [container]},
    }


@dataclass
class Cluster:
    """An API server, for people (``http``) and for the agent of a node (``api``), which watches its ``pods``."""

    http: httpx.AsyncClient
    api: LightKubernetesApi
    pods: NodePods

    def pod(self, uid: str) -> PodApi:
        return PodApi(self.api, NAME, uid, self.pods.states)

    async def made(self, body: dict[str, object]) -> str:
        """Creates the pod ``body``; its UID."""
        answer = await self.http.post(PODS, json=body)
        assert answer.status_code == 201, answer.text
        uid: str = answer.json()["metadata"]["uid"]
        return uid

    async def patched(self, path: str, body: object) -> None:
        answer = await self.http.patch(path, json=body, headers={"Content-Type": "application/merge-patch+json"})
        answer.raise_for_status()

    async def deleted(self, name: str = "pg-1") -> None:
        (await self.http.delete(f"{PODS}/{name}?gracePeriodSeconds=0")).raise_for_status()


@pytest_asyncio.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[Cluster]:
    async with running_api_server(tmp_path) as server:
        token = tmp_path / "token"
        token.write_text(server.token)
        identity = {"Authorization": f"Bearer {server.token}"}
        async with plain_client(base_url=server.url, headers=identity) as http, plain_client() as own:
            room = {"cpu": "16", "memory": "64Gi", "pods": "110"}
            node = {"metadata": {"name": "node-1"}, "status": {"capacity": room, "allocatable": room}}
            (await http.post("/api/v1/nodes", json=node)).raise_for_status()
            api = LightKubernetesApi(own, server.url, partial(read_token, token), Seconds(5.0))
            yield Cluster(http, api, NodePods(api, "node-1", serves_pods=True))


def size(cpu: int, mem: str) -> Resources:
    return Resources.parse(cpu, mem)


async def test_pod_is_read_resized_and_watched(cluster: Cluster) -> None:
    uid = await cluster.made(pod())
    api = cluster.pod(uid)
    before = await api.get()
    assert (str(before.name), before.use) == ("default/pod/pg-1", size(1, "1Gi"))
    after = await api.patch(size(2, "1Gi"), MEMORY_STEP, int(before.resource_version))
    assert after.use == size(2, "1Gi")
    spec = (await cluster.http.get(f"{PODS}/pg-1")).json()["spec"]["containers"][0]["resources"]
    assert spec["limits"] == {"cpu": "3", "memory": "1Gi"}, "the limit stays as far above"
    await cluster.patched(f"{PODS}/pg-1/status", {"status": RUNNING})
    sets, watching = cluster.pods.sets(), api.watch()
    await anext(sets)
    running = await anext(watching)
    assert running == await api.get()
    assert isinstance(running, PodDatabase)
    assert (running.phase, running.container_id) == ("Running", "c1")
    after = await api.patch(size(3, "1Gi"), MEMORY_STEP, int(running.resource_version))
    await anext(sets)
    assert await anext(watching) == after
    await cluster.deleted()
    await anext(sets)
    with pytest.raises(RefusedError, match="Pod default/pg-1 was deleted"):
        await anext(api.watch())


async def test_resize_of_a_stale_version_conflicts(cluster: Cluster) -> None:
    api = cluster.pod(await cluster.made(pod()))
    before = await api.get()
    await cluster.patched(f"{PODS}/pg-1", {"metadata": {"annotations": {"some": "thing"}}})
    with pytest.raises(ConflictError):
        await api.patch(size(2, "2Gi"), MEMORY_STEP, int(before.resource_version))
    assert (await api.patch(size(2, "2Gi"), MEMORY_STEP, 0)).use == size(2, "2Gi")


async def test_pod_that_was_made_anew_is_another(cluster: Cluster) -> None:
    """A StatefulSet recreates a pod under its name; the old pod's agent must not change the new one."""
    api = cluster.pod(await cluster.made(pod()))
    await api.get()
    await cluster.deleted()
    await cluster.made(pod())
    with pytest.raises(RefusedError, match="default/pg-1 was replaced by another pod of that name"):
        await api.get()
    await cluster.patched(f"{PODS}/pg-1/status", {"status": RUNNING})
    await anext(cluster.pods.sets())
    with pytest.raises(RefusedError, match="another pod of that name"):
        await anext(api.watch())
    with pytest.raises(PortError):
        await api.patch(size(2, "2Gi"), MEMORY_STEP, 0)
    found = (await cluster.http.get(f"{PODS}/pg-1")).json()["spec"]["containers"][0]["resources"]["requests"]
    assert found == {"cpu": "1", "memory": "1Gi"}


async def test_resize_has_the_version_that_was_read(cluster: Cluster) -> None:
    """A new watch may begin with an older version than the agent has read."""
    uid = await cluster.made(pod())
    api, other = cluster.pod(uid), cluster.pod(uid)
    await api.get()
    limits = {"name": "postgres", "resources": {"limits": {"cpu": "5"}}}
    body = {"spec": {"containers": [limits]}}
    await cluster.api.patch(f"{PODS}/pg-1/resize", body, STRATEGIC_PATCH)
    newest = await other.get()
    await api.patch(size(2, "1Gi"), MEMORY_STEP, int(newest.resource_version))
    resources = (await cluster.http.get(f"{PODS}/pg-1")).json()["spec"]["containers"][0]["resources"]
    assert (resources["requests"]["cpu"], resources["limits"]["cpu"]) == ("2", "6")


async def test_first_call_may_be_a_resize(cluster: Cluster) -> None:
    api = cluster.pod(await cluster.made(pod()))
    assert (await api.patch(size(2, "2Gi"), MEMORY_STEP, 0)).use == size(2, "2Gi")


async def test_event_is_written_about_the_pod(cluster: Cluster) -> None:
    uid = await cluster.made(pod())
    await cluster.pod(uid).write_event("ResizeRefused", "quota", 1.5)
    (event,) = (await cluster.http.get("/api/v1/namespaces/default/events")).json()["items"]
    about = event["involvedObject"]
    assert (about["apiVersion"], about["kind"], about["name"], about["uid"]) == ("v1", "Pod", "pg-1", uid)
    assert (event["reason"], event["message"]) == ("ResizeRefused", "quota")


@pytest.mark.parametrize(
    ("status", "message", "fault"),
    [
        (403, 'pods "pg-1" is forbidden: exceeded quota: team, requested: requests.cpu=2', Fault.VM_API),
        (403, 'pods "pg-1" is forbidden: User "agent" cannot patch resource "pods/resize"', Fault.AGENT),
        (403, f'pods "{"long-" * 40}" is forbidden: User "agent" cannot patch resource "pods/resize"', Fault.AGENT),
        (422, 'Pod "pg-1" is invalid: spec: Forbidden: no', Fault.VM_API),
    ],
)
async def test_refused_resize_has_the_words_of_the_api(status: int, message: str, fault: Fault) -> None:
    def answer(request: httpx.Request) -> httpx.Response:
        if request.method == "GET":
            made = pod(namespace="default", uid="u")
            return httpx.Response(200, json=made)
        assert json.loads(request.content)["metadata"] == {"uid": "u", "resourceVersion": "7"}
        assert request.headers["content-type"] == "application/strategic-merge-patch+json"
        return httpx.Response(status, json={"message": message})

    api = PodApi(LightKubernetesApi(client(answer), "http://api", no_token, Seconds(1.0)), NAME, "u", PodStates())
    with pytest.raises(RefusedError) as caught:
        await api.patch(size(2, "2Gi"), MEMORY_STEP, 7)
    assert (caught.value.reason, caught.value.fault) == (message[:200], fault)


async def test_unreadable_pod_names_the_field(cluster: Cluster) -> None:
    uid = await cluster.made(pod(annotations={}))
    with pytest.raises(PortError, match=r"the Pod cannot be decoded: metadata\.annotations"):
        await cluster.pod(uid).get()


async def test_node_has_vms_and_pods(cluster: Cluster) -> None:
    """Pods of any scheduler are served; VMs only if they have ours (B.11)."""
    uid = await cluster.made(pod())
    await cluster.made(pod("pg-2", annotations={}))
    await cluster.made(pod("web", labels={}))
    vm_labels = {**ENABLED, "vm.neon.tech/name": "vm-1"}
    for name, scheduler in (("vm-1-pod", "ours"), ("vm-2-pod", "theirs")):
        body = pod(name, labels=vm_labels)
        body["spec"] = {**body["spec"], "schedulerName": scheduler}  # type: ignore[dict-item]
        await cluster.made(body)
        await cluster.patched(f"{PODS}/{name}/status", {"status": {"phase": "Running", "podIP": "10.0.0.9"}})
    pods = NodePods(cluster.api, "node-1", "ours", serves_pods=True)
    sets = pods.sets()
    vm = Assignment(ObjectName("default", "vm-1"), ObjectName("default", "vm-1-pod"), "10.0.0.9")
    assert await anext(sets) == frozenset({vm}), "the container of the pod does not run yet"
    (unreadable,) = pods.unreadable.items()
    assert unreadable[0] == ObjectName("default", "pg-2")
    assert unreadable[1].startswith("metadata.annotations[autoscaling.neon.tech/bounds]: ")
    await cluster.patched(f"{PODS}/pg-1/status", {"status": RUNNING})
    database = Assignment(ObjectName("default", "pod/pg-1"), NAME, "10.0.0.1", PodContainer(uid, "c1"))
    assert await anext(sets) == frozenset({vm, database})
    await cluster.patched(f"{PODS}/pg-1", {"metadata": {"annotations": {"autoscaling.neon.tech/bounds": "{"}}})
    assert await anext(sets) == frozenset({vm, database}), "one that cannot be read any more keeps its agent"
    assert NAME in pods.unreadable
    await cluster.patched(f"{PODS}/pg-1/status", {"status": {"phase": "Failed"}})
    assert await anext(sets) == frozenset({vm})
    assert NAME not in pods.unreadable


async def test_restarted_container_is_another_assignment(cluster: Cluster) -> None:
    uid = await cluster.made(pod())
    await cluster.patched(f"{PODS}/pg-1/status", {"status": RUNNING})
    sets = NodePods(cluster.api, "node-1", serves_pods=True).sets()
    first = Assignment(ObjectName("default", "pod/pg-1"), NAME, "10.0.0.1", PodContainer(uid, "c1"))
    assert await anext(sets) == frozenset({first})
    again = json.loads(json.dumps(RUNNING).replace("//c1", "//c2"))
    await cluster.patched(f"{PODS}/pg-1/status", {"status": again})
    second = Assignment(ObjectName("default", "pod/pg-1"), NAME, "10.0.0.1", PodContainer(uid, "c2"))
    assert await anext(sets) == frozenset({second})


async def test_resize_of_unreadable_pod_fails(cluster: Cluster) -> None:
    """Its owner broke the annotation after the last read; the agent must not crash over it."""
    uid = await cluster.made(pod())
    api = cluster.pod(uid)
    version = int((await api.get()).resource_version)
    await cluster.patched(f"{PODS}/pg-1", {"metadata": {"annotations": {"autoscaling.neon.tech/bounds": "{"}}})
    with pytest.raises(PortError, match=r"the Pod cannot be decoded: metadata\.annotations"):
        await api.patch(size(2, "2Gi"), MEMORY_STEP, version + 1)
