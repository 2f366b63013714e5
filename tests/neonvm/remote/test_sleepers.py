"""Sleeping guests in runner pods, as a controller sees them: over its connections, and after a change of leader."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import httpx2 as httpx
import pytest

from deploy.neonvm.access.callers import CONTROLLER
from deploy.neonvm.access.connections import RunnerConnections, RunnerEndpoint, RunnerHttpResponse
from deploy.neonvm.objects.boot_record import boot_record
from deploy.neonvm.ports import (
    FellAsleep,
    GuestError,
    GuestPhase,
    GuestState,
    PodRole,
    SleepingGuest,
    SleepRefusedError,
    Woken,
)
from deploy.neonvm.remote.remote_guest import RemoteGuest
from deploy.neonvm.remote.runner_client import PollLimiter, RunnerClient, UnansweredError
from deploy.neonvm.texts import runner as texts
from protocol.kubernetes.objects import Json, child, text
from protocol.units import Bytes, MilliCpu, Seconds
from protocol.vm_arguments import encode_dump
from tests.fake_clock import SleepingClock
from tests.neonvm.access.secured_pod import Reviews, SecuredPod, connections, secured_pod
from tests.neonvm.remote.asking import Asking
from tests.neonvm.remote.following import follower
from tests.neonvm.remote.pods_world import world
from tests.neonvm.runner.fake_sleeper import FRAME
from tests.neonvm.sample_objects import virtual_machine

PLACE = RunnerEndpoint("default/db-x", "uid", "10.0.0.9", 25183, 20183)
ASLEEP = GuestState(GuestPhase.ASLEEP, MilliCpu(0), Bytes(0))
SLEPT = FellAsleep(Bytes(200_000_000), 3)


def guest(requests: RunnerConnections, place: RunnerEndpoint = PLACE) -> RemoteGuest:
    words = ["runner", "-vmspec", encode_dump(child(virtual_machine(), "spec")), "-vmstatus", "H4sI"]
    pod: Json = {"spec": {"containers": [{"name": "neonvm-runner", "command": words}]}}
    made = boot_record(pod)
    assert made is not None

    def no_machine() -> object:
        raise AssertionError("its QEMU is not asked")

    client = RunnerClient(requests, place, PollLimiter(), poll_timeout=Seconds(1.0))
    return RemoteGuest(client, no_machine, made, SleepingClock(), lambda: None)  # type: ignore[arg-type]


@pytest.fixture
async def pod(tmp_path: Path) -> AsyncIterator[SecuredPod]:
    async with secured_pod(tmp_path) as made:
        yield made


class Lossy(RunnerConnections):
    """A controller's requests, of which the first ``lost`` responses do not arrive."""

    def __init__(self, lost: int) -> None:
        self.lost = lost
        self.made = 0
        self._inner = connections(Reviews())

    async def ask(self, place: RunnerEndpoint, method: str, path: str, body: bytes) -> RunnerHttpResponse:
        return await self._inner.ask(place, method, path, body)

    async def long_poll(self, place: RunnerEndpoint, method: str, path: str, body: bytes) -> RunnerHttpResponse:
        self.made += 1
        answer = await self._inner.long_poll(place, method, path, body)
        if self.made <= self.lost:
            raise ConnectionResetError(path)
        return answer


async def test_remote_guest_sleeps_and_wakes(pod: SecuredPod) -> None:
    remote = guest(connections(Reviews()), pod.place)
    sleeper: SleepingGuest = remote
    assert (await remote.state()).phase is GuestPhase.RUNNING
    assert await sleeper.fall_asleep() == SLEPT
    assert await remote.state() == ASLEEP
    waiting = asyncio.create_task(sleeper.woken())
    pod.pod.sleeper.frame.set()
    assert await waiting == FRAME
    assert (await remote.state()).phase is GuestPhase.WAKING
    assert await sleeper.wake() == Woken(Seconds(0.25))
    assert (await remote.state()).phase is GuestPhase.RUNNING
    with pytest.raises(GuestError, match="is not asleep"):
        await sleeper.woken()


async def test_stale_controller_ends_no_other_sleep(pod: SecuredPod) -> None:
    """It knows a sleep that another controller has ended, and not the next one."""
    stale, leader = (guest(connections(Reviews()), pod.place) for _ in range(2))
    await stale.fall_asleep()
    await leader.state()
    await leader.wake()
    await leader.fall_asleep()
    with pytest.raises(GuestError, match=texts.ANOTHER_SLEEP):
        await stale.wake()
    assert await leader.state() == ASLEEP
    assert await leader.wake() == Woken(Seconds(0.25))


async def test_stale_controller_begins_no_other_sleep(pod: SecuredPod) -> None:
    """The response to its order is lost, and before its retry the next leader has woken the guest."""
    leader = guest(connections(Reviews()), pod.place)

    class Late(Lossy):
        async def long_poll(self, place: RunnerEndpoint, method: str, path: str, body: bytes) -> RunnerHttpResponse:
            try:
                return await super().long_poll(place, method, path, body)
            except ConnectionResetError:
                await leader.state()
                await leader.wake()
                raise

    with pytest.raises(SleepRefusedError, match=texts.ANOTHER_SLEEP):
        await guest(Late(1), pod.place).fall_asleep()
    assert (await leader.state()).phase is GuestPhase.RUNNING


async def test_refusal_says_why(pod: SecuredPod) -> None:
    pod.pod.sleeper.refusal = SleepRefusedError("a session is in a transaction")
    with pytest.raises(SleepRefusedError, match=r"^a session is in a transaction$"):
        await guest(connections(Reviews()), pod.place).fall_asleep()


async def test_lost_answer_to_sleep_is_asked_for_again(pod: SecuredPod) -> None:
    """Otherwise a sleeping guest would be reported as still running."""
    lossy = Lossy(3)
    assert await guest(lossy, pod.place).fall_asleep() == SLEPT
    assert (lossy.made, pod.pod.sleeper.orders.count("sleep")) == (4, 1)


async def test_unreachable_runner_is_given_up() -> None:
    async def gone(request: httpx.Request) -> httpx.Response:
        raise httpx.ConnectError("no route to the pod")

    remote = guest(Asking(gone))
    for order in (remote.fall_asleep, remote.woken, remote.wake):
        with pytest.raises(UnansweredError, match="cannot be reached"):
            await order()


async def test_wait_is_renewed(pod: SecuredPod, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("deploy.neonvm.remote.remote_guest._HELD", 0.05)
    lossless = Lossy(0)
    remote = guest(lossless, pod.place)
    await remote.fall_asleep()
    waiting = asyncio.create_task(remote.woken())
    await asyncio.sleep(0.3)
    assert (lossless.made > 3, waiting.done()) == (True, False)
    pod.pod.sleeper.frame.set()
    assert await waiting == FRAME


@pytest.mark.parametrize("is_open", [True, False])
async def test_older_runners_keep_guests_awake(is_open: bool) -> None:
    place = RunnerEndpoint("default/db-x", "uid", "10.0.0.9", 25183, 20183, is_open)
    with pytest.raises(SleepRefusedError, match="can sleep after its next start"):
        await guest(Asking(lambda _: httpx.Response(404)), place).fall_asleep()


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"[" * 10_000,
        b'{"saved": -1, "sessions": 0, "sleeps": 1}',
        b'{"saved": 1, "sessions": 0, "sleeps": -1}',
        b'{"saved": 1, "sessions": 1e400, "sleeps": 1}',
        b'{"saved": 1' + b"0" * 400 + b', "sessions": 1, "sleeps": 1}',
        b'{"took": -1.0, "fault": ""}',
        b'{"took": 1e300, "fault": ""}',
        b'{"took": 1.0, "fault": "\xff"}',
    ],
)
async def test_unusable_answers_blame_runner(body: bytes) -> None:
    remote = guest(Asking(lambda _: httpx.Response(200, content=body)))
    for order in (remote.fall_asleep, remote.wake):
        with pytest.raises(GuestError, match="invalid response from"):
            await order()


@pytest.mark.parametrize("body", [b"\xff" * 100_000, b"x\r\n" * 20_000])
async def test_endless_reason_is_refused(body: bytes) -> None:
    for status in (200, 409):
        remote = guest(Asking(lambda _, status=status: httpx.Response(status, content=body)))
        with pytest.raises(GuestError):
            await remote.fall_asleep()
    short = guest(Asking(lambda _: httpx.Response(200, content=b"a\r\nb\x1b[2J\t c" + b"d" * 1000)))
    line = await short.woken()
    assert (line.startswith("a b [2J cddd"), len(line) <= 300, line.isprintable()) == (True, True, True)


async def test_new_leader_follows_sleeping_guest(tmp_path: Path) -> None:
    async with world(tmp_path) as made:
        await made.boot()
        name = text(made.status, "podName")
        await made.kill()
        sleeping = made.pods[name]
        await sleeping.api.answer(CONTROLLER, "PUT", "/sleep", b"")
        async with follower(made, made._to_runner) as leader:
            await made.until(lambda: leader.guest(name).role is PodRole.ASLEEP)
            resizer = leader.guest(name).resizer
            assert resizer is not None
            assert resizer.state == ASLEEP
            sleeping.sleeper.frame.set()
            await made.clock.advance(Seconds(31.0))
            await made.until(lambda: leader.guest(name).role is PodRole.WAKING)
        assert (made.running, sleeping.sleeper.orders) == ([], ["sleep", "listen"])
