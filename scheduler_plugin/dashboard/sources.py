"""What the page asks beside the API: the scheduler, and the agents of VMs.

What cannot be had is None, and the page shows the rest.
"""

from __future__ import annotations

from typing import Final, Protocol

import httpx
import msgspec

from protocol.kubernetes.objects import Json, JsonObject, name_of, text
from protocol.messages import ObjectName

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
    """Straight to the programs, as a pod of the cluster can."""

    def __init__(self, http: httpx.AsyncClient, scheduler: str, groups: str) -> None:
        self._http, self._scheduler, self._groups = http, scheduler.rstrip("/"), groups.rstrip("/")

    async def of_scheduler(self, path: str) -> Json | None:
        """See ``Sources``."""
        return await self._json(f"{self._scheduler}{path}")

    async def of_groups(self, path: str) -> Json | None:
        """See ``Sources``."""
        return await self._json(f"{self._groups}{path}") if self._groups else None

    async def of_vm(self, vm: JsonObject) -> Json | None:
        """See ``Sources``."""
        address = text(vm, "status", "podIP")
        if not address:
            return None
        host = f"[{address}]" if ":" in address else address
        return await self._json(f"http://{host}:{AGENT_PORT}/explain", name_of(vm))

    async def _json(self, url: str, expected: ObjectName | None = None) -> Json | None:
        try:
            answer = (await self._http.get(url)).raise_for_status()
            if len(answer.content) > LONGEST_ANSWER:
                return None
            found = msgspec.json.decode(answer.content, type=Json)
        except (httpx.HTTPError, httpx.InvalidURL, msgspec.DecodeError, RecursionError):
            return None
        return found if expected is None or text(found, "vm") in {"", str(expected)} else None
