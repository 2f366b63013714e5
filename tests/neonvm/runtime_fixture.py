"""The whole runtime in one process: API server, scheduling loop, controllers and kubelets, over fake guests."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import cache
from pathlib import Path
from typing import cast

import httpx2 as httpx

from deploy.kube.client import ApiClient
from deploy.local.cluster.content import register_node
from deploy.local.cluster.runtime import Runtime
from deploy.local.kubelet.node_object import NodeSpec
from deploy.local.kubelet.sandbox import NodeDependencies
from protocol.kubernetes.objects import Json, child, items, name_of, node_of, text
from protocol.kubernetes.resources import CUSTOM_RESOURCE_DEFINITIONS, EVENTS, MIGRATIONS, PODS, VIRTUAL_MACHINES
from protocol.messages import ObjectName
from protocol.units import Resources
from tests import plain_yaml
from tests.at_once import work_at_once
from tests.fake_clock import QUIET_ROUNDS, FakeClock, loop_is_quiet
from tests.neonvm.fake_guests import FakeGuest, FakeGuests, PlainNetwork
from tests.neonvm.in_process import InProcess
from tests.neonvm.sample_objects import virtual_machine

DEFINITIONS = Path(__file__).parents[2] / "deploy" / "kubernetes" / "crds"
DB = ObjectName("default", "db")
MOVE = ObjectName("default", "move")


@cache
def definition(name: str) -> Json:
    """One of our CRDs; read once, because that is slow."""
    return cast("Json", plain_yaml.load((DEFINITIONS / name).read_text()))


class FakeExtender:
    """Lets every pod onto every node that is not ``full``, and binds it as the scheduler would."""

    def __init__(self, client: ApiClient) -> None:
        self.full: set[str] = set()
        self._client = client

    def http(self) -> httpx.AsyncClient:
        """A client of the extender."""
        return httpx.AsyncClient(transport=httpx.MockTransport(self._answer), base_url="http://extender")

    async def _answer(self, request: httpx.Request) -> httpx.Response:
        body = json.loads(request.content)
        if request.url.path == "/filter":
            names = [each for each in body["NodeNames"] if each not in self.full]
            failed = {each: "Insufficient memory" for each in body["NodeNames"] if each in self.full}
            return httpx.Response(200, json={"NodeNames": names, "FailedNodes": failed})
        if request.url.path == "/prioritize":
            return httpx.Response(200, json=[{"Host": "n1", "Score": 9}])
        name = ObjectName(body["PodNamespace"], body["PodName"])
        target = {"apiVersion": "v1", "kind": "Node", "name": body["Node"]}
        binding: Json = {"metadata": {"name": name.name, "namespace": name.namespace}, "target": target}
        await self._client.post_subresource(PODS, name, "binding", binding)
        return httpx.Response(200, json={"Error": ""})


class RuntimeFixture:
    """Two nodes, one VM, and everything that moves it."""

    def __init__(self, state: Path) -> None:
        self.api = InProcess()
        self.client = self.api.client()
        self.clock = FakeClock()
        self.guests = FakeGuests()
        self.network = PlainNetwork()
        self.extender = FakeExtender(self.client)
        self._state = state
        self._runtime: asyncio.Task[None] | None = None

    async def open(self, *nodes: str) -> None:
        for name in ("virtualmachines.yaml", "virtualmachinemigrations.yaml"):
            await self.client.create(CUSTOM_RESOURCE_DEFINITIONS, "", definition(name))
        for node in nodes:
            await register_node(self.client, NodeSpec(node, Resources.parse("8", "16Gi")), self.clock)
        await self.start()

    async def start(self) -> None:
        """The runtime begins."""
        nodes = frozenset({"n1", "n2"})
        deps = NodeDependencies(self.client, self.network, self.guests, self.clock, self._state, None)
        self.controllers = Runtime(deps, self.extender.http(), nodes, sidecars=False)
        self._runtime = asyncio.ensure_future(self.controllers.run())
        await self.settle()

    @property
    def is_up(self) -> bool:
        """True if the runtime still works."""
        return self._runtime is not None and not self._runtime.done()

    async def stop(self) -> None:
        """The runtime ends, and its guests with it."""
        assert self._runtime is not None
        self._runtime.cancel()
        await asyncio.wait((self._runtime,))

    async def restart(self) -> None:
        """Restart the runtime, which keeps nothing but the API."""
        await self.stop()
        assert self.guests.running == []
        await self.start()

    async def close(self) -> None:
        await self.stop()
        await self.client.__aexit__()
        self.api.server.close()

    async def settle(self) -> None:
        """Let every component act until it has nothing to do."""
        idle = 0
        while idle < QUIET_ROUNDS:
            await asyncio.sleep(0)
            garbage_collector = self.api.server.garbage_collector
            busy = self.api.busy or not garbage_collector.idle or not loop_is_quiet()
            idle = 0 if busy else idle + 1
            if not garbage_collector.idle:
                garbage_collector.step()

    async def pass_time(self, span: float, step: float = 1.0) -> None:
        while span > 0:
            await self.clock.advance(min(step, span))
            await self.settle()
            span -= step

    async def vm(self) -> Json:
        return await self.client.get(VIRTUAL_MACHINES, DB)

    async def status(self) -> Json:
        return child(await self.vm(), "status")

    async def migration(self, name: ObjectName = MOVE) -> Json | None:
        found = (await self.client.list(MIGRATIONS)).objects
        return next((each for each in found if name_of(each) == name), None)

    async def outcome(self, name: ObjectName = MOVE) -> tuple[str, str]:
        """The phase of the migration, and the reason that its condition gives."""
        found = await self.migration(name)
        assert found is not None
        (said,) = items(found, "status", "conditions")
        return text(found, "status", "phase"), text(said, "reason")

    async def pods(self) -> dict[str, Json]:
        return {name_of(each).name: each for each in (await self.client.list(PODS)).objects}

    async def said(self, name: str = "db") -> list[tuple[str, str]]:
        """Every event on the object: its reason and message."""
        return [(text(each, "reason"), text(each, "message")) for each in await self.events(name)]

    async def events(self, name: str) -> list[Json]:
        """Every event on the object."""
        found = (await self.client.list(EVENTS)).objects
        return [each for each in found if text(each, "involvedObject", "name") == name]

    async def create_vm(self, policy: str = "Always", **spec: object) -> None:
        made = virtual_machine(None, policy)
        body = {**made, "metadata": {"name": "db"}, "spec": {**child(made, "spec"), **spec}}
        await self.client.create(VIRTUAL_MACHINES, "default", body)

    async def run_vm(self, policy: str = "Always", **spec: object) -> str:
        """A VM that runs; returns its pod."""
        await self.create_vm(policy, **spec)
        await self.pass_time(1)
        status = await self.status()
        assert (status["phase"], self.guests.running) == ("Running", [status["podName"]])
        return text(status, "podName")

    async def ask_to_move(self, name: str = "move", **spec: object) -> None:
        """A person asks for the VM to be moved."""
        body: Json = {"apiVersion": "vm.neon.tech/v1", "kind": "VirtualMachineMigration"}
        body |= {"metadata": {"name": name}, "spec": {"vmName": "db", "completionTimeout": 60, **spec}}
        await self.client.create(MIGRATIONS, "default", body)
        await self.settle()

    async def begin_to_move(self, **spec: object) -> tuple[FakeGuest, FakeGuest]:
        """The guest is being sent; returns both ends."""
        await self.ask_to_move("move", **spec)
        source = self.guests.moving
        assert source.move is not None
        return source, source.move.target

    async def cancel(self, name: ObjectName = MOVE) -> None:
        await self.client.delete(MIGRATIONS, name)
        await self.settle()

    async def resize(self, cpus: int) -> None:
        await self.client.merge_patch(VIRTUAL_MACHINES, DB, {"spec": {"guest": {"cpus": {"use": cpus}}}})
        await self.settle()

    async def assert_well(self, pod: str) -> None:
        """One guest runs, in ``pod``; nothing else is left, nothing ran twice, and the VM scales."""
        status = await self.status()
        assert (self.guests.running, self.guests.doubled) == ([pod], [])
        assert (status["phase"], status["podName"], status["extraNetIP"]) == ("Running", pod, "10.9.0.1")
        (found,) = (await self.pods()).values()
        assert (status["node"], status["podIP"]) == (node_of(found), text(found, "status", "podIP"))
        owners = items(found, "metadata", "ownerReferences")
        assert [text(each, "kind") for each in owners if each.get("controller")] == ["VirtualMachine"]
        assert (list(self.network.plugged), self.network.released) == ([name_of(found)], [])
        for each in (await self.client.list(MIGRATIONS)).objects:
            assert text(each, "status", "phase") in {"Succeeded", "Failed"}
            assert "finalizers" not in child(each, "metadata")
        await self.resize(4)
        await self.pass_time(2)
        assert ((await self.status())["cpus"], self.guests.by_pod[pod].has.cpu.value) == ("4", 4000)


@asynccontextmanager
async def running_runtime(state: Path, *nodes: str) -> AsyncIterator[RuntimeFixture]:
    """A runtime that is open, and closed afterwards."""
    # ``settle`` cannot see a thread: it would return while a cache still decodes a long line of its watch in one.
    work_at_once()
    runtime = RuntimeFixture(state)
    await runtime.open(*(nodes or ("n1", "n2")))
    try:
        yield runtime
    finally:
        await runtime.close()
