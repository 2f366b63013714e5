"""Orders to a guest without a response may be executed later: they count until that is impossible."""

import asyncio

import pytest

from deploy.neonvm.ports import GuestPhase, GuestState
from deploy.neonvm.runner.resizer import ORDER_LIFETIME, Resizer
from protocol.units import ZERO, MilliCpu, Resources
from tests.fake_clock import FakeClock, settle
from tests.neonvm.runner.test_resizer import LARGE, SMALL, ObedientGuest, resizing


async def test_lost_growth_counts_until_it_cannot_happen() -> None:
    """The guest is repeatedly ordered to return to its size, because the lost order may be executed in between."""
    guest = ObedientGuest()
    guest.refusals = {"cpu": 1, "memory": 1}
    async with resizing(guest) as resized:
        await resized.boot()
        resized.resizer.resize_to(LARGE)
        await settle()
        resized.resizer.resize_to(SMALL)
        await settle()
        assert (resized.resizer.state.cpu, resized.resizer.largest) == (SMALL.cpu, LARGE)
        guest.has = GuestState(GuestPhase.RUNNING, LARGE.cpu, LARGE.mem)
        await resized.clock.advance(10)
        assert (guest.has.cpu, guest.has.mem, resized.resizer.largest) == (SMALL.cpu, SMALL.mem, LARGE)
        await resized.clock.advance(ORDER_LIFETIME)
        assert resized.resizer.largest == SMALL
        guest.orders.clear()
        await resized.clock.advance(60)
        assert guest.orders == []


async def test_orders_of_an_earlier_process_count() -> None:
    """It may have sent more of them than the cache shows at first."""
    async with resizing(ObedientGuest()) as resized:
        await resized.boot()
        resized.resizer.inherit(ZERO)
        resized.resizer.inherit(LARGE)
        await resized.clock.advance(30)
        larger = Resources(MilliCpu(3000), LARGE.mem)
        resized.resizer.inherit(larger)
        await resized.clock.advance(40)
        assert resized.resizer.largest == larger
        resized.resizer.inherit(larger)
        await resized.clock.advance(ORDER_LIFETIME - 30)
        assert resized.resizer.largest == SMALL


async def test_nothing_is_inherited_later() -> None:
    async with resizing(ObedientGuest()) as resized:
        await resized.boot()
        resized.resizer.end_inheritance()
        resized.resizer.inherit(LARGE)
        assert resized.resizer.largest == SMALL


async def test_order_in_progress_counts() -> None:
    """Even if less is desired meanwhile, and until the guest has responded to that."""
    guest = ObedientGuest()
    async with resizing(guest) as resized:
        await resized.boot()
        guest.slow_cpu = asyncio.Event()
        resized.resizer.resize_to(Resources(LARGE.cpu, SMALL.mem))
        await settle()
        resized.resizer.resize_to(SMALL)
        await settle()
        assert resized.resizer.largest.cpu == LARGE.cpu
        guest.slow_cpu.set()
        await settle()
        assert (resized.resizer.largest, guest.orders) == (SMALL, ["cpu 2", "cpu 1"])


async def test_guest_that_has_left_reaches_nothing() -> None:
    guest = ObedientGuest()
    guest.refusals = {"cpu": 1}
    async with resizing(guest) as resized:
        await resized.boot()
        resized.resizer.resize_to(Resources(LARGE.cpu, SMALL.mem))
        await settle()
        resized.resizer.hold()
        resized.resizer.leave()
        assert resized.resizer.largest == ZERO


async def test_interrupted_order_counts() -> None:
    """An internal error in one resource's order interrupts the other one, which may be executed later."""

    def fails(use: MilliCpu) -> None:
        raise RuntimeError(f"an invalid response to {use}")

    guest, clock = ObedientGuest(), FakeClock()
    guest.has = GuestState(GuestPhase.RUNNING, SMALL.cpu, SMALL.mem)
    guest.slow_memory, guest.says = asyncio.Event(), fails
    resizer = Resizer(guest, SMALL, clock, lambda: None, GuestPhase.RUNNING)
    resizer.resize_to(LARGE)
    with pytest.raises(ExceptionGroup):
        await resizer.run()
    guest.slow_memory, guest.says = None, lambda use: use
    task = asyncio.ensure_future(resizer.run())
    resizer.resize_to(SMALL)
    await settle()
    assert (resizer.state.cpu, resizer.state.mem, resizer.largest) == (SMALL.cpu, SMALL.mem, LARGE)
    await clock.advance(ORDER_LIFETIME + 10)
    assert resizer.largest == SMALL
    task.cancel()
    await asyncio.wait((task,))
