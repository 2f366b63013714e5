"""The scheduler over a real HTTP API server on loopback: list, watch, bind, permit, token review."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import httpx2 as httpx
import pytest
import yaml

from protocol.kubernetes.api import ApiRefusedError
from protocol.kubernetes.resources import MIGRATIONS
from protocol.messages import ObjectName
from protocol.runtime.clock import SystemClock
from protocol.runtime.credentials import from_kubeconfig
from protocol.runtime.kubernetes.http_api import HttpApi
from protocol.runtime.kubernetes.token_reviews import TokenReviews
from protocol.units import Bytes, Seconds
from scheduler_plugin.app import SchedulerPorts, assemble
from scheduler_plugin.cluster.migrations import read_migration
from scheduler_plugin.cluster.write import ClusterWriter
from scheduler_plugin.ledger.moves import Move
from scheduler_plugin.ledger.outcomes import CreateMigration
from scheduler_plugin.settings.document import parse_settings
from scheduler_plugin.telemetry import Telemetry
from scheduler_plugin.term import Term
from scheduler_plugin.web.apps import agents_app, extender_app, probes_app
from tests.local.apiserver.running import ApiServerHandle, running_api_server
from tests.plain_http import DirectClient, InThisProcess, plain_client
from tests.scheduler_plugin.objects import Obj, node, vm, vm_pod
from tests.scheduler_plugin.running import SETTINGS

CRDS = Path(__file__).parents[2] / "deploy/kubernetes/crds"
CRD_PATH = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
VMS = "/apis/vm.neon.tech/v1/namespaces/default/virtualmachines"
PODS = "/api/v1/namespaces/default/pods"


@asynccontextmanager
async def admin(handle: ApiServerHandle) -> AsyncIterator[httpx.AsyncClient]:
    async with plain_client(base_url=handle.url, headers={"Authorization": f"Bearer {handle.token}"}) as client:
        yield client


async def made(client: httpx.AsyncClient, path: str, obj: Obj) -> Any:
    response = await client.post(path, json=obj)
    assert response.status_code == 201, response.text
    return response.json()


@asynccontextmanager
async def scheduler(handle: ApiServerHandle, settings: str = SETTINGS) -> AsyncIterator[httpx.AsyncClient]:
    """A scheduler connected through the kubeconfig, spoken to as agents, extender and probes."""
    clock = SystemClock()
    found = from_kubeconfig(handle.kubeconfig_path, clock)
    async with httpx.AsyncClient(base_url=found.server, verify=found.tls, trust_env=False) as way:
        api = HttpApi(way, found.token)
        ports = SchedulerPorts(api, TokenReviews(api), clock, Telemetry(clock.now), "test")
        parts = assemble(ports, parse_settings(settings))
        apps: dict[str, Callable[[], Any]] = {
            "agents": partial(agents_app, parts.service),
            "extender": partial(extender_app, parts.service),
            "probes": partial(probes_app, parts.service),
        }
        background = asyncio.create_task(parts.run(api))
        try:
            async with DirectClient(InThisProcess(apps)) as client:
                yield client
        finally:
            background.cancel()
            await asyncio.wait([background])


async def until_200(client: httpx.AsyncClient, url: str, **request: Any) -> httpx.Response:
    """Repeat the request until it returns 200; over loopback the awaited event arrives within milliseconds."""
    async with asyncio.timeout(10):
        while True:
            response = await client.request(url=url, **request)
            if response.status_code == 200:
                return response
            await asyncio.sleep(0)


async def made_vm(api: httpx.AsyncClient) -> Any:
    """A node, a VM of 1 CPU and 4Gi, and its pod, which has no node yet."""
    await made(api, CRD_PATH, yaml.safe_load((CRDS / "virtualmachines.yaml").read_text()))
    await made(api, "/api/v1/nodes", node("n1"))
    await made(api, "/api/v1/namespaces/default/serviceaccounts", {"metadata": {"name": "agent"}})
    db = vm("db", cpu=1, slots=4)
    db["spec"]["guest"]["rootDisk"] = {"image": "postgres"}
    db = await made(api, VMS, db)
    pod = vm_pod("db", vm_uid=db["metadata"]["uid"])
    pod["spec"]["serviceAccountName"] = "agent"
    pod["spec"]["containers"][0]["image"] = "runner"
    return await made(api, PODS, pod)


async def placed(client: httpx.AsyncClient, pod: Obj) -> None:
    await until_200(client, "http://probes/readyz", method="GET")
    args = {"Pod": pod, "Nodes": None, "NodeNames": ["n1"]}
    assert (await client.post("http://extender/filter", json=args)).json()["NodeNames"] == ["n1"]
    bound = await client.post(
        "http://extender/bind",
        json={"PodName": "db-pod", "PodNamespace": "default", "PodUID": pod["metadata"]["uid"], "Node": "n1"},
    )
    assert bound.json() == {"Error": ""}


async def agent_of(api: httpx.AsyncClient, pod: Obj) -> dict[str, str]:
    """Credentials of the VM's agent."""
    bound = {"kind": "Pod", "apiVersion": "v1", "name": "db-pod", "uid": pod["metadata"]["uid"]}
    wanted = {"spec": {"audiences": ["autoscale-scheduler"], "boundObjectRef": bound}}
    asked = await made(api, "/api/v1/namespaces/default/serviceaccounts/agent/token", wanted)
    return {"Authorization": f"Bearer {asked['status']['token']}"}


def asks_for(cpu: object, slots: int) -> Obj:
    return {
        "protoVersion": 4,
        "pod": {"name": "db-pod", "namespace": "default"},
        "resources": {"vCPUs": cpu, "mem": slots},
        "lastPermit": None,
        "metrics": None,
    }


async def test_new_scheduler_knows_grown_vm(tmp_path: Path) -> None:
    async with running_api_server(tmp_path) as handle, admin(handle) as api:
        pod = await made_vm(api)
        async with scheduler(handle) as client:
            await placed(client, pod)
            assert (await api.get(f"{PODS}/db-pod")).json()["spec"]["nodeName"] == "n1"
            headers = await agent_of(api, pod)
            answer = await client.post("http://agents/", json=asks_for(3, 8), headers=headers)
            assert (answer.status_code, answer.json()["permit"]) == (200, {"vCPUs": 3, "mem": 8}), answer.text
            kept = (await api.get(f"{VMS}/db")).json()["metadata"]["annotations"]
            assert kept["autoscaling.neon.tech/permit"] == '{"vCPUs":3,"mem":"8Gi"}'
            assert (await client.post("http://agents/", json=asks_for(3, 8))).status_code == 401
        async with scheduler(handle) as successor:
            await until_200(successor, "http://probes/readyz", method="GET")
            nodes = (await successor.get("http://probes/nodes")).json()["nodes"]
            assert [(one["name"], one["reserved"]) for one in nodes] == [("n1", {"cpu": "3", "mem": "8Gi"})]


async def test_pod_requests_follow_permit_within_node(tmp_path: Path) -> None:
    async with running_api_server(tmp_path) as handle, admin(handle) as api:
        pod = await made_vm(api)
        async with scheduler(handle, f"{SETTINGS}permits: {{asPodRequests: true}}") as client:
            await placed(client, pod)
            assert await requested(api) == {"cpu": "1", "memory": "4Gi"}
            headers = await agent_of(api, pod)
            answer = await client.post("http://agents/", json=asks_for(3, 8), headers=headers)
            assert (answer.json()["permit"], await requested(api)) == (
                {"vCPUs": 3, "mem": 8},
                {"cpu": "3", "memory": "8Gi"},
            )
            smaller = {"status": {"allocatable": {"cpu": "4", "memory": "40Gi"}}}
            patch = {"Content-Type": "application/merge-patch+json"}
            assert (await api.patch("/api/v1/nodes/n1/status", json=smaller, headers=patch)).status_code == 200
            answer = await client.post("http://agents/", json=asks_for(8, 8), headers=headers)
            assert answer.status_code == 200, answer.text
            assert int((await requested(api))["cpu"]) <= 4


async def requested(api: httpx.AsyncClient) -> Any:
    return (await api.get(f"{PODS}/db-pod")).json()["spec"]["containers"][0]["resources"]["requests"]


async def test_migration_orders_round_trip(tmp_path: Path) -> None:
    async with running_api_server(tmp_path) as handle, admin(handle) as api:
        await made(api, CRD_PATH, yaml.safe_load((CRDS / "virtualmachinemigrations.yaml").read_text()))
        found = from_kubeconfig(handle.kubeconfig_path, SystemClock())
        async with httpx.AsyncClient(base_url=found.server, verify=found.tls, trust_env=False) as way:
            writer = ClusterWriter(HttpApi(way, found.token), "test", Term(SystemClock()).writing)
            name = ObjectName("default", "db-1")
            order = CreateMigration(name, Move(ObjectName("default", "db"), "p-1", "n1", "n2", "full"))
            limits = Seconds(300), Bytes(64 * 1024**2)
            created = read_migration(await writer.create_migration(order, *limits))
            with pytest.raises(ApiRefusedError, match="409"):
                await writer.create_migration(order, *limits)
            read = read_migration(await writer.read(MIGRATIONS, name))
            assert (read, read.facts.target, read.facts.is_ours, read.reason) == (created, "n2", True, "full")
            with pytest.raises(ApiRefusedError, match="409"):
                await writer.delete_migration(name, "another")
            await writer.delete_migration(name, created.facts.uid)
            with pytest.raises(ApiRefusedError, match="404"):
                await writer.read(MIGRATIONS, name)
