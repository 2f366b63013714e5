"""Two real guests on one node: the idle one gives back what the other needs, and no transaction fails (B.17)."""

from __future__ import annotations

import asyncio
import sys
import time
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Final

import pytest
from rich.console import Console

from agent.core.state import LEAN_PERIOD
from deploy.kube.informer import Informer, ObjectChange
from deploy.local.cluster.spec import ClusterSpec
from protocol.kubernetes.conditions import is_condition_true
from protocol.kubernetes.objects import Json, child, items, name_of, text
from protocol.kubernetes.resources import PODS, VIRTUAL_MACHINES
from protocol.messages import ObjectName
from protocol.names import ANNOTATION_BOUNDS, ANNOTATION_CONFIG
from protocol.runtime.clock import SystemClock, poll_until
from protocol.units import MilliCpu, Seconds
from protocol.virtual_machine import VirtualMachine, parse_virtual_machine
from scripts.autoscale.demonstration.pgbench import DatabaseServer, run_pgbench
from scripts.autoscale.demonstration.vm_database import create_vm, database_of, postgres_vm
from scripts.autoscale.site import Site
from scripts.autoscale.stages import fresh_cluster
from tests.slowness import Slowness

pytestmark = pytest.mark.vm

IDLE, BUSY = ObjectName("default", "idle"), ObjectName("default", "busy")
CPUS: Final = 3
NODE: Final = ClusterSpec(nodes=1, node_cpu="6", node_memory="4Gi")
"""Room for 5.5 vCPUs: not for both VMs at their maximum."""

SMALL: Final = '{"min": {"cpu": 1, "mem": "256Mi"}, "max": {"cpu": 1, "mem": "512Mi"}}'
"""Bounds under which nothing is lacking while the guests boot."""

NIMBLE: Final = '{"smoothing": {"cpu": [{"hold": {"window": 4}}], "memory": [{"hold": {"window": 4}}]}}'
"""A policy by which the busy VM does not keep what it needed to boot."""

BOOT, TICK, WITHIN, LOAD = Seconds(400.0), Seconds(15.0), 3.0, 45


class Neighbours:
    """Both VMs, with the times of what is seen of them."""

    def __init__(self, site: Site) -> None:
        self.site, self.clock = site, SystemClock()
        self.vms = Informer(site.client, VIRTUAL_MACHINES, self.clock)
        self.vms.listen(self._see)
        self.asked_at: float | None = None
        self.gave_at: float | None = None
        self.had_all = False

    def vm(self, name: ObjectName) -> VirtualMachine:
        return parse_virtual_machine(self.vms.objects[name])

    async def wait(self, what: str, seconds: float, *, until: object) -> None:
        assert callable(until)
        assert await poll_until(until, self.clock, Seconds(seconds)), f"not seen: {what}; {self.sizes()}"

    def sizes(self) -> dict[str, str]:
        vms = [parse_virtual_machine(vm) for vm in self.vms.objects.values()]
        return {vm.name.name: f"has {vm.actual}, ordered {vm.use}, at most {vm.bounds.max}" for vm in vms}

    async def are_up(self) -> bool:
        return all(is_condition_true(self.vms.get(name) or {}, "Available") for name in (IDLE, BUSY))

    async def is_offered(self) -> bool:
        """The idle VM's agent could give, or did already."""
        return self.gave_at is not None or bool(child(await self._giving(), "least"))

    async def _giving(self) -> Json:
        """The part of the idle VM's explanation about room for its neighbour."""
        for pod in (await self.site.client.list(PODS, IDLE.namespace)).objects:
            explanation = await self.site.of_agent(pod, "/explain") or {}
            if text(explanation, "vm") == str(IDLE):
                return child(explanation, "giving")
        return {}

    async def are_calm(self) -> bool:
        """Both have no more than their least CPU."""
        vms = [self.vm(name) for name in (IDLE, BUSY)]
        return all(vm.actual is not None and vm.use.cpu == MilliCpu(1000) == vm.actual.cpu for vm in vms)

    async def is_served(self) -> bool:
        """The busy VM has its maximum, and no VM is denied."""
        actual = self.vm(BUSY).actual
        return actual is not None and actual.cpu == MilliCpu(1000 * CPUS) and not await self._lacks()

    async def is_asked(self) -> bool:
        return self.asked_at is not None

    async def watch(self) -> None:
        """Notes when the idle VM's agent was first asked for room."""
        while self.asked_at is None:
            lean = (await self._giving()).get("lean_seconds")
            if isinstance(lean, int | float):
                self.asked_at = time.monotonic() - (LEAN_PERIOD - lean)
            await asyncio.sleep(0.05)

    async def _lacks(self) -> bool:
        pods = [
            pod for node in items(await self.site.of_scheduler("/nodes") or {}, "nodes") for pod in items(node, "pods")
        ]
        # On a busy machine the scheduler may not answer for a moment.
        return not pods or any(MilliCpu.parse(text(pod, "denied", "cpu")).value for pod in pods)

    def _see(self, change: ObjectChange) -> None:
        if change.after is None or name_of(change.after) != IDLE or self.gave_at is not None:
            return
        has_all = parse_virtual_machine(change.after).use.cpu == MilliCpu(1000 * CPUS)
        if self.had_all and not has_all:
            self.gave_at = time.monotonic()
        self.had_all = has_all


def _vm(name: ObjectName, annotation: str, value: str) -> Json:
    made = postgres_vm(name, cpus=CPUS, slots=4)
    return {**made, "metadata": {**child(made, "metadata"), "annotations": {annotation: value}}}


async def test_idle_guest_gives_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """From the answer that asks the agent to the idle VM's smaller ``use``, which the agent orders.

    Both are noted from the order for more CPU on: a moment's need of the busy VM may have its neighbour asked before
    the load. How soon the idle VM then has less is its kernel's affair; the other VM waits for that.
    """
    monkeypatch.setenv("AUTOSCALE_HOME", str(tmp_path))
    console, began = Console(file=sys.stderr), time.monotonic()
    async with (
        fresh_cluster("neighbours", NODE, console) as site,
        AsyncExitStack() as stack,
        asyncio.TaskGroup() as tasks,
    ):
        both = Neighbours(site)
        watching = tasks.create_task(both.vms.run())
        await create_vm(site.client, _vm(IDLE, ANNOTATION_BOUNDS, SMALL))
        await create_vm(site.client, _vm(BUSY, ANNOTATION_CONFIG, NIMBLE))
        await both.wait("both are up", BOOT, until=both.are_up)
        idle, busy = [
            await stack.enter_async_context(database_of(site, both.vms.objects[name])) for name in (IDLE, BUSY)
        ]
        light, heavy = tmp_path / "light.sql", tmp_path / "heavy.sql"
        light.write_text("SELECT 1;\n")
        # Its work is all in the guest: on a busy machine a client that asks often would be the limit.
        heavy.write_text("SELECT count(*) FROM generate_series(1, 400000);\n")
        await both.wait("both are calm", 60, until=both.are_calm)
        # What a person orders its agent keeps until less is proven to be enough, which takes minutes.
        larger = {"metadata": {"annotations": {ANNOTATION_BOUNDS: None}}, "spec": {"guest": {"cpus": {"use": CPUS}}}}
        await site.client.merge_patch(VIRTUAL_MACHINES, IDLE, larger)
        notes = tasks.create_task(both.watch())
        # Before the other load, because the guest needs its CPU for a moment when its client connects.
        loads = [tasks.create_task(_load(idle, "-c 1 -R 1", 2 * LOAD, light))]
        await asyncio.sleep(2.0)
        await both.wait("the idle VM could give", 60, until=both.is_offered)
        # By now the scheduler knows of the offer: an agent sends a request at least this often.
        await asyncio.sleep(TICK)
        print(f"ready after {time.monotonic() - began:.0f} s")
        with Slowness() as slow:
            loads.append(tasks.create_task(_load(busy, "-c 4", LOAD, heavy)))
            await both.wait("the busy VM has what it needs", LOAD, until=both.is_served)
            assert [await load for load in loads] == [0, 0]
        await both.wait("the idle VM's agent was asked", 5, until=both.is_asked)
        assert both.asked_at is not None
        assert both.gave_at is not None
        print(f"gave {both.gave_at - both.asked_at:.2f} s after it was asked")
        assert both.gave_at - both.asked_at < slow.stretched(WITHIN)
        notes.cancel()
        watching.cancel()


async def _load(server: DatabaseServer, arguments: str, seconds: int, query: Path) -> int:
    """The number of failed transactions of pgbench, which runs ``query``."""
    options = [*arguments.split(), "-n", "-T", str(seconds), "-f", str(query), "postgres"]
    outcome = await run_pgbench(server, options, lambda _: None, Seconds(seconds + 60.0))
    assert outcome.transactions > 0
    assert not outcome.problem
    return outcome.failed
