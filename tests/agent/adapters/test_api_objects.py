"""The VM's object and the node's pods, against a real API server of this project on loopback."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import httpx2 as httpx
import pytest
import pytest_asyncio
import yaml

import deploy
from agent.adapters.kubernetes_api import LightKubernetesApi
from agent.adapters.neonvm import NeonVm
from agent.adapters.node_pods import NodePods
from agent.adapters.token import no_token, read_token
from agent.assignments import Assignment
from agent.core.events import Fault
from agent.ports import ConflictError, PortError, RefusedError
from protocol.messages import ObjectName
from protocol.names import ANNOTATION_SLEEP
from protocol.units import Bytes, MilliCpu, Resources, Seconds
from tests.agent.adapters.answering import Chunks, client
from tests.local.apiserver.running import running_api_server
from tests.nesting import DEEP
from tests.plain_http import plain_client

GIB = 1024**3
VMS = "/apis/vm.neon.tech/v1/namespaces/default/virtualmachines"
PODS = "/api/v1/namespaces/default/pods"
CRD = Path(deploy.__file__).parent / "kubernetes" / "crds" / "virtualmachines.yaml"
ENABLED = {"autoscaling.neon.tech/enabled": "true"}


@dataclass
class Cluster:
    """An API server with one VM, for users (``http``) and for an agent (``api``)."""

    http: httpx.AsyncClient
    api: LightKubernetesApi

    @property
    def vm(self) -> NeonVm:
        return NeonVm(self.api, ObjectName("default", "vm-1"))

    async def patched(self, path: str, body: object) -> None:
        answer = await self.http.patch(path, json=body, headers={"Content-Type": "application/merge-patch+json"})
        answer.raise_for_status()

    async def has_pod(self, name: str, node: str, vm: str | None = None, labels: dict[str, str] = ENABLED) -> None:
        known = {**labels, **({} if vm is None else {"vm.neon.tech/name": vm})}
        spec = {"nodeName": node, "containers": [{"name": "vm", "image": "vm"}]}
        body = {"metadata": {"name": name, "labels": known}, "spec": spec}
        (await self.http.post(PODS, json=body)).raise_for_status()

    async def has_address(self, pod: str, address: str) -> None:
        await self.patched(f"{PODS}/{pod}/status", {"status": {"podIP": address, "phase": "Running"}})


@pytest_asyncio.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[Cluster]:
    async with running_api_server(tmp_path) as server:
        token = tmp_path / "token"
        token.write_text(server.token)
        identity = {"Authorization": f"Bearer {server.token}"}
        async with (
            plain_client(base_url=server.url, headers=identity) as http,
            plain_client() as own,
        ):
            crds = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
            (await http.post(crds, json=yaml.safe_load(CRD.read_text()))).raise_for_status()
            guest = {
                "cpus": {"min": "250m", "max": 2, "use": "250m"},
                "memorySlots": {"min": 1, "max": 8, "use": 1},
                "memorySlotSize": "1Gi",
                "rootDisk": {"image": "vm-postgres:15"},
            }
            vm = {
                "apiVersion": "vm.neon.tech/v1",
                "kind": "VirtualMachine",
                "metadata": {"name": "vm-1", "labels": ENABLED},
                "spec": {"guest": guest},
            }
            answer = await http.post(VMS, json=vm)
            assert answer.status_code == 201, answer.text
            yield Cluster(http, LightKubernetesApi(own, server.url, partial(read_token, token), Seconds(5.0)))


def size(cpu: int, gib: int) -> Resources:
    return Resources(MilliCpu(cpu), Bytes(gib * GIB))


async def test_the_object_is_read_patched_and_watched(cluster: Cluster) -> None:
    before = await cluster.vm.get()
    assert (before.use, before.bounds.max) == (size(250, 1), size(2000, 8))
    after = await cluster.vm.patch(size(500, 2), before.slot_size, int(before.resource_version))
    assert after.use == size(500, 2)
    assert int(after.resource_version) > int(before.resource_version)
    watching = cluster.vm.watch()
    assert await anext(watching) == after
    await cluster.patched(f"{VMS}/vm-1", {"metadata": {"annotations": {"autoscaling.neon.tech/config": "{}"}}})
    assert (await anext(watching)).annotations == {"autoscaling.neon.tech/config": "{}"}
    (await cluster.http.delete(f"{VMS}/vm-1")).raise_for_status()
    with pytest.raises(RefusedError, match="default/vm-1 was deleted"):
        await anext(watching)
    with pytest.raises(RefusedError):
        await cluster.vm.get()


async def test_patch_of_stale_version_conflicts(cluster: Cluster) -> None:
    """A patch decided on an older version of the object has no effect."""
    before = await cluster.vm.get()
    await cluster.patched(f"{VMS}/vm-1", {"metadata": {"annotations": {"some": "thing"}}})
    with pytest.raises(ConflictError):
        await cluster.vm.patch(size(500, 2), before.slot_size, int(before.resource_version))
    assert (await cluster.vm.get()).use == size(250, 1)
    assert (await cluster.vm.patch(size(500, 2), before.slot_size, 0)).use == size(500, 2)


async def test_order_to_sleep_conflicts_with_changes(cluster: Cluster) -> None:
    """An order decided on an older version of the object is not written."""
    before = await cluster.vm.get()
    after = await cluster.vm.order_sleep("2026-11-27T02:10:00Z", int(before.resource_version))
    assert after.annotations == {**before.annotations, ANNOTATION_SLEEP: "2026-11-27T02:10:00Z"}
    with pytest.raises(ConflictError):
        await cluster.vm.order_sleep("2026-11-27T02:11:00Z", int(before.resource_version))


async def test_patch_leaves_out_what_stays(cluster: Cluster) -> None:
    """Bounds were raised beyond the running machine: a patch of one resource does not mention the other."""
    raised = {"cpus": {"min": 4, "max": 8, "use": 4}, "memorySlots": {"min": 1, "max": 8, "use": 1}}
    await cluster.patched(f"{VMS}/vm-1", {"spec": {"guest": raised}})
    machine = {"maxCpus": "2", "minMemory": "1Gi", "maxMemory": "8Gi"}
    await cluster.patched(f"{VMS}/vm-1/status", {"status": {"machine": machine}})
    vm = cluster.vm
    before = await vm.get()
    assert before.use == size(2000, 1)
    after = await vm.patch(size(2000, 3), before.slot_size, int(before.resource_version))
    assert (after.use, after.after_restart) == (size(2000, 3), size(4000, 3))


async def test_a_patch_that_the_schema_forbids_is_refused(cluster: Cluster) -> None:
    with pytest.raises(RefusedError):
        await cluster.vm.patch(Resources(MilliCpu(250), Bytes(0)), Bytes(GIB), 0)


async def test_an_event_is_written_about_the_vm(cluster: Cluster) -> None:
    vm = cluster.vm
    uid = (await vm.get()).uid
    await vm.write_event("ResizeRefused", "x" * 2000, 1.5)
    (event,) = (await cluster.http.get("/api/v1/namespaces/default/events")).json()["items"]
    about = event["involvedObject"]
    assert (about["kind"], about["name"], about["uid"]) == ("VirtualMachine", "vm-1", uid)
    assert (event["reason"], event["type"], len(event["message"])) == ("ResizeRefused", "Warning", 1024)
    assert (event["source"]["component"], event["firstTimestamp"]) == (
        "autoscaler-agent",
        "1970-01-01T00:00:01.500000Z",
    )


async def test_invalid_object_names_the_field() -> None:
    broken = {"metadata": {"namespace": "default", "name": "vm-1"}, "spec": {"guest": {"cpus": {"min": 3, "use": 1}}}}
    api = LightKubernetesApi(client(lambda _: httpx.Response(200, json=broken)), "http://api", no_token, Seconds(1.0))
    with pytest.raises(PortError) as caught:
        await NeonVm(api, ObjectName("default", "vm-1")).get()
    assert caught.value.fault == Fault.VM_API
    assert caught.value.reason.startswith("the VirtualMachine cannot be decoded: spec.guest.cpus: ")


async def test_node_vms_are_enabled_pods_with_address(cluster: Cluster) -> None:
    await cluster.has_pod("one", "node-1", "vm-1")
    await cluster.has_pod("two", "node-2", "vm-2")
    await cluster.has_pod("three", "node-1")
    await cluster.has_pod("four", "node-1", "vm-4", labels={})
    for number, pod in enumerate(("one", "two", "three", "four")):
        await cluster.has_address(pod, f"10.0.0.{number}")
    sets = NodePods(cluster.api, "node-1").sets()
    one = Assignment(ObjectName("default", "vm-1"), ObjectName("default", "one"), "10.0.0.0")
    assert await anext(sets) == frozenset({one})
    await cluster.has_pod("five", "node-1", "vm-5")
    assert await anext(sets) == frozenset({one})
    await cluster.has_address("five", "10.0.0.5")
    five = Assignment(ObjectName("default", "vm-5"), ObjectName("default", "five"), "10.0.0.5")
    assert await anext(sets) == frozenset({one, five})
    await cluster.patched(f"{PODS}/five/status", {"status": {"phase": "Succeeded"}})
    assert await anext(sets) == frozenset({one})
    (await cluster.http.delete(f"{PODS}/one?gracePeriodSeconds=0")).raise_for_status()
    left = await anext(sets)
    assert not left


def pod(name: str, **status: object) -> dict[str, object]:
    labels = {"autoscaling.neon.tech/enabled": "true", "vm.neon.tech/name": f"vm-{name}"}
    metadata = {"namespace": "default", "name": name, "labels": labels, "resourceVersion": "7"}
    return {"metadata": metadata, "status": {"podIP": "10.0.0.1", **status}}


def assigned(name: str) -> Assignment:
    return Assignment(ObjectName("default", f"vm-{name}"), ObjectName("default", name), "10.0.0.1")


def nested(text: bytes) -> bytes:
    """``text`` with statuses nested so deep that no decoder reads them."""
    return text.replace(b'"podIP"', b'"deep":' + DEEP + b',"podIP"')


class PodList:
    """An API server with a list of pods, and watches that the test specifies."""

    def __init__(self, items: object, *watches: bytes) -> None:
        self.items, self.watches = items, list(watches)
        self.asked: list[str] = []
        self.nested = False

    def __call__(self, request: httpx.Request) -> httpx.Response:
        if "watch" not in request.url.params:
            self.asked.append("list")
            body = json.dumps({"metadata": {"resourceVersion": "1"}, "items": self.items}).encode()
            return httpx.Response(200, content=nested(body) if self.nested else body)
        self.asked.append(f"watch from {request.url.params.get('resourceVersion')}")
        return httpx.Response(200, stream=Chunks(self.watches.pop(0)))

    def sets(self) -> AsyncIterator[frozenset[Assignment]]:
        return self.pods().sets()

    def pods(self) -> NodePods:
        return NodePods(LightKubernetesApi(client(self), "http://api", no_token, Seconds(1.0)), "node-1")


def event(kind: str, found: object) -> bytes:
    return json.dumps({"type": kind, "object": found}).encode() + b"\n"


EXPIRED = event("ERROR", {"code": 410})


async def test_expired_watch_lists_again() -> None:
    """410 Gone ends the watch without an error; the next one begins with a list."""
    server = PodList([pod("a")], event("BOOKMARK", {}) + EXPIRED, event("ADDED", pod("b")))
    pods = server.pods()
    assert [found async for found in pods.sets()] == [frozenset({assigned("a")})]
    both = frozenset({assigned("a"), assigned("b")})
    assert [found async for found in pods.sets()] == [frozenset({assigned("a")}), both]
    assert server.asked == ["list", "watch from 1", "list", "watch from 1"]


async def test_ignores_vms_of_other_schedulers() -> None:
    """``spec.schedulerName`` distinguishes two installations in one cluster (B.11)."""
    selected: list[str] = []

    def answer(request: httpx.Request) -> httpx.Response:
        selected.append(request.url.params["fieldSelector"])
        return httpx.Response(200, json={"metadata": {"resourceVersion": "1"}, "items": []})

    api = LightKubernetesApi(client(answer), "http://api", no_token, Seconds(1.0))
    assert not await anext(NodePods(api, "node-1", "autoscale-next").sets())
    assert not await anext(NodePods(api, "node-1").sets())
    lives = "spec.nodeName=node-1,status.phase!=Succeeded,status.phase!=Failed"
    assert selected == [f"{lives},spec.schedulerName=autoscale-next", lives]


async def test_unreadable_pod_keeps_last_state() -> None:
    """A pod event that cannot be decoded changes neither that pod nor any other."""
    deep = event("MODIFIED", pod("a")).replace(b'"podIP"', b'"deep":' + DEEP + b',"podIP"')
    server = PodList([pod("a"), 7], deep + event("ADDED", pod("b")) + event("MODIFIED", pod("a", phase="Failed")))
    pods = server.pods()
    seen = [(found, dict(pods.unreadable)) async for found in pods.sets()]
    both, unnamed = frozenset({assigned("a"), assigned("b")}), ObjectName("", "")
    senseless = {unnamed: "document: expected object, got int"}
    too_deep = {ObjectName("default", "a"): "document: expected fewer levels of nesting"}
    assert seen == [
        (frozenset({assigned("a")}), senseless),
        (frozenset({assigned("a")}), senseless | too_deep),
        (both, senseless | too_deep),
        (frozenset({assigned("b")}), senseless),
    ]


async def test_unreadable_pod_in_list_keeps_last_state() -> None:
    server = PodList([pod("a")], event("BOOKMARK", {}) + EXPIRED, b"")
    pods = server.pods()
    assert [found async for found in pods.sets()] == [frozenset({assigned("a")})]
    server.nested = True
    assert [found async for found in pods.sets()] == [frozenset({assigned("a")})]
    assert list(pods.unreadable) == [ObjectName("default", "a")]


async def test_malformed_pod_list_blames_api() -> None:
    with pytest.raises(PortError, match="the API server's list cannot be decoded: items: ") as caught:
        await anext(PodList(3).sets())
    assert caught.value.fault == Fault.VM_API


async def test_vm_watch_has_no_version() -> None:
    """A watch without a version cannot expire, however quiet the VM is."""
    asked: list[str | None] = []

    def answer(request: httpx.Request) -> httpx.Response:
        asked.append(request.url.params.get("resourceVersion"))
        return httpx.Response(200, stream=Chunks(b""))

    api = LightKubernetesApi(client(answer), "http://api", no_token, Seconds(1.0))
    assert [found async for found in NeonVm(api, ObjectName("default", "vm-1")).watch()] == []
    assert asked == [None]
