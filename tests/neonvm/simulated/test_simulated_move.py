"""A simulated guest migrates to another pod: it continues there, or stays where it is (S4.12)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import httpx2 as httpx
import pytest

from deploy.neonvm.network.loopback import LoopbackNetwork
from deploy.neonvm.ports import (
    Guest,
    GuestError,
    GuestPhase,
    GuestSpec,
    GuestState,
    PodNetwork,
    TransferError,
    TransferFault,
)
from deploy.neonvm.simulated.simulated_guest import SimulatedGuest, SimulatedGuests
from deploy.neonvm.simulated.simulated_load import Load
from deploy.neonvm.transfer_terms import TransferInfo, TransferLimits, TransferStatus
from protocol.messages import ObjectName
from protocol.units import Bytes, MilliCpu, Seconds
from tests.fake_clock import FakeClock, settle
from tests.neonvm.qemu.fakes import MIB, spec_in
from tests.neonvm.simulated.faulty_guests import FaultyGuests
from tests.plain_http import plain_client

LIMITS = TransferLimits(downtime=Seconds(0.1), bandwidth=Bytes(64 * MIB), timeout=Seconds(60.0))
SPAN = 0.04 + 256 / 64 + 0.02
"""How long the guest of these tests takes to move: setup, its memory in use over the bandwidth, and the switch."""


class MoveFixture:
    """A guest in one pod that runs, another that receives, and a move between them that has not begun."""

    def __init__(self, network: LoopbackNetwork, state_dir: Path) -> None:
        self.network, self.state_dir, self.clock = network, state_dir, FakeClock()
        self.guests = SimulatedGuests(network, self.clock, lambda _: Load.constant(0.0, Bytes(256 * MIB)))
        self.heard: list[TransferInfo] = []

    async def guest(self, pod: str, **changes: object) -> Guest:
        spec = spec_in(self.state_dir, mem_min=Bytes(256 * MIB), pod=ObjectName("default", pod))
        spec = replace(spec, network=await self.place(pod), **changes)  # type: ignore[arg-type]  # fields of a spec
        return self.guests.create(spec)

    async def place(self, pod: str) -> PodNetwork:
        return await self.network.add_pod("a", ObjectName("default", pod))

    async def pair(self) -> tuple[Guest, Guest]:
        source, target = await self.guest("one"), await self.guest("two")
        await source.start()
        await target.receive()
        return source, target

    def move(self, source: Guest, target: Guest, limits: TransferLimits = LIMITS) -> asyncio.Task[TransferInfo]:
        async def moving() -> TransferInfo:
            async with asyncio.timeout(20):
                return await source.send(target, limits, self.heard.append)

        return asyncio.ensure_future(moving())

    async def moving(self) -> tuple[Guest, Guest, asyncio.Task[TransferInfo]]:
        source, target = await self.pair()
        move = self.move(source, target)
        await settle()
        return source, target, move

    async def get(self, pod: str, path: str) -> str:
        url = f"{(await self.place(pod)).metrics_url.removesuffix('/metrics')}{path}"
        async with plain_client() as client:
            return (await client.get(url)).text


@pytest.fixture
async def pods(tmp_path: Path) -> AsyncIterator[MoveFixture]:
    network = LoopbackNetwork("test-move", "a test")
    await network.up()
    await network.add_node("a")
    yield MoveFixture(network, tmp_path)
    await network.down()


async def phases(*guests: Guest) -> list[GuestPhase]:
    return [(await guest.state()).phase for guest in guests]


async def passing(pods: MoveFixture, span: float) -> None:
    """Lets time pass in steps of half a second."""
    while span > 0:
        await pods.clock.advance(min(span, 0.5))
        span -= 0.5


async def test_moved_guest_keeps_size_counters_load(pods: MoveFixture) -> None:
    source, target = await pods.pair()
    await source.set_cpu(MilliCpu(2000))
    await pods.clock.advance(100.0)
    before = await pods.get("one", "/metrics?collect[]=cpu&collect[]=stat")
    move = pods.move(source, target)
    await settle()
    assert await phases(source, target) == [GuestPhase.RUNNING, GuestPhase.RECEIVING]
    await passing(pods, SPAN + 0.5)
    info = await move
    assert info.status is TransferStatus.COMPLETED
    assert (info.total, info.downtime) == pytest.approx((SPAN, 0.02))
    assert await target.state() == GuestState(GuestPhase.RUNNING, MilliCpu(2000), Bytes(512 * MIB))
    assert await phases(source) == [GuestPhase.STOPPED]
    after = await pods.get("two", "/metrics?collect[]=cpu&collect[]=stat")
    boot = [line for line in before.splitlines() if line.startswith("node_boot_time_seconds")]
    assert boot[0] in after
    idle = [
        float(line.split()[-1])
        for line in after.splitlines()
        if line.startswith('node_cpu_seconds_total{cpu="0",mode="idle"')
    ]
    assert idle == [pytest.approx(100.0 + SPAN, abs=0.5)]
    with pytest.raises(httpx.TransportError):
        await pods.get("one", "/ready")
    await target.stop()


async def test_sleeper_moves_and_runs(pods: MoveFixture) -> None:
    """It sleeps during the migration; afterwards it is awake with its former size."""
    source, target = await pods.pair()
    assert isinstance(source, SimulatedGuest)
    had = await source.state()
    await source.fall_asleep()
    move = asyncio.create_task(source.send(target, LIMITS, pods.heard.append))
    await settle()
    with pytest.raises(GuestError, match="being migrated"):
        await source.wake()
    await passing(pods, SPAN)
    assert (await move).status is TransferStatus.COMPLETED
    assert (await source.state()).phase is GuestPhase.STOPPED
    assert await target.state() == had
    await target.stop()


@pytest.mark.parametrize(("failing", "fault"), [(0, TransferFault.SOURCE_LOST), (1, TransferFault.TARGET_LOST)])
async def test_failing_end_ends_move(pods: MoveFixture, failing: int, fault: TransferFault) -> None:
    source, target, move = await pods.moving()
    failed = (source, target)[failing]
    assert isinstance(failed, SimulatedGuest)
    failed.fail("internal-error: a test")
    assert await failed.ended() == "internal-error: a test"
    await pods.clock.advance(1.0)
    with pytest.raises(TransferError) as caught:
        await move
    assert caught.value.fault is fault
    await source.stop()
    await target.stop()


async def test_moved_guest_has_ended_at_source(pods: MoveFixture) -> None:
    source, target = await pods.pair()
    here, there = asyncio.ensure_future(source.ended()), asyncio.ensure_future(target.ended())
    move = pods.move(source, target)
    await settle()
    await passing(pods, SPAN + 0.5)
    await move
    assert (await here, there.done()) == ("it was migrated away", False)
    await target.stop()
    assert await there == "it was stopped"


async def test_progress_is_reported_every_second(pods: MoveFixture) -> None:
    _, target, move = await pods.moving()
    await passing(pods, SPAN + 0.5)
    await move
    assert [info.status for info in pods.heard] == [
        TransferStatus.SETUP,
        *[TransferStatus.ACTIVE] * 4,
        TransferStatus.COMPLETED,
    ]
    await target.stop()


async def test_load_survives_round_trip(pods: MoveFixture) -> None:
    source, target = await pods.pair()
    async with plain_client(base_url=(await pods.place("one")).metrics_url.removesuffix("/metrics")) as client:
        await client.put("/demand", json={"cpu": 1, "mem": "256Mi"})
    for _ in range(2):
        move = pods.move(source, target, replace(LIMITS, bandwidth=Bytes(512 * MIB)))
        await settle()
        await passing(pods, 5.0)
        await move
        source, target = target, source
        await target.receive()
    assert await pods.get("one", "/demand") == '{"cpu":1.0,"mem":"256Mi"}\n'
    for guest in (source, target):
        await guest.stop()


async def test_lost_target_leaves_source_running(pods: MoveFixture) -> None:
    source, target, move = await pods.moving()
    await target.stop()
    await pods.clock.advance(1.0)
    with pytest.raises(TransferError, match="the target is gone") as caught:
        await move
    assert caught.value.fault is TransferFault.TARGET_LOST
    assert await phases(source, target) == [GuestPhase.RUNNING, GuestPhase.STOPPED]
    await source.stop()


async def test_lost_source_leaves_no_guest(pods: MoveFixture) -> None:
    source, target, move = await pods.moving()
    await source.stop()
    await pods.clock.advance(1.0)
    with pytest.raises(TransferError, match="ended during the migration") as caught:
        await move
    assert caught.value.fault is TransferFault.SOURCE_LOST
    assert await phases(source, target) == [GuestPhase.STOPPED, GuestPhase.STOPPED]


async def test_slow_move_times_out(pods: MoveFixture) -> None:
    source, target = await pods.pair()
    move = pods.move(source, target, replace(LIMITS, timeout=Seconds(2.0)))
    await settle()
    await passing(pods, 2.5)
    with pytest.raises(TransferError, match="not sent within 2 s") as caught:
        await move
    assert caught.value.fault is TransferFault.TIMED_OUT
    assert await phases(source, target) == [GuestPhase.RUNNING, GuestPhase.STOPPED]
    await source.stop()


async def test_cancelled_move_runs_source_stops_target(pods: MoveFixture) -> None:
    source, target, move = await pods.moving()
    move.cancel()
    await asyncio.wait((move,))
    assert move.cancelled()
    assert await phases(source, target) == [GuestPhase.RUNNING, GuestPhase.STOPPED]
    await source.stop()


@pytest.mark.parametrize("change", [{"mem_max": Bytes(4096 * MIB)}, {"cpu_max": MilliCpu(8000)}])
async def test_other_hardware_at_the_target_is_refused(pods: MoveFixture, change: dict[str, object]) -> None:
    source, target = await pods.guest("one"), await pods.guest("two", **change)
    await source.start()
    await target.receive()
    with pytest.raises(TransferError, match="different hardware") as caught:
        await pods.move(source, target)
    assert caught.value.fault is TransferFault.REFUSED
    assert await phases(source, target) == [GuestPhase.RUNNING, GuestPhase.STOPPED]
    await source.stop()


async def test_target_without_listener_is_lost(pods: MoveFixture) -> None:
    source, target, move = await pods.moving()
    await pods.network.remove_pod(ObjectName("default", "two"))
    await passing(pods, SPAN + 0.5)
    with pytest.raises(TransferError, match="cannot listen") as caught:
        await move
    assert caught.value.fault is TransferFault.TARGET_LOST
    assert await phases(source, target) == [GuestPhase.RUNNING, GuestPhase.STOPPED]
    await source.stop()


async def test_receiving_and_running_exclude_each_other(pods: MoveFixture) -> None:
    source, target = await pods.pair()
    with pytest.raises(GuestError, match="waiting for an incoming migration"):
        await target.start()
    await source.receive()
    assert await phases(source, target) == [GuestPhase.RUNNING, GuestPhase.RECEIVING]
    await target.stop()
    await target.start()
    for guest in (source, target):
        await guest.stop()


async def test_stopped_guest_cannot_be_sent(pods: MoveFixture) -> None:
    source, target = await pods.guest("one"), await pods.guest("two")
    await target.receive()
    with pytest.raises(GuestError, match="the guest has stopped"):
        await pods.move(source, target)
    assert await phases(source, target) == [GuestPhase.STOPPED, GuestPhase.STOPPED]


async def test_faults_can_be_injected_at_guest_port(pods: MoveFixture) -> None:
    faulty = FaultyGuests(pods.guests)
    specs: list[GuestSpec] = [
        spec_in(pods.state_dir, pod=ObjectName("default", pod), network=await pods.place(pod)) for pod in ("x", "y")
    ]
    source, target = (faulty.create(spec) for spec in specs)
    await source.start()
    faulty.on_receive.append(GuestError("no room"))
    with pytest.raises(GuestError, match="no room"):
        await target.receive()
    await target.receive()
    faulty.fail_send(TransferFault.TARGET_LOST)
    with pytest.raises(TransferError, match="injected: TargetLost"):
        await pods.move(source, target)
    assert await phases(source, target) == [GuestPhase.RUNNING, GuestPhase.STOPPED]
    faulty.fail_send(TransferFault.SOURCE_LOST, source_too=True)
    with pytest.raises(TransferError):
        await pods.move(source, target)
    assert await phases(*faulty.made.values()) == [GuestPhase.STOPPED, GuestPhase.STOPPED]
