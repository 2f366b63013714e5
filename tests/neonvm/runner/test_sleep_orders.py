"""Orders to sleep and to wake, with any response of the guest and orders from others."""

import asyncio
from dataclasses import replace

import pytest

from deploy.neonvm.ports import FellAsleep, GuestError, GuestPhase, GuestState, SleepRefusedError, Woken
from protocol.guest.sleep import SleepReport, SleepState
from protocol.units import Bytes, MilliCpu, Resources, Seconds
from tests.fake_clock import settle
from tests.neonvm.runner.test_resizer import LARGE, SMALL, ObedientGuest, ResizerFixture, resizing

ASLEEP = GuestState(GuestPhase.ASLEEP, MilliCpu(0), Bytes(0))
WAKING = GuestState(GuestPhase.WAKING, MilliCpu(0), Bytes(0))
AWAKE = GuestState(GuestPhase.RUNNING, SMALL.cpu, SMALL.mem)
SAVED = Bytes(200 * 1024**2)


class SleepyGuest(ObedientGuest):
    """Sleeps and wakes by order; a test says which frame arrives, and what fails."""

    def __init__(self) -> None:
        super().__init__()
        self.must_wake: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self.answers = asyncio.Event()
        self.answers.set()
        self.errors: dict[str, list[GuestError]] = {}
        self.fault = ""
        self.woken_looks = 0
        self._had = AWAKE

    async def fall_asleep(self) -> FellAsleep:
        self.orders.append("fall asleep")
        await self.answers.wait()
        self._raise("fall_asleep")
        self._had, self.has = self.has, ASLEEP
        return FellAsleep(SAVED, 3)

    async def woken(self) -> str:
        self.woken_looks += 1
        self._raise("woken")
        return await asyncio.shield(self.must_wake)

    async def wake(self) -> Woken:
        self.orders.append("wake")
        self._raise("wake")
        self.has = replace(self._had, phase=GuestPhase.BOOTING if self.fault else GuestPhase.RUNNING)
        return Woken(Seconds(0.25), self.fault)

    def _raise(self, what: str) -> None:
        if self.errors.get(what):
            raise self.errors[what].pop(0)


async def fallen_asleep(resized: ResizerFixture) -> None:
    await resized.boot()
    resized.resizer.sleep_orders.sleep("a")
    await settle()
    assert resized.resizer.state == ASLEEP


async def test_guest_sleeps_and_wakes_by_order() -> None:
    guest = SleepyGuest()
    async with resizing(guest) as resized:
        await fallen_asleep(resized)
        slept = SleepReport("a", SleepState.ASLEEP, sessions=3, saved=SAVED.value)
        assert resized.resizer.sleep_orders.report == slept
        looks, changes = guest.looks, resized.changes
        await resized.clock.advance(3600)
        assert (guest.looks, guest.woken_looks, resized.changes) == (looks, 1, changes), "nobody asks it anything"
        guest.must_wake.set_result("10.1.0.7 sends data to port 5432")
        await settle()
        assert (resized.resizer.state, guest.orders) == (WAKING, ["fall asleep"])
        who = "10.1.0.7 sends data to port 5432"
        assert resized.resizer.sleep_orders.report == SleepReport("a", SleepState.WAKING, "", who, 3, SAVED.value)
        resized.resizer.sleep_orders.wake()
        resized.resizer.sleep_orders.wake()
        await settle()
        assert (resized.resizer.state, guest.orders) == (AWAKE, ["fall asleep", "wake"])
        assert resized.resizer.sleep_orders.report == SleepReport("a", SleepState.AWAKE, "", who, 3, SAVED.value, 0.25)


async def test_sleeper_leaves_no_timer_behind() -> None:
    async with resizing(SleepyGuest()) as resized:
        await fallen_asleep(resized)
        await resized.clock.advance(60)
        assert resized.clock.sleepers == 0


async def test_each_order_is_carried_out_once() -> None:
    guest = SleepyGuest()
    async with resizing(guest) as resized:
        await fallen_asleep(resized)
        resized.resizer.sleep_orders.sleep("b")
        resized.resizer.sleep_orders.wake()
        await settle()
        resized.resizer.sleep_orders.sleep("a")
        resized.resizer.sleep_orders.wake()
        await resized.clock.advance(10)
        assert guest.orders == ["fall asleep", "wake"]
        guest.must_wake.set_result("too late")
        resized.resizer.sleep_orders.sleep("c")
        await settle()
        assert (guest.orders, resized.resizer.sleep_orders.report.message) == (
            ["fall asleep", "wake", "fall asleep"],
            "too late",
        )


async def test_sleep_waits_for_running_resize() -> None:
    guest = SleepyGuest()
    guest.slow_memory = asyncio.Event()
    async with resizing(guest) as resized:
        await resized.boot()
        resized.resizer.resize_to(LARGE)
        await settle()
        resized.resizer.sleep_orders.sleep("a")
        await settle()
        assert "fall asleep" not in guest.orders
        guest.slow_memory.set()
        await settle()
        assert (guest.orders[-1], resized.resizer.state) == ("fall asleep", ASLEEP)


async def test_size_ordered_in_sleep_follows_waking() -> None:
    guest = SleepyGuest()
    async with resizing(guest) as resized:
        await fallen_asleep(resized)
        resized.resizer.resize_to(LARGE)
        await resized.clock.advance(30)
        assert guest.orders == ["fall asleep"]
        resized.resizer.sleep_orders.wake()
        await settle()
        assert (guest.orders[:2], sorted(guest.orders[2:])) == (["fall asleep", "wake"], ["cpu 2", "memory 2Gi"])
        assert resized.resizer.state == GuestState(GuestPhase.RUNNING, LARGE.cpu, LARGE.mem)


async def test_guest_is_left_alone_while_it_falls_asleep() -> None:
    """A frozen guest would answer neither polls nor orders, and must not be migrated."""
    guest = SleepyGuest()
    async with resizing(guest) as resized:
        await resized.boot()
        guest.answers.clear()
        resized.resizer.sleep_orders.sleep("a")
        await settle()
        looks = guest.looks
        resized.resizer.resize_to(LARGE)
        resized.resizer.hold()
        await resized.clock.advance(30)
        assert (guest.orders, guest.looks - looks, resized.resizer.is_quiet) == (["fall asleep"], 0, False)
        changes = resized.changes
        guest.errors = {"fall_asleep": [SleepRefusedError("a session is in a transaction")]}
        guest.answers.set()
        await settle()
        assert (resized.resizer.is_quiet, resized.changes > changes) == (True, True)


async def test_refused_guest_runs_on() -> None:
    guest = SleepyGuest()
    guest.errors = {"fall_asleep": [SleepRefusedError("a session is in a transaction")]}
    async with resizing(guest) as resized:
        await resized.boot()
        resized.resizer.sleep_orders.sleep("a")
        await settle()
        refused = SleepReport("a", SleepState.REFUSED, message="a session is in a transaction")
        assert (resized.resizer.sleep_orders.report, resized.resizer.state) == (refused, AWAKE)
        resized.resizer.resize_to(LARGE)
        resized.resizer.sleep_orders.sleep("a")
        await settle()
        assert sorted(guest.orders) == ["cpu 2", "fall asleep", "memory 2Gi"]


async def test_guest_that_cannot_sleep_refuses() -> None:
    async with resizing(ObedientGuest()) as resized:
        await resized.boot()
        resized.resizer.sleep_orders.sleep("a")
        await settle()
        assert resized.resizer.sleep_orders.report == SleepReport(
            "a", SleepState.REFUSED, message="this guest runtime does not support sleep"
        )
        resized.resizer.sleep_orders.wake()
        await settle()
        assert resized.resizer.state == AWAKE


async def test_guest_about_to_move_does_not_sleep() -> None:
    guest = SleepyGuest()
    async with resizing(guest) as resized:
        await resized.boot()
        resized.resizer.hold()
        resized.resizer.sleep_orders.sleep("a")
        await settle()
        assert (resized.resizer.sleep_orders.report.message, guest.orders) == ("the guest is about to be migrated", [])
        assert resized.resizer.is_quiet


async def test_lost_answer_is_settled_by_a_look() -> None:
    """The guest is asleep, but the response to the order was lost."""
    guest = SleepyGuest()
    async with resizing(guest) as resized:
        await resized.boot()
        guest.errors = {"fall_asleep": [GuestError("its runner does not respond")]}
        guest.has = ASLEEP
        resized.resizer.sleep_orders.sleep("a")
        await settle()
        assert (resized.resizer.state, resized.resizer.sleep_orders.report) == (
            ASLEEP,
            SleepReport("a", SleepState.ASLEEP),
        )
        resized.resizer.sleep_orders.wake()
        await settle()
        assert resized.resizer.state == AWAKE, "its size comes from a look"


@pytest.mark.parametrize("phase", [GuestPhase.ASLEEP, GuestPhase.WAKING])
async def test_sleeper_of_earlier_process_is_adopted(phase: GuestPhase) -> None:
    guest = SleepyGuest()
    guest.has = GuestState(phase, MilliCpu(0), Bytes(0))
    if phase is GuestPhase.WAKING:
        guest.must_wake.set_result("an ARP probe")
    async with resizing(guest) as resized:
        assert resized.resizer.state.phase is phase
        assert resized.resizer.sleep_orders.report.state == phase.value
        resized.resizer.sleep_orders.wake()
        await settle()
        assert (resized.resizer.state, resized.resizer.sleep_orders.report.state) == (AWAKE, SleepState.AWAKE)


async def test_lost_memory_means_a_boot() -> None:
    guest = SleepyGuest()
    guest.fault = "its memory's file is damaged"
    async with resizing(guest) as resized:
        await fallen_asleep(resized)
        resized.resizer.sleep_orders.wake()
        await settle()
        report = resized.resizer.sleep_orders.report
        assert resized.resizer.state == GuestState(GuestPhase.BOOTING, SMALL.cpu, SMALL.mem)
        assert (report.state, report.message) == (SleepState.RESTARTED, "its memory's file is damaged")
        await resized.boot()
        assert resized.resizer.state == AWAKE


async def test_failed_wake_is_told_and_repeated() -> None:
    guest = SleepyGuest()
    async with resizing(guest) as resized:
        await fallen_asleep(resized)
        guest.errors = {"wake": [GuestError("QEMU does not start"), GuestError("QEMU does not start")]}
        resized.resizer.sleep_orders.wake()
        await settle()
        assert (resized.resizer.fault, resized.resizer.state) == ("QEMU does not start", ASLEEP)
        await resized.clock.advance(3)
        assert (resized.resizer.fault, resized.resizer.state) == ("", AWAKE)


async def test_silent_runner_of_sleeper_is_asked_again() -> None:
    guest = SleepyGuest()
    async with resizing(guest) as resized:
        await resized.boot()
        guest.errors = {"woken": [GuestError("its runner does not respond")]}
        resized.resizer.sleep_orders.sleep("a")
        await settle()
        guest.refusals = {"state": 1}
        guest.errors["woken"].append(GuestError("its runner does not respond"))
        await resized.clock.advance(1)
        assert (resized.resizer.fault, resized.resizer.state) == ("its runner does not respond", ASLEEP)
        guest.errors["woken"].append(GuestError("it is asked by somebody else"))
        await resized.clock.advance(2)
        assert (resized.resizer.fault, resized.resizer.state) == ("", ASLEEP), "it answers again"
        guest.must_wake.set_result("somebody")
        await resized.clock.advance(4)
        assert (resized.resizer.fault, resized.resizer.state) == ("", WAKING)


async def test_refusal_from_before_the_sleep_is_over() -> None:
    """It does not show whether the guest can wake."""
    guest = SleepyGuest()
    async with resizing(guest) as resized:
        await resized.boot()
        guest.refusals = {"cpu": 1}
        resized.resizer.resize_to(Resources(LARGE.cpu, SMALL.mem))
        await settle()
        resized.resizer.has_failed("its size could not be read")
        assert "; " in resized.resizer.fault
        resized.resizer.sleep_orders.sleep("a")
        await settle()
        assert (resized.resizer.fault, resized.resizer.state) == ("", ASLEEP)
        resized.resizer.has_failed("a fault of the controller")
        assert resized.resizer.fault == "a fault of the controller"


async def test_guest_woken_by_another_process_is_awake() -> None:
    guest = SleepyGuest()
    async with resizing(guest) as resized:
        await resized.boot()
        guest.errors = {"woken": [GuestError("it does not sleep")] * 2}
        resized.resizer.sleep_orders.sleep("a")
        await settle()
        guest.has = GuestState(GuestPhase.RUNNING, LARGE.cpu, LARGE.mem)
        resized.resizer.resize_to(Resources(LARGE.cpu, LARGE.mem))
        await resized.clock.advance(1)
        assert (resized.resizer.state, resized.resizer.sleep_orders.report.state) == (guest.has, SleepState.AWAKE)


async def test_long_reasons_are_cut() -> None:
    guest = SleepyGuest()
    async with resizing(guest) as resized:
        await fallen_asleep(resized)
        guest.must_wake.set_result("x" * 10_000)
        await settle()
        assert len(resized.resizer.sleep_orders.report.message) == 300
