"""A cluster for the page: objects in memory, a scheduler that says what a test wants, and people with tokens."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import httpx2 as httpx

from protocol.kubernetes.api import ApiCall
from protocol.kubernetes.objects import Json, JsonObject
from protocol.kubernetes.resources import HVPAS, TORTOISES, VM_GROUPS
from scheduler_plugin.dashboard.app import Dashboard
from scheduler_plugin.dashboard.reviews import ApiAccessReviewer
from tests.fake_clock import FakeClock, settle
from tests.pod_databases import pod_database
from tests.scheduler_plugin.fake_cluster import PODS, VMS, Collection, FakeCluster, Obj, refused
from tests.scheduler_plugin.objects import vm

SCRIPT = "<script>alert(1)</script>"


class PageCluster(FakeCluster):
    """Adds groups, reviews and lists of events.

    ``people`` has the namespaces whose VMs the bearer of each token may list ("*": all), and those whose pods they may
    get ("shop/pods", "*/pods"); ``events`` are those about each VM, None if they may not be listed.
    """

    def __init__(self) -> None:
        super().__init__()
        self.people: dict[str, set[str]] = {}
        self.events: list[Json] | None = []
        for kind in (HVPAS, TORTOISES, VM_GROUPS):
            self.collections[kind.path()] = Collection()

    def _apply(self, call: ApiCall) -> Obj:
        spec: Any = (call.body or {}).get("spec")
        if call.path.endswith("/tokenreviews"):
            known = spec["token"] in self.people
            return {"status": {"authenticated": known, "user": {"username": spec["token"], "groups": ["people"]}}}
        if call.path.endswith("/subjectaccessreviews"):
            about = spec["resourceAttributes"]
            asked = (about["namespace"] or "*") + ("/pods" if about["resource"] == "pods" else "")
            return {"status": {"allowed": asked in self.people.get(spec["user"], set())}}
        if call.method == "GET" and call.path.endswith("/events"):
            if self.events is None:
                raise refused(403, "events are forbidden")
            return {"items": self.events}
        return super()._apply(call)


@dataclass(slots=True)
class Told:
    """The scheduler, the groups' program and agents, as a test has them speak."""

    scheduler: dict[str, Json | None] = field(default_factory=dict)
    groups: dict[str, Json | None] = field(default_factory=dict)
    agent: Json | None = None

    async def of_scheduler(self, path: str) -> Json | None:
        return self.scheduler.get(path)

    async def of_groups(self, path: str) -> Json | None:
        return self.groups.get(path)

    async def of_vm(self, vm: JsonObject) -> Json | None:
        return self.agent


@dataclass(slots=True)
class Page:
    """One program under test."""

    cluster: PageCluster
    told: Told
    clock: FakeClock
    dashboard: Dashboard
    links: list[str]
    http: httpx.AsyncClient

    async def sign_in(self, token: str) -> httpx.Response:
        return await self.http.post("/api/session", json={"token": token})


@asynccontextmanager
async def page(*, on_a_cluster: bool = False, host: str = "127.0.0.1", is_away: bool = False) -> AsyncIterator[Page]:
    """A program that has read its cluster; ``is_away``: that has not, because the API server does not answer."""
    cluster, told, clock = PageCluster(), Told(), FakeClock()
    cluster.is_away = is_away
    dashboard = Dashboard("here", cluster, told, clock, ApiAccessReviewer(cluster) if on_a_cluster else None)
    links: list[str] = []
    dashboard.authenticator.on_link = links.append
    if not on_a_cluster:
        dashboard.authenticator.offer_link()
    transport = httpx.ASGITransport(dashboard.app)
    async with httpx.AsyncClient(transport=transport, base_url=f"http://{host}") as http:
        running = asyncio.ensure_future(dashboard.run())
        await settle()
        try:
            yield Page(cluster, told, clock, dashboard, links, http)
        finally:
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)


def amounts(cpu: str, mem: str) -> Json:
    return {"cpu": cpu, "mem": mem}


def a_pod(vm_name: str, cpu: str = "2", mem: str = "4Gi", **more: object) -> Json:
    """A pod of a VM in the scheduler's answer."""
    nothing = {"denied": amounts("0", "0"), "promised": amounts("0", "0")}
    return {"pod": f"{vm_name}-pod", "vm": vm_name, "reserved": amounts(cpu, mem), **nothing, **more}


def a_node(name: str, *pods: Json, **more: object) -> Json:
    """A node in the scheduler's answer."""
    sums = {
        "total": amounts("16", "64Gi"),
        "reserved": amounts("4", "8Gi"),
        "free": amounts("12", "56Gi"),
        "watermark": amounts("14400m", "58Gi"),
        "denied": amounts("0", "0"),
        "promised": amounts("0", "0"),
        "pressure": {"excess": amounts("0", "0")},
    }
    return {"name": name, "open": True, "stuck": None, **sums, "pods": list(pods), **more}


def nodes_answer(*nodes: Json, **more: object) -> Json:
    """The scheduler's answer at ``/nodes``."""
    return {"ready": True, "leading": True, "leader": "s-1", "waitingPods": 0, "nodes": list(nodes), **more}


def put_vm(cluster: FakeCluster, name: str, namespace: str = "default", cpu: int = 1) -> None:
    """A VM that runs on ``n1``."""
    made = vm(name, cpu, namespace=namespace)
    made["status"] = {**made.get("status", {}), "node": "n1", "phase": "Running"}
    cluster.put(VMS, made)


def put_pod(cluster: FakeCluster, name: str, namespace: str = "default") -> None:
    """A pod with a postgres that opted in and runs on ``n1``."""
    cluster.put(PODS, pod_database(name, namespace))
