"""Parts of a whole cluster in one process, besides its runtime: one clock, a scheduler, and agents.

All are the real ones; they meet over HTTP that never leaves the process.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial

import httpx2 as httpx
import msgspec

from agent.adapters.guest_database import database_status
from agent.adapters.kubernetes_api import LightKubernetesApi
from agent.adapters.neonvm import NeonVm
from agent.adapters.scheduler_client import HttpScheduler
from agent.assignments import Assignment
from agent.core.events import Fault
from agent.core.guest import CpuSeconds, GuestSample
from agent.ports import PortError
from agent.runner import Ports, Runner
from agent.telemetry import growth_times
from deploy.local.kubelet.agents import ensure_account
from deploy.neonvm.ports import GuestPhase
from protocol.kubernetes.objects import Json, name_of, text, uid_of
from protocol.kubernetes.resources import SERVICE_ACCOUNTS
from protocol.kubernetes.timestamps import timestamp
from protocol.messages import ObjectName
from protocol.names import TOKEN_AUDIENCE
from protocol.runtime.kubernetes.http_api import HttpApi
from protocol.runtime.kubernetes.token_reviews import TokenReviews
from protocol.units import Bytes, Seconds
from scheduler_plugin.app import Parts, SchedulerPorts, assemble
from scheduler_plugin.settings.document import parse_settings
from scheduler_plugin.telemetry import Telemetry
from scheduler_plugin.web.apps import agents_app, extender_app
from tests.agent.core.story import POLICY
from tests.fake_clock import FakeClock
from tests.neonvm.fake_guests import FakeGuests
from tests.neonvm.in_process import InProcess
from tests.plain_http import DirectClient

SETTINGS = """
nodeDefaults:
  computeUnit: {vCPUs: 1, mem: 1Gi}
  cpu: {watermark: 0.9, system: 0}
  memory: {watermark: 0.9, system: 0}
migration: {settleSeconds: 10, settleDeniedSeconds: 3}
"""
FOLLOWING = f"{SETTINGS}permits: {{asPodRequests: true}}\n"
DEADLINE = Seconds(5.0)


class OneClock(FakeClock):
    """The time of the runtime, the scheduler, the API server and the agents; only ``jump`` moves it."""

    def date(self) -> datetime:
        return datetime.fromtimestamp(self.wall(), UTC)

    def timestamp(self) -> str:
        return timestamp(self.wall())


class Line(httpx.AsyncBaseTransport):
    """The connection to the scheduler; refused while there is none."""

    def __init__(self) -> None:
        self.far_end: httpx.AsyncBaseTransport | None = None
        self.busy = 0

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        if self.far_end is None:
            raise httpx.ConnectError("the scheduler is away")
        self.busy += 1
        try:
            return await self.far_end.handle_async_request(request)
        finally:
            self.busy -= 1


class Scheduler:
    """The scheduler, which may be killed and restarted; it has nothing but the API."""

    def __init__(self, api: InProcess, clock: OneClock, settings: str) -> None:
        self._api, self._clock, self._settings = api, clock, settings
        self.for_agents, self.for_pods = Line(), Line()
        self.parts: Parts | None = None
        self._life: asyncio.Task[None] | None = None

    def start(self) -> None:
        way = HttpApi(DirectClient(self._api, "http://api"), lambda: "secret")
        telemetry = Telemetry(self._clock.now)
        ports = SchedulerPorts(way, TokenReviews(way), self._clock, telemetry, "scheduler")
        self.parts = assemble(ports, parse_settings(self._settings))
        self.for_agents.far_end = httpx.ASGITransport(agents_app(self.parts.service))
        self.for_pods.far_end = httpx.ASGITransport(extender_app(self.parts.service))
        self._life = asyncio.ensure_future(self.parts.run(way))

    async def kill(self) -> None:
        assert self._life is not None
        assert not self._life.done(), self._life
        self.for_agents.far_end = self.for_pods.far_end = None
        self._life.cancel()
        await asyncio.wait((self._life,))
        self.parts = None


@dataclass
class Demand:
    """The load of the VM's database on any node; its counters move with it."""

    cores: float = 1.0
    busy: float = 0.0
    at: float = 1000.0


@dataclass(frozen=True)
class Exporter:
    """The metrics of the guest in one pod; silent while none runs there."""

    pod: ObjectName
    guests: FakeGuests
    clock: OneClock
    demand: Demand

    def close(self) -> None:
        return

    async def scrape(self) -> GuestSample:
        guest = self.guests.by_pod.get(self.pod.name)
        if guest is None or guest.has.phase is not GuestPhase.RUNNING:
            raise PortError(Fault.GUEST, "nothing listens")
        demand, now = self.demand, self.clock.now()
        demand.busy += min(demand.cores, guest.has.cpu.as_cores) * (now - demand.at)
        demand.at = now
        used = Bytes.parse("512Mi")
        cpus = {str(cpu): CpuSeconds(demand.busy / 4) for cpu in range(4)}
        return GuestSample(cpus=cpus, load1=demand.cores, mem_total=guest.has.mem, mem_available=guest.has.mem - used)


@dataclass(frozen=True)
class Token:
    """A token that stays."""

    value: str

    def __call__(self) -> str:
        return self.value


@dataclass(frozen=True)
class Agent:
    """The agent in one pod."""

    uid: str
    runner: Runner
    life: asyncio.Task[None]


class Agents:
    """The agents of the guests: one in every running pod, as the kubelet would keep them."""

    def __init__(self, api: InProcess, scheduler: Scheduler, guests: FakeGuests, clock: OneClock) -> None:
        self._api, self._scheduler, self._puppets, self._clock = api, scheduler, guests, clock
        self._client = api.client()
        self.demand = Demand()
        self.by_pod: dict[ObjectName, Agent] = {}

    async def follow(self, pods: Mapping[ObjectName, Json]) -> None:
        """Starts and ends agents, so that those of ``pods`` run and no others."""
        for name in [name for name, each in self.by_pod.items() if uid_of(pods.get(name, {})) != each.uid]:
            await self.kill(name)
        for name, pod in pods.items():
            if name not in self.by_pod:
                await self._start(name, pod)

    async def kill(self, name: ObjectName) -> None:
        """The process dies."""
        agent = self.by_pod.pop(name)
        assert not agent.life.done(), agent.life
        agent.life.cancel()
        await asyncio.wait((agent.life,))

    async def _start(self, name: ObjectName, pod: Json) -> None:
        vm = ObjectName(name.namespace, text(pod, "metadata", "labels", "vm.neon.tech/name"))
        way = DirectClient(self._api)
        api = LightKubernetesApi(way, "http://api", Token("secret"), DEADLINE)
        proof = Token(await self._token(pod))
        line = DirectClient(self._scheduler.for_agents)
        ports = Ports(
            Exporter(name, self._puppets, self._clock, self.demand),
            HttpScheduler(line, "http://scheduler", proof, DEADLINE),
            NeonVm(api, vm),
            partial(database_status, line, "http://guest/database", DEADLINE),
            self._clock,
        )
        policy = replace(POLICY, memory=msgspec.structs.replace(POLICY.memory, target=0.25))
        runner = Runner(Assignment(vm, name), ports, policy, int(self._clock.wall() * 1e6), growth_times())
        self.by_pod[name] = Agent(uid_of(pod), runner, asyncio.ensure_future(runner.run()))

    async def _token(self, pod: Json) -> str:
        account = ObjectName(name_of(pod).namespace, "default")
        await ensure_account(self._client, account)
        bound = {"apiVersion": "v1", "kind": "Pod", "name": name_of(pod).name, "uid": uid_of(pod)}
        spec: Json = {"audiences": [TOKEN_AUDIENCE], "boundObjectRef": bound}
        answer = await self._client.post_subresource(SERVICE_ACCOUNTS, account, "token", {"spec": spec})
        return text(answer, "status", "token")
