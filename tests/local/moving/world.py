"""A whole cluster in one process: API server, scheduler, runtime, an agent in every pod, and guests on strings.

Rules that hold here:

- Nothing but the guests, the network and the time is faked. After every step the invariant is checked: guest use <=
  permit of its agent <= reservation <= node, and never two guests at once.
- With ``follows`` requests of pods follow their VMs (B.10): then no agent holds more than its pod requests, no node is
  promised twice, and in the end the pod requests what is reserved.
- ``assert_well`` is what must hold after every failure, all of it: one guest runs, each pod is reserved once and
  nothing else is, the VM grows and shrinks again within seconds, and events on the VM say what happened.
"""

from __future__ import annotations

import asyncio
import random
import uuid
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Final

from deploy.local.apiserver.apimachinery.environment import Environment as ApiEnvironment
from deploy.local.cluster.content import register_node
from deploy.local.cluster.runtime import Runtime
from deploy.local.kubelet.node_object import NodeSpec
from deploy.local.kubelet.sandbox import NodeDependencies
from deploy.neonvm.ports import GuestPhase
from protocol.kubernetes.api import ApiUnknownError
from protocol.kubernetes.objects import (
    Json,
    annotations_of,
    child,
    has_finished,
    is_terminating,
    items,
    labels_of,
    name_of,
    node_of,
    text,
    uid_of,
)
from protocol.kubernetes.resources import CUSTOM_RESOURCE_DEFINITIONS, EVENTS, MIGRATIONS, NODES, PODS, VIRTUAL_MACHINES
from protocol.messages import ObjectName
from protocol.names import ANNOTATION_TARGET_NODE, LABEL_VM_NAME, VM_GROUP
from protocol.units import ZERO, Resources
from scheduler_plugin.ledger.invariants import VmTruth, overcommitted, violations
from scheduler_plugin.ledger.ledger import Ledger
from tests.examples import THOROUGH
from tests.fake_clock import QUIET_ROUNDS, loop_is_quiet
from tests.kubernetes.scheduling.books import requests_of
from tests.local.moving.parts import FOLLOWING, SETTINGS, Agents, OneClock, Scheduler
from tests.neonvm.fake_guests import FakeGuest, FakeGuests, PlainNetwork
from tests.neonvm.in_process import InProcess
from tests.neonvm.runtime_fixture import definition
from tests.neonvm.sample_objects import virtual_machine
from tests.plain_http import DirectClient

DB = ObjectName("default", "db")
FOREIGN = ObjectName("default", "foreign")
FIRST: Final[Json] = {"cpu": "100m", "memory": "128Mi"}
"""What the VM's pods are made with where requests follow."""

ALLOCATABLE: Final = Resources.parse("8", "16Gi")
SMALL, LARGE = Resources.parse("2", "2Gi"), Resources.parse("4", "4Gi")
_SETTLE = 31.0
"""After so many seconds the scheduler believes an agent that it uses less."""

_LOWERED = 10.0
"""And after so many more requests have followed."""

STEP: Final = 0.5 if THOROUGH else 1.0
"""How much time passes at once where a test does not say."""


class World:
    """Nodes, one VM on the first, and the programs that manage them."""

    def __init__(
        self, state: Path, nodes: tuple[str, ...], pod_requests: Json | None = None, *, follows: bool = False
    ) -> None:
        self.nodes = nodes
        self.follows = follows
        self._pod_requests = FIRST if follows else pod_requests
        self._starts: dict[str, Resources] = {}
        self.clock = OneClock()
        self.api = InProcess(ApiEnvironment(self.clock.date, lambda: str(uuid.uuid4()), random.choice))
        self.client = self.api.client()
        self.guests, self.network = FakeGuests(), PlainNetwork()
        self.scheduler = Scheduler(self.api, self.clock, FOLLOWING if follows else SETTINGS)
        self.agents = Agents(self.api, self.scheduler, self.guests, self.clock)
        self.source = ObjectName("default", "")
        self.target: FakeGuest
        self.resizes = asyncio.Event()
        self.is_forced = False
        self._state = state
        self._runtime: asyncio.Task[None] | None = None

    # Processes ------------------------------------------------------------------------------------------------------

    async def open(self) -> None:
        for name in ("virtualmachines.yaml", "virtualmachinemigrations.yaml"):
            await self.client.create(CUSTOM_RESOURCE_DEFINITIONS, "", definition(name))
        for node in self.nodes:
            await register_node(self.client, NodeSpec(node, ALLOCATABLE), self.clock)
        self.scheduler.start()
        for node in self.nodes[1:]:
            await self.cordon(node)
        await self.start_runtime()
        made = virtual_machine()
        metadata: Json = {"name": "db", "labels": labels_of(made)}
        spec: Json = {**child(made, "spec")}
        if self._pod_requests is not None:
            spec["podResources"] = {"requests": self._pod_requests}
        await self.client.create(VIRTUAL_MACHINES, "default", {**made, "metadata": metadata, "spec": spec})
        await self.passes(6)
        await self.passes(_SETTLE, step=5)
        for node in self.nodes[1:]:
            await self.cordon(node, unschedulable=False)
        self.source = ObjectName("default", text(await self.status(), "podName"))
        assert (self.guests.running, self.size) == ([self.source.name], SMALL)

    async def start_runtime(self) -> None:
        extender = DirectClient(self.scheduler.for_pods, "http://extender")
        nodes = frozenset(self.nodes)
        deps = NodeDependencies(self.api.client(), self.network, self.guests, self.clock, self._state, None)
        self._runtime = asyncio.ensure_future(Runtime(deps, extender, nodes, sidecars=False).run())

    async def kill_runtime(self) -> None:
        assert self._runtime is not None
        assert not self._runtime.done(), self._runtime
        self._runtime.cancel()
        await asyncio.wait((self._runtime,))

    async def close(self) -> None:
        await self.agents.follow({})
        await self.scheduler.kill()
        await self.kill_runtime()
        self.api.server.close()

    # Time -----------------------------------------------------------------------------------------------------------

    async def passes(self, span: float, step: float = STEP) -> None:
        """Advance the time, and let every component act."""
        await self.settle()
        while span > 0:
            self.clock.jump(min(step, span))
            await self.settle()
            span -= step

    async def settle(self) -> None:
        await self._idle()
        if not self.api.is_away:
            with suppress(ApiUnknownError):  # it has just gone away
                await self.agents.follow(await self._attended())
            await self._idle()
        self.check()

    async def _idle(self) -> None:
        idle = 0
        while idle < QUIET_ROUNDS:
            await asyncio.sleep(0)
            garbage_collector = self.api.server.garbage_collector
            lines = self.scheduler.for_agents.busy + self.scheduler.for_pods.busy
            busy = self.api.busy or lines or not garbage_collector.idle or not loop_is_quiet()
            idle = 0 if busy else idle + 1
            if not garbage_collector.idle:
                garbage_collector.step()

    async def _attended(self) -> dict[ObjectName, Json]:
        """The pods in which an agent runs."""
        running = {name_of(each): each for each in await self.pods() if text(each, "status", "phase") == "Running"}
        return {name: each for name, each in running.items() if LABEL_VM_NAME in child(each, "metadata", "labels")}

    # What is so -----------------------------------------------------------------------------------------------------

    def check(self) -> None:
        """Check the invariants after a step."""
        assert self.guests.doubled == []
        ledger = self.ledger
        if ledger is not None and ledger.is_ready:
            assert violations(ledger, self._truth(ledger)) == []
            assert self.is_forced or overcommitted(ledger) == {}
            if self.follows:
                self._check_requests(self._truth(ledger))

    def _check_requests(self, truth: Mapping[str, VmTruth]) -> None:
        """Pod requests cover what agents hold, except for the size at start, which is never refused."""
        pods = self.api.objects("pods")
        for pod in pods:
            if uid_of(pod) in truth:
                held, asked = truth[uid_of(pod)].permit, requests_of(pod)
                start = self._starts.setdefault(uid_of(pod), held)
                if start.within(asked):
                    start = self._starts[uid_of(pod)] = ZERO
                assert held.within(asked.at_least(start)), (name_of(pod), held, asked, start)
        for node in self.nodes:
            promised = Resources.sum(requests_of(pod) for pod in pods if node_of(pod) == node and not has_finished(pod))
            assert self.is_forced or promised.within(ALLOCATABLE), (node, promised)

    def _truth(self, ledger: Ledger) -> dict[str, VmTruth]:
        truth = {}
        for name, agent in self.agents.by_pod.items():
            has, ceiling = self.guests.by_pod[name.name].has, agent.runner.state.scheduler.ceiling
            if has.phase is GuestPhase.RUNNING and agent.uid in ledger.claims:
                guest = Resources(has.cpu, has.mem)
                truth[agent.uid] = VmTruth(guest, guest if ceiling is None else ceiling)
        return truth

    @property
    def ledger(self) -> Ledger | None:
        return None if self.scheduler.parts is None else self.scheduler.parts.context.ledger

    @property
    def size(self) -> Resources:
        """Size of the only running guest."""
        (running,) = self.guests.running
        has = self.guests.by_pod[running].has
        return Resources(has.cpu, has.mem)

    async def status(self) -> Json:
        (found,) = [each for each in self.api.objects("virtualmachines", VM_GROUP) if name_of(each) == DB]
        return child(found, "status")

    async def pods(self) -> list[Json]:
        return self.api.objects("pods")

    async def migrations(self) -> list[Json]:
        return self.api.objects("virtualmachinemigrations", VM_GROUP)

    async def the_migration(self) -> ObjectName:
        """The only one that has not ended."""
        (found,) = [each for each in await self.migrations() if text(each, "status", "phase") in {"Pending", "Running"}]
        return name_of(found)

    async def outcomes(self) -> list[tuple[str, str]]:
        """Phase and reason of each migration, the oldest first."""
        found = sorted(await self.migrations(), key=lambda each: name_of(each).name)
        return [
            (text(each, "status", "phase"), text(said, "reason"))
            for each in found
            for said in items(each, "status", "conditions")
        ]

    async def said(self) -> set[str]:
        """The reasons of all events on the VM about migrations."""
        events = [each for each in (await self.client.list(EVENTS)).objects if _is_about_db(each)]
        return {text(each, "reason") for each in events if text(each, "reason").startswith("Migrat")}

    # What people and others do --------------------------------------------------------------------------------------

    async def cordon(self, node: str, *, unschedulable: bool = True) -> None:
        body: Json = {"spec": {"unschedulable": unschedulable}}
        await self.client.merge_patch(NODES, ObjectName("", node), body)

    async def close_to_vms(self, node: str, way: str) -> None:
        """Close the node to VMs, with a control plane's taint or an unknown Ready condition."""
        if way == "tainted":
            taint: Json = {"key": "node-role.kubernetes.io/control-plane", "effect": "NoSchedule"}
            await self.client.merge_patch(NODES, ObjectName("", node), {"spec": {"taints": [taint]}})
        else:
            unknown: Json = {"type": "Ready", "status": "Unknown", "reason": "NodeStatusUnknown"}
            body: Json = {"status": {"conditions": [unknown]}}
            await self.client.merge_patch(NODES, ObjectName("", node), body, "status")

    async def occupy(self, node: str, cpu: str, name: ObjectName = FOREIGN) -> None:
        """A pod of another scheduler takes room on a node."""
        container: Json = {"name": "c", "image": "i", "resources": {"requests": {"cpu": cpu, "memory": "1Gi"}}}
        spec: Json = {"schedulerName": "default-scheduler", "nodeName": node, "containers": [container]}
        await self.client.create(PODS, "default", {"metadata": {"name": name.name}, "spec": spec})

    async def vacate(self, name: ObjectName = FOREIGN) -> None:
        if any(name_of(each) == name for each in await self.pods()):
            await self.client.delete(PODS, name)

    async def cancel(self) -> None:
        await self.client.delete(MIGRATIONS, await self.the_migration())

    async def order_again(self) -> None:
        """The same order, given twice."""
        known = await self.client.get(MIGRATIONS, await self.the_migration())
        metadata: Json = {"name": "again", "annotations": annotations_of(known), "labels": labels_of(known)}
        spec = child(known, "spec")
        await self.client.create(MIGRATIONS, "default", {**_kind(known), "metadata": metadata, "spec": spec})

    # How far a migration has come -----------------------------------------------------------------------------------

    async def preparing(self) -> None:
        """A person has the VM moved to n2; its last resize keeps it from being sent yet."""
        self.resizes = self.guests.by_pod[self.source.name].stops = asyncio.Event()
        self.agents.demand.cores = 1.4
        await self.passes(6)
        kind: Json = {"apiVersion": "vm.neon.tech/v1", "kind": "VirtualMachineMigration"}
        metadata: Json = {"name": "by-hand", "annotations": {ANNOTATION_TARGET_NODE: "n2"}}
        spec: Json = {"vmName": "db", "completionTimeout": 300}
        await self.client.create(MIGRATIONS, "default", {**kind, "metadata": metadata, "spec": spec})
        await self.passes(3)
        assert ((await self.status())["phase"], self.guests.is_anyone_moving) == ("PreMigrating", False)
        self._note_target()
        assert self.target.has.phase is GuestPhase.RECEIVING

    async def sending(self) -> None:
        """The VM's node was too full, the scheduler migrates the VM, and the guest is being sent."""
        await self.occupy("n1", "5500m")
        await self.passes(14)
        assert ((await self.status())["phase"], self.guests.is_anyone_moving) == ("Migrating", True)
        self._note_target()

    def _note_target(self) -> None:
        (name,) = self.guests.by_pod.keys() - {self.source.name}
        self.target = self.guests.by_pod[name]

    async def arrived(self) -> None:
        """The guest runs in the target, and no object shows it yet."""
        await self.sending()
        self.guests.moving.arrive()

    async def finish(self) -> None:
        """Deliver everything in flight, until all migrations have ended."""
        self.resizes.set()
        for _ in range(80):
            await self.passes(1, step=1.0)
            if self.guests.is_anyone_moving:
                self.guests.moving.arrive()
            elif await self._is_at_rest():
                return
        raise AssertionError("it never ends")

    async def _is_at_rest(self) -> bool:
        if self.api.is_away or len(self.guests.running) != 1:
            return False
        active = [each for each in await self.migrations() if is_terminating(each) or not _has_ended(each)]
        return not active and (await self.status())["phase"] == "Running"

    # What must hold in the end --------------------------------------------------------------------------------------

    async def assert_well(self, *said: str) -> None:
        """All that must hold once a migration has ended, however it did; ``said`` are the reasons of its events."""
        await self.assert_lives()
        assert sorted(await self.said()) == sorted({"MigrationStarted", *said})

    async def assert_lives(self) -> None:
        """Check that one guest runs, the VM scales, and the ledger is correct."""
        await self.vacate()
        for cores, size in ((1.0, SMALL), (2.0, LARGE), (1.0, SMALL)):
            self.agents.demand.cores = cores
            await self._follows(size)
        await self.passes(_SETTLE + (_LOWERED if self.follows else 0), step=5)
        await self._assert_books_are_true(SMALL)

    async def _follows(self, size: Resources) -> None:
        """Within twelve seconds the VM has this size; the thorough run sees too that it keeps it so long."""
        for _ in range(12):
            await self.passes(1, step=1)
            if not THOROUGH and await self._stands() == (size, "Running"):
                return
        assert await self._stands() == (size, "Running")

    async def _stands(self) -> tuple[Resources | None, object]:
        """The size and phase of the VM; without a size where another guest runs than its status says."""
        status = await self.status()
        return self.size if self.guests.running == [status.get("podName")] else None, status["phase"]

    async def _assert_books_are_true(self, size: Resources) -> None:
        """Each existing pod is reserved once, on its node, and nothing else is."""
        ledger = self.ledger
        assert ledger is not None
        found = [each for each in await self.pods() if not has_finished(each)]
        (own,) = [each for each in found if LABEL_VM_NAME in child(each, "metadata", "labels")]
        assert (name_of(own).name, is_terminating(own)) == (text(await self.status(), "podName"), False)
        assert {uid: claim.node for uid, claim in ledger.claims.items()} == {uid_of(e): node_of(e) for e in found}
        assert ledger.claims[uid_of(own)].reserved == size
        assert not self.follows or requests_of(own) == size
        assert [each.name for each in ledger.migrations.values() if each.is_active] == []
        assert list(self.network.plugged) == [name_of(own)]


def _has_ended(migration: Json) -> bool:
    return text(migration, "status", "phase") in {"Succeeded", "Failed"}


def _kind(found: Json) -> Json:
    return {key: found[key] for key in ("apiVersion", "kind")}


def _is_about_db(event: Json) -> bool:
    about = child(event, "involvedObject")
    return (text(about, "kind"), text(about, "name")) == ("VirtualMachine", "db")


@asynccontextmanager
async def world_in(
    state: Path, nodes: tuple[str, ...] = ("n1", "n2"), pod_requests: Json | None = None, *, follows: bool = False
) -> AsyncIterator[World]:
    """The VM runs on the first node, and the others are empty. Its pods request ``pod_requests``, or follow it."""
    world = World(state, nodes, pod_requests, follows=follows)
    await world.open()
    try:
        yield world
    finally:
        await world.close()
