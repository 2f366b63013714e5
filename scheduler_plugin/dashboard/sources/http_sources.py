"""What the page asks beside the API: the scheduler, and the agents of VMs.

What cannot be had is None, and the page shows the rest.
"""

from __future__ import annotations

from typing import Final, Protocol
from urllib.parse import quote

import httpx
import msgspec

from protocol.kubernetes.objects import Json, JsonObject, name_of, text
from protocol.messages import ObjectName
from scheduler_plugin.dashboard.sources.node_agents import NodeAgents

LONGEST_ANSWER: Final = 64 * 1024 * 1024
AGENT_PORT: Final = 9101


class Sources(Protocol):
    """The programs of one cluster; tests and ``autoscale web`` bring their own."""

    async def of_scheduler(self, path: str) -> Json | None:
        """The scheduler's JSON at ``path``; None where it cannot be had."""

    async def of_groups(self, path: str) -> Json | None:
        """The groups' program's JSON at ``path``; None where it cannot be had."""

    async def of_vm(self, vm: JsonObject) -> Json | None:
        """What the agent of a VM answers at ``/explain``; None where it does not."""


class HttpSources:
    """Straight to the programs, as a pod of the cluster can. Without ``agents`` each VM's agent is in its pod."""

    def __init__(self, http: httpx.AsyncClient, scheduler: str, groups: str, agents: NodeAgents | None = None) -> None:
        self._http, self._scheduler, self._groups = http, scheduler.rstrip("/"), groups.rstrip("/")
        self._agents = agents

    async def of_scheduler(self, path: str) -> Json | None:
        """See ``Sources``."""
        return await self._json(f"{self._scheduler}{path}")

    async def of_groups(self, path: str) -> Json | None:
        """See ``Sources``."""
        return await self._json(f"{self._groups}{path}") if self._groups else None

    async def of_vm(self, vm: JsonObject) -> Json | None:
        """See ``Sources``. The agent of its node is asked first: a VM's pod may pass its ports on to the guest."""
        name, node = name_of(vm), text(vm, "status", "node")
        if self._agents is not None and node and (address := await self._agents.address(node)):
            path = f"/explain/{quote(name.namespace, safe='')}/{quote(name.name, safe='')}"
            if (found := await self._of_agent(address, path, name)) is not None:
                return found
        return await self._of_agent(text(vm, "status", "podIP"), "/explain", name)

    async def _of_agent(self, address: str, path: str, vm: ObjectName) -> Json | None:
        host = f"[{address}]" if ":" in address else address
        return await self._json(f"http://{host}:{AGENT_PORT}{path}", vm) if address else None

    async def _json(self, url: str, expected: ObjectName | None = None) -> Json | None:
        try:
            answer = (await self._http.get(url)).raise_for_status()
            if len(answer.content) > LONGEST_ANSWER:
                return None
            found = msgspec.json.decode(answer.content, type=Json)
        except (httpx.HTTPError, httpx.InvalidURL, msgspec.DecodeError, RecursionError):
            return None
        return found if expected is None or text(found, "vm") in {"", str(expected)} else None
