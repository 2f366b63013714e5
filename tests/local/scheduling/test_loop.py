"""The scheduling loop with a function as its extender: the calls, their order, and the result."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import httpx2 as httpx
import pytest

from deploy.kube.client import ApiClient
from deploy.kube.informer import Informer
from deploy.local.scheduling.extender import Extender
from deploy.local.scheduling.loop import SchedulingLoop
from protocol.kubernetes.objects import Json
from protocol.kubernetes.resources import NODES, PODS
from protocol.runtime.kubernetes.http_api import HttpApi
from tests.fake_clock import FakeClock, settle

READY = {"conditions": [{"type": "Ready", "status": "True"}]}


def pending(name: str, **metadata: object) -> Json:
    meta = {"name": name, "namespace": "default", "uid": f"uid-{name}", **metadata}
    return {"metadata": meta, "spec": {"schedulerName": "autoscale-scheduler"}, "status": {"phase": "Pending"}}


def node(name: str, annotations: dict[str, str] | None = None) -> Json:
    return {"metadata": {"name": name, "annotations": annotations or {}}, "spec": {}, "status": READY}


class FakeCluster:
    """An API that only lists, and an extender with room for this many pods; everything asked is written down."""

    def __init__(self, nodes: list[str]) -> None:
        self.clock = FakeClock(jitter=0.0)
        self.pods: dict[str, Json] = {}
        self.nodes: dict[str, Json] = {name: node(name) for name in nodes}
        self.asked: list[str] = []
        self.said: list[tuple[str, str]] = []
        self.conditions: dict[str, list[tuple[str, str, str | None, str | None]]] = {}
        self.room = 99
        self.refuse_binds = 0
        self.hold_binds: asyncio.Event | None = None

    def api(self, request: httpx.Request) -> httpx.Response:
        path = request.url.path
        if request.method == "POST":
            event = json.loads(request.content)
            self.said.append((event["reason"], event["message"]))
            return httpx.Response(201, json={"metadata": {"name": "event"}})
        if request.method == "PATCH":
            if path.endswith("/status"):
                written = json.loads(request.content)
                name = path.split("/")[-2]
                self.conditions[name] = [
                    (each["type"], each["status"], each.get("reason"), each.get("message"))
                    for each in written["status"]["conditions"]
                ]
                assert written["metadata"]["uid"] == f"uid-{name}"
            return httpx.Response(200, json={})
        held = self.pods if path.endswith("pods") else self.nodes
        return httpx.Response(200, json={"metadata": {"resourceVersion": "1"}, "items": list(held.values())})

    async def extend(self, request: httpx.Request) -> httpx.Response:
        verb, body = request.url.path, json.loads(request.content)
        if verb == "/bind":
            return await self._bind(body)
        self.asked.append(f"{verb} {body['Pod']['metadata']['name']} {','.join(body['NodeNames'])}")
        assert body["Nodes"] is None
        if verb == "/prioritize":
            return httpx.Response(200, json=[{"Host": name, "Score": len(name)} for name in body["NodeNames"]])
        fits = self.room > 0
        failed = {} if fits else dict.fromkeys(body["NodeNames"], "Insufficient cpu")
        return httpx.Response(200, json={"NodeNames": body["NodeNames"] if fits else [], "FailedNodes": failed})

    async def _bind(self, body: dict[str, str]) -> httpx.Response:
        self.asked.append(f"/bind {body['PodName']} {body['PodUID']} {body['Node']}")
        if self.hold_binds is not None:
            await self.hold_binds.wait()
        if self.refuse_binds:
            self.refuse_binds -= 1
            return httpx.Response(200, json={"Error": "no room any more"})
        bound = self.pods[body["PodName"]]
        self.pods[body["PodName"]] = {**bound, "spec": {**dict(bound["spec"]), "nodeName": body["Node"]}}  # type: ignore[call-overload]
        return httpx.Response(200, json={"Error": ""})


class RunningLoop:
    """A running loop, and the watches that a test drives by hand."""

    def __init__(self, cluster: FakeCluster, pods: Informer, nodes: Informer) -> None:
        self.cluster = cluster
        self._informers = (pods, nodes)

    async def bring_changes(self) -> None:
        """The watches bring what has changed."""
        for informer in self._informers:
            await informer.refresh()
        await settle()


@asynccontextmanager
async def running(cluster: FakeCluster) -> AsyncIterator[RunningLoop]:
    transport = httpx.MockTransport(cluster.api)
    extending = httpx.MockTransport(cluster.extend)
    async with (
        ApiClient(HttpApi(httpx.AsyncClient(transport=transport, base_url="http://api"), lambda: None)) as client,
        httpx.AsyncClient(transport=extending, base_url="http://extender") as http,
    ):
        pods, nodes = Informer(client, PODS, cluster.clock), Informer(client, NODES, cluster.clock)
        scheduling = SchedulingLoop(client, pods, nodes, Extender(http), cluster.clock)
        task = asyncio.ensure_future(scheduling.run())
        try:
            loop = RunningLoop(cluster, pods, nodes)
            await loop.bring_changes()
            yield loop
        finally:
            task.cancel()
            await asyncio.wait((task,))


async def test_extender_filters_prioritizes_binds() -> None:
    cluster = FakeCluster(["n1", "n22"])
    cluster.pods["a"] = pending("a")
    async with running(cluster):
        assert cluster.asked == ["/filter a n1,n22", "/prioritize a n1,n22", "/bind a uid-a n22"]
        assert cluster.said == [("Scheduled", "Successfully assigned default/a to n22")]


async def test_with_one_node_no_scores_are_asked_for() -> None:
    cluster = FakeCluster(["n1"])
    cluster.pods["a"] = pending("a")
    async with running(cluster):
        assert cluster.asked == ["/filter a n1", "/bind a uid-a n1"]


async def test_filter_does_not_wait_for_bind() -> None:
    cluster = FakeCluster(["n1"])
    cluster.hold_binds = asyncio.Event()
    cluster.pods = {"a": pending("a"), "b": pending("b")}
    async with running(cluster):
        assert sorted(cluster.asked) == ["/bind a uid-a n1", "/bind b uid-b n1", "/filter a n1", "/filter b n1"]
        assert cluster.said == []
        cluster.hold_binds.set()
        await settle()
        assert [reason for reason, _ in cluster.said] == ["Scheduled", "Scheduled"]


async def test_node_touch_retries_waiting_pod() -> None:
    cluster = FakeCluster(["n1"])
    cluster.room = 0
    cluster.pods["a"] = pending("a")
    async with running(cluster) as loop:
        assert cluster.said == [("FailedScheduling", "0/1 nodes are available: 1 Insufficient cpu.")]
        await cluster.clock.advance(60)
        assert cluster.asked == ["/filter a n1"]
        cluster.room = 1
        cluster.nodes["n1"] = node("n1", {"autoscaling.neon.tech/room-freed": "1"})
        await loop.bring_changes()
        assert cluster.asked == ["/filter a n1", "/filter a n1", "/bind a uid-a n1"]


async def test_a_refused_bind_is_retried_after_a_second() -> None:
    cluster = FakeCluster(["n1"])
    cluster.refuse_binds = 1
    cluster.pods["a"] = pending("a")
    async with running(cluster):
        assert cluster.said == [("FailedScheduling", "binding rejected: no room any more")]
        await cluster.clock.advance(0.9)
        assert cluster.asked.count("/filter a n1") == 1
        await cluster.clock.advance(0.2)
        assert cluster.asked[-1] == "/bind a uid-a n1"
        assert cluster.said[-1][0] == "Scheduled"


async def test_foreign_bound_leaving_pods_are_ignored() -> None:
    cluster = FakeCluster(["n1"])
    foreign = pending("foreign")
    foreign["spec"] = {"schedulerName": "default-scheduler"}
    bound = pending("bound")
    bound["spec"] = {"schedulerName": "autoscale-scheduler", "nodeName": "n1"}
    cluster.pods = {
        "foreign": foreign,
        "bound": bound,
        "leaving": pending("leaving", deletionTimestamp="2026-01-01T00:00:00Z"),
    }
    async with running(cluster):
        assert cluster.asked == []


async def test_ended_pod_wakes_waiting_one() -> None:
    cluster = FakeCluster(["n1"])
    cluster.room = 0
    ended = pending("old")
    ended["spec"] = {"schedulerName": "autoscale-scheduler", "nodeName": "n1"}
    cluster.pods = {"old": ended, "a": pending("a")}
    async with running(cluster) as loop:
        await cluster.clock.advance(2)
        cluster.room = 1
        del cluster.pods["old"]
        await loop.bring_changes()
        assert cluster.asked[-1] == "/bind a uid-a n1"


async def test_absent_extender_is_retried() -> None:
    cluster = FakeCluster(["n1"])
    cluster.pods["a"] = pending("a")
    answers = iter([httpx.Response(500, text="not ready"), httpx.Response(200, text="nonsense")])
    real = cluster.extend

    async def flaky(request: httpx.Request) -> httpx.Response:
        answer = next(answers, None)
        return answer if answer is not None else await real(request)

    cluster.extend = flaky  # type: ignore[method-assign]
    async with running(cluster):
        await cluster.clock.advance(1)
        await cluster.clock.advance(2)
        assert [reason for reason, _ in cluster.said] == ["FailedScheduling", "FailedScheduling", "Scheduled"]


async def test_unfit_pod_is_unschedulable() -> None:
    cluster = FakeCluster(["n1"])
    cluster.nodes["n2"] = {**node("n2"), "spec": {"taints": [{"key": "gpu", "value": "yes", "effect": "NoSchedule"}]}}
    cluster.room = 0
    cluster.pods["a"] = pending("a")
    async with running(cluster):
        message = "0/2 nodes are available: 1 Insufficient cpu, 1 node(s) had untolerated taint {gpu: yes}."
        assert cluster.conditions == {"a": [("PodScheduled", "False", "Unschedulable", message)]}
        assert cluster.said == [("FailedScheduling", message)]


APART = {
    "podAntiAffinity": {
        "requiredDuringSchedulingIgnoredDuringExecution": [
            {"topologyKey": "host", "labelSelector": {"matchLabels": {"app": "db"}}}
        ]
    }
}


def apart(name: str) -> Json:
    made = pending(name, labels={"app": "db"})
    return {**made, "spec": {"schedulerName": "autoscale-scheduler", "affinity": APART}}


async def test_binding_pod_counts_as_placed() -> None:
    cluster = FakeCluster(["n1"])
    cluster.nodes["n1"] = {**node("n1"), "metadata": {"name": "n1", "labels": {"host": "n1"}}}
    cluster.hold_binds = asyncio.Event()
    cluster.pods = {"a": apart("a"), "b": apart("b")}
    async with running(cluster):
        message = "0/1 nodes are available: 1 node(s) didn't match pod anti-affinity rules."
        assert cluster.asked == ["/filter a n1", "/bind a uid-a n1"]
        assert cluster.said == [("FailedScheduling", message)]
        cluster.hold_binds.set()
        await settle()


async def test_failed_bind_frees_its_place() -> None:
    cluster = FakeCluster(["n1"])
    cluster.nodes["n1"] = {**node("n1"), "metadata": {"name": "n1", "labels": {"host": "n1"}}}
    cluster.refuse_binds = 1
    cluster.pods = {"a": apart("a")}
    async with running(cluster) as loop:
        del cluster.pods["a"]
        cluster.pods["b"] = apart("b")
        await loop.bring_changes()
        assert cluster.asked[-1] == "/bind b uid-b n1"


async def test_affinity_pod_retries_after_match() -> None:
    cluster = FakeCluster(["n1"])
    cluster.nodes["n1"] = {**node("n1"), "metadata": {"name": "n1", "labels": {"host": "n1"}}}
    together = {"podAffinity": APART["podAntiAffinity"]}
    cluster.pods["a"] = {**pending("a"), "spec": {"schedulerName": "autoscale-scheduler", "affinity": together}}
    async with running(cluster) as loop:
        assert cluster.asked == []
        await cluster.clock.advance(30)
        assert cluster.asked == []
        other = pending("other", labels={"app": "db"})
        cluster.pods["other"] = {**other, "spec": {"schedulerName": "someone", "nodeName": "n1"}}
        await loop.bring_changes()
        assert cluster.asked == ["/filter a n1", "/bind a uid-a n1"]


async def test_crashing_pod_does_not_block_others(
    caplog: pytest.LogCaptureFixture,
) -> None:
    cluster = FakeCluster(["n1"])
    cluster.pods = {"a": pending("a"), "b": pending("b")}
    real, broken = cluster.extend, [True]

    async def breaking(request: httpx.Request) -> httpx.Response:
        if b'"a"' in request.content and broken:
            raise ArithmeticError("a size with a thousand digits")
        return await real(request)

    cluster.extend = breaking  # type: ignore[method-assign]
    async with running(cluster):
        assert cluster.asked == ["/filter b n1", "/bind b uid-b n1"]
        why = "internal error of the scheduling loop: ArithmeticError('a size with a thousand digits')"
        assert cluster.said == [("FailedScheduling", why), ("Scheduled", "Successfully assigned default/b to n1")]
        assert [vars(record)["pod"] for record in caplog.records] == ["default/a"]
        broken.clear()
        await cluster.clock.advance(1.5)
        assert cluster.asked[-1] == "/bind a uid-a n1"
