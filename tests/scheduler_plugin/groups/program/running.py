"""Processes of ``autoscale-groups`` at work on the embedded cluster, on a clock that the test moves."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from protocol.kubernetes.objects import Json, child, items
from protocol.kubernetes.resources import DEPLOYMENTS, HORIZONTAL_AUTOSCALERS, VERTICAL_AUTOSCALERS
from scheduler_plugin.groups.app import GroupsProgram, assemble
from scheduler_plugin.groups.controllers.denials import Denials
from scheduler_plugin.groups.settings import GroupsLease, GroupsSettings
from tests.fake_clock import FakeClock
from tests.scheduler_plugin.groups.program.cluster import Connection, EmbeddedCluster

DEPLOYMENT = """
apiVersion: apps/v1
kind: Deployment
metadata: {name: resource-consumer}
spec:
  replicas: 1
  selector: {matchLabels: {app: resource-consumer}}
  template:
    metadata: {labels: {app: resource-consumer}}
    spec:
      containers:
      - name: resource-consumer
        image: example.invalid/resource-consumer
        resources: {requests: {cpu: 500m, memory: 500Mi}}
"""

FOLLOWED = GroupsSettings()
"""Where one process follows another."""

UNFOLLOWED = GroupsSettings(lease=GroupsLease(duration_seconds=120, renew_seconds=60.0))
"""Where no process follows another, renewals every two seconds would be most of the work."""


@dataclass(slots=True)
class World:
    """The cluster, and the processes that were started on it."""

    clock: FakeClock
    cluster: EmbeddedCluster
    settings: GroupsSettings
    processes: dict[str, GroupsProgram] = field(default_factory=dict)
    tasks: list[asyncio.Task[None]] = field(default_factory=list)
    denials: Denials | None = None

    async def start(self, identity: str = "first", way: Connection | None = None) -> GroupsProgram:
        """A new process; ready, and with the Lease where no other process holds it."""
        way = way or self.cluster.connection()
        program = assemble(way, self.clock, self.settings, identity, denials=self.denials)
        self.processes[identity] = program
        self.tasks.append(asyncio.create_task(program.run(way, self.clock)))
        await self.clock.advance(0)
        return program

    async def passes(self, seconds: float) -> None:
        """Time passes, and what can happen does."""
        await self.clock.advance(seconds)
        for task in self.tasks:
            assert not task.done() or task.cancelled(), task

    async def recommend(
        self, group: str, replicas: int | None = None, *, container: str = "resource-consumer", **sizes: str
    ) -> None:
        """Let the HPA controller and the VPA recommender run."""
        if replicas is not None:
            status: Json = {"currentReplicas": replicas, "desiredReplicas": replicas}
            await self.cluster.patch(HORIZONTAL_AUTOSCALERS, group, {"status": status}, "status")
        if sizes:
            rows: Json = {"containerName": container, "target": dict(sizes)}
            status = {"recommendation": {"containerRecommendations": [rows]}}
            await self.cluster.patch(VERTICAL_AUTOSCALERS, group, {"status": status}, "status")
        await self.passes(0)

    async def size(self, name: str = "resource-consumer") -> tuple[int, Json]:
        """Replicas, and the requests of the first container, of a Deployment."""
        found = await self.cluster.get(DEPLOYMENTS, name)
        containers = items(found, "spec", "template", "spec", "containers")
        replicas = child(found, "spec")["replicas"]
        assert isinstance(replicas, int)
        return replicas, child(containers[0], "resources", "requests")

    async def events(self) -> list[tuple[str, str]]:
        """Reason and message of every Event, oldest first."""
        return await self.cluster.events()


@asynccontextmanager
async def world(settings: GroupsSettings = UNFOLLOWED) -> AsyncIterator[World]:
    """A cluster with the kinds of a local one, and nothing else."""
    clock = FakeClock()
    cluster = EmbeddedCluster(clock)
    await cluster.prepare()
    found = World(clock, cluster, settings)
    try:
        yield found
    finally:
        for task in found.tasks:
            task.cancel()
        if found.tasks:
            await asyncio.wait(found.tasks)
