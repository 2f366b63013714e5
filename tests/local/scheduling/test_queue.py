"""The scheduling queue: who is next, who waits, and for how long."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deploy.local.scheduling.queue import BACKOFF, AttemptFailure, SchedulingQueue
from protocol.messages import ObjectName
from protocol.units import Instant

A, B = ObjectName("default", "a"), ObjectName("default", "b")


def at(seconds: float) -> Instant:
    return Instant(seconds)


@pytest.mark.parametrize(
    ("attempts", "jitter", "seconds"), [(1, 0.0, 1.0), (2, 0.0, 2.0), (4, 0.0, 8.0), (5, 0.0, 10.0), (99, 1.0, 15.0)]
)
def test_backoff_doubles_to_ten_seconds(attempts: int, jitter: float, seconds: float) -> None:
    assert BACKOFF.delay(attempts, jitter) == seconds


def test_queue_is_fifo() -> None:
    queue = SchedulingQueue()
    queue.add(A)
    queue.add(B)
    queue.add(A)
    assert [queue.take(at(0)), queue.take(at(0)), queue.take(at(0))] == [A, B, None]


def test_unfit_pod_waits_for_event_and_backoff() -> None:
    queue = SchedulingQueue()
    queue.add(A)
    queue.take(at(0))
    queue.failed(A, AttemptFailure.NO_NODE, at(0), 0.0)
    assert queue.take(at(5)) is None
    assert queue.next_ready() == 300.0
    queue.wake()
    assert queue.take(at(5)) == A


def test_event_cuts_backoff_if_idle() -> None:
    queue = SchedulingQueue()
    queue.add(A)
    queue.take(at(0))
    queue.failed(A, AttemptFailure.NO_NODE, at(0), 0.0)
    queue.wake()
    queue.add(B)
    assert queue.next_ready() == float("-inf")
    assert [queue.take(at(0.5)), queue.take(at(0.5)), queue.take(at(0.5))] == [B, A, None]


def test_earliest_backoff_is_tried_first() -> None:
    queue = SchedulingQueue()
    for pod in (A, B):
        queue.add(pod)
        queue.take(at(0))
    queue.failed(B, AttemptFailure.NO_NODE, at(0), 0.5)
    queue.failed(A, AttemptFailure.NO_NODE, at(0), 0.0)
    queue.wake()
    assert [queue.take(at(0.5)), queue.take(at(0.5))] == [A, B]


def test_event_never_cuts_error_backoff() -> None:
    queue = SchedulingQueue()
    queue.add(A)
    queue.take(at(0))
    queue.wake()
    queue.failed(A, AttemptFailure.ERROR, at(0), 0.0)
    queue.wake()
    assert queue.take(at(0.5)) is None
    assert queue.next_ready() == 1.0
    assert queue.take(at(1)) == A


def test_error_count_resets_on_success() -> None:
    queue, ready = SchedulingQueue(), list[Instant | None]()
    queue.add(A)
    for failure in (AttemptFailure.ERROR, AttemptFailure.ERROR, AttemptFailure.NO_NODE, AttemptFailure.ERROR):
        queue.take(at(1000 * len(ready)))
        queue.failed(A, failure, at(0), 0.0)
        ready.append(queue.next_ready())
    assert ready == [1.0, 2.0, 300.0, 1.0]


def test_an_event_during_the_attempt_counts() -> None:
    queue = SchedulingQueue()
    queue.add(A)
    queue.take(at(0))
    queue.wake()
    queue.failed(A, AttemptFailure.NO_NODE, at(0), 0.0)
    assert queue.take(at(1)) == A


def test_a_refused_bind_is_retried_without_any_event() -> None:
    queue = SchedulingQueue()
    queue.add(A)
    queue.take(at(0))
    queue.failed(A, AttemptFailure.ERROR, at(0), 0.0)
    assert queue.next_ready() == 1.0
    assert queue.take(at(1)) == A
    queue.failed(A, AttemptFailure.ERROR, at(1), 0.0)
    assert queue.next_ready() == 3.0


def test_nobody_waits_for_ever() -> None:
    queue = SchedulingQueue()
    queue.add(A)
    queue.take(at(0))
    queue.failed(A, AttemptFailure.NO_NODE, at(0), 0.0)
    assert queue.take(at(300)) == A


def test_gone_pod_is_forgotten() -> None:
    queue = SchedulingQueue()
    queue.add(A)
    queue.take(at(0))
    queue.forget(A)
    queue.failed(A, AttemptFailure.ERROR, at(0), 0.0)
    assert (queue.take(at(99)), queue.next_ready()) == (None, None)


def test_pod_is_queued_once() -> None:
    queue = SchedulingQueue()
    queue.add(A)
    queue.take(at(0))
    queue.add(A)
    assert queue.take(at(0)) is None
    queue.failed(A, AttemptFailure.NO_NODE, at(0), 0.0)
    queue.add(A)
    assert queue.take(at(0)) is None


def test_no_wait_while_pod_is_ready() -> None:
    queue = SchedulingQueue()
    queue.add(A)
    assert queue.next_ready() == float("-inf")


@given(st.lists(st.sampled_from(["add", "take", "fail", "refuse", "wake", "forget"]), max_size=60))
def test_queue_never_duplicates_or_loses_pods(steps: list[str]) -> None:
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
                queue.failed(A, AttemptFailure.NO_NODE if step == "fail" else AttemptFailure.ERROR, at(now), 0.5)
                flying = False
            case "wake":
                queue.wake()
            case _:
                queue.forget(A)
                known = flying = False
    if known and not flying:
        assert queue.take(at(now + 400)) == A
