"""A guest reaches the desired size after any of its responses."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from deploy.neonvm.ports import (
    CPU,
    MEMORY,
    Guest,
    GuestError,
    GuestPhase,
    GuestState,
)
from deploy.neonvm.runner.resizer import PollIntervals, Resizer
from deploy.neonvm.transfer_terms import TransferInfo, TransferLimits
from protocol.backoff import Backoff
from protocol.units import Bytes, MilliCpu, Resources, Seconds
from tests.fake_clock import FakeClock, settle

GI = 1024**3
SMALL, LARGE = Resources(MilliCpu(1000), Bytes(GI)), Resources(MilliCpu(2000), Bytes(2 * GI))


class ObedientGuest:
    """Executes every command, except those that a test makes it refuse."""

    def __init__(self) -> None:
        self.has = GuestState(GuestPhase.BOOTING, SMALL.cpu, SMALL.mem)
        self.orders: list[str] = []
        self.refusals: dict[str, int] = {}
        self.slow_memory: asyncio.Event | None = None
        self.slow_cpu: asyncio.Event | None = None
        self.least = Bytes(0)
        self.most = Bytes(2**60)
        self.says: Callable[[MilliCpu], MilliCpu | None] = lambda use: use
        self.slow_looks: asyncio.Event | None = None
        self.looks = 0
        self.end = asyncio.Event()

    async def start(self) -> None: ...

    async def receive(self) -> None: ...

    async def ended(self) -> str:
        await self.end.wait()
        return "it was switched off"

    async def send(
        self, target: Guest, limits: TransferLimits, progress: Callable[[TransferInfo], None]
    ) -> TransferInfo:
        raise GuestError("it stays")

    async def stop(self) -> None: ...

    async def state(self) -> GuestState:
        self.looks += 1
        self._refuse("state")
        seen = self.has
        if self.slow_looks is not None:
            await self.slow_looks.wait()
        return seen

    async def set_cpu(self, use: MilliCpu) -> MilliCpu | None:
        self.orders.append(f"cpu {use}")
        self._refuse("cpu")
        if self.slow_cpu is not None:
            await self.slow_cpu.wait()
        self.has = GuestState(self.has.phase, use, self.has.mem)
        return self.says(use)

    async def set_memory(self, use: Bytes) -> None:
        self.orders.append(f"memory {use}")
        self._refuse("memory")
        if self.slow_memory is not None:
            await self.slow_memory.wait()
        self.has = GuestState(self.has.phase, self.has.cpu, min(max(use, self.least), self.most))

    def _refuse(self, what: str) -> None:
        if self.refusals.get(what):
            self.refusals[what] -= 1
            raise GuestError(f"no {what} now")


class ResizerFixture:
    def __init__(self, guest: ObedientGuest, resizer: Resizer, clock: FakeClock, changes: list[None]) -> None:
        self.guest, self.resizer, self.clock = guest, resizer, clock
        self._changes = changes

    @property
    def changes(self) -> int:
        return len(self._changes)

    async def boot(self) -> None:
        self.guest.has = GuestState(GuestPhase.RUNNING, self.guest.has.cpu, self.guest.has.mem)
        await self.clock.advance(0.5)


@asynccontextmanager
async def resizing(guest: ObedientGuest) -> AsyncIterator[ResizerFixture]:
    clock = FakeClock()
    changes: list[None] = []
    resizer = Resizer(guest, SMALL, clock, lambda: changes.append(None))
    task = asyncio.ensure_future(resizer.run())
    await settle()
    try:
        yield ResizerFixture(guest, resizer, clock, changes)
    finally:
        task.cancel()
        await asyncio.wait((task,))


async def test_resize_waits_for_boot() -> None:
    async with resizing(ObedientGuest()) as resized:
        resized.resizer.resize_to(LARGE)
        await resized.clock.advance(0.4)
        assert resized.guest.orders == []
        await resized.boot()
        assert sorted(resized.guest.orders) == ["cpu 2", "memory 2Gi"]
        assert resized.resizer.state == GuestState(GuestPhase.RUNNING, LARGE.cpu, LARGE.mem)


async def test_target_size_is_applied_once() -> None:
    async with resizing(ObedientGuest()) as resized:
        await resized.boot()
        resized.resizer.resize_to(LARGE)
        resized.resizer.resize_to(LARGE)
        await settle()
        await resized.clock.advance(30)
        assert sorted(resized.guest.orders) == ["cpu 2", "memory 2Gi"]


async def test_order_answer_reports_cpu_without_query() -> None:
    async with resizing(ObedientGuest()) as resized:
        await resized.boot()
        before = resized.guest.looks
        resized.resizer.resize_to(Resources(LARGE.cpu, SMALL.mem))
        await settle()
        assert (resized.resizer.state.cpu, resized.guest.looks) == (LARGE.cpu, before)
        resized.guest.says = lambda _: None
        resized.resizer.resize_to(SMALL)
        await settle()
        assert (resized.resizer.state.cpu, resized.guest.looks) == (SMALL.cpu, before + 1)


async def test_older_query_updates_memory_only() -> None:
    async with resizing(ObedientGuest()) as resized:
        await resized.boot()
        resized.guest.slow_looks = asyncio.Event()
        resized.guest.has = GuestState(GuestPhase.RUNNING, SMALL.cpu, LARGE.mem)
        resized.resizer.poll_soon()
        await settle()
        resized.resizer.resize_to(Resources(LARGE.cpu, SMALL.mem))
        await settle()
        assert resized.resizer.state == GuestState(GuestPhase.RUNNING, LARGE.cpu, SMALL.mem)
        resized.guest.slow_looks.set()
        await settle()
        assert resized.resizer.state == GuestState(GuestPhase.RUNNING, LARGE.cpu, LARGE.mem)


async def test_departed_guest_ignores_late_answer() -> None:
    async with resizing(ObedientGuest()) as resized:
        await resized.boot()
        resized.guest.slow_cpu = asyncio.Event()
        resized.resizer.resize_to(Resources(LARGE.cpu, SMALL.mem))
        await settle()
        resized.resizer.leave()
        resized.guest.slow_cpu.set()
        await settle()
        assert resized.resizer.state == GuestState(GuestPhase.STOPPED, MilliCpu(0), Bytes(0))


async def test_differing_cpu_is_believed_and_reordered() -> None:
    async with resizing(ObedientGuest()) as resized:
        await resized.boot()
        resized.guest.says = lambda _: SMALL.cpu
        resized.resizer.resize_to(Resources(LARGE.cpu, SMALL.mem))
        await settle()
        changes = resized.changes
        assert resized.resizer.state.cpu == SMALL.cpu
        await resized.clock.advance(1.0)
        assert (resized.guest.orders, resized.changes) == (["cpu 2", "cpu 2"], changes)


async def test_slow_memory_does_not_delay_cpu() -> None:
    guest = ObedientGuest()
    guest.slow_memory = asyncio.Event()
    async with resizing(guest) as resized:
        await resized.boot()
        resized.resizer.resize_to(LARGE)
        await settle()
        assert (resized.resizer.state.cpu, resized.resizer.state.mem) == (LARGE.cpu, SMALL.mem)
        guest.slow_memory.set()
        await settle()
        assert resized.resizer.state.mem == LARGE.mem


async def test_a_refused_resize_is_said_and_tried_again() -> None:
    guest = ObedientGuest()
    guest.refusals = {"cpu": 2}
    async with resizing(guest) as resized:
        await resized.boot()
        resized.resizer.resize_to(LARGE)
        await settle()
        assert resized.resizer.fault == "no cpu now"
        await resized.clock.advance(1)
        await resized.clock.advance(2)
        assert guest.orders.count("cpu 2") == 3
        assert (resized.resizer.fault, resized.resizer.state.cpu) == ("", LARGE.cpu)


async def test_partial_memory_shrink_is_reported_and_retried() -> None:
    guest = ObedientGuest()
    guest.has = GuestState(GuestPhase.BOOTING, LARGE.cpu, LARGE.mem)
    guest.least = Bytes(GI + GI // 2)
    async with resizing(guest) as resized:
        await resized.boot()
        assert resized.resizer.state.mem == guest.least
        await resized.clock.advance(1)
        guest.least = Bytes(0)
        await resized.clock.advance(10)
        assert resized.resizer.state.mem == SMALL.mem


async def test_unreachable_guest_is_queried_again() -> None:
    guest = ObedientGuest()
    async with resizing(guest) as resized:
        await resized.boot()
        guest.refusals = {"state": 1}
        await resized.clock.advance(2)
        assert resized.resizer.fault == "no state now"
        await resized.clock.advance(10)
        assert resized.resizer.state.phase is GuestPhase.RUNNING


async def test_loop_ends_with_guest_and_reason() -> None:
    guest, clock, changes = ObedientGuest(), FakeClock(), list[None]()
    resizer = Resizer(guest, SMALL, clock, lambda: changes.append(None))
    task = asyncio.ensure_future(resizer.run())
    await settle()
    guest.end.set()
    await settle()
    assert (task.done() and task.result(), resizer.state.phase) == ("it was switched off", GuestPhase.STOPPED)
    assert changes == [None]


async def test_held_guest_waits_for_new_target() -> None:
    async with resizing(ObedientGuest()) as resized:
        await resized.boot()
        resized.resizer.hold()
        resized.resizer.hold()
        assert resized.resizer.is_quiet
        await resized.clock.advance(30)
        resized.resizer.resize_to(LARGE)
        await settle()
        assert (sorted(resized.guest.orders), resized.resizer.is_quiet) == (["cpu 2", "memory 2Gi"], False)


async def test_hold_waits_for_running_resize() -> None:
    guest = ObedientGuest()
    guest.slow_memory = asyncio.Event()
    async with resizing(guest) as resized:
        await resized.boot()
        resized.resizer.resize_to(LARGE)
        await settle()
        resized.resizer.hold()
        before = resized.resizer.is_quiet, resized.changes
        guest.slow_memory.set()
        await settle()
        assert (before[0], resized.resizer.is_quiet) == (False, True)
        assert resized.changes > before[1]
        assert (sorted(guest.orders), resized.resizer.state.mem) == (["cpu 2", "memory 2Gi"], LARGE.mem)


async def test_receiving_guest_is_not_resized() -> None:
    guest, clock = ObedientGuest(), FakeClock()
    guest.has = GuestState(GuestPhase.RECEIVING, SMALL.cpu, SMALL.mem)
    resizer = Resizer(guest, LARGE, clock, lambda: None, GuestPhase.RECEIVING)
    task = asyncio.ensure_future(resizer.run())
    await settle()
    await clock.advance(10)
    assert (guest.orders, resizer.state.phase) == ([], GuestPhase.RECEIVING)
    guest.has = GuestState(GuestPhase.RUNNING, SMALL.cpu, SMALL.mem)
    resizer.arrive(guest.has)
    resizer.resize_to(LARGE)
    await settle()
    assert sorted(guest.orders) == ["cpu 2", "memory 2Gi"]
    task.cancel()
    await asyncio.wait((task,))


async def test_answer_before_arrival_is_ignored() -> None:
    class SlowToAnswer(ObedientGuest):
        async def state(self) -> GuestState:
            asked = self.has
            await answers.wait()
            return asked

    answers, guest, clock = asyncio.Event(), SlowToAnswer(), FakeClock()
    guest.has = GuestState(GuestPhase.RECEIVING, SMALL.cpu, SMALL.mem)
    resizer = Resizer(guest, SMALL, clock, lambda: None, GuestPhase.RECEIVING)
    task = asyncio.ensure_future(resizer.run())
    await settle()
    arrived = GuestState(GuestPhase.RUNNING, SMALL.cpu, SMALL.mem)
    resizer.arrive(arrived)
    answers.set()
    await settle()
    assert resizer.state == arrived
    resizer.leave()
    guest.end.set()
    await settle()
    assert task.done()


async def test_query_is_periodic_and_on_signal() -> None:
    guest, clock = ObedientGuest(), FakeClock()
    resizer = Resizer(guest, SMALL, clock, lambda: None)
    resizer.poll_intervals = PollIntervals(
        Backoff(Seconds(1.0), Seconds(2.0), spread=0.0), Seconds(30.0), Backoff(Seconds(5.0), Seconds(9.0))
    )
    looks: list[float] = []
    answered = guest.state

    async def state() -> GuestState:
        looks.append(clock.now() - 1000.0)
        return await answered()

    guest.state = state  # type: ignore[method-assign]
    task = asyncio.ensure_future(resizer.run())
    await settle()
    for _ in range(6):
        await clock.advance(Seconds(1.0))
    assert looks == [0.0, 1.0, 3.0, 5.0]
    guest.has = GuestState(GuestPhase.RUNNING, SMALL.cpu, SMALL.mem)
    resizer.poll_soon()
    await settle()
    assert (looks[4:], resizer.state.phase) == ([6.0], GuestPhase.RUNNING)
    for _ in range(29):
        await clock.advance(Seconds(1.0))
    assert looks[5:] == []
    task.cancel()
    await asyncio.wait((task,))


async def test_resource_without_progress_is_stalled() -> None:
    """After a minute without any change, however often another size is ordered; the other resource is not."""
    async with resizing(ObedientGuest()) as resized:
        await resized.boot()
        resized.guest.most = SMALL.mem
        for minutes in range(3):
            resized.resizer.resize_to(Resources(LARGE.cpu, Bytes((minutes + 2) * GI)))
            assert resized.resizer.stalled == frozenset()
            await resized.clock.advance(25)
        assert resized.resizer.stalled == {MEMORY}
        changes = resized.changes
        resized.guest.most = Bytes(3 * GI)
        await resized.clock.advance(11)
        assert resized.resizer.stalled == frozenset(), "it has come nearer"
        await resized.clock.advance(65)
        assert resized.resizer.stalled == {MEMORY}
        resized.resizer.resize_to(Resources(LARGE.cpu, Bytes(3 * GI)))
        await settle()
        assert (resized.resizer.stalled, resized.changes > changes) == (frozenset(), True)


async def test_refused_cpu_is_stalled_until_it_comes() -> None:
    async with resizing(ObedientGuest()) as resized:
        await resized.boot()
        resized.guest.refusals["cpu"] = 12
        resized.resizer.resize_to(LARGE)
        await resized.clock.advance(72)
        assert resized.resizer.stalled == {CPU}
        assert resized.resizer.state.cpu == SMALL.cpu
        await resized.clock.advance(30)
        assert resized.resizer.stalled == frozenset()
        assert resized.resizer.state.cpu == LARGE.cpu


async def test_held_guest_is_not_stalled() -> None:
    async with resizing(ObedientGuest()) as resized:
        await resized.boot()
        resized.guest.most = SMALL.mem
        resized.resizer.resize_to(LARGE)
        await resized.clock.advance(70)
        assert resized.resizer.stalled == {MEMORY}
        resized.resizer.hold()
        await resized.clock.advance(70)
        assert resized.resizer.stalled == frozenset()
