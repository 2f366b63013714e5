"""The work queue: one worker at a time for each name, and longer and longer pauses for what fails."""

import asyncio

import pytest

from protocol.kubernetes.api import response_error
from protocol.messages import ObjectName
from protocol.runtime.kubernetes.work_queue import WorkQueue
from protocol.units import Seconds
from tests.fake_clock import FakeClock, settle
from tests.steps import steps

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
    return FakeClock(jitter=0.0)


@pytest.fixture
def queue(clock: FakeClock) -> WorkQueue:
    return WorkQueue(clock)


async def taking(queue: WorkQueue) -> Taker:
    taker = Taker(queue)
    await settle()
    return taker


async def test_a_name_added_twice_is_reconciled_once(queue: WorkQueue) -> None:
    for name in (A, B, A):
        queue.add(name)
    taker = await taking(queue)
    assert taker.taken == [A, B]
    taker.task.cancel()


async def test_name_in_work_waits_until_done(queue: WorkQueue) -> None:
    queue.add(A)
    taker = await taking(queue)
    queue.add(A)
    await settle()
    assert taker.taken == [A]
    queue.done(A)
    await settle()
    assert taker.taken == [A, A]
    taker.task.cancel()


async def test_failed_name_backs_off(queue: WorkQueue, clock: FakeClock) -> None:
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


async def test_overloaded_server_is_asked_later(queue: WorkQueue, clock: FakeClock) -> None:
    taken_at: list[float] = []

    async def reconcile(name: ObjectName) -> None:
        taken_at.append(clock.now())
        raise response_error(429, b"too many requests", "5" if len(taken_at) == 1 else "600")

    queue.add(A)
    serving = asyncio.ensure_future(queue.serve(reconcile))
    for _ in range(34):
        await clock.advance(0.5)
    assert [at - taken_at[0] for at in taken_at] == [0.0, 5.25, 15.75], "at most ten seconds, and the backoff"
    serving.cancel()


async def test_a_success_forgets_the_failures(queue: WorkQueue, clock: FakeClock) -> None:
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


async def test_of_two_later_moments_the_earlier_counts(queue: WorkQueue, clock: FakeClock) -> None:
    queue.add(A, Seconds(5.0))
    queue.add(A, Seconds(2.0))
    queue.add(A, Seconds(9.0))
    taker = await taking(queue)
    await clock.advance(1.9)
    assert taker.taken == []
    await clock.advance(0.2)
    assert taker.taken == [A]
    taker.task.cancel()


async def test_failing_object_does_not_block_others(
    queue: WorkQueue, clock: FakeClock, caplog: pytest.LogCaptureFixture
) -> None:
    seen: list[ObjectName] = []

    async def reconcile(name: ObjectName) -> None:
        seen.append(name)
        if name == A:
            raise ArithmeticError("a quantity with a thousand digits")

    queue.add(A)
    queue.add(B)
    serving = asyncio.ensure_future(queue.serve(reconcile, (LookupError,)))
    await settle()
    assert (seen, serving.done()) == ([A, B], False)
    await clock.advance(0.25)
    assert seen == [A, B, A]
    assert [(record.getMessage(), vars(record)["object"]) for record in caplog.records] == [
        ("cannot reconcile an object", "default/a"),
        ("cannot reconcile an object", "default/a"),
    ]
    serving.cancel()


async def test_an_expected_error_is_repeated_without_a_word(
    queue: WorkQueue, clock: FakeClock, caplog: pytest.LogCaptureFixture
) -> None:
    async def reconcile(name: ObjectName) -> None:
        raise LookupError(name)

    queue.add(A)
    serving = asyncio.ensure_future(queue.serve(reconcile, (LookupError,)))
    await clock.advance(1.0)
    assert (serving.done(), caplog.records) == (False, [])
    serving.cancel()


async def test_names_come_in_due_order(queue: WorkQueue, clock: FakeClock) -> None:
    queue.add(A, Seconds(3.0))
    queue.add(B, Seconds(2.0))
    queue.add(A, Seconds(1.0))
    queue.add(B, Seconds(9.0))
    taker = await taking(queue)
    await clock.advance(1.5)
    assert taker.taken == [A]
    queue.add(A, Seconds(0.0))
    queue.add(A, Seconds(5.0))
    await clock.advance(1.0)
    assert taker.taken == [A, B]
    queue.failed(A)
    await settle()
    assert taker.taken == [A, B, A]
    queue.done(A)
    await clock.advance(10.0)
    assert taker.taken == [A, B, A]
    taker.task.cancel()


async def test_namespaces_take_turns(queue: WorkQueue) -> None:
    """A tenant with thousands of objects delayed those of all others until his own were done."""
    for namespace, names in (("many", 1000), ("shop", 2), ("bank", 1)):
        for number in range(names):
            queue.add(ObjectName(namespace, str(number)))
    taker = await taking(queue)
    assert [str(name) for name in taker.taken[:6]] == ["many/0", "shop/0", "bank/0", "many/1", "shop/1", "many/2"]
    assert len(taker.taken) == 1003
    taker.task.cancel()


async def test_busy_namespace_comes_last(queue: WorkQueue) -> None:
    """Objects of one tenant that take seconds each, such as those with silent agents, took every second worker."""
    for number in range(9):
        queue.add(ObjectName("slow", str(number)))
    slow = [await queue.take() for _ in range(3)]
    for number in range(3):
        queue.add(ObjectName("shop", str(number)))
    queue.done(slow[0])
    assert [str(await queue.take()) for _ in range(4)] == ["shop/0", "shop/1", "slow/3", "shop/2"]


async def test_waiting_workers_are_kept_for_others(clock: FakeClock) -> None:
    queue = WorkQueue(clock, waiting_workers=4)
    for name in ("slow/1", "slow/2", "slow/3", "shop/1", "bank/1", "bank/2"):
        queue.add(ObjectName(*name.split("/")))
    taker = await taking(queue)
    assert [str(name) for name in taker.taken] == ["slow/1", "shop/1", "bank/1"]
    queue.done(ObjectName("shop", "1"))
    await settle()
    assert [str(name) for name in taker.taken[3:]] == ["slow/2"]
    queue.failed(ObjectName("bank", "1"))
    await settle()
    assert [str(name) for name in taker.taken[4:]] == ["bank/2"]
    queue.done(ObjectName("bank", "2"))
    queue.done(ObjectName("slow", "1"))
    await clock.advance(0.25)
    assert [str(name) for name in taker.taken[5:]] == ["slow/3", "bank/1"]
    taker.task.cancel()


def test_many_namespaces_cost_no_search(queue: WorkQueue) -> None:
    """Each VM may have a namespace of its own."""

    def take(count: int) -> int:
        for number in range(count):
            queue.add(ObjectName(f"{count}-{number}", "db"))
        return steps(lambda: [queue._next() for _ in range(10)])

    assert take(10) == take(1_000)


async def test_name_due_twice_is_taken_once(queue: WorkQueue, clock: FakeClock) -> None:
    queue.add(A, Seconds(3.0))
    queue.add(A, Seconds(1.0))
    taker = await taking(queue)
    await clock.advance(1.0)
    queue.done(A)
    queue.add(A, Seconds(2.0))
    await clock.advance(5.0)
    assert taker.taken == [A, A]
    taker.task.cancel()
