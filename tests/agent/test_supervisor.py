"""The VMs of one process: which runners start, stop and restart."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace

from prometheus_client import CollectorRegistry, Histogram

from agent.assignments import Assignment, OwnVm, PodContainer
from agent.core.events import Fault
from agent.core.growth import WaitStage
from agent.core.policy import Policy
from agent.ports import PortError
from agent.runner import Ports, Runner
from agent.supervisor import MAX_KILLS, Supervisor
from protocol.messages import ObjectName
from tests.agent.core.story import POLICY, holding
from tests.agent.fake_ports import ASSIGNMENT, FakeDatabase, FakeGuest, FakeScheduler, FakeVmApi, Lines
from tests.fake_clock import FakeClock, settle

FIRST, SECOND = (
    Assignment(ObjectName("default", "pod/pg"), ObjectName("default", "pg"), "10.0.0.1", PodContainer("u", container))
    for container in ("c1", "c2")
)
"""A pod's container, and the one that followed it."""

OTHER = Assignment(ObjectName("default", "vm-2"), ObjectName("default", "vm-2-pod"))


class Node:
    """A node whose pods come and go as a test says."""

    unreadable: Mapping[ObjectName, str] = {}

    def __init__(self) -> None:
        self.changes: asyncio.Queue[frozenset[Assignment] | PortError | None] = asyncio.Queue()
        self.asked = 0

    async def sets(self) -> AsyncIterator[frozenset[Assignment]]:
        self.asked += 1
        while True:
            change = await self.changes.get()
            if change is None:
                return
            if isinstance(change, PortError):
                raise change
            yield change

    async def has(self, *assignments: Assignment) -> None:
        self.changes.put_nowait(frozenset(assignments))
        await settle()


class Agents:
    """One process around a node."""

    task: asyncio.Task[None]

    def __init__(self) -> None:
        self.node, self.clock, self.log = Node(), FakeClock(0.0, jitter=0.0), Lines()
        self.guests: list[FakeGuest] = []
        self.growths: dict[Assignment, Histogram] = {}
        self.kills = 0.0
        self.supervisor = Supervisor(self.node, self.make, POLICY, self.clock)

    def make(self, assignment: Assignment, policy: Policy, growths: Histogram) -> Runner:
        self.guests.append(FakeGuest(self.clock, oom_kills=self.kills))
        self.growths[assignment] = growths
        ports = Ports(self.guests[-1], FakeScheduler(), FakeVmApi(), FakeDatabase().look, self.clock)
        return Runner(assignment, ports, policy, 1, growths)


@asynccontextmanager
async def running() -> AsyncIterator[Agents]:
    agents = Agents()
    with agents.log:
        agents.task = asyncio.create_task(agents.supervisor.run())
        await settle()
        yield agents
        agents.task.cancel()
        await asyncio.gather(agents.task, return_exceptions=True)


async def test_runners_follow_the_set() -> None:
    async with running() as agents:
        assert not agents.supervisor.is_listed
        await agents.node.has(ASSIGNMENT, OTHER)
        assert set(agents.supervisor.runners) == {ASSIGNMENT, OTHER}
        first = agents.supervisor.runners[ASSIGNMENT]
        await agents.node.has(ASSIGNMENT)
        assert agents.supervisor.runners == {ASSIGNMENT: first}
        await agents.node.has(replace(ASSIGNMENT, pod_ip="10.0.0.1"))
        assert list(agents.supervisor.runners) == [replace(ASSIGNMENT, pod_ip="10.0.0.1")]


async def test_crashed_runner_restarts_alone() -> None:
    async with running() as agents:
        await agents.node.has(ASSIGNMENT, OTHER)
        broken, healthy = agents.supervisor.runners[ASSIGNMENT], agents.supervisor.runners[OTHER]
        broken.state.vm = None  # type: ignore[assignment]
        await agents.clock.advance(1.0)
        assert agents.supervisor.crashes == 1
        assert "a VM's agent crashed; restarting it" in agents.log.messages
        await agents.clock.advance(2.0)
        assert agents.supervisor.runners[ASSIGNMENT] is not broken
        assert agents.supervisor.runners[ASSIGNMENT].state.vm.observed is not None
        assert agents.supervisor.runners[OTHER] is healthy


async def test_kills_outlive_a_crash() -> None:
    """The VM ran out of memory; after a crash of its runner it shrank at once, and the count of kills fell."""
    async with running() as agents:
        await agents.node.has(ASSIGNMENT)
        (guest,) = agents.guests
        guest.oom_kills = 2.0
        await agents.clock.advance(1.0)
        broken = agents.supervisor.runners[ASSIGNMENT]
        before = broken.state.guest.kills
        broken.state.vm = None  # type: ignore[assignment]
        agents.kills = 2.0
        await agents.clock.advance(5.0)
        runner = agents.supervisor.runners[ASSIGNMENT]
        assert (agents.supervisor.crashes, runner is broken) == (1, False)
        assert (runner.state.guest.kills, before.total) == (before, 2)


async def test_growth_times_outlive_their_vm() -> None:
    async with running() as agents:
        await agents.node.has(ASSIGNMENT, OTHER)
        for assignment, took in ((ASSIGNMENT, 0.5), (OTHER, 7.0)):
            agents.growths[assignment].labels(WaitStage.SIZE).observe(took)
        await agents.node.has(OTHER)
        registry = CollectorRegistry()
        registry.register(agents.supervisor.growths)
        name, labels = "autoscale_agent_growth_seconds_bucket", {"stage": "size"}
        assert [registry.get_sample_value(name, labels | {"le": le}) for le in ("0.5", "5.0", "+Inf")] == [1, 1, 2]


async def test_failed_list_keeps_runners() -> None:
    async with running() as agents:
        await agents.node.has(ASSIGNMENT)
        runner = agents.supervisor.runners[ASSIGNMENT]
        agents.node.changes.put_nowait(PortError(Fault.NETWORK, "away"))
        await agents.clock.advance(1.0)
        assert agents.node.asked == 2
        assert agents.log.messages[-1] == "cannot list the pods of this node"
        agents.node.changes.put_nowait(None)
        await agents.clock.advance(2.0)
        assert agents.node.asked == 3
        await agents.node.has(ASSIGNMENT)
        assert agents.supervisor.runners == {ASSIGNMENT: runner}


async def test_long_watch_resumes_at_once() -> None:
    async with running() as agents:
        await agents.node.has(ASSIGNMENT)
        await agents.clock.advance(240.0)
        agents.node.changes.put_nowait(None)
        await settle()
        assert agents.node.asked == 2
        assert "cannot list the pods of this node" not in agents.log.messages


async def test_short_watches_back_off() -> None:
    async with running() as agents:
        for _ in range(20):
            agents.node.changes.put_nowait(None)
        await agents.clock.advance(0.9 + 2.0 + 4.0)
        assert agents.node.asked == 3, "at 0, 1 and 3 seconds"
        await agents.clock.advance(80.0)
        assert agents.node.asked == 8, "then at 7, 15, 31, 51 and 71 seconds"


async def test_long_run_resets_crash_backoff() -> None:
    async with running() as agents:

        async def breaks() -> None:
            agents.supervisor.runners[ASSIGNMENT].state.vm = None  # type: ignore[assignment]
            await agents.clock.advance(1.0)

        await agents.node.has(ASSIGNMENT)
        for wait in (2.0, 4.0, 8.0):
            await breaks()
            await agents.clock.advance(wait)
        assert (agents.supervisor.crashes, len(agents.guests)) == (3, 4), "2, 4 and 8 seconds later"
        await agents.clock.advance(600.0)
        await breaks()
        await agents.clock.advance(2.0)
        assert (agents.supervisor.crashes, len(agents.guests)) == (4, 5), "2 seconds later, not 16"


async def test_new_policy_reaches_all_runners() -> None:
    async with running() as agents:
        await agents.node.has(ASSIGNMENT)
        changed = replace(POLICY, smoothing=holding(90.0))
        agents.supervisor.use_policy(changed)
        await agents.node.has(ASSIGNMENT, OTHER)
        assert {runner.state.policy for runner in agents.supervisor.runners.values()} == {changed}
        agents.supervisor.settings_refused("policy.yaml: gone")
        assert all(runner.state.settings_failure for runner in agents.supervisor.runners.values())


async def test_sidecar_keeps_its_own_vm() -> None:
    sets = OwnVm(ASSIGNMENT).sets()
    assert await anext(sets) == frozenset({ASSIGNMENT})
    waiting = asyncio.ensure_future(anext(sets))
    await settle()
    assert not waiting.done()
    waiting.cancel()


async def test_killed_container_is_followed_by_larger_one() -> None:
    """The kernel kills a pod's container, and its agent ends with it; the next agent still learns of the kill."""
    async with running() as agents:
        agents.kills = 1.0
        await agents.node.has(FIRST)
        await agents.clock.advance(2.0)
        await agents.node.has()
        agents.kills = 2.0
        await agents.node.has(SECOND)
        await agents.clock.advance(2.0)
        kills = agents.supervisor.runners[SECOND].state.guest.kills
        assert (kills.counter, kills.total) == (2.0, 1)


async def test_kills_of_ended_pods_are_forgotten() -> None:
    pods = [replace(FIRST, container=PodContainer(f"u{number}", "c")) for number in range(MAX_KILLS + 1)]
    async with running() as agents:
        agents.kills = 1.0
        await agents.node.has(*pods)
        await agents.clock.advance(1.0)
        await agents.node.has()
        agents.kills = 2.0
        await agents.node.has(*pods)
        await agents.clock.advance(1.0)
        assert sum(runner.state.guest.kills.total for runner in agents.supervisor.runners.values()) == MAX_KILLS


async def test_kill_counts_after_replacement_in_one_event() -> None:
    """After an outage of the API the first list may show the next container already."""
    async with running() as agents:
        agents.kills = 1.0
        await agents.node.has(FIRST)
        await agents.clock.advance(2.0)
        agents.kills = 2.0
        await agents.node.has(SECOND)
        await agents.clock.advance(2.0)
        kills = agents.supervisor.runners[SECOND].state.guest.kills
        assert (kills.counter, kills.total) == (2.0, 1)


async def test_pod_that_returns_at_once_is_listed() -> None:
    """Its first runner has not ended yet when the second begins; policies must still reach the second."""
    async with running() as agents:
        await agents.node.has(FIRST)
        first = agents.supervisor.runners[FIRST]
        for wanted in (frozenset[Assignment](), frozenset({FIRST})):
            agents.node.changes.put_nowait(wanted)
        await settle()
        assert agents.supervisor.runners[FIRST] is not first
        assert len(agents.guests) == 2


async def test_runner_that_fails_to_end_is_not_restarted() -> None:
    """Its pod is gone; and the process could not end either."""

    def fails() -> None:
        raise ValueError("cannot close")

    async with running() as agents:
        await agents.node.has(FIRST, OTHER)
        for guest in agents.guests:
            guest.close = fails  # type: ignore[method-assign]
        await agents.node.has(OTHER)
        await agents.clock.advance(10.0)
        assert (len(agents.guests), agents.supervisor.crashes) == (2, 1)
        agents.task.cancel()
        await settle()
        assert agents.task.done()
