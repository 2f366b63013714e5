"""How much of its earlier denials counts when a VM is denied again."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.units import Instant, Seconds
from scheduler_plugin.ledger.accounts.past_denials import NO_PAST_DENIALS, PastDenials

SPANS = st.lists(st.tuples(st.integers(0, 300), st.integers(0, 300)), max_size=20)
"""Lengths of denials in seconds, each with the time without a denial after it."""


def left_after(spans: list[tuple[int, int]]) -> float:
    """What is left of denials of these lengths after the last pause."""
    past, now = NO_PAST_DENIALS, Instant(1000.0)
    for denied, quiet in spans:
        past = past.followed_by(now, Instant(now + denied))
        now = Instant(now + denied + quiet)
    return past.left(now)


@given(SPANS)
def test_past_is_bounded_by_time_denied(spans: list[tuple[int, int]]) -> None:
    """So that denials which come and go are due no earlier than one of their total length."""
    assert 0 <= left_after(spans) <= sum(denied for denied, _ in spans)


@given(SPANS, st.integers(0, 19), st.integers(0, 300))
def test_longer_denials_and_shorter_pauses_count_more(spans: list[tuple[int, int]], at: int, more: int) -> None:
    longer = [(denied + more * (index == at), quiet) for index, (denied, quiet) in enumerate(spans)]
    shorter = [(denied, max(0, quiet - more * (index == at))) for index, (denied, quiet) in enumerate(spans)]
    assert left_after(longer) >= left_after(spans)
    assert left_after(shorter) >= left_after(spans)


@given(SPANS)
def test_minutes_of_quiet_forget(spans: list[tuple[int, int]]) -> None:
    assert left_after([*spans, (0, 300)]) == pytest.approx(left_after(spans) / 32)


@given(st.lists(st.integers(0, 300), max_size=10))
def test_denials_without_pauses_count_whole(lengths: list[int]) -> None:
    assert left_after([(length, 0) for length in lengths]) == sum(lengths)


@pytest.mark.parametrize(("quiet", "left"), [(0, 80), (60, 40), (120, 20)])
def test_each_minute_of_quiet_forgets_half(quiet: int, left: float) -> None:
    assert left_after([(80, quiet)]) == left


def test_nothing_past_counts_nothing() -> None:
    assert NO_PAST_DENIALS.left(Instant(0.0)) == Seconds(0.0)


def test_move_pays_for_past() -> None:
    past = NO_PAST_DENIALS.unpaid(3).followed_by(Instant(100.0), Instant(110.0))
    assert past.unpaid(3) is past
    assert past.unpaid(4) == PastDenials(moves=4)


def test_earlier_time_forgets_nothing() -> None:
    past = PastDenials(Seconds(10.0), Instant(100.0))
    assert past.left(Instant(90.0)) == Seconds(10.0)
