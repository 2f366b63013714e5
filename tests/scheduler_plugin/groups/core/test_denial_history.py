"""How long a primary was denied room recently, despite interruptions."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduler_plugin.groups.core.tandem import WINDOW, DenialHistory

NOW = datetime(2026, 1, 1, 12, tzinfo=UTC)
ENOUGH = timedelta(minutes=5)
LOOKS = st.lists(st.tuples(st.integers(1, 400), st.booleans()), max_size=40)
"""Seconds until the next look at the primary, and whether it was denied room until then."""


def seconds(count: float) -> timedelta:
    return timedelta(seconds=count)


def history_of(looks: list[tuple[int, bool]]) -> tuple[DenialHistory, datetime]:
    """The history after all samples, and the time of the last one; a denial begins with the sample before it."""
    history, now, since = DenialHistory().updated("uid", None, NOW), NOW, None
    for after, is_denied in looks:
        since = (now if since is None else since) if is_denied else None
        now += seconds(after)
        history = history.updated("uid", since, now)
    return history, now


@given(LOOKS)
def test_length_is_time_denied_within_window(looks: list[tuple[int, bool]]) -> None:
    history, now = history_of(looks)
    counted, end = 0, 0
    for after, is_denied in reversed(looks):
        counted += is_denied * max(0, min(after, int(WINDOW.total_seconds()) - end))
        end += after
    assert history.length == seconds(counted)
    assert history.updated("uid", None, now) == history


@given(LOOKS, st.integers(0, 39))
def test_more_denials_never_shorten_it(looks: list[tuple[int, bool]], number: int) -> None:
    denied_more = [(after, is_denied or index == number) for index, (after, is_denied) in enumerate(looks)]
    assert history_of(denied_more)[0].length >= history_of(looks)[0].length


@given(st.lists(st.integers(1, 60), min_size=1, max_size=30))
def test_lone_denial_counts_its_length(gaps: list[int]) -> None:
    """However often it is looked at; a switchover comes neither earlier nor later for the looks."""
    history, now = history_of([(after, True) for after in gaps])
    assert history.length == min(now - NOW, WINDOW)
    assert (history.length >= ENOUGH) is (now - NOW >= ENOUGH)


@given(LOOKS)
def test_quiet_window_forgets(looks: list[tuple[int, bool]]) -> None:
    history, now = history_of(looks)
    assert history.updated("uid", None, now + WINDOW) == DenialHistory("uid")


def test_unseen_looks_count_if_denial_lasts() -> None:
    """The scheduler did not respond to the second query."""
    history = DenialHistory().updated("uid", NOW, NOW + seconds(15)).updated("uid", None, NOW + seconds(30))
    assert history.length == seconds(15)
    assert history.updated("uid", NOW, NOW + seconds(45)).spans == ((NOW, NOW + seconds(45)),)


def test_another_primary_starts_without_a_past() -> None:
    history = DenialHistory().updated("uid", NOW, NOW + ENOUGH)
    assert history.updated("other", None, NOW + ENOUGH) == DenialHistory("other")


@pytest.mark.parametrize("back", [seconds(1), ENOUGH / 2, WINDOW * 2])
def test_clock_that_is_set_back_adds_nothing(back: timedelta) -> None:
    history = DenialHistory().updated("uid", NOW, NOW + ENOUGH)
    assert history.updated("uid", None, NOW + ENOUGH - back).length == max(timedelta(0), ENOUGH - back)


def test_denial_from_the_future_begins_now() -> None:
    assert DenialHistory().updated("uid", NOW + ENOUGH, NOW).length == timedelta(0)
