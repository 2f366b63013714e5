"""A pod with a sleeping guest: repeated requests, probes that wake nothing, and a clean end."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from deploy.neonvm.access.callers import ANONYMOUS
from deploy.neonvm.ports import GuestError, SleepRefusedError
from deploy.neonvm.qemu.machine import Decided
from deploy.neonvm.remote.migration_endpoint import MigrationAuthority
from deploy.neonvm.runner.pod_runner import PodExit
from deploy.neonvm.runner.pod_sleep import PodSleep
from deploy.neonvm.runner.qmp_gate import GateState
from deploy.neonvm.texts import runner as texts
from tests.fake_clock import settle
from tests.neonvm.qemu.fakes import FakeGuestDaemon
from tests.neonvm.runner.fake_sleeper import FRAME
from tests.neonvm.runner.one_pod import Pod, running, scripted_daemon

SLEPT = (200, {"saved": 200_000_000, "sessions": 3, "sleeps": 1})
FIRST = {"sleeps": 1}
AWAKE = (200, {"took": 0.25, "fault": ""})
MOST = 1792 * 1024**2


@pytest.fixture
async def daemon() -> AsyncIterator[FakeGuestDaemon]:
    async with scripted_daemon() as made:
        yield made


@pytest.fixture
async def pod(tmp_path: Path, daemon: FakeGuestDaemon) -> AsyncIterator[Pod]:
    async with running(Pod(tmp_path, daemon)) as made:
        yield made


async def answered(pod: Pod, method: str, path: str, body: object = None) -> tuple[int, object]:
    reply = await pod.ask(method, path, body)
    text = reply.body.decode().strip()
    return reply.status, json.loads(text) if text.startswith("{") else text


async def asleep(pod: Pod, sleeps: int = 1) -> None:
    assert await answered(pod, "PUT", "/sleep") == (200, {"saved": 200_000_000, "sessions": 3, "sleeps": sleeps})
    await settle()


async def phase(pod: Pod) -> str:
    return str(json.loads((await pod.ask("GET", "/status")).body)["phase"])


async def test_guest_sleeps_and_wakes(pod: Pod) -> None:
    await asleep(pod)
    said = {"phase": "Asleep", "cpu": 0, "memory": 0, "accelerator": "tcg", "reason": "a test", "given": False}
    said |= {"saved": 200_000_000, "sessions": 3, "sleeps": 1}
    assert await answered(pod, "GET", "/status") == (200, said)
    waiting = asyncio.create_task(answered(pod, "GET", "/woken"))
    await settle()
    assert not waiting.done()
    pod.sleeper.frame.set()
    assert await waiting == (200, FRAME)
    assert await answered(pod, "GET", "/status") == (200, said | {"phase": "Waking", "woken_by": FRAME})
    assert await answered(pod, "GET", "/woken") == (200, FRAME), "as often as it is asked"
    assert await answered(pod, "PUT", "/wake", FIRST) == AWAKE
    assert await phase(pod) == "Running"
    assert (await answered(pod, "GET", "/woken"))[0] == 409


async def test_repeated_orders_get_same_answer(pod: Pod) -> None:
    """Two at once, one after the end, and one whose caller has hung up: the guest gets one order."""
    pod.sleeper.falls.clear()
    lost, repeated = (asyncio.create_task(answered(pod, "PUT", "/sleep")) for _ in range(2))
    await settle()
    lost.cancel()
    pod.sleeper.falls.set()
    assert [await repeated, await answered(pod, "PUT", "/sleep")] == [SLEPT, SLEPT]
    pod.sleeper.wakes.clear()
    lost, repeated = (asyncio.create_task(answered(pod, "PUT", "/wake", FIRST)) for _ in range(2))
    await settle()
    assert (await phase(pod), await answered(pod, "PUT", "/sleep")) == ("Waking", SLEPT)
    lost.cancel()
    pod.sleeper.wakes.set()
    assert [await repeated, await answered(pod, "PUT", "/wake", FIRST)] == [AWAKE, AWAKE]
    assert pod.sleeper.orders == ["sleep", "listen", "wake"]


async def test_guest_sleeps_again(pod: Pod) -> None:
    for sleeps in (1, 2):
        await asleep(pod, sleeps)
        assert await answered(pod, "PUT", "/wake", {"sleeps": sleeps}) == AWAKE
    assert pod.sleeper.orders == ["sleep", "listen", "wake"] * 2


async def test_late_order_ends_no_other_sleep(pod: Pod) -> None:
    """The permit for the first wake has been given up since."""
    await asleep(pod)
    assert await answered(pod, "PUT", "/wake", FIRST) == AWAKE
    await asleep(pod, 2)
    assert await answered(pod, "PUT", "/wake", FIRST) == (409, texts.ANOTHER_SLEEP)
    for body in (None, b"[", {"sleeps": None}):
        assert (await answered(pod, "PUT", "/wake", body))[0] == 400
    assert (await phase(pod), pod.sleeper.orders.count("wake")) == ("Asleep", 1)


async def test_late_order_to_sleep_is_refused(pod: Pod) -> None:
    """Its connection was slow, it was retried on another one, and a client has woken the guest since."""
    assert await answered(pod, "PUT", "/sleep", {"sleeps": 0}) == SLEPT
    assert await answered(pod, "PUT", "/sleep", {"sleeps": 0}) == SLEPT, "the same order again"
    assert await answered(pod, "PUT", "/wake", FIRST) == AWAKE
    assert await answered(pod, "PUT", "/sleep", {"sleeps": 0}) == (409, texts.ANOTHER_SLEEP)
    assert (await answered(pod, "PUT", "/sleep", {"sleeps": None}))[0] == 400
    assert (await phase(pod), pod.sleeper.orders.count("sleep")) == ("Running", 1)
    assert (await answered(pod, "PUT", "/sleep", FIRST))[0] == 200


async def test_refused_guest_runs_on(pod: Pod) -> None:
    pod.sleeper.refusal = SleepRefusedError("a session is in a transaction")
    assert await answered(pod, "PUT", "/sleep") == (409, "a session is in a transaction")
    assert await answered(pod, "PUT", "/wake", {"sleeps": 0}) == (409, texts.NOT_ASLEEP)
    assert await phase(pod) == "Running"
    pod.sleeper.refusal = None
    await asleep(pod)


async def test_ended_guest_is_no_conflict(pod: Pod) -> None:
    pod.sleeper.refusal = GuestError("QEMU has ended")
    assert await answered(pod, "PUT", "/sleep") == (503, "QEMU has ended")


async def test_pod_without_sleeper_refuses(tmp_path: Path, daemon: FakeGuestDaemon) -> None:
    pod = Pod(tmp_path, daemon)
    pod.runner.sleep = PodSleep(None)
    async with running(pod):
        assert await answered(pod, "PUT", "/sleep") == (409, texts.NOT_WAKEABLE)
        assert await answered(pod, "PUT", "/wake", {"sleeps": 0}) == (409, texts.NOT_ASLEEP)


async def test_failed_wake_is_repeated(pod: Pod) -> None:
    await asleep(pod)
    pod.sleeper.fault = GuestError("QEMU does not start")
    assert await answered(pod, "PUT", "/wake", FIRST) == (503, "QEMU does not start")
    pod.sleeper.fault = None
    assert await answered(pod, "PUT", "/wake", FIRST) == AWAKE


async def test_deaf_sleeper_must_wake(pod: Pod) -> None:
    """Otherwise nothing could wake it, so this is itself a reason to wake."""
    await asleep(pod)
    pod.sleeper.deafness = GuestError("the tap is gone")
    pod.sleeper.frame.set()
    await settle()
    assert (await answered(pod, "GET", "/woken"), await phase(pod)) == ((200, "the tap is gone"), "Waking")


async def test_wake_by_order_ends_the_wait(pod: Pod) -> None:
    await asleep(pod)
    waiting = asyncio.create_task(answered(pod, "GET", "/woken"))
    await settle()
    assert await answered(pod, "PUT", "/wake", FIRST) == AWAKE
    assert await waiting == (409, texts.NOT_ASLEEP)


async def test_newest_wait_has_the_place(pod: Pod) -> None:
    await asleep(pod)
    waiting = [asyncio.create_task(answered(pod, "GET", "/woken")) for _ in range(100)]
    await settle()
    assert [task.done() for task in waiting] == [True] * 99 + [False]
    assert {task.result() for task in waiting[:-1]} == {(503, texts.SUPERSEDED)}
    pod.sleeper.frame.set()
    assert await waiting[-1] == (200, FRAME)


async def test_probes_neither_wake_nor_fail(pod: Pod) -> None:
    """From the order to sleep until the guest runs, its daemon is not queried, and Services keep the pod."""
    pod.sleeper.falls.clear()
    pod.sleeper.wakes.clear()
    falling = asyncio.create_task(answered(pod, "PUT", "/sleep"))
    await pod.sleeper.falling.wait()
    pod.daemon.asked.clear()
    calls = list(pod.hypervisor.machine.calls)

    async def probed() -> list[int]:
        replies = [await pod.api.answer(ANONYMOUS, "GET", path, b"") for path in ("/ready", "/healthz")]
        return [reply.status for reply in [*replies, await pod.ask("GET", "/ready"), await pod.ask("GET", "/status")]]

    assert await probed() == [200] * 4
    assert json.loads((await pod.ask("GET", "/status")).body)["cpu"] == 1000, "it has not given anything back yet"
    pod.sleeper.falls.set()
    await falling
    assert await probed() == [200] * 4
    waking = asyncio.create_task(answered(pod, "PUT", "/wake", FIRST))
    await settle()
    assert await probed() == [200] * 4
    assert (pod.daemon.asked, pod.hypervisor.machine.calls) == ([], calls)
    pod.sleeper.wakes.set()
    await waking


async def test_look_during_order_sees_sleep(pod: Pod) -> None:
    """A poll that began before the order must not mistake the end of QEMU for the end of the guest."""
    looks = [asyncio.create_task(answered(pod, "GET", path)) for path in ("/status", "/ready")]
    await asleep(pod)
    pod.hypervisor.machine.alive = False
    (_, said), (ready, _) = [await look for look in looks]
    assert (dict(said)["phase"] in {"Running", "Asleep"}, ready) == (True, 200)  # type: ignore[call-overload]
    assert await phase(pod) == "Asleep"


async def test_sleeping_guest_takes_no_orders(pod: Pod) -> None:
    await asleep(pod)
    given = {"move": "m1", "certificate": "", "authority": ""}
    orders: list[tuple[str, str, object]] = [
        ("POST", "/cpu_change", {"vcpus": 2.5}),
        ("GET", "/database", None),
        ("POST", "/handover", {"move": "m1", "decision": "open"}),
        ("POST", "/handover", {"move": "m1", "decision": "given"}),
        ("PUT", "/tls/certificate", given),
    ]
    assert {await answered(pod, *order) for order in orders} == {(503, texts.SLEEPS)}
    with pytest.raises(GuestError, match="is asleep"):
        await pod.runner.set_password("secret")
    assert pod.runner.decisions.undecided == ""
    assert await answered(pod, "GET", "/cpu_current") == (200, {"vcpus": 0})
    states = pod.runner.known_gate_state(), await pod.runner.gate_state()
    assert states == (GateState(sleeps=True, max_plugged=MOST),) * 2


async def test_moves_of_the_past_are_answered_asleep(pod: Pod) -> None:
    pod.runner.decide("m1", Decided.KEPT)
    await asleep(pod)
    assert pod.runner.decide("m1", Decided.GIVEN) is Decided.KEPT
    assert pod.runner.decide("m2", Decided.KEPT) is Decided.KEPT, "a move that is called off before it began"


async def test_guest_in_a_move_stays_awake(pod: Pod) -> None:
    pod.runner.decide("m1", Decided.OPEN)
    assert await answered(pod, "PUT", "/sleep") == (409, texts.MIGRATION_UNDER_WAY)
    pod.runner.decide("m1", Decided.KEPT)
    pod.hypervisor.machine.answers["query-status"] = {"status": "postmigrate"}
    assert await answered(pod, "PUT", "/sleep") == (409, texts.MIGRATION_UNDER_WAY)
    pod.hypervisor.machine.answers["query-status"] = {"status": "running"}
    pod.flat.fault = GuestError("QEMU keeps its frames")
    assert await answered(pod, "PUT", "/sleep") == (409, "QEMU keeps its frames")
    assert pod.sleeper.orders == []


async def test_booting_guest_stays_awake(pod: Pod) -> None:
    pod.daemon.answers["GET /ready"] = (503, "it is starting")
    assert await answered(pod, "PUT", "/sleep") == (409, "the guest must be Running to fall asleep, and is Booting")


async def test_sleep_forgets_certificate_of_last_move(pod: Pod) -> None:
    """QEMU 7.2 would encrypt the memory's file like a migration, and fails: seen with a real one."""
    authority = MigrationAuthority("m1", time.time())
    pod.runner.decide("m1", Decided.OPEN)
    request = (await pod.ask("POST", "/tls/request", {"move": "m1"})).body
    certificate = authority.signed(request, "source.migration.local").decode()
    given = {"move": "m1", "certificate": certificate, "authority": authority.certificate.decode()}
    assert (await answered(pod, "PUT", "/tls/certificate", given))[0] == 200
    pod.runner.decide("m1", Decided.KEPT)
    pod.hypervisor.machine.answers["qom-list"] = [{"name": "objects"}, {"name": "migration-tls"}]
    pod.hypervisor.machine.calls.clear()
    await asleep(pod)
    told = [call for call in pod.hypervisor.machine.calls if not call[0].startswith(("query", "qom"))]
    params = {"tls-creds": "", "tls-hostname": ""}
    assert told == [("object-del", {"id": "migration-tls"}), ("migrate-set-parameters", params)]
    assert pod.flat.story[-1] == "nothing is diverted"


async def test_termination_of_sleeper_loses_nothing(tmp_path: Path, daemon: FakeGuestDaemon) -> None:
    pod = Pod(tmp_path, daemon)
    life = await pod.begin()
    await asleep(pod)
    daemon.asked.clear()
    pod.stop.set()
    assert (await life, daemon.asked) == (PodExit(0, texts.POD_STOPPED), [])
    assert (pod.flat.story[-1], pod.hypervisor.machine.alive) == ("closed", False)


@pytest.mark.parametrize("refusal", [None, SleepRefusedError("a session began")])
async def test_termination_waits_for_falling_asleep(
    tmp_path: Path, daemon: FakeGuestDaemon, refusal: GuestError | None
) -> None:
    daemon.answers["PUT /shutdown"] = (200, "going")
    pod = Pod(tmp_path, daemon)
    pod.sleeper.falls.clear()
    life = await pod.begin()
    falling = asyncio.create_task(answered(pod, "PUT", "/sleep"))
    await pod.sleeper.falling.wait()
    daemon.asked.clear()
    pod.stop.set()
    await settle()
    pod.sleeper.refusal = refusal
    pod.sleeper.falls.set()
    assert await life == PodExit(0, texts.POD_STOPPED)
    assert daemon.asked == (["PUT /shutdown"] if refusal else [])
    await falling


async def test_termination_does_not_wait_for_ever(tmp_path: Path, daemon: FakeGuestDaemon) -> None:
    pod = Pod(tmp_path, daemon)
    life = await pod.begin()
    await asleep(pod)
    pod.sleeper.wakes.clear()
    waking = asyncio.create_task(answered(pod, "PUT", "/wake", FIRST))
    waiting = asyncio.create_task(answered(pod, "GET", "/woken"))
    await settle()
    pod.stop.set()
    assert await life == PodExit(0, texts.POD_STOPPED)
    with pytest.raises(asyncio.CancelledError):
        await waking
    assert (await waiting)[0] == 409
