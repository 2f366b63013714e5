"""Polling of pods: rarely, immediately after a sign of change, and never all at the same time."""

from __future__ import annotations

import asyncio
from pathlib import Path

import httpx2 as httpx
import msgspec
import pytest

from deploy.neonvm.access.connections import RunnerEndpoint
from deploy.neonvm.ports import GuestError
from deploy.neonvm.remote.pod_guests import POLL_INTERVALS
from deploy.neonvm.remote.runner_client import PollLimiter, RunnerClient
from deploy.neonvm.runner.pod_runner import RunnerStatus
from protocol.kubernetes.objects import Json
from protocol.kubernetes.resources import PODS
from protocol.messages import ObjectName
from protocol.units import Seconds
from tests.fake_clock import settle
from tests.neonvm.remote.asking import Asking
from tests.neonvm.remote.pods_world import World, world

STATUS = RunnerStatus("Running", 1000, 2**30, "tcg", "a test", given=False)


def place(who: str, address: str) -> RunnerEndpoint:
    return RunnerEndpoint(who, "uid", address, 1, 2)


def counted(made: World) -> list[str]:
    """The paths of requests to runners from now on."""
    asked: list[str] = []
    inner = made._to_runner

    async def answer(request: httpx.Request) -> httpx.Response:
        asked.append(request.url.path)
        return await inner(request)

    made._to_runner = answer  # type: ignore[method-assign]  # the world's only way to runners
    return asked


async def pass_by(made: World, seconds: float) -> None:
    for _ in range(int(seconds / 0.2)):
        await made.clock.advance(Seconds(0.2))


async def test_pod_event_triggers_next_query(tmp_path: Path) -> None:
    async with world(tmp_path) as made:
        await made.boot()
        asked, pod = counted(made), ObjectName("default", str(made.status["podName"]))
        await made.client.merge_patch(PODS, pod, {"metadata": {"annotations": {"note": "of anyone"}}})
        await pass_by(made, 8.0)
        assert asked == []
        ready: Json = {"type": "Ready", "status": "True"}
        await made.client.merge_patch(PODS, pod, {"status": {"conditions": [ready]}}, "status")
        await pass_by(made, 0.4)
        assert asked == ["/status"]


def test_silent_pod_backs_off() -> None:
    waits = [POLL_INTERVALS.silent.delay(failures, 0.0) for failures in (1, 2, 3, 9)]
    assert (waits, POLL_INTERVALS.running) == ([2.0, 4.0, 8.0, 60.0], 30.0)
    assert [POLL_INTERVALS.booting.delay(looks, 0.0) for looks in (1, 2, 3, 4, 9)] == [0.5, 1.0, 2.0, 4.0, 4.0]


async def test_queries_are_bounded_and_orders_bypass() -> None:
    open_now: list[str] = []
    answers = asyncio.Event()

    async def answer(request: httpx.Request) -> httpx.Response:
        if request.url.path == "/status":
            open_now.append(request.url.host)
            await answers.wait()
        return httpx.Response(200, content=msgspec.json.encode(STATUS))

    ask, looks = Asking(answer), PollLimiter(2)
    pods = [RunnerClient(ask, place(f"pod {number}", f"10.0.0.{number}"), looks) for number in range(5)]
    asked = [asyncio.create_task(each.status()) for each in pods]
    await settle()
    await pods[4].announce()
    assert open_now == ["10.0.0.0", "10.0.0.1"]
    answers.set()
    assert await asyncio.gather(*asked) == [STATUS] * 5


@pytest.mark.parametrize("body", [b"<html>", b'{"phase": "\xff"}', b'{"deep": ' + b'{"a":' * 10_000])
async def test_non_json_answer_blames_runner(body: bytes) -> None:
    ask = Asking(lambda _: httpx.Response(200, content=body))
    runner = RunnerClient(ask, place("pod", "10.0.0.1"), PollLimiter(1, 1))
    with pytest.raises(GuestError, match="pod: invalid response from its runner"):
        await runner.status()
    with pytest.raises(GuestError, match="pod: its runner reported an invalid CPU"):
        await runner.cpu()


async def test_slow_runner_releases_its_slot() -> None:
    ask = Asking(lambda _: asyncio.Event().wait())  # type: ignore[arg-type]
    runner = RunnerClient(ask, place("pod", "10.0.0.1"), PollLimiter(1, 1), Seconds(0.001))
    for _ in range(3):
        with pytest.raises(GuestError, match="pod: its runner does not respond"):
            await runner.status()


async def test_silent_pods_queue_separately() -> None:
    looks, forever = PollLimiter(1, 1), asyncio.Event()

    async def look(who: str, answers: asyncio.Event) -> str:
        async with looks.slot(who):
            await answers.wait()
        return who

    for each in ("silent-1", "silent-2"):
        with pytest.raises(GuestError):
            async with looks.slot(each):
                raise GuestError("it does not answer")
    held = [asyncio.create_task(look(each, forever)) for each in ("silent-1", "silent-2")]
    await settle()
    answers = asyncio.Event()
    answers.set()
    assert await look("healthy", answers) == "healthy"
    looks.forget("silent-2")
    assert await look("silent-2", answers) == "silent-2"
    for task in held:
        task.cancel()


async def test_slow_namespace_leaves_slots_to_others() -> None:
    """A tenant's own runners may respond just before the timeout: they do not count as silent."""
    polls, forever = PollLimiter(4, 4), asyncio.Event()
    active: list[str] = []

    async def poll(pod: str) -> None:
        async with polls.slot(pod):
            active.append(pod)
            await forever.wait()

    tasks = [asyncio.create_task(poll(f"{pod}")) for pod in (*(f"evil/{number}" for number in range(9)), "shop/db")]
    await settle()
    assert active == ["evil/0", "evil/1", "shop/db"]
    for task in tasks:
        task.cancel()
