"""The work queue: one look at a time for each name, and patience with what fails."""

import asyncio

import pytest

from deploy.work_queue import WorkQueue, pause
from protocol.messages import ObjectName
from protocol.units import Seconds
from tests.fake_clock import FakeClock, settle

A, B = ObjectName("default", "a"), ObjectName("default", "b")


class Taker:
    """Takes names whenever there are some."""

    def __init__(self, queue: WorkQueue) -> None:
        self.taken: list[ObjectName] = []
        self._queue = queue
        self.task = asyncio.ensure_future(self._run())

    async def _run(self) -> None:
        while True:
            self.taken.append(await self._queue.take())


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def queue(clock: FakeClock) -> WorkQueue:
    return WorkQueue(clock)


async def taking(queue: WorkQueue) -> Taker:
    taker = Taker(queue)
    await settle()
    return taker


@pytest.mark.parametrize(("failures", "seconds"), [(1, 0.25), (2, 0.5), (6, 8.0), (7, 10.0), (999, 10.0)])
def test_the_pause_doubles_up_to_ten_seconds(failures: int, seconds: float) -> None:
    assert pause(failures) == seconds


async def test_a_name_said_twice_is_looked_at_once(queue: WorkQueue) -> None:
    for name in (A, B, A):
        queue.add(name)
    taker = await taking(queue)
    assert taker.taken == [A, B]
    taker.task.cancel()


async def test_a_name_in_work_comes_back_only_when_the_work_is_done(queue: WorkQueue) -> None:
    queue.add(A)
    taker = await taking(queue)
    queue.add(A)
    await settle()
    assert taker.taken == [A]
    queue.done(A)
    await settle()
    assert taker.taken == [A, A]
    taker.task.cancel()


async def test_a_failed_look_is_repeated_after_longer_and_longer_pauses(queue: WorkQueue, clock: FakeClock) -> None:
    queue.add(A)
    taker = await taking(queue)
    queue.failed(A)
    await clock.advance(0.25)
    assert len(taker.taken) == 2
    queue.failed(A)
    await clock.advance(0.4)
    assert len(taker.taken) == 2
    await clock.advance(0.1)
    assert len(taker.taken) == 3
    taker.task.cancel()


async def test_a_good_look_forgets_the_failures(queue: WorkQueue, clock: FakeClock) -> None:
    queue.add(A)
    taker = await taking(queue)
    queue.failed(A)
    await clock.advance(0.25)
    queue.done(A)
    queue.add(A)
    await settle()
    queue.failed(A)
    await clock.advance(0.25)
    assert len(taker.taken) == 4
    taker.task.cancel()


async def test_of_two_wishes_for_later_the_earlier_counts(queue: WorkQueue, clock: FakeClock) -> None:
    queue.add(A, Seconds(5.0))
    queue.add(A, Seconds(2.0))
    queue.add(A, Seconds(9.0))
    taker = await taking(queue)
    await clock.advance(1.9)
    assert taker.taken == []
    await clock.advance(0.2)
    assert taker.taken == [A]
    taker.task.cancel()
