"""The scheduling queue: who is next, who waits, and for how long."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deploy.local.scheduling.queue import BACKOFF, Failure, SchedulingQueue
from protocol.messages import ObjectName
from protocol.units import Instant

A, B = ObjectName("default", "a"), ObjectName("default", "b")


def at(seconds: float) -> Instant:
    return Instant(seconds)


@pytest.mark.parametrize(
    ("attempts", "jitter", "seconds"), [(1, 0.0, 1.0), (2, 0.0, 2.0), (4, 0.0, 8.0), (5, 0.0, 10.0), (99, 1.0, 15.0)]
)
def test_backoff_doubles_up_to_ten_seconds_and_jitter_only_lengthens_it(
    attempts: int, jitter: float, seconds: float
) -> None:
    assert BACKOFF.delay(attempts, jitter) == seconds


def test_pods_are_tried_in_the_order_in_which_they_came() -> None:
    queue = SchedulingQueue()
    queue.add(A)
    queue.add(B)
    queue.add(A)
    assert [queue.take(at(0)), queue.take(at(0)), queue.take(at(0))] == [A, B, None]


def test_a_pod_that_fits_nowhere_waits_for_an_event_and_then_for_its_backoff() -> None:
    queue = SchedulingQueue()
    queue.add(A)
    queue.take(at(0))
    queue.failed(A, Failure.NO_NODE, at(0), 0.0)
    assert queue.take(at(5)) is None
    assert queue.next_ready() == 300.0
    queue.wake()
    assert queue.take(at(5)) == A


def test_an_event_cuts_a_backoff_short_where_no_other_pod_is_ready() -> None:
    queue = SchedulingQueue()
    queue.add(A)
    queue.take(at(0))
    queue.failed(A, Failure.NO_NODE, at(0), 0.0)
    queue.wake()
    queue.add(B)
    assert queue.next_ready() == float("-inf")
    assert [queue.take(at(0.5)), queue.take(at(0.5)), queue.take(at(0.5))] == [B, A, None]


def test_of_two_that_an_event_has_woken_the_one_whose_backoff_ends_first_is_tried_first() -> None:
    queue = SchedulingQueue()
    for pod in (A, B):
        queue.add(pod)
        queue.take(at(0))
    queue.failed(B, Failure.NO_NODE, at(0), 0.5)
    queue.failed(A, Failure.NO_NODE, at(0), 0.0)
    queue.wake()
    assert [queue.take(at(0.5)), queue.take(at(0.5))] == [A, B]


def test_no_event_cuts_short_the_backoff_of_an_attempt_that_broke() -> None:
    queue = SchedulingQueue()
    queue.add(A)
    queue.take(at(0))
    queue.wake()
    queue.failed(A, Failure.ERROR, at(0), 0.0)
    queue.wake()
    assert queue.take(at(0.5)) is None
    assert queue.next_ready() == 1.0
    assert queue.take(at(1)) == A


def test_attempts_that_broke_are_counted_from_the_last_one_that_did_not() -> None:
    queue, ready = SchedulingQueue(), list[Instant | None]()
    queue.add(A)
    for failure in (Failure.ERROR, Failure.ERROR, Failure.NO_NODE, Failure.ERROR):
        queue.take(at(1000 * len(ready)))
        queue.failed(A, failure, at(0), 0.0)
        ready.append(queue.next_ready())
    assert ready == [1.0, 2.0, 300.0, 1.0]


def test_an_event_during_the_attempt_counts() -> None:
    queue = SchedulingQueue()
    queue.add(A)
    queue.take(at(0))
    queue.wake()
    queue.failed(A, Failure.NO_NODE, at(0), 0.0)
    assert queue.take(at(1)) == A


def test_a_refused_bind_is_retried_without_any_event() -> None:
    queue = SchedulingQueue()
    queue.add(A)
    queue.take(at(0))
    queue.failed(A, Failure.ERROR, at(0), 0.0)
    assert queue.next_ready() == 1.0
    assert queue.take(at(1)) == A
    queue.failed(A, Failure.ERROR, at(1), 0.0)
    assert queue.next_ready() == 3.0


def test_nobody_waits_for_ever() -> None:
    queue = SchedulingQueue()
    queue.add(A)
    queue.take(at(0))
    queue.failed(A, Failure.NO_NODE, at(0), 0.0)
    assert queue.take(at(300)) == A


def test_a_pod_that_is_gone_is_forgotten_wherever_it_is() -> None:
    queue = SchedulingQueue()
    queue.add(A)
    queue.take(at(0))
    queue.forget(A)
    queue.failed(A, Failure.ERROR, at(0), 0.0)
    assert (queue.take(at(99)), queue.next_ready()) == (None, None)


def test_a_waiting_or_tried_pod_is_not_added_twice() -> None:
    queue = SchedulingQueue()
    queue.add(A)
    queue.take(at(0))
    queue.add(A)
    assert queue.take(at(0)) is None
    queue.failed(A, Failure.NO_NODE, at(0), 0.0)
    queue.add(A)
    assert queue.take(at(0)) is None


def test_there_is_no_waiting_while_a_pod_is_ready() -> None:
    queue = SchedulingQueue()
    queue.add(A)
    assert queue.next_ready() == float("-inf")


@given(st.lists(st.sampled_from(["add", "take", "fail", "refuse", "wake", "forget"]), max_size=60))
def test_a_pod_is_never_handed_out_twice_and_never_lost(steps: list[str]) -> None:
    queue, now, known, flying = SchedulingQueue(), 0.0, False, False
    for step in steps:
        now += 0.7
        match step:
            case "add":
                queue.add(A)
                known = True
            case "take":
                taken = queue.take(at(now))
                assert taken is None or (known and not flying)
                flying = flying or taken is not None
            case "fail" | "refuse":
                queue.failed(A, Failure.NO_NODE if step == "fail" else Failure.ERROR, at(now), 0.5)
                flying = False
            case "wake":
                queue.wake()
            case _:
                queue.forget(A)
                known = flying = False
    if known and not flying:
        assert queue.take(at(now + 400)) == A
