"""A whole scheduler over a fake cluster and a fake clock, spoken to over HTTP as kube-scheduler and agents do."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

import httpx2 as httpx

from protocol.runtime.kubernetes.token_reviews import TokenReviews
from protocol.units import Seconds
from scheduler_plugin.app import Parts, SchedulerPorts, assemble
from scheduler_plugin.ledger.invariants import violations
from scheduler_plugin.settings.document import SchedulerSettings, parse_settings
from scheduler_plugin.telemetry import Telemetry
from scheduler_plugin.web.apps import agents_app, extender_app, probes_app
from tests.fake_clock import FakeClock, settle
from tests.plain_http import DirectClient, InThisProcess
from tests.scheduler_plugin.fake_cluster import FakeCluster
from tests.scheduler_plugin.objects import Obj, token_of, token_text

SETTINGS = """
nodeDefaults:
  computeUnit: {vCPUs: 250m, mem: 1Gi}
  cpu: {watermark: 0.9, system: 0}
  memory: {watermark: 0.9, system: 0}
agents: {nodeAgents: ["kube-system:autoscaling-agent"]}
extender: {candidates: all}
"""


@dataclass(slots=True)
class Running:
    """A scheduler at work. ``post`` and ``get`` speak to the listener named in the URL: agents, extender, probes."""

    cluster: FakeCluster
    clock: FakeClock
    parts: Parts
    client: httpx.AsyncClient

    async def verb(self, verb: str, body: Obj) -> Any:
        """The decoded answer to one of kube-scheduler's calls."""
        response = await self.client.post(f"http://extender/{verb}", json=body)
        assert response.status_code == 200, response.text
        self.check()
        return response.json()

    async def filter(self, pod: Obj, *nodes: str) -> list[str]:
        """The nodes that the pod fits."""
        result = await self.verb("filter", {"Pod": pod, "Nodes": None, "NodeNames": list(nodes)})
        assert not result["Error"], result["Error"]
        return list(result["NodeNames"])

    async def bind(self, pod: Obj, node: str) -> str:
        """Empty on success, otherwise why not."""
        meta = pod["metadata"]
        args = {"PodName": meta["name"], "PodNamespace": meta["namespace"], "PodUID": meta["uid"], "Node": node}
        return str((await self.verb("bind", args))["Error"])

    async def ask(self, pod: Obj, cpu: Any, slots: int, token: str | None = None, **more: Any) -> httpx.Response:
        """An agent's request in wire version v2.1, with the pod's own token unless the label of another is given."""
        headers, content = agent_request(self.cluster, pod, cpu, slots, token, **more)
        response = await self.client.post("http://agents/", content=content, headers=headers)
        self.check()
        return response

    async def probe(self, path: str) -> httpx.Response:
        return await self.client.get(f"http://probes/{path}")

    def reserved(self, node: str) -> str:
        """The node's reservations, as text."""
        return str(self.parts.context.ledger.nodes[node].reserved)

    def check(self) -> None:
        assert violations(self.parts.context.ledger) == []


def agent_request(
    cluster: FakeCluster, pod: Obj, cpu: Any, slots: int, token: str | None = None, **more: Any
) -> tuple[dict[str, str], bytes]:
    """Headers and body of an agent's request, with the pod's own token unless the label of another is given."""
    meta = pod["metadata"]
    if token is None:
        token = f"token-{meta['name']}"
        cluster.tokens.setdefault(token, token_of(pod))
    body = {
        "protoVersion": 4,
        "pod": {"name": meta["name"], "namespace": meta["namespace"]},
        "resources": {"vCPUs": cpu, "mem": slots},
        "lastPermit": None,
        "metrics": {"loadAvg1M": 0.5, "loadAvg5M": 0.4, "memoryUsageBytes": 1.0},
        **more,
    }
    headers = {"Authorization": f"Bearer {token_text(token)}"} if token else {}
    return headers, json.dumps(body).encode()


@cache
def usual_settings() -> SchedulerSettings:
    """``SETTINGS``, parsed once."""
    return parse_settings(SETTINGS)


@cache
def following_settings() -> SchedulerSettings:
    """The same, and requests of pods follow their VMs (B.10)."""
    return parse_settings(SETTINGS + "permits: {asPodRequests: true}\n")


@asynccontextmanager
async def running(
    cluster: FakeCluster,
    clock: FakeClock,
    settings: SchedulerSettings | None = None,
    identity: str = "us",
    hold_back: Seconds | None = None,
) -> AsyncIterator[Running]:
    """A started scheduler; ready if the cluster answers, ``hold_back`` later if one is given.

    Each process has a different ``identity``.
    """
    ports = SchedulerPorts(cluster, TokenReviews(cluster), clock, Telemetry(clock.now), identity)
    parts = assemble(ports, settings or usual_settings())
    apps: dict[str, Callable[[], Any]] = {
        "agents": partial(agents_app, parts.service),
        "extender": partial(extender_app, parts.service),
        "probes": partial(probes_app, parts.service),
    }
    background = asyncio.create_task(parts.run(cluster, hold_back))
    async with DirectClient(InThisProcess(apps)) as client:
        await settle()
        scheduler = Running(cluster, clock, parts, client)
        try:
            yield scheduler
            assert not background.done(), background
            scheduler.check()
        finally:
            background.cancel()
            await asyncio.wait([background])
