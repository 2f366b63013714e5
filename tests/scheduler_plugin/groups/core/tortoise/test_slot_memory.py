"""A slot's need is a running maximum that decays when the slot recurs; the number of slots never grows."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from fractions import Fraction
from zoneinfo import ZoneInfo

from hypothesis import given, settings
from hypothesis import strategies as st

from scheduler_plugin.groups.core.tortoise.slots import Period, Slot, SlotLayout, SlotMemory, SlotValue
from tests.examples import examples

BERLIN, UTC_ZONE = ZoneInfo("Europe/Berlin"), ZoneInfo("UTC")
MONDAY = datetime(2026, 5, 4, 10, tzinfo=UTC)
DECAY = Fraction("0.95")


def memory(range_hours: int = 1, period: Period = "daily", zone: ZoneInfo = UTC_ZONE) -> SlotMemory:
    return SlotMemory(SlotLayout(range_hours, period, zone))


def after(found: SlotMemory, *seen: tuple[float, int]) -> SlotMemory:
    """``found`` after values were seen, each this many hours after Monday at ten."""
    for hours, value in seen:
        found = found.learned(value, DECAY, MONDAY + timedelta(hours=hours))
    return found


def test_hourly_maximum_counts() -> None:
    first = after(memory(), (0, 5), (0.5, 9))
    assert after(first, (0.9, 3)) is first
    assert dict(first) == {Slot(10, 11): SlotValue(9, MONDAY + timedelta(minutes=30))}


def test_unused_number_fades_daily() -> None:
    found = after(memory(), (0, 100), (24, 1), (48, 1), (72, 1))
    assert found.at(MONDAY) == 85  # 100, 95, 90, 85: rounded down each time
    assert after(found, (96, 90)).at(MONDAY) == 90


def test_by_weekday_a_number_fades_once_a_week() -> None:
    found = after(memory(period="weekly"), (0, 100), (24, 20), (168, 1))
    assert dict(found) == {
        Slot(10, 11, "Monday"): SlotValue(95, MONDAY + timedelta(days=7)),
        Slot(10, 11, "Tuesday"): SlotValue(20, MONDAY + timedelta(days=1)),
    }


def test_unseen_slot_counts_as_strongest() -> None:
    spring = datetime(2026, 3, 29, tzinfo=UTC)
    found = memory(zone=BERLIN)
    for hour in range(23):
        found = found.learned(hour, DECAY, spring - timedelta(hours=1) + timedelta(hours=hour))
    assert len(found.values) == 23
    assert found.at(datetime(2026, 3, 30, 0, 30, tzinfo=UTC)) == 22  # 02:30, which was skipped the day before


def test_nothing_is_known_at_first() -> None:
    assert (memory().at(MONDAY), memory().maximum) == (None, None)


def test_wrong_clock_does_not_freeze_slot() -> None:
    found = after(memory(), (24 * 365, 100), (0, 1))
    assert dict(found) == {Slot(10, 11): SlotValue(100, MONDAY)}
    assert after(found, (24, 1)).at(MONDAY) == 95


def test_another_layout_takes_over_what_it_overlaps() -> None:
    weekly = after(memory(period="weekly"), (0, 10), (1, 12), (24, 30))
    daily = weekly.converted_to(SlotLayout(2, "daily", UTC_ZONE))
    assert {slot: each.value for slot, each in daily} == {Slot(10, 12): 30}
    back = daily.converted_to(SlotLayout(12, "weekly", UTC_ZONE))
    assert [each.value for _, each in back] == [30] * 7
    assert back.converted_to(back.layout) is back


def test_in_another_time_zone_memory_begins_anew() -> None:
    assert after(memory(), (0, 10)).converted_to(SlotLayout(1, "daily", BERLIN)) == memory(zone=BERLIN)


SEEN = st.lists(st.tuples(st.integers(0, 24 * 30 * 12), st.integers(0, 500)), max_size=40)


@settings(max_examples=examples(12, 80))
@given(SEEN, st.sampled_from([1, 6, 24]), st.sampled_from(["daily", "weekly"]))
def test_number_falls_only_in_its_slot(seen: list[tuple[int, int]], range_hours: int, period: Period) -> None:
    found = memory(range_hours, period, BERLIN)
    for step, value in sorted(seen):
        now = MONDAY + timedelta(minutes=5 * step)
        before = found.values.get(found.layout.slot_at(now))
        found = found.learned(value, DECAY, now)
        here = found.values[found.layout.slot_at(now)]
        assert here.value >= value
        if before is not None and not found.layout.recurs(before.at, now):
            assert here.value == max(before.value, value)
    assert set(found.values) <= set(found.layout.slots())
