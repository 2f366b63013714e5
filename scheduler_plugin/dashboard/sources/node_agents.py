"""Addresses of the agents of nodes: by the pods of one namespace, listed again at most every few seconds."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import Final

from protocol.kubernetes.api import ApiCall, ApiError, KubernetesApi
from protocol.kubernetes.objects import items, text
from protocol.kubernetes.resources import PODS
from protocol.runtime.clock import Clock
from protocol.units import Instant, Seconds

TIMEOUT: Final = Seconds(5.0)
KEPT: Final = Seconds(10.0)
SELECTOR: Final = "app.kubernetes.io/name=autoscaling-agent"


@dataclass(slots=True)
class NodeAgentAddresses:
    """Lists over ``api`` in ``namespace``. If a list fails, the last one stays."""

    api: KubernetesApi
    namespace: str
    clock: Clock
    _known: dict[str, str] = field(default_factory=dict)
    _until: Instant | None = None
    _turn: asyncio.Lock = field(default_factory=asyncio.Lock)

    async def address(self, node: str) -> str:
        """The address of the agent on ``node``; empty if there is none."""
        async with self._turn:
            if self._until is None or self.clock.now() >= self._until:
                await self._list()
            return self._known.get(node, "")

    async def _list(self) -> None:
        # Set before the call, so that a list that fails is not repeated for each VM that people look at.
        self._until = Instant(self.clock.now() + KEPT)
        query = {"labelSelector": SELECTOR}
        try:
            answer = await self.api.call(ApiCall("GET", PODS.path(self.namespace), TIMEOUT, query))
        except ApiError:
            return
        # A pod that has ended keeps its address in its status.
        running = (pod for pod in items(answer, "items") if text(pod, "status", "phase") == "Running")
        self._known = {text(pod, "spec", "nodeName"): text(pod, "status", "podIP") for pod in running}
