"""Several replicas of the scheduler on one cluster, and clients that reach the leader as through its Service."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final

import httpx2 as httpx

from protocol.messages import ObjectName
from protocol.runtime.kubernetes.lease import Leadership, LeaseTerms
from protocol.runtime.kubernetes.token_reviews import TokenReviews
from protocol.units import Seconds
from scheduler_plugin.app import SchedulerPorts
from scheduler_plugin.leader_endpoints import LeaderEndpoints, ReplicaAddress
from scheduler_plugin.replica import Replica
from scheduler_plugin.settings.document import SchedulerSettings
from scheduler_plugin.telemetry import Telemetry
from scheduler_plugin.web.apps import agents_app, extender_app, probes_app
from tests.fake_clock import FakeClock, settle
from tests.plain_http import DirectClient, InThisProcess
from tests.scheduler_plugin.fake_cluster import LEASES, SLICES, FakeCluster
from tests.scheduler_plugin.objects import Obj
from tests.scheduler_plugin.replicas.stopped_process import StoppableClock, Way
from tests.scheduler_plugin.running import agent_request, usual_settings

LEASE: Final = ObjectName("autoscale-system", "autoscaling-scheduler")
SLICE: Final = ObjectName("autoscale-system", "autoscaling-scheduler")
TERMS: Final = LeaseTerms(LEASE, poll_every=Seconds(0.5))
PATIENCE: Final = Seconds(5.0)
"""Agents wait so long for an answer."""

UNANSWERED: Final = 0


@dataclass(slots=True, eq=False)
class Process:
    """One replica, as a process."""

    name: str
    way: Way
    replica: Replica
    client: httpx.AsyncClient
    task: asyncio.Task[None]

    @property
    def leads(self) -> bool:
        """True if it answers."""
        return self.replica.leadership().leads

    def stop(self) -> None:
        """SIGSTOP."""
        self.way.goes.clear()

    def resume(self) -> None:
        """SIGCONT."""
        self.way.goes.set()

    async def kill(self) -> None:
        """``kill -9``."""
        self.way.is_dead = True
        await self._end()

    async def terminate(self) -> None:
        """SIGTERM: finish requests in flight, and release the Lease."""
        await self.replica.retire()
        await self._end()

    async def _end(self) -> None:
        self.resume()
        self.task.cancel()
        await asyncio.wait([self.task])


@dataclass(slots=True, eq=False)
class Replicas:
    """The cluster, its clock, and the processes that run; ``ended`` are the ways of those that do no more."""

    cluster: FakeCluster
    clock: FakeClock
    settings: SchedulerSettings = field(default_factory=usual_settings)
    running: list[Process] = field(default_factory=list)
    ended: list[Way] = field(default_factory=list)
    made: int = 0

    async def start(self, way: Way | None = None) -> Process:
        """Start another replica; it is ready if the cluster responds."""
        self.made += 1
        name, way = f"replica-{self.made}", way or Way(self.cluster, self.clock)
        clock = StoppableClock(self.clock, way.goes)
        ports = SchedulerPorts(way, TokenReviews(way), clock, Telemetry(clock.now), name)
        place = ReplicaAddress(f"10.0.0.{self.made}", ObjectName(SLICE.namespace, name), f"node-{self.made}")
        endpoints = LeaderEndpoints(way, clock, [SLICE], place)
        replica = Replica(ports, Leadership(way, clock, TERMS, name), endpoints, self.settings)
        apps: dict[str, Callable[[], Any]] = {
            "agents": partial(agents_app, replica),
            "extender": partial(extender_app, replica),
            "probes": partial(probes_app, replica),
        }
        client = DirectClient(InThisProcess(apps))
        process = Process(name, way, replica, client, asyncio.create_task(replica.run()))
        self.running.append(process)
        await settle()
        return process

    async def end(self, process: Process, how: Callable[[Process], Coroutine[None, None, None]]) -> None:
        """Ends a process."""
        self.running.remove(process)
        self.ended.append(process.way)
        ending = asyncio.create_task(how(process))
        await settle()
        while not ending.done():  # what is in flight is waited for
            await self.clock.advance(0.1)
        ending.result()

    @property
    def leader(self) -> Process | None:
        """The process that serves; never more than one is running."""
        found = [each for each in self.running if each.leads]
        assert len([each for each in found if each.way.goes.is_set()]) <= 1, "two replicas answer"
        return found[0] if found else None

    @property
    def served(self) -> Process | None:
        """The process to which the Service routes."""
        endpoints = self.cluster.get(SLICES, SLICE.namespace, SLICE.name).get("endpoints") or []
        pods = [each["targetRef"]["name"] for each in endpoints]
        assert len(pods) <= 1
        return next((each for each in self.running if [each.name] == pods), None)

    async def ask(self, pod: Obj, cpu: Any, slots: int, **more: Any) -> httpx.Response | None:
        """An agent's request through the Service; None if there is no response in time."""
        headers, body = agent_request(self.cluster, pod, cpu, slots, **more)
        return await self.answered("http://agents/", headers, body)

    async def answered(self, url: str, headers: dict[str, str], body: bytes) -> httpx.Response | None:
        """Response of the process to which the Service routes."""
        process = self.served
        if process is None:
            return None
        asking = asyncio.create_task(_asked(process, url, headers, body))
        deadline = self.clock.now() + PATIENCE
        await settle()
        while not asking.done() and self.clock.now() < deadline:
            await self.clock.advance(0.5)
        return asking.result() if asking.done() else None

    def lease(self) -> Obj:
        """The Lease."""
        spec: Obj = self.cluster.get(LEASES, LEASE.namespace, LEASE.name)["spec"]
        return spec


async def _asked(process: Process, url: str, headers: dict[str, str], body: bytes) -> httpx.Response:
    """The kernel queues data for a stopped process."""
    await process.way.goes.wait()
    response = await process.client.post(url, content=body, headers=headers)
    await process.way.goes.wait()
    return response


@asynccontextmanager
async def replicas(
    cluster: FakeCluster, clock: FakeClock, count: int = 2, settings: SchedulerSettings | None = None
) -> AsyncIterator[Replicas]:
    """This many replicas, of which the first leads."""
    cluster.put(SLICES, {"metadata": {"namespace": SLICE.namespace, "name": SLICE.name, "uid": "slice"}})
    made = Replicas(cluster, clock, settings or usual_settings())
    try:
        for _ in range(count):
            await made.start()
        yield made
        assert not [each.name for each in made.running if each.task.done()]
    finally:
        for process in list(made.running):
            await made.end(process, Process.kill)
        for way in made.ended:
            for each in way.late:
                each.cancel()
