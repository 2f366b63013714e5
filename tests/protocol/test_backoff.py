"""Waits grow, have a cap, are spread by jitter, and restart after something ran well."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from protocol.backoff import Backoff, Retries
from protocol.units import Seconds

FOUR = Backoff(Seconds(1.0), Seconds(8.0), spread=0.5)


def test_backoff_doubles_to_cap() -> None:
    assert [FOUR.delay(failures, 0.0) for failures in range(1, 7)] == [1.0, 2.0, 4.0, 8.0, 8.0, 8.0]
    assert [FOUR.delay(failures, 1.0) for failures in range(1, 4)] == [1.5, 3.0, 6.0]
    assert Backoff(Seconds(2.0), Seconds(9.0), factor=1.5).delay(2, 0.0) == 3.0


@given(st.integers(1, 10**9), st.floats(0, 1))
def test_backoff_stays_in_bounds(failures: int, jitter: float) -> None:
    assert 1.0 <= FOUR.delay(failures, jitter) <= 12.0


def test_success_resets_backoff() -> None:
    retries = Retries(FOUR)
    assert [retries.failed(0.0), retries.failed(0.0, ran=Seconds(1e9)), retries.failures] == [1.0, 2.0, 2]
    retries.succeeded()
    assert retries.failed(0.0) == 1.0


def test_healthy_time_resets_backoff() -> None:
    retries = Retries(FOUR, healthy=Seconds(60.0))
    waits = [retries.failed(0.0, ran=Seconds(ran)) for ran in (0.0, 59.9, 60.0, 1.0)]
    assert waits == [1.0, 2.0, 1.0, 2.0]
