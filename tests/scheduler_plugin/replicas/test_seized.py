"""The leader is seized at each of its writes: killed, stopped or cut off, before the write takes effect or after.

Or the write lands late. Whatever becomes of it, no permit is lost or granted twice, and the next leader's books are
right.
"""

from __future__ import annotations

import asyncio
from itertools import count, product
from typing import Any, Final

import pytest

from protocol.kubernetes.api import ApiCall
from protocol.units import ZERO, Resources, Seconds
from scheduler_plugin.ledger.invariants import VmTruth, violations
from tests.examples import THOROUGH
from tests.fake_clock import FakeClock, settle
from tests.scheduler_plugin.fake_cluster import NODES, PODS, VMS, FakeCluster
from tests.scheduler_plugin.objects import Obj, node, vm, vm_pod
from tests.scheduler_plugin.replicas.pair import Process, Replicas, replicas
from tests.scheduler_plugin.replicas.stopped_process import Fate

TOTAL: Final = Resources.parse("10", "40Gi")
FATES: Final = {
    "before it takes effect": Fate(late=None, is_answered=False),
    "before its answer": Fate(is_answered=False),
    "and it lands late": Fate(late=Seconds(9.0), is_answered=False),
}
HARMS: Final = ("killed", "stopped", "cut off")
WRITES: Final = ("PATCH virtualmachines", "POST pods", "PATCH virtualmachines", "PATCH virtualmachines")
"""What the story makes the leader write: a permit, a binding, a larger permit, a smaller one."""


class Story:
    """A VM that grows, a second one on the same node that grows, and the first one that shrinks."""

    def __init__(self, run: Replicas) -> None:
        self.run = run
        self.held = {name: Resources.parse("1", "4Gi") for name in ("db", "other")}
        self.pods: dict[str, Obj] = {}
        self.sequence = count(1)

    async def play(self) -> None:
        await self.ask("db", 4)
        await self.bind("other")
        await self.ask("other", 5)
        await self.ask("db", 2)
        await self.run.clock.advance(2)

    async def ask(self, name: str, cpu: int) -> None:
        """The agent uses at most what it requests, and uses less before it reports a decrease."""
        wanted = Resources.parse(cpu, "4Gi")
        self.held[name] = self.held[name].at_most(wanted)
        answer = await self.run.ask(self.pods[name], cpu, 4, sequence=next(self.sequence))
        if answer is not None and answer.status_code == 200:
            self.held[name] = Resources.parse(answer.json()["permit"]["vCPUs"], "4Gi").at_most(wanted)

    async def bind(self, name: str) -> None:
        meta = self.pods[name]["metadata"]
        args = {"PodName": meta["name"], "PodNamespace": "default", "PodUID": meta["uid"], "Node": "n1"}
        served = self.run.served
        if served is not None:
            asking = asyncio.create_task(served.client.post("http://extender/bind", json=args))
            await self.run.clock.advance(5)
            assert asking.done() or not served.way.goes.is_set()

    def check(self) -> None:
        """Check that agents hold no more than the node has, and no more than the leader has reserved for them."""
        there = {
            name: self.run.cluster.get(PODS, "default", f"{name}-pod")["spec"].get("nodeName") for name in self.pods
        }
        assert Resources.sum(self.held[name] for name, on in there.items() if on).within(TOTAL)
        if self.run.leader is None:
            return
        ledger = self.run.leader.replica.context.ledger
        world = {
            str(self.pods[name]["metadata"]["uid"]): VmTruth(ZERO, self.held[name]) for name, on in there.items() if on
        }
        assert violations(ledger, world) == []


async def stage(run: Replicas) -> Story:
    story = Story(run)
    for name, on in (("db", "n1"), ("other", None)):
        run.cluster.put(VMS, vm(name))
        story.pods[name] = run.cluster.put(PODS, vm_pod(name, on))
    await run.clock.advance(60)
    return story


async def harm(run: Replicas, leader: Process, how: str) -> None:
    if how == "killed":
        await run.end(leader, Process.kill)
    elif how == "stopped":
        leader.stop()
    else:
        leader.way.is_cut = True


def kind_of(call: ApiCall) -> str:
    """The method and the plural of what is written."""
    rest = call.path.partition("/v1/")[2].removeprefix("namespaces/").split("/")
    return f"{call.method} {rest[1] if len(rest) > 2 else rest[0]}"


def seizing(run: Replicas, leader: Process, at: int, how: str, fate: Fate) -> Any:
    """A fate for the leader's writes: at the write with that number it is seized."""
    made = 0

    def decide(call: ApiCall) -> Fate:
        nonlocal made
        if kind_of(call) not in WRITES:
            return Fate()
        made += 1
        if made != at + 1:
            return Fate()
        asyncio.get_running_loop().create_task(harm(run, leader, how))
        return fate

    return decide


CASES: Final = list(product(range(len(WRITES)), HARMS, FATES))


@pytest.mark.parametrize(("at", "how", "fate"), CASES if THOROUGH else CASES[::4])
async def test_seizure_at_any_write_is_safe(at: int, how: str, fate: str) -> None:
    clock, cluster = FakeClock(), FakeCluster()
    cluster.put(NODES, node("n1"))
    async with replicas(cluster, clock) as run:
        story = await stage(run)
        leader = run.running[0]
        leader.way.fate = seizing(run, leader, at, how, FATES[fate])
        await story.play()
        story.check()
        for cpu in (3, 6, 6, 6):
            await clock.advance(6)
            await story.bind("other")
            await story.ask("db", cpu)
            story.check()
        assert run.leader is run.running[-1]
        leader.resume()
        leader.way.is_cut = False
        await settle()
        for _ in range(5):
            await clock.advance(10)
            await story.ask("other", 1)
            story.check()
        await story.ask("db", 8)
        assert story.held["db"].cpu.as_cores == 8, "what is asked for no more is free again"
        assert sum(each.leads for each in run.running) == 1


async def test_the_story_makes_all_these_writes() -> None:
    clock, cluster = FakeClock(), FakeCluster()
    cluster.put(NODES, node("n1"))
    async with replicas(cluster, clock) as run:
        story = await stage(run)
        before = len(run.running[0].way.sent)
        await story.play()
        made = [kind_of(each) for each in run.running[0].way.sent[before:] if each.method != "GET"]
        assert tuple(each for each in made if each in WRITES) == WRITES
