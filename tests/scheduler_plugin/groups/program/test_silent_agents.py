"""Agents that do not answer, such as all of a node that is down, hold up no group but their own."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from protocol.guest.database import DatabaseState
from protocol.kubernetes.objects import Json, JsonObject, integer, name_of
from protocol.kubernetes.resources import HORIZONTAL_AUTOSCALERS, HVPAS, VIRTUAL_MACHINES, VM_GROUPS
from protocol.units import Seconds
from scheduler_plugin.groups.controllers.member_agents import MemberObservations
from scheduler_plugin.groups.core.replicas.scaling import AgentCpuCount
from scheduler_plugin.groups.objects.vm_use import GuestUse, with_annotated_status
from tests.fake_clock import FakeClock
from tests.scheduler_plugin.groups.objects.sample_group import shop
from tests.scheduler_plugin.groups.program.cluster import condition_of
from tests.scheduler_plugin.groups.program.test_in_place import VM
from tests.scheduler_plugin.groups.program.test_vm_recommender import AGENTS
from tests.scheduler_plugin.groups.program.vm_group_story import Databases, story

MANY = 15
SCALING: Json = {"minReplicas": 1, "maxReplicas": 3, "window": "10s"}


@dataclass
class PartlySilent(Databases):
    """VMs whose names begin with ``silent`` answer nothing, until the caller gives up."""

    silent: str = "nobody"
    waited: int = 0

    async def database(self, vm: JsonObject) -> DatabaseState | None:
        await self._wait(vm)
        return await super().database(vm)

    async def cpu_count(self, vm: JsonObject) -> AgentCpuCount | None:
        await self._wait(vm)
        return await super().cpu_count(vm)

    async def use(self, vm: JsonObject) -> GuestUse:
        await self._wait(vm)
        return await super().use(vm)

    async def _wait(self, vm: JsonObject) -> None:
        if name_of(vm).name.startswith(self.silent):
            self.waited += 1
            await self.clock.sleep(Seconds(5.0))


async def test_other_groups_still_scale_by_load() -> None:
    """Each group with silent agents held a worker for seconds; the others were sampled too rarely to know their
    load.
    """
    async with story() as run:
        run.databases = databases = PartlySilent(run.clock)
        await run.start()
        for number in range(MANY):
            body = shop(replicas=1, scaling=SCALING)
            body["metadata"] = {"name": f"silent-{number}", "namespace": "default"}
            await run.cluster.request("POST", VM_GROUPS.path("default"), body)
        await run.create(replicas=1, scaling=SCALING)
        await run.pass_time(10)
        databases.silent, databases.busy = "silent", {"shop-replica-0": 3.9}
        await run.clock.advance(60)
        assert integer(await run.cluster.get(VM_GROUPS, "shop"), "spec", "replicas") == 2


async def test_overloaded_database_still_scales_out() -> None:
    """The guest is too busy to report on its database, and the agent reports that; it still knows the guest's load."""
    async with story() as run:
        await run.start()
        await run.create(replicas=1, scaling=SCALING)
        await run.pass_time(10)
        run.databases.said, run.databases.busy = {"shop-replica-0": None}, {"shop-replica-0": 3.9}
        await run.clock.advance(60)
        assert integer(await run.cluster.get(VM_GROUPS, "shop"), "spec", "replicas") == 2


async def test_refused_scaling_stops_nothing_else() -> None:
    """A policy limits the replicas: under load the group kept neither its members nor its endpoint up to date."""
    async with story() as run:
        way = run.cluster.connection()
        await run.start(way)
        await run.create(replicas=2, scaling=SCALING)
        await run.pass_time(10)
        way.refuse = {"virtualmachinegroups/shop/scale": 403}
        run.databases.busy = {"shop-replica-0": 3.9, "shop-replica-1": 3.9}
        await run.pass_time(30)
        run.databases.said["shop-replica-0"] = DatabaseState(is_standby=True, streaming=False)
        said = ("False", "NotWritten", "the API server refuses to scale the group to 3 replicas: 403: no")
        for _ in range(30):
            await run.pass_time(2)
            assert condition_of(await run.cluster.get(VM_GROUPS, "shop"), "Ready") == said
        assert await run.offered() == ["replica-1"]
        tried = [call for call in way.asked if call.method == "PATCH" and call.path.endswith("/scale")]
        assert len(tried) <= 4, "after its delay"
        del run.databases.said["shop-replica-0"]
        way.refuse = {"virtualmachinegroups/shop/scale": 429}
        await run.pass_time(60)
        assert condition_of(await run.cluster.get(VM_GROUPS, "shop"), "Ready")[0] == "True", "only overloaded"
        way.refuse.clear()
        await run.pass_time(60)
        assert (integer(await run.cluster.get(VM_GROUPS, "shop"), "spec", "replicas"), await run.offered()) == (
            3,
            ["replica-0", "replica-1", "replica-2"],
        )


async def test_silent_agent_is_waited_for_rarely() -> None:
    clock = FakeClock()
    databases = PartlySilent(clock, silent="silent")
    observations, vm = MemberObservations(databases, clock), {"metadata": {"name": "silent", "uid": "of-silent"}}
    for waited in (1, 1, 2):
        loads = asyncio.create_task(observations.loads([vm], Seconds(10.0)))
        await clock.advance(6)
        assert (loads.result(), databases.waited) == ({"of-silent": None}, waited)


HVPA = """
metadata: {name: web}
spec:
  hpaTemplate: {maxReplicas: 3, metrics: [{type: Resource, resource: {name: cpu, target: {averageUtilization: 50}}}]}
  targetRef: {apiVersion: vm.neon.tech/v1, kind: VirtualMachine, name: web}
"""


async def test_other_recommendations_stay_current() -> None:
    """Agents were asked one after the other."""
    async with story() as run:
        run.databases = databases = PartlySilent(run.clock, silent="silent")
        databases.busy = {"web": 0.5}
        await run.start(settings=AGENTS)
        for name in (*(f"silent-{number}" for number in range(MANY)), "web"):
            await run.cluster.make(VIRTUAL_MACHINES, VM.replace("name: db", f"name: {name}"))
            await run.cluster.make(HVPAS, HVPA.replace("name: web", f"name: {name}"))
        await run.serve("web")
        await run.clock.advance(40)
        hpa = with_annotated_status(await run.cluster.get(HORIZONTAL_AUTOSCALERS, "web"))
        assert integer(hpa, "status", "desiredReplicas") == 1
