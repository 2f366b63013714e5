"""HTTP clients of the page for the scheduler, ``autoscale-groups`` and agents.

A missing response is None, and the page shows the rest. Responses of agents also update the page.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final, Protocol

import httpx2 as httpx
import msgspec

from protocol.kubernetes.api import ApiCall, ApiError, KubernetesApi
from protocol.kubernetes.objects import Json, JsonObject, items, text
from protocol.kubernetes.resources import PODS
from protocol.messages import ObjectName
from protocol.runtime.clock import Clock
from protocol.runtime.explaining.explain_access import AUDIENCE, audience_of_agents
from protocol.runtime.url_hosts import url_host
from protocol.units import Instant, Seconds
from scheduler_plugin.bounded_responses import bounded_body
from scheduler_plugin.databases import database_name, database_node, database_url, is_pod
from scheduler_plugin.own_tokens import Tokens, bearer_header, no_tokens

PATIENCE: Final = 5.0
"""Timeout of a whole response, in seconds."""
LONGEST_ANSWER: Final = 64 * 1024 * 1024
LONGEST_OF_AGENT: Final = 1024 * 1024
AGENT_PORT: Final = 9101
TIMEOUT: Final = Seconds(5.0)
KEPT: Final = Seconds(10.0)
SELECTOR: Final = "app.kubernetes.io/name=autoscaling-agent"


@dataclass(slots=True)
class NodeAgentAddresses:
    """Addresses of node agents, from their pods in ``namespace``, listed at most every few seconds.

    If a list fails, the last one is used.
    """

    api: KubernetesApi
    namespace: str
    clock: Clock
    _addresses: dict[str, str] = field(default_factory=dict)
    _until: Instant | None = None
    _lock: asyncio.Lock = field(default_factory=asyncio.Lock)

    async def address(self, node: str) -> str:
        """Address of the agent on ``node``; empty if there is none."""
        async with self._lock:
            if self._until is None or self.clock.now() >= self._until:
                await self._list()
            return self._addresses.get(node, "")

    async def _list(self) -> None:
        # Before the call, so that a failed list is not repeated for each VM.
        self._until = Instant(self.clock.now() + KEPT)
        query = {"labelSelector": SELECTOR}
        try:
            answer = await self.api.call(ApiCall("GET", PODS.path(self.namespace), TIMEOUT, query))
        except ApiError:
            return
        # Finished pods keep their addresses.
        running = (pod for pod in items(answer, "items") if text(pod, "status", "phase") == "Running")
        self._addresses = {text(pod, "spec", "nodeName"): text(pod, "status", "podIP") for pod in running}


class Sources(Protocol):
    """Queries of a cluster's programs; tests and ``autoscale web`` have their own implementations."""

    async def of_scheduler(self, path: str) -> Json | None:
        """The scheduler's JSON at ``path``; None if unavailable."""

    async def of_groups(self, path: str) -> Json | None:
        """The groups program's JSON at ``path``; None if unavailable."""

    async def of_vm(self, vm: JsonObject) -> Json | None:
        """The agent's ``/explain`` response for a VM, or an opted-in pod; None if unavailable."""


@dataclass(frozen=True, slots=True)
class HttpSources:
    """Queries from within the cluster. Without ``agents`` each VM's agent is in its pod."""

    http: httpx.AsyncClient
    scheduler: str
    groups: str
    agents: NodeAgentAddresses | None = None
    tokens: Tokens = no_tokens

    async def of_scheduler(self, path: str) -> Json | None:
        """See ``Sources``."""
        return await self._json(f"{self.scheduler.rstrip('/')}{path}", AUDIENCE)

    async def of_groups(self, path: str) -> Json | None:
        """See ``Sources``."""
        return await self._json(f"{self.groups.rstrip('/')}{path}", AUDIENCE) if self.groups else None

    async def of_vm(self, vm: JsonObject) -> Json | None:
        """See ``Sources``. The node's agent first, because a VM's pod may forward its ports to the guest."""
        name, node = database_name(vm), database_node(vm)
        if self.agents is not None and node and (address := await self.agents.address(node)):
            path = f"/explain/{database_url(name)}"
            if (explanation := await self._of_agent(address, path, name, self.agents.namespace)) is not None:
                return explanation
        # A postgres in a pod has no agent next to it.
        if is_pod(vm):
            return None
        return await self._of_agent(text(vm, "status", "podIP"), "/explain", name, name.namespace)

    async def _of_agent(self, address: str, path: str, vm: ObjectName, namespace: str) -> Json | None:
        try:
            # The address is from a VM's status, so accept only IP addresses.
            host = url_host(address)
        except ValueError:
            return None
        url = f"http://{host}:{AGENT_PORT}{path}"
        explanation = await self._json(url, audience_of_agents(namespace), LONGEST_OF_AGENT)
        # The address may belong to another VM by now.
        return explanation if explanation is not None and text(explanation, "vm") == str(vm) else None

    async def _json(self, url: str, audience: str, longest: int = LONGEST_ANSWER) -> Json | None:
        try:
            async with asyncio.timeout(PATIENCE):
                headers = bearer_header(await self.tokens(audience))
                body = await bounded_body(self.http, url, headers, longest, PATIENCE)
            return None if body is None else msgspec.json.decode(body, type=Json)
        except (httpx.HTTPError, httpx.InvalidURL, TimeoutError, ValueError, RecursionError):
            return None


OnResponse = Callable[[ObjectName, Json | None], None]
"""Receives the response of a VM's agent; None if there was none."""


class ObservedSources:
    """See ``Sources``. Passes each response of an agent to ``on_response``."""

    def __init__(self, sources: Sources, on_response: OnResponse) -> None:
        self._sources, self._on_response = sources, on_response
        self.of_scheduler, self.of_groups = sources.of_scheduler, sources.of_groups

    async def of_vm(self, vm: JsonObject) -> Json | None:
        """See ``Sources``."""
        explanation = await self._sources.of_vm(vm)
        self._on_response(database_name(vm), explanation)
        return explanation
