"""The reclaimer in the role of a guest's monitor: questions, trials, responses, and the end of a hold."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from agent.adapters.pod_reclaim import PodReclaim
from agent.core.events import MonitorAnswered, MonitorJoined
from agent.monitor_session import MonitorSession
from agent.ports import MonitorConnection
from agent.reclaimer.messages import HoldReply, read_hold, write_line
from protocol.guest.monitor_messages import (
    DownscaleRequest,
    DownscaleResult,
    NotUnderstood,
    ToMonitor,
    UpscaleConfirmation,
    UpscaleNotification,
)
from protocol.units import Resources
from tests.agent.cgroups.trees import CONTAINER, MIB, UID, Layout, Tree
from tests.fake_clock import FakeClock, settle

V1, V2 = Layout(is_v2=False, is_systemd=False), Layout(is_v2=True, is_systemd=True)
BOTH = pytest.mark.parametrize("layout", [V1, V2], ids=str)
TARGET = 320 * MIB
"""The container has a limit of 512 MiB and uses 400 of it."""

YES = "the pod stayed below that for 20 s"


@dataclass
class FakeReclaimer:
    """A reclaimer that brings the pod to the requested size by default, or by ``at_once`` per request at
    most, or not at all. ``held`` is None without hold.
    """

    tree: Tree
    path: Path
    answer: bytes | None = None
    is_silent: bool = False
    does_reclaim: bool = True
    at_once: int | None = None
    sizes: list[int] = field(default_factory=list)
    held: int | None = None

    async def converse(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while line := await reader.readline():
            self.held = read_hold(line).size
            self.sizes.append(self.held)
            if self.does_reclaim:
                use(self.tree, self.held if self.at_once is None else max(self.held, used(self.tree) - self.at_once))
            if not self.is_silent:
                writer.write(self.answer if self.answer is not None else write_line(HoldReply(self.held)))
            if self.answer == b"":
                break
        self.held = None
        writer.close()


def use(tree: Tree, amount: int) -> None:
    """Set the usage of the pod and of its container."""
    for of_pod in (True, False):
        tree.write(usage_file(tree), f"{amount}\n", of_pod=of_pod)


def used(tree: Tree) -> int:
    return int(tree.file(usage_file(tree)).read_text())


def usage_file(tree: Tree) -> str:
    return "memory.current" if tree.layout.is_v2 else "memory.usage_in_bytes"


def limited_to(tree: Tree, amount: int) -> None:
    name = "memory.max" if tree.layout.is_v2 else "memory.limit_in_bytes"
    for of_pod in (True, False):
        tree.write(name, f"{amount}\n", of_pod=of_pod)


def reread(tree: Tree, pages: int) -> None:
    """The container has read this many pages again since it began."""
    stat = tree.file("memory.stat").read_text()
    tree.write("memory.stat", stat.replace("workingset_refault_file 1000\n", f"workingset_refault_file {pages}\n"))


@pytest.fixture
async def reclaimer(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[FakeReclaimer]:
    layout = request.getfixturevalue("layout") if "layout" in request.fixturenames else V2
    made = FakeReclaimer(Tree(tmp_path / "cgroup", layout).make(), tmp_path / "reclaimer.sock")
    async with await asyncio.start_unix_server(made.converse, made.path):
        yield made


@dataclass
class Agent:
    """The agent's end of a conversation."""

    connection: MonitorConnection
    clock: FakeClock
    number: int = 0

    async def ask(self, message: ToMonitor) -> None:
        self.number += 2
        await self.connection.send(message, self.number)
        await settle()

    async def shrink(self, mem: int = TARGET) -> None:
        await self.ask(DownscaleRequest(Resources.parse(1, mem)))

    async def answer(self, within: float = 0.0) -> DownscaleResult:
        """The answer, which has come or comes within this many seconds."""
        await self.clock.advance(within)
        receiving = asyncio.ensure_future(self.connection.receive())
        await settle()
        assert receiving.done(), "no answer yet"
        answer = receiving.result()
        assert isinstance(answer, DownscaleResult)
        return answer


@pytest.fixture
async def agent(reclaimer: FakeReclaimer) -> AsyncIterator[Agent]:
    clock = FakeClock()
    pod = PodReclaim(reclaimer.path, reclaimer.tree.root, UID, CONTAINER, clock)
    async with pod.connect() as connection:
        yield Agent(connection, clock)
    await settle()
    assert reclaimer.held is None


@BOTH
async def test_shrink_is_held_until_it_applies(layout: Layout, reclaimer: FakeReclaimer, agent: Agent) -> None:
    """Held below the new limit for as long as the kubelet's usage figure may be old, and then until the kubelet has
    applied it.
    """
    await agent.shrink()
    size = TARGET * (95 if layout.is_v2 else 85) // 100
    await agent.clock.advance(19.9)
    assert (reclaimer.held, len(reclaimer.sizes), set(reclaimer.sizes)) == (size, 20, {size})
    assert await agent.answer(0.1) == DownscaleResult(2, True, YES)
    await agent.clock.advance(5.0)
    assert reclaimer.held == size
    limited_to(reclaimer.tree, TARGET)
    await agent.clock.advance(1.0)
    assert reclaimer.held is None


@BOTH
async def test_harm_ends_the_hold_within_a_second(layout: Layout, reclaimer: FakeReclaimer, agent: Agent) -> None:
    await agent.shrink()
    await agent.clock.advance(7.0)
    reread(reclaimer.tree, 1000 + 40 * MIB // 4096)
    await agent.clock.advance(1.0)
    assert reclaimer.held is None
    reason = f"refaulted 40 MiB after {96 if layout.is_v2 else 128} MiB were reclaimed"
    assert await agent.answer() == DownscaleResult(2, False, reason)


async def test_harm_after_the_yes_ends_the_hold(reclaimer: FakeReclaimer, agent: Agent) -> None:
    await agent.shrink()
    assert (await agent.answer(20.0)).ok
    reclaimer.tree.write("memory.pressure", "some avg10=0.00 avg60=0.00 avg300=0.00 total=900000\n")
    await agent.clock.advance(1.0)
    assert reclaimer.held is None


async def test_hold_of_missing_shrink_ends(reclaimer: FakeReclaimer, agent: Agent) -> None:
    await agent.shrink()
    assert (await agent.answer(20.0)).ok
    await agent.clock.advance(59.9)
    assert reclaimer.held is not None
    await agent.clock.advance(0.2)
    assert reclaimer.held is None


@BOTH
async def test_large_reclaim_goes_on_without_a_pause(layout: Layout, reclaimer: FakeReclaimer, agent: Agent) -> None:
    """The reclaimer returns early. With a second between its steps, large pods would never get below the limit in
    time.
    """
    reclaimer.at_once = 1024 * MIB
    limited_to(reclaimer.tree, 32 * 1024 * MIB)
    use(reclaimer.tree, 20 * 1024 * MIB)
    await agent.shrink(4 * 1024 * MIB)
    # No second passes.
    for _ in range(20):
        await settle()
    assert used(reclaimer.tree) == reclaimer.held
    assert (await agent.answer(20.0)).ok


async def test_reclaim_that_is_slow_pauses(reclaimer: FakeReclaimer, agent: Agent) -> None:
    reclaimer.at_once = MIB
    await agent.shrink()
    await agent.clock.advance(9.9)
    assert len(reclaimer.sizes) == 10
    assert not (await agent.answer(0.1)).ok


async def test_pod_that_cannot_be_reclaimed(reclaimer: FakeReclaimer, agent: Agent) -> None:
    reclaimer.does_reclaim = False
    await agent.shrink()
    answer = await agent.answer(10.0)
    assert answer == DownscaleResult(
        2, False, "the pod still uses 400 MiB, its container 400 MiB of it, page cache included"
    )
    assert reclaimer.held is None


@pytest.mark.parametrize("has_answered", [False, True])
async def test_growth_ends_the_hold(has_answered: bool, reclaimer: FakeReclaimer, agent: Agent) -> None:
    """Immediately, during the trial or while its shrink waits for the kubelet."""
    await agent.shrink()
    await agent.clock.advance(20.0 if has_answered else 5.0)
    if has_answered:
        await agent.answer()
    await agent.ask(UpscaleNotification(Resources.parse(1, "512Mi")))
    assert reclaimer.held is None
    assert await agent.connection.receive() == UpscaleConfirmation(4)


async def test_next_shrink_moves_the_hold(reclaimer: FakeReclaimer, agent: Agent) -> None:
    """Even before the first one is in force: the pod is never released in between."""
    await agent.shrink()
    await agent.answer(20.0)
    use(reclaimer.tree, 300 * MIB)
    reclaimer.sizes.clear()
    await agent.shrink(256 * MIB)
    assert (reclaimer.sizes, reclaimer.held) == ([256 * MIB * 95 // 100], 256 * MIB * 95 // 100)
    assert (await agent.answer(20.0)).id == 4


async def test_hold_ends_with_the_conversation(reclaimer: FakeReclaimer) -> None:
    clock = FakeClock()
    async with PodReclaim(reclaimer.path, reclaimer.tree.root, UID, CONTAINER, clock).connect() as connection:
        await Agent(connection, clock).shrink()
        assert reclaimer.held is not None
    await settle()
    assert reclaimer.held is None


FAULTS = {
    write_line(HoldReply(refusal="4096 bytes are too few")): "4096 bytes are too few",
    b"": "the reclaimer closed the connection",
    b"{}x\n": "document: ",
    b"a" * 9000: "",
}


@pytest.mark.parametrize("answer", FAULTS, ids=lambda answer: answer[:9].decode())
@pytest.mark.parametrize("at", [0.0, 5.0, 20.5])
async def test_faults_of_the_reclaimer(at: float, answer: bytes, reclaimer: FakeReclaimer, agent: Agent) -> None:
    """The response is no, with the reason; after a yes only the hold is lost. The next trial reconnects."""
    if at:
        await agent.shrink()
        await agent.clock.advance(at)
    reclaimer.answer = answer
    if not at:
        await agent.shrink()
    result = await agent.answer(1.0)
    assert reclaimer.held is None
    assert result.ok == (at > 20)
    assert result.ok or result.status.startswith(f"cannot run the trial: {FAULTS[answer]}")
    reclaimer.answer = None
    await agent.shrink()
    assert reclaimer.held is not None


async def test_silent_reclaimer(reclaimer: FakeReclaimer, agent: Agent, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("agent.adapters.pod_reclaim.REQUEST_TIMEOUT", 0.01)
    reclaimer.is_silent = True
    await agent.shrink()
    answer = await agent.connection.receive()
    assert answer == DownscaleResult(2, False, "cannot run the trial: TimeoutError")


async def test_reclaimer_that_is_away(reclaimer: FakeReclaimer, agent: Agent) -> None:
    reclaimer.path.unlink()
    await agent.shrink()
    answer = await agent.answer()
    assert "No such file or directory" in answer.status


async def test_pod_that_is_gone(reclaimer: FakeReclaimer) -> None:
    """The connection stays: without one, memory would shrink without a trial."""
    clock = FakeClock()
    for uid in ("11111111-2222-4333-8444-555555555555", "../.."):
        async with PodReclaim(reclaimer.path, reclaimer.tree.root, uid, CONTAINER, clock).connect() as connection:
            agent = Agent(connection, clock)
            await agent.shrink()
            assert not (await agent.answer()).ok
    assert reclaimer.sizes == []


async def test_group_that_goes_during_the_trial(reclaimer: FakeReclaimer, agent: Agent) -> None:
    await agent.shrink()
    reclaimer.tree.file("memory.stat").unlink()
    answer = await agent.answer(1.0)
    assert "memory.stat" in answer.status
    assert reclaimer.held is None


async def test_without_a_reclaimer(tmp_path: Path) -> None:
    """A pod that uses less agrees after a while, any other refuses at once."""
    tree, clock = Tree(tmp_path, V1).make(), FakeClock()
    async with PodReclaim(None, tmp_path, UID, CONTAINER, clock).connect() as connection:
        agent = Agent(connection, clock)
        await agent.shrink()
        assert not (await agent.answer()).ok
        use(tree, TARGET)
        await agent.shrink()
        assert await agent.answer(20.0) == DownscaleResult(4, True, YES)


async def test_message_that_was_not_understood(agent: Agent) -> None:
    await agent.ask(NotUnderstood(7, "no"))


async def test_whole_session(reclaimer: FakeReclaimer) -> None:
    """The agent's session waits for the answer, and keeps checking that the conversation lives."""
    clock, events = FakeClock(), list[object]()
    pod = PodReclaim(reclaimer.path, reclaimer.tree.root, UID, CONTAINER, clock)
    session = MonitorSession(pod.connect, clock, events.append)
    running = asyncio.create_task(session.run())
    await settle()
    session.send(UpscaleNotification(Resources.parse(1, "512Mi")))
    await settle()
    session.send(DownscaleRequest(Resources.parse(1, TARGET)))
    await clock.advance(30.0)
    assert events == [
        MonitorJoined(1),
        MonitorAnswered(UpscaleConfirmation(2)),
        MonitorAnswered(DownscaleResult(4, True, YES)),
    ]
    assert reclaimer.held is not None
    running.cancel()
    await asyncio.wait((running,))
    await settle()
    assert reclaimer.held is None
