"""Metrics and probes are open; what is explained is for those who may list the VMs."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import httpx2 as httpx
import pytest
import pytest_asyncio

from protocol.kubernetes.api import ApiCall
from protocol.kubernetes.objects import JsonObject
from protocol.runtime.explaining.explain_access import AUDIENCE
from scheduler_plugin.web.apps import probes_app
from scheduler_plugin.web.explain_guard import GuardedExplanations, explain_access
from tests.fake_clock import FakeClock
from tests.protocol.kubernetes.test_access_reviews import jwt
from tests.scheduler_plugin.fake_cluster import NODES, PODS, VMS, FakeCluster, Fault, to
from tests.scheduler_plugin.objects import node, vm, vm_pod
from tests.scheduler_plugin.running import Running, running

CLERK = jwt(aud=[AUDIENCE], sub="clerk")


class Cluster(FakeCluster):
    """Knows the clerk, who may list the VMs of ``default`` and get the pods of ``other``."""

    async def call(self, call: ApiCall) -> JsonObject:
        """See ``FakeCluster``."""
        body: Any = call.body
        if call.path.endswith("/tokenreviews") and body["spec"]["token"] == CLERK:
            return {"status": {"authenticated": True, "audiences": [AUDIENCE], "user": {"username": "clerk"}}}
        if call.path.endswith("/subjectaccessreviews"):
            asked = body["spec"]["resourceAttributes"]
            may = {("virtualmachines", "default"), ("pods", "other")}
            return {"status": {"allowed": (asked["resource"], asked["namespace"]) in may}}
        return await super().call(call)


@pytest_asyncio.fixture
async def scheduler() -> AsyncIterator[Running]:
    cluster = Cluster()
    cluster.put(NODES, node("n1"))
    cluster.put(VMS, vm("db"))
    cluster.put(PODS, vm_pod("db", "n1"))
    async with running(cluster, FakeClock()) as found:
        yield found


def client(scheduler: Running, peer: str = "10.1.2.3", token: str = "") -> httpx.AsyncClient:
    """Someone at ``peer`` who speaks to the scheduler's port of metrics."""
    access = explain_access(None, scheduler.cluster, scheduler.clock)
    app = GuardedExplanations(probes_app(scheduler.parts.service), access)
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    transport = httpx.ASGITransport(app, client=(peer, 5000))
    return httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1", headers=headers)


EXPLANATIONS = ("/nodes", "/settings", "/explain/default/db", "/explain/other/db", "/docs", "/anything")


async def test_pods_without_a_token_are_told_nothing(scheduler: Running) -> None:
    """Any pod could once read the whole fleet there."""
    async with client(scheduler) as http:
        for path in EXPLANATIONS:
            answer = await http.get(path)
            assert (answer.status_code, answer.headers["www-authenticate"]) == (401, "Bearer"), path
            assert set(answer.json()) == {"error"}
        for path in ("/metrics", "/healthz", "/readyz", "/openapi.json"):
            assert (await http.get(path)).status_code == 200


async def test_reader_sees_listable_namespaces(scheduler: Running) -> None:
    paths = (*EXPLANATIONS[:4], "/explain/default/pod/pg-1", "/explain/other/pod/pg-1", "/explain/other/pod%2Fpg-1")
    async with client(scheduler, token=CLERK) as http:
        told = [(await http.get(path)).status_code for path in paths]
    assert told == [403, 403, 200, 403, 403, 404, 404], "there is no such pod, which only a reader of pods learns"


@pytest.mark.parametrize("path", EXPLANATIONS[:3])
async def test_port_forward_is_told_everything(scheduler: Running, path: str) -> None:
    async with client(scheduler, "127.0.0.1") as http:
        assert (await http.get(path)).status_code == 200


@pytest.mark.parametrize(("host", "status"), [("site.example:10297", 401), ("localhost:10297", 200), ("[::1]", 200)])
async def test_other_sites_read_nothing_by_port_forward(scheduler: Running, host: str, status: int) -> None:
    """A site in the browser of someone who runs a port-forward may resolve its domain to 127.0.0.1 (DNS rebinding)."""
    async with client(scheduler, "127.0.0.1") as http:
        assert (await http.get("/nodes", headers={"Host": host})).status_code == status


async def test_reader_gets_503_without_api_server(scheduler: Running) -> None:
    scheduler.cluster.faults.append(Fault(to("POST", "/tokenreviews")))
    async with client(scheduler, token=jwt(aud=[AUDIENCE], sub="other")) as http:
        answer = await http.get("/nodes")
    assert (answer.status_code, answer.headers["retry-after"]) == (503, "1")
