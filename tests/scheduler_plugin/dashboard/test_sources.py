"""The page's sources for a VM, and the sources of a history on a cluster."""

from __future__ import annotations

import asyncio

import httpx2 as httpx
import msgspec
import pytest

from protocol.kubernetes.api import ApiCall, ApiUnknownError
from protocol.kubernetes.objects import Json, JsonObject
from protocol.messages import ObjectName
from scheduler_plugin.dashboard.sources import cluster_sampler
from scheduler_plugin.dashboard.sources.cluster_sampler import ClusterSampler
from scheduler_plugin.dashboard.sources.http_sources import KEPT, SELECTOR, HttpSources, NodeAgentAddresses
from scheduler_plugin.dashboard.telemetry import DashboardTelemetry
from scheduler_plugin.history.recorder import SampleError
from tests.fake_clock import FakeClock, settle
from tests.scheduler_plugin.dashboard.page_cluster import PageCluster, Told, put_vm
from tests.scheduler_plugin.fake_cluster import NODES, FakeCluster

VM: Json = {
    "metadata": {"namespace": "shop", "name": "db"},
    "status": {"node": "n1", "podIP": "10.1.0.7"},
}


def an_agents_pod(node: str, address: str, phase: str = "Running") -> Json:
    return {"spec": {"nodeName": node}, "status": {"podIP": address, "phase": phase}}


class Pods(FakeCluster):
    """Answers lists of pods alone."""

    def __init__(self, *found: Json) -> None:
        super().__init__()
        self.found = list(found)

    async def call(self, call: ApiCall) -> JsonObject:
        self.calls.append(call)
        if self.is_away:
            raise ApiUnknownError("away")
        return {"items": list(self.found)}


def _answered(found: Json) -> httpx.Response:
    return httpx.Response(200, stream=httpx.ByteStream(msgspec.json.encode(found)))


async def asked(answers: dict[str, Json], agents: NodeAgentAddresses | None) -> tuple[Json | None, list[str]]:
    """The response about the VM, and the program that was queried."""
    heard: list[str] = []

    def answer(request: httpx.Request) -> httpx.Response:
        heard.append(str(request.url))
        found = answers.get(str(request.url))
        return httpx.Response(404) if found is None else _answered(found)

    async with httpx.AsyncClient(transport=httpx.MockTransport(answer)) as http:
        return await HttpSources(http, "http://s", "", agents).of_vm(VM), heard


OF_NODE = "http://10.0.0.5:9101/explain/shop/db"
OF_POD = "http://10.1.0.7:9101/explain"


@pytest.mark.parametrize(
    ("answers", "expected", "heard"),
    [
        ({OF_NODE: {"vm": "shop/db"}, OF_POD: {"vm": "shop/db", "because": "forged"}}, {"vm": "shop/db"}, [OF_NODE]),
        ({OF_POD: {"vm": "shop/db"}}, {"vm": "shop/db"}, [OF_NODE, OF_POD]),
        ({OF_NODE: {"vm": "shop/other"}}, None, [OF_NODE, OF_POD]),
    ],
    ids=["the node's agent", "the pod's agent", "another VM's account"],
)
async def test_node_agent_explains_first(answers: dict[str, Json], expected: Json | None, heard: list[str]) -> None:
    pods = Pods(an_agents_pod("n1", "10.0.0.5"), an_agents_pod("n2", "10.0.0.6"))
    assert await asked(answers, NodeAgentAddresses(pods, "ours", FakeClock())) == (expected, heard)
    assert [(call.path, call.query) for call in pods.calls] == [
        ("/api/v1/namespaces/ours/pods", {"labelSelector": SELECTOR})
    ]


async def test_pod_is_asked_without_node_agents() -> None:
    assert await asked({OF_POD: {"vm": "shop/db"}}, None) == ({"vm": "shop/db"}, [OF_POD])


async def test_failed_agent_list_keeps_last() -> None:
    pods, clock = Pods(an_agents_pod("n1", "10.0.0.5"), an_agents_pod("n2", "10.0.0.6", "Failed")), FakeClock()
    agents = NodeAgentAddresses(pods, "ours", clock)
    assert [await agents.address(node) for node in ("n1", "n2", "n3")] == ["10.0.0.5", "", ""]
    assert len(pods.calls) == 1
    pods.found = [an_agents_pod("n1", "10.0.0.9")]
    clock.jump(KEPT)
    assert await agents.address("n1") == "10.0.0.9"
    pods.is_away = True
    clock.jump(KEPT)
    assert await agents.address("n1") == "10.0.0.9"


async def test_in_cluster_sample_is_complete() -> None:
    cluster, told = PageCluster(), Told(agent={"because": "idle"})
    told.scheduler["/nodes"] = {"nodes": []}
    put_vm(cluster, "db")
    cluster.put(NODES, {"metadata": {"name": "n1", "labels": {"node.kubernetes.io/instance-type": "m5"}}, "status": {}})
    sampler = ClusterSampler(cluster, told, FakeClock(), DashboardTelemetry())
    running = asyncio.ensure_future(sampler.run())
    await settle()
    try:
        sample = await sampler.sample()
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
    (vm,) = sample.vms
    assert (ObjectName("default", "db"), sample.price_keys, sample.nodes) == (
        ObjectName(vm["metadata"]["namespace"], vm["metadata"]["name"]),  # type: ignore[index]
        {"n1": ("m5",)},
        {"nodes": []},
    )
    assert await sampler.explanation(vm) == {"because": "idle"}


async def test_sample_waits_for_lists(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster_sampler, "_PATIENCE", 0.01)
    sampler = ClusterSampler(PageCluster(), Told(), FakeClock(), DashboardTelemetry())
    with pytest.raises(SampleError, match="not read yet: virtualmachines, pods, nodes, virtualmachinemigrations"):
        await sampler.sample()


async def test_failed_lists_are_named_with_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    """A recorder whose credentials had expired waited without saying why."""
    monkeypatch.setattr(cluster_sampler, "_PATIENCE", 0.01)
    cluster = PageCluster()
    cluster.is_away = True
    sampler = ClusterSampler(cluster, Told(), FakeClock(), DashboardTelemetry())
    running = asyncio.ensure_future(sampler.run())
    try:
        with pytest.raises(SampleError) as error:
            await sampler.sample()
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
    assert str(error.value) == (
        "not read yet: virtualmachines, pods, nodes, virtualmachinemigrations (the API is away)"
    )
