"""Simulated guests sleep while they are idle, and wake when their load has work or a test puts demand on them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import httpx2 as httpx
import pytest

from deploy.neonvm.network.loopback import LoopbackNetwork
from deploy.neonvm.ports import (
    FellAsleep,
    GuestError,
    GuestPhase,
    GuestState,
    SleepingGuest,
    SleepRefusedError,
    TransferError,
    Woken,
)
from deploy.neonvm.simulated.simulated_guest import SimulatedGuest, SimulatedGuests
from deploy.neonvm.simulated.simulated_load import Demand, Load, LoadStep
from deploy.neonvm.transfer_terms import TransferLimits
from protocol.units import Bytes, MilliCpu, Seconds
from tests.fake_clock import FakeClock, settle
from tests.neonvm.qemu.fakes import MIB, spec_in
from tests.plain_http import plain_client

USED = Bytes(48 * MIB)
IDLE, BUSY = Demand(0.02, USED), Demand(2.0, USED)
NIGHTS = Load([LoadStep(Seconds(0.0), BUSY), LoadStep(Seconds(100.0), IDLE)], Seconds(1000.0))
"""Busy for 100 s of each 1000."""


@dataclass
class Night:
    """A guest that plays ``NIGHTS``, and a client in its pod."""

    guest: SimulatedGuest
    clock: FakeClock
    client: httpx.AsyncClient

    async def quiet(self) -> float:
        """Quiet seconds that the guest reports."""
        page = (await self.client.get("/metrics?collect[]=textfile")).text
        lines = [line for line in page.splitlines() if line.startswith("autoscale_database_quiet_seconds ")]
        return float(lines[0].split()[1])


@pytest.fixture
async def night(tmp_path: Path) -> AsyncIterator[Night]:
    network, clock = LoopbackNetwork("test-sleeping", "a test"), FakeClock()
    await network.up()
    await network.add_node("a")
    spec = spec_in(tmp_path, mem_min=Bytes(512 * MIB))
    place = await network.add_pod("a", spec.pod)
    guest = SimulatedGuests(network, clock, lambda _: NIGHTS).create(
        spec_in(tmp_path, mem_min=Bytes(512 * MIB), network=place)
    )
    assert isinstance(guest, SimulatedGuest)
    try:
        await guest.start()
        async with plain_client(base_url=place.metrics_url.removesuffix("/metrics")) as client:
            yield Night(guest, clock, client)
    finally:
        await guest.stop()
        await network.down()


async def test_page_tells_quiet_time(night: Night) -> None:
    await night.clock.advance(99)
    assert await night.quiet() == 0.0
    await night.clock.advance(61)
    assert await night.quiet() == 60.0
    await night.client.put("/database", json={"standby": True, "oldestTransactionSeconds": 3.0})
    page = (await night.client.get("/metrics?collect[]=textfile")).text
    assert 'autoscale_database_awake{reason="standby"} 1.0' in page
    assert 'autoscale_database_awake{reason="transaction"} 1.0' in page


async def test_idle_guest_sleeps_until_its_load_has_work(night: Night) -> None:
    await night.clock.advance(200)
    await night.client.put("/database", json={"standby": False, "sessions": 4})
    before = await night.guest.state()
    assert isinstance(night.guest, SleepingGuest)
    assert await night.guest.fall_asleep() == FellAsleep(USED, 4)
    assert await night.guest.state() == GuestState(GuestPhase.ASLEEP, MilliCpu(0), Bytes(0))
    woken = asyncio.ensure_future(night.guest.woken())
    await night.clock.advance(799)
    assert not woken.done()
    await night.clock.advance(1)
    assert (await woken, (await night.guest.state()).phase) == ("its load is not idle", GuestPhase.WAKING)
    assert await night.guest.wake() == Woken(Seconds(0.0))
    assert await night.guest.state() == before
    assert await night.guest.wake() == Woken(Seconds(0.0)), "repeated safely"


async def test_sleep_counts_no_cpu(night: Night) -> None:
    await night.clock.advance(200)
    before = (await night.client.get("/metrics?collect[]=cpu")).text
    await night.guest.fall_asleep()
    await night.clock.advance(500)
    asleep = (await night.client.get("/metrics?collect[]=cpu")).text
    await night.guest.wake()
    assert asleep == f"autoscale_asleep 1\n{before}"
    assert (await night.client.get("/metrics?collect[]=cpu")).text == before
    assert await night.quiet() == 600.0


async def test_pressed_sleeper_must_wake(night: Night) -> None:
    await night.clock.advance(200)
    await night.guest.fall_asleep()
    woken = asyncio.ensure_future(night.guest.woken())
    await settle()
    await night.client.put("/demand", json={"cpu": 0.01, "mem": "64Mi"})
    await night.clock.advance(2000)
    assert not woken.done(), "pressed idle, so its own load does not count"
    await night.client.put("/demand", json={"cpu": 1, "mem": "64Mi"})
    assert await woken == "its load is not idle"
    await night.client.put("/demand", json={"cpu": 0, "mem": "64Mi"})
    assert await night.guest.woken() == "its load is not idle", "it stays called"


async def test_sleeper_answers_no_orders(night: Night) -> None:
    await night.clock.advance(200)
    await night.guest.fall_asleep()
    for order in (night.guest.set_cpu(MilliCpu(1000)), night.guest.set_memory(Bytes(512 * MIB))):
        with pytest.raises(GuestError, match="default/db: the guest is asleep"):
            await order
    with pytest.raises(GuestError, match="the guest is asleep"):
        await night.guest.fall_asleep()
    with pytest.raises(httpx.TransportError):
        await night.client.get("/ready")


async def test_guest_with_work_refuses_to_sleep(night: Night) -> None:
    with pytest.raises(SleepRefusedError, match="default/db: the guest has load"):
        await night.guest.fall_asleep()
    await night.clock.advance(200)
    await night.client.put("/database", json={"standby": True, "oldestTransactionSeconds": 3.0})
    with pytest.raises(SleepRefusedError, match="the guest has standby and transaction"):
        await night.guest.fall_asleep()
    with pytest.raises(GuestError, match="default/db: the guest is not asleep"):
        await night.guest.woken()


async def test_moving_guest_refuses_to_sleep(night: Night, tmp_path: Path) -> None:
    await night.clock.advance(200)
    target = night.guest._guests.create(spec_in(tmp_path, mem_min=Bytes(512 * MIB)))
    await target.receive()
    limits = TransferLimits(Seconds(0.02), Bytes(1024**2), Seconds(900.0))
    moving = asyncio.ensure_future(night.guest.send(target, limits, lambda _: None))
    await settle()
    with pytest.raises(SleepRefusedError, match="being migrated"):
        await night.guest.fall_asleep()
    await target.stop()
    await night.clock.advance(2)
    with pytest.raises(TransferError):
        await moving


@pytest.mark.parametrize("how", ["stop", "fail"])
async def test_nobody_waits_for_ended_sleeper(night: Night, how: str) -> None:
    await night.clock.advance(200)
    await night.guest.fall_asleep()
    woken = asyncio.ensure_future(night.guest.woken())
    await settle()
    if how == "stop":
        await night.guest.stop()
    else:
        night.guest.fail("a test")
    with pytest.raises(GuestError):
        await woken
    assert (await night.guest.state()).phase is GuestPhase.STOPPED
    with pytest.raises(GuestError, match="has stopped"):
        await night.guest.wake()


def test_next_work_of_loads() -> None:
    ages = [Seconds(0.0), Seconds(99.0), Seconds(100.0), Seconds(1500.0)]
    assert [NIGHTS.next_work(age) for age in ages] == [0.0, 99.0, 1000.0, 2000.0]
    assert Load.constant(0.02, USED).next_work(Seconds(5.0)) is None
    once = Load([LoadStep(Seconds(0.0), IDLE), LoadStep(Seconds(7.0), IDLE), LoadStep(Seconds(9.0), BUSY)])
    assert once.next_work(Seconds(3.0)) == 9.0
